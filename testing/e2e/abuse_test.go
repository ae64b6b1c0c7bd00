package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/arp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// TestAbuse: while somebody with the role edit in a namespace and a host of the link do what they can, VIPs of other namespaces are
// answered by their owners, no connection is lost, a new Service is served at once, and Herald needs little more than before.
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
	stopped := abuse(t, vips)
	busy := f.cpu(10 * time.Second)
	began := time.Now()
	createService(t, webService("d", "10.77.0.53"))
	awaitAnswer(t, whoHas(t, 20*time.Millisecond, "10.77.0.53"), "10.77.0.53", 5*time.Second)
	t.Logf("a new Service is answered after %v; CPU, of a core: %.3v before, %.3v with it", time.Since(began).Round(time.Millisecond), idle, busy)
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
	stopped()

	r := who.Stop()
	for _, a := range r.Addrs {
		if !a.Stayed(100 * time.Millisecond) {
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

// abuse begins all of it, against the VIPs of others, and returns what ends it and fails the test if little was done.
func abuse(t *testing.T, vips []string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	abuseObjects(t, vips)
	changes, renewals := 0, 0
	ended := make(chan struct{}, 2)
	go everyTenth(ctx, ended, func(i int) error { // each is worth an Event
		changes++
		_, err := cluster.Client().CoreV1().Services(abuser).Patch(ctx, fmt.Sprintf("app-%d", i%30), types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{"heraldvip.io/ip-mode":"wrong-%d"}}}`, i), metav1.PatchOptions{})
		return err
	})
	go everyTenth(ctx, ended, func(i int) error { // leader elections of other programs, each of which renews its Lease every 2 s
		renewals++
		_, err := cluster.Client().CoordinationV1().Leases(abuser).Patch(ctx, fmt.Sprintf("election-%d", i%20), types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro)), metav1.PatchOptions{})
		return err
	})
	for _, n := range cluster.Nodes() {
		v4, _ := cluster.Addrs(n)
		for _, port := range []string{"2112", "7947"} {
			for range 256 {
				go keepOpen(ctx, net.JoinHostPort(v4.String(), port))
			}
		}
	}
	var floods []*lab.Flood
	for _, x := range abusiveFrames(t, vips) {
		floods = append(floods, check.Value(cluster.Flood(ctx, "rt", x.rate, x.frame))(t))
	}
	return func() {
		cancel()
		<-ended
		<-ended
		for _, flood := range floods {
			if sent := check.Value(flood.Stop())(t); sent < 1000 {
				t.Errorf("only %d frames were sent", sent)
			}
		}
		if changes < 30 || renewals < 30 {
			t.Errorf("only %d changes and %d renewals", changes, renewals)
		}
	}
}

// everyTenth calls fn ten times a second, until ctx ends or fn fails, and then sends to ended.
func everyTenth(ctx context.Context, ended chan<- struct{}, fn func(i int) error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil && fn(i) == nil; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	ended <- struct{}{}
}

// keepOpen holds a connection open without a request, until ctx ends; 5 s after it was closed or refused there is another.
func keepOpen(ctx context.Context, to string) {
	for ctx.Err() == nil {
		soon, cancel := context.WithTimeout(ctx, 5*time.Second)
		if c, err := cluster.DialFrom("rt")(soon, "tcp", to); err == nil {
			stop := context.AfterFunc(ctx, func() { c.Close() })
			_, _ = io.Copy(io.Discard, c)
			stop()
			c.Close()
		}
		<-soon.Done()
		cancel()
	}
}

// abuser is the namespace of the abuse.
const abuser = "tenant-of-the-load"

// abuseObjects creates Services that ask for the VIPs of others, for very many addresses, and for one by DHCP where there is no
// server, and Leases with forged claims and of leader elections, where a quota lets no Event in.
func abuseObjects(t *testing.T, vips []string) {
	t.Helper()
	createTenant(t, abuser)
	none := `{"count/events": "0", "count/events.events.k8s.io": "0"}`
	check.OK(t, cluster.Apply(t.Context(), "{apiVersion: v1, kind: ResourceQuota, metadata: {name: no-events, namespace: "+abuser+"}, spec: {hard: "+none+"}}"))
	// There is no controller that would write the status.
	check.Value(cluster.Kubectl(t.Context(), "-n", abuser, "patch", "resourcequota/no-events", "--subresource=status", "--type=merge",
		"-p", `{"status": {"hard": `+none+`, "used": `+none+`}}`))(t)
	ask := func(name string, port int32, addrs string, more ...func(*corev1.Service)) {
		more = append(more, lab.Annotated("kube-vip.io/loadbalancerIPs", addrs), lab.Annotated("kube-vip.io/allow-reconcile-without-endpoints", "true"),
			func(s *corev1.Service) { s.Spec.Ports[0].Port = port })
		createService(t, lab.Service(abuser, name, more...))
	}
	all := strings.Join(vips, ",")
	for i := range 10 {
		ask(fmt.Sprint("app-", 3*i), int32(1000+i), all, lab.Annotated("kube-vip.io/serviceInterface", "nope"))
		ask(fmt.Sprint("app-", 3*i+1), int32(2000+i), all)
		ask(fmt.Sprint("app-", 3*i+2), 80, vips[i%len(vips)])
	}
	ask("many", 80, addressList(500))
	ask("dhcp-1", 80, "0.0.0.0")
	ask("dhcp-2", 80, "0.0.0.0")
	for i := range 25 {
		node := cluster.Nodes()[i%len(cluster.Nodes())]
		ghost := fmt.Sprint("ghost-", i)
		forgeClaim(t, abuser, "claim-"+ghost, ghost, 1)
		forgeClaim(t, abuser, "claim-of-"+ghost, node, math.MaxInt32) // its last epoch
		forgeClaim(t, abuser, fmt.Sprint("kubevip-app-", i), node, 1)
		forgeClaim(t, abuser, "herald-node-"+ghost, ghost, 1)
	}
	for i := range 20 {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("election-", i)}}
		l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = new("leader"), new(int32(15)), new(metav1.NowMicro())
		check.Value(cluster.Client().CoordinationV1().Leases(abuser).Create(t.Context(), l, metav1.CreateOptions{}))(t)
	}
}

// A frames is what a host sends, so many times a second.
type frames struct {
	rate  int
	frame func(i int) []byte
}

// abusiveFrames are of a host of the link: ARP frames, of which half name a VIP, to the nodes only, since another host that believed
// them would lose its way to the VIP; heartbeats in the name of another node, without the key; and DHCP offers.
func abusiveFrames(t *testing.T, vips []string) []frames {
	t.Helper()
	own, key, nodes := macOf("rt"), keyID(t), cluster.Nodes()
	foreign := func() netip.Addr {
		return netip.AddrFrom4([4]byte{10, 77, 128 | byte(rand.IntN(64)), byte(rand.IntN(256))})
	}
	mac := func() net.HardwareAddr {
		return append(net.HardwareAddr{2}, binary.BigEndian.AppendUint64(nil, rand.Uint64())[:5]...)
	}
	junk := func(head ...byte) []byte {
		for len(head) < 300 {
			head = binary.BigEndian.AppendUint64(head, rand.Uint64())
		}
		return head
	}
	return []frames{
		{500, func(i int) []byte {
			to, addr := lab.Broadcast, foreign()
			if i%4 > 1 {
				to, addr = macOf(nodes[i/4%len(nodes)]), netip.MustParseAddr(vips[i/4%len(vips)])
			}
			return lab.ForgeARP(own, to, mac(), addr, arp.Operation(1+i%2))
		}},
		{300 * len(nodes), func(i int) []byte {
			to, from := nodes[i%len(nodes)], nodes[(i+1)%len(nodes)]
			to4, _ := cluster.Addrs(to)
			from4, _ := cluster.Addrs(from)
			return lab.ForgeUDP(own, macOf(to), netip.AddrPortFrom(from4, 7947), netip.AddrPortFrom(to4, 7947), junk(append([]byte{'H', 'P', 1, 0}, key...)...))
		}},
		{300, func(int) []byte {
			return lab.ForgeUDP(own, lab.Broadcast, netip.MustParseAddrPort("10.77.0.1:67"), netip.MustParseAddrPort("255.255.255.255:68"), dhcpOffer(junk()))
		}},
	}
}

// dhcpOffer makes a DHCPOFFER (RFC 2131 section 3) of junk, from 10.77.0.1.
func dhcpOffer(junk []byte) []byte {
	copy(junk, []byte{2, 1, 6, 0})
	return append(junk[:236], 99, 130, 83, 99, 53, 1, 2, 54, 4, 10, 77, 0, 1, 51, 4, 0, 0, 14, 16, 255)
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
