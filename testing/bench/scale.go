package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/heraldvip/herald/testing/lab"
)

const (
	startedAtOnce = 5  // Heralds
	cutAtOnce     = 5  // nodes
	churnRate     = 20 // Services changed a second
	churnFor      = 30 * time.Second
)

// scale measures Herald on many nodes that have no kube-proxy, with n VIPs: in the steady state, when one node and when
// several are cut, and when all are restarted one after the other; and then with so many Services of other types in the
// API server. It prints what it has measured line by line.
func (s setup) scale(ctx context.Context, n, objects int) error {
	fmt.Printf("%s, %s: %d nodes, %d VIPs, %d other Services\n", s.version(ctx), machine(), s.nodes, n, objects)
	b, err := s.newBench(ctx, n, true)
	if err != nil {
		return err
	}
	if err = b.lab.PreferControlPlane(); err == nil { // many Heralds would leave it nothing
		err = b.measureScale(ctx, objects)
	}
	return errors.Join(err, b.lab.Down())
}

func (b *bench) measureScale(ctx context.Context, objects int) error {
	steps := []func(context.Context) error{b.measureBaseline, b.startManyHeralds, b.createServices, b.reportSteady}
	if !b.setup.steadyOnly {
		steps = append(steps,
			func(ctx context.Context) error { return b.cutNodes(ctx, 1) },
			func(ctx context.Context) error { return b.cutNodes(ctx, cutAtOnce) },
			b.restartAll)
	}
	if objects > 0 {
		steps = append(steps,
			func(ctx context.Context) error { return b.createObjects(ctx, objects) },
			func(ctx context.Context) error { return b.measureStart(ctx, objects) }, b.reportSteady,
			func(ctx context.Context) error { return b.churn(ctx, objects) })
	}
	for i, step := range steps {
		if err := step(ctx); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// startManyHeralds starts Herald on all nodes, startedAtOnce at a time, and waits until each would notice the death of each.
func (b *bench) startManyHeralds(ctx context.Context) error {
	if err := b.lab.AddPod(ctx, lab.Pod{Name: "web-0", Node: "w1", Labels: map[string]string{"app": "web"}}); err != nil {
		return err
	}
	began := time.Now()
	for part := range slices.Chunk(b.lab.Nodes(), startedAtOnce) {
		for _, n := range part {
			p, err := b.lab.StartHerald(n, heraldOptions())
			if err != nil {
				return err
			}
			b.heralds[n] = p
		}
		for _, n := range part {
			if err := b.awaitReady(ctx, n); err != nil {
				return err
			}
		}
	}
	b.say("%d Heralds were ready after %.1f s", len(b.heralds), time.Since(began).Seconds())
	err := b.until(ctx, stepTimeout, func() error { return b.lab.PeersDetectable(ctx) })
	b.say("all noticed each other's heartbeats after %.1f s", time.Since(began).Seconds())
	return err
}

// say prints a result.
func (b *bench) say(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
}

// reportSteady prints what all Heralds use while nothing changes.
func (b *bench) reportSteady(ctx context.Context) error {
	if err := b.measureSteady(ctx); err != nil {
		return err
	}
	s := b.result.Steady
	b.say("steady, of %.0f s: %.1f API requests/s (%.1f without Herald), %.0f frames/s that every host of the LAN receives, CPU of a node's Herald %.2f %% of a core (mean), %.2f %% (max), memory %.0f MiB (mean), %.0f MiB (max)",
		s.Seconds, total(s.Requests), total(s.Baseline), s.Frames, total(s.CPU)/float64(len(s.CPU)), slices.Max(values(s.CPU)), total(s.RSS)/float64(len(s.RSS)), slices.Max(values(s.RSS)))
	return nil
}

// cutNodes cuts both networks of n nodes at once for faultLasts, and prints for how long VIPs of theirs were unanswered.
func (b *bench) cutNodes(ctx context.Context, n int) error {
	if err := b.until(ctx, stepTimeout, func() error { return b.lab.PeersDetectable(ctx) }); err != nil {
		return err
	}
	nodes := b.lab.Nodes()
	rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	nodes = nodes[:min(n, len(nodes)/2)]
	v := &probedOwner{}
	for _, node := range nodes {
		have, err := b.bound(node)
		if err != nil {
			return err
		}
		v.owned = append(v.owned, have...)
	}
	if len(v.owned) == 0 {
		b.say("%d cut: they have no VIPs", n)
		return nil
	}
	probed := v.owned[:min(len(v.owned), maxProbed)]
	who, err := b.lab.WhoHas(ctx, b.probeEach(len(probed)), probed...)
	if err != nil {
		return err
	}
	before, err := b.lab.APIRequests(ctx)
	if err != nil {
		return err
	}
	sleep(ctx, time.Second)
	var errs []error
	for _, node := range nodes {
		errs = append(errs, b.lab.Cut(node), b.lab.CutAPI(node))
	}
	sleep(ctx, b.setup.faultLasts)
	now, err := b.lab.APIRequests(ctx)
	errs = append(errs, err)
	for _, node := range nodes {
		errs = append(errs, b.lab.Reconnect(node), b.lab.ConnectAPI(node))
	}
	for _, node := range nodes {
		errs = append(errs, b.awaitReady(ctx, node))
	}
	report := who.Stop()
	f := Fault{Owned: len(v.owned)}
	f.record(report, lab.ConnectReport{})
	f.Requests = lab.Since(now, before)
	b.say("%d nodes cut at once, with %d VIPs: unanswered %.2f s (p50), %.2f s (max), answered by two %.2f s (max); %.0f leases written in %v",
		len(nodes), f.Owned, f.Silence.P50/1000, f.Silence.Max/1000, f.LongestDouble/1000, f.Requests["PUT leases"]+f.Requests["PATCH leases"], b.setup.faultLasts)
	return errors.Join(append(errs, report.Err)...)
}

// restartAll stops each node's Herald by SIGTERM and starts it again, one node after the other, as a rolling update does.
func (b *bench) restartAll(ctx context.Context) error {
	probed := b.addrs[:min(len(b.addrs), maxProbed)]
	who, err := b.lab.WhoHas(ctx, b.probeEach(len(probed)), probed...)
	if err != nil {
		return err
	}
	began := time.Now()
	var errs []error
	for _, n := range b.lab.Nodes() {
		errs = append(errs, b.heralds[n].Signal(syscall.SIGTERM), b.heralds[n].Wait(ctx), b.startHerald(ctx, n))
	}
	took := time.Since(began)
	sleep(ctx, 3*time.Second)
	report := who.Stop()
	f := Fault{}
	f.record(report, lab.ConnectReport{})
	moves := 0
	for _, a := range report.Addrs {
		moves += len(a.Owners()) - 1
	}
	b.say("all %d restarted one after the other, in %.0f s: %d VIPs asked for, %.1f moves of each, unanswered %.2f s (max), answered by two %.2f s (max)",
		len(b.heralds), took.Seconds(), len(report.Addrs), float64(moves)/float64(max(1, len(report.Addrs))), f.LongestSilence/1000, f.LongestDouble/1000)
	return errors.Join(append(errs, report.Err)...)
}

// objectName is the name of a Service that is not Herald's business.
func objectName(i int) string { return fmt.Sprintf("other-%05d", i) }

// createObjects creates Services of all types: of five, two ClusterIP, one headless, one NodePort and one LoadBalancer of another class.
func (b *bench) createObjects(ctx context.Context, n int) error {
	b.log("creating %d other Services", n)
	began := time.Now()
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(parallelCreates)
	for i := range n {
		g.Go(func() error {
			s := lab.Service("default", objectName(i))
			s.Spec.Type = corev1.ServiceTypeClusterIP
			switch i % 5 {
			case 2:
				s.Spec.ClusterIP = corev1.ClusterIPNone
			case 3:
				// there are 2768 node ports by default, and each VIP takes one
				if i < 5*1000 {
					s.Spec.Type = corev1.ServiceTypeNodePort
				}
			case 4:
				class, ports := "example.com/other", false
				s.Spec.Type, s.Spec.LoadBalancerClass, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, &class, &ports
			}
			return b.create(all, s)
		})
	}
	err := g.Wait()
	b.say("%d other Services created in %.0f s", n, time.Since(began).Seconds())
	return err
}

// measureStart kills a Herald, and prints how long the next one takes until it is ready, and how much it uses.
func (b *bench) measureStart(ctx context.Context, objects int) error {
	n := b.lab.Nodes()[0]
	b.heralds[n].Kill()
	began := time.Now()
	if err := b.startHerald(ctx, n); err != nil {
		return err
	}
	took := time.Since(began)
	cpu, rss, err := b.heralds[n].Usage()
	b.say("with %d other Services a Herald is ready %.2f s after its start, which took %.2f s of CPU, and has %d MiB then", objects, took.Seconds(), cpu.Seconds(), rss>>20)
	return err
}

// churn changes other Services, churnRate a second, and prints what that costs each Herald.
func (b *bench) churn(ctx context.Context, objects int) error {
	b.log("changing %d other Services a second", churnRate)
	before := map[string]time.Duration{}
	for n, p := range b.heralds {
		used, _, err := p.Usage()
		if err != nil {
			return err
		}
		before[n] = used
	}
	services := b.lab.Client().CoreV1().Services("default")
	began := time.Now()
	changed := 0
	for tick := time.NewTicker(time.Second / churnRate); time.Since(began) < churnFor && ctx.Err() == nil; <-tick.C {
		name := objectName(rand.IntN(objects))
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			lab.Annotated("example.com/changed", time.Now().String())(s)
			_, err = services.Update(ctx, s, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			return err
		}
		changed++
	}
	took := time.Since(began).Seconds()
	cpu, memory := map[string]float64{}, map[string]float64{}
	for _, n := range slices.Sorted(maps.Keys(b.heralds)) {
		used, rss, err := b.heralds[n].Usage()
		if err != nil {
			return err
		}
		cpu[n], memory[n] = 100*(used-before[n]).Seconds()/took, float64(rss)/(1<<20)
	}
	b.say("while %.1f of them a second change: CPU of a node's Herald %.2f %% of a core (mean), %.2f %% (max), memory %.0f MiB (max)",
		float64(changed)/took, total(cpu)/float64(len(cpu)), slices.Max(values(cpu)), slices.Max(values(memory)))
	return nil
}
