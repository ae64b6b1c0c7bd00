package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// What the clients may see of a migration.
const (
	handOver = 3200 * time.Millisecond // both nodes of a hand-over answer for so long (docs/ownership.md)
	// A VIP whose announcer has ended is taken by another when that one next asks (RetryPeriod),
	// or, where it released nothing, when the lease is over.
	releasedGap = 2500 * time.Millisecond
	expiredGap  = 5*time.Second + releasedGap
)

// TestMigration goes from kube-vip with its cloud provider to Herald node by node, with a pause in which both run,
// kills kube-vip on the last node instead of stopping it, and ends the cloud provider. Every Service keeps its address.
func TestMigration(t *testing.T) {
	kubeconfig := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	self := check.Value(os.Executable())(t)
	f := &heralds{t: t, env: env("vip_leaseduration", "5", "vip_renewdeadline", "3", "vip_retryperiod", "1"), node: map[string]*lab.Process{}}
	t.Cleanup(f.end)
	var pairs []string
	var vips4 []netip.Addr
	given := make(map[string]string)
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.65"})
	for i := range 4 {
		vip := fmt.Sprintf("10.77.0.%d", 60+i)
		name := fmt.Sprintf("m%d", i)
		createService(t, webService(name, ""))
		pairs, vips4, given[name] = append(pairs, name+"="+vip), append(vips4, netip.MustParseAddr(vip)), vip
	}
	provider := startCloudProvider(t, "10.77.0.60", "10.77.0.65")
	for name, vip := range given {
		awaitAddress(t, name, vip)
	}
	old := map[string]*lab.Process{}
	t.Cleanup(func() {
		for n, p := range old {
			if p.Running() {
				p.Kill()
			}
			for _, a := range vips4 {
				cluster.Run(context.Background(), n, "ip", "addr", "del", a.String()+"/32", "dev", "eth0")
			}
		}
		for i := range vips4 {
			cluster.Client().CoordinationV1().Leases("default").Delete(context.Background(), fmt.Sprintf("kubevip-m%d", i), metav1.DeleteOptions{})
		}
	})
	var w *lab.WhoHas
	for i, n := range cluster.Nodes() {
		p := check.Value(cluster.Start(n, "standin-"+n, []string{self}, standInNode+"="+n, standInVIPs+"="+strings.Join(pairs, ","), "KUBECONFIG="+kubeconfig))(t)
		old[n] = p
		if i > 0 {
			continue
		}
		// The node that is replaced first has them all, so that all of them move.
		w = check.Value(cluster.WhoHas(t.Context(), 20*time.Millisecond, vips4...))(t)
		for _, a := range vips4 {
			check.Value(w.AwaitAnswer(withTimeout(t, 20*time.Second), a, n))(t)
		}
	}
	w.Stop() // what was before they came up is not of interest
	w = check.Value(cluster.WhoHas(t.Context(), 20*time.Millisecond, vips4...))(t)
	for i, n := range cluster.Nodes() {
		sig := syscall.SIGTERM
		if i == len(cluster.Nodes())-1 {
			sig = syscall.SIGKILL // nobody releases anything, and its addresses stay
		}
		check.OK(t, old[n].Signal(sig))
		old[n].Wait(withTimeout(t, 10*time.Second))
		f.startOn(n)
		f.awaitReady(n)
		switch i {
		case 0:
			createService(t, webService("meanwhile", ""))
			given["meanwhile"] = "10.77.0.64"
			awaitAddress(t, "meanwhile", "10.77.0.64")
		case len(cluster.Nodes()) - 1:
			continue
		}
		time.Sleep(7 * time.Second) // longer than kube-vip's lease: it takes what Herald does not renew
	}
	for _, a := range vips4 {
		if _, err := w.AwaitAnswer(withTimeout(t, 20*time.Second), a, ""); err != nil {
			t.Error(err)
		}
	}
	report := w.Stop()
	t.Logf("%s", report)
	for _, r := range report.Addrs {
		if r.LongestDouble > handOver {
			t.Errorf("two nodes answered for %s for %v, want %v at most", r.Addr, r.LongestDouble, handOver)
		}
		if r.LongestSilence > expiredGap {
			t.Errorf("nobody answered for %s for %v, want %v at most", r.Addr, r.LongestSilence, expiredGap)
		}
	}
	until(t, 20*time.Second, "Herald owns every VIP", func(ctx context.Context) error {
		for i := range vips4 {
			if _, err := cluster.Owner(ctx, "default", fmt.Sprintf("kubevip-m%d", i)); err != nil {
				return err
			}
		}
		return nil
	})
	takeOverPools(t, provider, given, "10.77.0.65")
}
