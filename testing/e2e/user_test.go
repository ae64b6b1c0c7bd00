package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

type ctx = context.Context

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// proxyRules is all rules of a node's kernel, kube-proxy's among them.
func proxyRules(t *testing.T, node string) string {
	t.Helper()
	nft := check.Value(cluster.Run(context.Background(), node, "nft", "list", "ruleset"))(t)
	nft = regexp.MustCompile(`(?ms)^table \w+ herald.*?^}`).ReplaceAllString(nft, "") // Herald's own name VIPs too
	if os.Getenv("HERALD_PROXY_MODE") != "iptables" {
		return nft
	}
	return nft + check.Value(cluster.Run(context.Background(), node, "iptables-save"))(t)
}

// proxyServes returns nil if kube-proxy on a node forwards connections to a VIP.
func proxyServes(t *testing.T, node, vip string) error {
	t.Helper()
	if err := lab.RulesServe(proxyRules(t, node), vip); err != nil {
		return fmt.Errorf("kube-proxy on %s: %w", node, err)
	}
	return nil
}

// awaitProxies waits until every kube-proxy forwards connections to a VIP.
func awaitProxies(t *testing.T, vip string) {
	t.Helper()
	until(t, 30*time.Second, "all kube-proxies serve "+vip, func(context.Context) error {
		for _, n := range cluster.Nodes() {
			if err := proxyServes(t, n, vip); err != nil {
				return err
			}
		}
		return nil
	})
}

// ipMode as kube-proxy understands it: with VIP its rules have the address, with Proxy they don't.
func TestIPMode(t *testing.T) {
	start(t, env())
	has := func(vip string, want bool) {
		t.Helper()
		until(t, 20*time.Second, fmt.Sprintf("kube-proxy's rules name %s: %v", vip, want), func(ctx) error {
			if has := lab.RulesFor(proxyRules(t, "n1"), vip); len(has) > 0 != want {
				return fmt.Errorf("they have %q", has)
			}
			return nil
		})
	}
	createService(t, webService("a", "10.77.0.50"))
	createService(t, webService("b", "10.77.0.51", lab.Annotated("heraldvip.io/ip-mode", "Proxy")))
	awaitStatus(t, "a", "10.77.0.50(VIP)", 2*time.Second)
	awaitStatus(t, "b", "10.77.0.51(Proxy)", 2*time.Second)
	has("10.77.0.50", true)
	has("10.77.0.51", false)
	patchService(t, "b", `{"metadata":{"annotations":{"heraldvip.io/ip-mode":"VIP"}}}`)
	awaitStatus(t, "b", "10.77.0.51(VIP)", 2*time.Second)
	has("10.77.0.51", true)
}

func TestIPModeByOption(t *testing.T) {
	start(t, env("svc_ipmode", "Proxy"))
	createService(t, webService("a", "10.77.0.50"))
	awaitStatus(t, "a", "10.77.0.50(Proxy)", 2*time.Second)
}

// 100 Services on 3 nodes: spread evenly, and with few API requests once they are there.
func TestHundred(t *testing.T) {
	start(t, env())
	began := time.Now()
	for i := range 100 {
		createService(t, webService(fmt.Sprint("s", i), fmt.Sprintf("10.77.0.%d", 120+i)))
	}
	var counts map[string]int
	until(t, 20*time.Second, "all have a VIP", func(c ctx) error {
		list, err := cluster.Client().CoreV1().Services("default").List(c, metav1.ListOptions{})
		if err != nil {
			return err
		}
		counts = map[string]int{}
		for _, s := range list.Items {
			if len(s.Status.LoadBalancer.Ingress) == 1 {
				counts[s.Annotations["kube-vip.io/vipHost"]]++
			}
		}
		if n := counts["n1"] + counts["n2"] + counts["n3"]; n != 100 {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	t.Logf("all after %v: %v", time.Since(began).Round(time.Millisecond), counts)
	for _, n := range cluster.Nodes() {
		if counts[n] < 32 || counts[n] > 34 {
			t.Errorf("%s has %d, want 33 +-1 (%v)", n, counts[n], counts)
		}
	}
	measure := func(window time.Duration) (rate float64, requests map[string]float64) {
		before := check.Value(cluster.APIRequests(t.Context()))(t)
		time.Sleep(window)
		requests = lab.Since(check.Value(cluster.APIRequests(t.Context()))(t), before)
		for _, n := range requests {
			rate += n / window.Seconds()
		}
		return rate, requests
	}
	// Events and EndpointSlices are still written for a while, and once more where the machine stands still for longer than addresses live.
	for range 3 {
		for busy := time.Now(); time.Since(busy) < 30*time.Second; {
			if rate, _ := measure(3 * time.Second); rate <= 2.5 {
				break
			}
		}
		rate, requests := measure(20 * time.Second)
		t.Logf("%.2f requests/s: %v", rate, requests)
		if rate <= 2.5 {
			return
		}
	}
	t.Error("want at most 2.5 requests/s in the steady state")
}

// Bad input is reported by an Event that names it, and other Services are not harmed.
func TestBadInput(t *testing.T) {
	start(t, env())
	good := observe(t, "good", "10.77.0.50")
	node, _ := cluster.Addrs("n2")
	// A mistake in what is in effect takes no VIP down.
	patchService(t, "good", `{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":"10.77.0.5O","heraldvip.io/announce":"arpp"}}}`)
	awaitEvent(t, "good", "InvalidField", "the Service keeps 10.77.0.50")
	refused := map[string]string{
		node.String(): "node n2", "10.112.0.1": "cluster IP of Service default/kubernetes", "10.112.77.1": "Service range", "10.240.1.7": "pod range", "127.0.0.1": "loopback",
		"224.0.0.1": "multicast", "169.254.0.9": "link-local", "10.78.0.2": "API server",
	}
	i := 0
	for addr, words := range refused {
		name := fmt.Sprint("bad", i)
		createService(t, lab.Service("default", name, lab.Selecting("web"), lab.Annotated("kube-vip.io/loadbalancerIPs", addr)))
		awaitEvent(t, name, "AddressRefused", words)
		i++
	}
	garbage := []string{"loadbalancerIPs", "ignore", "serviceInterface", "leaseName", "allow-reconcile-without-endpoints", "vipHost",
		"loadbalancerHostname", "hwaddr", "requestedIP", "macvlanName", "dhcp-broadcast", "rp_filter"}
	for _, g := range garbage {
		name := "garbage-" + strings.ReplaceAll(strings.ToLower(g), "_", "-")
		createService(t, webService(name, "10.77.0.60", func(s *corev1.Service) {
			s.Spec.Ports[0].Port = int32(8000 + i)
			s.Annotations["kube-vip.io/"+g] = "\x7f,;{ \"$(reboot)\n../../etc"
		}))
		if g != "vipHost" {
			awaitEvent(t, name, "InvalidField", "kube-vip.io/"+g)
		}
		i++
	}
	// A name reaches no link that is not Herald's, and there is no DHCP server here.
	createService(t, webService("link", "0.0.0.0", lab.Annotated("kube-vip.io/macvlanName", "eth0")))
	awaitEvent(t, "link", "AddressRefused", `kube-vip.io/macvlanName is "eth0", and must begin with herald-`)
	createService(t, webService("nobody", "0.0.0.0"))
	createService(t, webService("mode", "10.77.0.61", lab.Annotated("heraldvip.io/ip-mode", "Teleport")))
	awaitEvent(t, "mode", "InvalidField", "heraldvip.io/ip-mode")
	awaitStatus(t, "mode", "10.77.0.61(VIP)", 2*time.Second) // the default
	for j := range i {
		if n := fmt.Sprint("bad", j); j < len(refused) && externalIPs(getService(t, n)) != "" {
			t.Errorf("%s has %s", n, externalIPs(getService(t, n)))
		}
	}
	until(t, 15*time.Second, "an Event says that there is no DHCP server", func(c ctx) error {
		list, err := cluster.Client().CoreV1().Events("default").List(c, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name == "nobody" && e.Reason == "DHCPFailed" && strings.Contains(e.Message, "no DHCP server answered") {
				return nil
			}
		}
		return fmt.Errorf("%d Events", len(list.Items))
	})
	good.expectUnharmed(100 * time.Millisecond)
	out, err := exec.Command(herald, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "herald ") {
		t.Errorf("herald version: %q, %v", out, err)
	}
}

// The table deleted or spoilt, a node lease deleted, a Service taken by another program: the VIP comes back, or waits,
// and no other is touched.
func TestMeddledLeases(t *testing.T) {
	start(t, env())
	good := observe(t, "good", "10.77.0.50")
	createService(t, webService("a", "10.77.0.51"))
	node := awaitOwner(t, "a")
	w := whoHas(t, 20*time.Millisecond, "10.77.0.51")
	awaitAnswer(t, w, "10.77.0.51", time.Second)
	leases, tables := cluster.Client().CoordinationV1().Leases("default"), cluster.Client().CoordinationV1().Leases("kube-system")
	holder := func(what string) {
		t.Helper()
		until(t, 3*time.Second, "the table is back: "+what, func(c ctx) error {
			if now, err := cluster.Owner(c, "default", "kubevip-a"); now != node {
				return fmt.Errorf("a is on %q, %v", now, err)
			}
			return nil
		})
	}
	check.OK(t, tables.Delete(t.Context(), "herald-table", metav1.DeleteOptions{}))
	holder("deleted")
	for _, spoilt := range []string{`{"spec":null}`, `{"metadata":{"annotations":null}}`, `{"metadata":{"annotations":{"heraldvip.io/owners":"nobody"}}}`, `{"spec":{"leaseTransitions":2147483647}}`} {
		check.Value(tables.Patch(t.Context(), "herald-table", types.MergePatchType, []byte(spoilt), metav1.PatchOptions{}))(t)
		holder(spoilt)
	}
	check.OK(t, tables.Delete(t.Context(), "herald-node-"+node, metav1.DeleteOptions{}))
	until(t, 3*time.Second, "the node lease is back", func(c ctx) error {
		_, err := tables.Get(c, "herald-node-"+node, metav1.GetOptions{})
		return err
	})
	holder("a node lease was deleted")
	if r := w.Stop().Addrs[0]; !r.Stayed(300 * time.Millisecond) {
		t.Errorf("unanswered for %v, %v", r.LongestSilence, r.Timeline)
	}
	// Another program takes it, renews it for a while, and goes.
	w = whoHas(t, 20*time.Millisecond, "10.77.0.51")
	awaitAnswer(t, w, "10.77.0.51", time.Second)
	check.Value(leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kubevip-a"}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { leases.Delete(context.Background(), "kubevip-a", metav1.DeleteOptions{}) })
	for range 4 {
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
		check.Value(leases.Patch(t.Context(), "kubevip-a", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"holderIdentity":"another-program","leaseDurationSeconds":2,"renewTime":%q}}`, now), metav1.PatchOptions{}))(t)
		awaitSilence(t, w, "10.77.0.51", time.Second)
		time.Sleep(800 * time.Millisecond)
	}
	awaitEvent(t, "a", "HeldByOtherAnnouncer", "another-program")
	awaitAnswer(t, w, "10.77.0.51", 4*time.Second)
	good.expectUnharmed(200 * time.Millisecond)
}

// Another announcer's lease, renewed, is respected from the start; expired, it is taken over.
func TestForeignLease(t *testing.T) {
	start(t, env())
	leases := cluster.Client().CoordinationV1().Leases("default")
	who, seconds, now := "kube-vip-7", int32(3), metav1.NowMicro()
	l := check.Value(leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kubevip-a"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &who, LeaseDurationSeconds: &seconds, RenewTime: &now}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { leases.Delete(context.Background(), "kubevip-a", metav1.DeleteOptions{}) })
	createService(t, webService("a", "10.77.0.50"))
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50")
	var last time.Time
	for range 4 {
		time.Sleep(time.Second)
		last = time.Now()
		now := metav1.NowMicro()
		l.Spec.RenewTime = &now
		l = check.Value(leases.Update(t.Context(), l, metav1.UpdateOptions{}))(t)
		if got := externalIPs(getService(t, "a")); got != "" {
			t.Fatalf("announced as %s against another program's renewed lease", got)
		}
	}
	awaitEvent(t, "a", "HeldByOtherAnnouncer", who)
	awaitAnswer(t, w, "10.77.0.50", 6*time.Second)
	if took := time.Since(last); took < 2500*time.Millisecond {
		t.Errorf("taken over after %v, before the other program's 3 s", took)
	}
	awaitStatus(t, "a", "10.77.0.50(VIP)", time.Second)
}

// What an operator looks at: herald status, /metrics, /debug/plan.
func TestSeen(t *testing.T) {
	start(t, env())
	createService(t, webService("a", "10.77.0.50"))
	createService(t, webService("b", ""))
	node := awaitOwner(t, "a")
	awaitEvent(t, "b", "NoAddress", "")
	file := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	out := check.Value(cluster.Run(t.Context(), "cp", herald, "status", "--kubeconfig", file))(t)
	t.Log("\n" + out)
	for _, want := range []string{`default/a +10\.77\.0\.50 +` + node + ` .*VIP`, `default/b .*NoAddress`, node + ` +1 .*ok`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("herald status does not show %s:\n%s", want, out)
		}
	}
	out = runHerald(t, "explain", "a")
	for _, want := range []string{"default/a: announced by node " + node, `10\.77\.0\.50 +kube-vip.io/loadbalancerIPs +yes`, node + ` +owner`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("herald explain does not show %s:\n%s", want, out)
		}
	}
	if out := runHerald(t, "explain", "default/b"); !strings.Contains(out, "NoAddress") || !strings.Contains(out, "What to do: give it an address") {
		t.Errorf("herald explain of a Service without an address:\n%s", out)
	}
	if out := runHerald(t, "explain", "--node", node); !strings.Contains(out, "Node "+node+": ok") || !strings.Contains(out, "carries it") {
		t.Errorf("herald explain --node:\n%s", out)
	}
	if out := runHerald(t, "undrain", node); !strings.Contains(out, "is not drained; nothing was changed") {
		t.Errorf("herald undrain of a node that was never drained:\n%s", out)
	}
	metrics := check.Value(cluster.Get(t.Context(), node, "http://127.0.0.1:2112/metrics"))(t)
	for _, want := range []string{"herald_claims_held 1", "herald_pass_duration_seconds_count", "herald_announcements_sent_total", "herald_api_requests_total"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %q", want)
		}
	}
	text := check.Value(cluster.Get(t.Context(), node, "http://127.0.0.1:2112/debug/plan"))(t)
	var pass struct {
		Plan struct {
			Verdicts []struct{ Service, Reason, Message string }
		}
	}
	if err := json.Unmarshal([]byte(text), &pass); err != nil {
		t.Fatalf("/debug/plan: %v\n%s", err, text)
	}
	i := slices.IndexFunc(pass.Plan.Verdicts, func(v struct{ Service, Reason, Message string }) bool { return v.Service == "default/b" })
	if i < 0 || pass.Plan.Verdicts[i].Reason != "NoAddress" || pass.Plan.Verdicts[i].Message == "" {
		t.Errorf("/debug/plan says of b: %+v", pass.Plan.Verdicts)
	}
	if _, err := cluster.Get(t.Context(), node, "http://127.0.0.1:2112/healthz"); err != nil {
		t.Error(err)
	}
	page := check.Value(cluster.Get(t.Context(), node, "http://127.0.0.1:2112/"))(t)
	for _, want := range []string{") Herald on " + node, "default/a", "VIPAnnounced", "NoAddress", "What to do: give it an address"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	if text := runHerald(t, "history", "a", "-o", "json"); !strings.Contains(text, `"to": "`+node+`"`) {
		t.Errorf("herald history: %s", text)
	}
	if text, err := cluster.Get(t.Context(), node, "http://127.0.0.1:2112/debug/plan?service=default/a"); err != nil || !strings.Contains(text, `"owner": "`+node+`"`) {
		t.Errorf("/debug/plan?service=default/a: %v\n%s", err, text)
	}
}

// Options that are wrong: all at once, each by name, exit status 2.
func TestBadOptions(t *testing.T) {
	cmd := exec.Command(herald, "manager", "--leaseDuration=5", "--leaseRenewDuration=10", "--arp=perhaps")
	cmd.Env = []string{"svc_enable=maybe", "vip_interface=a/b", "vip_subnet=999", "bgp_enable=perhaps", "vip_interfce=eth0"}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 {
		t.Errorf("exit status %d (%v), want 2", cmd.ProcessState.ExitCode(), err)
	}
	cmd2 := exec.Command(herald, "manager")
	cmd2.Env = []string{"svc_enable=maybe", "vip_interface=a/b", "vip_subnet=999", "bgp_enable=perhaps", "vip_leaseduration=5", "vip_renewdeadline=10"}
	out2, _ := cmd2.CombinedOutput()
	for _, want := range []string{"svc_enable", "maybe", "vip_interface", "a/b", "vip_subnet", "999", "bgp_enable", "vip_leaseduration"} {
		if !strings.Contains(string(out)+string(out2), want) {
			t.Errorf("there is no message about %s:\n%s%s", want, out, out2)
		}
	}
}

// With svc_namespace a Role in two namespaces is all that Herald needs.
func TestNamespaced(t *testing.T) {
	const ns = "some-team"
	ctx := t.Context()
	check.Value(cluster.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		cluster.Client().CoreV1().Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
	cmd := exec.Command(herald, "manifest", "rbac", "--namespace", "heralds")
	cmd.Env = []string{"svc_namespace=" + ns, "cp_namespace=heralds"}
	rbac := check.Value(cmd.Output())(t)
	check.Value(cluster.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "heralds"}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		cluster.Client().CoreV1().Namespaces().Delete(context.Background(), "heralds", metav1.DeleteOptions{})
	})
	check.OK(t, cluster.Apply(ctx, string(rbac)))
	file := check.Value(cluster.Kubeconfig(ctx, "heralds/herald"))(t)
	p := lab.Pod{Namespace: ns, Name: "some-team-web", Node: "w1", Labels: map[string]string{"app": "web"}}
	check.OK(t, cluster.AddPod(ctx, p))
	t.Cleanup(func() { cluster.RemovePod(context.Background(), p) })
	start(t, env("svc_namespace", ns, "cp_namespace", "heralds", "k8s_config_file", file))
	s := webService("a", "10.77.0.50")
	s.Namespace = ns
	createService(t, s)
	createService(t, webService("b", "10.77.0.51")) // of another namespace: not ours
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50", "10.77.0.51")
	node := awaitAnswer(t, w, "10.77.0.50", 2*time.Second)
	until(t, 2*time.Second, "the status names the VIP and its node", func(c context.Context) error {
		got, err := cluster.Client().CoreV1().Services(ns).Get(c, "a", metav1.GetOptions{})
		if err == nil && (externalIPs(got) != "10.77.0.50(VIP)" || got.Annotations["kube-vip.io/vipHost"] != node) {
			err = fmt.Errorf("%q", externalIPs(got))
		}
		return err
	})
	if got := externalIPs(getService(t, "b")); got != "" {
		t.Errorf("the Service of another namespace has %s", got)
	}
}
