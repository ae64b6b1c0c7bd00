package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// make makes a macvlan (linux/if_link.h, IFLA_MACVLAN_MODE).
func (k *rtnetlink) make(name string, parent int, mac net.HardwareAddr) error {
	r := k.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_LINK, u32(parent)))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	r.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte("macvlan"))
	info.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_MACVLAN_MODE, u32(nl.MACVLAN_MODE_BRIDGE))
	r.AddData(info)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// configure changes a link. The settings of net.ipv4.conf go the same way
// (IFLA_AF_SPEC), since a container may only read /proc/sys.
func (k *rtnetlink) configure(index int, c linkConfig) error {
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
	if len(c.conf) > 0 || c.quiet {
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		if len(c.conf) > 0 {
			conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil)
			for id, v := range c.conf {
				conf.AddRtAttr(int(id), u32(v))
			}
		}
		if c.quiet && ipv6() {
			const none = 1 // IN6_ADDR_GEN_MODE_NONE
			spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{none})
		}
		r.AddData(spec)
	}
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *rtnetlink) unlink(index int) error {
	r := k.request(unix.RTM_DELLINK, unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	r.AddData(head)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func (k *rtnetlink) look(index int, name string) (link, devconf, error) {
	r := k.request(unix.RTM_GETLINK, 0)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	r.AddData(head)
	if index == 0 {
		r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	}
	messages, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return link{}, devconf{}, fmt.Errorf("can't read the link: %w", err)
	}
	for _, m := range messages {
		if l, ok := parseLink(m); ok {
			return l, parseConf(m), nil
		}
	}
	return link{}, devconf{}, errors.New("the kernel told nothing of the link")
}

// parseConf reads the settings of an RTM_NEWLINK: an array, of which number n is at n-1.
func parseConf(m []byte) (c devconf) {
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return c
	}
	for _, a := range attrs {
		if a.Attr.Type&^uint16(unix.NLA_F_NESTED) != unix.IFLA_AF_SPEC {
			continue
		}
		families, _ := nl.ParseRouteAttr(a.Value)
		i := slices.IndexFunc(families, func(f syscall.NetlinkRouteAttr) bool { return f.Attr.Type&^uint16(unix.NLA_F_NESTED) == unix.AF_INET })
		if i < 0 {
			continue
		}
		inner, _ := nl.ParseRouteAttr(families[i].Value)
		for _, conf := range inner {
			if conf.Attr.Type&^uint16(unix.NLA_F_NESTED) != unix.IFLA_INET_CONF {
				continue
			}
			at := func(n int) int {
				if len(conf.Value) < 4*n {
					return 0
				}
				return int(int32(binary.NativeEndian.Uint32(conf.Value[4*(n-1):])))
			}
			c = devconf{ignore: at(confIgnore), announce: at(confAnnounce), filter: at(confFilter)}
		}
	}
	return c
}

func (k *rtnetlink) local(index int, a netip.Addr) error {
	r := k.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	head := nl.NewIfAddrmsg(unix.AF_INET6)
	head.Prefixlen, head.Scope, head.Index = 64, unix.RT_SCOPE_LINK, uint32(index)
	r.AddData(head)
	r.AddData(nl.NewRtAttr(unix.IFA_LOCAL, a.AsSlice()))
	r.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, a.AsSlice()))
	r.AddData(nl.NewRtAttr(unix.IFA_FLAGS, u32(unix.IFA_F_NODAD)))
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func u32(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

// ipv6 reports whether the kernel has IPv6.
func ipv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
