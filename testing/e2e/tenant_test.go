package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// A tenant who asks for the VIPs of other namespaces, by a new Service or by one that is older than theirs, gets an Event
// that names nobody, and changes nothing for them. herald status tells the operator who asks for whose address.
//
// An address that a node has for another program, and the gateway's, are refused too.
func TestOtherTenant(t *testing.T) {
	start(t, env())
	createTenant(t, "tenant-addresses")
	runOn(t, "n2", "ip", "addr", "add", "10.77.0.80/32", "dev", "eth0")
	t.Cleanup(func() { cluster.Run(context.Background(), "n2", "ip", "addr", "del", "10.77.0.80/32", "dev", "eth0") })
	asking := func(name, addrs string) *corev1.Service {
		var list []netip.Addr
		for a := range strings.SplitSeq(addrs, ",") {
			list = append(list, netip.MustParseAddr(a))
		}
		s := lab.Service("tenant-addresses", name, lab.WithVIPs(list...), lab.Annotated("kube-vip.io/allow-reconcile-without-endpoints", "true"))
		s.Spec.Ports[0].Port = 9
		return s
	}
	createService(t, asking("old", "10.77.0.70"))
	createService(t, asking("kept", "10.77.0.71"))
	time.Sleep(1100 * time.Millisecond) // creationTimestamp has whole seconds
	var addrs []string
	owners := map[string]string{}
	for i := range 6 {
		addrs = append(addrs, fmt.Sprintf("10.77.0.%d", 50+i))
		createService(t, webService(fmt.Sprintf("v%d", i), addrs[i]))
	}
	for i := range 6 {
		owners[addrs[i]] = awaitOwner(t, fmt.Sprintf("v%d", i))
	}
	awaitReachable(t, "http://10.77.0.50/")
	all := strings.Join(addrs, ",")
	w, c := whoHas(t, 20*time.Millisecond, addrs...), connect(t, "10.77.0.50:80")
	for _, a := range addrs {
		awaitAnswer(t, w, a, 10*time.Second)
	}

	s := asking("new", all)
	s.Annotations["kube-vip.io/serviceInterface"] = "nope"
	createService(t, s)
	awaitEventIn(t, "tenant-addresses", "new", "AddressConflict", "10.77.0.50, 10.77.0.51, 10.77.0.52, 10.77.0.53, 10.77.0.54, 10.77.0.55: in use by a Service of another namespace")
	check.Value(cluster.Client().CoreV1().Services("tenant-addresses").Patch(t.Context(), "old", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":"`+all+`"}}}`), metav1.PatchOptions{}))(t)
	awaitEventIn(t, "tenant-addresses", "old", "AddressConflict", "10.77.0.55: in use by a Service of another namespace")
	// Its status goes on to name the address: whoever got that could lose it to this Service again.
	leaveStatus(t, "tenant-addresses", "kept")
	createService(t, webService("later", "10.77.0.71"))
	awaitEvent(t, "later", "AddressConflict", "10.77.0.71: in use by a Service of another namespace")
	createService(t, webService("other", "10.77.0.80,10.77.0.255"))
	awaitEvent(t, "other", "AddressRefused", "10.77.0.80 is an address that another program has given to node n2; 10.77.0.255 is the broadcast address of node")
	time.Sleep(2 * time.Second) // the time in which a mistake would show

	awaitStatusOutput(t, `tenant-addresses/new .*AddressConflict: .*default/v3 has 10\.77\.0\.53`, 10*time.Second)
	events := check.Value(cluster.Client().CoreV1().Events("tenant-addresses").List(t.Context(), metav1.ListOptions{}))(t)
	for _, e := range events.Items {
		if strings.Contains(e.Message, "default/") {
			t.Errorf("the tenant is told whose the addresses are: %s", e.Message)
		}
	}
	report := w.Stop()
	t.Logf("%s\n%s", report, c.Stop())
	for _, r := range report.Addrs {
		if r.LongestSilence > 100*time.Millisecond {
			t.Errorf("%s: unanswered for %v", r.Addr, r.LongestSilence)
		}
	}
	for i, a := range addrs {
		if got := awaitOwner(t, fmt.Sprintf("v%d", i)); got != owners[a] {
			t.Errorf("%s moved from %s to %s", a, owners[a], got)
		}
	}
}

// leaveStatus has a Service that is announced ask for nothing that can be read, and removes what says that Herald wrote its
// status, so that it stays.
func leaveStatus(t *testing.T, namespace, name string) {
	t.Helper()
	services := cluster.Client().CoreV1().Services(namespace)
	until(t, 10*time.Second, name+" has a status", func(c ctx) error {
		s, err := services.Get(c, name, metav1.GetOptions{})
		if err == nil && len(s.Status.LoadBalancer.Ingress) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	check.Value(services.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{
		"kube-vip.io/loadbalancerIPs":"nothing","kube-vip.io/vipHost":null,"heraldvip.io/announcer":null}}}`), metav1.PatchOptions{}))(t)
}

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
