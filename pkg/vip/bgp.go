package vip

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Method is a way to announce a VIP.
type Method string

// The methods, as heraldvip.io/announce spells them.
const (
	ByARP Method = "arp" // gratuitous ARP and unsolicited neighbor advertisements on a link
	ByBGP Method = "bgp" // a host route, told to routers
)

// A Secret is text that no log and no page shows.
type Secret string

const hidden = "(hidden)"

// String hides the text.
func (Secret) String() string { return hidden }

// GoString hides the text.
func (Secret) GoString() string { return hidden }

// MarshalText hides the text.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// A BGPPeer is a router to have a BGP session with. It is comparable.
type BGPPeer struct {
	Address      netip.Addr // zero if Interface names it
	Interface    string     // unnumbered: the router at the other end of this link
	AS           uint32     // the router's; 0 takes whatever it says (unnumbered only)
	LocalAS      uint32     // ours
	Password     Secret     // TCP MD5 (RFC 2385), or ""
	PasswordFile string     // the file that Password was read from, or ""
	Multihop     bool       // it is more than one hop away
	Port         uint16     // its TCP port

	Source          netip.Addr // the session's address here; zero leaves it to the kernel, or SourceInterface
	SourceInterface string     // the link whose address that is, or ""

	// Next hops of prefixes of the other family. Zero: an address of NextHopInterface, or of the session's link.
	NextHop4         netip.Addr
	NextHop6         netip.Addr
	NextHopInterface string

	RouterID netip.Addr // ours towards this peer; zero: as all others

	BFD BFD
}

// BFD is the parameters of a BFD session (RFC 5880); zero: none.
type BFD struct {
	MinReceive  time.Duration // Required Min RX Interval
	MinTransmit time.Duration // Desired Min TX Interval
	Multiplier  uint8         // Detect Mult
}

// Name is the peer's interface, else its address.
func (p BGPPeer) Name() string {
	if p.Interface != "" {
		return p.Interface
	}
	return p.Address.String()
}

// A Community is a BGP community (RFC 1997).
type Community uint32

// Well-known communities, by the names of routers (IANA, BGP Well-known Communities).
var wellKnown = map[string]Community{
	"graceful-shutdown": 0xffff0000, // RFC 8326
	"blackhole":         0xffff029a, // RFC 7999
	"no-export":         0xffffff01,
	"no-advertise":      0xffffff02,
	"local-as":          0xffffff03,
	"no-peer":           0xffffff04, // RFC 3765
}

// GracefulShutdown asks routers to prefer any other path (RFC 8326).
const GracefulShutdown Community = 0xffff0000

// String is "65000:100".
func (c Community) String() string { return fmt.Sprintf("%d:%d", c>>16, c&0xffff) }

// MarshalText writes a Community as String does.
func (c Community) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// A LargeCommunity is a BGP large community (RFC 8092).
type LargeCommunity [3]uint32

// String is "65000:1:100".
func (c LargeCommunity) String() string { return fmt.Sprintf("%d:%d:%d", c[0], c[1], c[2]) }

// MarshalText writes a LargeCommunity as String does.
func (c LargeCommunity) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// maxCommunities is how many of both kinds a route has: longer messages than 4096 bytes (RFC 4271 4.1) end a session.
const maxCommunities = 64

// ParseCommunities reads "65000:100,65000:1:100,no-export", maxCommunities at most; the error says which is wrong.
func ParseCommunities(text string) (small []Community, large []LargeCommunity, err error) {
	if n := strings.Count(text, ",") + 1; n > maxCommunities {
		return nil, nil, fmt.Errorf("there are %d communities, and may be %d", n, maxCommunities)
	}
	for i, t := range strings.Split(text, ",") {
		t = strings.TrimSpace(t)
		if c, ok := wellKnown[strings.ToLower(t)]; ok {
			small = append(small, c)
			continue
		}
		parts := strings.Split(t, ":")
		bits := 16
		if len(parts) == 3 {
			bits = 32
		}
		var n [3]uint32
		ok := len(parts) == 2 || len(parts) == 3
		for j := 0; ok && j < len(parts); j++ {
			v, err := strconv.ParseUint(parts[j], 10, bits)
			n[j], ok = uint32(v), err == nil
		}
		switch {
		case !ok:
			return nil, nil, fmt.Errorf("community %d, %.60q, is neither 0..65535:0..65535, nor a:b:c of 32 bits each, nor "+
				"a well-known name", i+1, t)
		case len(parts) == 3:
			large = append(large, n)
		default:
			small = append(small, Community(n[0]<<16|n[1]))
		}
	}
	return small, large, nil
}

// BGPAttributes are a route's; nil pointers and slices are the default.
type BGPAttributes struct {
	Communities      []Community      `json:",omitempty"`
	LargeCommunities []LargeCommunity `json:",omitempty"`
	LocalPref        *uint32          `json:",omitempty"` // told to iBGP peers only (RFC 4271 section 5.1.5)
	MED              *uint32          `json:",omitempty"` // MULTI_EXIT_DISC; lower is preferred
	Prepend          *int             `json:",omitempty"` // how often the AS number is repeated, to eBGP peers only
	Peers            []string         `json:",omitempty"` // which peers hear of it, by Peer.Name; nil is all
}

// named reports whether a says anything.
func (a *BGPAttributes) named() bool {
	return a.Communities != nil || a.LargeCommunities != nil || a.LocalPref != nil || a.MED != nil || a.Prepend != nil ||
		a.Peers != nil
}

// MaxPrepend is how often an AS number may be repeated.
const MaxPrepend = 16

// WithDefaults is a with what it leaves open taken from b; communities of both kinds are one thing.
func (a BGPAttributes) WithDefaults(b BGPAttributes) BGPAttributes {
	if a.Communities == nil && a.LargeCommunities == nil {
		a.Communities, a.LargeCommunities = b.Communities, b.LargeCommunities
	}
	if a.LocalPref == nil {
		a.LocalPref = b.LocalPref
	}
	if a.MED == nil {
		a.MED = b.MED
	}
	if a.Prepend == nil {
		a.Prepend = b.Prepend
	}
	if a.Peers == nil {
		a.Peers = b.Peers
	}
	return a
}

// Equal reports whether two Attributes say the same.
func (a BGPAttributes) Equal(b BGPAttributes) bool {
	return slices.Equal(a.Communities, b.Communities) && slices.Equal(a.LargeCommunities, b.LargeCommunities) &&
		slices.Equal(a.Peers, b.Peers) && same(a.LocalPref, b.LocalPref) && same(a.MED, b.MED) && same(a.Prepend, b.Prepend)
}

func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// A Route is a prefix for BGP peers, with this node as next hop.
type Route struct {
	Prefix     netip.Prefix
	Service    Key // the oldest Service that has it; zero for an aggregate
	Attributes BGPAttributes
	// Drain: it is about to be withdrawn, and peers should prefer other paths (RFC 8326).
	Drain bool
	// Keep: this process ends, and routers keep the route for the next (RFC 4724); later nothing is withdrawn.
	Keep bool
	// Untranslated: kube-proxy leaves packets to it alone (ModeProxy).
	Untranslated bool
}

// Equal reports whether two Routes are the same on the wire.
func (r Route) Equal(o Route) bool {
	return r.Prefix == o.Prefix && r.Drain == o.Drain && r.Attributes.Equal(o.Attributes)
}

// A BGPSession is the state of a peer's session, as this node sees it.
type BGPSession struct {
	Peer     string    `json:"peer"`               // Peer.Name
	AS       uint32    `json:"as,omitempty"`       // the peer's
	State    string    `json:"state"`              // of the FSM, in lower case (RFC 4271 section 8.2.2), or "waiting"
	Since    time.Time `json:"since"`              // when it came up or went down
	Lasting  bool      `json:"lasting,omitempty"`  // that is ten seconds ago, or a third of the hold time
	Prefixes int       `json:"prefixes,omitempty"` // how many are advertised on it
	Reason   string    `json:"reason,omitempty"`   // while it is not established: why, as far as known
	// while established: the BFD session's state, or why there is none; "" if none is configured
	BFD string `json:"bfd,omitempty"`
	// While established: the router takes no such prefix (RFC 4760 section 8), or this node has no next hop for one that
	// it takes (RFC 8950 section 4).
	NoIPv4 bool `json:"noIPv4,omitempty"`
	NoIPv6 bool `json:"noIPv6,omitempty"`
}

// Established is the State of a Session that carries routes.
const Established = "established"

// Up reports whether the session carries routes.
func (s BGPSession) Up() bool { return s.State == Established }

// Takes reports whether the session is established, and carries the address' family.
func (s BGPSession) Takes(a netip.Addr) bool {
	return s.Up() && !(a.Is4() && s.NoIPv4 || a.Is6() && s.NoIPv6)
}
