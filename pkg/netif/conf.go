package netif

import (
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Numbers of settings (IPV4_DEVCONF_ of linux/ip.h).
const (
	confRPFilter           = 8
	confARPAnnounce        = 18
	confARPIgnore          = 19
	confPromoteSecondaries = 20
)

// configureLink changes net.ipv4.conf by one request: a container may only read /proc/sys.
func (k *rtnetlink) configureLink(index int, conf map[int]int, noLinkLocal bool) error {
	r := k.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	r.AddData(head)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	values := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil)
	for number, v := range conf {
		values.AddRtAttr(number, nl.Uint32Attr(uint32(v)))
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil && noLinkLocal {
		const none = 1 // IN6_ADDR_GEN_MODE_NONE
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{none})
	}
	r.AddData(spec)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *rtnetlink) promoteSecondaries(index int, name string) (bool, error) {
	if sysctl4("all", "promote_secondaries") > 0 || sysctl4(name, "promote_secondaries") > 0 {
		return false, nil
	}
	return true, k.configureLink(index, map[int]int{confPromoteSecondaries: 1}, false)
}

type ipv4Conf struct{ arpIgnore, arpAnnounce, rpFilter int }

// readIPv4Conf reads the settings of a link; 0 for unreadable ones.
func readIPv4Conf(link string) ipv4Conf {
	return ipv4Conf{sysctl4(link, "arp_ignore"), sysctl4(link, "arp_announce"), sysctl4(link, "rp_filter")}
}

// sysctl4 reads net.ipv4.conf.<link>.<name>; 0 if it can't.
func sysctl4(link, name string) int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link + "/" + name)
	if err != nil {
		return 0
	}
	v, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return v
}
