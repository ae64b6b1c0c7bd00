package netif

import (
	"net"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkMessage is an RTM_NEWLINK about link 2 with these attributes.
func linkMessage(attributes ...*nl.RtAttr) syscall.NetlinkMessage {
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index, head.Flags = 2, unix.IFF_UP|unix.IFF_RUNNING
	data := head.Serialize()
	for _, a := range attributes {
		data = append(data, a.Serialize()...)
	}
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: data}
}

// An event of a wireless link has its name only: what is known of the link stays, such as its MAC address.
func TestWirelessEvents(t *testing.T) {
	name := nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("wlan0"))
	mac := nl.NewRtAttr(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 10})
	scanned := nl.NewRtAttr(unix.IFLA_WIRELESS, slices.Repeat([]byte{0x19, 0x8b, 0, 0}, 3)) // SIOCGIWSCAN
	if c, ok := parseChange(linkMessage(name, mac)); !ok || c.link.mac != "02:00:00:00:00:0a" {
		t.Errorf("a link: %v, %+v", ok, c.link)
	}
	if c, ok := parseChange(linkMessage(name, scanned)); ok {
		t.Errorf("the end of a scan was taken for a change of the link to %+v", c.link)
	}
}

// An address is tentative during duplicate address detection, if optimistic (RFC 4429) too, and if another host has it.
func TestTentativeAddresses(t *testing.T) {
	for flags, want := range map[uint32]bool{
		0: false, unix.IFA_F_PERMANENT: false, unix.IFA_F_NODAD: false, unix.IFA_F_TENTATIVE: true, unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC: true,
		unix.IFA_F_PERMANENT | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED: true, // addrconf_dad_stop
	} {
		head := nl.NewIfAddrmsg(unix.AF_INET6)
		head.Index, head.Prefixlen = 2, 64
		data := append(head.Serialize(), nl.NewRtAttr(unix.IFA_ADDRESS, net.ParseIP("2001:db8::5")).Serialize()...)
		data = append(data, nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)).Serialize()...)
		c, ok := parseChange(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWADDR}, Data: data})
		if !ok || c.address.tentative != want {
			t.Errorf("flags %#x: %v, %+v, want tentative %v", flags, ok, c.address, want)
		}
	}
}
