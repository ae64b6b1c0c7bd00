package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// A dhcpServer is one on the lab's router.
type dhcpServer struct {
	t       *testing.T
	dir     string
	file    string // of leases
	running []*lab.Process
	start   func() []*lab.Process
}

func (s *dhcpServer) stop() {
	for _, p := range s.running {
		p.Kill()
	}
	s.running = nil
}

func (s *dhcpServer) run() {
	s.t.Helper()
	s.running = s.start()
}

// readUnchanging reads a file until it finds the same twice: dnsmasq empties its file each time before it writes it again.
func readUnchanging(path string) string {
	for before := ""; ; {
		b, _ := os.ReadFile(path)
		now := string(b) + "."
		if now == before {
			return string(b)
		}
		before = now
		time.Sleep(20 * time.Millisecond)
	}
}

// leases returns the addresses that are leased at present, with the host name of each.
func (s *dhcpServer) leases() map[string]string {
	now := map[string]string{}
	for _, name := range strings.Split(s.file, " ") {
		for line := range strings.Lines(readUnchanging(filepath.Join(s.dir, name))) {
			if f := strings.Fields(line); strings.HasPrefix(name, "dnsmasq") && len(f) >= 5 && f[0] != "duid" {
				now[f[2]] = f[3]
				continue
			}
			f := strings.Split(strings.TrimSpace(line), ",") // Kea's journal: the last line of an address counts
			switch {
			case len(f) < 9 || f[0] == "address" || strings.HasPrefix(name, "dnsmasq"):
			case strings.Contains(f[0], ":") && f[2] == "0", !strings.Contains(f[0], ":") && f[3] == "0":
				delete(now, f[0])
			case strings.Contains(f[0], ":"):
				now[f[0]] = f[11]
			default:
				now[f[0]] = f[8]
			}
		}
	}
	return now
}

// awaitNoLeases waits until all leases are given back.
func (s *dhcpServer) awaitNoLeases(within time.Duration) {
	s.t.Helper()
	until(s.t, within, "all leases are given back", func(context.Context) error {
		if left := s.leases(); len(left) > 0 {
			return fmt.Errorf("%d: %v", len(left), left)
		}
		return nil
	})
}

func (s *dhcpServer) launch(ready, name string, argv ...string) *lab.Process {
	s.t.Helper()
	p := check.Value(cluster.Start("rt", name, argv, "KEA_LOCKFILE_DIR="+s.dir, "KEA_PIDFILE_DIR="+s.dir))(s.t)
	check.OK(s.t, p.WaitLog(withTimeout(s.t, 10*time.Second), ready))
	return p
}

func newDHCPServer(t *testing.T, file string, start func(*dhcpServer) []*lab.Process) *dhcpServer {
	t.Helper()
	dir := check.Value(os.MkdirTemp(cluster.Dir(), "dhcp"))(t)
	s := &dhcpServer{t: t, dir: dir, file: file}
	s.start = func() []*lab.Process { return start(s) }
	t.Cleanup(s.stop)
	s.run()
	return s
}

// startDnsmasq starts a server that leases 10.77.0.110 up to 250 and fd77::1000 up.
func startDnsmasq(t *testing.T) *dhcpServer {
	return newDHCPServer(t, "dnsmasq.leases", func(s *dhcpServer) []*lab.Process {
		return []*lab.Process{s.launch("DHCP, IP range", "dnsmasq", "dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0", "--no-ping",
			"--pid-file=", "--dhcp-authoritative", "--dhcp-leasefile="+filepath.Join(s.dir, "dnsmasq.leases"), "--interface=eth0", "--bind-interfaces",
			"--dhcp-lease-max=1000", "--dhcp-range=10.77.0.110,10.77.0.250,255.255.255.0,1h", "--dhcp-range=fd77::1000,fd77::1fff,64,1h")}
	})
}

// startKea starts a server that leases addresses of a pool for a time, in seconds, in both families.
func startKea(t *testing.T, seconds int, pool4, pool6 string) *dhcpServer {
	s := newDHCPServer(t, "kea4.csv kea6.csv", func(s *dhcpServer) []*lab.Process {
		common := func(n int) string {
			return fmt.Sprintf(`"lease-database": {"type": "memfile", "persist": true, "name": "%s/kea%d.csv", "lfc-interval": 0},
				"valid-lifetime": %d, "renew-timer": %d, "rebind-timer": %d,
				"loggers": [{"name": "kea-dhcp%d", "severity": "INFO", "output_options": [{"output": "stdout"}]}]`, s.dir, n, seconds, seconds/2, seconds*7/8, n)
		}
		var running []*lab.Process
		for n, config := range map[int]string{
			4: fmt.Sprintf(`{"Dhcp4": {"interfaces-config": {"interfaces": ["eth0"], "dhcp-socket-type": "raw"}, "authoritative": true, %s,
				"subnet4": [{"id": 1, "subnet": "10.77.0.0/24", "pools": [{"pool": %q}], "option-data": [{"name": "routers", "data": "10.77.0.1"}]}]}}`, common(4), pool4),
			6: fmt.Sprintf(`{"Dhcp6": {"interfaces-config": {"interfaces": ["eth0"]}, %s, "preferred-lifetime": %d,
				"server-id": {"type": "EN", "enterprise-id": 2495, "identifier": "0102030405", "persist": false},
				"subnet6": [{"id": 1, "interface": "eth0", "subnet": "fd77::/64", "pools": [{"pool": %q}]}]}}`, common(6), seconds, pool6),
		} {
			file := filepath.Join(s.dir, fmt.Sprintf("kea%d.conf", n))
			check.OK(t, os.WriteFile(file, []byte(config), 0o644))
			running = append(running, s.launch("STARTED", fmt.Sprint("kea", n), fmt.Sprint("kea-dhcp", n), "-c", file))
		}
		return running
	})
	return s
}

// awaitAddresses waits until the status of a Service names n addresses, and returns them.
func awaitAddresses(t *testing.T, name string, n int, within time.Duration) []string {
	t.Helper()
	var addrs []string
	until(t, within, fmt.Sprintf("%s has %d addresses", name, n), func(context.Context) error {
		addrs = nil
		for _, i := range getService(t, name).Status.LoadBalancer.Ingress {
			addrs = append(addrs, i.IP)
		}
		if len(addrs) != n {
			return fmt.Errorf("it has %v", addrs)
		}
		return nil
	})
	return addrs
}

// macvlans returns the macvlans of a node, with their MAC addresses.
func macvlans(t *testing.T, node string) map[string]string {
	t.Helper()
	out := check.Value(cluster.Run(context.Background(), node, "ip", "-o", "link", "show", "type", "macvlan"))(t)
	links := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\d+: ([^@]+)@.*link/ether (\S+)`).FindAllStringSubmatch(out, -1) {
		links[m[1]] = m[2]
	}
	return links
}

// expectNoMacvlans fails the test if a node still has macvlans after 5 s.
func expectNoMacvlans(t *testing.T) {
	t.Helper()
	for _, n := range cluster.Nodes() {
		until(t, 5*time.Second, "no links are left on "+n, func(context.Context) error {
			if left := macvlans(t, n); len(left) > 0 {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
	}
}

// The example of kube-vip's documentation, with a host name.
func TestDHCPExpose(t *testing.T) {
	start(t, env())
	server := startDnsmasq(t)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "nginx-deployment"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "nginx"}}}},
	}}
	check.Value(cluster.Client().AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_ = cluster.Client().AppsV1().Deployments("default").Delete(context.Background(), d.Name, metav1.DeleteOptions{})
	})
	began := time.Now()
	check.Value(cluster.Kubectl(t.Context(), "expose", "deployment", "nginx-deployment", "--port=80", "--type=LoadBalancer", "--name=nginx-dhcp", "--load-balancer-ip=0.0.0.0"))(t)
	vip := awaitAddresses(t, "nginx-dhcp", 1, 5*time.Second)[0]
	t.Logf("%s after %v", vip, time.Since(began).Round(time.Millisecond))
	awaitReachable(t, "http://"+vip+"/")
	node := awaitOwner(t, "nginx-dhcp")

	// The macvlan answers for it with its own MAC address, and no other host does.
	links := macvlans(t, node)
	if len(links) != 1 {
		t.Fatalf("links on %s: %v", node, links)
	}
	w := whoHas(t, 20*time.Millisecond, vip)
	time.Sleep(500 * time.Millisecond)
	answered := false
	for _, span := range w.Stop().Addrs[0].Timeline {
		for _, mac := range links {
			answered = answered || len(span.Hosts) > 0
			if len(span.Hosts) > 0 && !slices.Equal(span.Hosts, []string{mac}) { // a busy machine may answer late
				t.Errorf("answered by %v, want %s", span.Hosts, mac)
			}
		}
	}
	if !answered {
		t.Error("nobody answered")
	}
	neighbours, err := cluster.Run(t.Context(), "cl", "ip", "neigh", "show", vip)
	if err != nil || strings.Contains(neighbours, cluster.MAC(node)) {
		t.Errorf("the client takes it for the node's own hardware address: %s %v", neighbours, err)
	}
	// The macvlan is deleted by somebody else. It comes back with the same address.
	for name := range links {
		check.Value(cluster.Run(t.Context(), node, "ip", "link", "del", name))(t)
	}
	w = whoHas(t, 20*time.Millisecond, vip)
	awaitAnswer(t, w, vip, 2*time.Second)
	w.Stop()
	awaitReachable(t, "http://"+vip+"/")
	table, err := cluster.Run(t.Context(), "cp", herald, "status")
	t.Logf("%s%v", table, err)

	createService(t, webService("named", "0.0.0.0,::", lab.Annotated("kube-vip.io/loadbalancerHostname", "mydhcp-test")))
	both := awaitAddresses(t, "named", 2, 10*time.Second)
	awaitReachable(t, "http://"+both[0]+"/")
	awaitReachable(t, "http://["+both[1]+"]/")
	leased := server.leases()
	if len(leased) != 3 || leased[both[0]] != "mydhcp-test" || leased[vip] == "" {
		t.Errorf("leases %v, want %s and %v", leased, vip, both)
	}
	got := getService(t, "named").Annotations["kube-vip.io/requestedIP"]
	if got != strings.Join(both, ",") {
		t.Errorf("kube-vip.io/requestedIP is %q, want %v", got, both)
	}
	for _, name := range []string{"nginx-dhcp", "named"} {
		check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	server.awaitNoLeases(5 * time.Second)
	expectNoMacvlans(t)
}

// Renewed; the server away until a lease ends, and back; another pool.
func TestDHCPLife(t *testing.T) {
	f := start(t, env("dhcp_backoff_attempts", "0"))
	server := startKea(t, 20, "10.77.0.150 - 10.77.0.150", "fd77::1500 - fd77::1500")
	dump := check.Value(cluster.Start("rt", "tcpdump", []string{"tcpdump", "-l", "-n", "-t", "-i", "eth0", "udp port 67 and src 10.77.0.150"}))(t)
	t.Cleanup(dump.Kill)
	createService(t, webService("a", "0.0.0.0,::"))
	awaitAddresses(t, "a", 2, 10*time.Second)
	began := time.Now()
	w := whoHas(t, 20*time.Millisecond, "10.77.0.150")
	awaitAnswer(t, w, "10.77.0.150", time.Second)
	if err := dump.WaitLog(withTimeout(t, 15*time.Second), "10.77.0.150.68 > 10.77.0.1.67: BOOTP/DHCP, Request"); err != nil {
		t.Errorf("no renewal by unicast: %v", err)
	} else if at := time.Since(began); at < 5*time.Second || at > 14*time.Second { // it was leased before the IPv6 one
		t.Errorf("renewed after %v, want half of 20 s", at)
	}
	time.Sleep(3 * time.Second) // the IPv6 one was leased a second later
	server.stop()
	time.Sleep(10 * time.Second) // away at T1
	server.run()                 // and back before T2
	time.Sleep(7 * time.Second)
	if r := w.Stop().Addrs[0]; r.LongestSilence > 200*time.Millisecond {
		t.Errorf("unanswered for %v: %v", r.LongestSilence, r.Timeline)
	}
	for _, node := range cluster.Nodes() {
		if log := f.node[node].Log(); strings.Contains(log, "is lost") {
			t.Errorf("a lease was lost on %s:\n%s", node, tail(log, 10))
		}
	}
	if n := len(server.leases()); n != 2 {
		t.Errorf("%d leases: %v", n, server.leases())
	}
	server.stop()
	awaitStatus(t, "a", "", 25*time.Second)
	awaitEvent(t, "a", "DHCPFailed", "expired")
	for _, n := range cluster.Nodes() {
		out, err := cluster.Run(t.Context(), n, "ip", "-o", "addr")
		if err != nil || strings.Contains(out, "10.77.0.150") || strings.Contains(out, "fd77::1500") {
			t.Errorf("an expired address is on %s: %v\n%s", n, err, out)
		}
	}
	server.run()
	if got := awaitAddresses(t, "a", 2, 30*time.Second); got[0] != "10.77.0.150" {
		t.Errorf("found again: %v", got)
	}
}

// Hand-over, a cut link and a killed process: the address stays, with one lease.
func TestDHCPMoves(t *testing.T) {
	f := start(t, env("vip_leaseduration", "6", "vip_renewdeadline", "4", "vip_retryperiod", "1"))
	f.killed = true
	server := startDnsmasq(t)
	createService(t, webService("a", "0.0.0.0"))
	addr := awaitAddresses(t, "a", 1, 5*time.Second)[0]
	awaitProxies(t, addr)
	awaitReachable(t, "http://"+addr+"/")
	move := func(what string, within, silence time.Duration, fault, undo func(node string)) {
		t.Helper()
		from := awaitOwner(t, "a")
		w, c := whoHas(t, 10*time.Millisecond, addr), connect(t, addr+":80")
		awaitAnswer(t, w, addr, time.Second)
		time.Sleep(300 * time.Millisecond)
		began := time.Now()
		fault(from)
		to := ""
		until(t, within, what+": another node takes over", func(context.Context) error {
			if to = getService(t, "a").Annotations["kube-vip.io/vipHost"]; to == from || to == "" {
				return fmt.Errorf("owner %q", to)
			}
			return nil
		})
		took := time.Since(began)
		time.Sleep(1500 * time.Millisecond)
		r, k := w.Stop().Addrs[0], c.Stop()
		t.Logf("%s: %s to %s after %v; unanswered for %v, %d of %d connections failed", what, from, to, took.Round(time.Millisecond), r.LongestSilence.Round(time.Millisecond), len(k.Failures), k.Attempts)
		t.Logf("%s", k)
		if r.LongestSilence > silence {
			t.Errorf("%s: unanswered for %v, want at most %v", what, r.LongestSilence, silence)
		}
		if got := externalIPs(getService(t, "a")); got != addr+"(VIP)" {
			t.Errorf("%s: status %s, want %s", what, got, addr)
		}
		if l := server.leases(); len(l) != 1 || l[addr] == "" {
			t.Errorf("%s: leases %v, want one of %s", what, l, addr)
		}
		undo(from)
	}
	again := func(n string) { f.startOn(n); f.awaitReady(n) }
	move("stopped", 10*time.Second, time.Second, func(n string) {
		f.node[n].Signal(os.Interrupt)
		if err := f.node[n].Wait(withTimeout(t, 10*time.Second)); err != nil {
			t.Errorf("exit: %v", err)
		}
		if left := macvlans(t, n); len(left) > 0 {
			t.Errorf("left on %s: %v", n, left)
		}
	}, again)
	move("cable pulled", 5*time.Second, time.Second, func(n string) {
		check.OK(t, cluster.Unplug(n))
	}, func(n string) {
		check.OK(t, cluster.Reconnect(n))
	})
	move("killed", 9*time.Second, 8*time.Second, func(n string) { f.node[n].Kill() }, func(n string) {
		if left := macvlans(t, n); len(left) != 1 {
			t.Errorf("a killed process leaves %v", left)
		}
		again(n)
		until(t, 5*time.Second, "what it left is removed", func(context.Context) error {
			if left := macvlans(t, n); len(left) > 0 {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
	})

	// All are killed, and come back while the lease lasts; the server is away, too.
	server.stop()
	for _, n := range cluster.Nodes() {
		f.node[n].Kill()
	}
	f.startAll()
	w := whoHas(t, 20*time.Millisecond, addr)
	awaitAnswer(t, w, addr, 10*time.Second)
	server.run()
	time.Sleep(5 * time.Second)
	if got := externalIPs(getService(t, "a")); got != addr+"(VIP)" || len(server.leases()) != 1 {
		t.Errorf("after a restart of all: status %s, leases %v, want %s", got, server.leases(), addr)
	}
	awaitReachable(t, "http://"+addr+"/")
}

// One owner for all, and Services that share a lease.
func TestDHCPOneOwner(t *testing.T) {
	f := start(t, env("svc_election", "false", "dhcp_mode", "dual"))
	server := startDnsmasq(t)
	shared := lab.Annotated("kube-vip.io/macvlanName", "herald-web0")
	createService(t, webService("a", "0.0.0.0", shared))
	createService(t, webService("b", "0.0.0.0", shared, func(s *corev1.Service) { s.Spec.Ports[0].Port = 8080 }))
	both := lab.WithVIPs(netip.IPv4Unspecified(), netip.IPv6Unspecified())
	createService(t, webService("c", "", both, lab.Annotated("kube-vip.io/loadbalancerIPs", "0.0.0.0"), lab.Annotated("kube-vip.io/hwaddr", "02:00:5e:00:00:77")))
	a, c := awaitAddresses(t, "a", 1, 5*time.Second), awaitAddresses(t, "c", 2, 10*time.Second)
	if b := awaitAddresses(t, "b", 1, 5*time.Second); b[0] != a[0] {
		t.Errorf("a has %v, b has %v", a, b)
	}
	from := awaitOwner(t, "a")
	if links := macvlans(t, from); len(links) != 2 || links["herald-web0"] == "" || !slices.Contains(slices.Collect(maps.Values(links)), "02:00:5e:00:00:77") {
		t.Errorf("links on %s: %v", from, links)
	}
	f.node[from].Signal(os.Interrupt)
	until(t, 5*time.Second, "another node takes over", func(context.Context) error {
		for _, name := range []string{"a", "b", "c"} {
			if to := getService(t, name).Annotations["kube-vip.io/vipHost"]; to == from || to == "" {
				return fmt.Errorf("%s is owned by %q", name, to)
			}
		}
		return nil
	})
	for name, want := range map[string][]string{"a": a, "b": a, "c": c} {
		if got := awaitAddresses(t, name, len(want), 5*time.Second); !slices.Equal(got, want) {
			t.Errorf("%s had %v and has %v", name, want, got)
		}
	}
	if l := server.leases(); len(l) != 3 {
		t.Errorf("leases %v, want 3", l)
	}
	awaitReachable(t, "http://"+a[0]+":8080/")
	awaitReachable(t, "http://["+c[1]+"]/")
}

// 100 Services on 3 nodes.
func TestDHCPHundred(t *testing.T) {
	f := start(t, env())
	server := startKea(t, 20, "10.77.0.110 - 10.77.0.249", "fd77::1000 - fd77::1fff")
	const n = 100
	for i := range n {
		createService(t, webService(fmt.Sprint("s", i), "0.0.0.0"))
	}
	created := time.Now()
	seen := map[netip.Addr]string{}
	until(t, 20*time.Second, "all have an address", func(c ctx) error {
		list, err := cluster.Client().CoreV1().Services("default").List(c, metav1.ListOptions{})
		if err != nil {
			return err
		}
		clear(seen)
		for _, s := range list.Items {
			for _, i := range s.Status.LoadBalancer.Ingress {
				a := netip.MustParseAddr(i.IP)
				if by, twice := seen[a]; twice {
					t.Errorf("%s belongs to %s and %s", a, by, s.Name)
				}
				seen[a] = s.Name
			}
		}
		if len(seen) != n {
			return fmt.Errorf("%d have", len(seen))
		}
		return nil
	})
	took := time.Since(created)
	t.Logf("all %v after the last was created", took.Round(time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("all addressed after %v, want 10 s", took)
	}
	// Renewals cost neither memory nor sockets.
	usage := func() (rss int64, sockets int) {
		for _, p := range f.node {
			_, r, err := p.Usage()
			if err != nil {
				t.Fatal(err)
			}
			fds := check.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid)))(t)
			rss, sockets = rss+r, sockets+len(fds)
		}
		return rss, sockets
	}
	time.Sleep(11 * time.Second)
	rss, sockets := usage()
	soak := 21 * time.Second // two renewals of each
	if d, err := time.ParseDuration(os.Getenv("HERALD_DHCP_SOAK")); err == nil {
		soak = d
	}
	time.Sleep(soak)
	rss2, sockets2 := usage()
	t.Logf("%d to %d MB and %d to %d file descriptors on all nodes, within %v of renewals every 10 s", rss>>20, rss2>>20, sockets, sockets2, soak)
	if rss2 > rss+rss/4 || sockets2 > sockets+20 {
		t.Error("it grows")
	}
	if l := server.leases(); len(l) != n {
		t.Errorf("%d leases, want %d", len(l), n)
	}
	deleted := time.Now()
	for i := range n {
		check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), fmt.Sprint("s", i), metav1.DeleteOptions{}))
	}
	server.awaitNoLeases(20 * time.Second)
	for _, node := range cluster.Nodes() {
		until(t, 20*time.Second, "no links are left on "+node, func(context.Context) error {
			if left := macvlans(t, node); len(left) > 0 {
				return fmt.Errorf("%d", len(left))
			}
			return nil
		})
	}
	t.Logf("all gone %v after they were deleted", time.Since(deleted).Round(time.Millisecond))
}
