package netif

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var mv1 = vip.Macvlan{Name: "herald-1", Parent: "eth0", MAC: "02:00:00:00:00:a1", RPFilter: 2, IPv6: true}
var mv2 = vip.Macvlan{Name: "herald-2", Parent: "eth0", MAC: "02:00:00:00:00:a2"}

// removeAfterwards removes what a test has left.
func removeAfterwards(t *testing.T, names ...string) {
	t.Cleanup(func() {
		for _, n := range names {
			if l, err := netlink.LinkByName(n); err == nil {
				_ = netlink.LinkDel(l)
			}
		}
	})
}

// sysctlValue reads net.ipv4.conf, or another family's.
func sysctlValue(t *testing.T, name string) string {
	t.Helper()
	b := check.Value(os.ReadFile("/proc/sys/net/" + name))(t)
	return strings.TrimSpace(string(b))
}

// arpOfParent is what the macvlans' parent has for ARP.
func arpOfParent(t *testing.T) string {
	t.Helper()
	return "arp_ignore=" + sysctlValue(t, "ipv4/conf/eth0/arp_ignore") + " arp_announce=" + sysctlValue(t, "ipv4/conf/eth0/arp_announce")
}

// arpAnswers sends an ARP request for addr to the node by its link's other end, and returns who answered within a moment.
func arpAnswers(t *testing.T, link string, addr netip.Addr) []string {
	t.Helper()
	ifi := check.Value(net.InterfaceByName(link + "p"))(t)
	c := check.Value(packet.Listen(ifi, packet.Datagram, unix.ETH_P_ARP, nil))(t)
	defer c.Close()
	b := make([]byte, 28)
	copy(b, []byte{0, 1, 8, 0, 6, 4, 0, 1})
	copy(b[8:], ifi.HardwareAddr)
	copy(b[14:], []byte{10, 0, 0, 77})
	copy(b[24:], addr.AsSlice())
	check.Value(c.WriteTo(b, &packet.Addr{HardwareAddr: net.HardwareAddr{255, 255, 255, 255, 255, 255}}))(t)
	check.OK(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	var who []string
	for {
		n, _, err := c.ReadFrom(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return who
		}
		check.OK(t, err)
		if n >= 28 && b[7] == 2 && bytes.Equal(b[14:18], addr.AsSlice()) {
			who = append(who, net.HardwareAddr(b[8:14]).String())
		}
	}
}

func macvlansOf(n *Interfaces) []vip.Macvlan {
	all := worldOf(n).Macvlans
	slices.SortFunc(all, func(a, b vip.Macvlan) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// awaitGone waits until r knows of no link of this name: one that is removed is down before.
func awaitGone(t *testing.T, r *kRig, name string) {
	t.Helper()
	r.await(t, "it is gone", func() bool {
		return !slices.ContainsFunc(r.Links(), func(l vip.Link) bool { return l.Name == name })
	})
}

func TestMacvlan(t *testing.T) {
	eth0 := newVeth(t, "eth0", "10.0.0.5/24")
	removeAfterwards(t, "herald-1", "herald-2")
	sysctl(t, "net/ipv4/conf/eth0/arp_ignore", "0")
	sysctl(t, "net/ipv4/conf/eth0/arp_announce", "1")
	r, _ := kernelRig(t)
	links := r.Macvlans()
	check.Value(links.Set(t.Context(), []vip.Macvlan{mv1, mv2}))(t)
	r.await(t, "both are up", func() bool { // as the kernel says a moment later
		return cmp.Equal([]vip.Macvlan{mv1, mv2}, macvlansOf(r.Interfaces))
	})
	for name, want := range map[string]string{
		"ipv4/conf/herald-1/arp_ignore": "1", "ipv4/conf/herald-1/arp_announce": "2", "ipv4/conf/herald-1/rp_filter": "2",
		"ipv4/conf/herald-2/rp_filter": "0", "ipv6/conf/herald-1/autoconf": "0", "ipv6/conf/herald-1/accept_ra": "0",
		"ipv6/conf/herald-1/addr_gen_mode": "1", "ipv4/conf/eth0/arp_ignore": "1", "ipv4/conf/eth0/arp_announce": "2",
	} {
		check.Equal(t, sysctlValue(t, name), want, "%s", name)
	}
	l := check.Value(netlink.LinkByName("herald-1"))(t)
	m, ok := l.(*netlink.Macvlan)
	if !ok || m.Mode != netlink.MACVLAN_MODE_BRIDGE || m.HardwareAddr.String() != mv1.MAC || m.ParentIndex != eth0.Attrs().Index || m.Flags&net.FlagUp == 0 {
		t.Errorf("%+v", l)
	}
	r.await(t, "its link-local address, and no other", func() bool {
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		return err == nil && len(addrs) == 1 && addrs[0].IP.String() == "fe80::ff:fe00:a1"
	})
	check.Equal(t, slices.ContainsFunc(r.Info().Links, func(l vip.Link) bool { return strings.HasPrefix(l.Name, "herald-") }), false, "it is in the NodeInfo")

	// It answers for its address, with its hardware address; its parent doesn't.
	at := netip.MustParseAddr("10.0.0.50")
	check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.50/32", "herald-1")}))(t)
	check.Same(t, []string{mv1.MAC}, arpAnswers(t, "eth0", at), "who answers")
	check.Same(t, []string{eth0.Attrs().HardwareAddr.String()}, arpAnswers(t, "eth0", netip.MustParseAddr("10.0.0.5")), "who answers")
	// Set down, changed or removed behind our back.
	check.OK(t, netlink.LinkSetDown(l))
	r.await(t, "the change", func() bool { return len(macvlansOf(r.Interfaces)) == 1 })
	sysctl(t, "net/ipv4/conf/herald-1/arp_ignore", "0")
	check.Value(links.Set(t.Context(), []vip.Macvlan{mv1, mv2}))(t)
	r.await(t, "it is put right", func() bool {
		return len(macvlansOf(r.Interfaces)) == 2 && sysctlValue(t, "ipv4/conf/herald-1/arp_ignore") == "1"
	})
	r.await(t, "its link-local address, after it was down", func() bool { // which the kernel adds a moment later
		a, err := netlink.AddrList(l, netlink.FAMILY_V6)
		return err == nil && len(a) == 1
	})
	check.OK(t, netlink.LinkDel(l))
	awaitGone(t, r, mv1.Name)
	check.Equal(t, len(check.Value(links.Set(t.Context(), []vip.Macvlan{mv1, mv2}))(t)), 2, "macvlans, made again")
	// Another program adds its link-local address again, which another host has.
	l = check.Value(netlink.LinkByName("herald-1"))(t)
	peer := check.Value(netlink.LinkByName("eth0p"))(t)
	addOther(t, peer, "fe80::ff:fe00:a1/64")
	removeOther(t, l, "fe80::ff:fe00:a1/64")
	failDAD(t, l, "fe80::ff:fe00:a1/64")
	r.await(t, "the change", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.snapshot.addresses[addressKey{l.Attrs().Index, netip.MustParsePrefix("fe80::ff:fe00:a1/64")}].tentative
	})
	check.Value(links.Set(t.Context(), []vip.Macvlan{mv1, mv2}))(t)
	if a, err := netlink.AddrList(l, netlink.FAMILY_V6); err != nil || len(a) != 1 || a[0].Flags&unix.IFA_F_TENTATIVE != 0 {
		t.Errorf("its link-local address is not answered for: %v, %v", a, err)
	}
	// A renewal must not take its address for bound.
	r.await(t, "the address to be missed", func() bool { return len(worldOf(r.Interfaces).Bound) == 0 })

	// With the last one the parent gets back what it had.
	check.Value(links.Set(t.Context(), []vip.Macvlan{mv2}))(t)
	check.Equal(t, sysctlValue(t, "ipv4/conf/eth0/arp_ignore"), "1", "arp_ignore of the parent while a macvlan is there")
	check.Value(links.Set(t.Context(), nil))(t)
	check.Equal(t, arpOfParent(t), "arp_ignore=0 arp_announce=1", "the parent is left with")
	check.Equal(t, len(macvlansOf(r.Interfaces)), 0, "macvlans left")
}

// What an earlier process left is taken over, or removed; the parent's settings are
// known from it. It answers for nothing once its address has ended.
func TestMacvlanLeftOver(t *testing.T) {
	newVeth(t, "eth0", "10.0.0.5/24")
	removeAfterwards(t, "herald-1", "herald-2")
	sysctl(t, "net/ipv4/conf/eth0/arp_ignore", "0")
	r, stop := kernelRig(t)
	check.Value(r.Macvlans().Set(t.Context(), []vip.Macvlan{mv1, mv2}))(t)
	check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.50/32", "herald-1")}))(t)
	stop() // as if killed
	before := check.Value(netlink.LinkByName("herald-1"))(t)

	next, _ := kernelRig(t)
	check.Equal(t, len(macvlansOf(next.Interfaces)), 2, "macvlans that an owner goes on with")
	check.True(t, 10*time.Second, "the address to end", func() bool { return addresses(t, "herald-1") == "" })
	check.Equal(t, len(arpAnswers(t, "eth0", netip.MustParseAddr("10.0.0.50"))), 0, "hosts that still answer")
	check.Value(next.Macvlans().Set(t.Context(), []vip.Macvlan{mv1}))(t)
	after := check.Value(netlink.LinkByName("herald-1"))(t)
	check.Equal(t, before.Attrs().Index, after.Attrs().Index, "its index, unless it was made again")
	check.Equal(t, exists("herald-2"), false, "what nobody wants is still there")
	changed := mv1
	changed.MAC = "02:00:00:00:00:b1"
	check.Value(next.Macvlans().Set(t.Context(), []vip.Macvlan{changed}))(t)
	if l, err := netlink.LinkByName("herald-1"); err != nil || l.Attrs().HardwareAddr.String() != changed.MAC {
		t.Errorf("with another hardware address: %v, %v", l, err)
	}
	check.Value(next.Macvlans().Set(t.Context(), nil))(t)
	check.Equal(t, sysctlValue(t, "ipv4/conf/eth0/arp_ignore"), "0", "arp_ignore of the parent")
}

// The last macvlan on a link goes by another program: its parent gets back what it had, whether the macvlan is made again before or not, and also if an earlier
// process had made it.
func TestMacvlanRemovedByOthers(t *testing.T) {
	newVeth(t, "eth0", "10.0.0.5/24")
	removeAfterwards(t, "herald-1")
	for name, again := range map[string][]vip.Macvlan{"made again": {mv1}, "not wanted by then": nil} {
		for _, restarted := range []bool{false, true} {
			sysctl(t, "net/ipv4/conf/eth0/arp_ignore", "0")
			sysctl(t, "net/ipv4/conf/eth0/arp_announce", "1")
			r, stop := kernelRig(t)
			check.Value(r.Macvlans().Set(t.Context(), []vip.Macvlan{mv1}))(t)
			if restarted {
				stop()
				r, stop = kernelRig(t)
				check.Value(r.Macvlans().Set(t.Context(), []vip.Macvlan{mv1}))(t)
			}
			l := check.Value(netlink.LinkByName(mv1.Name))(t)
			check.OK(t, netlink.LinkDel(l))
			awaitGone(t, r, mv1.Name)
			check.Value(r.Macvlans().Set(t.Context(), again))(t)
			if got := sysctlValue(t, "ipv4/conf/eth0/arp_ignore"); len(again) > 0 && got != "1" {
				t.Errorf("%s: arp_ignore of the parent is %s while a macvlan is there", name, got)
			}
			check.Value(r.Macvlans().Set(t.Context(), nil))(t)
			check.Equal(t, arpOfParent(t), "arp_ignore=0 arp_announce=1", "%s, restarted %v: the parent is left with", name, restarted)
			stop()
		}
	}
}

// Links that are not Herald's are not touched, whatever is wanted.
func TestMacvlanOfOtherPrograms(t *testing.T) {
	eth0 := newVeth(t, "eth0", "10.0.0.5/24")
	removeAfterwards(t, "other", "herald-1")
	addBridge(t, "bridge0")
	addMacvlan(t, eth0, "other", "")
	r, _ := kernelRig(t)
	links := r.Macvlans()
	for _, name := range []string{"bridge0", "other", "eth0", "lo"} {
		w := mv1
		w.Name = name
		got, err := links.Set(t.Context(), []vip.Macvlan{w, mv2})
		if len(got) != 1 || got[0] != mv2 || err == nil || !strings.Contains(err.Error(), "not Herald's") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		check.Equal(t, worldOf(r.Interfaces).MacvlanErrors[name] != "", true, "%s: there is an error", name)
	}
	for what, w := range map[string]vip.Macvlan{
		"no interface": {Name: "herald-1", Parent: "eth9", MAC: mv1.MAC}, "no Ethernet": {Name: "herald-1", Parent: "eth0", MAC: "x"},
		"same hardware": {Name: "herald-1", Parent: "eth0", MAC: mv2.MAC},
	} {
		if _, err := links.Set(t.Context(), []vip.Macvlan{mv2, w}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check.Value(links.Set(context.Background(), nil))(t)
	for _, name := range []string{"bridge0", "other", "eth0"} {
		check.Equal(t, exists(name), true, "%s is there", name)
	}
}

// A macvlan that kube-vip left for a VIP makes room for Herald's, which has the same MAC address; others of kube-vip stay.
func TestMacvlanOfKubeVIP(t *testing.T) {
	eth0 := newVeth(t, "eth0", "10.0.0.5/24")
	removeAfterwards(t, "vip-398f068d", "vip-00000001", "herald-1")
	for name, mac := range map[string]string{"vip-398f068d": mv1.MAC, "vip-00000001": mv2.MAC} {
		addMacvlan(t, eth0, name, mac)
	}
	r, _ := kernelRig(t)
	check.Value(r.Macvlans().Set(t.Context(), []vip.Macvlan{mv1}))(t)
	check.Equal(t, exists("vip-398f068d"), false, "what kube-vip left is still there")
	check.Value(netlink.LinkByName("vip-00000001"))(t)
	check.Value(r.Macvlans().Set(t.Context(), nil))(t)
}

// A gateway's MAC address is nobody else's, also if it is resolved when the link is there already.
func TestMacvlanWithMACOfGateway(t *testing.T) {
	eth0 := newVeth(t, "eth0", "10.0.0.5/24")
	removeAfterwards(t, "herald-1", "herald-2")
	gateway := net.IPv4(10, 0, 0, 1)
	check.OK(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gateway}))
	neighbor := &netlink.Neigh{LinkIndex: eth0.Attrs().Index, IP: gateway, State: netlink.NUD_PERMANENT}
	resolve := func(mac string) {
		neighbor.HardwareAddr = check.Value(net.ParseMAC(mac))(t)
		check.OK(t, netlink.NeighSet(neighbor))
	}
	r, _ := kernelRig(t)
	links := r.Macvlans()
	resolve(mv1.MAC)
	for _, refused := range []vip.Macvlan{mv1, mv2} {
		resolve(refused.MAC)
		// The agent calls Set again after an error: an older message about a link may have come late.
		check.Until(t, 5*time.Second, refused.Name+" is refused, and not there", func() error {
			got, err := links.Set(t.Context(), []vip.Macvlan{mv1, mv2})
			if len(got) != 1 || got[0] == refused || err == nil || !strings.Contains(err.Error(), refused.MAC+" is that of the gateway 10.0.0.1") {
				return fmt.Errorf("%v, %v", got, err)
			}
			if exists(refused.Name) {
				return errors.New("it is there")
			}
			return nil
		})
	}
	check.Value(links.Set(context.Background(), nil))(t)
}

// A macvlan on a macvlan sits beside it.
func TestMacvlanOnMacvlan(t *testing.T) {
	eth0 := newVeth(t, "eth0", "10.0.0.5/24")
	removeAfterwards(t, "mv0", "herald-1")
	addMacvlan(t, eth0, "mv0", "")
	r, _ := kernelRig(t)
	w := mv1
	w.Parent = "mv0"
	check.Value(r.Macvlans().Set(t.Context(), []vip.Macvlan{w}))(t)
	before := check.Value(netlink.LinkByName(w.Name))(t)
	check.Value(r.Macvlans().Set(t.Context(), []vip.Macvlan{w}))(t)
	if after, err := netlink.LinkByName(w.Name); err != nil || after.Attrs().Index != before.Attrs().Index {
		t.Errorf("it was made again: %v, %v", after, err)
	}
}

// A hundred of them come and go within a pass or two.
func TestHundredMacvlans(t *testing.T) {
	newVeth(t, "eth0", "10.0.0.5/24")
	r, _ := kernelRig(t)
	var want []vip.Macvlan
	for i := range 100 {
		want = append(want, vip.Macvlan{Name: "herald-" + string(rune('a'+i/26)) + string(rune('a'+i%26)), Parent: "eth0", MAC: net.HardwareAddr{2, 0, 0, 0, 1, byte(i)}.String(), RPFilter: 2})
	}
	began := time.Now()
	check.Equal(t, len(check.Value(r.Macvlans().Set(t.Context(), want))(t)), 100, "macvlans")
	made := time.Since(began)
	began = time.Now()
	check.Value(r.Macvlans().Set(t.Context(), want))(t)
	again := time.Since(began)
	began = time.Now()
	passes, longest := 0, time.Duration(0)
	for left := want; len(left) > 0 && passes < 100; passes++ {
		at := time.Now()
		left = check.Value(r.Macvlans().Set(t.Context(), nil))(t)
		longest = max(longest, time.Since(at))
	}
	check.Between(t, longest, 0, lifetime*time.Second/2, "a pass, in which no address may end, took")
	t.Logf("made in %v, looked at in %v, removed in %v", made.Round(time.Millisecond), again.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}
