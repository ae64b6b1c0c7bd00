package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// startAPIServer runs an API server on a node until the test ends.
func startAPIServer(t *testing.T, node string) *lab.Process {
	t.Helper()
	p := check.Value(cluster.StartAPIServer(node))(t)
	t.Cleanup(p.Kill)
	return p
}

// dialAPIServers makes n connections to a VIP of the control plane, each with one request, and returns how many each API server has
// got, as "n1 10, n2 10". It fails on the first error.
func dialAPIServers(ctx context.Context, to string, n int) (string, []*lab.APIConn, error) {
	var all []*lab.APIConn
	counts := map[string]int{}
	for range n {
		c, err := cluster.DialAPI(ctx, to)
		if err == nil {
			all = append(all, c)
			counts[c.Server]++
			err = c.Ask()
		}
		if err != nil {
			return "", all, err
		}
	}
	var text []string
	for _, node := range cluster.Nodes() {
		if counts[node] > 0 {
			text = append(text, fmt.Sprint(node, " ", counts[node]))
		}
	}
	return strings.Join(text, ", "), all, nil
}

// closeAll closes connections.
func closeAll(all []*lab.APIConn) {
	for _, c := range all {
		c.Close()
	}
}

// askAll makes a request on each connection, and fails the test if one gets no answer.
func askAll(t *testing.T, after string, all []*lab.APIConn) {
	t.Helper()
	for _, c := range all {
		if err := c.Ask(); err != nil {
			t.Errorf("after %s a connection to the API server on %s is broken: %v", after, c.Server, err)
		}
	}
	t.Logf("after %s %d connections live on", after, len(all))
}

// Two API servers share what comes by the VIP of the control plane (lb_enable, masquerade), then a third, too; one is killed, and the owner
// of the VIP is drained. No connection to an API server that lives is cut by any of that. Other ports than the API server's are the owner's, such
// as that by which nodes of RKE2 join.
func TestAPIServersBalanced(t *testing.T) {
	vips := bothFamilies("10.77.0.90")
	servers := map[string]*lab.Process{"n1": startAPIServer(t, "n1"), "n2": startAPIServer(t, "n2")}
	for _, n := range cluster.Nodes() {
		startServer(t, n, 9345)
	}
	f := start(t, map[string]string{
		"cp_enable": "true", "vip_arp": "true", "address": strings.Join(vips, ","), "cp_namespace": "kube-system",
		"lb_enable": "true", "lb_fwdmethod": "masquerade",
	})
	var living []*lab.APIConn
	t.Cleanup(func() { closeAll(living) })
	// spread waits until n new connections to each VIP are spread evenly over the API servers of nodes, and adds them to living.
	spread := func(when string, n int, nodes ...string) {
		t.Helper()
		slices.Sort(nodes)
		var share []string
		for _, node := range nodes {
			share = append(share, fmt.Sprint(node, " ", n/len(nodes)))
		}
		want, began := strings.Join(share, ", "), time.Now()
		for _, vip := range vips {
			until(t, time.Minute, when+" connections to "+vip+" are spread evenly", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				got, all, err := dialAPIServers(ctx, net.JoinHostPort(vip, "6443"), n)
				if err != nil || got != want {
					closeAll(all)
					return errors.Join(err, fmt.Errorf("they are: %s; want %s", got, want))
				}
				living = append(living, all...)
				return nil
			})
		}
		t.Logf("%s, after %v: %s", when, time.Since(began).Round(time.Millisecond), want)
	}
	spread("at first", 6, "n1", "n2")
	servers["n3"] = startAPIServer(t, "n3")
	t.Cleanup(f.stop) // before that server, by which its Herald gives back what it has
	spread("with one more", 12, "n1", "n2", "n3")
	askAll(t, "that", living)
	owner := ownerOfControlPlane(t)
	for _, vip := range vips {
		body, err := cluster.Get(t.Context(), "cl", httpURL(vip, "9345"))
		if err != nil || !strings.HasPrefix(body, "web-"+owner+" ") {
			t.Errorf("port 9345 of %s: %q, %v, want the owner's, %s", vip, body, err, owner)
		}
	}

	dead, left := otherNodes(owner)[0], otherNodes(owner)[1]
	servers[dead].Kill()
	living = slices.DeleteFunc(living, func(c *lab.APIConn) bool { return c.Server == dead })
	spread("with the API server on "+dead+" killed", 6, owner, left)
	askAll(t, "that", living)

	runHerald(t, "drain", owner)
	defer runHerald(t, "undrain", owner)
	until(t, 10*time.Second, "the VIP is on "+left, func(context.Context) error {
		if now := ownerOfControlPlane(t); now != left {
			return fmt.Errorf("it is on %s", now)
		}
		return nil
	})
	spread("with "+owner+", which had the VIP, drained", 6, left)
	askAll(t, "that", living)
}

// TestOwnAPIServerHangs: the API server of the node that has a VIP hangs (SIGSTOP). The node renews its lease by another
// one, and keeps the VIP.
func TestOwnAPIServerHangs(t *testing.T) {
	servers := map[string]*lab.Process{}
	for _, n := range cluster.Nodes() {
		servers[n] = startAPIServer(t, n)
	}
	options := env()
	options["cp_enable"], options["address"], options["cp_namespace"] = "true", "10.77.0.90", "kube-system"
	f := start(t, options)
	t.Cleanup(f.stop)
	s := observe(t, "a", "10.77.0.50")
	f.awaitLog(s.owner, "this node's own API server is ready", 2*time.Minute)
	renewals := map[string]bool{} // the first may be slow beside three API servers that start: then a node waits for the next for longer, too
	until(t, 20*time.Second, "it renews its node lease four times more", func(ctx context.Context) error {
		at, err := cluster.Kubectl(ctx, "-n", "kube-system", "get", "lease", "herald-node-"+s.owner, "-o", "jsonpath={.spec.renewTime}")
		if renewals[at] = true; len(renewals) < 5 {
			return errors.Join(err, fmt.Errorf("it was seen to do so %d times", len(renewals)-1))
		}
		return nil
	})
	check.OK(t, servers[s.owner].Signal(syscall.SIGSTOP))
	f.awaitLog(s.owner, "this node's own API server is not ready", 20*time.Second)
	time.Sleep(10 * time.Second) // it would have yielded after 6 s, and be fenced after 15
	awaitOwnedBy(t, "a", s.owner)
	s.expectAnswered(400*time.Millisecond, 0)
	for _, m := range movesOf(t, "a") {
		if m.From == s.owner {
			t.Errorf("it has moved: %+v", m)
		}
	}
}

// ownerOfControlPlane returns the owner of the control plane's VIP.
func ownerOfControlPlane(t *testing.T) string {
	t.Helper()
	return check.Value(cluster.Owner(t.Context(), "kube-system", "plndr-cp-lock"))(t)
}
