package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// All nodes have the exclusion label, as control-plane nodes do. The Node of one is deleted while its Herald lives on:
// it gets no VIP, and the others keep theirs. When its power fails all VIPs are answered.
func TestNodeDeletedLabelled(t *testing.T) {
	f := start(t, env())
	const label, gone = "node.kubernetes.io/exclude-from-external-load-balancers", "n3"
	for _, n := range cluster.Nodes() {
		out, err := cluster.Kubectl(t.Context(), "label", "node", n, label+"=")
		if err != nil {
			t.Fatal(err, out)
		}
		t.Cleanup(func() { cluster.Kubectl(context.Background(), "label", "node", n, label+"-") })
	}
	addrs := []string{"10.77.0.50", "10.77.0.51", "10.77.0.52", "10.77.0.53", "10.77.0.54", "10.77.0.55"}
	before := map[string]string{}
	for i, a := range addrs {
		name := fmt.Sprintf("v%d", i)
		createService(t, webService(name, a))
		before[name] = awaitOwner(t, name)
	}
	awaitDetectable(t)
	w := whoHas(t, 20*time.Millisecond, addrs...)
	for _, a := range addrs {
		awaitAnswer(t, w, a, 10*time.Second)
	}
	deleteNode(t, gone)
	for i := range addrs {
		name := fmt.Sprintf("v%d", i)
		until(t, 20*time.Second, name+" is on a node that has a Node", func(context.Context) error {
			if got := awaitOwner(t, name); got == gone || before[name] != gone && got != before[name] {
				return fmt.Errorf("it was on %s and is on %s", before[name], got)
			}
			return nil
		})
	}
	time.Sleep(2 * time.Second) // the time in which a mistake would show
	t.Cleanup(func() { cluster.Reconnect(gone); cluster.ConnectAPI(gone) })
	check.OK(t, errors.Join(cluster.Cut(gone), cluster.CutAPI(gone)))
	f.killed = true
	f.node[gone].Signal(syscall.SIGKILL)
	time.Sleep(3 * time.Second)
	for i := range addrs {
		name := fmt.Sprintf("v%d", i)
		if got := awaitOwner(t, name); got == gone || before[name] != gone && got != before[name] {
			t.Errorf("%s was on %s and is on %s", name, before[name], got)
		}
	}
	report := w.Stop()
	t.Logf("%s", report)
	if i := slices.IndexFunc(report.Addrs, func(r lab.AddrReport) bool { return r.LongestSilence > 100*time.Millisecond }); i >= 0 {
		t.Errorf("%s: unanswered for %v", report.Addrs[i].Addr, report.Addrs[i].LongestSilence)
	}
}
