package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// What a soak allows a process to grow by: goroutines, and MiB of memory. It is compared with what it had a minute
// after its start at the earliest.
const (
	maxMoreGoroutines = 20
	maxMoreMemory     = 25
	usageAfter        = time.Minute
)

// A processUsage is what a Herald uses.
type processUsage struct {
	pid                int
	since              time.Time // of the process
	goroutines, memory float64   // MiB
}

// soak makes random faults on a cluster of its own with n Services for a time, one after the other, and waits after
// each until all is well. Two watchers look on: who answers for each VIP by ARP, and whether a client can connect to
// one. It returns an error for each round in which a VIP was unanswered, or answered by two, for longer than the
// fault allows, or in which all is not well again, and for each process that has grown. The same seed makes the same
// faults.
func (s setup) soak(ctx context.Context, n int, lasts time.Duration, seed uint64) (err error) {
	fmt.Printf("%s, %s: soak of %v with %d nodes and %d Services, seed %d\n", s.version(ctx), machine(), lasts, s.nodes,
		n, seed)
	b, err := s.newBench(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.lab.Down()) }()
	for _, step := range []func(context.Context) error{b.startHeralds, b.createServices} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	faults := lab.FaultsNamed(s.faults)
	if len(faults) == 0 {
		return fmt.Errorf("--faults: no fault has %q in its name", s.faults)
	}
	r := rand.New(rand.NewPCG(seed, seed))
	first := map[string]processUsage{}
	var errs []error
	for end, i := time.Now().Add(lasts), 1; time.Now().Before(end) && ctx.Err() == nil; i++ {
		round := randomFault(r, faults, b.lab.Nodes(), b.busiest())
		if err := b.soakRound(ctx, &round); err != nil {
			errs = append(errs,
				fmt.Errorf("round %d, %s %s for %v: %w", i, round.node, round.fault.Name, round.lasted.Round(time.Millisecond),
					err))
			b.log("%v", errs[len(errs)-1])
		}
		b.log("round %d: %s %s for %.1f s: unanswered %.2f s, by two %.2f s, %d of %d connections failed", i, round.node,
			round.fault.Name,
			round.lasted.Seconds(), round.silent.Seconds(), round.double.Seconds(), len(round.connect.Failures),
			round.connect.Attempts)
		if _, err := b.compareUsage(ctx, first); err != nil {
			errs = append(errs, err)
		}
	}
	text, err := b.compareUsage(ctx, first)
	fmt.Printf("%s%d faults failed\n", text, len(errs))
	return errors.Join(append(errs, err)...)
}

// busiest is the node that had the most VIPs when all was well last.
func (b *bench) busiest() string {
	return slices.MaxFunc(b.lab.Nodes(), func(x, y string) int { return b.result.Spread[x] - b.result.Spread[y] })
}

// soakRound makes the fault of r, waits until all is well again, and records in r what the watchers saw.
func (b *bench) soakRound(ctx context.Context, r *soakRound) error {
	who, err := b.lab.WhoHas(ctx, probeInterval*2, b.addrs...)
	if err != nil {
		return err
	}
	client, err := b.lab.Connect(ctx, 50*time.Millisecond, b.addrs[len(b.addrs)/2].String()+":80")
	if err != nil {
		who.Stop()
		return err
	}
	sleep(ctx, time.Second)
	err = r.fault.Do(ctx, b.lab, r.node)
	sleep(ctx, r.lasted)
	if r.fault.Undo != nil {
		err = errors.Join(err, r.fault.Undo(ctx, b.lab, r.node))
	}
	err = errors.Join(err, b.awaitWell(ctx))
	r.report, r.connect = who.Stop(), client.Stop()
	for _, a := range r.report.Addrs {
		r.silent, r.double = max(r.silent, a.LongestSilence), max(r.double, a.LongestDouble)
	}
	errs := []error{err, r.report.Err}
	for _, a := range r.report.Addrs {
		if a.LongestSilence > r.fault.Silent || a.LongestDouble > r.fault.Double {
			errs = append(errs, fmt.Errorf("%v was unanswered for %v (%v allowed), by two for %v (%v allowed): %v", a.Addr,
				a.LongestSilence, r.fault.Silent, a.LongestDouble, r.fault.Double, describeTimeline(a)))
			break // one says enough
		}
	}
	return errors.Join(errs...)
}

// describeTimeline is who answered for an address, and for how long.
func describeTimeline(a lab.AddrReport) (text []string) {
	for _, s := range a.Timeline {
		text = append(text, fmt.Sprintf("%v %.2fs", s.Hosts, s.To.Sub(s.From).Seconds()))
	}
	return text
}

// A soakRound is what the watchers saw of one fault.
type soakRound struct {
	fault   lab.Fault
	node    string
	lasted  time.Duration
	silent  time.Duration // the longest of any VIP
	double  time.Duration
	report  lab.WhoHasReport
	connect lab.ConnectReport
}

// randomFault chooses a fault, for how long it lasts (half of them for 3 s or less, and up to 20 s), and a node: of
// four times three that with the most VIPs (owner).
func randomFault(r *rand.Rand, faults []lab.Fault, nodes []string, owner string) soakRound {
	lasts := time.Duration(r.Int64N(int64(3 * time.Second)))
	if r.IntN(2) == 0 {
		lasts = time.Duration(r.Int64N(int64(20 * time.Second)))
	}
	node := nodes[r.IntN(len(nodes))]
	if r.IntN(4) > 0 {
		node = owner
	}
	return soakRound{fault: faults[r.IntN(len(faults))], node: node, lasted: lasts}
}

// awaitWell waits until each VIP is on one node, all Heralds are ready and would detect each other's death, and 2 s
// more.
func (b *bench) awaitWell(ctx context.Context) error {
	err := b.until(ctx, stepTimeout, func() error {
		for _, n := range b.lab.Nodes() {
			if _, err := b.lab.Get(ctx, n, "http://127.0.0.1:2112/readyz"); err != nil {
				return err
			}
		}
		return errors.Join(b.lab.PeersDetectable(ctx), b.recordSpread())
	})
	sleep(ctx, 2*time.Second)
	return err
}

// compareUsage compares what each Herald uses with the first time that it was asked, usageAfter after its process was
// first seen. It returns a line for each, and an error for each that has grown.
func (b *bench) compareUsage(ctx context.Context, first map[string]processUsage) (text string, err error) {
	var errs []error
	for _, n := range b.lab.Nodes() {
		now, err := b.usage(ctx, n)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f := first[n]
		switch {
		case f.pid != now.pid:
			first[n] = processUsage{pid: now.pid, since: time.Now()}
		case f.goroutines == 0 && time.Since(f.since) >= usageAfter:
			now.since = f.since
			first[n] = now
		case f.goroutines > 0:
			text += fmt.Sprintf("%s, process of %v: goroutines %.0f, now %.0f; memory %.0f MiB, now %.0f MiB\n", n,
				time.Since(f.since).Round(time.Second), f.goroutines, now.goroutines, f.memory, now.memory)
			if now.goroutines > f.goroutines+maxMoreGoroutines || now.memory > f.memory+maxMoreMemory {
				errs = append(errs, fmt.Errorf("%s has grown: goroutines %.0f to %.0f, memory %.0f to %.0f MiB", n, f.goroutines,
					now.goroutines, f.memory, now.memory))
			}
		}
	}
	return text, errors.Join(errs...)
}

func (b *bench) usage(ctx context.Context, node string) (u processUsage, err error) {
	text, err := b.lab.Get(ctx, node, "http://127.0.0.1:2112/metrics")
	if err != nil {
		return u, err
	}
	_, rss, err := b.lab.Herald(node).Usage()
	if err != nil {
		return u, err
	}
	u.pid, u.memory = b.lab.Herald(node).Pid, float64(rss)/(1<<20)
	u.goroutines, err = metric(text, "go_goroutines")
	return u, err
}
