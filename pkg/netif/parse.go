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

// parseChange reads a message of a subscription; false if it matters to nothing here. It and the
// parsers below trust the kernel, which alone can have sent it.
func parseChange(m syscall.NetlinkMessage) (change, bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l, ok := parseLink(m.Data)
		return change{link: &l, gone: m.Header.Type == unix.RTM_DELLINK}, ok
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, ok := parseAddress(m.Data)
		return change{address: &a, gone: m.Header.Type == unix.RTM_DELADDR}, ok
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return change{routes: true}, isDefaultRoute(m.Data)
	}
	return change{}, false
}

// parseLink reads an RTM_NEWLINK or RTM_DELLINK; false if it is about a port of a bridge, which
// the bridge sends under its own family: no link has come or gone.
func parseLink(m []byte) (link, bool) {
	if len(m) < unix.SizeofIfInfomsg || nl.DeserializeIfInfomsg(m).Family != unix.AF_UNSPEC {
		return link{}, false
	}
	parsed, err := netlink.LinkDeserialize(nil, m)
	if err != nil || parsed.Attrs().Name == "" {
		return link{}, false
	}
	return newLink(parsed), true
}

// newLink is the library's link as this package has it.
func newLink(parsed netlink.Link) link {
	a := parsed.Attrs()
	l := link{
		index: a.Index, name: a.Name, kind: parsed.Type(), master: a.MasterIndex, loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
		up: a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown, // it is neither without IFF_UP
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

// parseAddress reads an RTM_NEWADDR or RTM_DELADDR; false if it is of another family than IPv4
// and IPv6.
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
	a.tentative = flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
	// The two families use one flag for two things. Of our own addresses it does not matter.
	a.secondary = head.Family == unix.AF_INET && flags&unix.IFA_F_SECONDARY != 0 && !a.marked
	a.temporary = head.Family == unix.AF_INET6 && flags&unix.IFA_F_TEMPORARY != 0
	return a, a.prefix.IsValid()
}

// isDefaultRoute reports whether an RTM_NEWROUTE or RTM_DELROUTE is about a default route of the
// main table.
func isDefaultRoute(m []byte) bool {
	if len(m) < unix.SizeofRtMsg {
		return false
	}
	head := nl.DeserializeRtMsg(m)
	return head.Dst_len == 0 && head.Table == unix.RT_TABLE_MAIN && head.Type == unix.RTN_UNICAST && head.Flags&unix.RTM_F_CLONED == 0
}
