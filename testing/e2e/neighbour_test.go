package e2e

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/check"
)

// forgeAnnouncements has a host of the LAN announce addresses by gratuitous ARP once a second, in the
// name of a node (its MAC as the sender's), until ctx ends or a frame can't be sent.
func forgeAnnouncements(ctx context.Context, host, inTheNameOf string, addrs []string) error {
	mac, err := net.ParseMAC(cluster.MAC(inTheNameOf))
	if err != nil {
		return err
	}
	return cluster.InNamespace(host, func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		c, err := packet.Listen(ifi, packet.Raw, unix.ETH_P_ARP, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			for _, a := range addrs {
				if _, err := c.WriteTo(announcementFrame(ifi.HardwareAddr, mac, netip.MustParseAddr(a)), &packet.Addr{HardwareAddr: broadcast}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// announcementFrame is a gratuitous ARP request (RFC 5227 section 3) that says that addr is at sender, in
// a frame from another host.
func announcementFrame(from, sender net.HardwareAddr, addr netip.Addr) []byte {
	f := append(append([]byte{}, broadcast...), from...)
	f = append(f, 0x08, 0x06, 0, 1, 8, 0, 6, 4)
	f = binary.BigEndian.AppendUint16(f, 1)
	f = append(append(f, sender...), addr.AsSlice()...)
	return append(append(f, make([]byte, 6)...), addr.AsSlice()...)
}

// While the API server is away, a host of the LAN announces the VIPs in the name of another node, and
// answers TCP connections to a node's heartbeat port by a reset. Each VIP goes on being answered, by its
// owner.
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
	ctx, stop := context.WithTimeout(t.Context(), 15*time.Second)
	defer stop()
	check.OK(t, forgeAnnouncements(ctx, "rt", otherNodes(s.owner)[0], vips))
	r := who.Stop()
	for _, a := range r.Addrs {
		if len(a.Timeline) != 1 || a.LongestSilence > 100*time.Millisecond {
			t.Errorf("%s of %s: unanswered for %v, owners %v", a.Addr, owners[a.Addr.String()], a.LongestSilence, a.Timeline)
		}
	}
	check.OK(t, cluster.StartAPI(withTimeout(t, time.Minute)))
	if w, _ := s.report(); len(w.Timeline) != 1 {
		t.Errorf("it moved: %v", w.Timeline)
	}
	awaitEvent(t, "a", "VIPForeignMAC", "10.77.0.50")
	awaitRecovery(t)
}
