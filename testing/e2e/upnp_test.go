package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// upnpChains is the tables that miniupnpd expects.
const upnpChains = `table inet filter
delete table inet filter
table inet filter {
	chain forward { type filter hook forward priority 0; ct state established,related accept; iifname "wan0" jump miniupnpd; iifname "wan0" drop; }
	chain miniupnpd { }
	chain prerouting_miniupnpd { type nat hook prerouting priority -100; }
	chain postrouting_miniupnpd { type nat hook postrouting priority 100; }
}
`

// External addresses of the gateways. They must be public ones.
const (
	public1 = "11.22.33.1"
	public2 = "11.22.44.1"
)

// A gateway is a home router: a host of the LAN with a far side, and miniupnpd on it.
type gateway struct {
	t      *testing.T
	host   string
	daemon *lab.Process
}

// newGateway makes a host a router, without UPnP yet.
func newGateway(t *testing.T, host, public string) *gateway {
	t.Helper()
	check.Program(t, "/usr/sbin/miniupnpd")
	undo := check.Value(cluster.AddWAN(host, netip.PrefixFrom(netip.MustParseAddr(public), 24)))(t)
	g := &gateway{t: t, host: host}
	t.Cleanup(func() {
		g.stop(syscall.SIGKILL)
		_, err := cluster.Run(context.Background(), host, "nft", "delete", "table", "inet", "filter")
		if err := errors.Join(err, undo()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// start starts miniupnpd, without any mapping.
func (g *gateway) start(more ...string) {
	g.t.Helper()
	dir := g.t.TempDir()
	conf := append([]string{
		"ext_ifname=wan0", "listening_ip=eth0", "http_port=0", fmt.Sprintf("uuid=00000000-0000-0000-0000-%012x", g.host), "serial=1",
		"system_uptime=no", "notify_interval=60", "friendly_name=lab " + g.host,
	}, more...)
	conf = append(conf, "allow 0-65535 10.77.0.0/24 0-65535", "deny 0-65535 0.0.0.0/0 0-65535")
	for name, text := range map[string]string{"nft": upnpChains, "conf": strings.Join(conf, "\n") + "\n"} {
		check.OK(g.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	check.Value(cluster.Run(g.t.Context(), g.host, "nft", "-f", filepath.Join(dir, "nft")))(g.t)
	var err error
	g.daemon, err = cluster.Start(g.host, "miniupnpd-"+g.host, []string{"/usr/sbin/miniupnpd", "-d", "-f", filepath.Join(dir, "conf"), "-P", filepath.Join(dir, "pid")})
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) stop(sig syscall.Signal) {
	if g.daemon != nil && g.daemon.Running() {
		g.daemon.Signal(sig)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		g.daemon.Wait(ctx)
	}
}

// listMappings returns the gateway's mappings as the program upnpc prints them.
func listMappings(t *testing.T) string {
	t.Helper()
	out, _ := cluster.Run(t.Context(), "cl", "upnpc", "-m", "eth0", "-l") // its status says nothing
	return out
}

// mappings returns the rules of the gateway's mappings in its kernel.
func (g *gateway) mappings() string {
	g.t.Helper()
	out, err := cluster.Run(g.t.Context(), g.host, "nft", "list", "chain", "inet", "filter", "prerouting_miniupnpd")
	if err != nil {
		g.t.Error(err)
	}
	return out
}

// awaitOpen waits until the gateway maps a port to an address and port.
func (g *gateway) awaitOpen(port int, to string, within time.Duration) {
	g.t.Helper()
	until(g.t, within, fmt.Sprintf("%s maps %d to %s", g.host, port, to), func(ctx) error {
		if have := g.mappings(); !strings.Contains(have, fmt.Sprintf("dport %d dnat ip to %s\n", port, to)) {
			return errors.New(have)
		}
		return nil
	})
}

// awaitClosed waits until the gateway maps nothing.
func (g *gateway) awaitClosed(within time.Duration) {
	g.t.Helper()
	until(g.t, within, g.host+" maps nothing", func(ctx) error {
		if have := g.mappings(); strings.Contains(have, "dnat") {
			return errors.New(have)
		}
		return nil
	})
}

// awaitPage waits until the client on the far side gets a page from a backend.
func (g *gateway) awaitPage(url string, within time.Duration) {
	g.t.Helper()
	until(g.t, within, "the far side reaches "+url, func(c ctx) error {
		c, cancel := context.WithTimeout(c, time.Second)
		defer cancel()
		body, err := cluster.Get(c, "far-"+g.host, url)
		if err == nil && !strings.HasPrefix(body, "web-") {
			err = fmt.Errorf("it got %q", body)
		}
		return err
	})
}

// forwardedService is the example of kube-vip's documentation: a Service on port 32380, to be opened by UPnP.
func forwardedService(name, vip string, opts ...func(*corev1.Service)) *corev1.Service {
	port := func(s *corev1.Service) { s.Spec.Ports[0].Port = 32380 }
	return webService(name, vip, append([]func(*corev1.Service){port, lab.Annotated("kube-vip.io/forwardUPNP", "true")}, opts...)...)
}

// echoDatagrams has the web pods answer UDP datagrams on a port until the test ends.
func echoDatagrams(t *testing.T, port int) {
	t.Helper()
	for _, p := range webPods {
		err := cluster.InNamespace(lab.PodNamespace(p), func() error {
			c, err := net.ListenPacket("udp4", fmt.Sprint(":", port))
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			go func() {
				buf := make([]byte, 100)
				for {
					n, from, err := c.ReadFrom(buf)
					if err != nil {
						return
					}
					c.WriteTo(append([]byte("echo "), buf[:n]...), from)
				}
			}()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The example of kube-vip's documentation, with TCP and UDP, and every way in which it ends.
func TestUPnP(t *testing.T) {
	g := newGateway(t, "rt", public1)
	g.start()
	start(t, env("enableUPNP", "true", "enable_service_security", "true"))
	echoDatagrams(t, 5353)
	udp := func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Port: 5300, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(5353)})
	}
	began := time.Now()
	createService(t, forwardedService("plunder-nginx", "10.77.0.50", udp))
	g.awaitPage("http://"+public1+":32380/", 10*time.Second)
	t.Logf("the far side got the page after %v", time.Since(began).Round(time.Millisecond))
	until(t, 10*time.Second, "a datagram is answered", func(c ctx) error {
		conn, err := cluster.DialFrom("far-rt")(c, "udp", public1+":5300")
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
		fmt.Fprint(conn, "hello")
		buf := make([]byte, 100)
		n, err := conn.Read(buf)
		if err == nil && string(buf[:n]) != "echo hello" {
			err = fmt.Errorf("it is %q", buf[:n])
		}
		return err
	})
	awaitEvent(t, "plunder-nginx", "PortMapped", "TCP "+public1+":32380 -> 10.77.0.50:32380 by gateway 10.77.0.1 (lab rt)")
	awaitStatus(t, "plunder-nginx", "10.77.0.50(VIP),"+public1+"(Proxy)", 2*time.Second)
	uid := string(getService(t, "plunder-nginx").UID)[:8]
	seen := listMappings(t)
	t.Log("\n" + seen)
	for _, want := range []string{"TCP 32380->10.77.0.50:32380 'herald default/plunder-nginx (" + uid + ")'", "UDP  5300->10.77.0.50:5300 ", " 35"} {
		if !strings.Contains(seen, want) {
			t.Errorf("upnpc -l does not show %q", want)
		}
	}

	node := awaitOwner(t, "plunder-nginx")
	metrics := check.Value(cluster.Get(t.Context(), node, "http://127.0.0.1:2112/metrics"))(t)
	for _, want := range []string{"herald_upnp_gateways 1\n", "herald_upnp_mappings 2\n", "herald_upnp_renewals_total 2\n", `herald_upnp_failures_total{reason="refused"} 0` + "\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %q", want)
		}
	}
	file := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	out, err := cluster.Run(t.Context(), "cp", herald, "status", "--kubeconfig", file)
	if line := regexp.MustCompile(`default/plunder-nginx +10\.77\.0\.50,11\.22\.33\.1:32380,11\.22\.33\.1:5300|default/plunder-nginx +10\.77\.0\.50,11\.22\.33\.1:5300,11\.22\.33\.1:32380`); err != nil || !line.MatchString(out) {
		t.Errorf("herald status: %v\n%s", err, out)
	}

	// Every way in which it ends.
	tests := []struct {
		name       string
		away, back func()
	}{
		{"un-annotated",
			func() {
				patchService(t, "plunder-nginx", `{"metadata":{"annotations":{"kube-vip.io/forwardUPNP":null}}}`)
			},
			func() {
				patchService(t, "plunder-nginx", `{"metadata":{"annotations":{"kube-vip.io/forwardUPNP":"true"}}}`)
			}},
		{"ignored",
			func() { patchService(t, "plunder-nginx", `{"metadata":{"annotations":{"kube-vip.io/ignore":"true"}}}`) },
			func() { patchService(t, "plunder-nginx", `{"metadata":{"annotations":{"kube-vip.io/ignore":null}}}`) }},
		{"deleted",
			func() {
				cluster.Client().CoreV1().Services("default").Delete(t.Context(), "plunder-nginx", metav1.DeleteOptions{})
			},
			func() {
				until(t, 5*time.Second, "the Service is gone", func(c ctx) error {
					_, err := cluster.Client().CoreV1().Services("default").Get(c, "plunder-nginx", metav1.GetOptions{})
					if !apierrors.IsNotFound(err) {
						return fmt.Errorf("%v", err)
					}
					return nil
				})
				createService(t, forwardedService("plunder-nginx", "10.77.0.50", udp))
			}},
	}
	for _, tt := range tests {
		tt.away()
		gone := time.Now()
		g.awaitClosed(3 * time.Second)
		t.Logf("%s: closed after %v", tt.name, time.Since(gone).Round(time.Millisecond))
		if tt.name == "un-annotated" {
			awaitStatus(t, "plunder-nginx", "10.77.0.50(VIP)", 2*time.Second)
		}
		tt.back()
		g.awaitOpen(32380, "10.77.0.50:32380", 10*time.Second)
	}
	// Another external port.
	patchService(t, "plunder-nginx", `{"metadata":{"annotations":{"heraldvip.io/upnp-external-port":"32380=8080"}}}`)
	g.awaitOpen(8080, "10.77.0.50:32380", 3*time.Second)
	g.awaitPage("http://"+public1+":8080/", 3*time.Second)
	until(t, 3*time.Second, "the port before is closed", func(ctx) error {
		if strings.Contains(g.mappings(), "dport 32380") {
			return errors.New(g.mappings())
		}
		return nil
	})
}

// While a gateway is to close the ports of a Service that is gone, the VIP stays bound, and nothing that the node listens on answers
// there (enable_service_security).
func TestUPnPOfAVIPThatGoes(t *testing.T) {
	for _, n := range cluster.Nodes() {
		startReadyServer(t, n)
	}
	g := newGateway(t, "rt", public1)
	g.start()
	start(t, env("enable_upnp", "true", "enable_service_security", "true"))
	createService(t, forwardedService("a", "10.77.0.50"))
	createService(t, webService("b", "10.77.0.51")) // which goes on to be limited
	g.awaitPage("http://"+public1+":32380/", 10*time.Second)
	node, vip := awaitOwner(t, "a"), netip.MustParseAddr("10.77.0.50")
	awaitOwner(t, "b")
	g.daemon.Signal(syscall.SIGSTOP) // it does not answer, so that the VIP stays as long as it may
	deleteServices(t, "a")
	began := time.Now()
	for slices.Contains(vips(t, node), vip) {
		if page, err := cluster.Get(withTimeout(t, 200*time.Millisecond), "cl", "http://10.77.0.50:6444/"); err == nil {
			t.Fatalf("%v after the Service was deleted the node answers at port 6444 of the VIP: %q", time.Since(began), page)
		}
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("the VIP was gone after %v", took)
	}
	g.daemon.Signal(syscall.SIGCONT) // else the Service stays for some seconds more
}

// The mapping outlives its owner: drained, killed, cut off; and ends with the last one.
func TestUPnPFailover(t *testing.T) {
	g := newGateway(t, "rt", public1)
	g.start("secure_mode=yes") // each host for itself: the VIP asks
	f := start(t, env("enable_upnp", "true", "vip_leaseduration", "6", "vip_renewdeadline", "4", "vip_retryperiod", "1"))
	createService(t, forwardedService("a", "10.77.0.50"))
	g.awaitPage("http://"+public1+":32380/", 10*time.Second)

	drained := awaitOwner(t, "a")
	f.node[drained].Signal(syscall.SIGTERM)
	f.node[drained].Wait(withTimeout(t, 20*time.Second))
	g.awaitOpen(32380, "10.77.0.50:32380", time.Second) // it was not closed
	g.awaitPage("http://"+public1+":32380/", 2*time.Second)
	awaitAnotherOwner(t, "a", drained, 5*time.Second)
	awaitStatus(t, "a", "10.77.0.50(VIP),"+public1+"(Proxy)", 10*time.Second)
	f.startAgain(drained)

	killed := awaitOwner(t, "a")
	f.killed = true
	f.node[killed].Signal(syscall.SIGKILL)
	began := time.Now()
	awaitAnotherOwner(t, "a", killed, 20*time.Second)
	g.awaitPage("http://"+public1+":32380/", 5*time.Second)
	t.Logf("killed: open again after %v", time.Since(began).Round(time.Millisecond))
	f.startAgain(killed)

	cut := awaitOwner(t, "a")
	check.OK(t, errors.Join(cluster.Cut(cut), cluster.CutAPI(cut)))
	began = time.Now()
	t.Cleanup(func() { cluster.Reconnect(cut); cluster.ConnectAPI(cut) })
	awaitAnotherOwner(t, "a", cut, 20*time.Second)
	g.awaitPage("http://"+public1+":32380/", 5*time.Second)
	t.Logf("cut off from everything: open again after %v", time.Since(began).Round(time.Millisecond))
	check.OK(t, errors.Join(cluster.Reconnect(cut), cluster.ConnectAPI(cut)))
	f.awaitReady(cut)
	until(t, 10*time.Second, "its node lease says that it reaches the others again", func(ctx ctx) error {
		l, err := cluster.Client().CoordinationV1().Leases("kube-system").Get(ctx, vip.NodeLeasePrefix+cut, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if n, ok := lease.ParseNodeLease(l); !ok || n.Fenced || n.Info.Isolated {
			return fmt.Errorf("it says %+v", n)
		}
		return nil
	})

	// Herald is uninstalled: all stop at once. A mapping that its owner has not renewed yet would last as long as the gateway keeps it.
	until(t, 10*time.Second, "the owner has had the port mapped", func(ctx ctx) error {
		metrics, err := cluster.Get(ctx, awaitOwner(t, "a"), "http://127.0.0.1:2112/metrics")
		if !strings.Contains(metrics, "herald_upnp_mappings 1") {
			return fmt.Errorf("no mapping in its metrics: %v", err)
		}
		return nil
	})
	for _, p := range f.node {
		p.Signal(syscall.SIGTERM)
	}
	for _, p := range f.node {
		p.Wait(withTimeout(t, 30*time.Second))
	}
	if have := g.mappings(); strings.Contains(have, "dnat") {
		t.Errorf("left behind:\n%s", have)
	}
}

// Gateways that forget, move, come late, and two of them.
func TestUPnPGateways(t *testing.T) {
	g := newGateway(t, "rt", public1)
	start(t, env("enable_upnp", "true"))
	createService(t, forwardedService("a", "10.77.0.50"))
	awaitEvent(t, "a", "PortNotMapped", "no UPnP gateway answers on eth0")
	g.start()
	began := time.Now()
	g.awaitPage("http://"+public1+":32380/", 20*time.Second)
	t.Logf("a gateway that comes late: open after %v", time.Since(began).Round(time.Millisecond))
	// Power off, power on: it has forgotten everything.
	g.stop(syscall.SIGKILL)
	g.start()
	began = time.Now()
	g.awaitPage("http://"+public1+":32380/", 45*time.Second)
	t.Logf("one that was restarted: open after %v", time.Since(began).Round(time.Millisecond))
	// The provider gives it another address.
	for _, change := range [][]string{{"addr", "del", public1 + "/24", "dev", "wan0"}, {"addr", "add", "11.22.33.9/24", "dev", "wan0"}} {
		check.Value(cluster.Run(t.Context(), "rt", append([]string{"ip"}, change...)...))(t)
	}
	// A second gateway.
	g2 := newGateway(t, "pr", public2)
	g2.start()
	awaitStatus(t, "a", "10.77.0.50(VIP),11.22.33.9(Proxy),"+public2+"(Proxy)", 60*time.Second)
	g.awaitPage("http://11.22.33.9:32380/", 2*time.Second)
	g2.awaitOpen(32380, "10.77.0.50:32380", time.Second)
}

// What a gateway refuses is reported by Events, and other Services are not harmed.
func TestUPnPRefused(t *testing.T) {
	g := newGateway(t, "rt", public1)
	g.start("deny 8081 10.77.0.0/24 0-65535")
	start(t, env("enable_upnp", "true", "upnp_namespaces", "default", "upnp_ports", "8000-40000"))
	good := observe(t, "good", "10.77.0.60")
	if out, err := cluster.Run(t.Context(), "cl", "upnpc", "-m", "eth0", "-e", "a game", "-a", "10.77.0.100", "32380", "32380", "TCP", "3600"); err != nil {
		t.Fatal(err, out)
	}
	createService(t, forwardedService("a", "10.77.0.50"))
	awaitEvent(t, "a", "PortNotMapped", `its port 32380/TCP belongs to 10.77.0.100 port 32380 ("a game")`)
	if have := g.mappings(); !strings.Contains(have, "dport 32380 dnat ip to 10.77.0.100:32380\n") {
		t.Errorf("it was overwritten:\n%s", have)
	}
	patchService(t, "a", `{"metadata":{"annotations":{"heraldvip.io/upnp-external-port":"8080"}}}`)
	awaitEvent(t, "a", "PortMapped", "-> 10.77.0.50:32380")
	createService(t, forwardedService("b", "10.77.0.51", lab.Annotated("heraldvip.io/upnp-external-port", "8081")))
	awaitEvent(t, "b", "PortNotMapped", "turn secure mode off on the router")
	createService(t, forwardedService("c", "10.77.0.52", lab.Annotated("heraldvip.io/upnp-external-port", "22")))
	awaitEvent(t, "c", "PortNotMapped", "none of upnp_ports")
	createService(t, forwardedService("d", "10.77.0.53", lab.Annotated("heraldvip.io/upnp-external-port", "all of them")))
	awaitEvent(t, "d", "InvalidField", "heraldvip.io/upnp-external-port")
	good.expectUnharmed(100 * time.Millisecond)
}

// A mapping for ever, of a Service that is deleted while no Herald runs, is removed once one does. What
// another program has on the gateway stays, and what a Herald of another cluster has.
func TestUPnPServiceDeletedMeanwhile(t *testing.T) {
	g := newGateway(t, "rt", public1)
	g.start()
	f := start(t, env("enable_upnp", "true"))
	f.killed = true
	createService(t, forwardedService("a", "10.77.0.50", lab.Annotated("kube-vip.io/upnp-lease-duration", "0")))
	g.awaitOpen(32380, "10.77.0.50:32380", 10*time.Second)
	for _, p := range f.node {
		p.Signal(syscall.SIGKILL)
		p.Wait(withTimeout(t, 10*time.Second))
	}
	check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	for port, description := range map[string]string{"9001": "a program", "9002": "herald default/a (01234567)", "9003": "herald default/a (01234567 89abcdef)"} {
		if out, err := cluster.Run(t.Context(), "cl", "upnpc", "-m", "eth0", "-e", description, "-r", port, "TCP"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	before := g.mappings()
	for _, want := range []string{"dport 32380", "dport 9001", "dport 9002", "dport 9003"} {
		if !strings.Contains(before, want) {
			t.Fatalf("there is no %s in\n%s", want, before)
		}
	}

	for _, n := range cluster.Nodes() {
		f.startOn(n)
	}
	began := time.Now()
	until(t, 2*time.Minute, "the port is closed", func(ctx) error {
		if have := g.mappings(); strings.Contains(have, "dport 32380") {
			return errors.New(have)
		}
		return nil
	})
	t.Logf("closed %v after Herald was started", time.Since(began).Round(time.Second))
	after := g.mappings()
	for _, want := range []string{"dport 9001", "dport 9002", "dport 9003"} {
		if !strings.Contains(after, want) {
			t.Errorf("there is no %s any more in\n%s", want, after)
		}
	}
}
