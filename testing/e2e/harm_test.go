package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// renewForeignLease creates the Lease of a Service in the name of another program, and renews it until the test ends.
func renewForeignLease(t *testing.T, service, program string) {
	t.Helper()
	leases := cluster.Client().CoordinationV1().Leases("default")
	l := check.Value(leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kubevip-" + service},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &program, LeaseDurationSeconds: new(int32(5)), RenewTime: new(metav1.NowMicro())}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { leases.Delete(context.Background(), l.Name, metav1.DeleteOptions{}) })
	go func() {
		for range time.Tick(time.Second) {
			l.Spec.RenewTime = new(metav1.NowMicro())
			next, err := leases.Update(t.Context(), l, metav1.UpdateOptions{})
			if err != nil {
				return // the test has ended
			}
			l = next
		}
	}()
}

// TestWhoHarmsWhom: many do harm at once, or try to: an operator who reads herald status finds each of them by name, what it does to
// whom, and what to do about it.
func TestWhoHarmsWhom(t *testing.T) {
	options := env("vip_leaseduration", "5", "vip_renewdeadline", "3", "vip_retryperiod", "1")
	start(t, options)
	greedy := fmt.Sprintf("greedy-%d", time.Now().Unix()) // a namespace is deleted for a while
	createTenant(t, greedy)
	for i, name := range []string{"good", "claimed"} {
		createService(t, webService(name, fmt.Sprintf("10.77.0.%d", 50+i)))
		awaitOwner(t, name)
	}
	mac := cluster.MAC("rt")
	asks := func(name string, vips ...string) {
		var addrs []netip.Addr
		for _, a := range vips {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		createService(t, lab.Service(greedy, name, lab.WithVIPs(addrs...), lab.Annotated("kube-vip.io/allow-reconcile-without-endpoints", "true")))
	}
	asks("theirs", "10.77.0.50", "10.77.0.51") // of other namespaces
	for i := range 30 {
		forgeClaim(t, greedy, fmt.Sprintf("kubevip-ghost-%d", i), "n1", 7)
		forgeClaim(t, greedy, fmt.Sprintf("herald-node-ghost-%d", i), fmt.Sprintf("ghost-%d", i), 7)
	}
	// Another program's address on a node, and another host's on the link.
	runOn(t, "n2", "ip", "addr", "add", "10.77.0.80/32", "dev", "eth0")
	runOn(t, "rt", "ip", "addr", "add", "10.77.0.81/32", "dev", "eth0")
	runOn(t, "rt", "ip", "addr", "add", "10.77.0.51/32", "dev", "eth0")
	t.Cleanup(func() {
		cluster.Run(context.Background(), "n2", "ip", "addr", "del", "10.77.0.80/32", "dev", "eth0")
		cluster.Run(context.Background(), "rt", "ip", "addr", "del", "10.77.0.81/32", "dev", "eth0")
		cluster.Run(context.Background(), "rt", "ip", "addr", "del", "10.77.0.51/32", "dev", "eth0")
	})
	createService(t, webService("nodes", "10.77.0.80"))
	createService(t, webService("hosts", "10.77.0.81"))
	announceByARP(t, "rt", "10.77.0.51")
	renewForeignLease(t, "foreign", "kube-vip-7")
	createService(t, webService("foreign", "10.77.0.82"))
	began, second := time.Now().Add(-time.Second), startSecond(t, "w1", options)
	check.OK(t, second.WaitLog(withTimeout(t, 15*time.Second), "another Herald has the name of this node"))
	awaitNodeEvent(t, "n1", "NodeNameInUse", began)

	want := []string{
		`(?m)^default/good +10\.77\.0\.50 +n\d `,
		`(?m)^greedy/theirs .*\[default/good has 10\.77\.0\.50, default/claimed has 10\.77\.0\.51\]`,
		`(?m)^AddressConflict +greedy/theirs +.*svc_addresses=pools`,
		`(?m)^default/claimed .*VIPForeignMAC.*MAC ` + mac,
		`(?m)^VIPForeignMAC +default/claimed +find the host with that MAC`,
		`(?m)^default/nodes .*another program has given to node n2`,
		`(?m)^AddressRefused +default/nodes +`,
		`(?m)^default/hosts .*AddressInUse.*MAC ` + mac,
		`(?m)^AddressInUse +default/hosts +find the host with that MAC`,
		`(?m)^default/foreign .*lease default/kubevip-foreign .*kube-vip-7`,
		`(?m)^HeldByOtherAnnouncer +default/foreign +stop the other announcer`,
	}
	until(t, 20*time.Second, "herald status tells who harms whom", func(context.Context) error {
		out := runHerald(t, "status")
		for _, w := range want {
			if w = strings.ReplaceAll(w, "greedy", greedy); !regexp.MustCompile(w).MatchString(out) {
				return fmt.Errorf("no %s in\n%s", w, out)
			}
		}
		if strings.Contains(out, "\n"+greedy+"/ghost") {
			return fmt.Errorf("forged node leases are shown as nodes:\n%s", out)
		}
		return nil
	})
	t.Logf("\n%s", runHerald(t, "status"))
	expectWords(t, runHerald(t, "explain", greedy+"/theirs"), "AddressConflict", "default/good has 10.77.0.50", "What to do: ")
	for _, s := range []string{"good", "claimed"} {
		if got := externalIPs(getService(t, s)); got == "" {
			t.Errorf("%s has lost its VIP", s)
		}
	}
}
