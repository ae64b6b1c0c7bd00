package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// A probedOwner is the node that a fault is made on, and the probers of its VIPs.
type probedOwner struct {
	node   string
	owned  []netip.Addr
	who    *lab.WhoHas
	client *lab.Connect       // nil if there are no kube-proxies
	before map[string]float64 // API requests when the probers had started
	held   []*lab.Held        // connections to the VIPs that are probed, begun before the fault
}

// probeOwner chooses the node with the most VIPs, starts probers of at most maxProbed of them, and,
// a second later, counts the API requests.
func (b *bench) probeOwner(ctx context.Context) (*probedOwner, error) {
	return b.probeOwnerOf(ctx, true)
}

func (b *bench) probeOwnerOf(ctx context.Context, count bool) (*probedOwner, error) {
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
	if count {
		v.before, err = b.lab.APIRequests(ctx)
	}
	return v, err
}

// stopProbes ends the probers after another second, and records in f what they saw and which API
// requests there were.
func (b *bench) stopProbes(ctx context.Context, v *probedOwner, f *Fault) (lab.WhoHasReport, error) {
	sleep(ctx, time.Second)
	report := v.stop(f)
	now, err := b.lab.APIRequests(ctx)
	f.Requests = lab.Since(now, v.before)
	return report, errors.Join(err, report.Err)
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

// probeWithoutFault probes an owner for ten seconds without a fault: the noise of the bench itself.
func (b *bench) probeWithoutFault(ctx context.Context) error {
	b.log("probing without a fault")
	v, err := b.probeOwner(ctx)
	if err != nil {
		return err
	}
	sleep(ctx, 10*time.Second)
	_, err = b.stopProbes(ctx, v, &b.result.NoFault)
	return err
}

// stopOwner stops an owner by SIGTERM, waits until its VIPs have moved, and starts it again.
func (b *bench) stopOwner(ctx context.Context) error {
	v, err := b.probeOwner(ctx)
	if err != nil {
		return err
	}
	f := &b.result.Stopped
	b.log("SIGTERM of %s, which has %d VIPs", v.node, len(v.owned))
	p := b.lab.Herald(v.node)
	began := time.Now()
	err = p.Signal(syscall.SIGTERM)
	if err == nil {
		err = b.awaitMoved(ctx, v, f, began)
	}
	if err == nil {
		err = p.Wait(ctx)
		f.Ended = millis(time.Since(began))
	}
	if _, stopped := b.stopProbes(ctx, v, f); err == nil {
		err = stopped
	}
	if err != nil {
		return err
	}
	for _, x := range f.Failures {
		b.log("  failed %s", x)
	}
	b.log("all moved after %.0f ms, longest unanswered %.0f ms, %d of %d connections failed, %d of %d from before broke", f.AllMoved, f.LongestSilence, f.Failed, f.Connections, f.Broken, f.Held)
	return b.startHerald(ctx, v.node)
}

// killOwner kills an owner by SIGKILL, waits until its VIPs have moved, and starts it again.
func (b *bench) killOwner(ctx context.Context) error {
	sleep(ctx, 3*time.Second)
	v, err := b.probeOwner(ctx)
	if err != nil {
		return err
	}
	f := &b.result.Killed
	b.log("SIGKILL of %s, which has %d VIPs", v.node, len(v.owned))
	began := time.Now()
	b.lab.Herald(v.node).Kill()
	err = b.awaitMoved(ctx, v, f, began)
	report, stopped := b.stopProbes(ctx, v, f)
	if err == nil {
		err = stopped
	}
	f.TakenOver = takeoverTimes(report, v.node, began)
	if err == nil {
		err = b.startHerald(ctx, v.node)
	}
	b.log("left the kernel after %.0f ms, taken over after %.0f to %.0f ms, %d of %d connections from before broke", f.KernelDropped, f.TakenOver.P50, f.AllMoved, f.Broken, f.Held)
	return err
}

// makeFaults makes each fault whose name contains setup.faults, one after the other; none if faults last 0 s.
func (b *bench) makeFaults(ctx context.Context) error {
	if b.setup.faultLasts == 0 {
		return nil
	}
	b.result.Faults = map[string]Fault{}
	for _, f := range lab.FaultsNamed(b.setup.faults) {
		if err := b.makeFault(ctx, f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// makeFault makes a fault on the node with the most VIPs, undoes it, waits until that node is ready, and records what
// the probers saw.
func (b *bench) makeFault(ctx context.Context, fault lab.Fault) error {
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
	f.Gone = len(v.owned) - len(slices.DeleteFunc(slices.Clone(v.owned), func(a netip.Addr) bool { return !slices.Contains(have, a) }))
	b.result.Faults[fault.Name] = f
	b.log("unanswered %.0f ms (p50), %.0f ms (max), by two %.0f ms, %d of its VIPs gone, %d of %d connections failed",
		f.Silence.P50, f.Silence.Max, f.LongestDouble, f.Gone, f.Failed, f.Connections)
	return errors.Join(err, report.Err)
}

// awaitMoved waits until the other nodes' kernels have all VIPs of v, and its own has none,
// and records when.
func (b *bench) awaitMoved(ctx context.Context, v *probedOwner, f *Fault, began time.Time) error {
	return b.until(ctx, stepTimeout, func() error {
		if f.KernelDropped == 0 {
			have, err := b.bound(v.node)
			if err != nil {
				return err
			}
			if len(have) == 0 {
				f.KernelDropped = millis(time.Since(began))
			}
		}
		if f.AllMoved == 0 {
			missing, err := b.countMissing(v)
			if err != nil {
				return err
			}
			if missing > 0 {
				return fmt.Errorf("%d of %s's %d VIPs are on no other node", missing, v.node, len(v.owned))
			}
			f.AllMoved = millis(time.Since(began))
		}
		if f.KernelDropped == 0 {
			return fmt.Errorf("%s still has VIPs", v.node)
		}
		return nil
	})
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

// takeoverTimes is how long after began each VIP was first answered by a node other than old. VIPs
// that none answered for are left out.
func takeoverTimes(report lab.WhoHasReport, old string, began time.Time) Quantiles {
	var all []time.Duration
	for _, a := range report.Addrs {
		for _, s := range a.Timeline {
			if s.From.After(began) && slices.ContainsFunc(s.Hosts, func(h string) bool { return h != old }) {
				all = append(all, s.From.Sub(began))
				break
			}
		}
	}
	return quantiles(all)
}
