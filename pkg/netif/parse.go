package netif

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// parseChange reads a message of a subscription; false if it does not matter. The kernel is trusted.
func parseChange(m syscall.NetlinkMessage) (change, bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l, ok := parseLink(m.Data)
		return change{link: &l, gone: m.Header.Type == unix.RTM_DELLINK}, ok
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, ok := parseAddress(m.Data)
		return change{address: &a, gone: m.Header.Type == unix.RTM_DELADDR}, ok
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return change{routes: true}, isRead(m.Data)
	}
	return change{}, false
}

// parseLink reads an RTM_NEWLINK or RTM_DELLINK; false for bridge ports and wireless events.
func parseLink(m []byte) (link, bool) {
	// these have only a name (rtnetlink_ifinfo_prep)
	if len(m) < unix.SizeofIfInfomsg || nl.DeserializeIfInfomsg(m).Family != unix.AF_UNSPEC ||
		attribute(m[unix.SizeofIfInfomsg:], unix.IFLA_WIRELESS) != nil {
		return link{}, false
	}
	parsed, err := netlink.LinkDeserialize(nil, m)
	if err != nil || parsed.Attrs().Name == "" {
		return link{}, false
	}
	l := newLink(parsed)
	l.noIPv6 = noIPv6(m[unix.SizeofIfInfomsg:])
	return l, true
}

// devconfDisableIPv6 is DEVCONF_DISABLE_IPV6 of linux/ipv6.h.
const devconfDisableIPv6 = 26

// noIPv6 reports whether a link has no inet6_dev (inet6_fill_link_af), or disable_ipv6.
func noIPv6(attributes []byte) bool {
	families := attribute(attributes, unix.IFLA_AF_SPEC)
	if families == nil {
		return false // it does not say
	}
	conf := attribute(families, unix.AF_INET6, unix.IFLA_INET6_CONF) // int32s
	return len(conf) < 4*(devconfDisableIPv6+1) || binary.NativeEndian.Uint32(conf[4*devconfDisableIPv6:]) != 0
}

func newLink(parsed netlink.Link) link {
	a := parsed.Attrs()
	l := link{
		index: a.Index, name: a.Name, alts: strings.Join(a.AltNames, " "), kind: parsed.Type(), master: a.MasterIndex,
		loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
		up:       a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown, // it is neither without IFF_UP
	}
	if l.kind == "device" {
		l.kind = ""
	}
	if len(a.HardwareAddr) == 6 && a.RawFlags&(unix.IFF_LOOPBACK|unix.IFF_POINTOPOINT) == 0 {
		l.mac = a.HardwareAddr.String()
	}
	if l.kind == "macvlan" {
		l.parent, l.alias, l.adminUp = a.ParentIndex, a.Alias, a.RawFlags&unix.IFF_UP != 0
	}
	return l
}

// parseAddress reads an RTM_NEWADDR or RTM_DELADDR; false for other families than IP.
func parseAddress(m []byte) (kernelAddress, bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return kernelAddress{}, false
	}
	head := nl.DeserializeIfAddrmsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
	if err != nil || head.Family != unix.AF_INET && head.Family != unix.AF_INET6 {
		return kernelAddress{}, false
	}
	flags := uint32(head.Flags)
	var local, peer netip.Addr
	a := kernelAddress{global: head.Scope == unix.RT_SCOPE_UNIVERSE}
	for _, attr := range attrs {
		switch attr.Attr.Type {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(attr.Value)
		case unix.IFA_ADDRESS:
			peer, _ = netip.AddrFromSlice(attr.Value)
		case unix.IFA_FLAGS:
			flags = binary.NativeEndian.Uint32(attr.Value)
		case ifaProto:
			a.marked = a.marked || attr.Value[0] == mark
		case unix.IFA_LABEL:
			label := unix.ByteSliceToString(attr.Value)
			a.marked = a.marked || strings.HasSuffix(label, labelSuffix)
		}
	}
	if !local.IsValid() { // IPv6 has IFA_LOCAL only beside a peer's address
		local = peer
	}
	a.addressKey = addressKey{int(head.Index), netip.PrefixFrom(local, int(head.Prefixlen))}
	// An optimistic address (RFC 4429) is tentative, too: neighbor solicitations may not have its MAC.
	a.tentative = flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
	// The families use one flag for two things. Of our addresses it does not matter.
	a.secondary = head.Family == unix.AF_INET && flags&unix.IFA_F_SECONDARY != 0 && !a.marked
	a.permanent = flags&unix.IFA_F_PERMANENT != 0 && !a.marked
	a.temporary = head.Family == unix.AF_INET6 && flags&unix.IFA_F_TEMPORARY != 0
	return a, a.prefix.IsValid()
}

// switchedIPv6 returns the link whose IPv6 may have been switched, by its route to ff00::/8, or 0.
func switchedIPv6(m syscall.NetlinkMessage) int {
	// the kernel sends no RTM_NEWLINK (addrconf_add_mroute, addrconf_ifdown)
	if m.Header.Type != unix.RTM_NEWROUTE && m.Header.Type != unix.RTM_DELROUTE || len(m.Data) < unix.SizeofRtMsg {
		return 0
	}
	if head := nl.DeserializeRtMsg(m.Data); head.Family != unix.AF_INET6 || head.Dst_len != 8 ||
		head.Table != unix.RT_TABLE_LOCAL {
		return 0
	}
	link := attribute(m.Data[unix.SizeofRtMsg:], unix.RTA_OIF)
	if len(link) != 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(link))
}

// isRead reports whether a message is about a route that rtnetlink.routes reads, and not one of many by a CNI.
func isRead(m []byte) bool {
	if len(m) < unix.SizeofRtMsg {
		return false
	}
	head, attributes := nl.DeserializeRtMsg(m), m[unix.SizeofRtMsg:]
	return head.Table == unix.RT_TABLE_MAIN && head.Type == unix.RTN_UNICAST && head.Flags&unix.RTM_F_CLONED == 0 &&
		(head.Dst_len == 0 || onLink(int(head.Protocol), int(head.Dst_len), attribute(attributes, unix.RTA_DST),
			attribute(attributes, unix.RTA_GATEWAY)).IsValid())
}

// onLink returns the IPv6 network of a route that the kernel or a router's advertisement has made of a link, or zero.
func onLink(protocol, bits int, to, gateway []byte) (network netip.Prefix) {
	a, _ := netip.AddrFromSlice(to)
	if (protocol == unix.RTPROT_KERNEL || protocol == unix.RTPROT_RA) && bits > 0 && bits < 128 && gateway == nil &&
		a.Is6() && a.IsGlobalUnicast() {
		network = netip.PrefixFrom(a, bits)
	}
	return network
}
