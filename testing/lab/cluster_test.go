package lab

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/heraldvip/herald/testing/check"
)

// createService creates it until the end of the test. It is served without a status: by its
// externalIPs.
func createService(t *testing.T, l *Lab, s *corev1.Service, addrs ...netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, a.String())
	}
	services := l.Client().CoreV1().Services(s.Namespace)
	check.Value(services.Create(withTimeout(t), s, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		if err := services.Delete(context.WithoutCancel(t.Context()), s.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func addPod(t *testing.T, l *Lab, p Pod) {
	t.Helper()
	check.OK(t, l.AddPod(withTimeout(t), p))
	t.Cleanup(func() {
		if err := l.RemovePod(context.WithoutCancel(t.Context()), p); err != nil {
			t.Error(err)
		}
	})
}

// awaitSlices waits until the service's EndpointSlices say, of each address:
// ready, serving, terminating ("10.240.31.2 rs-").
func awaitSlices(t *testing.T, l *Lab, service string, want ...string) {
	t.Helper()
	ctx := withTimeout(t)
	slicesOf := l.Client().DiscoveryV1().EndpointSlices("default")
	opts := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}
	watch := check.Value(slicesOf.Watch(ctx, opts))(t)
	defer watch.Stop()
	for {
		var got []string
		for _, s := range check.Value(slicesOf.List(ctx, opts))(t).Items {
			for _, e := range s.Endpoints {
				got = append(got, e.Addresses[0]+" "+flag(e.Conditions.Ready, "r")+flag(e.Conditions.Serving, "s")+flag(e.Conditions.Terminating, "t"))
			}
		}
		if slices.Sort(got); slices.Equal(got, want) {
			return
		}
		select {
		case <-watch.ResultChan():
		case <-ctx.Done():
			t.Fatalf("endpoints of %s: %q, want %q", service, got, want)
		}
	}
}

func flag(b *bool, letter string) string {
	if b != nil && *b {
		return letter
	}
	return "-"
}

// awaitAnswer waits until a connection from cl to the address succeeds, and returns pod, node
// and client as the pod's answer has them.
func awaitAnswer(t *testing.T, l *Lab, addr netip.Addr) string {
	t.Helper()
	ctx, to := withTimeout(t), netip.AddrPortFrom(addr, 80).String()
	var conn net.Conn
	check.Until(t, 10*time.Second, "kube-proxy has its rules for "+to, func() (err error) {
		conn, err = l.DialFrom("cl")(ctx, "tcp", to)
		return err
	})
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0) // as Connect does
	return strings.TrimSpace(check.Value(httpGet(conn, to, "/"))(t))
}

func TestPods(t *testing.T) {
	l := sharedLab(t)
	v4, v6 := netip.MustParseAddr("10.77.0.61"), netip.MustParseAddr("fd77::1061")
	bindAddress(t, l, "n1", v4)
	bindAddress(t, l, "n1", v6)
	a := Pod{Name: "a", Node: "n1", Labels: map[string]string{"app": "pods"}}
	b := Pod{Name: "b", Node: "w1", Labels: a.Labels, NotReady: true}
	bridge := func() string {
		return check.Value(l.Run(withTimeout(t), "n1", "sh", "-c", "ip -br link show cni0 | awk '{print $3}'"))(t)
	}
	before := bridge()
	addPod(t, l, a)
	addPod(t, l, b)
	if now := bridge(); now != before {
		t.Errorf("the bridge of pods had the MAC address %s, and with one more pod has %s", before, now)
	}
	createService(t, l, Service("default", "pods", WithVIPs(v4, v6), Local), v4, v6)
	awaitSlices(t, l, "pods", "10.240.1.2 rs-", "10.240.31.2 ---", "fd77:240:1::2 rs-", "fd77:240:31::2 ---")
	if got := awaitAnswer(t, l, v4); got != "a n1 10.77.0.100" {
		t.Errorf("over IPv4 with externalTrafficPolicy Local: %q, want the client's own address", got)
	}
	if got := awaitAnswer(t, l, v6); got != "a n1 fd77::100" {
		t.Errorf("over IPv6 with externalTrafficPolicy Local: %q, want the client's own address", got)
	}
	check.OK(t, l.SetReady(withTimeout(t), b, true))
	awaitSlices(t, l, "pods", "10.240.1.2 rs-", "10.240.31.2 rs-", "fd77:240:1::2 rs-", "fd77:240:31::2 rs-")
	check.OK(t, l.SetReady(withTimeout(t), b, false))
	awaitSlices(t, l, "pods", "10.240.1.2 rs-", "10.240.31.2 ---", "fd77:240:1::2 rs-", "fd77:240:31::2 ---")

	if err := l.AddPod(withTimeout(t), a); err == nil || !strings.Contains(err.Error(), "pod default/a is there already") {
		t.Errorf("the same pod again: got error %v", err)
	}
	if err := l.AddPod(withTimeout(t), Pod{Name: "c", Node: "n9"}); err == nil || !strings.Contains(err.Error(), `no node "n9"`) {
		t.Errorf("a pod on no node: got error %v", err)
	}
	if err := l.AddPod(withTimeout(t), Pod{Namespace: "nowhere", Name: "c", Node: "w1"}); err == nil {
		t.Error("a pod in no namespace: want an error")
	}
	for _, r := range check.Value(NamespaceProcesses())(t) {
		if strings.HasPrefix(r.Namespace, "p-nowhere") {
			t.Errorf("the pod that could not be added left %v", r)
		}
	}
}

func TestDeletePod(t *testing.T) {
	l := sharedLab(t)
	vip := netip.MustParseAddr("10.77.0.62")
	bindAddress(t, l, "n1", vip)
	p := Pod{Name: "leaving", Node: "w1", Labels: map[string]string{"app": "leaving"}}
	addPod(t, l, p)
	createService(t, l, Service("default", "leaving"), vip)
	awaitAnswer(t, l, vip)
	c := check.Value(l.Connect(t.Context(), 10*time.Millisecond, vip.String()+":80"))(t)
	began, deleted := time.Now(), make(chan error)
	go func() { deleted <- l.DeletePod(t.Context(), p, 1500*time.Millisecond) }()
	awaitSlices(t, l, "leaving", "10.240.31.2 -st")
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d < 2*time.Second || d > 4*time.Second {
		t.Errorf("deleted after %v, want the grace, in whole seconds", d)
	}
	r := c.Stop()
	for _, f := range r.Failures {
		if d := f.Began.Sub(began); d < 1900*time.Millisecond {
			t.Errorf("%v after the deletion, within the grace: %v", d, f.Err)
		}
	}
	awaitSlices(t, l, "leaving")
	if out, err := l.Kubectl(withTimeout(t), "get", "pods", "-o", "name"); err != nil || strings.Contains(out, "leaving") {
		t.Errorf("pods: %s, error %v", out, err)
	}
	if err := l.RemovePod(withTimeout(t), p); err != nil {
		t.Errorf("remove what is not there: %v", err)
	}
	if err := l.DeletePod(withTimeout(t), p, time.Second); err == nil {
		t.Error("delete gracefully what is not there: want an error")
	}
	// Its address is free again.
	addPod(t, l, Pod{Name: "next", Node: "w1", Labels: p.Labels})
	awaitSlices(t, l, "leaving", "10.240.31.2 rs-")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	addPod(t, l, Pod{Name: "hasty", Node: "w1"})
	if err := l.DeletePod(ctx, Pod{Name: "hasty"}, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a deletion that is broken off: got error %v", err)
	}
}

// The lab itself must be quiet: what is counted beside Herald's requests is little and known.
func TestAPIRequests(t *testing.T) {
	l := sharedLab(t)
	before := check.Value(l.APIRequests(withTimeout(t)))(t)
	if before["POST nodes"] != 4 {
		t.Errorf("%v nodes were created, want 4 counted", before["POST nodes"])
	}
	clients := check.Value(kubernetes.NewForConfig(l.Config()))(t)
	check.Value(clients.CoreV1().ConfigMaps("default").List(withTimeout(t), metav1.ListOptions{}))(t)
	const span = 5 * time.Second
	time.Sleep(span) // the length of the measurement
	got := Since(check.Value(l.APIRequests(withTimeout(t)))(t), before)
	t.Logf("in %v: %v", span, got)
	if got["LIST configmaps"] != 1 {
		t.Errorf("got %v lists of configmaps, want 1", got["LIST configmaps"])
	}
	sum := 0.0
	for _, n := range got {
		sum += n
	}
	if sum > 10 {
		t.Errorf("%v requests in %v of an idle cluster: %v", sum, span, got)
	}
}
