package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// probes watch the VIP from outside: one host asks who has it, the client connects to it.
type probes struct {
	who       *lab.WhoHas
	client    *lab.Connect
	stopFlush func()
}

// startProbes starts both probers, and a task that flushes the client's neighbour
// cache twice a second. With a cached entry the client would go on using the old
// owner's hardware address for a while, where kube-proxy would serve it, and its
// connections would show nothing of the VIP.
func (d *demo) startProbes(ctx context.Context) (*probes, error) {
	who, err := d.lab.WhoHas(ctx, 20*time.Millisecond, vip)
	if err != nil {
		return nil, err
	}
	client, err := d.lab.Connect(ctx, 10*time.Millisecond, vip.String()+":80")
	if err != nil {
		who.Stop()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			_, _ = d.lab.Run(ctx, "cl", "ip", "neighbour", "flush", "dev", "eth0")
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return &probes{who, client, func() { cancel(); done.Wait() }}, nil
}

// stop ends the probers and the flushing, and returns what they have seen. It may be called again.
func (w *probes) stop() (lab.ConnectReport, lab.WhoHasReport) {
	connects, answers := w.client.Stop(), w.who.Stop()
	w.stopFlush()
	return connects, answers
}

func (d *demo) stopOwner(ctx context.Context) error {
	old, err := d.owner()
	if err != nil {
		return err
	}
	p := d.heralds[old]
	d.text("%s owns %s. Its Herald is stopped, as in a drain or an upgrade. Meanwhile one host sends an ARP request every 20 ms, "+
		"and the client opens a new connection every 10 ms, and goes on with one that is open already. Its neighbour cache is flushed twice a second, so that it always asks who has the VIP.", old, vip)
	w, err := d.startProbes(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	dialogue, err := d.startDialogue(ctx)
	if err != nil {
		return err
	}
	defer dialogue.stop()
	time.Sleep(500 * time.Millisecond)
	d.command(fmt.Sprintf("kill -TERM %d   # herald manager on %s", p.Pid, old))
	d.line("")
	began := time.Now()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, 12*time.Second)
	defer cancel()
	var next string
	var at time.Time
	err = d.during("handing over", func() error {
		var err error
		next, at, err = awaitOtherOwner(soon, w.who, d.lab.Nodes(), old)
		return err
	})
	if err != nil {
		return err
	}
	d.event(at.Sub(began), plain, "%s answers: %s has named it as successor in the Lease, and it has bound the address and announced it", next, old)
	err = d.during("waiting for the process to end", func() error { return p.Wait(soon) })
	if err != nil {
		return fmt.Errorf("herald on %s: %w", old, err)
	}
	d.event(time.Since(began), plain, "%s has heard the announcement and removed the address, and its process has ended with status 0", old)
	time.Sleep(700 * time.Millisecond)
	connects, report := w.stop()
	from := at.Add(-600 * time.Millisecond)
	d.timeline(report.Addr(vip), from, from.Add(1200*time.Millisecond))
	if err := d.checkHandOver(connects, report); err != nil {
		return err
	}
	if err := dialogue.stop(); err != nil {
		return fmt.Errorf("the connection that was open before the hand-over: %w", err)
	}
	d.checked("The connection that was open goes on: %d lines came back, the slowest after %d ms. %s does not know it, so it sends its packets to %s, which does.",
		dialogue.lines, dialogue.slowest.Milliseconds(), next, old)
	return nil
}

// A dialogue is a connection on which the client sends a line each 20 ms, and a pod sends it back.
type dialogue struct {
	held    *lab.Held
	end     context.CancelFunc
	done    sync.WaitGroup
	lines   int
	slowest time.Duration
	err     error
}

// startDialogue connects the client to the VIP and has it begin.
func (d *demo) startDialogue(ctx context.Context) (*dialogue, error) {
	held, err := d.lab.Hold(ctx, vip.String()+":80")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	g := &dialogue{held: held, end: cancel}
	g.done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for g.err == nil {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			var took time.Duration
			took, g.err = held.Ask()
			g.lines, g.slowest = g.lines+1, max(g.slowest, took)
		}
	})
	return g, nil
}

// stop ends the dialogue, and returns the error that ended it before. It may be called again.
func (g *dialogue) stop() error {
	g.end()
	g.done.Wait()
	g.held.Close()
	return g.err
}

// checkHandOver reports what the probers have seen of a hand-over. It is an error if a
// connection failed, or an ARP request went unanswered for longer than maxSilence.
func (d *demo) checkHandOver(connects lab.ConnectReport, report lab.WhoHasReport) error {
	r := report.Addr(vip)
	switch {
	case report.Err != nil:
		return report.Err
	case len(connects.Failures) > 0:
		return fmt.Errorf("connections failed during the hand-over:\n%s%s", connects, r)
	case r.LongestSilence > maxSilence:
		return fmt.Errorf("the address went unanswered for %v:\n%s", r.LongestSilence, r)
	}
	d.checked("%d connections, none failed, the slowest took %d ms.", connects.Attempts, connects.Max.Milliseconds())
	silence, both := "No ARP request went unanswered", "both nodes answered for less than the 20 ms between two requests"
	if r.Unanswered > 0 {
		silence = "The longest time without an answer was " + short(r.LongestSilence)
	}
	if r.LongestDouble > 0 {
		both = "both nodes answered for " + short(r.LongestDouble)
	}
	d.checked("%s. Make before break: %s.", silence, both)
	return nil
}

func (d *demo) killOwner(ctx context.Context) error {
	if err := d.restartAll(ctx); err != nil {
		return err
	}
	old, err := d.owner()
	if err != nil {
		return err
	}
	if err := d.until(ctx, 20*time.Second, "waiting for heartbeats between all nodes", func() error { return d.lab.PeersDetectable(ctx) }); err != nil {
		return err
	}
	d.text("The same with SIGKILL, on %s: the process has no time to hand over.", old)
	w, err := d.startProbes(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	time.Sleep(500 * time.Millisecond)
	p := d.heralds[old]
	d.command(fmt.Sprintf("kill -KILL %d   # herald manager on %s", p.Pid, old))
	d.line("")
	began := time.Now()
	p.Kill()
	if err := d.showFailover(ctx, w, old, began); err != nil {
		return err
	}
	time.Sleep(time.Second)
	connects, report := w.stop()
	if report.Err != nil {
		return report.Err
	}
	r := report.Addr(vip)
	d.timeline(r, began.Add(-500*time.Millisecond), report.Ended)
	if r.LongestDouble > maxDouble {
		return fmt.Errorf("two nodes answered for %v:\n%s", r.LongestDouble, r)
	}
	d.checked("Nobody answered for %s. Of %d connections %d failed.", short(r.LongestSilence), connects.Attempts, len(connects.Failures))
	d.text("Two nodes answered for %s: the new owner has asked until the kernel of the killed one did not answer any more. "+
		"Had Herald been started again before that, nothing would have moved.", short(r.LongestDouble))
	return d.events(ctx, "moved from node "+old)
}

// cutOwner cuts the owner from the LAN and from the API server for 12 s. Its links stay up.
func (d *demo) cutOwner(ctx context.Context) error {
	if err := d.restartAll(ctx); err != nil {
		return err
	}
	old, err := d.owner()
	if err != nil {
		return err
	}
	if err := d.until(ctx, 20*time.Second, "waiting for heartbeats between all nodes", func() error { return d.lab.PeersDetectable(ctx) }); err != nil {
		return err
	}
	d.text("Now both networks of %s fail, the LAN and the one to the API server. Its links stay up, as when a switch fails. "+
		"Its Herald runs and owns the VIP, but receives nothing any more.", old)
	w, err := d.startProbes(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	time.Sleep(500 * time.Millisecond)
	repair := func() error { return errors.Join(d.lab.Reconnect(old), d.lab.ConnectAPI(old)) }
	defer repair()
	began := time.Now()
	d.event(0, red, "both networks fail")
	if err := errors.Join(d.lab.Cut(old), d.lab.CutAPI(old)); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, maxCutFailover)
	defer cancel()
	next, at, err := awaitOtherOwner(soon, w.who, d.lab.Nodes(), old)
	if err != nil {
		return err
	}
	d.event(at.Sub(began), plain, "%s answers: no heartbeat of %s for an eighth of a second, nobody answered for the address, and the other nodes are the majority", next, old)
	time.Sleep(12 * time.Second)
	if err := repair(); err != nil {
		return err
	}
	d.event(time.Since(began), plain, "repaired: %s has removed the VIP by itself long ago", old)
	time.Sleep(2 * time.Second)
	connects, report := w.stop()
	if report.Err != nil {
		return report.Err
	}
	r := report.Addr(vip)
	d.timeline(r, began.Add(-500*time.Millisecond), report.Ended)
	if r.LongestDouble > time.Second {
		return fmt.Errorf("two nodes answered for %v:\n%s", r.LongestDouble, r)
	}
	d.checked("Nobody answered for %s; the slowest connection took %d ms. Never two owners.", short(r.LongestSilence), connects.Max.Milliseconds())
	return nil
}

// An event is something that happened during the failover.
type event struct {
	at        time.Time
	text      string
	takenOver bool
	err       error
}

// showFailover shows what happens between the end of old's process and the new owner's
// first answer, as it happens. It returns the first thing that goes wrong.
func (d *demo) showFailover(ctx context.Context, w *probes, old string, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 25*time.Second)
	defer cancel()
	d.event(0, red, "killed; %s's kernel still has the address and answers ARP requests", old)
	marks := make(chan event, 3)
	go func() { marks <- d.awaitAddressExpired(ctx, old, began) }()
	go func() { marks <- d.awaitFenced(ctx, old) }()
	go func() {
		next, at, err := awaitOtherOwner(ctx, w.who, d.lab.Nodes(), old)
		if took := at.Sub(began); err == nil && took > maxFailover {
			err = fmt.Errorf("%s took over after %v, not within %v", next, took, maxFailover)
		}
		marks <- event{at, next + " has acquired the VIP, bound it and announced it", true, err}
	}()
	var line []string
	stop := d.spin(func(since time.Duration, m string) string {
		for len(line) < int(since/(250*time.Millisecond)) && len(line) < 76 {
			var hosts []string
			if o := w.who.Owner(vip); o != "" {
				hosts = []string{o}
			}
			line = append(line, signOf(hosts))
		}
		return fmt.Sprintf("  %s %4.1f s %s", d.paint(yellow, m), time.Since(began).Seconds(), d.colourBar(strings.Join(line, "")))
	})
	defer stop()
	var answered *event
	for range cap(marks) {
		m := <-marks
		switch {
		case m.err != nil:
			return m.err
		case m.takenOver:
			answered = &m // shown last, though a log may be read later than a packet
		default:
			d.event(m.at.Sub(began), plain, "%s", m.text)
		}
	}
	d.event(answered.at.Sub(began), plain, "%s", answered.text)
	return nil
}

// awaitAddressExpired waits until the kernel of old has removed the VIP. Later than
// maxKernelAnswers after began is an error, and so is the end of ctx.
func (d *demo) awaitAddressExpired(ctx context.Context, old string, began time.Time) event {
	for {
		have, err := d.bound(old)
		now := time.Now()
		switch {
		case err != nil:
			return event{err: err}
		case !slices.Contains(have, vip):
			if took := now.Sub(began); took > maxKernelAnswers {
				return event{err: fmt.Errorf("%s's kernel removed %s after %v, not within %v", old, vip, took, maxKernelAnswers)}
			}
			return event{at: now, text: fmt.Sprintf("%s's kernel removes the address by itself: its valid lifetime was 5 s, and a kernel counts whole seconds", old)}
		case ctx.Err() != nil:
			return event{err: errors.New("the killed node's kernel keeps the VIP")}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// awaitFenced waits until another node has logged that it has fenced old: that the
// claims of old are void.
func (d *demo) awaitFenced(ctx context.Context, old string) event {
	results := make(chan error, len(d.heralds))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for n, p := range d.heralds {
		if n != old {
			go func() { results <- p.WaitLog(ctx, "claims of a node are voided\" node="+old) }()
		}
	}
	err := <-results
	if err != nil {
		err = <-results // the other node may have fenced it
	}
	return event{at: time.Now(), text: fmt.Sprintf("no heartbeats from %s, its kernel answers that no Herald listens, and none was started again in time: another node fences it, by one write to its Lease", old), err: err}
}

// restartAll starts Herald on each node where it does not run, and waits until it is ready.
func (d *demo) restartAll(ctx context.Context) error {
	for _, n := range d.lab.Nodes() {
		if p := d.heralds[n]; !p.Running() {
			d.text("Herald on %s is started again.", n)
			if err := d.startHerald(ctx, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *demo) restartHeralds(ctx context.Context) error {
	before, err := d.owners()
	if err != nil {
		return err
	}
	if err := d.restartAll(ctx); err != nil {
		return err
	}
	err = d.during("checking for three seconds that nothing moves", func() error {
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
			now, err := d.owners()
			if err != nil {
				return err
			}
			for name, n := range before {
				if now[name] != n {
					return fmt.Errorf("%s moved from %s to %q", name, n, now[name])
				}
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	d.checked("Nothing moved: a node that comes back takes no VIP from its owner, for that would cut connections.")
	_, err = d.status(ctx)
	return err
}
