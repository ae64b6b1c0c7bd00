package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A scenario is a fault of an owner that is made and, after a while, repaired.
type scenario struct {
	name  string
	moves bool // its VIPs are expected to move
	do    func(b *bench, ctx context.Context, node string) error
	undo  func(b *bench, ctx context.Context, node string) error
}

var scenarios = []scenario{
	{
		"its Herald killed, and started after 2 s", false,
		func(b *bench, ctx context.Context, node string) error {
			b.heralds[node].Kill()
			sleep(ctx, 2*time.Second)
			return b.startHerald(ctx, node)
		},
		func(*bench, context.Context, string) error { return nil },
	},
	{
		"its Herald stopped by SIGSTOP, and continued", true,
		func(b *bench, _ context.Context, node string) error { return b.heralds[node].Signal(syscall.SIGSTOP) },
		func(b *bench, _ context.Context, node string) error { return b.heralds[node].Signal(syscall.SIGCONT) },
	},
	{
		"its link down", true,
		func(b *bench, _ context.Context, node string) error { return b.lab.Unplug(node) },
		func(b *bench, _ context.Context, node string) error { return b.lab.Reconnect(node) },
	},
	{
		"both its networks cut, and repaired", true,
		func(b *bench, _ context.Context, node string) error {
			return errors.Join(b.lab.Cut(node), b.lab.CutAPI(node))
		},
		func(b *bench, _ context.Context, node string) error {
			return errors.Join(b.lab.Reconnect(node), b.lab.ConnectAPI(node))
		},
	},
	{
		"cut from the API server alone, and repaired", true,
		func(b *bench, _ context.Context, node string) error { return b.lab.CutAPI(node) },
		func(b *bench, _ context.Context, node string) error { return b.lab.ConnectAPI(node) },
	},
	{
		"its heartbeat port blocked, and opened", false,
		func(b *bench, ctx context.Context, node string) error {
			return b.lab.BlockPort(ctx, node, 7947)
		},
		func(b *bench, ctx context.Context, node string) error { return b.lab.OpenPort(ctx, node) },
	},
	{
		"the API server killed, and started", false,
		func(b *bench, _ context.Context, _ string) error { return b.lab.StopAPI() },
		func(b *bench, ctx context.Context, _ string) error { return b.lab.StartAPI(ctx) },
	},
	{
		"the API server away and the owner killed", true,
		func(b *bench, ctx context.Context, node string) error {
			if err := b.lab.StopAPI(); err != nil {
				return err
			}
			sleep(ctx, 10*time.Second) // longer than a node needs to detect it
			b.heralds[node].Kill()
			return nil
		},
		func(b *bench, ctx context.Context, node string) error {
			if err := b.lab.StartAPI(ctx); err != nil {
				return err
			}
			return b.startHerald(ctx, node)
		},
	},
}

// runScenarios runs all scenarios, one after the other; none if faults last 0 s, only those of which faults is a part of the name if that is set.
func (b *bench) runScenarios(ctx context.Context) error {
	if b.setup.faultLasts == 0 {
		return nil
	}
	b.result.Faults = map[string]Fault{}
	for _, s := range scenarios {
		if !strings.Contains(s.name, b.setup.faults) {
			continue
		}
		if err := b.runScenario(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// runScenario makes the fault on the node with the most VIPs, repairs it, waits until that node is
// ready, and records what the probers saw.
func (b *bench) runScenario(ctx context.Context, s scenario) error {
	if _, err := b.awaitFewRequests(ctx); err != nil { // else what the fault before has left to be written is measured, too
		return err
	}
	if err := b.until(ctx, stepTimeout, func() error { return b.lab.PeersDetectable(ctx) }); err != nil {
		return err
	}
	v, err := b.probeOwnerOf(ctx, false)
	if err != nil {
		return err
	}
	b.log("%s: %s, which has %d VIPs", s.name, v.node, len(v.owned))
	f := Fault{}
	began := time.Now()
	err = s.do(b, ctx, v.node)
	if err == nil && s.moves {
		err = b.until(ctx, stepTimeout, func() error {
			missing, err := b.countMissing(v)
			if err == nil && missing > 0 {
				err = fmt.Errorf("%d of %s's %d VIPs are on no other node", missing, v.node, len(v.owned))
			}
			return err
		})
		f.AllMoved = millis(time.Since(began))
	}
	if err == nil {
		sleep(ctx, b.setup.faultLasts-time.Since(began))
	}
	if repaired := s.undo(b, ctx, v.node); err == nil {
		err = repaired
	}
	if err == nil {
		err = b.until(ctx, stepTimeout, func() error {
			_, err := b.lab.Get(ctx, v.node, "http://127.0.0.1:2112/readyz")
			return err
		})
	}
	sleep(ctx, 3*time.Second)
	report, connects := v.who.Stop(), v.client.Stop()
	if err != nil {
		return err
	}
	have, err := b.bound(v.node)
	f.Owned = len(v.owned)
	f.Gone = len(v.owned) - len(slices.DeleteFunc(slices.Clone(v.owned), func(a netip.Addr) bool { return !slices.Contains(have, a) }))
	f.record(report, connects)
	v.askHeld(&f)
	b.result.Faults[s.name] = f
	b.log("unanswered %.0f ms (p50), %.0f ms (max), by two %.0f ms, %d of its VIPs gone, %d of %d connections failed",
		f.Silence.P50, f.Silence.Max, f.LongestDouble, f.Gone, f.Failed, f.Connections)
	return errors.Join(err, report.Err)
}
