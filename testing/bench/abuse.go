package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/abuse"
	"github.com/heraldvip/herald/testing/lab"
)

// A sample is what was seen in one phase of a run with a load of abuse.
type sample struct {
	name    string
	lasted  time.Duration
	cpu     map[string]float64 // by node: CPU of its Herald, per cent of a core
	rss     map[string]float64 // by node, MiB, at the end of the phase
	others  float64            // CPU of all other processes of this machine, per cent of a core
	probes  Fault
	created Quantiles // a new Service: created until its VIP is answered
	ready   Quantiles // the part of that after it had endpoints, which Herald waits for
	health  Quantiles // /healthz, as kubelet asks for it
	unwell  int       // how often that failed
}

// abusePorts is the TCP ports of Herald.
var abusePorts = []int{2112, 7947}

// runAbuse measures on a cluster of its own what n Services see, and what Herald needs, without
// the load and with it.
func (s setup) runAbuse(ctx context.Context, n int, load abuse.Load) (all []sample, err error) {
	l, err := lab.Up(ctx, lab.Options{Nodes: s.nodes, Herald: s.herald, Dir: s.logs, RBAC: s.rbac, Wait: time.Hour})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	b := &bench{setup: s, lab: l, heralds: map[string]*lab.Process{}}
	for a := vips.Addr().Next(); len(b.addrs) < n; a = a.Next() {
		b.addrs = append(b.addrs, a)
	}
	if _, err := l.Run(ctx, "cl", "ip", "route", "add", vips.String(), "dev", "eth0"); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{b.startHeralds, b.createServices} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	var running *abuse.Running
	steady := func(ctx context.Context, x *sample) error {
		end := time.Now().Add(b.steadyLasts)
		err := b.measureNewServices(ctx, x)
		sleep(ctx, time.Until(end))
		return err
	}
	for _, phase := range []struct {
		name string
		do   func(context.Context, *sample) error
	}{
		{"without", steady},
		{"while it begins", func(ctx context.Context, _ *sample) (err error) {
			running, err = abuse.Start(ctx, l, load, b.addrs, abusePorts...)
			sleep(ctx, 5*time.Second)
			return err
		}},
		{"while it lasts", func(ctx context.Context, x *sample) error {
			err := steady(ctx, x)
			b.log("load: %s", running)
			return err
		}},
		{"while it ends", func(ctx context.Context, _ *sample) error {
			err := running.Stop(ctx)
			sleep(ctx, 5*time.Second)
			return err
		}},
	} {
		x, err := b.sample(ctx, phase.name, phase.do)
		if all = append(all, x); err != nil {
			return all, fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return all, nil
}

// sample runs do, while VIPs are probed, and /healthz is asked for, and records what was seen and used.
func (b *bench) sample(ctx context.Context, name string, do func(context.Context, *sample) error) (x sample, err error) {
	x = sample{name: name, cpu: map[string]float64{}, rss: map[string]float64{}}
	probed := b.addrs[:min(len(b.addrs), maxProbed)]
	who, err := b.lab.WhoHas(ctx, probeInterval, probed...)
	if err != nil {
		return x, err
	}
	client, err := b.lab.Connect(ctx, 10*time.Millisecond, probed[len(probed)/2].String()+":80")
	if err != nil {
		who.Stop()
		return x, err
	}
	health := b.askHealth(ctx)
	used, began := map[string]time.Duration{}, time.Now()
	for n, p := range b.heralds {
		if used[n], _, err = p.Usage(); err != nil {
			return x, err
		}
	}
	busy, err := busyTime()
	if err == nil {
		err = do(ctx, &x)
	}
	x.lasted = time.Since(began)
	for n, p := range b.heralds {
		now, rss, failed := p.Usage()
		err = errors.Join(err, failed)
		x.cpu[n], x.rss[n] = 100*(now-used[n]).Seconds()/x.lasted.Seconds(), float64(rss)/(1<<20)
		x.others -= x.cpu[n]
	}
	now, failed := busyTime()
	x.others += 100 * (now - busy).Seconds() / x.lasted.Seconds()
	x.health, x.unwell = health()
	report, connects := who.Stop(), client.Stop()
	x.probes.record(report, connects)
	for _, f := range x.probes.Failures {
		b.log("  failed %s", f)
	}
	b.log("%s: CPU, %% of a core: %s, others %.0f; memory, MiB: %s; longest unanswered %.0f ms, %d of %d connections failed", name,
		byName(x.cpu), x.others, byName(x.rss), x.probes.LongestSilence, x.probes.Failed, x.probes.Connections)
	return x, errors.Join(err, failed, report.Err)
}

// measureNewServices creates some Services, one after the other has its VIP answered, deletes them,
// and records how long that took.
func (b *bench) measureNewServices(ctx context.Context, x *sample) error {
	endpoints, err := b.watchEndpoints(ctx)
	if err != nil {
		return err
	}
	services := b.lab.Client().CoreV1().Services("default")
	var took, afterEndpoints []time.Duration
	vip := b.addrs[len(b.addrs)-1]
	var answered []time.Time
	name := func(i int) string { return fmt.Sprintf("%s-%02d", strings.ReplaceAll(x.name, " ", "-"), i) } // of no earlier phase
	for i := range 10 {
		vip = vip.Next()
		sleep(ctx, 200*time.Millisecond+rand.N(200*time.Millisecond)) // at random times relative to Herald's passes
		sent := time.Now()
		one, err := b.createOne(ctx, name(i), vip)
		if err != nil {
			return err
		}
		answered = append(answered, sent.Add(one))
		if took = append(took, one); one == newServiceTimeout {
			break
		}
	}
	at := endpoints()
	for i, first := range answered {
		if t, ok := at[name(i)]; ok {
			afterEndpoints = append(afterEndpoints, max(0, first.Sub(t)))
		}
		if err := services.Delete(ctx, name(i), metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	x.created, x.ready = quantiles(took), quantiles(afterEndpoints)
	b.log("new Services: answered after %.0f ms (p50), %.0f ms (max), %.0f ms after they had endpoints (max)", x.created.P50, x.created.Max, x.ready.Max)
	return nil
}

// newServiceTimeout is how long a new Service is waited for.
const newServiceTimeout = 20 * time.Second

// createOne creates a Service, and returns after how long its VIP was first answered, newServiceTimeout if
// that was not within this time.
func (b *bench) createOne(ctx context.Context, name string, vip netip.Addr) (time.Duration, error) {
	who, err := b.lab.WhoHas(ctx, 5*time.Millisecond, vip)
	if err != nil {
		return 0, err
	}
	sent := time.Now()
	_, err = b.lab.Client().CoreV1().Services("default").Create(ctx, lab.Service("default", name, lab.WithVIPs(vip), lab.Selecting("web")), metav1.CreateOptions{})
	soon, cancel := context.WithTimeout(ctx, newServiceTimeout)
	defer cancel()
	_ = who.AwaitAnswers(soon, "") // its only error is that there was none in time
	report := who.Stop()
	first := newServiceTimeout
	if at := report.Addrs[0].First; !at.IsZero() {
		first = at.Sub(sent)
	}
	return first, errors.Join(err, report.Err)
}

// askHealth asks each Herald for /healthz once a second, from its own node. The function that it
// returns ends that, and returns how long the answers took, and how often there was none.
func (b *bench) askHealth(ctx context.Context) func() (Quantiles, int) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex // guards took and failed
	var took []time.Duration
	failed := 0
	var g errgroup.Group
	for _, n := range b.lab.Nodes() {
		g.Go(func() error {
			for ; ctx.Err() == nil; sleep(ctx, time.Second) {
				began := time.Now()
				_, err := b.lab.Get(ctx, n, "http://127.0.0.1:2112/healthz")
				mu.Lock()
				if err == nil {
					took = append(took, time.Since(began))
				} else if ctx.Err() == nil {
					failed++
				}
				mu.Unlock()
			}
			return nil
		})
	}
	return func() (Quantiles, int) {
		cancel()
		_ = g.Wait()
		return quantiles(took), failed
	}
}

// busyTime is the CPU time that this machine has used for anything since it began (proc(5), /proc/stat).
func busyTime() (busy time.Duration, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(line) {
		if n, err := strconv.ParseInt(f, 10, 64); err == nil && i > 0 && i != 4 && i != 5 && i < 9 { // without idle, iowait and guests
			busy += time.Duration(n) * time.Second / 100
		}
	}
	return busy, nil
}

// abuseTable is the samples of a run, a column each.
func abuseTable(all []sample) string {
	var b strings.Builder
	row := func(label string, cell func(sample) string) {
		fmt.Fprintf(&b, "%-44s", label)
		for _, x := range all {
			fmt.Fprintf(&b, " %16s", cell(x))
		}
		b.WriteByte('\n')
	}
	most := func(m map[string]float64) float64 {
		top := 0.0
		for _, v := range m {
			top = max(top, v)
		}
		return top
	}
	row("", func(x sample) string { return x.name })
	row("seconds", func(x sample) string { return fmt.Sprintf("%.0f", x.lasted.Seconds()) })
	row("CPU per node, max (% of a core)", func(x sample) string { return fmt.Sprintf("%.1f", most(x.cpu)) })
	row("  all else on this machine (% of a core)", func(x sample) string { return fmt.Sprintf("%.0f", x.others) })
	row("memory per node, max (MiB)", func(x sample) string { return fmt.Sprintf("%.0f", most(x.rss)) })
	row("longest unanswered (ms)", func(x sample) string { return fmt.Sprintf("%.0f", x.probes.LongestSilence) })
	row("longest answered by two (ms)", func(x sample) string { return fmt.Sprintf("%.0f", x.probes.LongestDouble) })
	row("connections failed", func(x sample) string { return fmt.Sprintf("%d of %d", x.probes.Failed, x.probes.Connections) })
	row("new Service until answered, p50 (ms)", func(x sample) string { return fmt.Sprintf("%.0f", x.created.P50) })
	row("  max", func(x sample) string { return fmt.Sprintf("%.0f", x.created.Max) })
	row("  of that after it had endpoints, p50", func(x sample) string { return fmt.Sprintf("%.0f", x.ready.P50) })
	row("  max", func(x sample) string { return fmt.Sprintf("%.0f", x.ready.Max) })
	row("/healthz, max (ms)", func(x sample) string { return fmt.Sprintf("%.0f", x.health.Max) })
	row("  failed", func(x sample) string { return strconv.Itoa(x.unwell) })
	return b.String()
}

// abuseLimits returns an error for each limit that the phase with the load exceeds: nothing lost
// meanwhile, a new Service served within a second of its first endpoint, a tenth of a core more than without, 100 MiB.
func abuseLimits(all []sample) error {
	if len(all) < 3 {
		return errors.New("the load was not measured")
	}
	var errs []error
	exceeds := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, x := range all[1:] {
		if x.probes.LongestSilence > 100 || x.probes.Failed > 0 || x.unwell > 0 {
			exceeds("%s: %.0f ms without an answer, %d connections failed, /healthz failed %d times", x.name, x.probes.LongestSilence, x.probes.Failed, x.unwell)
		}
		for _, n := range slices.Sorted(maps.Keys(x.rss)) {
			if x.rss[n] > 100 {
				exceeds("%s: Herald on %s has %.0f MiB", x.name, n, x.rss[n])
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(all[2].cpu)) {
		if more := all[2].cpu[n] - all[0].cpu[n]; more > 10 {
			exceeds("Herald on %s uses %.1f %% of a core more than without", n, more)
		}
	}
	if all[2].ready.Max > 1000 {
		exceeds("a new Service is answered %.0f ms after it had endpoints", all[2].ready.Max)
	}
	return errors.Join(errs...)
}
