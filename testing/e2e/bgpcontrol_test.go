package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// startReadyServers is startReadyServer for each node.
func startReadyServers(t *testing.T) map[string]*http.Server {
	servers := make(map[string]*http.Server)
	for _, n := range cluster.Nodes() {
		servers[n] = startReadyServer(t, n)
	}
	return servers
}

// startReadyServer serves what stands in for a node's own API server. It has port 6444, since on 6443 Herald would expect an API server.
func startReadyServer(t *testing.T, node string) *http.Server {
	t.Helper()
	return startServer(t, node, 6444)
}

// startServer serves any page at a port of all addresses of a node, with the node's name.
func startServer(t *testing.T, node string, port int) *http.Server {
	t.Helper()
	var l net.Listener
	err := cluster.InNamespace(node, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		fmt.Fprintln(w, "web-"+node, node, from.Addr().Unmap())
	})}
	s.SetKeepAlivesEnabled(false)
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return s
}

// The VIP of the control plane by BGP alone: each node whose API server is ready is a next hop, and no node announces it on its link.
// A node whose API server dies, or whose Herald is stopped, is withdrawn; of a stopped one no client notices.
func TestBGPControlPlane(t *testing.T) {
	frr, _ := startRouters(t)
	servers := startReadyServers(t)
	const vip = "10.79.0.40"
	f := start(t, bgpEnv("svc_enable", "false", "cp_enable", "true", "address", vip,
		"control_plane_health_check_address", "http://127.0.0.1:6444/readyz"))
	awaitHops(t, frr, vip, 3, 15*time.Second)
	awaitReachable(t, "http://"+vip+":6444/")
	c := connect(t, vip+":6444")
	time.Sleep(time.Second)
	if r := c.Stop(); len(r.Failures) > 0 || len(r.Pods) != 3 {
		t.Errorf("%d connections failed; answered by %v, want three", len(r.Failures), r.Pods)
	}
	servers["n1"].Close()
	awaitHops(t, frr, vip, 2, 10*time.Second)
	c = connect(t, vip+":6444")
	f.node["n2"].Signal(syscall.SIGTERM)
	awaitHops(t, frr, vip, 1, 10*time.Second)
	check.OK(t, f.node["n2"].Wait(withTimeout(t, 15*time.Second)))
	time.Sleep(300 * time.Millisecond)
	r := c.Stop()
	t.Logf("its Herald is stopped: %s", r)
	expectConnectionsSurvive(t, r, 1)
	startReadyServer(t, "n1")
	awaitHops(t, frr, vip, 2, 10*time.Second)
}
