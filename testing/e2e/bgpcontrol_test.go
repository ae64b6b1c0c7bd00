package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startReadyServer serves what stands in for a node's own API server: any page, with the node's name.
// It has port 6444, since on 6443 Herald would expect an API server.
func startReadyServer(t *testing.T, node string) *http.Server {
	t.Helper()
	var l net.Listener
	err := cluster.InNamespace(node, func() (err error) {
		l, err = net.Listen("tcp", ":6444")
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

// The VIP of the control plane by BGP alone: its owner is the one next hop, and it goes
// when the owner's API server dies, or its Herald is stopped.
func TestBGPControlPlane(t *testing.T) {
	frr, _ := startRouters(t)
	servers := map[string]*http.Server{}
	for _, n := range cluster.Nodes() {
		servers[n] = startReadyServer(t, n)
	}
	const vip = "10.79.0.40"
	f := start(t, bgpEnv("svc_enable", "false", "cp_enable", "true", "address", vip,
		"control_plane_health_check_address", "http://127.0.0.1:6444/readyz"))
	holder := func() string {
		t.Helper()
		l, err := cluster.Client().CoordinationV1().Leases("kube-system").Get(t.Context(), "plndr-cp-lock", metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil {
			t.Fatalf("lease %v: %v", l, err)
		}
		return *l.Spec.HolderIdentity
	}
	for _, step := range []struct {
		name string
		do   func(owner string)
		most time.Duration // without an answer
	}{
		{"its API server dies", func(owner string) { servers[owner].Close() }, 3500 * time.Millisecond}, // three questions, and a hand-over
		{"its Herald is stopped", func(owner string) { f.node[owner].Signal(syscall.SIGTERM) }, 100 * time.Millisecond},
	} {
		awaitHops(t, frr, vip, 1, 10*time.Second)
		awaitReachable(t, "http://"+vip+":6444/")
		was := holder()
		c := connect(t, vip+":6444")
		step.do(was)
		time.Sleep(5 * time.Second)
		r := c.Stop()
		now := holder()
		t.Logf("%s: from %s to %s; %s", step.name, was, now, r)
		if now == was {
			t.Errorf("%s: it is still on %s", step.name, was)
		}
		if r.Outage > step.most {
			t.Errorf("%s: away for %v, want %v at most", step.name, r.Outage, step.most)
		}
		awaitHops(t, frr, vip, 1, time.Second)
	}
}
