package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// With BFD, passwords and the default hold time of 30 s: FRR drops a node that was cut off within about a second, and the node knows by the same time that it has no
// router left; both come back. Routers that are cut off are noticed by every node.
func TestBFD(t *testing.T) {
	withBFD := strings.ReplaceAll(frrConf, "timers 1 3\n", "timers 10 30\n neighbor nodes bfd\n neighbor nodes password s3cret\n")
	birdBFD := strings.ReplaceAll(birdConf, " local as 65002;", " bfd on;\n password \"s3cret\";\n error wait time 1, 2;\n local as 65002;") + "protocol bfd { interface \"*\" { interval 300 ms; multiplier 3; }; }\n"
	frr, _ := startRoutersWith(t, withBFD, birdBFD)
	start(t, bgpEnv("bgp_peers", "10.77.0.1:65001:s3cret:false:::true;300;300;3,10.77.0.101:65002:s3cret:false:::true", "bgp_hold_time", "30"))
	createService(t, webService("a", "10.79.0.50"))
	awaitHops(t, frr, "10.79.0.50", 3, 15*time.Second)
	sessions := func(node, router string, want int, within time.Duration) {
		t.Helper()
		until(t, within, fmt.Sprintf("%s has %d sessions with %s", node, want, router), func(ctx context.Context) error {
			text, err := cluster.Get(ctx, node, "http://127.0.0.1:2112/metrics")
			for _, name := range []string{"herald_bgp_session_up", "herald_bfd_session_up"} {
				if line := fmt.Sprintf("%s{as=\"%s\",peer=\"%s\"} %d\n", name, map[string]string{"10.77.0.1": "65001", "10.77.0.101": "65002"}[router], router, want); err == nil && !strings.Contains(text, line) {
					err = errors.New("no " + line)
				}
			}
			return err
		})
	}
	all := func(want int, within time.Duration) {
		t.Helper()
		for _, n := range cluster.Nodes() {
			sessions(n, "10.77.0.1", want, within)
			sessions(n, "10.77.0.101", want, within)
		}
	}
	all(1, 20*time.Second)
	// Both sides begin with one packet a second (RFC 5880, section 6.8.3); only what they agree on next is fast.
	until(t, 10*time.Second, "FRR hears every 300 ms from all nodes", func(ctx context.Context) error {
		out, err := frr.Vtysh(ctx, "show bfd peers json")
		if err == nil && strings.Count(strings.ReplaceAll(out, " ", ""), `"remote-transmit-interval":300`) != 3 {
			err = errors.New(out)
		}
		return err
	})

	check.OK(t, cluster.Cut("n3"))
	defer cluster.Reconnect("n3")
	cut := time.Now()
	awaitHops(t, frr, "10.79.0.50", 2, 10*time.Second) // the hold time is 30 s
	router := time.Since(cut)
	sessions("n3", "10.77.0.1", 0, 10*time.Second)
	sessions("n3", "10.77.0.101", 0, 10*time.Second)
	node := time.Since(cut)
	t.Logf("a node was cut off: withdrawn after %v, known to the node after %v", router.Round(time.Millisecond), node.Round(time.Millisecond))
	check.OK(t, cluster.Reconnect("n3"))
	awaitHops(t, frr, "10.79.0.50", 3, 30*time.Second)
	all(1, 20*time.Second)

	check.OK(t, cluster.Cut("pr"))
	defer cluster.Reconnect("pr")
	cut = time.Now()
	for _, n := range []string{"n1", "n2"} { // n3's session may be too young to be fast
		sessions(n, "10.77.0.101", 0, 10*time.Second)
	}
	took := time.Since(cut)
	sessions("n3", "10.77.0.101", 0, 10*time.Second)
	t.Logf("a router was cut off: known to nodes after %v, to all after %v", took.Round(time.Millisecond), time.Since(cut).Round(time.Millisecond))
	if out, err := cluster.Get(t.Context(), "n1", "http://127.0.0.1:2112/debug/plan"); err != nil || !strings.Contains(out, "BFD: nothing was heard of the neighbor for 900ms") {
		t.Errorf("%v: /debug/plan does not say why", err)
	}
	check.OK(t, cluster.Reconnect("pr"))
}
