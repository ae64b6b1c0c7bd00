package netif

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// kernel is what Interfaces needs of the operating system: rtnetlink, but for tests.
type kernel interface {
	// read reads all links, addresses and default routes.
	read() (*snapshot, error)
	// bind adds addresses, or renews and takes over existing ones, with an error for each.
	bind([]bindRequest) []error
	// renew is bind for bound addresses. Subscriptions need not hear of it.
	renew([]bindRequest) []error
	// unbind removes an address, if it is there.
	unbind(addressKey) error
	// promoteSecondaries sets that sysctl of a link, and reports whether it was not in force.
	promoteSecondaries(index int, name string) (changed bool, err error)
	// resetConnections ends some TCP connections to an address, and returns how many.
	resetConnections(netip.Addr, connectionKinds) (int, error)
	// forgetStale has conntrack forget untranslated flows to addresses, and ended TCP connections.
	forgetStale([]netip.Addr) error
	routes() ([]route, error)
	keepsMark() bool
	subscribe() (subscription, error)
}

type subscription interface {
	// receive blocks until there are changes, or returns errOverrun if some were lost.
	receive() ([]change, error)
	// close ends the subscription, and its receive.
	close()
}

// errOverrun: changes were not read fast enough (netlink(7), ENOBUFS).
var errOverrun = errors.New("changes of links and addresses were lost")

// An addressKey identifies an address of this node. IPv4 tells prefix lengths apart, IPv6 does not.
type addressKey struct {
	link   int // interface index
	prefix netip.Prefix
}

type bindRequest struct {
	addressKey
	linkName string
	seconds  uint32 // valid lifetime; the preferred one is always 0
}

type link struct {
	index int
	name  string
	kind  string // what ip link calls it: bridge, veth, vlan...; "" for hardware
	up    bool   // up, and with a carrier if the kernel knows of one
	// no IPv6 there: disable_ipv6, an MTU below 1280, or none at all
	noIPv6   bool
	loopback bool
	master   int    // the link it belongs to, or 0
	mac      string // its Ethernet address as net.HardwareAddr writes it, or ""

	// Of a macvlan:
	parent  int    // the link it sits on
	alias   string // ip link set alias; Herald's mark, see macvlan.go
	adminUp bool   // it was set up (IFF_UP); its parent may lack a carrier all the same
}

// byHerald reports whether a Herald made the link.
func (l link) byHerald() bool { return l.kind == "macvlan" && strings.HasPrefix(l.alias, aliasMark) }

type kernelAddress struct {
	addressKey
	marked bool // it bears Herald's mark
	// another program had duplicates looked for: it does not answer yet, or never, for another has it
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

// A change is one of link, address and routes.
type change struct {
	link    *link
	address *kernelAddress
	routes  bool // a default route came or went: read them again
	gone    bool // link or address was removed
}
