package vip

import (
	"net/netip"
	"time"
)

// A PoolSource is the ConfigMap of pools, and what pools ask of namespaces.
type PoolSource struct {
	ConfigMap Key
	UID       string
	Data      map[string]string
	// labels of namespaces, by name, none nil; empty if unreadable
	Namespaces map[string]map[string]string
	// the ConfigMap is gone, this is its last: it gives nothing, but still forbids
	Gone bool
}

// A PoolPolicy is what the ConfigMap of pools says about addresses asked for by name; never modified.
type PoolPolicy interface {
	// KeepsOut reports whether a pool is for some namespaces only.
	KeepsOut() bool
	// WhyNotOffered returns why a namespace with these labels may not ask for an address, a sentence that begins with it,
	// or ""; with poolsOnly (svc_addresses) it must be of a pool.
	WhyNotOffered(namespace string, labels map[string]string, a netip.Addr, poolsOnly bool) string
	// MayShare reports whether Services of both namespaces share a, if their ports differ.
	MayShare(a netip.Addr, one, other string) bool
	// Interface returns the link of a namespace's VIP, where the Service names none, or "".
	Interface(namespace string, a netip.Addr) string
	// WhyNotOn returns why a node with these labels may not carry a, or "".
	WhyNotOn(a netip.Addr, labels map[string]string) string
	// InPool reports whether a is, or may be, of a pool that a namespace with these labels is offered; given is
	// heraldvip.io/allocated.
	InPool(namespace string, labels map[string]string, a netip.Addr, given string) bool
	// Weight returns how much a node with these labels is preferred for a, or 0.
	Weight(a netip.Addr, labels map[string]string) int
	// Methods returns the ways to announce a, and the pool that says so, or nil.
	Methods(a netip.Addr) (methods []Method, pool string)
}

// A PoolInput is all that the allocation of addresses depends on.
type PoolInput struct {
	Now    time.Time
	Source *PoolSource // nil: there is no ConfigMap of pools

	Requests []AddressRequest // nil: who has what is not known
	Allocate bool             // this node gives addresses; else what follows is empty
	Reserved []ReservedRange  // of which none is given
	InUse    []netip.Addr     // what Services were given that another host turned out to have before it was ever shown
	DHCPMode string           // dhcp_mode: what 0.0.0.0 alone asks a DHCP server for: "ipv4" (also ""), "ipv6" or "dual"
}

// An AddressRequest is a LoadBalancer: what it has is in use.
type AddressRequest struct {
	*Service
	Foreign bool          // it is given nothing: it is not ours, or names what can't be read, or what it may not have
	Refused bool          // it names an address that it may not have: only what its status shows is in use
	Lost    []LostAddress // those of its Addresses that it may not have any more: if it was given them, it is given others
}

// A LostAddress is one that a Service may not have any more.
type LostAddress struct {
	Addr netip.Addr
	Why  string // for its user; "" if no pool offers it any more: then it is not in use
}

// An Assignment is what the pools have for a Service that wants an address.
type Assignment struct {
	Service   Key
	UID       string
	Addresses []netip.Addr // all that it is to have; none: it waits
	// their pool, or two with a comma; while it waits, the first that it may have one of
	Pool   string
	Reason string // why these; or why none, and what to do

	Had []netip.Addr // what the Service named when this was decided,
	// the pools of what it was given: a different value by now is its user's, and stays
	HadPool string

	Own    []netip.Addr // those of Addresses that a person named
	Remove bool         // what it was given is taken off it: it is Superseded, or is to have Own alone
}

// A PoolProblem is what is wrong with a key of the ConfigMap of pools.
type PoolProblem struct {
	Key     string
	Message string // what is wrong, and what would be right or what happens now
	Warning bool   // the key can be read, but has an effect that is probably not meant
}

// String is the key and the message.
func (p PoolProblem) String() string { return p.Key + ": " + p.Message }
