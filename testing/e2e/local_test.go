package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// Every test here has a Service name of its own: the lab has no garbage collector, and the EndpointSlices of a Service outlive it.

// addPod adds a pod for the test.
func addPod(t *testing.T, name, node string) lab.Pod {
	t.Helper()
	p := lab.Pod{Name: name, Node: node, Labels: map[string]string{"app": "local"}}
	check.OK(t, cluster.AddPod(t.Context(), p))
	t.Cleanup(func() { cluster.RemovePod(context.Background(), p) })
	return p
}

func localService(name, vip string) *corev1.Service {
	return lab.Service("default", name, lab.Selecting("local"), lab.WithVIPs(netip.MustParseAddr(vip)), lab.Local)
}

// externalTrafficPolicy Local: the VIP is where a pod is, it follows the pod, and the pod sees the client's address.
func TestLocal(t *testing.T) {
	start(t, env())
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50")
	createService(t, localService("follow", "10.77.0.50"))
	awaitEvent(t, "follow", "NoEndpoints", "")
	awaitStatus(t, "follow", "10.77.0.50(VIP)", 5*time.Second)
	addr := netip.MustParseAddr("10.77.0.50")
	if got := w.Owner(addr); got != "" {
		t.Errorf("%s answers although there is no endpoint", got)
	}
	p := addPod(t, "local-1", "n2")
	check.Value(w.AwaitAnswer(withTimeout(t, 3*time.Second), addr, "n2"))(t)
	client, _ := cluster.Addrs("cl")
	until(t, 10*time.Second, "the pod sees the client's address", func(ctx ctx) error {
		body, err := cluster.Get(ctx, "cl", "http://10.77.0.50/")
		if want := fmt.Sprintf("local-1 n2 %s", client); err == nil && firstLine(body) != want {
			err = fmt.Errorf("the page says %q, want %q", body, want)
		}
		return err
	})
	// A pod on a worker without Herald makes no node eligible.
	cluster.RemovePod(t.Context(), p)
	awaitSilence(t, w, "10.77.0.50", 3*time.Second)
	addPod(t, "local-w", "w1")
	awaitEvent(t, "follow", "NoEligibleNode", "externalTrafficPolicy Local")
	awaitStatus(t, "follow", "10.77.0.50(VIP)", time.Second)
	if host := getService(t, "follow").Annotations["kube-vip.io/vipHost"]; host != "" {
		t.Errorf("kube-vip.io/vipHost is %q while nobody announces it", host)
	}
	addPod(t, "local-3", "n3")
	check.Value(w.AwaitAnswer(withTimeout(t, 3*time.Second), addr, "n3"))(t)
}

// A rolling update of the pods from n1 to n2 to n3: the VIP follows, and no connection fails (but see withoutRuleRace).
func TestLocalRollingUpdate(t *testing.T) {
	start(t, env())
	old := addPod(t, "local-0", "n1")
	createService(t, localService("rolling", "10.77.0.50"))
	if got := awaitOwner(t, "rolling"); got != "n1" {
		t.Fatalf("on %s, want n1", got)
	}
	until(t, 10*time.Second, "the client reaches the pod", func(ctx ctx) error {
		_, err := cluster.Get(ctx, "cl", "http://10.77.0.50/")
		return err
	})
	w, c := whoHas(t, 20*time.Millisecond, "10.77.0.50"), connect(t, "10.77.0.50:80")
	for i, node := range []string{"n2", "n3", "n1"} {
		next := addPod(t, fmt.Sprint("local-", i+1), node)
		// The old pod goes as a Deployment lets it go: it is deleted once the new one is
		// ready, and serves on while it terminates.
		check.OK(t, cluster.DeletePod(t.Context(), old, 3*time.Second))
		until(t, 5*time.Second, fmt.Sprintf("step %d: the status names %s", i, node), func(context.Context) error { // a little after the table
			if got := awaitOwner(t, "rolling"); got != node {
				return fmt.Errorf("on %s", got)
			}
			return nil
		})
		old = next
	}
	r, rc := w.Stop(), c.Stop()
	t.Logf("%s\n%s", r, rc)
	withoutRuleRace(&rc)
	expectConnectionsSurvive(t, rc, 3)
	client, _ := cluster.Addrs("cl")
	if len(rc.Clients) != 1 || rc.Clients[client] == 0 {
		t.Errorf("pods saw %v, want the client %s alone", rc.Clients, client)
	}
	if r.Addrs[0].LongestSilence > 100*time.Millisecond {
		t.Errorf("unanswered for %v", r.Addrs[0].LongestSilence)
	}
}

// withoutRuleRace takes one refused connection out of r. kube-proxy rewrites the rules of a Service when its endpoints change. A packet that the
// kernel is comparing with the old ones at that moment finds the elements of their map inactive (nft_mapelem_deactivate in
// net/netfilter/nf_tables_api.c), so it is not translated, and the node, which has the VIP, refuses it: 9 of 420,000 connections while such a rule
// was replaced 925 times, without Herald.
func withoutRuleRace(r *lab.ConnectReport) {
	i := slices.IndexFunc(r.Failures, func(a lab.Attempt) bool { return errors.Is(a.Err, syscall.ECONNREFUSED) })
	if i >= 0 {
		r.Failures = slices.Delete(r.Failures, i, i+1)
	}
}

// If only endpoints are left that serve while they terminate, they count.
func TestLocalTerminatingOnly(t *testing.T) {
	start(t, env())
	p := addPod(t, "local-1", "n2")
	createService(t, localService("ending", "10.77.0.50"))
	if got := awaitOwner(t, "ending"); got != "n2" {
		t.Fatalf("on %s, want n2", got)
	}
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50")
	awaitAnswer(t, w, "10.77.0.50", time.Second)
	deleted := time.Now()
	check.OK(t, cluster.DeletePod(t.Context(), p, 2*time.Second))
	awaitSilence(t, w, "10.77.0.50", time.Second)
	r := w.Stop().Addrs[0]
	for _, s := range r.Timeline {
		if len(s.Hosts) == 0 && s.From.Before(deleted.Add(1800*time.Millisecond)) && s.To.Sub(s.From) > 100*time.Millisecond {
			t.Errorf("withdrawn %v after the delete, while the pod still served for 2 s", s.From.Sub(deleted))
		}
	}
	awaitEvent(t, "ending", "NoEndpoints", "")
}

// Several EndpointSlices of a Service are one set; a slice that goes is gone.
func TestSlices(t *testing.T) {
	start(t, env())
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50")
	addr := netip.MustParseAddr("10.77.0.50")
	createService(t, lab.Service("default", "slices", lab.WithVIPs(addr), lab.Local, func(s *corev1.Service) { s.Spec.Selector = nil }))
	slice := func(name, node, ip string, ready bool) {
		t.Helper()
		port, tcp := int32(80), corev1.ProtocolTCP
		s := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/service-name": "slices"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
			Ports:       []discoveryv1.EndpointPort{{Port: &port, Protocol: &tcp}},
		}
		check.Value(cluster.Client().DiscoveryV1().EndpointSlices("default").Create(t.Context(), s, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			cluster.Client().DiscoveryV1().EndpointSlices("default").Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	}
	slice("slices-1", "n1", "10.240.1.200", true)
	check.Value(w.AwaitAnswer(withTimeout(t, 4*time.Second), addr, "n1"))(t)
	slice("slices-2", "n3", "10.240.3.200", true)
	slice("slices-3", "n2", "10.240.2.200", false)
	time.Sleep(300 * time.Millisecond) // more endpoints move nothing
	if got := awaitAnswer(t, w, "10.77.0.50", 2*time.Second); got != "n1" {
		t.Errorf("on %s, want n1 still", got)
	}
	cluster.Client().DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "slices-1", metav1.DeleteOptions{})
	check.Value(w.AwaitAnswer(withTimeout(t, 4*time.Second), addr, "n3"))(t)
	cluster.Client().DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "slices-2", metav1.DeleteOptions{})
	awaitSilence(t, w, "10.77.0.50", 2*time.Second) // n2's endpoint is not ready
}
