package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// stopProxy kills a node's kube-proxy, with or without its rules, until startProxy or the end of the test.
func stopProxy(t *testing.T, node string, removeRules bool) {
	t.Helper()
	cluster.KillProxy(node)
	t.Cleanup(func() { startProxy(t, node) })
	if removeRules {
		check.OK(t, cluster.RemoveProxyRules(t.Context(), node))
	}
}

// startProxy starts a node's kube-proxy, unless it runs.
func startProxy(t *testing.T, node string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	check.OK(t, cluster.StartProxy(ctx, node))
}

// What the owner's kube-proxy does: it is restarted, and nothing moves; it is gone with its
// rules, and another node gets the VIP; it is gone everywhere, and nothing moves.
func TestKubeProxyDies(t *testing.T) {
	start(t, env())
	s := observe(t, "a", "10.77.0.50")

	// Restarted, as an upgrade does: its rules stay meanwhile.
	stopProxy(t, s.owner, false)
	time.Sleep(8 * time.Second)
	startProxy(t, s.owner)
	w, c := s.report()
	if !w.Stayed(100 * time.Millisecond) {
		t.Errorf("unanswered for %v, by %d hosts in turn", w.LongestSilence, len(w.Timeline))
	}
	expectConnectionsSurvive(t, c, 0)

	// Gone with its rules.
	s.who, s.conn = whoHas(t, 20*time.Millisecond, "10.77.0.50"), connect(t, "10.77.0.50:80")
	awaitAnswer(t, s.who, "10.77.0.50", 5*time.Second)
	stopProxy(t, s.owner, true)
	gone := time.Now()
	to := s.awaitMove(20 * time.Second)
	awaitReachable(t, "http://10.77.0.50/")
	t.Logf("%s has it %v after the rules of %s went", to, time.Since(gone).Round(time.Millisecond), s.owner)
	w, c = s.report()
	if w.LongestSilence > 100*time.Millisecond {
		t.Errorf("unanswered for %v in a hand-over", w.LongestSilence)
	}
	if c.Outage > 15*time.Second {
		t.Errorf("no connection was made for %v", c.Outage)
	}

	// Gone everywhere, last on the owner: nobody is better.
	for _, n := range slices.DeleteFunc(otherNodes(to), func(n string) bool { return n == s.owner }) {
		stopProxy(t, n, true)
	}
	stopProxy(t, to, true)
	who := whoHas(t, 20*time.Millisecond, "10.77.0.50")
	last := awaitAnswer(t, who, "10.77.0.50", 5*time.Second)
	time.Sleep(12 * time.Second)
	r := who.Stop().Addrs[0]
	if !r.Stayed(100 * time.Millisecond) {
		t.Errorf("no kube-proxy runs: unanswered for %v, first by %s, timeline %v", r.LongestSilence, last, r.Timeline)
	}
}
