package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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

// soak makes random faults on a cluster of its own with n Services for a time, and waits after each round until all is
// well. Two watchers look on: who answers for each VIP by ARP, and whether a client can connect to one. It returns an
// error for each round in which a VIP was unanswered, or answered by two, for longer than its faults allow, or in
// which all is not well again, and for each process that has grown. The same seed makes the same faults.
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
		round := s.randomRound(r, faults, b.lab.Nodes(), b.busiest())
		if err := b.soakRound(ctx, &round); err != nil {
			errs = append(errs, fmt.Errorf("round %d, %v: %w", i, round, err))
			b.log("%v", errs[len(errs)-1])
		}
		b.log("round %d, %v: unanswered %.2f s, by two %.2f s, %d of %d connections failed", i, round,
			round.silent.Seconds(), round.double.Seconds(), len(round.connect.Failures), round.connect.Attempts)
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

// soakRound makes the faults of r, waits until all is well again, and records in r what the watchers saw.
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
	for _, f := range r.faults {
		err = errors.Join(err, f.Do(ctx, b.lab, f.node))
		sleep(ctx, f.lasts)
	}
	for _, f := range slices.Backward(r.faults) {
		if f.Undo != nil {
			err = errors.Join(err, f.Undo(ctx, b.lab, f.node))
		}
	}
	err = errors.Join(err, b.awaitWell(ctx))
	r.report, r.connect = who.Stop(), client.Stop()
	for _, a := range r.report.Addrs {
		r.silent, r.double = max(r.silent, a.LongestSilence), max(r.double, a.LongestDouble)
	}
	errs := []error{err, r.report.Err}
	silent, double := r.allowed()
	for _, a := range r.report.Addrs {
		if a.LongestSilence > silent || a.LongestDouble > double {
			errs = append(errs, fmt.Errorf("%v was unanswered for %v (%v allowed), by two for %v (%v allowed): %v", a.Addr,
				a.LongestSilence, silent, a.LongestDouble, double, describeTimeline(a)))
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

// A soakRound is faults that overlap, and what the watchers saw of them.
type soakRound struct {
	faults  []nodeFault
	silent  time.Duration // the longest of any VIP
	double  time.Duration
	report  lab.WhoHasReport
	connect lab.ConnectReport
}

// A nodeFault is made on a node, and lasts before the next one is made, or the last one undone.
type nodeFault struct {
	lab.Fault
	node  string
	lasts time.Duration
}

// String names the faults, their nodes, and how long each lasted alone.
func (r soakRound) String() string {
	var text []string
	for _, f := range r.faults {
		text = append(text, fmt.Sprintf("%s %s for %.1f s", f.node, f.Name, f.lasts.Seconds()))
	}
	return strings.Join(text, ", then ")
}

// allowed is how long a VIP may be unanswered, and answered by two. Of several faults one may keep the others' VIPs
// from moving for as long as all last; never may two answer for longer.
func (r soakRound) allowed() (silent, double time.Duration) {
	for _, f := range r.faults {
		silent, double = silent+f.Silent, max(double, f.Double)
		if len(r.faults) > 1 {
			silent += f.lasts
		}
	}
	return silent, double
}

// randomRound chooses as many faults as -at-once says, on different nodes: of four times three the first on that with
// the most VIPs (owner). Each lasts up to 20 s, half of them up to 3 s. Of those that take the API server there is at
// most one: the last, which is undone first, since the others need it.
func (s setup) randomRound(r *rand.Rand, faults []lab.Fault, nodes []string, owner string) (round soakRound) {
	nodes = slices.Clone(nodes)
	r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	if i := slices.Index(nodes, owner); r.IntN(4) > 0 {
		nodes[0], nodes[i] = nodes[i], nodes[0]
	}
	for _, node := range nodes[:min(s.atOnce, len(nodes))] {
		f := nodeFault{faults[r.IntN(len(faults))], node, time.Duration(r.Int64N(int64(3 * time.Second)))}
		if r.IntN(2) == 0 {
			f.lasts = time.Duration(r.Int64N(int64(20 * time.Second)))
		}
		round.faults = append(round.faults, f)
		if f.API {
			break
		}
	}
	return round
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
