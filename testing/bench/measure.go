package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/lab"
)

// maxServices is the limit for Services of a run; vips has enough addresses for it.
const maxServices = 4000

// vips is where VIPs come from. The LAN's own range has too few, so these are
// on-link for the client alone, which makes no difference to ARP.
var vips = netip.MustParsePrefix("10.77.16.0/20")

const (
	parallelCreates = 16 // Services that are created at a time
	singleServices  = 25 // Services that are created one after the other
	maxProbed       = 50 // VIPs of an owner that are probed during a fault
	probeInterval   = 20 * time.Millisecond
	stepTimeout     = 2 * time.Minute
)

// A bench is one run.
type bench struct {
	setup
	lab    *lab.Lab
	addrs  []netip.Addr // by Service
	result Result
}

// measure makes one run on a cluster of its own.
func (s setup) measure(ctx context.Context, n int) (r Result, err error) {
	b, err := s.newBench(ctx, n)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.lab.Down()) }()
	steps := []func(context.Context) error{b.measureBaseline, b.startHeralds, b.createServices, b.createSingleServices,
		b.measureSteady}
	if !s.steadyOnly {
		steps = append(steps, b.makeFaults)
	}
	for i, step := range steps {
		if err := step(ctx); err != nil {
			return b.result, fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return b.result, nil
}

// measureBaseline counts the requests without Herald.
func (b *bench) measureBaseline(ctx context.Context) error {
	b.log("counting requests without Herald for %v", b.setup.steadyLasts)
	sleep(ctx, 2*time.Second) // until the lab itself is idle
	got, err := b.requestRates(ctx, b.setup.steadyLasts)
	b.result.Steady.Baseline = got
	return err
}

// requestRates waits for d and returns the API requests per second of that time, by "VERB resource".
func (b *bench) requestRates(ctx context.Context, d time.Duration) (map[string]float64, error) {
	before, err := b.lab.APIRequests(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	sleep(ctx, d)
	now, err := b.lab.APIRequests(ctx)
	return rates(lab.Since(now, before), time.Since(began)), err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (b *bench) startHeralds(ctx context.Context) error {
	g, all := errgroup.WithContext(ctx)
	for i := range 3 {
		g.Go(func() error {
			return b.lab.AddPod(all,
				lab.Pod{Name: fmt.Sprintf("web-%d", i), Node: "w1", Labels: map[string]string{"app": "web"}})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, n := range b.lab.Nodes() {
		if err := b.startHerald(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// heraldOptions are the options of all Heralds.
func heraldOptions() map[string]string {
	return map[string]string{"svc_enable": "true", "svc_election": "true", "vip_arp": "true"}
}

func (b *bench) startHerald(ctx context.Context, node string) error {
	if _, err := b.lab.StartHerald(node, heraldOptions()); err != nil {
		return err
	}
	return b.awaitReady(ctx, node)
}

// awaitReady waits until the node's Herald says that it is ready.
func (b *bench) awaitReady(ctx context.Context, node string) error {
	return b.until(ctx, stepTimeout, func() error {
		_, err := b.lab.Get(ctx, node, "http://127.0.0.1:2112/readyz")
		return err
	})
}

// until calls fn every 20 ms until it returns nil. After limit it returns fn's last error.
func (b *bench) until(ctx context.Context, limit time.Duration, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := fn()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("not within %v: %w", limit, err)
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// probeEach returns how often each of so many VIPs is asked for: each probeInterval, or as often as every host of the
// LAN, which receives each request, receives 12,000 of them a second.
func (b *bench) probeEach(vips int) time.Duration {
	return max(probeInterval, time.Duration(vips*len(b.lab.Nodes()))*time.Second/12000)
}

// createServices creates all Services, waits until all VIPs are answered and all statuses written,
// and records when.
func (b *bench) createServices(ctx context.Context) error {
	every := b.probeEach(len(b.addrs))
	b.log("creating; each VIP is probed every %v", every)
	who, err := b.lab.WhoHas(ctx, every, b.addrs...)
	if err != nil {
		return err
	}
	defer who.Stop()
	ready, err := b.watchEndpoints(ctx)
	if err != nil {
		return err
	}
	sent := make([]time.Time, len(b.addrs))
	began := time.Now()
	if err := b.createAll(ctx, sent); err != nil {
		return err
	}
	b.result.CreatedAll = millis(time.Since(began))
	soon, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := who.AwaitAnswers(soon, ""); err != nil {
		return err
	}
	report := who.Stop()
	if report.Err != nil {
		return report.Err
	}
	b.result.AskedEvery = millis(every)
	b.recordAnswers(report, began, sent, ready())
	if err := b.until(ctx, stepTimeout, func() error { return b.checkStatuses(ctx) }); err != nil {
		return err
	}
	b.result.StatusAll = millis(time.Since(began))
	b.log("all answered after %.0f ms", b.result.AnsweredAll)
	last, err := b.awaitFewRequests(ctx)
	if err != nil {
		return err
	}
	b.result.QuietAfter = millis(last.Sub(began))
	if err := b.recordSpread(); err != nil {
		return err
	}
	b.log("spread: %v", b.result.Spread)
	return b.recordPasses(ctx)
}

// createSingleServices creates a few more Services, each after the VIP of the one before was
// answered, records how long that took, and deletes them.
func (b *bench) createSingleServices(ctx context.Context) error {
	const every = 5 * time.Millisecond
	ready, err := b.watchEndpoints(ctx)
	if err != nil {
		return err
	}
	defer ready()
	services := b.lab.Client().CoreV1().Services("default")
	var total []time.Duration
	var first []time.Time
	vip := b.addrs[len(b.addrs)-1]
	for i := range singleServices {
		vip = vip.Next()
		sleep(ctx, 200*time.Millisecond+rand.N(200*time.Millisecond)) // at random times relative to Herald's passes
		who, err := b.lab.WhoHas(ctx, every, vip)
		if err != nil {
			return err
		}
		sent := time.Now()
		_, err = services.Create(ctx, lab.Service("default", singleName(i), lab.WithVIPs(vip), lab.Selecting("web")),
			metav1.CreateOptions{})
		if err == nil {
			soon, cancel := context.WithTimeout(ctx, stepTimeout)
			err = who.AwaitAnswers(soon, "")
			cancel()
		}
		report := who.Stop()
		if err := errors.Join(err, report.Err); err != nil {
			return err
		}
		first = append(first, report.Addrs[0].First)
		total = append(total, first[i].Sub(sent))
	}
	var afterEndpoints []time.Duration
	at := ready()
	for i := range singleServices {
		if t, ok := at[singleName(i)]; ok {
			afterEndpoints = append(afterEndpoints, max(0, first[i].Sub(t)))
		}
		if err := services.Delete(ctx, singleName(i), metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	b.result.Single, b.result.SingleAfterEndpoints = quantiles(total), quantiles(afterEndpoints)
	b.log("one by one: answered after %.0f ms (p50), %.0f ms (max)", b.result.Single.P50, b.result.Single.Max)
	if err := b.until(ctx, stepTimeout, b.recordSpread); err != nil {
		return err
	}
	_, err = b.awaitFewRequests(ctx)
	return err
}

// singleName is the name of a Service that is created alone.
func singleName(i int) string { return fmt.Sprintf("extra-%02d", i) }

func serviceName(i int) string { return fmt.Sprintf("web-%04d", i) }

// createAll creates a Service for each of b.addrs, and records when.
func (b *bench) createAll(ctx context.Context, sent []time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelCreates)
	for i, a := range b.addrs {
		g.Go(func() error {
			sent[i] = time.Now()
			return b.create(ctx, lab.Service("default", serviceName(i), lab.WithVIPs(a), lab.Selecting("web")))
		})
	}
	return g.Wait()
}

// create creates a Service. It tries again if a busy API server did not answer in time.
func (b *bench) create(ctx context.Context, s *corev1.Service) error {
	for try := 1; ; try++ {
		_, err := b.lab.Client().CoreV1().Services(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err) && try > 1:
			return nil
		case !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsTooManyRequests(err) || try == 5:
			return err
		}
		sleep(ctx, time.Second)
	}
}

// recordAnswers records how long after its creation, and after its endpoints were ready, each VIP was
// answered first.
func (b *bench) recordAnswers(report lab.WhoHasReport, began time.Time, sent []time.Time, ready map[string]time.Time) {
	var total, afterEndpoints []time.Duration
	for i, a := range report.Addrs {
		total = append(total, a.First.Sub(sent[i]))
		if at, ok := ready[serviceName(i)]; ok {
			afterEndpoints = append(afterEndpoints, max(0, a.First.Sub(at)))
		}
		b.result.AnsweredAll = max(b.result.AnsweredAll, millis(a.First.Sub(began)))
	}
	b.result.Answered, b.result.AfterEndpoints = quantiles(total), quantiles(afterEndpoints)
}

// watchEndpoints starts to record when each Service has its first endpoint. The function it returns
// ends the watch and returns these times by Service; it may be called again.
func (b *bench) watchEndpoints(ctx context.Context) (func() map[string]time.Time, error) {
	ctx, cancel := context.WithCancel(ctx)
	w, err := b.lab.Client().DiscoveryV1().EndpointSlices("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		return nil, err
	}
	ready := map[string]time.Time{}
	var done sync.WaitGroup
	done.Go(func() {
		for e := range w.ResultChan() {
			slice, ok := e.Object.(*discoveryv1.EndpointSlice)
			if !ok || len(slice.Endpoints) == 0 {
				continue
			}
			if s := slice.Labels[discoveryv1.LabelServiceName]; ready[s].IsZero() {
				ready[s] = time.Now()
			}
		}
	})
	return func() map[string]time.Time {
		cancel()
		w.Stop()
		done.Wait()
		return ready
	}, nil
}

// checkStatuses returns an error unless every Service has one address in its status.
func (b *bench) checkStatuses(ctx context.Context) error {
	list, err := b.lab.Client().CoreV1().Services("default").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	n := 0
	for _, s := range list.Items {
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) == 1 {
			n++
		}
	}
	if n != len(b.addrs) {
		return fmt.Errorf("%d of %d Services have their status", n, len(b.addrs))
	}
	return nil
}

// awaitFewRequests waits until there are as few API requests for 2 s as an idle cluster makes (less than 5 a second
// of three nodes), and returns the beginning of these.
func (b *bench) awaitFewRequests(ctx context.Context) (since time.Time, err error) {
	for end := time.Now().Add(stepTimeout); ; {
		since = time.Now()
		got, err := b.requestRates(ctx, 2*time.Second)
		if err != nil {
			return since, err
		}
		rate := total(got)
		if rate < float64(2+len(b.lab.Nodes())) { // each renews its node lease each two seconds
			return since, nil
		}
		if time.Now().After(end) {
			return since, fmt.Errorf("after %v there still are %.0f requests per second: %v", stepTimeout, rate, got)
		}
	}
}

// recordSpread records how many VIPs each node's kernel has. It is an error if these are not all.
func (b *bench) recordSpread() error {
	b.result.Spread = map[string]int{}
	sum := 0
	for _, n := range b.lab.Nodes() {
		have, err := b.bound(n)
		if err != nil {
			return err
		}
		b.result.Spread[n] = len(have)
		sum += len(have)
	}
	if sum != len(b.addrs) {
		return fmt.Errorf("the nodes have %d VIPs, not %d: %v", sum, len(b.addrs), b.result.Spread)
	}
	return nil
}

// bound lists the VIPs on a node's eth0, as its kernel has them.
func (b *bench) bound(node string) (list []netip.Addr, err error) {
	err = b.lab.InNamespace(node, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := eth0.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && vips.Contains(p.Addr()) {
				list = append(list, p.Addr())
			}
		}
		return err
	})
	slices.SortFunc(list, netip.Addr.Compare)
	return list, err
}
