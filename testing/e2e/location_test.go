package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/testing/check"
)

// awaitVIPLeases waits until the record says where VIP leases are, and those of the Services of namespace default are there and nowhere else.
func awaitVIPLeases(t *testing.T, location string, services ...string) {
	t.Helper()
	var want []string
	for _, s := range services {
		if location == "announcers" {
			want = append(want, "kube-system/kubevip-"+s+".default")
		} else {
			want = append(want, "default/kubevip-"+s)
		}
	}
	until(t, 20*time.Second, "VIP leases are in "+location, func(ctx context.Context) error {
		list, err := cluster.Client().CoordinationV1().Leases("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var got []string
		record := ""
		for _, l := range list.Items {
			switch {
			case l.Name == lease.RecordName:
				record = l.Annotations[lease.LocationAnnotation]
			case strings.HasPrefix(l.Name, "kubevip-"):
				got = append(got, l.Namespace+"/"+l.Name)
			}
		}
		slices.Sort(got)
		if record != location || !slices.Equal(got, want) {
			return fmt.Errorf("the record says %q; there are %v, want %v", record, got, want)
		}
		return nil
	})
}

// TestLeasesMove: one Herald after another is restarted with the option that has VIP leases in the announcers' namespace, and then
// with the one that has them in the Services' (docs/installation.md, "Moving them"). No VIP is unanswered, no connection fails, nobody answers twice for
// longer than a hand-over takes; and then all VIP leases are where they should be, and nowhere else.
func TestLeasesMove(t *testing.T) {
	f := start(t, env("svc_leasenamespace", "services"))
	addrs, names := []string{"10.77.0.50", "10.77.0.51", "10.77.0.52"}, []string{"a", "b", "c"}
	s := observe(t, names[0], addrs[0])
	for i, a := range addrs[1:] {
		createService(t, webService(names[i+1], a))
	}
	for _, n := range names {
		awaitOwner(t, n)
	}
	w := whoHas(t, 20*time.Millisecond, addrs[1:]...)
	for _, a := range addrs[1:] {
		awaitAnswer(t, w, a, 10*time.Second)
	}
	for _, location := range []string{"announcers", "services"} {
		f.env["svc_leasenamespace"] = location
		for _, n := range cluster.Nodes() {
			f.node[n].Signal(syscall.SIGTERM)
			check.OK(t, f.node[n].Wait(withTimeout(t, 10*time.Second)))
			f.startOn(n)
			f.awaitReady(n)
		}
		awaitVIPLeases(t, location, names...)
	}
	first, c := s.report()
	others := w.Stop()
	t.Logf("%s", others)
	for _, r := range append(others.Addrs, first) {
		if r.LongestSilence > 100*time.Millisecond || r.LongestDouble > 3*time.Second {
			t.Errorf("%s: unanswered for %v, by two for %v", r.Addr, r.LongestSilence, r.LongestDouble)
		}
	}
	expectConnectionsSurvive(t, c, 0)
}
