package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// A tenant with an annotation as long as the API server takes it, and clients that only connect, harm neither the
// VIP of another tenant nor the answers to kubelet's probes.
func TestManyAddressesAndIdleClients(t *testing.T) {
	f := start(t, env("health_check_port", "2113"))
	held := []string{"10.77.0.60", "10.77.0.61", "10.77.0.62", "10.77.0.63", "10.77.0.64"} // on all nodes, with the next
	for i, vip := range held {
		createService(t, webService(fmt.Sprint("held-", i), vip))
	}
	s := observe(t, "a", "10.77.0.50")
	who := whoHas(t, 20*time.Millisecond, held...)
	for _, vip := range held {
		awaitAnswer(t, who, vip, 10*time.Second)
	}
	t.Run("many addresses in one annotation", manyAddresses)
	t.Run("idle clients", func(t *testing.T) { idleClients(t, s.owner) })
	for _, n := range cluster.Nodes() {
		if !f.node[n].Running() {
			t.Errorf("the Herald on %s has ended", n)
		}
	}
	w, c := s.report()
	for _, a := range append(who.Stop().Addrs, w) {
		// The first was asked for before it was answered.
		from := slices.IndexFunc(a.Timeline, func(s lab.Span) bool { return len(s.Hosts) > 0 })
		for _, span := range a.Timeline[from+1:] {
			if len(span.Hosts) != 1 && span.To.Sub(span.From) > 100*time.Millisecond || len(span.Hosts) == 1 && span.Hosts[0] != a.Timeline[from].Hosts[0] {
				t.Errorf("another tenant's VIP was answered by %v for %v:\n%s", span.Hosts, span.To.Sub(span.From), a)
				break
			}
		}
	}
	expectConnectionsSurvive(t, c, 0)
}

// manyAddresses creates Services with very many addresses each, and after each the Service of another tenant.
func manyAddresses(t *testing.T) {
	for i, n := range []int{2000, 14000} {
		name, next := fmt.Sprint("many-", n), fmt.Sprintf("10.77.0.%d", 51+i)
		createService(t, webService(name, "", lab.Annotated("kube-vip.io/loadbalancerIPs", addressList(n))))
		w := whoHas(t, 20*time.Millisecond, next)
		began := time.Now()
		createService(t, webService(fmt.Sprint("next-", n), next))
		awaitAnswer(t, w, next, 20*time.Second)
		took := time.Since(began)
		if t.Logf("%d addresses: a new Service's VIP is answered after %v", n, took.Round(time.Millisecond)); took > 5*time.Second {
			t.Errorf("%d addresses: a new Service's VIP is answered after %v, want 5 s at most", n, took)
		}
		awaitEvent(t, name, "InvalidField", "16 addresses")
	}
	time.Sleep(5 * time.Second) // an address that nobody renews lasts that long
	for _, node := range cluster.Nodes() {
		if got := len(vips(t, node)); got > 2*16+8 {
			t.Errorf("%s has bound %d addresses", node, got)
		}
	}
}

// addressList is n addresses of a network that nobody has.
func addressList(n int) string {
	var b strings.Builder
	for i, a := 0, netip.MustParseAddr("10.88.0.1"); i < n; i, a = i+1, a.Next() {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(a.String())
	}
	return b.String()
}

// closedByHerald is what a client gets that may not have an answer.
const closedByHerald = "a closed connection"

// idleClients opens many connections to a node's ports from another host, and leaves them idle.
func idleClients(t *testing.T, node string) {
	v4, _ := cluster.Addrs(node)
	connections := 0
	for port, n := range map[string]int{"2112": 600, "2113": 256} {
		dial := cluster.DialFrom("cl")
		for range n {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			c, err := dial(ctx, "tcp", net.JoinHostPort(v4.String(), port))
			cancel()
			if err != nil {
				break // refused: no less harmless
			}
			connections++
			t.Cleanup(func() { c.Close() })
		}
	}
	t.Logf("%d connections were opened", connections)
	for _, url := range []string{"http://127.0.0.1:2113/healthz", "http://127.0.0.1:2112/healthz", "http://" + v4.String() + ":2113/healthz"} {
		began := time.Now()
		if _, err := cluster.Get(withTimeout(t, 10*time.Second), node, url); err != nil {
			t.Errorf("%s on the node, beside idle clients of another: %v", url, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s on the node, beside idle clients of another, answers after %v", url, took)
		}
	}
	for url, want := range map[string]string{
		"http://" + v4.String() + ":2112/metrics":    "herald_claims_held",
		"http://" + v4.String() + ":2112/debug/plan": "403",
		"http://" + v4.String() + ":2113/healthz":    closedByHerald,
		"http://10.77.0.50:2112/metrics":             closedByHerald,
	} {
		body, err := cluster.Get(withTimeout(t, 10*time.Second), "cl", url)
		got := fmt.Sprint(body, " ", err)
		// "broken pipe" if the request is written only after the reset has come.
		closed := want == closedByHerald && err != nil && (strings.Contains(got, "EOF") || strings.Contains(got, "reset") || strings.Contains(got, "broken pipe"))
		if !closed && !strings.Contains(got, want) {
			t.Errorf("%s for another host: %.200q, want %s", url, got, want)
		}
	}
}
