package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/check"
)

// announceByARP has a host announce an address by a gratuitous ARP request, as a host does
// that is given an address that is in use (RFC 5227 section 2.3).
func announceByARP(t *testing.T, host, addr string) {
	t.Helper()
	err := cluster.InNamespace(host, func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		c, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_ARP, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		a := netip.MustParseAddr(addr).AsSlice()
		broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		f := append(append([]byte{}, broadcast...), ifi.HardwareAddr...)
		f = append(f, 0x08, 0x06, 0, 1, 8, 0, 6, 4)
		f = binary.BigEndian.AppendUint16(f, 1)
		f = append(append(f, ifi.HardwareAddr...), a...)
		f = append(append(f, make([]byte, 6)...), a...)
		_, err = c.WriteTo(f, &packet.Addr{HardwareAddr: broadcast})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitStatusOutput waits until herald status shows something of a Service.
func awaitStatusOutput(t *testing.T, want string, within time.Duration) {
	t.Helper()
	file := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	until(t, within, "herald status shows "+want, func(ctx context.Context) error {
		out, err := cluster.Run(ctx, "cp", herald, "status", "--kubeconfig", file)
		if err == nil && !regexp.MustCompile(want).MatchString(out) {
			err = fmt.Errorf("it shows\n%s", out)
		}
		return err
	})
}

func runOn(t *testing.T, host string, argv ...string) {
	t.Helper()
	if out, err := cluster.Run(context.Background(), host, argv...); err != nil {
		t.Fatalf("%v: %v %s", argv, err, out)
	}
}

// Another host of the LAN has a VIP before it is announced, or takes it afterwards; and an owner does not answer for its VIP.
func TestForeignHosts(t *testing.T) {
	start(t, env())
	otherMAC := cluster.MAC("rt")

	// Another host has the address already: nobody announces it, and an Event says why.
	addresses := []string{"10.77.0.50/32", "fd77::50/128"}
	for _, a := range addresses {
		runOn(t, "rt", "ip", "addr", "add", a, "dev", "eth0", "nodad")
	}
	t.Cleanup(func() {
		for _, a := range append(addresses, "10.77.0.51/32") {
			cluster.Run(context.Background(), "rt", "ip", "addr", "del", a, "dev", "eth0")
		}
	})
	createService(t, webService("a", "10.77.0.50,fd77::50"))
	awaitEvent(t, "a", "AddressInUse", "10.77.0.50 is in use by another host on eth0 (MAC "+otherMAC+")")
	awaitEvent(t, "a", "AddressInUse", "fd77::50 is in use by another host on eth0 (MAC "+otherMAC+")")
	awaitStatusOutput(t, `default/a +\(10\.77\.0\.50\),\(fd77::50\) .*MAC `+otherMAC, 10*time.Second)
	for _, n := range cluster.Nodes() {
		if left := vips(t, n); len(left) > 0 {
			t.Errorf("%s has %v", n, left)
		}
	}

	// Another takes an address that is announced, and announces it.
	createService(t, webService("b", "10.77.0.51"))
	holder := awaitOwner(t, "b")
	awaitReachable(t, "http://10.77.0.51/")
	runOn(t, "rt", "ip", "addr", "add", "10.77.0.51/32", "dev", "eth0")
	announceByARP(t, "rt", "10.77.0.51")
	taken := time.Now()
	awaitEvent(t, "b", "VIPForeignMAC", "claims 10.77.0.51 (MAC "+otherMAC+")")
	awaitReachable(t, "http://10.77.0.51/") // the client was told again at once
	awaitStatusOutput(t, `default/b +10\.77\.0\.51 .*VIPForeignMAC.*`+otherMAC, 10*time.Second)
	metrics, err := cluster.Get(t.Context(), holder, "http://127.0.0.1:2112/metrics")
	if err != nil || !strings.Contains(metrics, `herald_vip_problems{problem="conflict"} 1`) {
		t.Errorf("metrics: %v, herald_vip_problems is not as it should be", err)
	}

	// An owner that does not answer for one of its VIPs.
	createService(t, webService("c", "10.77.0.52"))
	silentNode := awaitOwner(t, "c")
	runOn(t, silentNode, "nft", "add table arp e2e; add chain arp e2e in { type filter hook input priority 0; }; add rule arp e2e in arp daddr ip 10.77.0.52 drop")
	t.Cleanup(func() { cluster.Run(context.Background(), silentNode, "nft", "delete table arp e2e") })
	silenced := time.Now()

	// The first one becomes free.
	who := whoHas(t, 50*time.Millisecond, "10.77.0.50", "fd77::50")
	for _, a := range addresses {
		runOn(t, "rt", "ip", "addr", "del", a, "dev", "eth0")
	}
	freed := time.Now()
	for _, a := range []string{"10.77.0.50", "fd77::50"} {
		awaitAnswer(t, who, a, 70*time.Second) // it is asked for again each minute at the latest
	}
	t.Logf("announced %v after it was free", time.Since(freed).Round(time.Millisecond))
	who.Stop()
	awaitStatus(t, "a", "10.77.0.50(VIP),fd77::50(VIP)", 2*time.Second)
	awaitStatusOutput(t, `(?m)default/a +10\.77\.0\.50,fd77::50 +\S+ +\S+ +VIP *$`, 2*time.Second)

	await := func(name, reason, words string, within time.Duration) {
		t.Helper()
		until(t, within, "an Event "+reason+" on "+name, func(ctx context.Context) error {
			out, err := cluster.Kubectl(ctx, "get", "events", "-o", `jsonpath={range .items[*]}{.involvedObject.name} {.reason} {.message}{"\n"}{end}`)
			if err == nil && !regexp.MustCompile(`(?m)^`+name+" "+reason+" .*"+regexp.QuoteMeta(words)).MatchString(out) {
				err = fmt.Errorf("there are only\n%s", out)
			}
			return err
		})
	}
	await("c", "VIPUnanswered", "node "+silentNode+" owns it, but does not answer", 15*time.Second)
	t.Logf("reported %v after it ceased to answer", time.Since(silenced).Round(100*time.Millisecond))
	awaitStatusOutput(t, `default/c +10\.77\.0\.52 +`+silentNode+` .*VIPUnanswered`, 10*time.Second)

	// The faults end.
	runOn(t, silentNode, "nft", "delete table arp e2e")
	runOn(t, "rt", "ip", "addr", "del", "10.77.0.51/32", "dev", "eth0")
	await("c", "VIPAnswered", "node "+silentNode, 10*time.Second)
	await("b", "VIPAnswered", "10.77.0.51", 50*time.Second)
	t.Logf("reported to be over %v after it was taken", time.Since(taken).Round(time.Second))
	awaitStatusOutput(t, `(?m)default/b +10\.77\.0\.51 +`+holder+` +\S+ +VIP *$`, 2*time.Second)
	if now := awaitOwner(t, "b"); now != holder {
		t.Errorf("b moved to %s", now)
	}
}
