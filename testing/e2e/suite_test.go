package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

var (
	cluster *lab.Lab
	herald  = "../../bin/herald"
)

// TestMain brings one lab up for all tests. Each test starts its own Heralds in it.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv(speakerVIPs) != "" {
		if err := speak(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	if os.Getenv(standInNode) != "" {
		if err := standIn(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	if flag.Parse(); flag.Lookup("test.list").Value.String() != "" {
		return m.Run() // which needs no lab
	}
	herald, _ = filepath.Abs(herald)
	err := lab.Check(lab.Options{})
	if err == nil {
		_, err = os.Stat(herald)
	}
	if err != nil {
		if os.Getenv("HERALD_LAB") == "require" {
			fmt.Fprintln(os.Stderr, "the lab can't come up:", err)
			return 1
		}
		fmt.Println("skipped: the lab can't come up:", err)
		return 0
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	rbac, err := exec.Command(herald, "manifest", "rbac").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "herald manifest rbac:", err)
		return 1
	}
	cluster, err = lab.Up(ctx, lab.Options{Herald: herald, RBAC: string(rbac), Audited: serviceAccount, Wait: 5 * time.Minute, ProxyMode: os.Getenv("HERALD_PROXY_MODE"), IPv6Only: ipv6Only, Log: os.Stdout})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := cluster.Down(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	defer context.AfterFunc(ctx, func() { // Ctrl-C: nothing stays
		cluster.Down()
		os.Exit(1)
	})()
	for _, p := range webPods {
		if err := cluster.AddPod(ctx, p); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// webPods are the endpoints of most Services. They are on the worker, so that no fault of a node is a fault of the backend.
var webPods = []lab.Pod{
	{Name: "web-1", Node: "w1", Labels: map[string]string{"app": "web"}},
	{Name: "web-2", Node: "w1", Labels: map[string]string{"app": "web"}},
}

// heralds is the Heralds of one test.
type heralds struct {
	t    *testing.T
	env  map[string]string
	node map[string]*lab.Process
	past []*lab.Process // that another was started after on their node

	killed bool // one of them never got to tidy up
}

// env is the options of an operator who wants an owner per Service.
func env(more ...string) map[string]string {
	e := map[string]string{"svc_enable": "true", "svc_election": "true", "vip_arp": "true"}
	for i := 0; i < len(more); i += 2 {
		e[more[i]] = more[i+1]
	}
	return e
}

// start runs Herald on all nodes. When the test ends they are stopped, and nothing of them may be left: no address, no lease.
func start(t *testing.T, env map[string]string) *heralds {
	t.Helper()
	f := &heralds{t: t, env: env, node: make(map[string]*lab.Process)}
	t.Cleanup(f.end)
	f.startAll()
	return f
}

func (f *heralds) startOn(node string) {
	f.t.Helper()
	p := check.Value(cluster.StartHerald(node, f.env))(f.t)
	if before := f.node[node]; before != nil {
		f.past = append(f.past, before)
	}
	f.node[node] = p
}

// startAgain starts the Herald of a node, and waits until it is ready.
func (f *heralds) startAgain(node string) {
	f.t.Helper()
	f.startOn(node)
	f.awaitReady(node)
}

// startAll is startAgain for all nodes at once.
func (f *heralds) startAll() {
	f.t.Helper()
	for _, n := range cluster.Nodes() {
		f.startOn(n)
	}
	for _, n := range cluster.Nodes() {
		f.awaitReady(n)
	}
}

// terminate has the Herald of a node stop, as kubelet does, and waits for its end.
func (f *heralds) terminate(node string, within time.Duration) {
	f.t.Helper()
	f.node[node].Signal(syscall.SIGTERM)
	if err := f.node[node].Wait(withTimeout(f.t, within)); err != nil {
		f.t.Errorf("exit of the Herald on %s: %v", node, err)
	}
}

// awaitLog waits until the Herald of a node has logged a text. The test goes on without it.
func (f *heralds) awaitLog(node, text string, within time.Duration) {
	f.t.Helper()
	if err := f.node[node].WaitLog(withTimeout(f.t, within), text); err != nil {
		f.t.Error(err)
	}
}

// awaitReady waits until the node's Herald says that it can carry VIPs.
func (f *heralds) awaitReady(node string) {
	f.t.Helper()
	until(f.t, 30*time.Second, "the Herald on "+node+" is ready", func(ctx context.Context) error {
		_, err := cluster.Get(ctx, node, "http://127.0.0.1:2112/readyz")
		return err
	})
}

// end stops the Heralds, and fails the test if an address or a lease of theirs is left.
func (f *heralds) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer func() {
		if !f.t.Failed() {
			return
		}
		for _, p := range f.past {
			f.t.Logf("--- a Herald before\n%s", tail(p.Log(), 100))
		}
		for _, n := range slices.Sorted(maps.Keys(f.node)) {
			f.t.Logf("--- herald on %s\n%s", n, tail(f.node[n].Log(), 100))
		}
	}()
	list, err := cluster.Client().CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		f.t.Error(err)
		return
	}
	var deleted []string // their VIPs
	for _, s := range list.Items {
		if s.Name != "kubernetes" {
			for _, i := range s.Status.LoadBalancer.Ingress {
				deleted = append(deleted, i.IP)
			}
			cluster.Client().CoreV1().Services(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
		}
	}
	// As long as they run, the Heralds release the VIPs of Services that are deleted.
	for began := time.Now(); !f.killed && time.Since(began) < 5*time.Second; {
		l, err := cluster.Client().CoordinationV1().Leases("kube-system").Get(ctx, lease.TableName, metav1.GetOptions{})
		if err != nil || !strings.Contains(ownedUnits(l, time.Now()), "/kubevip-") {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	removeFinalizers(ctx, f.t, !f.killed)
	stopped := time.Now()
	f.stop()
	for _, n := range cluster.Nodes() {
		if left := vips(f.t, n); len(left) > 0 && !f.killed {
			f.t.Errorf("left on %s: %v", n, left)
		}
	}
	leases, err := cluster.Client().CoordinationV1().Leases("").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=herald"})
	if err != nil {
		f.t.Error(err)
		return
	}
	for _, l := range leases.Items {
		n, _ := lease.ParseNodeLease(&l)
		forTheNext := n.Fenced && n.Info.Isolated // so that the next process of that node knows
		if owned := ownedUnits(&l, stopped); !f.killed && !forTheNext && (l.Name != lease.TableName || owned != "") {
			f.t.Errorf("left: lease %s/%s %s of %s, claim %s", l.Namespace, l.Name, owned, *l.Spec.HolderIdentity, l.Annotations[lease.ClaimAnnotation])
		}
		cluster.Client().CoordinationV1().Leases(l.Namespace).Delete(ctx, l.Name, metav1.DeleteOptions{})
	}
	cluster.Client().CoreV1().Events("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	awaitForgotten(f.t, deleted)
	forgetConnections(f.t)
}

// stop stops those that run, and waits for their end.
func (f *heralds) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, p := range f.node {
		if p.Running() {
			p.Signal(syscall.SIGCONT)
			p.Signal(syscall.SIGTERM)
		}
	}
	for n, p := range f.node {
		if err := p.Wait(ctx); err != nil && !strings.Contains(err.Error(), "signal: killed") {
			lines := 20
			if p.Running() { // where its goroutines are
				lines = 2000
				p.Signal(syscall.SIGQUIT)
				dump, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				p.Wait(dump)
				cancel()
			}
			f.t.Errorf("the Herald on %s: %v\n%s", n, err, tail(p.Log(), lines))
		}
	}
}

// ownedUnits returns the units that a node has by the table l since before a time, with spaces between; "" for another
// Lease. When all stop at once, one may give to another that has ended before it knows: a claim that its release voids.
func ownedUnits(l *coordinationv1.Lease, before time.Time) (units string) {
	for unit, c := range lease.Claims([]*coordinationv1.Lease{l}, l.Namespace, time.Now()) {
		if c.Holder != "" && c.AcquiredAt.Before(before) && l.Name == lease.TableName {
			units += unit.String() + " "
		}
	}
	return units
}

// forgetConnections has the kernels of all nodes forget the connections of a test. Of one whose end a node did not see, as when its VIP had moved
// away, the node remembers for minutes to which pod it went, and would send a connection of a later test there, if that has the same port.
func forgetConnections(t *testing.T) {
	for _, n := range cluster.Nodes() {
		if err := cluster.InNamespace(n, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
			t.Errorf("%s can't forget connections: %v", n, err)
		}
	}
}

// removeFinalizers waits until the Heralds have taken their finalizer off the Services that are deleted. If that is not
// expected of them, or they do not within 10 s, which fails the test, it does.
func removeFinalizers(ctx context.Context, t *testing.T, expected bool) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		list, err := cluster.Client().CoreV1().Services("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		left := slices.DeleteFunc(list.Items, func(s corev1.Service) bool { return len(s.Finalizers) == 0 })
		if len(left) == 0 {
			return
		}
		if expected && time.Since(began) < 10*time.Second {
			continue
		}
		for _, s := range left {
			if expected {
				t.Errorf("Service %s keeps its finalizers %v", s.Name, s.Finalizers)
			}
			cluster.Client().CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		return
	}
}

// awaitForgotten waits until no kube-proxy has rules for the VIPs of Services that are deleted. A test
// that follows may have a Service of the same name and VIP: as long as the old rules hold, the VIP
// seems to be served, and when they go connections are refused until the new ones come.
func awaitForgotten(t *testing.T, deleted []string) {
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		left, behind := "", ""
		for _, n := range cluster.Nodes() {
			rules := proxyRules(t, n)
			for _, vip := range deleted {
				if len(lab.RulesFor(rules, vip)) > 0 {
					left, behind = fmt.Sprintf("kube-proxy on %s still has rules for %s", n, vip), n
				}
			}
		}
		if left == "" {
			return
		}
		if time.Since(began) > 2*time.Minute {
			said, err := cluster.ReplaceProxy(withTimeout(t, time.Minute), behind)
			t.Errorf("%s (%v):\n%s", left, err, said)
			return
		}
	}
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// until is check.Until for a condition that is looked up in the lab, with a context that ends when the time is over.
func until(t *testing.T, within time.Duration, what string, look func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var before error // what a look that was cut short would hide
	check.Until(t, within, what, func() error {
		err := look(ctx)
		if err != nil && ctx.Err() != nil && before != nil {
			return before
		}
		before = err
		return err
	})
}

// withTimeout returns a context that ends after d, and with the test.
func withTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// vips returns the addresses on eth0 of a node that are not its own.
func vips(t *testing.T, node string) []netip.Addr {
	t.Helper()
	out, err := cluster.Run(context.Background(), node, "ip", "-o", "addr", "show", "dev", "eth0")
	if err != nil {
		t.Error(err)
	}
	v4, v6 := cluster.Addrs(node)
	var have []netip.Addr
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		p, err := netip.ParsePrefix(f[3])
		if err != nil || p.Addr() == v4 || p.Addr() == v6 || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		have = append(have, p.Addr())
	}
	return have
}

// createService creates a Service.
func createService(t *testing.T, s *corev1.Service) *corev1.Service {
	t.Helper()
	s = check.Value(cluster.Client().CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{}))(t)
	return s
}

// webService is a Service whose endpoints are the web pods.
func webService(name string, vip string, opts ...func(*corev1.Service)) *corev1.Service {
	var addrs []netip.Addr
	for a := range strings.SplitSeq(vip, ",") {
		if a != "" {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
	}
	o := []func(*corev1.Service){lab.Selecting("web")}
	if len(addrs) > 0 {
		o = append(o, lab.WithVIPs(addrs...))
	}
	return lab.Service("default", name, append(o, opts...)...)
}

func getService(t *testing.T, name string) *corev1.Service {
	t.Helper()
	s := check.Value(cluster.Client().CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{}))(t)
	return s
}

// patchService merges JSON into a Service.
func patchService(t *testing.T, name, json string) {
	t.Helper()
	check.Value(cluster.Client().CoreV1().Services("default").Patch(t.Context(), name, types.MergePatchType, []byte(json), metav1.PatchOptions{}))(t)
}

// patchStatus changes the status of a Service in default: an update would meet what Herald writes meanwhile.
func patchStatus(t *testing.T, name, json string) {
	t.Helper()
	check.Value(cluster.Client().CoreV1().Services("default").Patch(t.Context(), name, types.MergePatchType, []byte(json), metav1.PatchOptions{}, "status"))(t)
}

// whoHas asks for VIPs until the test ends.
func whoHas(t *testing.T, every time.Duration, vip ...string) *lab.WhoHas {
	t.Helper()
	var addrs []netip.Addr
	for _, v := range vip {
		addrs = append(addrs, netip.MustParseAddr(v))
	}
	w := check.Value(cluster.WhoHas(t.Context(), every, addrs...))(t)
	return w
}

// connect opens a connection to a VIP every 10 ms until the test ends. Those under way are awaited before its Services are deleted: requests for a connection
// that arrive at a node without rules for the VIP are in its conntrack for two minutes, as not translated, and connections of later tests by the same port were refused.
func connect(t *testing.T, to string) *lab.Connect {
	t.Helper()
	c := check.Value(cluster.Connect(t.Context(), 10*time.Millisecond, to))(t)
	t.Cleanup(func() { c.Stop() })
	return c
}

// awaitAnswer waits until somebody answers for a VIP and returns who.
func awaitAnswer(t *testing.T, w *lab.WhoHas, vip string, within time.Duration) string {
	t.Helper()
	a, ctx := netip.MustParseAddr(vip), withTimeout(t, within)
	for {
		if _, err := w.AwaitAnswer(ctx, a, ""); err != nil {
			t.Fatalf("nobody answers for %s within %v: %v", vip, within, err)
		}
		if owner := w.Owner(a); owner != "" { // the machine may have stood still since
			return owner
		}
	}
}

func awaitSilence(t *testing.T, w *lab.WhoHas, vip string, within time.Duration) {
	t.Helper()
	if _, err := w.AwaitSilence(withTimeout(t, within), netip.MustParseAddr(vip)); err != nil {
		t.Fatalf("%s is still answered after %v, by %q", vip, within, w.Owner(netip.MustParseAddr(vip)))
	}
}

// externalIPs is the status of a Service as kubectl shows it: EXTERNAL-IP.
func externalIPs(s *corev1.Service) string {
	var b bytes.Buffer
	for i, in := range s.Status.LoadBalancer.Ingress {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(in.IP)
		if in.IPMode != nil {
			fmt.Fprintf(&b, "(%s)", *in.IPMode)
		}
	}
	return b.String()
}

func awaitStatus(t *testing.T, name, want string, within time.Duration) {
	t.Helper()
	until(t, within, "the status of "+name+" is "+want, func(context.Context) error {
		if got := externalIPs(getService(t, name)); got != want {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// awaitEvent waits for an Event on a Service whose message contains the words.
func awaitEvent(t *testing.T, name, reason, words string) {
	t.Helper()
	awaitEventIn(t, "default", name, reason, words)
}

// awaitEventIn is awaitEvent for a Service of any namespace.
func awaitEventIn(t *testing.T, namespace, name, reason, words string) {
	t.Helper()
	until(t, 20*time.Second, "an Event "+reason+" on "+name, func(ctx context.Context) error {
		list, err := cluster.Client().CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var found []string
		for _, e := range list.Items {
			if e.InvolvedObject.Name != name {
				continue
			}
			found = append(found, e.Reason+": "+e.Message)
			if e.Reason == reason && strings.Contains(e.Message, words) {
				return nil
			}
		}
		return fmt.Errorf("there are only %q", found)
	})
}

// awaitOwner waits until a node owns the Service, and returns it.
func awaitOwner(t *testing.T, name string) string {
	t.Helper()
	var node string
	until(t, 20*time.Second, "a node announces "+name, func(context.Context) error {
		s := getService(t, name)
		if node = s.Annotations["kube-vip.io/vipHost"]; node == "" || len(s.Status.LoadBalancer.Ingress) == 0 {
			return fmt.Errorf("vipHost %q, status %q", node, externalIPs(s))
		}
		return nil
	})
	return node
}

// awaitAnotherOwner waits until the Service names another node than before as its owner, and returns it.
func awaitAnotherOwner(t *testing.T, name, before string, within time.Duration) (node string) {
	t.Helper()
	until(t, within, "another node than "+before+" owns "+name, func(context.Context) error {
		if node = getService(t, name).Annotations["kube-vip.io/vipHost"]; node == before || node == "" {
			return fmt.Errorf("the owner is %q", node)
		}
		return nil
	})
	return node
}

// awaitMoved is awaitAnotherOwner for a Service that has a VIP.
func awaitMoved(t *testing.T, name, before string, within time.Duration) (node string) {
	t.Helper()
	until(t, within, name+" moves away from "+before, func(context.Context) error {
		if node = awaitOwner(t, name); node == before {
			return errors.New("it is still there")
		}
		return nil
	})
	return node
}

// awaitOwnedBy waits until the Service says that node owns it: a moment after its VIP has moved.
func awaitOwnedBy(t *testing.T, name, node string) {
	t.Helper()
	until(t, 5*time.Second, name+" says that it is on "+node, func(context.Context) error {
		if got := awaitOwner(t, name); got != node {
			return fmt.Errorf("it is on %s", got)
		}
		return nil
	})
}

// awaitReachable waits until the client gets a page from a backend: kube-proxy serves a VIP up to
// a second after the status names it, or later on a busy machine.
func awaitReachable(t *testing.T, url string) {
	t.Helper()
	until(t, 10*time.Second, "the client reaches "+url, func(ctx context.Context) error {
		body, err := cluster.Get(ctx, "cl", url)
		if err == nil && !strings.HasPrefix(body, "web-") {
			err = fmt.Errorf("it got %q", body)
		}
		return err
	})
}

func otherNodes(node string) []string {
	return slices.DeleteFunc(slices.Clone(cluster.Nodes()), func(n string) bool { return n == node })
}

// runHerald runs herald as an operator does, with an administrator's kubeconfig.
func runHerald(t *testing.T, args ...string) string {
	t.Helper()
	file := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	out, err := cluster.Run(t.Context(), "cp", append([]string{herald}, append(args, "--kubeconfig", file)...)...)
	if err != nil {
		t.Errorf("herald %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// blockPort has a node's firewall drop what comes and goes by a port, until the test ends.
func blockPort(t *testing.T, node string, port int) {
	t.Helper()
	check.OK(t, cluster.BlockPort(t.Context(), node, port))
	t.Cleanup(func() { cluster.OpenPort(context.Background(), node) })
}

// awaitDetectable waits until every Herald would detect the death of every other.
func awaitDetectable(t *testing.T) {
	t.Helper()
	until(t, 30*time.Second, "all nodes would detect the death of one another", cluster.PeersDetectable)
}

// awaitRecovery waits, for the tests that come next, until controllers and kube-proxies follow the API server again, which was away:
// it starts them again. A Service's first endpoints may be known long before a change of them is.
func awaitRecovery(t *testing.T) {
	t.Helper()
	check.OK(t, cluster.RestartClients(withTimeout(t, time.Minute)))
	const probe = "10.77.0.99"
	createService(t, webService("probe", probe))
	endpoints := func(ctx context.Context) (n int, err error) {
		out, err := cluster.Kubectl(ctx, "get", "endpointslices", "-l", "kubernetes.io/service-name=probe", "-o", "jsonpath={.items[*].endpoints[*].addresses[0]}")
		return len(strings.Fields(out)), err
	}
	until(t, 2*time.Minute, "the Service has endpoints, and all kube-proxies know it", func(ctx context.Context) error {
		if n, err := endpoints(ctx); err != nil || n == 0 {
			return fmt.Errorf("%d endpoints, %v", n, err)
		}
		for _, n := range cluster.Nodes() {
			if err := proxyServes(t, n, probe); err != nil {
				return err
			}
		}
		return nil
	})
	patchService(t, "probe", `{"spec":{"selector":{"app":"nobody"}}}`)
	until(t, 2*time.Minute, "the endpoints follow the Service", func(ctx context.Context) error {
		if n, err := endpoints(ctx); err != nil || n > 0 {
			return fmt.Errorf("%d endpoints, %v", n, err)
		}
		return nil
	})
}
