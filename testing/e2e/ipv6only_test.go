package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// In a cluster without IPv4 clients find the VIP of a Service by neighbor discovery, connections outlive a hand-over, and
// heartbeats replace a node whose Herald is killed.
func TestIPv6OnlyServices(t *testing.T) {
	needIPv6Only(t)
	f := start(t, env())
	f.killed = true
	s := observe(t, "a", "fd77::1050")
	awaitDetectable(t)
	awaitStatus(t, "a", "fd77::1050(VIP)", 2*time.Second)
	held := hold(t, 10, "fd77::1050", s.owner)
	f.node[s.owner].Signal(syscall.SIGTERM)
	to := s.awaitMove(5 * time.Second)
	check.OK(t, f.node[s.owner].Wait(withTimeout(t, 15*time.Second)))
	awaitNeighbor(t, "fd77::1050", to)
	expectHeld(t, "a hand-over", held)
	time.Sleep(500 * time.Millisecond)
	w, c := s.report()
	if w.LongestSilence > 200*time.Millisecond {
		t.Errorf("a hand-over left it unanswered for %v", w.LongestSilence)
	}
	expectConnectionsSurvive(t, c, 0)
	f.startAgain(s.owner)
	awaitDetectable(t)
	if got := runHerald(t, "status"); !strings.Contains(got, "fd77::1050") || !strings.Contains(got, to) {
		t.Errorf("herald status:\n%s", got)
	}

	conn := connect(t, "[fd77::1050]:80")
	killed := time.Now()
	f.node[to].Kill()
	awaitMoved(t, "a", to, lab.KernelAnswers+2*time.Second)
	t.Logf("SIGKILL: another node has it after %v", time.Since(killed).Round(time.Millisecond))
	r := conn.Stop()
	t.Logf("%s", r)
	expectConnectionsSurvive(t, r, 0)
	f.startAgain(to)
}

// Local, and an address by DHCPv6, in a cluster without IPv4.
func TestIPv6OnlyLocalAndDHCP(t *testing.T) {
	needIPv6Only(t)
	start(t, env())
	server := newDHCPServer(t, "dnsmasq.leases", func(s *dhcpServer) []*lab.Process {
		return []*lab.Process{s.launch("DHCPv6, IP range", "dnsmasq", "dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0",
			"--pid-file=", "--dhcp-authoritative", "--dhcp-leasefile="+filepath.Join(s.dir, "dnsmasq.leases"), "--interface=eth0", "--bind-interfaces",
			"--dhcp-range=fd77::1100,fd77::11ff,64,1h")}
	})
	createService(t, webService("leased", "::", lab.Annotated("kube-vip.io/loadbalancerHostname", "six")))
	createService(t, localService("here", "fd77::1051"))
	addPod(t, "six-2", "n2")
	if got := awaitOwner(t, "here"); got != "n2" {
		t.Errorf("the VIP of a Local Service is on %s, want n2", got)
	}
	_, client := cluster.Addrs("cl")
	until(t, 10*time.Second, "the pod sees the client's address", func(ctx context.Context) error {
		body, err := cluster.Get(ctx, "cl", "http://[fd77::1051]/")
		if want := fmt.Sprintf("six-2 n2 %s", client); err == nil && firstLine(body) != want {
			err = fmt.Errorf("the page says %q, want %q", body, want)
		}
		return err
	})
	vip := awaitAddresses(t, "leased", 1, 15*time.Second)[0]
	awaitReachable(t, "http://["+vip+"]/")
	if got := server.leases(); got[vip] != "six" {
		t.Errorf("leases %v, want %s for six", got, vip)
	}
	check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), "leased", metav1.DeleteOptions{}))
	server.awaitNoLeases(5 * time.Second)
}

// BGP over IPv6, and routes in table 198, in a cluster without IPv4: of a Service, and of the control plane's VIP from each node
// whose API server is ready.
func TestIPv6OnlyRoutes(t *testing.T) {
	needIPv6Only(t)
	frr, _ := startRouters(t)
	servers := startReadyServers(t)
	const service, apiServers = "fd79::1050", "fd79::1040"
	f := start(t, bgpEnv("bgp_peers", "[fd77::1]:65001", "cp_enable", "true", "address", apiServers, "vip_routingtable", "true",
		"control_plane_health_check_address", "http://[::1]:6444/readyz"))
	createService(t, webService("a", service))
	for _, vip := range []string{service, apiServers} {
		awaitHops(t, frr, vip, 3, 15*time.Second)
	}
	table := check.Value(cluster.Run(t.Context(), "n1", "ip", "-6", "route", "show", "table", "198"))(t)
	for _, vip := range []string{service, apiServers} {
		if !strings.Contains(table, vip+" dev eth0 proto 248") {
			t.Errorf("n1 has no route to %s in table 198:\n%s", vip, table)
		}
	}
	awaitStatus(t, "a", service+"(VIP)", 5*time.Second)
	awaitProxies(t, service)
	awaitReachable(t, httpURL(service, "80"))
	awaitReachable(t, httpURL(apiServers, "6444"))

	servers["n1"].Close()
	awaitHops(t, frr, apiServers, 2, 10*time.Second)
	awaitHops(t, frr, service, 3, time.Second)
	c := connect(t, "["+service+"]:80")
	f.node["n2"].Signal(syscall.SIGTERM)
	awaitHops(t, frr, apiServers, 1, 10*time.Second)
	awaitHops(t, frr, service, 2, 5*time.Second)
	check.OK(t, f.node["n2"].Wait(withTimeout(t, 15*time.Second)))
	r := c.Stop()
	t.Logf("%s", r)
	expectOneChange(t, r)
	if left := check.Value(cluster.Run(t.Context(), "n2", "ip", "-6", "route", "show", "table", "198"))(t); left != "" {
		t.Errorf("left on n2: %s", left)
	}
}

// The VIP of the control plane by neighbor discovery in a cluster without IPv4: it leaves the node whose API server dies.
func TestIPv6OnlyControlPlane(t *testing.T) {
	needIPv6Only(t)
	servers := startReadyServers(t)
	const vip = "fd77::1090"
	settings := distributionEnv(t, "k3s", vip)
	settings["control_plane_health_check_address"] = "http://[::1]:6444/readyz"
	start(t, settings)
	awaitReachable(t, httpURL(vip, "6444"))
	w := whoHas(t, 20*time.Millisecond, vip)
	owner := awaitAnswer(t, w, vip, 5*time.Second)
	servers[owner].Close()
	began := time.Now()
	until(t, 10*time.Second, "another node answers for it", func(context.Context) error {
		if now := w.Owner(netip.MustParseAddr(vip)); now == owner || now == "" {
			return errors.New(now)
		}
		return nil
	})
	t.Logf("moved %v after the API server died", time.Since(began).Round(time.Millisecond))
	awaitReachable(t, httpURL(vip, "6444"))
}
