package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// A probedOwner is the node that a fault is made on, and the probers of its VIPs.
type probedOwner struct {
	node   string
	owned  []netip.Addr
	who    *lab.WhoHas
	client *lab.Connect // nil if there are no kube-proxies
	held   []*lab.Held  // connections to the VIPs that are probed, begun before the fault
}

// probeOwner chooses the node with the most VIPs, and starts probers of at most maxProbed of them.
func (b *bench) probeOwner(ctx context.Context) (*probedOwner, error) {
	v := &probedOwner{}
	for _, n := range b.lab.Nodes() {
		have, err := b.bound(n)
		if err != nil {
			return nil, err
		}
		if len(have) > len(v.owned) {
			v.node, v.owned = n, have
		}
	}
	probed := v.owned
	if len(probed) > maxProbed {
		// Evenly, since the order of the VIPs may be the order in which they move.
		probed = nil
		for i := range maxProbed {
			probed = append(probed, v.owned[i*len(v.owned)/maxProbed])
		}
	}
	var err error
	if v.who, err = b.lab.WhoHas(ctx, probeInterval, probed...); err != nil {
		return nil, err
	}
	sleep(ctx, time.Second)
	if b.bare {
		probed = nil
	} else if v.client, err = b.lab.Connect(ctx, 10*time.Millisecond, probed[len(probed)/2].String()+":80"); err != nil {
		v.who.Stop()
		return nil, err
	}
	for _, a := range probed {
		h, err := b.lab.Hold(ctx, netip.AddrPortFrom(a, 80).String())
		if err != nil {
			return nil, err
		}
		v.held = append(v.held, h)
	}
	sleep(ctx, time.Second)
	return v, nil
}

// stop ends the probers, and records in f what they saw.
func (v *probedOwner) stop(f *Fault) lab.WhoHasReport {
	report, connects := v.who.Stop(), lab.ConnectReport{}
	if v.client != nil {
		connects = v.client.Stop()
	}
	f.Owned = len(v.owned)
	f.record(report, connects)
	v.askHeld(f)
	return report
}

// askHeld records in f how many of the connections that began before the fault have outlived it,
// and ends them.
func (v *probedOwner) askHeld(f *Fault) {
	for _, h := range v.held {
		f.Held++
		if _, err := h.Ask(); err != nil {
			f.Broken++
		}
		h.Close()
	}
}

// noFault shows the noise of the bench itself.
var noFault = lab.Fault{Name: "none", Do: func(context.Context, *lab.Lab, string) error { return nil }}

// makeFaults makes each fault whose name contains setup.faults, one after the other.
func (b *bench) makeFaults(ctx context.Context) error {
	b.result.Faults = map[string]Fault{}
	for _, f := range append([]lab.Fault{noFault}, lab.FaultsNamed(b.setup.faults)...) {
		if err := b.makeFault(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// makeFault makes a fault on the node with the most VIPs, undoes it, waits until that node is ready, and records what
// the probers saw.
func (b *bench) makeFault(ctx context.Context, fault lab.Fault) error {
	// else what the fault before has left to be written is measured, too
	if _, err := b.awaitFewRequests(ctx); err != nil {
		return err
	}
	if err := b.until(ctx, stepTimeout, func() error { return b.lab.PeersDetectable(ctx) }); err != nil {
		return err
	}
	v, err := b.probeOwner(ctx)
	if err != nil {
		return err
	}
	b.log("%s: %s, which has %d VIPs", fault.Name, v.node, len(v.owned))
	f := Fault{}
	began := time.Now()
	err = fault.Do(ctx, b.lab, v.node)
	if err == nil && fault.Moves {
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
	if fault.Undo != nil {
		err = errors.Join(err, fault.Undo(ctx, b.lab, v.node))
	}
	if err == nil {
		err = b.awaitReady(ctx, v.node)
	}
	sleep(ctx, 3*time.Second)
	report := v.stop(&f)
	if err != nil {
		return err
	}
	have, err := b.bound(v.node)
	f.Gone = len(v.owned) - len(
		slices.DeleteFunc(slices.Clone(v.owned), func(a netip.Addr) bool { return !slices.Contains(have, a) }))
	b.result.Faults[fault.Name] = f
	b.log("unanswered %.0f ms (p50), %.0f ms (max), by two %.0f ms, %d of its VIPs gone, %d of %d connections failed, "+
		"%d of %d from before broke",
		f.Silence.P50, f.Silence.Max, f.LongestDouble, f.Gone, f.Failed, f.Connections, f.Broken, f.Held)
	for _, x := range f.Failures {
		b.log("  failed %s", x)
	}
	return errors.Join(err, report.Err)
}

// countMissing counts the VIPs of v that no other node's kernel has.
func (b *bench) countMissing(v *probedOwner) (int, error) {
	elsewhere := map[netip.Addr]bool{}
	for _, n := range b.lab.Nodes() {
		if n == v.node {
			continue
		}
		have, err := b.bound(n)
		if err != nil {
			return 0, err
		}
		for _, a := range have {
			elsewhere[a] = true
		}
	}
	n := 0
	for _, a := range v.owned {
		if !elsewhere[a] {
			n++
		}
	}
	return n, nil
}
