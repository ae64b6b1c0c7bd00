package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// setPools makes the ConfigMap of pools say this, until the test has ended.
func setPools(t *testing.T, data map[string]string) {
	t.Helper()
	maps := cluster.Client().CoreV1().ConfigMaps("kube-system")
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kubevip"}, Data: data}
	if _, err := maps.Create(t.Context(), c, metav1.CreateOptions{}); err == nil {
		t.Cleanup(func() { maps.Delete(context.Background(), "kubevip", metav1.DeleteOptions{}) })
		return
	}
	check.Value(maps.Update(t.Context(), c, metav1.UpdateOptions{}))(t)
}

// poolsHolder is the node that gives addresses.
func poolsHolder(t *testing.T) (node string) {
	t.Helper()
	until(t, 5*time.Second, "a node gives addresses", func(c ctx) (err error) {
		node, err = cluster.Owner(c, "kube-system", "herald-pools")
		return err
	})
	return node
}

// A Service without an address is given one of the ConfigMap that kube-vip's cloud provider reads;
// no restart, failure or edit changes what it has.
func TestPools(t *testing.T) {
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.62", "pool-web": "10.77.0.70-10.77.0.79", "pool-web.auto": "false"})
	f := start(t, env())
	w := whoHas(t, 20*time.Millisecond, "10.77.0.60")
	began := time.Now()
	createService(t, webService("a", ""))
	awaitStatus(t, "a", "10.77.0.60(VIP)", 3*time.Second)
	t.Logf("shown after %v", time.Since(began).Round(time.Millisecond))
	awaitAnswer(t, w, "10.77.0.60", time.Second)
	if got := getService(t, "a").Annotations; got["kube-vip.io/loadbalancerIPs"] != "10.77.0.60" || got["heraldvip.io/allocated"] != "range-global" {
		t.Errorf("annotations %v", got)
	}
	createService(t, webService("b", "", lab.Annotated("heraldvip.io/pool", "web")))
	awaitStatus(t, "b", "10.77.0.70(VIP)", 3*time.Second)
	awaitEvent(t, "b", "AddressAllocated", "10.77.0.70 is of pool web")
	createService(t, webService("pinned", "10.77.0.61")) // in use, as a person set it
	createService(t, webService("c", ""))
	awaitStatus(t, "c", "10.77.0.62(VIP)", 3*time.Second)
	createService(t, webService("d", ""))
	awaitEvent(t, "d", "NoPoolAddress", "has no free IPv4 address (range-global)")
	awaitCondition(t, "d", "Allocated", "False NoPoolAddress it waits for an address")
	awaitCondition(t, "a", "Allocated", "True AddressAllocated 10.77.0.60: of pool range-global")
	if out, err := cluster.Kubectl(t.Context(), "wait", "--for=condition=heraldvip.io/Announced", "--timeout=10s", "service/a"); err != nil {
		t.Error(err, out)
	}
	awaitCondition(t, "a", "Announced", "True VIPAnnounced node "+awaitOwner(t, "a"))
	awaitCondition(t, "pinned", "Allocated", "True AddressSet 10.77.0.61: named by kube-vip.io/loadbalancerIPs")

	// The node that gives addresses dies: another one goes on.
	f.killed = true
	holder := poolsHolder(t)
	check.OK(t, f.node[holder].Signal(syscall.SIGKILL))
	setPools(t, map[string]string{"range-global": "10.77.0.90-10.77.0.91", "cidr-global": "nonsense"})
	f.startAgain(holder)
	awaitEventIn(t, "kube-system", "kubevip", "PoolProblem", `cidr-global: "nonsense" is neither`)
	setPools(t, map[string]string{"range-global": "10.77.0.90-10.77.0.91"})
	awaitStatus(t, "d", "10.77.0.90(VIP)", 20*time.Second)
	for name, want := range map[string]string{"a": "10.77.0.60(VIP)", "b": "10.77.0.70(VIP)", "c": "10.77.0.62(VIP)", "pinned": "10.77.0.61(VIP)"} {
		awaitStatus(t, name, want, 5*time.Second)
	}

	// What no pool offers any more stays until its operator has it renumbered.
	awaitEvent(t, "a", "AddressOutsidePools", "10.77.0.60: given of pool range-global, and no pool offers it any more")
	if out := runHerald(t, "pools"); !strings.Contains(out, "Herald, of range-global, which has it no more") {
		t.Error(out)
	}
	patchService(t, "a", `{"metadata":{"annotations":{"heraldvip.io/renumber":"true"}}}`)
	patchService(t, "pinned", `{"metadata":{"annotations":{"heraldvip.io/renumber":"true"}}}`)
	awaitStatus(t, "a", "10.77.0.91(VIP)", 5*time.Second)
	awaitStatus(t, "pinned", "10.77.0.61(VIP)", time.Second)
	patchService(t, "a", `{"spec":{"selector":{"app":"none"}}}`)
	awaitCondition(t, "a", "Announced", "False NoEndpoints none of its endpoints is ready")
	patchService(t, "a", `{"spec":{"type":"ClusterIP"}}`)
	until(t, 5*time.Second, "its conditions are gone", func(context.Context) error {
		if c := getService(t, "a").Status.Conditions; len(c) > 0 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	burstWithoutAddresses(t)
}

// Many Services without an address at once are each given one of their own, announced and shown. "go run ./testing/bench -burst" measures how soon.
func burstWithoutAddresses(t *testing.T) {
	const n = 60
	setPools(t, map[string]string{"range-global": "10.77.0.90-10.77.0.91", "pool-burst": "10.88.0.0/24", "pool-burst.priority": "1"})
	var created errgroup.Group
	for i := range n {
		created.Go(func() error {
			_, err := cluster.Client().CoreV1().Services("default").Create(t.Context(), webService(fmt.Sprint("burst-", i), ""), metav1.CreateOptions{})
			return err
		})
	}
	check.OK(t, created.Wait())
	last := time.Now()
	until(t, 30*time.Second, "all of them are announced", func(c ctx) error {
		list, err := cluster.Client().CoreV1().Services("default").List(c, metav1.ListOptions{})
		if err != nil {
			return err
		}
		of := make(map[string]string)
		for _, s := range list.Items {
			if strings.HasPrefix(s.Name, "burst-") && meta.IsStatusConditionTrue(s.Status.Conditions, "heraldvip.io/Announced") {
				if other := of[externalIPs(&s)]; other != "" {
					t.Errorf("%s and %s have %s", other, s.Name, externalIPs(&s))
				}
				of[externalIPs(&s)] = s.Name
			}
		}
		if len(of) != n {
			return fmt.Errorf("%d of %d are", len(of), n)
		}
		return nil
	})
	t.Logf("%d Services are announced %v after the last was created", n, time.Since(last).Round(time.Millisecond))
}

// awaitCondition waits until a condition of Herald's has this status and reason, and a message that begins like this.
func awaitCondition(t *testing.T, name, condition, want string) {
	t.Helper()
	until(t, 10*time.Second, "Service "+name+": "+condition+" is "+want, func(context.Context) error {
		all := getService(t, name).Status.Conditions
		if c := meta.FindStatusCondition(all, "heraldvip.io/"+condition); c == nil || !strings.HasPrefix(fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message), want) || c.LastTransitionTime.IsZero() {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
}

// A Service that Herald serves, with pools, bears the finalizer of load balancers as long as anything of it is left:
// it goes when the Service is of another type, or deleted, after its VIP.
func TestFinalizer(t *testing.T) {
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.62"})
	f := start(t, env())
	awaitFinalizer := func(want bool) {
		t.Helper()
		until(t, 5*time.Second, fmt.Sprintf("finalizer: %v", want), func(context.Context) error {
			if f := getService(t, "a").Finalizers; slices.Contains(f, finalizer) != want {
				return fmt.Errorf("finalizers %v", f)
			}
			return nil
		})
	}
	createService(t, webService("a", ""))
	awaitStatus(t, "a", "10.77.0.60(VIP)", 5*time.Second)
	awaitFinalizer(true)
	patchService(t, "a", `{"spec":{"type":"ClusterIP"}}`)
	awaitFinalizer(false)
	awaitStatus(t, "a", "", time.Second)
	patchService(t, "a", `{"spec":{"type":"LoadBalancer"}}`)
	awaitFinalizer(true)
	w := whoHas(t, 5*time.Millisecond, "10.77.0.60")
	awaitAnswer(t, w, "10.77.0.60", 5*time.Second)
	check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	until(t, 5*time.Second, "the Service is gone", func(c ctx) error {
		_, err := cluster.Client().CoreV1().Services("default").Get(c, "a", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
	for _, n := range cluster.Nodes() {
		if left := vips(t, n); len(left) > 0 {
			t.Errorf("the Service is gone, and %s has %v", n, left)
		}
	}
	createService(t, webService("a", "")) // its cluster IP was released, too
	awaitFinalizer(true)
	for _, n := range cluster.Nodes() {
		check.OK(t, f.node[n].Signal(syscall.SIGTERM))
	}
	for _, n := range cluster.Nodes() {
		check.OK(t, f.node[n].Wait(withTimeout(t, 30*time.Second)))
	}
	awaitFinalizer(false) // nobody would take it off
}

// While kube-vip's cloud provider renews its lease, its ConfigMap is its to serve.
func TestPoolsOfTheCloudProvider(t *testing.T) {
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.62"})
	cluster.Apply(t.Context(), providerLease(time.Now()))
	t.Cleanup(func() {
		cluster.Client().CoordinationV1().Leases("kube-system").Delete(context.Background(), "kube-vip-cloud-controller", metav1.DeleteOptions{})
	})
	renews, scaledToZero := context.WithCancel(t.Context())
	defer scaledToZero()
	go func() {
		for mailbox.Sleep(renews, time.Second) {
			cluster.Apply(renews, providerLease(time.Now()))
		}
	}()
	start(t, env())
	createService(t, webService("a", ""))
	awaitEvent(t, "a", "NoAddress", "kube-vip's cloud provider (provider-1), which renews the lease kube-system/kube-vip-cloud-controller, is to give it one")
	scaledToZero()
	awaitStatus(t, "a", "10.77.0.60(VIP)", 30*time.Second)
}

// providerLease is the lease of kube-vip's cloud provider, with its default durations.
func providerLease(at time.Time) string {
	return `
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: kube-vip-cloud-controller
  namespace: kube-system
spec:
  holderIdentity: provider-1
  leaseDurationSeconds: 5
  renewTime: ` + at.UTC().Format("2006-01-02T15:04:05.000000Z") + "\n"
}

// Once a pool names namespaces, a Service may ask for no address but those that pools offer to its own; what it has it keeps through edits
// of the pools and a restart of all Heralds. One is given another address if another host has the one that it was given.
func TestPoolsOfNamespaces(t *testing.T) {
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.62"})
	f := start(t, env())
	createService(t, webService("had", "10.77.0.71"))
	awaitStatus(t, "had", "10.77.0.71(VIP)", 5*time.Second)
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.62", "pool-edge": "10.77.0.70-10.77.0.79", "pool-edge.namespaces": "team-a"})
	runOn(t, "rt", "ip", "addr", "add", "10.77.0.60/32", "dev", "eth0")
	t.Cleanup(func() { cluster.Run(context.Background(), "rt", "ip", "addr", "del", "10.77.0.60/32", "dev", "eth0") })
	createService(t, webService("pooled", ""))
	awaitStatus(t, "pooled", "10.77.0.61(VIP)", 5*time.Second)
	awaitEvent(t, "pooled", "AddressAllocated", "10.77.0.60 is in use by another host; 10.77.0.61 is of pool range-global")
	createService(t, webService("other", "10.77.0.66"))
	awaitStatus(t, "other", "10.77.0.66(VIP)", 5*time.Second) // of no pool, which only svc_addresses=pools refuses
	createService(t, webService("edge", "10.77.0.70"))
	awaitEvent(t, "edge", "AddressRefused", "10.77.0.70 is of a pool that is not offered to the namespace default")
	for _, n := range cluster.Nodes() {
		check.OK(t, f.node[n].Signal(syscall.SIGTERM))
	}
	for _, n := range cluster.Nodes() {
		check.OK(t, f.node[n].Wait(t.Context()))
		f.startOn(n)
	}
	w := whoHas(t, 20*time.Millisecond, "10.77.0.71")
	awaitAnswer(t, w, "10.77.0.71", 10*time.Second)
	awaitStatus(t, "had", "10.77.0.71(VIP)", 5*time.Second)
}

// The VIPs of a pool are on the nodes that it selects, on the one that it prefers, and follow its label; on the link
// that it names, here a VLAN (802.1Q) that the operator has made; and announced as it says.
func TestPoolsOfNodes(t *testing.T) {
	frr, _ := startRouters(t)
	vlanLink := addVLANLinks(t)
	label := func(node, value string) {
		patch := `{"metadata":{"labels":{"pool-test":` + value + `}}}`
		if _, err := cluster.Client().CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	first, second := cluster.Nodes()[0], cluster.Nodes()[1]
	for _, n := range []string{first, second} {
		t.Cleanup(func() { label(n, "null") })
	}
	label(first, `"x"`)
	label(second, `"y"`)
	setPools(t, map[string]string{
		"pool-edge": "10.77.0.70-10.77.0.79", "pool-edge.nodes": "pool-test in (x,y)", "pool-edge.prefer": "100 pool-test=x", "pool-edge.announce": "arp",
		"pool-vlan": "10.79.0.60-10.79.0.69", "pool-vlan.interface": vlanLink, "pool-vlan.announce": "arp", "pool-vlan.auto": "false",
		"pool-routed": "10.80.0.60-10.80.0.69", "pool-routed.announce": "bgp", "pool-routed.auto": "false",
	})
	start(t, bgpEnv("svc_election", "true", "vip_arp", "true"))
	awaitHost := func(name, node string) {
		until(t, 10*time.Second, node+" announces "+name, func(context.Context) error {
			if host := getService(t, name).Annotations["kube-vip.io/vipHost"]; host != node {
				return fmt.Errorf("it is %q", host)
			}
			return nil
		})
	}
	for _, name := range []string{"a", "b", "c"} {
		createService(t, webService(name, ""))
	}
	createService(t, webService("vlan", "", lab.Annotated("heraldvip.io/pool", "vlan")))
	createService(t, webService("routed", "", lab.Annotated("heraldvip.io/pool", "routed")))
	for _, name := range []string{"a", "b", "c"} {
		awaitHost(name, first)
	}
	label(first, "null")
	for _, name := range []string{"a", "b", "c"} {
		awaitHost(name, second)
	}
	if r, err := frr.Hops(withTimeout(t, 5*time.Second), "10.77.0.70"); err != nil || len(r) > 0 {
		t.Errorf("the router knows 10.77.0.70, which is announced by ARP alone: %v %v", r, err)
	}

	awaitStatus(t, "vlan", "10.79.0.60(VIP)", 5*time.Second)
	owner := awaitOwner(t, "vlan")
	if out := check.Value(cluster.Run(t.Context(), owner, "ip", "-o", "addr", "show", "dev", vlanLink))(t); !strings.Contains(out, "10.79.0.60/") {
		t.Errorf("%s has on %s:\n%s", owner, vlanLink, out)
	}
	awaitReachable(t, "http://10.79.0.60/") // by the client's link to the VLAN

	awaitStatus(t, "routed", "10.80.0.60(VIP)", 10*time.Second)
	awaitHops(t, frr, "10.80.0.60", 1, 10*time.Second)
	for _, n := range cluster.Nodes() {
		if have := vips(t, n); slices.Contains(have, netip.MustParseAddr("10.80.0.60")) {
			t.Errorf("%s has %v on its link", n, have)
		}
	}
}

// addVLANLinks gives the nodes and the client, 10.77.0.N, a link with the address 10.79.0.N/24 until the test ends, and
// returns its name: eth0.79, VLAN 79 of eth0, or where the kernel can't do 802.1Q, a port of a second switch.
func addVLANLinks(t *testing.T) (link string) {
	t.Helper()
	link = "eth0.79"
	hosts := append([]string{"cl"}, cluster.Nodes()...)
	if out, err := cluster.Run(t.Context(), "cl", "ip", "link", "add", "link", "eth0", "name", link, "type", "vlan", "id", "79"); err != nil {
		t.Logf("no VLAN, but a second switch: %s", out)
		undo := check.Value(cluster.AddVLAN(hosts...))(t)
		t.Cleanup(func() { check.OK(t, undo()) })
		return lab.VLANLink
	}
	for i, host := range hosts {
		v4, _ := cluster.Addrs(host)
		octets := v4.As4()
		octets[1] = 79
		t.Cleanup(func() { cluster.Run(context.Background(), host, "ip", "link", "del", link) })
		if i > 0 {
			runOn(t, host, "ip", "link", "add", "link", "eth0", "name", link, "type", "vlan", "id", "79")
		}
		runOn(t, host, "ip", "addr", "add", netip.PrefixFrom(netip.AddrFrom4(octets), 24).String(), "dev", link)
		runOn(t, host, "ip", "link", "set", link, "up")
	}
	return link
}
