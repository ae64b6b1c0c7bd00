package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A lab's ranges, outside the Service range: kube-proxy's nftables drops packets to its unused addresses.
const (
	ServiceCIDRs = "10.112.0.0/16,fd77:112::/108"
	PodCIDRs     = "10.240.0.0/16,fd77:240::/32" // node .11 has 10.240.1.0/24, fd77:240:1::/64
	LAN          = "10.77.0.0/24,fd77::/64"      // VIPs are chosen from here, .50 to .99 and .110 up, fd77::1000 up
	Management   = "10.78.0.0/24"                // fd78::/64 with IPv6Only
)

// Bridges in the switch namespace; a port is called <bridge>-<host>.
const (
	lanBridge  = "lan"
	mgmtBridge = "mgmt"
)

// A host is a namespace with links to the switch.
type host struct {
	name  string
	octet int  // last part of its addresses
	lan   bool // has eth0 on the LAN
	mgmt  bool // has mgmt0 on the management network
	node  bool // is a Kubernetes node

	ipv6Only bool // has no IPv4 address but 127.0.0.1
}

// hosts lists everything that is plugged into the switch of a lab of n nodes.
func hosts(n int, ipv6Only bool) []host {
	hs := []host{
		{name: "cp", octet: 2, mgmt: true},
		{name: "rt", octet: 1, lan: true},
		{name: "cl", octet: 100, lan: true},
		{name: "pr", octet: 101, lan: true},
		{name: "w1", octet: 31, lan: true, mgmt: true, node: true},
	}
	for i := range n {
		octet := 11 + i
		if i >= 20 { // .31 is w1
			octet = 130 + i
		}
		hs = append(hs, host{name: "n" + strconv.Itoa(i+1), octet: octet, lan: true, mgmt: true, node: true})
	}
	for i := range hs {
		hs[i].ipv6Only = ipv6Only
	}
	return hs
}

func (h host) lan4() netip.Addr  { return netip.AddrFrom4([4]byte{10, 77, 0, byte(h.octet)}) }
func (h host) mgmt4() netip.Addr { return netip.AddrFrom4([4]byte{10, 78, 0, byte(h.octet)}) }

// lan6 and mgmt6 end in the digits of lan4's last part: fd77::11 beside 10.77.0.11.
func (h host) lan6() netip.Addr  { return netip.MustParseAddr("fd77::" + strconv.Itoa(h.octet)) }
func (h host) mgmt6() netip.Addr { return netip.MustParseAddr("fd78::" + strconv.Itoa(h.octet)) }

// mgmtPrefix is the host's address and prefix length on the management network.
func (h host) mgmtPrefix() netip.Prefix {
	if h.ipv6Only {
		return netip.PrefixFrom(h.mgmt6(), 64)
	}
	return netip.PrefixFrom(h.mgmt4(), 24)
}

func (h host) mgmtAddr() netip.Addr { return h.mgmtPrefix().Addr() }

func (h host) has(addrs ...netip.Addr) []netip.Addr {
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a.Is4() && h.ipv6Only })
}

func (h host) hasPrefixes(prefixes ...netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() && h.ipv6Only })
}

// ofFamilies is those ranges of list, with commas between, that a lab has.
func (l *Lab) ofFamilies(list string) string {
	if _, v6, _ := strings.Cut(list, ","); l.opts.IPv6Only {
		return v6
	}
	return list
}

// mac is 02:<net>:00:00:00:11 for the host .11, for people who read dumps.
func (h host) mac(net byte) net.HardwareAddr {
	digits := func(d int) byte { return byte(d/10<<4 | d%10) }
	return []byte{2, net, 0, 0, digits(h.octet / 100), digits(h.octet % 100)}
}

func (h host) index() int {
	if h.name == "w1" {
		return h.octet
	}
	return h.octet - 10
}

// pods4 and pods6 are the node's pod ranges, itself .1 and ::1.
func (h host) pods4() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 240, byte(h.index()), 0}), 24)
}

func (h host) pods6() netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("fd77:240:%d::/64", h.index()))
}

// nth is the address number i of p.
func nth(p netip.Prefix, i int) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-2] += byte(i >> 8)
	b[len(b)-1] += byte(i)
	a, _ := netip.AddrFromSlice(b)
	return a
}

var (
	// No wait for duplicate address detection, which the nodes get when everything is up.
	hostSysctls = []string{"net/ipv6/conf/default/accept_dad=0", "net/ipv6/conf/all/accept_ra=0",
		"net/ipv6/conf/default/accept_ra=0"}
	forwarding = []string{"net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1", "net/ipv6/conf/default/forwarding=1",
		"net/ipv4/conf/all/rp_filter=0", "net/ipv4/conf/default/rp_filter=0"}
	// Packets between a node's pods cross cni0 only, and must pass kube-proxy's rules.
	bridgeFiltering = []string{"net/bridge/bridge-nf-call-iptables=1", "net/bridge/bridge-nf-call-ip6tables=1"}
	// A switch has no addresses and no firewall.
	switchSysctls = []string{"net/ipv6/conf/all/disable_ipv6=1", "net/ipv6/conf/default/disable_ipv6=1",
		"net/bridge/bridge-nf-call-iptables=0",
		"net/bridge/bridge-nf-call-ip6tables=0", "net/bridge/bridge-nf-call-arptables=0"}
)

func withNetlink(ns string, fn func(*netlink.Handle) error) error {
	h, err := netns.GetFromPath(netnsPath(ns))
	if err != nil {
		return fmt.Errorf("namespace %s: %w", ns, err)
	}
	defer h.Close()
	nl, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink in %s: %w", ns, err)
	}
	defer nl.Close()
	return fn(nl)
}

func buildSwitch() error {
	if err := createNetns("switch", switchSysctls...); err != nil {
		return err
	}
	return withNetlink("switch", func(nl *netlink.Handle) error {
		for _, name := range []string{lanBridge, mgmtBridge} {
			snoop := false // nobody here is a querier
			br := &netlink.Bridge{LinkAttrs: linkAttrs(name), MulticastSnooping: &snoop}
			if err := nl.LinkAdd(br); err != nil {
				return fmt.Errorf("add bridge %s: %w", name, err)
			}
		}
		return nil
	})
}

func linkAttrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.Flags = name, net.FlagUp
	return a
}

func buildHost(h host, all []host) error {
	sysctls := hostSysctls
	if h.node {
		sysctls = append(append(sysctls[:len(sysctls):len(sysctls)], forwarding...), bridgeFiltering...)
	}
	if err := createNetns(h.name, sysctls...); err != nil {
		return err
	}
	if h.lan {
		if err := plug(h, lanBridge, "eth0", 0x77,
			h.hasPrefixes(netip.PrefixFrom(h.lan4(), 24), netip.PrefixFrom(h.lan6(), 64))...); err != nil {
			return err
		}
	}
	if h.mgmt {
		if err := plug(h, mgmtBridge, "mgmt0", 0x78, h.mgmtPrefix()); err != nil {
			return err
		}
	}
	return withNetlink(h.name, func(nl *netlink.Handle) error {
		if h.node {
			if err := addPodBridge(nl, h); err != nil {
				return err
			}
		}
		return addRoutes(nl, h, all)
	})
}

func plug(h host, bridge, link string, macNet byte, addrs ...netip.Prefix) error {
	peer, err := netns.GetFromPath(netnsPath(h.name))
	if err != nil {
		return err
	}
	defer peer.Close()
	err = withNetlink("switch", func(nl *netlink.Handle) error {
		br, err := nl.LinkByName(bridge)
		if err != nil {
			return err
		}
		veth := netlink.NewVeth(linkAttrs(bridge + "-" + h.name))
		veth.MasterIndex = br.Attrs().Index
		veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = link, h.mac(macNet), netlink.NsFd(peer)
		return nl.LinkAdd(veth)
	})
	if err != nil {
		return fmt.Errorf("plug %s into %s: %w", h.name, bridge, err)
	}
	return withNetlink(h.name, func(nl *netlink.Handle) error { return configure(nl, link, addrs...) })
}

// configure sets a link up with the addresses, usable at once.
func configure(nl *netlink.Handle, link string, addrs ...netip.Prefix) error {
	l, err := nl.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	if err := nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("set up %s: %w", link, err)
	}
	for _, p := range addrs {
		a := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := nl.AddrAdd(l, a); err != nil {
			return fmt.Errorf("add %s to %s: %w", p, link, err)
		}
	}
	return nil
}

// addPodBridge adds the bridge of a node's pods, with its own MAC, as network plugins do: else the lowest of its
// ports', which changes with new pods, and what is sent to the former is dropped.
func addPodBridge(nl *netlink.Handle, h host) error {
	attrs := linkAttrs("cni0")
	gateway := nth(h.pods4(), 1).As4()
	attrs.HardwareAddr = append(net.HardwareAddr{0x0a, 0x58}, gateway[:]...)
	if err := nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("add bridge cni0: %w", err)
	}
	return configure(nl, "cni0",
		h.hasPrefixes(netip.PrefixFrom(nth(h.pods4(), 1), 24), netip.PrefixFrom(nth(h.pods6(), 1), 64))...)
}

// addRoutes routes other nodes' pod ranges by those, if h is a node, and all else by the router. The router and hosts
// without LAN get none.
func addRoutes(nl *netlink.Handle, h host, all []host) error {
	if !h.lan || h.name == "rt" {
		return nil
	}
	eth0, err := nl.LinkByName("eth0")
	if err != nil {
		return err
	}
	via := func(dst netip.Prefix, gw netip.Addr) error {
		if dst.Addr().Is4() && h.ipv6Only {
			return nil
		}
		r := &netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gw.AsSlice(), Dst: ipNet(dst)}
		if err := nl.RouteAdd(r); err != nil {
			return fmt.Errorf("%s: route %s via %s: %w", h.name, dst, gw, err)
		}
		return nil
	}
	rt := host{octet: 1}
	errs := []error{via(netip.MustParsePrefix("0.0.0.0/0"), rt.lan4()), via(netip.MustParsePrefix("::/0"), rt.lan6())}
	for _, o := range all {
		if h.node && o.node && o.name != h.name {
			errs = append(errs, via(o.pods4(), o.lan4()), via(o.pods6(), o.lan6()))
		}
	}
	return errors.Join(errs...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
