package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// BGP configures how VIPs are announced to routers.
type BGP struct {
	Enable          bool          // bgp_enable
	Peers           []vip.BGPPeer // bgp_peers, and bgp_peeraddress with what belongs to it
	RouterID        netip.Addr    // bgp_routerid; zero derives one
	RouterInterface string        // bgp_routerinterface
	Hold            time.Duration
	Keepalive       time.Duration // less than Hold
	// annotation: the prefix of Node annotations about peers, without a slash; "" is none
	AnnotationPrefix string
	Attributes       vip.BGPAttributes // of routes whose Service sets no others
	Aggregates       []netip.Prefix    // herald_bgp_aggregates: advertised in addition to the host routes in them
	RestartTime      time.Duration     // herald_bgp_restart_time; 0 is off
	DrainTime        time.Duration     // herald_bgp_drain_time
	RequireSession   bool              // herald_bgp_ready: /readyz needs a session
	TTLSecurity      bool              // herald_bgp_ttl_security: packets of peers that are not multihop have a TTL of 255

	local   localSide
	single  vip.BGPPeer // bgp_peeraddress, bgp_peeras, bgp_peerpass, bgp_multihop
	listed  []peerText  // bgp_peers
	nextHop nextHop
}

type localSide struct {
	as     uint32     // bgp_as
	link   string     // bgp_sourceif
	source netip.Addr // bgp_sourceip
}

const (
	defaultAS   = "65000"
	defaultHold = "30"
	maxHold     = 65535 // seconds: 16 bits in an OPEN message
	minHold     = 3     // seconds: RFC 4271 section 4.2; 0, which would be "for ever", is not offered
	maxRestart  = 4095  // seconds: 12 bits in the graceful restart capability (RFC 4724 section 3)
	maxPassword = 80    // bytes: what the kernel takes (TCP_MD5SIG_MAXKEYLEN)
	bgpPort     = 179
	asTrans     = 23456 // RFC 6793: stands for numbers that do not fit into 16 bits
)

var errAS = errors.New("must be an AS number: a whole number from 1 to 4294967294, not 23456")

func parseAS(v string) (uint32, error) {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n == 0 || n == asTrans || n == 1<<32-1 {
		return 0, errAS
	}
	return uint32(n), nil
}

func parsePassword(v string) (vip.Secret, error) {
	if len(v) > maxPassword {
		return "", fmt.Errorf("must be at most %d bytes", maxPassword)
	}
	return vip.Secret(v), nil
}

// parseAnnotationPrefix parses "example.com" and "example.com/" into the former.
func parseAnnotationPrefix(v string) (string, error) {
	v = strings.TrimSuffix(v, "/")
	if !isSubdomain(v) {
		return "", errors.New("must be the prefix of annotations, such as example.com")
	}
	return v, nil
}

func setCommunities(c *Config, v string) (err error) {
	if v != "" {
		c.BGP.Attributes.Communities, c.BGP.Attributes.LargeCommunities, err = vip.ParseCommunities(v)
	}
	return err
}

func parseAggregate(v string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(v)
	if err != nil || p != p.Masked() || p.Bits() == 0 {
		return p, fmt.Errorf("must be prefixes with commas between, such as 192.0.2.0/24,2001:db8::/64; %q is none, or "+
			"has host bits", v)
	}
	return p, nil
}

func parseUint32(v string) (*uint32, error) {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil {
		return nil, errors.New("must be a whole number from 0 to 4294967295")
	}
	return new(uint32(n)), nil
}

// parsePrepend returns nil for 0.
func parsePrepend(v string) (*int, error) {
	n, err := number(0, vip.MaxPrepend)(v)
	if err != nil || n == 0 {
		return nil, err
	}
	return &n, nil
}

// checkBGP checks the options of BGP together, and completes peers; without bgp_enable it warns of each given one.
func (p *parser) checkBGP() {
	c := &p.config.BGP
	if !c.Enable {
		p.warnWithout("bgp_enable", bgpOptions)
		*c = BGP{}
		return
	}
	hold, keepalive := p.setting("bgp_hold_time"), p.setting("bgp_keepalive_interval")
	switch {
	case !p.valid("bgp_hold_time", "bgp_keepalive_interval"):
	case keepalive.From == FromDefault:
		c.Keepalive = max(c.Hold/3, time.Second).Truncate(time.Second)
	case c.Keepalive >= c.Hold:
		p.blame(keepalive, "must be less than %v", hold, "must be more than %v")
	}
	if p.valid("mpbgp_nexthop") {
		p.failIf(p.setting("mpbgp_nexthop"), c.nextHop.check(c.local))
	}
	if c.AnnotationPrefix != "" && p.config.Services.Namespace != "" {
		p.warn("%v has no effect with %v: Herald then sees no Nodes", p.setting("annotation"), p.setting("svc_namespace"))
	}
	p.addListedPeers()
	if a := c.single.Address; a.IsValid() && p.valid("bgp_peeras") &&
		!slices.ContainsFunc(c.listed, func(t peerText) bool { return t.peer.Address == a }) {
		c.single.Port = bgpPort
		peer, err := peerText{peer: c.single}.complete(c.local, c.nextHop, p.src.passwordReader())
		p.failIf(p.setting("bgp_peeraddress"), err)
		c.Peers = append(c.Peers, peer)
	}
	if len(c.Peers) == 0 && c.AnnotationPrefix == "" && p.valid("bgp_peers", "bgp_peeraddress") {
		p.fail(p.setting("bgp_enable"), errors.New("needs a peer: set bgp_peers, bgp_peeraddress or annotation"))
	}
}

func (p *parser) addListedPeers() {
	c := &p.config.BGP
	option := p.setting("bgp_peers")
	seen := make(map[string]bool)
	for _, t := range c.listed {
		peer, err := t.complete(c.local, c.nextHop, p.src.passwordReader())
		name := peer.Name()
		switch {
		case err != nil:
			p.fail(option, fmt.Errorf("peer %d: %w", t.number, err))
		case seen[name]:
			p.fail(option, fmt.Errorf("peer %d: %s is named twice", t.number, name))
		default:
			if peer.Multihop && peer.BFD != (vip.BFD{}) {
				peer.BFD = vip.BFD{} // docs/why.md, "BFD"
				p.warn("bgp_peers (%s), peer %d (%s): there is no BFD with a peer that is multihop, since BFD here is over one "+
					"hop; a short bgp_hold_time takes its place", option.where, t.number, name)
			}
			c.Peers = append(c.Peers, peer)
		}
		seen[name] = true
	}
}

var bgpOptions = inSection(groupBGP, []Option{
	{Env: "bgp_enable", Flag: "bgp", Type: Bool, Default: "false",
		Meaning: "Announce VIPs to routers by BGP. Without `svc_election` every node that can serve a VIP advertises it, " +
			"with it its owner does.",
		set: store(parseBool, func(c *Config) *bool { return &c.BGP.Enable })},
	{Env: "bgp_as", Flag: "localAS", Type: Int, Default: defaultAS, Meaning: "The node's AS number.",
		set: store(parseAS, func(c *Config) *uint32 { return &c.BGP.local.as })},
	{Env: "bgp_peers", Flag: "bgppeers", Type: List, Secret: true,
		Meaning: "The peers, with commas between, each `address:AS:password:multihop:port:mpbgp options:BFD options`. " +
			"The address is an IPv4 address, an IPv6 address in brackets, or `unnumbered:<interface>` for the router at the " +
			"other end of a link without addresses, which needs no AS. All but address and AS may be left out. A password " +
			"that begins with `@/` is the path of a file with it. mpbgp options are " +
			"`mpbgp_nexthop=...;mpbgp_ipv4=...;mpbgp_ipv6=...`, for this peer alone. BFD options are `true;300;300;3`: the " +
			"intervals to receive and to send at, in milliseconds, and how many packets may be lost; not with multihop.",
		set: store(parsePeers, func(c *Config) *[]peerText { return &c.BGP.listed })},
	{Env: "bgp_peeraddress", Flag: "peerAddress", Type: String,
		Meaning: "The address of one peer, in addition to those of `bgp_peers`.",
		set:     store(hostAddr(0), func(c *Config) *netip.Addr { return &c.BGP.single.Address })},
	{Env: "bgp_peeras", Flag: "peerAS", Type: Int, Default: defaultAS, Meaning: "The AS number of `bgp_peeraddress`.",
		set: store(parseAS, func(c *Config) *uint32 { return &c.BGP.single.AS })},
	{Env: "bgp_peerpass", Flag: "peerPass", Type: String, Secret: true,
		Meaning: "The password of `bgp_peeraddress` (TCP MD5, RFC 2385), or `@` and the path of a file with it.",
		set:     store(parsePassword, func(c *Config) *vip.Secret { return &c.BGP.single.Password })},
	{Env: "bgp_multihop", Flag: "multihop", FlagAliases: []string{"multiHop"}, Type: Bool, Default: "false",
		Meaning: "`bgp_peeraddress`, and peers named by annotations, may be more than one hop away.",
		set:     store(parseBool, func(c *Config) *bool { return &c.BGP.single.Multihop })},
	{Env: "bgp_routerid", Flag: "bgpRouterID", Type: String,
		Meaning: "The BGP identifier, an IPv4 address. If not set, that of `bgp_routerinterface`, or the node's own address.",
		set:     store(hostAddr(vip.IPv4), func(c *Config) *netip.Addr { return &c.BGP.RouterID })},
	{Env: "bgp_routerinterface", Flag: "bgpRouterInterface", Type: Interface,
		Meaning: "The interface whose IPv4 address is the BGP identifier.",
		set:     store(parseLinkName, func(c *Config) *string { return &c.BGP.RouterInterface })},
	{Env: "bgp_sourceif", Flag: "sourceIF", FlagAliases: []string{"sourceif"}, Type: Interface,
		Meaning: "The interface sessions leave by, from its address. With `lo` they leave as the kernel routes them.",
		set:     store(parseLinkName, func(c *Config) *string { return &c.BGP.local.link })},
	{Env: "bgp_sourceip", Flag: "sourceIP", FlagAliases: []string{"sourceip"}, Type: String,
		Meaning: "The address that sessions with peers of its family start from. Wins over `bgp_sourceif`.",
		set:     store(hostAddr(0), func(c *Config) *netip.Addr { return &c.BGP.local.source })},
	{Env: "bgp_hold_time", Flag: "bgpHoldTimer", Type: Seconds, Default: defaultHold,
		Meaning: "How long each side waits for a silent peer. The shorter time of the two sides holds. At least 3.",
		set:     store(seconds(minHold, maxHold), func(c *Config) *time.Duration { return &c.BGP.Hold })},
	{Env: "bgp_keepalive_interval", Flag: "bgpKeepAliveInterval", Type: Seconds, Default: "10",
		Meaning: "The time between keepalives, less than `bgp_hold_time`. If not set, a third of that.",
		set:     store(seconds(1, maxHold), func(c *Config) *time.Duration { return &c.BGP.Keepalive })},
	{Env: "mpbgp_nexthop", Flag: "mpbgpNexthop", Type: String,
		Meaning: "Where prefixes whose family is not the session's have their next hop from. `fixed`: `mpbgp_ipv4`, " +
			"`mpbgp_ipv6`. `auto_sourceif`, `auto_sourceip`: an address of `bgp_sourceif`, or of the interface that has " +
			"`bgp_sourceip`. If not set, an address of the interface the session leaves by; if there is none, IPv4 prefixes " +
			"have an IPv6 next hop (RFC 8950).",
		set: store(parseHopMode, func(c *Config) *string { return &c.BGP.nextHop.mode })},
	{Env: "mpbgp_ipv4", Flag: "mpbgpIPv4", Type: String,
		Meaning: "The next hop of IPv4 prefixes on IPv6 sessions, with `mpbgp_nexthop=fixed`.",
		set:     store(hostAddr(vip.IPv4), func(c *Config) *netip.Addr { return &c.BGP.nextHop.ip4 })},
	{Env: "mpbgp_ipv6", Flag: "mpbgpIPv6", Type: String,
		Meaning: "The next hop of IPv6 prefixes on IPv4 sessions, with `mpbgp_nexthop=fixed`.",
		set:     store(hostAddr(vip.IPv6), func(c *Config) *netip.Addr { return &c.BGP.nextHop.ip6 })},
	{Env: "annotation", Aliases: []string{"annotations"}, Flag: "annotations", Type: String,
		Meaning: "The prefix of Node annotations that name peers. It adds the peers of `<prefix>/bgp-peers-0-peer-ip`, " +
			"`-peer-asn`, `-node-asn`, `-src-ip`, `-peer-port`, `-bgp-pass` (in base64), and so on from 0.",
		set: store(parseAnnotationPrefix, func(c *Config) *string { return &c.BGP.AnnotationPrefix })},
	{Env: "herald_bgp_communities", Flag: "bgpCommunities", Type: List,
		Meaning: "Communities of all routes: `65000:100`, large ones `65000:1:100`, or names such as `no-export`. The " +
			"annotation `heraldvip.io/bgp-communities` on a Service wins over it.",
		set: setCommunities},
	{Env: "herald_bgp_localpref", Flag: "bgpLocalPref", Type: Int,
		Meaning: "The local preference sent to peers of the same AS. 100 if not set.",
		set:     store(parseUint32, func(c *Config) **uint32 { return &c.BGP.Attributes.LocalPref })},
	{Env: "herald_bgp_med", Flag: "bgpMED", Type: Int, Meaning: "The MED of all routes; none if not set.",
		set: store(parseUint32, func(c *Config) **uint32 { return &c.BGP.Attributes.MED })},
	{Env: "herald_bgp_prepend", Flag: "bgpPrepend", Type: Int, Default: "0",
		Meaning: "How often the AS number is repeated towards peers of another AS.",
		set:     store(parsePrepend, func(c *Config) **int { return &c.BGP.Attributes.Prepend })},
	{Env: "herald_bgp_aggregates", Flag: "bgpAggregates", Type: List,
		Meaning: "Prefixes such as `192.0.2.0/24` to advertise in addition to the host routes. Each is advertised while " +
			"this node advertises a VIP in it.",
		set: store(list(parseAggregate), func(c *Config) *[]netip.Prefix { return &c.BGP.Aggregates })},
	{Env: "herald_bgp_restart_time", Flag: "bgpRestartTime", Type: Seconds, Default: "0",
		Meaning: "How long routers are asked to keep the routes while Herald restarts (RFC 4724). Nothing is then " +
			"withdrawn when it stops, so a node that is shut down attracts traffic for this time. 0 is off.",
		set: store(seconds(0, maxRestart), func(c *Config) *time.Duration { return &c.BGP.RestartTime })},
	{Env: "herald_bgp_drain_time", Flag: "bgpDrainTime", Type: Seconds, Default: "2",
		Meaning: "How long routes stay advertised, marked for graceful shutdown (RFC 8326), when Herald stops.",
		set:     store(seconds(0, 15), func(c *Config) *time.Duration { return &c.BGP.DrainTime })},
	{Env: "herald_bgp_ttl_security", Flag: "bgpTTLSecurity", Type: Bool, Default: "false",
		Meaning: "Take packets of peers with a TTL of 255 only, and send them so (GTSM, RFC 5082). No host beyond the " +
			"link can then disturb a session. The router has to be told as well (FRR: `ttl-security hops 1`). Peers with " +
			"multihop are exempt.",
		set: store(parseBool, func(c *Config) *bool { return &c.BGP.TTLSecurity })},
	{Env: "herald_bgp_ready", Flag: "bgpReady", Type: Bool, Default: "false",
		Meaning: "`/readyz` needs at least one established session.",
		set:     store(parseBool, func(c *Config) *bool { return &c.BGP.RequireSession })},
})
