package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// serveUDP answers each packet to a port of a host by name, until the test ends.
func serveUDP(t *testing.T, host string, port int, name string) {
	t.Helper()
	check.OK(t, cluster.InNamespace(host, func() error {
		c, err := net.ListenPacket("udp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			for b := make([]byte, 100); ; {
				_, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte(name), from)
			}
		}()
		return nil
	}))
}

// sendUDP sends a packet from one port of the client's each 50 ms, and returns who answered last.
func sendUDP(t *testing.T, to string) *atomic.Value {
	t.Helper()
	answer := &atomic.Value{}
	answer.Store("")
	check.OK(t, cluster.InNamespace("cl", func() error {
		c, err := net.ListenPacket("udp", ":0") // not connected, so that no ICMP error ends it
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))
			for {
				if _, err := c.WriteTo([]byte("x"), at); strings.Contains(fmt.Sprint(err), "closed") {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		}()
		go func() {
			for b := make([]byte, 100); ; {
				n, _, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				answer.Store(string(b[:n]))
			}
		}()
		return nil
	}))
	return answer
}

// awaitUDP waits until packets are answered by one of the Pods.
func awaitUDP(t *testing.T, answer *atomic.Value, within time.Duration, what string) {
	t.Helper()
	until(t, within, "answers by a Pod, "+what, func(context.Context) error {
		if who := answer.Load(); who != "pod" {
			return fmt.Errorf("the last answer is %q", who)
		}
		return nil
	})
}

func udpPort(port int32) corev1.ServicePort {
	return corev1.ServicePort{
		Name: fmt.Sprint("udp", port), Protocol: corev1.ProtocolUDP, Port: port, TargetPort: intstr.FromInt32(port),
	}
}

// pausableProxies returns what stops the kube-proxies of all nodes, and what has them go on.
func pausableProxies(t *testing.T) (stopAll, startAll func()) {
	stopAll = func() {
		for _, n := range cluster.Nodes() {
			check.OK(t, cluster.PauseProxy(n))
		}
	}
	startAll = func() {
		for _, n := range cluster.Nodes() {
			_ = cluster.ResumeProxy(n)
		}
	}
	t.Cleanup(startAll)
	return stopAll, startAll
}

// Who sends to a VIP before this node's rules translate it is served once they do, though its packets never pause: before the
// Service is there, a port of it, the VIP on this node, or kube-proxy; and also where a process of the node listens at that port.
func TestUDPBeforeService(t *testing.T) {
	start(t, env("vip_leaseduration", "5"))
	for _, p := range webPods {
		for _, port := range []int{5300, 5301, 5302} {
			serveUDP(t, lab.PodNamespace(p), port, "pod")
		}
	}
	for _, n := range cluster.Nodes() {
		serveUDP(t, n, 5302, n)
	}
	stopAll, startAll := pausableProxies(t)
	// A node that has not the VIP yet forwards what comes for it; by the same link, of which the client is not to be told.
	runOn(t, "cl", "sysctl", "-qw", "net.ipv4.conf.all.accept_redirects=0", "net.ipv4.conf.eth0.accept_redirects=0")
	runOn(t, "cl", "ip", "route", "add", "10.77.1.50", "via", "10.77.0.11")
	t.Cleanup(func() { cluster.Run(context.Background(), "cl", "ip", "route", "del", "10.77.1.50") })
	forwarded := sendUDP(t, "10.77.1.50:5300")
	first, listened := sendUDP(t, "10.77.0.50:5300"), sendUDP(t, "10.77.0.50:5302")
	stopAll()
	createService(t, webService("a", "10.77.0.50", func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{udpPort(5300), udpPort(5302)}
	}))
	createService(t, webService("b", "10.77.1.50", func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{udpPort(5300)} }))
	awaitOwner(t, "a")
	owner := awaitOwner(t, "b")
	v4, _ := cluster.Addrs(owner)
	runOn(t, "cl", "ip", "route", "replace", "10.77.1.50", "via", v4.String())
	time.Sleep(time.Second) // some packets come to the VIP, of which nobody is to be heard
	startAll()
	awaitUDP(t, first, 15*time.Second, "of a client that began before the Service")
	awaitUDP(t, forwarded, 15*time.Second, "of a client whose first packets were forwarded")
	awaitUDP(t, listened, 15*time.Second, "at a port on which the node listens")

	stopAll()
	second := sendUDP(t, "10.77.0.50:5301")
	time.Sleep(500 * time.Millisecond)
	patchService(t, "a", `{"spec":{"ports":[{"name":"udp5301","protocol":"UDP","port":5301,"targetPort":5301}]}}`)
	startAll()
	awaitUDP(t, second, 15*time.Second, "at a second port")
}

// The same by BGP alone, where the VIP is bound nowhere and nodes would send packets back to the router: an aggregate brings these before the
// Service is there, its route before kube-proxy has rules. Connections are refused meanwhile, and packets to what is no port of the VIP later.
func TestUDPBeforeServiceByBGP(t *testing.T) {
	router, _ := startRouters(t)
	start(t, bgpEnv("bgp_peers", "10.77.0.1:65001", "herald_bgp_aggregates", "10.79.0.0/24"))
	for _, p := range webPods {
		serveUDP(t, lab.PodNamespace(p), 5300, "pod")
		serveUDP(t, lab.PodNamespace(p), 5301, "pod")
	}
	createService(t, webService("a", "10.79.0.49"))
	awaitHops(t, router, "10.79.0.0/24", 3, 10*time.Second)
	stopAll, startAll := pausableProxies(t)
	refused := func(when string) {
		t.Helper()
		check.OK(t, cluster.InNamespace("cl", func() error {
			c, err := net.DialTimeout("tcp", "10.79.0.50:81", 2*time.Second)
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("a connection to the VIP %s ended with %v, want it refused", when, err)
			}
			return nil
		}))
	}
	first := sendUDP(t, "10.79.0.50:5300")
	time.Sleep(500 * time.Millisecond) // some packets come by the aggregate
	stopAll()
	createService(t, webService("b", "10.79.0.50", func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{udpPort(5300), udpPort(5301)}
	}))
	awaitHops(t, router, "10.79.0.50", 3, 10*time.Second)
	second := sendUDP(t, "10.79.0.50:5301")
	time.Sleep(time.Second) // some packets come by the route
	refused("before kube-proxy has its rules")
	startAll()
	awaitUDP(t, first, 15*time.Second, "of a client that began before the Service")
	awaitUDP(t, second, 15*time.Second, "of a client that began before kube-proxy had its rules")
	refused("at another port")
}

// Hardening files set sysctls by which the kernel does not answer hosts of other networks, or none, for a VIP that is in no network of the
// link; clients are answered all the same.
func TestARPSysctls(t *testing.T) {
	start(t, env())
	const address = "10.77.1.60"
	t.Cleanup(func() {
		for _, n := range cluster.Nodes() {
			cluster.Run(context.Background(), n, "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=0", "net.ipv4.conf.all.arp_filter=0")
		}
	})
	createService(t, webService("a", address))
	owner := awaitOwner(t, "a")
	for _, setting := range []string{"arp_ignore=0", "arp_ignore=1", "arp_ignore=2", "arp_ignore=3", "arp_ignore=8", "arp_ignore=0", "arp_filter=1"} {
		runOn(t, owner, "sysctl", "-qw", "net.ipv4.conf.all."+setting)
		w := whoHas(t, 50*time.Millisecond, address)
		awaitAnswer(t, w, address, 3*time.Second)
		w.Stop()
	}
}

// A switch that tracks addresses answers each ARP probe by one of its own: it does not keep a VIP from being served, and nobody is told to look
// for a host that has the address.
func TestSwitchProbes(t *testing.T) {
	const address = "10.77.0.61"
	check.OK(t, cluster.InNamespace("rt", func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		c, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_ARP, nil)
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			for b := make([]byte, 100); ; {
				n, _, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				isProbe := n >= 42 && b[21] == 1 && netip.AddrFrom4([4]byte(b[28:32])).IsUnspecified()
				if !isProbe || netip.AddrFrom4([4]byte(b[38:42])).String() != address {
					continue
				}
				probe := slices.Clone(b[:42])
				copy(probe[6:12], ifi.HardwareAddr)
				copy(probe[22:28], ifi.HardwareAddr)
				_, _ = c.WriteTo(probe, &packet.Addr{HardwareAddr: net.HardwareAddr(probe[:6])})
			}
		}()
		return nil
	}))
	start(t, env())
	createService(t, webService("a", address))
	awaitStatus(t, "a", address+"(VIP)", 15*time.Second)
	events := check.Value(cluster.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{}))(t)
	for _, e := range events.Items {
		if e.InvolvedObject.Name == "a" && e.Reason == "AddressInUse" {
			t.Errorf("Event %s: %s", e.Reason, e.Message)
		}
	}
}
