package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// A prometheus is Debian's, on the host cl of the lab. It scrapes the Heralds of all nodes over the LAN each 0.5 s and has the rules of
// manifests/components/alerts, with shorter times.
type prometheus struct {
	t     *testing.T
	fired map[string]bool // alerts that were seen to fire
}

// Alerts are tried faster than they would fire: what must hold for 2 min must hold for 1 s, for 3 s at most, and what is counted
// in the last 15 min is counted in the last 30 s. What is compared with what stays.
const (
	forFaster    = 120
	maxFor       = 3 * time.Second
	windowFaster = 30
	maxWindow    = time.Minute
)

var (
	alertFor    = regexp.MustCompile(`(?m)^( +for: )(\d+[smhd])$`)
	alertWindow = regexp.MustCompile(`\[(\d+[smhd])\]`)
)

// faster divides a duration; what it returns is 1 s at least, and most at most.
func faster(t *testing.T, duration string, by time.Duration, most time.Duration) string {
	d := check.Value(time.ParseDuration(duration))(t)
	return fmt.Sprint(min(max(time.Second, d/by), most).Milliseconds(), "ms")
}

// fasterRules returns the rules of a PrometheusRule in the form of Prometheus, with shorter times.
func fasterRules(t *testing.T, file string) string {
	text := string(check.Value(os.ReadFile(file))(t))
	text = alertFor.ReplaceAllStringFunc(text, func(s string) string {
		m := alertFor.FindStringSubmatch(s)
		return m[1] + faster(t, m[2], forFaster, maxFor)
	})
	text = alertWindow.ReplaceAllStringFunc(text, func(s string) string { return "[" + faster(t, s[1:len(s)-1], windowFaster, maxWindow) + "]" })
	var rule struct{ Spec map[string]any }
	check.OK(t, yaml.Unmarshal([]byte(text), &rule))
	return string(check.Value(yaml.Marshal(rule.Spec))(t))
}

// startPrometheus runs Prometheus until the test ends.
func startPrometheus(t *testing.T) *prometheus {
	t.Helper()
	check.Program(t, "prometheus")
	dir := t.TempDir()
	files := check.Value(filepath.Glob("../../manifests/components/alerts/*.yaml"))(t)
	var rules, targets []string
	for _, file := range files {
		if name := filepath.Base(file); name != "kustomization.yaml" {
			check.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(fasterRules(t, file)), 0o600))
			rules = append(rules, strconv.Quote(filepath.Join(dir, name)))
		}
	}
	for _, n := range cluster.Nodes() {
		v4, _ := cluster.Addrs(n)
		targets = append(targets, fmt.Sprintf("{targets: ['%s:2112'], labels: {namespace: kube-system, pod: herald-%s, node: %s}}", v4, n, n)) // as the PodMonitor has it
	}
	config := fmt.Sprintf("global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\nrule_files: [%s]\nscrape_configs:\n- job_name: herald\n  static_configs: [%s]\n",
		strings.Join(rules, ", "), strings.Join(targets, ", "))
	check.OK(t, os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(config), 0o600))
	p := check.Value(cluster.Start("cl", "prometheus", []string{"prometheus", "--config.file=" + filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090", "--log.level=warn"}))(t)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("--- prometheus\n%s", tail(p.Log(), 20))
		}
	})
	return &prometheus{t: t, fired: make(map[string]bool)}
}

// firing returns the alerts that fire.
func (p *prometheus) firing(ctx context.Context) (map[string]bool, error) {
	body, err := cluster.Get(ctx, "cl", "http://127.0.0.1:9090/api/v1/alerts")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return nil, err
	}
	all := make(map[string]bool)
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			all[strings.TrimPrefix(a.Labels["alertname"], "Herald")] = true
		}
	}
	return all, nil
}

// await waits until all the alerts fire, or none of them does. Their names are without "Herald".
func (p *prometheus) await(within time.Duration, fire bool, alerts ...string) {
	p.t.Helper()
	began := time.Now()
	until(p.t, within, fmt.Sprintf("%v fire: %v", alerts, fire), func(ctx context.Context) error {
		firing, err := p.firing(ctx)
		if err != nil {
			return err
		}
		for _, a := range alerts {
			p.fired[a] = p.fired[a] || fire && firing[a]
			if firing[a] != fire {
				return fmt.Errorf("%v fire", slices.Sorted(maps.Keys(firing)))
			}
		}
		return nil
	})
	p.t.Logf("%v fire: %v, after %v", alerts, fire, time.Since(began).Round(100*time.Millisecond))
}

// draw makes a picture of the graphs of a dashboard, as Prometheus draws them in Chromium.
func (p *prometheus) draw(dashboard, picture string) {
	var all struct {
		Panels []struct {
			Type    string
			Targets []struct{ Expr string }
		}
	}
	check.OK(p.t, json.Unmarshal(check.Value(os.ReadFile(dashboard))(p.t), &all))
	graphs, n := url.Values{}, 0
	for _, panel := range all.Panels {
		if panel.Type != "timeseries" || strings.Contains(panel.Targets[0].Expr, "bgp") { // the lab has no BGP here
			continue
		}
		for _, x := range panel.Targets {
			for key, value := range map[string]string{"expr": x.Expr, "tab": "0", "range_input": "6m", "step_input": "1"} {
				graphs.Set(fmt.Sprintf("g%d.%s", n, key), value)
			}
			n++
		}
	}
	check.OK(p.t, cluster.InNamespace("cl", func() error {
		return exec.CommandContext(p.t.Context(), check.Program(p.t, "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
			"--hide-scrollbars", "--window-size=1300,3750", "--virtual-time-budget=20000", "--user-data-dir="+p.t.TempDir(), "--screenshot="+picture, "http://127.0.0.1:9090/graph?"+graphs.Encode()).Run()
	}))
}

// TestAlerts: the alerts fire in a real Prometheus while what they are about is so in the lab, and stop when it is over. Meanwhile
// the commands of docs/troubleshooting.md lead to the cause. With HERALD_ALERTS=all that is all alerts ("make test-alerts"), else some.
func TestAlerts(t *testing.T) {
	all := os.Getenv("HERALD_ALERTS") == "all"
	p := startPrometheus(t)
	p.await(30*time.Second, true, "Absent")
	more := []string{}
	if all {
		more = []string{"enable_upnp", "true", "upnp_namespaces", "default"}
	}
	f := start(t, env(more...))
	p.await(10*time.Second, false, "Absent")
	tryPoolAlerts(t, p)
	if !all {
		return
	}
	tryServiceAlerts(t, p)
	tryNodeAlerts(t, f, p)
	tryMoveAlerts(t, f, p)
	if dir := os.Getenv("HERALD_SCREENSHOTS"); dir != "" {
		p.draw("../../manifests/grafana/fleet.json", filepath.Join(dir, "graphs.png"))
	}
	for _, file := range []string{"alerts.yaml", "nodes.yaml"} {
		for _, m := range regexp.MustCompile(`- alert: Herald(\w+)`).FindAllStringSubmatch(string(check.Value(os.ReadFile("../../manifests/components/alerts/"+file))(t)), -1) {
			if !p.fired[m[1]] {
				t.Errorf("Herald%s was not made to fire", m[1])
			}
		}
	}
}

// seen waits until what each of several commands of herald prints matches the pattern behind it: what someone reads who follows
// docs/troubleshooting.md.
func seen(t *testing.T, commandsAndPatterns ...string) {
	t.Helper()
	for c := range slices.Chunk(commandsAndPatterns, 2) {
		until(t, 20*time.Second, "herald "+c[0]+" shows "+c[1], func(context.Context) error {
			if out := runHerald(t, strings.Fields(c[0])...); !regexp.MustCompile(c[1]).MatchString(out) {
				return errors.New(out)
			}
			return nil
		})
	}
}

// deleteServices deletes Services of the test.
func deleteServices(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), n, metav1.DeleteOptions{}))
	}
}

// tryPoolAlerts fills a pool, and then changes it; and has a Service that no node may carry.
func tryPoolAlerts(t *testing.T, p *prometheus) {
	addPod(t, "astray-w", "w1")
	createService(t, localService("astray", "10.77.0.50"))
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.69", "cidr-other": "nonsense"})
	names := []string{"astray"}
	for i := range 11 {
		names = append(names, fmt.Sprint("pooled-", i))
		createService(t, webService(names[i+1], ""))
	}
	p.await(30*time.Second, true, "NoEligibleNode", "PoolNearlyFull", "ServiceWithoutAddress", "PoolProblem")
	seen(t, "explain astray", `NoEligibleNode`, "status", `default/pooled-\d+ .*NoPoolAddress`, "pools", `range-global`)
	setPools(t, map[string]string{"range-global": "10.77.0.100-10.77.0.129"})
	p.await(40*time.Second, true, "AddressOutsidePools")
	deleteServices(t, names...)
	p.await(30*time.Second, false, "NoEligibleNode", "PoolNearlyFull", "ServiceWithoutAddress", "PoolProblem", "AddressOutsidePools")
}

// tryServiceAlerts makes at the same time what concerns single Services: hosts that answer or do not, servers and gateways that
// refuse, a kernel that refuses addresses.
func tryServiceAlerts(t *testing.T, p *prometheus) {
	g := newGateway(t, "rt", public1)
	g.start("deny 8081 10.77.0.0/24 0-65535")
	createService(t, webService("two", "10.77.0.51"))
	createService(t, webService("silent", "10.77.0.52"))
	muted := awaitOwner(t, "silent")
	awaitOwner(t, "two")
	runOn(t, muted, "nft", "add table arp e2e; add chain arp e2e in { type filter hook input priority 0; }; add rule arp e2e in arp daddr ip 10.77.0.52 drop")
	t.Cleanup(func() { cluster.Run(context.Background(), muted, "nft", "delete table arp e2e") })
	runOn(t, "rt", "ip", "addr", "add", "10.77.0.51/32", "dev", "eth0")
	t.Cleanup(func() { cluster.Run(context.Background(), "rt", "ip", "addr", "del", "10.77.0.51/32", "dev", "eth0") })
	announceByARP(t, "rt", "10.77.0.51")
	names := []string{"two", "silent"}
	for i := range 12 {
		names = append(names, fmt.Sprint("leased-", i), fmt.Sprint("mapped-", i))
		createService(t, webService(fmt.Sprint("leased-", i), "0.0.0.0"))
		createService(t, forwardedService(fmt.Sprint("mapped-", i), fmt.Sprint("10.77.0.", 70+i), lab.Annotated("heraldvip.io/upnp-external-port", "8081")))
	}
	p.await(2*time.Minute, true, "TwoHostsAnswer", "VIPUnanswered", "DHCPFailing", "PortNotMapped")
	createService(t, webService("empty", "10.77.0.57", lab.Selecting("nobody")))
	seen(t, "status", `default/empty .*NoEndpoints`,
		"status", `VIPUnanswered`, "explain silent", `VIPUnanswered`,
		"status", `VIPForeignMAC.*`+cluster.MAC("rt"), "explain two", cluster.MAC("rt"), "explain leased-0", `DHCPFailed.*no DHCP server answered`)
	deleteServices(t, "empty")
	tryCannotApply(t, p)
	runOn(t, "rt", "ip", "addr", "del", "10.77.0.51/32", "dev", "eth0")
	runOn(t, muted, "nft", "delete table arp e2e")
	deleteServices(t, names[2:]...)
	p.await(2*time.Minute, false, "CannotApply", "TwoHostsAnswer", "VIPUnanswered", "DHCPFailing", "PortNotMapped")
	deleteServices(t, names[:2]...)
}

// tryCannotApply takes a VIP away from its owner, where another program has put the same address in a network of its own, of link scope,
// so that it is not published as the node's.
func tryCannotApply(t *testing.T, p *prometheus) {
	createService(t, webService("taken", "10.77.0.56"))
	owner := awaitOwner(t, "taken")
	runOn(t, owner, "ip", "addr", "add", "10.77.0.56/25", "dev", "eth0", "scope", "link", "noprefixroute")
	t.Cleanup(func() { cluster.Run(context.Background(), owner, "ip", "addr", "del", "10.77.0.56/25", "dev", "eth0") })
	runOn(t, owner, "ip", "addr", "del", "10.77.0.56/32", "dev", "eth0")
	p.await(time.Minute, true, "CannotApply")
	runOn(t, owner, "ip", "addr", "del", "10.77.0.56/25", "dev", "eth0")
	deleteServices(t, "taken")
}

// tryNodeAlerts makes at the same time what concerns single nodes: of n2 no heartbeats and a BGP peer
// that is not there, of n3 blocked heartbeats and a kube-proxy that is gone; then n3 is cut from the API server.
func tryNodeAlerts(t *testing.T, f *heralds, p *prometheus) {
	restart := func(node string, more ...string) {
		f.node[node].Signal(syscall.SIGTERM)
		check.OK(t, f.node[node].Wait(withTimeout(t, 20*time.Second)))
		options := maps.Clone(f.env)
		for i := 0; i < len(more); i += 2 {
			options[more[i]] = more[i+1]
		}
		f.node[node] = check.Value(cluster.StartHerald(node, options))(t)
		f.awaitReady(node)
	}
	restart("n2", "herald_peers_port", "0", "bgp_enable", "true", "bgp_peers", "10.77.0.1:65001")
	stopProxy(t, "n3", true)
	createService(t, webService("any", "10.77.0.53"))
	p.await(time.Minute, true, "HeartbeatsOff", "BGPSessionDown", "DataPlaneFault")
	seen(t, "status", `n3 .*look at kube-proxy`, "explain --node n3", `look at kube-proxy`)
	startProxy(t, "n3")
	frr := startRouter(t)
	p.await(time.Minute, false, "BGPSessionDown", "DataPlaneFault")
	check.OK(t, frr.Close())
	restart("n2")
	p.await(time.Minute, false, "HeartbeatsOff")

	awaitDetectable(t)
	blockPort(t, "n3", 7947)
	p.await(time.Minute, true, "HeartbeatsBlocked")
	seen(t, "status", `it gets no heartbeats from`, "explain --node n3", `(?i)heartbeats`)
	check.OK(t, cluster.OpenPort(t.Context(), "n3"))
	p.await(time.Minute, false, "HeartbeatsBlocked")

	names := []string{"any"}
	for awaitOwner(t, names[len(names)-1]) != "n3" {
		names = append(names, fmt.Sprint("spread-", len(names)))
		createService(t, webService(names[len(names)-1], fmt.Sprint("10.77.0.", 60+len(names))))
	}
	check.OK(t, cluster.CutAPI("n3"))
	t.Cleanup(func() { cluster.ConnectAPI("n3") })
	p.await(time.Minute, true, "APIUnreachable", "NodeLeaseLost")
	seen(t, "explain "+names[len(names)-1], `It moved since n3: its Herald does not reach the API server`)
	check.OK(t, cluster.ConnectAPI("n3"))
	p.await(90*time.Second, false, "APIUnreachable", "NodeLeaseLost")
	deleteServices(t, names...)

	check.OK(t, cluster.Unplug("n3"))
	seen(t, "status", `n3 .*its link eth0 is down`, "explain --node n3", `its link eth0 is down`)
	check.OK(t, cluster.Reconnect("n3"))
	awaitDetectable(t)
	check.OK(t, cluster.Cut("n3"))
	seen(t, "status", `n3 .*it reaches too few other nodes`, "explain --node n3", `it reaches too few other nodes`)
	check.OK(t, cluster.Reconnect("n3"))
	runHerald(t, "drain", "n3")
	seen(t, "explain --node n3", `it is drained`)
	runHerald(t, "undrain", "n3")
}

// startRouter runs FRR on rt, which accepts the nodes as BGP peers.
func startRouter(t *testing.T) *lab.Router {
	t.Helper()
	return check.Value(cluster.FRR(t.Context(), "rt", frrConf))(t)
}

// tryMoveAlerts has a VIP wait for a node that may carry it for longer than 5 s, and VIPs that move again and again; not so Services
// that are created and deleted.
func tryMoveAlerts(t *testing.T, f *heralds, p *prometheus) {
	for i := range 9 {
		name := fmt.Sprint("short-", i)
		createService(t, webService(name, "10.77.0.54"))
		awaitOwner(t, name)
		deleteServices(t, name)
	}
	time.Sleep(4 * time.Second) // longer than "for"
	if firing := check.Value(p.firing(t.Context()))(t); firing["VIPsFlap"] {
		t.Error("VIPsFlap fires for Services that are created and deleted, and do not move")
	}
	f.killed = true
	pod := addPod(t, "hop-1", "n1")
	createService(t, localService("hop", "10.77.0.55"))
	if got := awaitOwner(t, "hop"); got != "n1" {
		t.Fatalf("%s has the VIP, and the endpoint is on n1", got)
	}
	f.node["n1"].Kill()
	time.Sleep(lab.KernelAnswers + 6*time.Second) // more than 5 s after its kernel has removed the VIP
	addPod(t, "hop-2", "n2")
	p.await(time.Minute, true, "LongOutage")
	cluster.RemovePod(t.Context(), pod)
	addPod(t, "hop-3", "n3")
	f.startAgain("n1")
	for i := range 14 {
		from := []string{"n2", "n3"}[i%2]
		runHerald(t, "drain", from, "--force")
		runHerald(t, "undrain", from)
	}
	p.await(90*time.Second, true, "VIPsFlap")
	p.await(90*time.Second, false, "LongOutage", "VIPsFlap")
	deleteServices(t, "hop")
}
