package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/abuse"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// TestAbuse: while somebody with the role edit in a namespace and a host of the link do what they can,
// VIPs of other namespaces are answered by their owners, no connection is lost, a new Service is served
// at once, and Herald needs little more than before. "bench -abuse all" measures the same at full size.
func TestAbuse(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	vips := []string{"10.77.0.50", "10.77.0.51", "10.77.0.52"}
	for i, name := range []string{"b", "c"} {
		createService(t, webService(name, vips[i+1]))
		awaitOwner(t, name)
	}
	who := whoHas(t, 20*time.Millisecond, vips...)
	idle := f.cpu(5 * time.Second)

	var addrs []netip.Addr
	for _, v := range vips {
		addrs = append(addrs, netip.MustParseAddr(v))
	}
	load := abuse.Load{abuse.Services: 30, abuse.Addresses: 500, abuse.DHCP: 2, abuse.Changes: 10, abuse.Leases: 100, abuse.Elections: 20,
		abuse.Connections: 256, abuse.ARP: 500, abuse.Heartbeats: 300, abuse.Offers: 300}
	running := check.Value(abuse.Start(t.Context(), cluster, load, addrs, 2112, 7947))(t)
	busy := f.cpu(10 * time.Second)
	began := time.Now()
	createService(t, webService("d", "10.77.0.53"))
	awaitAnswer(t, whoHas(t, 20*time.Millisecond, "10.77.0.53"), "10.77.0.53", 5*time.Second)
	t.Logf("a new Service is answered after %v; CPU, of a core: %.3v before, %.3v with %s", time.Since(began).Round(time.Millisecond), idle, busy, running)
	for _, n := range cluster.Nodes() {
		until(t, 5*time.Second, "the Herald on "+n+" says that it is well", func(ctx context.Context) error {
			_, err := cluster.Get(ctx, n, "http://127.0.0.1:2112/healthz")
			return err
		})
		_, rss, err := f.node[n].Usage()
		check.OK(t, err)
		if rss > 100<<20 {
			t.Errorf("the Herald on %s has %d MiB", n, rss>>20)
		}
		if more := busy[n] - idle[n]; more > mayUse(0.1, idle[n]) {
			t.Errorf("the Herald on %s uses %.3f of a core, %.3f more than before", n, busy[n], more)
		}
	}
	check.OK(t, running.Stop(t.Context()))

	r := who.Stop()
	for _, a := range r.Addrs {
		if len(a.Owners()) != 1 || a.LongestSilence > 100*time.Millisecond {
			t.Errorf("%s: unanswered for %v, owners %v", a.Addr, a.LongestSilence, a.Timeline)
		}
	}
	_, c := s.report()
	allowed := 0
	if c.Stalled > 250*time.Millisecond { // something else has both cores: the kernel drops packets of anyone's
		allowed = c.Attempts / 50
	}
	if len(c.Failures) > allowed {
		t.Errorf("%d of %d connections failed, %d allowed", len(c.Failures), c.Attempts, allowed)
	}
}

// mayUse returns the share of a core that is little for what a Herald is made to do: share, or on a slow machine eight times
// what it uses when nothing happens.
func mayUse(share, idle float64) float64 { return max(share, 8*idle) }

// cpu returns how much of a core the Herald of each node uses in the time d.
func (f *heralds) cpu(d time.Duration) map[string]float64 {
	f.t.Helper()
	used, began := map[string]time.Duration{}, time.Now()
	read := func(n string, p *lab.Process) time.Duration {
		cpu, _, err := p.Usage()
		if err != nil {
			f.t.Fatal(fmt.Errorf("the Herald on %s: %w", n, err))
		}
		return cpu
	}
	for n, p := range f.node {
		used[n] = read(n, p)
	}
	time.Sleep(d)
	share := map[string]float64{}
	for n, p := range f.node {
		share[n] = (read(n, p) - used[n]).Seconds() / time.Since(began).Seconds()
	}
	return share
}
