package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func (k *rtnetlink) addMacvlan(name string, parent int, mac net.HardwareAddr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = name, parent, mac
	return k.handle.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE})
}

// configureLink changes a link in one request. The settings of net.ipv4.conf go the same way
// (IFLA_AF_SPEC), since a container may only read /proc/sys; the library has no request for them.
func (k *rtnetlink) configureLink(index int, c linkConfig) error {
	r := k.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	if c.up {
		head.Flags, head.Change = unix.IFF_UP, unix.IFF_UP
	}
	r.AddData(head)
	if c.alias != nil {
		r.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(*c.alias)))
	}
	if len(c.conf) > 0 || c.noLinkLocal {
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		if len(c.conf) > 0 {
			conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil)
			for id, v := range c.conf {
				conf.AddRtAttr(int(id), nl.Uint32Attr(uint32(v)))
			}
		}
		if c.noLinkLocal && hasIPv6() {
			const none = 1 // IN6_ADDR_GEN_MODE_NONE
			spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{none})
		}
		r.AddData(spec)
	}
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *rtnetlink) removeLink(index int) error {
	err := k.handle.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func (k *rtnetlink) readLink(index int, name string) (link, ipv4Conf, error) {
	r := k.request(unix.RTM_GETLINK, 0)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	r.AddData(head)
	if index == 0 {
		r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	}
	messages, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return link{}, ipv4Conf{}, fmt.Errorf("can't read the link: %w", err)
	}
	for _, m := range messages {
		if l, ok := parseLink(m); ok {
			return l, parseIPv4Conf(m), nil
		}
	}
	return link{}, ipv4Conf{}, errors.New("the kernel's answer has no link")
}

// parseIPv4Conf reads the settings of an RTM_NEWLINK (IFLA_AF_SPEC, AF_INET, IFLA_INET_CONF): an
// array, of which number n is at n-1. A setting that is missing is 0.
func parseIPv4Conf(m []byte) ipv4Conf {
	value := m[unix.SizeofIfInfomsg:]
	for _, kind := range []uint16{unix.IFLA_AF_SPEC, unix.AF_INET, unix.IFLA_INET_CONF} {
		attrs, _ := nl.ParseRouteAttr(value)
		value = nil
		for _, a := range attrs {
			if a.Attr.Type&^uint16(unix.NLA_F_NESTED) == kind {
				value = a.Value
			}
		}
	}
	at := func(n int) int {
		if len(value) < 4*n {
			return 0
		}
		return int(int32(binary.NativeEndian.Uint32(value[4*(n-1):])))
	}
	return ipv4Conf{arpIgnore: at(confARPIgnore), arpAnnounce: at(confARPAnnounce), rpFilter: at(confRPFilter)}
}

func (k *rtnetlink) addLinkLocal(index int, a netip.Addr) error {
	return k.handle.AddrReplace(nil, &netlink.Addr{
		LinkIndex: index, IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(64, 128)}, Scope: unix.RT_SCOPE_LINK, Flags: unix.IFA_F_NODAD,
	})
}

// hasIPv6 reports whether the kernel has IPv6.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
