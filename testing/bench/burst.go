package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/lab"
)

// burstLimit is how long after the last creation all Services of a burst must have an address, be announced, and be shown.
const burstLimit = 2 * time.Second

// A burstProgress is what a Service of a burst had first when.
type burstProgress struct{ allocated, announced, shown time.Time }

// burst creates n Services without addresses at once, on a cluster of its own with a pool, and says when all had an
// address, were announced (their condition), and had their status. It is an error if that took longer than burstLimit.
func (s setup) burst(ctx context.Context, n int) (err error) {
	l, err := lab.Up(ctx, lab.Options{Nodes: s.nodes, Herald: s.herald, Dir: s.logs, RBAC: s.rbac, Wait: time.Hour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Down()) }()
	b := &bench{setup: s, lab: l, heralds: map[string]*lab.Process{}}
	pools := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubevip", Namespace: metav1.NamespaceSystem}, Data: map[string]string{"cidr-global": vips.String()}}
	if _, err := l.Client().CoreV1().ConfigMaps(pools.Namespace).Create(ctx, pools, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := b.startHeralds(ctx); err != nil {
		return err
	}
	sleep(ctx, 3*time.Second) // until there is a node that gives addresses
	seen, err := b.watchBurst(ctx)
	if err != nil {
		return err
	}
	b.addrs = make([]netip.Addr, n) // the zero one: none is named
	sent := make([]time.Time, n)
	requests, err := b.lab.APIRequests(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.createAll(ctx, sent); err != nil {
		return err
	}
	last := time.Now()
	b.log("%d Services created in %.2f s", n, last.Sub(began).Seconds())
	err = b.until(ctx, stepTimeout, func() error { return b.checkStatuses(ctx) })
	if err == nil {
		err = b.until(ctx, stepTimeout, b.recordSpread)
	}
	sleep(ctx, 500*time.Millisecond) // what the watch still has to deliver
	return errors.Join(err, b.reportBurst(seen(), sent, last), b.reportRequests(ctx, requests, n))
}

// reportRequests prints how many requests of which kind, by all clients, the API server has answered since before, for each of n Services, and
// how Herald's writes of their statuses ended.
func (b *bench) reportRequests(ctx context.Context, before map[string]float64, n int) error {
	now, err := b.lab.APIRequests(ctx)
	if err != nil {
		return err
	}
	since := lab.Since(now, before)
	for _, k := range slices.Sorted(maps.Keys(since)) {
		if since[k] >= float64(n)/10 {
			fmt.Printf("%-24s %.2f requests for each Service\n", k, since[k]/float64(n))
		}
	}
	const writes = "herald_status_writes_total"
	for _, node := range b.lab.Nodes() {
		text, err := b.lab.Get(ctx, node, "http://127.0.0.1:2112/metrics")
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, writes) {
				fmt.Print(node, ": ", line)
			}
		}
	}
	return nil
}

// reportBurst prints when the Services of a burst had what they wait for. It returns an error if that was too late.
func (b *bench) reportBurst(all map[string]burstProgress, sent []time.Time, last time.Time) error {
	var errs []error
	for _, x := range []struct {
		what string
		at   func(burstProgress) time.Time
	}{
		{"have an address", func(p burstProgress) time.Time { return p.allocated }},
		{"are announced", func(p burstProgress) time.Time { return p.announced }},
		{"have their status", func(p burstProgress) time.Time { return p.shown }},
	} {
		var each []time.Duration
		var end time.Time
		for i := range sent {
			at := x.at(all[serviceName(i)])
			if at.IsZero() {
				errs = append(errs, fmt.Errorf("%s: not seen to %s", serviceName(i), x.what))
				continue
			}
			each = append(each, at.Sub(sent[i]))
			if at.After(end) {
				end = at
			}
		}
		q := quantiles(each)
		fmt.Printf("%d Services %s: all %.2f s after the last was created; each after %.2f s (p50), %.2f s (p99), %.2f s (max)\n",
			len(sent), x.what, end.Sub(last).Seconds(), q.P50/1000, q.P99/1000, q.Max/1000)
		if end.Sub(last) > burstLimit {
			errs = append(errs, fmt.Errorf("the Services %s %v after the last was created, want %v", x.what, end.Sub(last), burstLimit))
		}
	}
	fmt.Printf("spread: %v\n", b.result.Spread)
	for n, p := range b.heralds {
		used, rss, err := p.Usage()
		errs = append(errs, err)
		fmt.Printf("%s: %.1f s of CPU since its start, %d MiB\n", n, used.Seconds(), rss>>20)
	}
	return errors.Join(errs...)
}

// watchBurst starts to record when each Service of the namespace has what. The function it returns ends the watch.
func (b *bench) watchBurst(ctx context.Context) (func() map[string]burstProgress, error) {
	ctx, cancel := context.WithCancel(ctx)
	w, err := b.lab.Client().CoreV1().Services("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		return nil, err
	}
	all := map[string]burstProgress{}
	var done sync.WaitGroup
	done.Go(func() {
		for e := range w.ResultChan() {
			s, ok := e.Object.(*corev1.Service)
			if !ok {
				continue
			}
			p, now := all[s.Name], time.Now()
			if p.allocated.IsZero() && s.Annotations["heraldvip.io/allocated"] != "" {
				p.allocated = now
			}
			if p.announced.IsZero() && meta.IsStatusConditionTrue(s.Status.Conditions, "heraldvip.io/Announced") {
				p.announced = now
			}
			if p.shown.IsZero() && len(s.Status.LoadBalancer.Ingress) > 0 {
				p.shown = now
			}
			all[s.Name] = p
		}
	})
	return func() map[string]burstProgress {
		cancel()
		w.Stop()
		done.Wait()
		return all
	}, nil
}
