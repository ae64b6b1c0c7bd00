package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// frrConf is the client's router, AS 65001, which accepts every host of the LAN as a peer.
const frrConf = `router bgp 65001
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp router-id 10.77.0.1
 neighbor nodes peer-group
 neighbor nodes remote-as 65000
 neighbor nodes timers 1 3
 bgp listen range 10.77.0.0/24 peer-group nodes
 bgp listen range fd77::/64 peer-group nodes
 address-family ipv4 unicast
  neighbor nodes activate
  maximum-paths 8
 exit-address-family
 address-family ipv6 unicast
  neighbor nodes activate
  maximum-paths 8
 exit-address-family
`

// birdConf is a second router, on another host; nothing is forwarded by it.
const birdConf = `router id 10.77.0.101;
protocol device {}
protocol bgp nodes {
 local as 65002;
 neighbor range 10.77.0.0/24 as 65000;
 dynamic name "node";
 ipv4 { import all; export none; };
 ipv6 { import all; export none; };
}
`

// startRouters runs FRR on rt and BIRD on pr until the test ends. It skips the test if they are not installed.
func startRouters(t *testing.T) (frr, bird *lab.Router) {
	t.Helper()
	return startRoutersWith(t, frrConf, birdConf)
}

// startRoutersWith is startRouters with other configurations.
func startRoutersWith(t *testing.T, frrConf, birdConf string) (frr, bird *lab.Router) {
	t.Helper()
	check.Program(t, "/usr/lib/frr/bgpd")
	check.Program(t, "bird")
	started, err := cluster.FRR(t.Context(), "rt", frrConf)
	frr = closing(t, started, err)
	started, err = cluster.BIRD(t.Context(), "pr", birdConf)
	return frr, closing(t, started, err)
}

// closing closes a router when the test ends, and fails the test if it could not be started.
func closing(t *testing.T, r *lab.Router, err error) *lab.Router {
	t.Helper()
	if r != nil {
		t.Cleanup(func() { check.OK(t, r.Close()) })
	}
	check.OK(t, err)
	return r
}

// bgpEnv is the options of an operator who uses BGP only.
func bgpEnv(more ...string) map[string]string {
	e := map[string]string{
		"svc_enable": "true", "bgp_enable": "true", "bgp_peers": "10.77.0.1:65001,10.77.0.101:65002", "bgp_hold_time": "3", "herald_bgp_ready": "true",
	}
	for i := 0; i < len(more); i += 2 {
		e[more[i]] = more[i+1]
	}
	return e
}

// awaitHops waits until the router's kernel has so many next hops for a prefix.
func awaitHops(t *testing.T, r *lab.Router, prefix string, want int, within time.Duration) time.Duration {
	t.Helper()
	took := check.Value(r.AwaitHops(withTimeout(t, within), prefix, want))(t)
	return took
}

// birdRouterConf is the client's router when that is BIRD.
const birdRouterConf = `router id 10.77.0.1;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; merge paths yes; }
protocol bgp nodes {
 local as 65001;
 neighbor range 10.77.0.0/24 as 65000;
 dynamic name "node";
 ipv4 { import all; export none; };
}
`

// TestBGPByBIRD: every node is a next hop of BIRD's, and one that ends is withdrawn.
func TestBGPByBIRD(t *testing.T) {
	check.Program(t, "bird")
	started, err := cluster.BIRD(t.Context(), "rt", birdRouterConf)
	router := closing(t, started, err)
	f := start(t, bgpEnv("bgp_peers", "10.77.0.1:65001"))
	createService(t, webService("a", "10.79.0.50"))
	awaitHops(t, router, "10.79.0.50", 3, 10*time.Second)
	awaitStatus(t, "a", "10.79.0.50(VIP)", 5*time.Second)
	awaitProxies(t, "10.79.0.50")
	awaitReachable(t, "http://10.79.0.50/")
	c := connect(t, "10.79.0.50:80")
	check.OK(t, f.node["n2"].Signal(syscall.SIGTERM))
	awaitHops(t, router, "10.79.0.50", 2, 10*time.Second)
	if r := c.Stop(); r.Outage > 500*time.Millisecond { // flows that another node gets now are reset
		t.Errorf("SIGTERM: outage %v, want at most 0.5 s\n%s", r.Outage, r)
	}
	check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	awaitHops(t, router, "10.79.0.50", 0, 2*time.Second)
}

// externalTrafficPolicy Cluster: every node is a next hop of both families, connections spread over all,
// no node has the address. A node that is killed or cut off is withdrawn in time.
func TestBGP(t *testing.T) {
	frr, bird := startRouters(t)
	f := start(t, bgpEnv())
	f.killed = true // of one of them the node lease is left
	createService(t, webService("a", "10.79.0.50,fd79::50"))
	awaitHops(t, frr, "10.79.0.50", 3, 10*time.Second)
	awaitHops(t, frr, "fd79::50", 3, 5*time.Second)
	awaitStatus(t, "a", "10.79.0.50(VIP),fd79::50(VIP)", 5*time.Second)
	awaitEvent(t, "a", "VIPAnnounced", "by BGP")
	awaitProxies(t, "10.79.0.50")
	until(t, 5*time.Second, "BIRD has three routes", func(ctx context.Context) error {
		out, err := bird.Birdc(ctx, "show route 10.79.0.50/32")
		if err == nil && strings.Count(out, "via 10.77.0.") != 3 {
			err = errors.New(out)
		}
		return err
	})
	awaitReachable(t, "http://10.79.0.50/")
	awaitReachable(t, "http://[fd79::50]/")
	for _, n := range cluster.Nodes() {
		if have := vips(t, n); len(have) > 0 {
			t.Errorf("%s has %v on its link", n, have)
		}
	}
	c := connect(t, "10.79.0.50:80")
	time.Sleep(time.Second)
	r := c.Stop()
	t.Logf("%s", r)
	if len(r.Failures) > 0 || len(r.Clients) != 3 {
		t.Errorf("%d connections failed; pods saw the nodes %v, want three", len(r.Failures), r.Clients)
	}

	// SIGKILL: the session drops with the process, and the routes with it.
	c = connect(t, "10.79.0.50:80")
	time.Sleep(200 * time.Millisecond)
	killed := time.Now()
	f.node["n2"].Kill()
	awaitHops(t, frr, "10.79.0.50", 2, 2*time.Second)
	gone := time.Since(killed)
	time.Sleep(300 * time.Millisecond)
	r = c.Stop()
	t.Logf("SIGKILL: withdrawn after %v, client outage %v\n%s", gone.Round(time.Millisecond), r.Outage.Round(time.Millisecond), r)
	if r.Outage > 500*time.Millisecond {
		t.Errorf("SIGKILL: an outage of %v, want at most 0.5 s", r.Outage)
	}
	expectConnectionsSurvive(t, r, 1)
	f.startOn("n2")
	t.Logf("back after %v", awaitHops(t, frr, "10.79.0.50", 3, 15*time.Second).Round(time.Millisecond))

	// The router loses its peers, comes back, and knows all again.
	check.OK(t, errors.Join(frr.Kill(), frr.Start(t.Context())))
	t.Logf("after a restart of the router all is back in %v", awaitHops(t, frr, "10.79.0.50", 3, 20*time.Second).Round(time.Millisecond))

	// The cable of a node: the hold time (3 s) ends the session.
	c = connect(t, "10.79.0.50:80")
	check.OK(t, cluster.Cut("n3"))
	defer cluster.Reconnect("n3")
	cut := time.Now()
	awaitHops(t, frr, "10.79.0.50", 2, 10*time.Second)
	t.Logf("cut off the LAN: withdrawn after %v", time.Since(cut).Round(time.Millisecond))
	t.Logf("%s", c.Stop())
	check.OK(t, cluster.Reconnect("n3"))
	awaitHops(t, frr, "10.79.0.50", 3, 20*time.Second)

	// The Service goes, and its routes with it.
	check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	awaitHops(t, frr, "10.79.0.50", 0, 2*time.Second)
	until(t, 2*time.Second, "the IPv6 route is withdrawn", func(ctx context.Context) error {
		out, err := frr.Vtysh(ctx, "show bgp ipv6 unicast")
		if err == nil && strings.Contains(out, "fd79::50") {
			err = errors.New(out)
		}
		return err
	})
}

// externalTrafficPolicy Local: only nodes with a ready endpoint are next hops, pods see the client, and a
// rolling update and a rolling restart go unnoticed.
func TestBGPLocal(t *testing.T) {
	frr, _ := startRouters(t)
	f := start(t, bgpEnv())
	p1, p3 := addPod(t, "bgp-1", "n1"), addPod(t, "bgp-3", "n3")
	s := localService("bgp-local", "10.79.0.51")
	s.Spec.ExternalTrafficPolicy = "Cluster"
	createService(t, s)
	awaitHops(t, frr, "10.79.0.51", 3, 10*time.Second)
	awaitProxies(t, "10.79.0.51")
	until(t, 10*time.Second, "the client reaches it", func(ctx context.Context) error {
		_, err := cluster.Get(ctx, "cl", "http://10.79.0.51/")
		return err
	})
	became := connect(t, "10.79.0.51:80")
	patchService(t, "bgp-local", `{"spec":{"externalTrafficPolicy":"Local"}}`)
	awaitHops(t, frr, "10.79.0.51", 2, 10*time.Second)
	time.Sleep(time.Second)
	report := became.Stop()
	t.Logf("Cluster, then Local: %s", report)
	expectConnectionsSurvive(t, report, 1)
	have, err := frr.Hops(t.Context(), "10.79.0.51")
	if slices.Sort(have); err != nil || !slices.Equal(have, []string{"10.77.0.11", "10.77.0.13"}) {
		t.Errorf("next hops %v, %v, want n1 and n3", have, err)
	}
	client, _ := cluster.Addrs("cl")

	// A rolling update: the new pods on other nodes are ready before the old ones go.
	c := connect(t, "10.79.0.51:80")
	time.Sleep(200 * time.Millisecond)
	p2 := addPod(t, "bgp-2", "n2")
	awaitHops(t, frr, "10.79.0.51", 3, 5*time.Second)
	for _, old := range []lab.Pod{p1, p3} {
		check.OK(t, cluster.DeletePod(t.Context(), old, 2*time.Second))
	}
	if _, err := frr.AwaitHops(withTimeout(t, 2*time.Second), "10.79.0.51", 1); err != nil {
		t.Error(err)
	}
	r := c.Stop()
	t.Logf("rolling update\n%s", r)
	expectConnectionsSurvive(t, r, 3)
	if len(r.Clients) != 1 || r.Clients[client] == 0 {
		t.Errorf("pods saw %v, want the client %s alone", r.Clients, client)
	}

	// A rolling restart of Herald.
	addPod(t, "bgp-1", "n1")
	addPod(t, "bgp-3", "n3")
	awaitHops(t, frr, "10.79.0.51", 3, 5*time.Second)
	c = connect(t, "10.79.0.51:80")
	for _, n := range cluster.Nodes() {
		began := time.Now()
		f.terminate(n, 15*time.Second)
		t.Logf("%s stopped in %v", n, time.Since(began).Round(time.Millisecond))
		f.startOn(n)
		awaitHops(t, frr, "10.79.0.51", 3, 15*time.Second)
		f.awaitReady(n)
	}
	r = c.Stop()
	t.Logf("rolling restart\n%s", r)
	expectConnectionsSurvive(t, r, 2*len(cluster.Nodes()))

	// An endpoint that is not ready any more: withdrawn within 0.2 s of the EndpointSlice, if nothing else runs.
	quickest := time.Hour
	for _, p := range []lab.Pod{p2, p2, p2} {
		began := time.Now()
		check.OK(t, cluster.SetReady(t.Context(), p, false))
		took := awaitEndpointNotReady(t, "bgp-local", "n2", began)
		awaitHops(t, frr, "10.79.0.51", 2, 3*time.Second)
		gone := time.Since(began) - took
		t.Logf("endpoint lost: in the EndpointSlice after %v, withdrawn %v later", took.Round(time.Millisecond), gone.Round(time.Millisecond))
		quickest = min(quickest, gone)
		check.OK(t, cluster.SetReady(t.Context(), p, true))
		awaitHops(t, frr, "10.79.0.51", 3, 5*time.Second)
	}
	if quickest > 200*time.Millisecond {
		t.Errorf("withdrawn %v after the EndpointSlice changed, want at most 0.2 s", quickest)
	}
}

// With an election the owner alone is the next hop, and hands over without a gap, or once it has lost its session; the peers are named by annotations. ARP and BGP side by
// side: annotations of the Services choose.
func TestBGPElection(t *testing.T) {
	frr, _ := startRouters(t)
	for _, n := range cluster.Nodes() {
		annotateNode(t, n, `{"example.com/bgp-peers-0-peer-ip":"10.77.0.1","example.com/bgp-peers-0-peer-asn":"65001"}`)
		t.Cleanup(func() {
			annotateNode(t, n, `{"example.com/bgp-peers-0-peer-ip":null,"example.com/bgp-peers-0-peer-asn":null}`)
		})
	}
	f := start(t, bgpEnv("bgp_peers", "", "annotation", "example.com", "svc_election", "true", "vip_arp", "true", "herald_bgp_communities", "65000:7"))
	createService(t, webService("routed", "10.79.0.52", lab.Annotated("heraldvip.io/announce", "bgp"), lab.Annotated("heraldvip.io/bgp-med", "9")))
	createService(t, webService("both", "10.77.0.53"))
	createService(t, webService("arp", "10.77.0.54", lab.Annotated("heraldvip.io/announce", "arp")))
	awaitHops(t, frr, "10.79.0.52", 1, 10*time.Second)
	awaitHops(t, frr, "10.77.0.53", 1, 10*time.Second)
	was := awaitOwner(t, "routed")
	awaitOwner(t, "arp")
	w := whoHas(t, 20*time.Millisecond, "10.77.0.53", "10.77.0.54")
	awaitAnswer(t, w, "10.77.0.53", 3*time.Second)
	awaitAnswer(t, w, "10.77.0.54", 3*time.Second)
	awaitHops(t, frr, "10.77.0.54", 0, time.Second)
	out, err := frr.Vtysh(t.Context(), "show bgp ipv4 unicast 10.79.0.52/32")
	if err != nil || !strings.Contains(out, "metric 9") || !strings.Contains(out, "65000:7") {
		t.Errorf("attributes: %v\n%s", err, out)
	}
	awaitProxies(t, "10.79.0.52")
	awaitReachable(t, "http://10.79.0.52/")
	established := hold(t, 5, "10.79.0.52", was)
	c := connect(t, "10.79.0.52:80")
	f.terminate(was, 15*time.Second)
	time.Sleep(300 * time.Millisecond)
	r := c.Stop()
	t.Logf("%s", r)
	expectConnectionsSurvive(t, r, 2)
	if now := awaitOwner(t, "routed"); now == was {
		t.Errorf("still on %s", was)
	}
	awaitHops(t, frr, "10.79.0.52", 1, time.Second)
	expectHeld(t, "SIGTERM of "+was, established)

	f.startAgain(was)
	drained := awaitOwner(t, "routed")
	established = append(established, hold(t, 5, "10.79.0.52", drained)...)
	runHerald(t, "drain", drained)
	defer runHerald(t, "undrain", drained)
	until(t, 10*time.Second, "another node is the next hop, and "+drained+" none", func(ctx context.Context) error {
		have, err := frr.Hops(ctx, "10.79.0.52")
		if own, _ := cluster.Addrs(drained); err == nil && (len(have) != 1 || have[0] == own.String()) {
			err = fmt.Errorf("next hops %v", have)
		}
		return err
	})
	expectHeld(t, "the drain of "+drained, established)

	lost := awaitAnotherOwner(t, "routed", drained, 5*time.Second)
	annotateNode(t, lost, `{"example.com/bgp-peers-0-peer-port":"1"}`)
	defer annotateNode(t, lost, `{"example.com/bgp-peers-0-peer-port":null}`)
	awaitAnotherOwner(t, "routed", lost, 20*time.Second)
	awaitHops(t, frr, "10.79.0.52", 1, 5*time.Second)

	// Without the Node there are no annotations, but its sessions last until the VIP has been handed over.
	runHerald(t, "undrain", drained)
	deleted := awaitOwner(t, "routed")
	c = connect(t, "10.79.0.52:80")
	deleteNode(t, deleted)
	awaitAnotherOwner(t, "routed", deleted, 5*time.Second)
	time.Sleep(4 * time.Second) // the old one has drained its route
	r = c.Stop()
	t.Logf("the Node %s is deleted: %s", deleted, r)
	neverLogged(t, f, "this session is not configured any more")
	expectConnectionsSurvive(t, r, 2)
}

// Without an API server the routes stay, long after the node leases are too old.
func TestBGPWithoutAPI(t *testing.T) {
	frr, _ := startRouters(t)
	start(t, bgpEnv("vip_leaseduration", "4", "vip_renewdeadline", "3", "vip_retryperiod", "1"))
	createService(t, webService("without-api", "10.79.0.55"))
	awaitHops(t, frr, "10.79.0.55", 3, 10*time.Second)
	awaitProxies(t, "10.79.0.55")
	awaitReachable(t, "http://10.79.0.55/")
	c := connect(t, "10.79.0.55:80")
	check.OK(t, cluster.StopAPI())
	time.Sleep(5 * time.Second)
	have, err := frr.Hops(t.Context(), "10.79.0.55")
	check.OK(t, cluster.StartAPI(t.Context()))
	if err != nil || len(have) != 3 {
		t.Errorf("without an API server for 5 s the next hops are %v, %v", have, err)
	}
	r := c.Stop()
	t.Logf("%s", r)
	if len(r.Failures) > 0 {
		t.Errorf("%d connections failed without an API server", len(r.Failures))
	}
	awaitHops(t, frr, "10.79.0.55", 3, 10*time.Second)
	awaitRecovery(t)
}

// awaitEndpointNotReady waits until the EndpointSlice of a Service has no ready endpoint on a
// node, and returns how long that took since began.
func awaitEndpointNotReady(t *testing.T, service, node string, began time.Time) time.Duration {
	t.Helper()
	until(t, 5*time.Second, "the EndpointSlice of "+service+" has no ready endpoint on "+node, func(ctx context.Context) error {
		list, err := cluster.Client().DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
		if err != nil {
			return err
		}
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				if e.NodeName != nil && *e.NodeName == node && e.Conditions.Ready != nil && *e.Conditions.Ready {
					return errors.New("the endpoint is ready")
				}
			}
		}
		return nil
	})
	return time.Since(began)
}

// annotateNode merges annotations into a Node.
func annotateNode(t *testing.T, node, annotations string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":%s}}`, annotations)
	if _, err := cluster.Client().CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}
