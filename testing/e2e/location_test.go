package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
)

// awaitVIPLeases waits until there are as many VIP leases as that, all in one namespace.
func awaitVIPLeases(t *testing.T, namespace string, count int) {
	t.Helper()
	until(t, 30*time.Second, fmt.Sprintf("%d VIP leases, all in %s", count, namespace), func(ctx context.Context) error {
		list, err := cluster.Client().CoordinationV1().Leases("").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=herald"})
		if err != nil {
			return err
		}
		var all []string
		for _, l := range list.Items {
			if l.Annotations["heraldvip.io/claim"] != "" {
				all = append(all, l.Namespace+"/"+l.Name)
			}
		}
		if len(all) != count || slices.ContainsFunc(all, func(l string) bool { return !strings.HasPrefix(l, namespace+"/") }) {
			return fmt.Errorf("they are %q", all)
		}
		return nil
	})
}

// restart has a node's Herald stop in good order and begin again, with the options of the moment.
func (f *heralds) restart(node string) {
	f.t.Helper()
	check.OK(f.t, f.node[node].Signal(syscall.SIGTERM))
	check.OK(f.t, f.node[node].Wait(withTimeout(f.t, 30*time.Second)))
	f.startOn(node)
	f.awaitReady(node)
	awaitDetectable(f.t)
}

// TestLeasesMove: the nodes are restarted one after the other with svc_leasenamespace=announcers, and later without it. The VIP leases move and move
// back. Meanwhile no VIP is unanswered, or answered by two nodes for longer than a hand-over takes. Between the two Herald loses the right
// to write Leases elsewhere, and gets on without it: VIPs are handed over, and a new Service gets its own.
func TestLeasesMove(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	createService(t, webService("b", "10.77.0.51"))
	createService(t, webService("c", "10.77.0.52"))
	awaitOwner(t, "b")
	awaitOwner(t, "c")
	awaitVIPLeases(t, "default", 3)
	others := whoHas(t, 20*time.Millisecond, "10.77.0.51", "10.77.0.52")
	f.env = env("svc_leasenamespace", "announcers")
	for _, n := range cluster.Nodes() {
		f.restart(n)
	}
	awaitVIPLeases(t, "kube-system", 3)
	limitRights(t)
	f.restart(awaitOwner(t, "a"))
	createService(t, webService("d", "10.77.0.53"))
	awaitOwner(t, "d")
	if out := runHerald(t, "status", "-o", "json"); !json.Valid([]byte(out)) || strings.Contains(out, "LeaseRefused") {
		t.Errorf("herald status:\n%s", out)
	}
	check.OK(t, cluster.Apply(t.Context(), rbacManifest(t, servicesRBAC)))
	f.env = env()
	for _, n := range cluster.Nodes() {
		f.restart(n)
	}
	awaitVIPLeases(t, "default", 4)
	time.Sleep(time.Second) // the repeated announcements are part of it
	a, c := s.report()
	report := others.Stop()
	t.Log(report)
	for _, w := range append(report.Addrs, a) {
		if w.LongestSilence > 100*time.Millisecond || w.LongestDouble > handOver {
			t.Errorf("%s: unanswered for %v, want at most 100 ms; answered by two for %v, want at most %v", w.Addr, w.LongestSilence, w.LongestDouble, handOver)
		}
	}
	expectConnectionsSurvive(t, c, 2*len(cluster.Nodes())+1)
	for _, n := range cluster.Nodes() {
		if log := f.node[n].Log(); strings.Contains(log, "refuses to have a VIP lease written") {
			t.Errorf("%s:\n%s", n, tail(log, 20))
		}
	}
}
