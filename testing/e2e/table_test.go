package e2e

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// Daemons on nodes that export table 198 to the router rt, with the same origin, without which rt would take one of them only.
const (
	exportingFRR = `router bgp 65000
 bgp router-id 10.77.0.11
 no bgp ebgp-requires-policy
 neighbor 10.77.0.1 remote-as 65001
 neighbor 10.77.0.1 timers 1 3
 neighbor 10.77.0.1 advertisement-interval 0
 address-family ipv4 unicast
  redistribute table 198 route-map bird
  redistribute connected route-map bound
 exit-address-family
ip prefix-list api-servers permit 10.79.0.61/32
route-map bird permit 10
 set origin igp
route-map bound permit 10
 match ip address prefix-list api-servers
 set origin igp
`
	exportingBIRD = `router id 10.77.0.12;
protocol device {}
protocol kernel { kernel table 198; learn; ipv4 { import all; export none; }; }
protocol bgp upstream {
 local as 65000; neighbor 10.77.0.1 as 65001;
 ipv4 { import none; export all; next hop self; };
}
`
)

// startExporter runs start until the test ends.
func startExporter(t *testing.T, start func() (*lab.Router, error)) *lab.Router {
	t.Helper()
	r := check.Value(start())(t)
	t.Cleanup(func() { check.OK(t, r.Close()) })
	return r
}

// inTable198 is what the node has in that table.
func inTable198(t *testing.T, node string) string {
	t.Helper()
	out := check.Value(cluster.Run(t.Context(), node, "ip", "-4", "route", "show", "table", "198"))(t)
	return strings.Join(strings.Fields(out), " ")
}

// awaitTable198 waits until the node has that, and no more, in that table.
func awaitTable198(t *testing.T, node, want string) {
	t.Helper()
	until(t, 10*time.Second, node+" has in table 198: "+want, func(context.Context) error {
		if got := inTable198(t, node); got != want {
			return errors.New(got)
		}
		return nil
	})
}

// expectOneChange fails the test if connections failed for anything but one change of the router's next hops: what was open at that
// moment may go on by another node, which resets it.
func expectOneChange(t *testing.T, c lab.ConnectReport) {
	t.Helper()
	from, to := c.Began, c.Ended // when all of those that failed were open
	for _, a := range c.Failures {
		if !errors.Is(a.Err, syscall.ECONNRESET) {
			t.Errorf("of %d connections %d failed: %v", c.Attempts, len(c.Failures), a.Err)
			return
		}
		if a.Began.After(from) {
			from = a.Began
		}
		if end := a.Began.Add(a.Latency); end.Before(to) {
			to = end
		}
	}
	if to.Before(from) {
		t.Errorf("%d of %d connections were reset, which were never all open at once", len(c.Failures), c.Attempts)
	}
}

// The settings of OpenShift, and Services: FRR on n1 and BIRD on n2 export what Herald has in table 198. The route to the control plane's
// VIP is there while the node's own API server is ready; a killed Herald leaves routes to the next one; a stopped one leaves none.
func TestRoutingTable(t *testing.T) {
	rt, _ := startRouters(t)
	frr := startExporter(t, func() (*lab.Router, error) { return cluster.FRR(t.Context(), "n1", exportingFRR) })
	check.Value(frr.Vtysh(t.Context(), "configure terminal", "ip import-table 198"))(t)
	startExporter(t, func() (*lab.Router, error) { return cluster.BIRD(t.Context(), "n2", exportingBIRD) })
	servers := startReadyServers(t)
	const service, apiServers = "10.79.0.60", "10.79.0.61"
	env := distributionEnv(t, "openshift", apiServers)
	env["svc_enable"], env["cp_namespace"] = "true", "kube-system"
	f := start(t, env)
	f.killed = true // a node lease of the one that is killed may be left
	createService(t, webService("table", service))
	for _, vip := range []string{service, apiServers} {
		awaitHops(t, rt, vip, 2, 20*time.Second)
	}
	const both = "10.79.0.60 dev eth0 proto 248 scope link 10.79.0.61 dev eth0 proto 248 scope link"
	for _, n := range cluster.Nodes() {
		awaitTable198(t, n, both)
	}
	awaitStatus(t, "table", service+"(VIP)", 5*time.Second)
	awaitProxies(t, service)
	awaitReachable(t, "http://"+service+"/")
	awaitReachable(t, "http://"+apiServers+":6444/")

	began := time.Now()
	servers["n1"].Close()
	awaitHops(t, rt, apiServers, 1, 10*time.Second)
	t.Logf("withdrawn %v after the API server died", time.Since(began).Round(time.Millisecond))
	awaitHops(t, rt, service, 2, time.Second)
	startReadyServer(t, "n1")
	awaitTable198(t, "n1", both) // FRR redistributes the bound address, too, which comes before the route
	awaitHops(t, rt, apiServers, 2, 10*time.Second)

	// Another program flushes the table.
	check.Value(cluster.Run(t.Context(), "n2", "ip", "route", "flush", "table", "198"))(t)
	until(t, 5*time.Second, "the routes are back", func(context.Context) error {
		if got := inTable198(t, "n2"); strings.Count(got, "proto 248") != 2 {
			return errors.New(got)
		}
		return nil
	})
	awaitHops(t, rt, service, 2, 10*time.Second)

	// A killed Herald leaves its routes; the Service goes; the next Herald removes what is left of it.
	f.node["n1"].Kill()
	check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), "table", metav1.DeleteOptions{}))
	awaitHops(t, rt, service, 1, 10*time.Second)
	if got := inTable198(t, "n1"); strings.Count(got, "proto 248") != 2 {
		t.Errorf("after SIGKILL n1 has %q", got)
	}
	f.startOn("n1")
	awaitHops(t, rt, service, 0, 20*time.Second)
	// The next Herald may have removed the other route, too, until it knew that the API server is ready.
	f.awaitReady("n1")
	awaitTable198(t, "n1", "10.79.0.61 dev eth0 proto 248 scope link")
	awaitHops(t, rt, apiServers, 2, 10*time.Second)

	c := connect(t, apiServers+":6444")
	f.node["n2"].Signal(syscall.SIGTERM)
	awaitHops(t, rt, apiServers, 1, 10*time.Second)
	check.OK(t, f.node["n2"].Wait(withTimeout(t, 15*time.Second)))
	r := c.Stop()
	t.Logf("its Herald is stopped: %s", r)
	expectOneChange(t, r)
	if got := inTable198(t, "n2"); got != "" {
		t.Errorf("left on n2: %q", got)
	}
}
