package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// A fault is what happens to the owner of the VIP, and what must not come of it.
type fault struct {
	name, tell, why string // the chapter's, what is said before it, and after; tell has %s for the owner
	command         string // that is shown, with %d for the pid of the owner's Herald
	watched         time.Duration
	do, undo        func(*demo, string) error // undo after three quarters of the time; nil: none
	keeps           bool                      // no connection may fail, and one that is open goes on
	silence, double time.Duration             // that nobody, and two nodes, may answer
}

var faults = []fault{
	{
		name: "The owner is stopped: no connection is lost",
		tell: `%s owns 10.77.0.50. Its Herald is stopped, as in a drain or an upgrade.
Meanwhile a host asks each 5 ms who has the address, and the client opens a
connection each 10 ms, and goes on with one that is open already.`,
		why: `Make before break: the new owner has bound the address and announced it before
the old one removed it. Packets of connections that it does not know it sends to
the old owner.`,
		command: "kill -TERM %d", watched: 1500 * time.Millisecond, keeps: true,
		do:      func(d *demo, owner string) error { return d.heralds[owner].Signal(syscall.SIGTERM) },
		silence: 100 * time.Millisecond, double: time.Second,
	},
	{
		name: "The owner is killed",
		tell: `The same by SIGKILL, on %s: no time to hand over. The kernel of the node still
has the address and serves it.`,
		why: `The other nodes hear no heartbeat, and fence the node by one write. Its kernel
removes the address by itself after the 5 s that it was lent for, and only then
another node takes it: never two owners. A Herald that is started again before
that goes on, and nothing moves.`,
		command: "kill -KILL %d", watched: 7500 * time.Millisecond,
		do:      func(d *demo, owner string) error { d.heralds[owner].Kill(); return nil },
		silence: time.Second, double: 200 * time.Millisecond,
	},
	{
		name: "The owner's networks fail",
		tell: `Both networks of %s fail, the VIPs' and the API server's. Its links stay up, as
when a switch fails.`,
		why: `No heartbeat, nobody answers for the address, and the others are the majority:
they need not wait. The node that is cut off removes the address by itself, so
that nothing happens when its networks are back, at three quarters of the time.`,
		watched: 10 * time.Second,
		do:      func(d *demo, owner string) error { return errors.Join(d.lab.Cut(owner), d.lab.CutAPI(owner)) },
		undo:    func(d *demo, owner string) error { return errors.Join(d.lab.Reconnect(owner), d.lab.ConnectAPI(owner)) },
		silence: 4 * time.Second, double: time.Second,
	},
}

func (d *demo) showFaults(ctx context.Context) error {
	for i, f := range faults {
		if i > 0 {
			if err := d.heal(ctx); err != nil {
				return err
			}
		}
		d.chapter(f.name)
		owners, err := d.owners(ctx)
		if err != nil {
			return err
		}
		old := owners[0]
		d.text(f.tell, old)
		if f.command != "" {
			d.command(fmt.Sprintf(f.command, d.heralds[old].Pid))
		}
		seen, err := d.watch(ctx, f, old)
		if err != nil {
			return err
		}
		if err := d.report(f, old, seen); err != nil {
			return err
		}
		d.text("%s", f.why)
	}
	return d.heal(ctx)
}

// seen is what was seen of a fault from outside.
type seen struct {
	began   time.Time // of the fault
	who     lab.WhoHasReport
	client  lab.ConnectReport
	slowest time.Duration // line on the connection that was open
	broken  error         // that connection
}

// watch has a fault happen to the VIP's owner, and looks from outside: it asks who has the VIP, and connects to it,
// until the fault's time is over and another node answers. In a terminal it shows meanwhile who answers.
func (d *demo) watch(ctx context.Context, f fault, owner string) (s seen, err error) {
	every := min(20*time.Millisecond, f.watched/300) // two nodes answer for some ms only when they hand over
	who, err := d.lab.WhoHas(ctx, every, vip)
	if err != nil {
		return s, err
	}
	defer who.Stop()
	client, err := d.lab.Connect(ctx, 10*time.Millisecond, vip.String()+":80")
	if err != nil {
		return s, err
	}
	defer client.Stop()
	var open *lab.Held
	if f.keeps {
		if open, err = d.lab.Hold(ctx, vip.String()+":80"); err != nil {
			return s, err
		}
		defer open.Close()
	}
	if f.undo != nil {
		defer f.undo(d, owner) // once more, if all went well
	}
	d.print("\n")
	tick := time.NewTicker(f.watched / cells)
	defer tick.Stop()
	drawn, moved := "", false
	for i := 0; (i < cells || !moved) && i < 3*cells && err == nil; i++ {
		now := who.Owner(vip)
		moved = now != "" && now != owner
		drawn += sign(now)
		d.live(string([]rune(drawn)[max(0, i+1-cells):]))
		switch {
		case i == cells/8:
			s.began = time.Now()
			err = f.do(d, owner)
		case i == cells*3/4 && f.undo != nil:
			err = f.undo(d, owner)
		case i%12 == 0: // else the client goes on with the old owner, whose kube-proxy serves it too
			_, err = d.lab.Run(ctx, "cl", "ip", "neighbour", "flush", "dev", "eth0")
		}
		if open != nil {
			s.hold(open)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	s.client, s.who = client.Stop(), who.Stop()
	return s, err
}

// hold sends a line over a connection that is open, unless that has failed before.
func (s *seen) hold(held *lab.Held) {
	if s.broken == nil {
		var took time.Duration
		took, s.broken = held.Ask()
		s.slowest = max(s.slowest, took)
	}
}

// report says what was seen of a fault, and returns what should not have been.
func (d *demo) report(f fault, old string, s seen) error {
	r := s.who.Addr(vip)
	d.timeline(r)

	i := slices.IndexFunc(r.Timeline,
		func(s lab.Span) bool { return slices.ContainsFunc(s.Hosts, func(h string) bool { return h != old }) })
	switch {
	case s.who.Err != nil:
		return s.who.Err
	case i < 0:
		return fmt.Errorf("no other node answered:\n%s", r)
	case r.LongestSilence > f.silence:
		return fmt.Errorf("nobody answered for %v:\n%s", r.LongestSilence, r)
	case r.LongestDouble > f.double:
		return fmt.Errorf("two nodes answered for %v:\n%s", r.LongestDouble, r)
	case f.keeps && len(s.client.Failures) > 0:
		return fmt.Errorf("connections failed:\n%s%s", s.client, r)
	case s.broken != nil:
		return fmt.Errorf("the connection that was open: %w", s.broken)
	}
	next := slices.DeleteFunc(slices.Clone(r.Timeline[i].Hosts), func(h string) bool { return h == old })
	d.checked("%s answers after %s. Nobody answered for %s, two nodes for %s.",
		next[0], short(r.Timeline[i].From.Sub(s.began)), short(r.LongestSilence), short(r.LongestDouble))
	d.checked("Of %d connections %d failed; the slowest took %s.", s.client.Attempts, len(s.client.Failures),
		short(s.client.Max))
	if f.keeps {
		d.checked("The connection that was open goes on; the slowest line came back after %s.", short(s.slowest))
	}
	return nil
}
