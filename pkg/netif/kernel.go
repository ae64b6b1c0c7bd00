package netif

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// kernel is what Interfaces needs of the operating system. The one implementation outside of tests is rtnetlink.
type kernel interface {
	// read reads all links, addresses and default routes.
	read() (*snapshot, error)
	// bind adds addresses, or renews and takes over those that are there. Its i-th error is about the i-th of them.
	bind([]bindRequest) []error
	// renew is bind for addresses that are bound. Subscriptions need not be told of it.
	renew([]bindRequest) []error
	// unbind removes an address. One that isn't there is no error.
	unbind(addressKey) error
	// promoteSecondaries sets the sysctl promote_secondaries of a link, and reports whether it was not in force.
	promoteSecondaries(index int, name string) (changed bool, err error)
	// resetConnections ends some of the TCP connections to an address, and returns how many.
	resetConnections(netip.Addr, connectionKinds) (int, error)
	// forgetStale has conntrack forget flows to addresses that are not translated, and TCP connections that have ended.
	forgetStale([]netip.Addr) error
	// routes reads the default routes.
	routes() ([]route, error)
	// keepsMark reports whether the kernel keeps the mark of an address.
	keepsMark() bool
	// subscribe begins to receive changes.
	subscribe() (subscription, error)
}

// A subscription receives the kernel's changes.
type subscription interface {
	// receive blocks until there are changes. It returns errOverrun if some were lost.
	receive() ([]change, error)
	// close ends the subscription, and a call of receive with it.
	close()
}

// errOverrun: changes were lost, since they were not read fast enough (netlink(7), ENOBUFS).
var errOverrun = errors.New("changes of links and addresses were lost")

// An addressKey identifies an address of this node. To IPv4 the same address with two prefix
// lengths on one link is two, to IPv6 it is not.
type addressKey struct {
	link   int // interface index
	prefix netip.Prefix
}

// A bindRequest is an address to be bound.
type bindRequest struct {
	addressKey
	linkName string
	seconds  uint32 // valid lifetime; the preferred one is always 0
}

// A link is a network interface of the kernel.
type link struct {
	index int
	name  string
	kind  string // what ip link calls it: bridge, veth, vlan...; "" for hardware
	up    bool   // up, and with a carrier if the kernel knows of one
	// the kernel takes no address of IPv6 there: disable_ipv6, an MTU below 1280, or IPv6 is missing altogether
	noIPv6   bool
	loopback bool
	master   int    // the link it belongs to, or 0
	mac      string // its Ethernet address as net.HardwareAddr writes it, or ""

	// Of a macvlan:
	parent  int    // the link it sits on
	alias   string // ip link set alias; Herald's mark, see macvlan.go
	adminUp bool   // it was set up (IFF_UP); its parent may lack a carrier all the same
}

// byHerald reports whether this process, or an earlier one, made the link.
func (l link) byHerald() bool { return l.kind == "macvlan" && strings.HasPrefix(l.alias, aliasMark) }

// A kernelAddress is an address that the kernel has.
type kernelAddress struct {
	addressKey
	marked bool // it bears Herald's mark
	// another program had the kernel look for duplicates: it doesn't answer for it yet, or never, since another host has
	// it
	tentative bool
	temporary bool // IPv6: made up for privacy, and replaced every day (RFC 8981)
	secondary bool // IPv4, without our mark: another address of the link with that network came first
	global    bool // its scope
}

// A route is a default route.
type route struct {
	family vip.Family
	link   int
	metric uint32
	via    netip.Addr // zero: none, or more than one
}

// A change is one change of the kernel. Exactly one of link, address and routes is set.
type change struct {
	link    *link
	address *kernelAddress
	routes  bool // a default route came or went: read them again
	gone    bool // link or address was removed
}
