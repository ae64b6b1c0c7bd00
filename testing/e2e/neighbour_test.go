package e2e

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/arp"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// macOf returns the MAC of a host on the LAN.
func macOf(host string) net.HardwareAddr {
	mac, err := net.ParseMAC(cluster.MAC(host))
	if err != nil {
		panic(err)
	}
	return mac
}

// announcementsOf returns the frames by which a host announces addresses, one after the other, in the name of another.
func announcementsOf(host, inTheNameOf string, addrs []string) func(i int) []byte {
	var frames [][]byte
	for _, a := range addrs {
		frames = append(frames, lab.ForgeARP(macOf(host), lab.Broadcast, macOf(inTheNameOf), netip.MustParseAddr(a), arp.OperationRequest))
	}
	return func(i int) []byte { return frames[i%len(frames)] }
}

// While the API server is away, a host of the LAN announces the VIPs in the name of another node, and answers TCP connections to a node's
// heartbeat port by a reset. Each VIP goes on being answered, by its owner.
func TestForgedFrames(t *testing.T) {
	start(t, env())
	s := observe(t, "a", "10.77.0.50")
	createService(t, webService("b", "10.77.0.51"))
	createService(t, webService("c", "10.77.0.52"))
	vips := []string{"10.77.0.50", "10.77.0.51", "10.77.0.52"}
	owners := map[string]string{"10.77.0.50": s.owner, "10.77.0.51": awaitOwner(t, "b"), "10.77.0.52": awaitOwner(t, "c")}
	awaitDetectable(t)
	runOn(t, s.owner, "nft", "add table inet e2e; add chain inet e2e in { type filter hook input priority 0; }; add rule inet e2e in tcp dport 7947 reject with tcp reset")
	t.Cleanup(func() { cluster.Run(context.Background(), s.owner, "nft", "delete table inet e2e") })
	check.OK(t, cluster.StopAPI())
	t.Cleanup(func() { cluster.StartAPI(context.Background()) })
	time.Sleep(4 * time.Second) // all renewals are late
	who := whoHas(t, 20*time.Millisecond, vips...)
	forged := check.Value(cluster.Flood(t.Context(), "rt", len(vips), announcementsOf("rt", otherNodes(s.owner)[0], vips)))(t)
	time.Sleep(15 * time.Second)
	r := who.Stop()
	for _, a := range r.Addrs {
		if !a.Stayed(100 * time.Millisecond) {
			t.Errorf("%s of %s: unanswered for %v, owners %v", a.Addr, owners[a.Addr.String()], a.LongestSilence, a.Timeline)
		}
	}
	check.OK(t, cluster.StartAPI(withTimeout(t, time.Minute)))
	if w, _ := s.report(); !w.Stayed(100 * time.Millisecond) {
		t.Errorf("it moved: %v", w.Timeline)
	}
	awaitEvent(t, "a", "VIPForeignMAC", "10.77.0.50")
	check.Value(forged.Stop())(t)
	awaitRecovery(t)
}

// TestFloods: a host of the LAN sends as much as one core can to each door of a node: what costs Herald
// there, and whether VIPs are answered and the nodes hear each other meanwhile.
func TestFloods(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	node := s.owner
	v4, _ := cluster.Addrs(node)
	other4, _ := cluster.Addrs(otherNodes(node)[0])
	rt4, _ := cluster.Addrs("rt")
	vip := netip.MustParseAddr("10.77.0.50")
	to, from := macOf(node), macOf("rt")
	port := netip.AddrPortFrom(v4, 7947)
	junk := make([]byte, 400)
	rand.Read(junk)
	forged := append([]byte("HP\x01\x00"), junk...) // of the right form, with no key that there is
	withKey := lab.ForgeUDP(from, to, netip.AddrPortFrom(other4, 7947), port, append(append([]byte("HP\x01\x00"), keyID(t)...), junk...))
	const process = 14 + 20 + 8 + 4 + 4 // where in the frame the process ID is
	offer := dhcpOffer(slices.Clone(junk))
	fromAfar := lab.ForgeAdvertisement(from, from, netip.MustParseAddr("fd77::200"))
	fromAfar[14+7] = 64
	wrongLength := lab.ForgeUDP(from, lab.Broadcast, netip.AddrPortFrom(rt4, 67), netip.MustParseAddrPort("255.255.255.255:68"), offer)
	binary.BigEndian.PutUint16(wrongLength[14+20+4:], 7)
	createService(t, webService("d", "0.0.0.0")) // there is no server, so it goes on asking
	same := func(frame []byte) func(int) []byte { return func(int) []byte { return frame } }
	floods := []struct {
		what  string
		frame func(i int) []byte
	}{
		{"ARP announcements of the VIP by a foreign MAC", same(lab.ForgeARP(from, to, from, vip, arp.OperationRequest))},
		{"ARP replies", same(lab.ForgeARP(from, to, from, netip.MustParseAddr("10.77.0.200"), arp.OperationReply))},
		{"neighbor advertisements", same(lab.ForgeAdvertisement(from, from, netip.MustParseAddr("fd77::200")))},
		{"ARP frames of an operation that there is not", same(lab.ForgeARP(from, lab.Broadcast, from, vip, 99))},
		{"neighbor advertisements with the hop limit of a packet from afar", same(fromAfar)},
		{"heartbeats without the key", same(lab.ForgeUDP(from, to, netip.AddrPortFrom(rt4, 7947), port, forged))},
		{"heartbeats in the name of another node", same(lab.ForgeUDP(from, to, netip.AddrPortFrom(other4, 7947), port, forged))},
		{"heartbeats that name the key, each by another process", func(i int) []byte {
			binary.BigEndian.PutUint64(withKey[process:], uint64(i))
			return withKey
		}},
		{"UDP packets to DHCP clients whose length is wrong", same(wrongLength)},
		{"DHCP offers to all nodes", same(lab.ForgeUDP(from, lab.Broadcast, netip.AddrPortFrom(rt4, 67), netip.MustParseAddrPort("255.255.255.255:68"), offer))},
	}
	const lasts = 4 * time.Second
	limit := mayUse(0.2, f.cpu(lasts)[node]) // without a Limit most cost 0.5 to 0.8
	for _, x := range floods {
		before, began := usage(t, f), time.Now()
		flood := check.Value(cluster.Flood(t.Context(), "rt", 0, x.frame))(t)
		time.Sleep(lasts)
		after, took := usage(t, f), time.Since(began).Seconds()
		sent := check.Value(flood.Stop())(t)
		core := 0.0 // of the node where it costs most
		for n := range after {
			core = max(core, (after[n]-before[n]).Seconds()/took)
		}
		t.Logf("%s: %.0f frames a second cost %.3f of a core", x.what, float64(sent)/took, core)
		if core > limit {
			t.Errorf("%s: Herald takes %.2f of a core, want %.2f at most", x.what, core, limit)
		}
	}
	w, _ := s.report()
	if !w.Stayed(500 * time.Millisecond) {
		t.Errorf("%s: unanswered for %v, owners %v", vip, w.LongestSilence, w.Timeline)
	}
	for n, p := range f.node {
		if log := p.Log(); strings.Contains(log, "another node does not answer on the VIPs' link") {
			t.Errorf("%s took another node for dead\n%s", n, tail(log, 20))
		}
	}
}

// usage returns the CPU time that each Herald has used, by node.
func usage(t *testing.T, f *heralds) map[string]time.Duration {
	t.Helper()
	all := make(map[string]time.Duration)
	for n, p := range f.node {
		cpu, _, err := p.Usage()
		check.OK(t, err)
		all[n] = cpu
	}
	return all
}

// heartbeatKeys returns the IDs of the keys of the heartbeats that a node has.
func heartbeatKeys(t *testing.T, node string) []string {
	t.Helper()
	text := check.Value(cluster.Kubectl(t.Context(), "-n", "kube-system", "get", "lease", "herald-node-"+node,
		"-o", `jsonpath={.metadata.annotations.heraldvip\.io/node}`))(t)
	var info struct{ HeartbeatKeys []string }
	check.OK(t, json.Unmarshal([]byte(text), &info))
	return info.HeartbeatKeys
}

// keyID returns the ID of the key of the heartbeats, which each packet names in the clear.
func keyID(t *testing.T) []byte {
	t.Helper()
	return check.Value(hex.DecodeString(heartbeatKeys(t, "n1")[0]))(t)
}
