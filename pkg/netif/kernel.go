package netif

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// kernel is what the room needs of the operating system. The one implementation
// outside of tests is rtnetlink.
type kernel interface {
	// read tells all links, addresses and default routes.
	read() (*picture, error)
	// bind adds addresses, or renews and takes over those that are there. Its i-th
	// error is about the i-th of them.
	bind([]binding) []error
	// renew is bind for addresses that are bound. The feed need not tell of it.
	renew([]binding) []error
	// unbind removes an address. One that isn't there is no error.
	unbind(place) error
	// reset ends the TCP connections to an address of this node, and tells how many.
	reset(netip.Addr) (int, error)
	// routes tells the default routes.
	routes() ([]route, error)
	// marks reports whether the kernel keeps the mark of an address.
	marks() bool
	// subscribe starts to tell changes.
	subscribe() (feed, error)
}

// feed is a subscription to the kernel's changes.
type feed interface {
	// next waits for changes. It returns errMissed if some were lost.
	next() ([]change, error)
	// close ends the subscription, and a call of next with it.
	close()
}

// errMissed: the kernel told more than was read. What is known must be read anew.
var errMissed = errors.New("changes of links and addresses were lost")

// A place is where an address is. IPv4 knows the same address with two prefix
// lengths on one link as two, IPv6 does not.
type place struct {
	link   int // interface index
	prefix netip.Prefix
}

// A binding is an address as it is to be.
type binding struct {
	place
	link    string // the link's name
	seconds uint32 // valid lifetime; the preferred one is always 0
}

// A link is a network interface as the kernel tells it.
type link struct {
	index    int
	name     string
	kind     string // what ip link calls it: bridge, veth, vlan...; "" for hardware
	up       bool   // up, and as far as is known with a carrier
	loopback bool
	master   int    // the link it belongs to, or 0
	mac      string // its Ethernet address as net.HardwareAddr writes it, or ""

	// Of a macvlan of ours:
	parent int    // the link it sits on
	alias  string // what somebody wrote on it (ip link set alias); a mark of ours, see macvlan.go
	admin  bool   // it was set up; its parent may lack a carrier all the same
}

// ours reports whether this process, or an earlier one, made the link.
func (l link) ours() bool { return l.kind == "macvlan" && strings.HasPrefix(l.alias, aliasMark) }

// An entry is an address as the kernel tells it.
type entry struct {
	place
	ours      bool // it bears our mark
	tentative bool // another program had the kernel look for duplicates, and it doesn't answer for it yet
	temporary bool // IPv6: made up for privacy, and replaced every day (RFC 8981)
	secondary bool // IPv4: another address of the link with that network came first
	global    bool // its scope
}

// A route is a default route.
type route struct {
	family vip.Family
	link   int
	metric uint32
	via    netip.Addr // zero: none, or more than one
}

// A change is one thing the kernel told. Exactly one of link, entry and routes is set.
type change struct {
	link   *link
	entry  *entry
	routes bool // a default route came or went: read them again
	gone   bool // link or entry was removed
}
