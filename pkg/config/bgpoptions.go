package config

import (
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// ofBGP are the options of BGP.
var ofBGP = []Option{
	{
		Env: "bgp_enable", Flag: "bgp", Type: Bool, Default: "false", Group: groupBGP, Since: second,
		Meaning: "Announce VIPs to routers by BGP. Without `svc_election` every node that can serve a VIP advertises it, with it its owner does.",
		set:     boolTo(func(c *Config) *bool { return &c.BGP.Enable }),
	},
	{
		Env: "bgp_as", Flag: "localAS", Type: Int, Default: defaultAS, Group: groupBGP, Since: second,
		Meaning: "The node's AS number.",
		set:     asTo(func(c *Config) *uint32 { return &c.BGP.own.as }),
	},
	{
		Env: "bgp_peers", Flag: "bgppeers", Type: List, Group: groupBGP, Since: second, Secret: true,
		Meaning: "The peers, with commas between, each `address:AS:password:multihop:port:mpbgp options:BFD options`. The address is an IPv4 address, an IPv6 address in brackets, or `unnumbered:<interface>` for the router at the other end of a link without addresses, which needs no AS. All but address and AS may be left out. A password that begins with `@/` is the path of a file with it. mpbgp options are `mpbgp_nexthop=...;mpbgp_ipv4=...;mpbgp_ipv6=...`, for this peer alone.",
		set:     setPeers,
	},
	{
		Env: "bgp_peeraddress", Flag: "peerAddress", Type: String, Group: groupBGP, Since: second,
		Meaning: "The address of one peer, beside those of `bgp_peers`.",
		set:     addrTo(0, func(c *Config) *netip.Addr { return &c.BGP.single.Address }),
	},
	{
		Env: "bgp_peeras", Flag: "peerAS", Type: Int, Default: defaultAS, Group: groupBGP, Since: second,
		Meaning: "The AS number of `bgp_peeraddress`.",
		set:     asTo(func(c *Config) *uint32 { return &c.BGP.single.AS }),
	},
	{
		Env: "bgp_peerpass", Flag: "peerPass", Type: String, Group: groupBGP, Since: second, Secret: true,
		Meaning: "The password of `bgp_peeraddress` (TCP MD5, RFC 2385), or `@` and the path of a file with it.",
		set:     setPassword,
	},
	{
		Env: "bgp_multihop", Flag: "multihop", FlagAliases: []string{"multiHop"}, Type: Bool, Default: "false", Group: groupBGP, Since: second,
		Meaning: "`bgp_peeraddress`, and peers named by annotations, may be more than one hop away.",
		set:     boolTo(func(c *Config) *bool { return &c.BGP.single.Multihop }),
	},
	{
		Env: "bgp_routerid", Flag: "bgpRouterID", Type: String, Group: groupBGP, Since: second,
		Meaning: "The BGP identifier, an IPv4 address. If not set, that of `bgp_routerinterface`, or the node's own address.",
		set:     addrTo(vip.IPv4, func(c *Config) *netip.Addr { return &c.BGP.RouterID }),
	},
	{
		Env: "bgp_routerinterface", Flag: "bgpRouterInterface", Type: Interface, Group: groupBGP, Since: second,
		Meaning: "The interface whose IPv4 address is the BGP identifier.",
		set:     linkTo(func(c *Config) *string { return &c.BGP.RouterInterface }),
	},
	{
		Env: "bgp_sourceif", Flag: "sourceIF", FlagAliases: []string{"sourceif"}, Type: Interface, Group: groupBGP, Since: second,
		Meaning: "The interface sessions leave by, from its address. With `lo` they leave as the kernel routes them.",
		set:     linkTo(func(c *Config) *string { return &c.BGP.own.link }),
	},
	{
		Env: "bgp_sourceip", Flag: "sourceIP", FlagAliases: []string{"sourceip"}, Type: String, Group: groupBGP, Since: second,
		Meaning: "The address sessions start from, with peers of its family.",
		set:     addrTo(0, func(c *Config) *netip.Addr { return &c.BGP.own.source }),
	},
	{
		Env: "bgp_hold_time", Flag: "bgpHoldTimer", Type: Seconds, Default: defaultHold, Group: groupBGP, Since: second,
		Meaning: "How long each side waits for a silent peer. The shorter time of the two sides holds. At least 3.",
		set:     setHold,
	},
	{
		Env: "bgp_keepalive_interval", Flag: "bgpKeepAliveInterval", Type: Seconds, Default: "10", Group: groupBGP, Since: second,
		Meaning: "The time between keepalives, less than `bgp_hold_time`. If not set, a third of that.",
		set:     setKeepalive,
	},
	{
		Env: "mpbgp_nexthop", Flag: "mpbgpNexthop", Type: String, Group: groupBGP, Since: second,
		Meaning: "Where prefixes whose family is not the session's have their next hop from. `fixed`: `mpbgp_ipv4`, `mpbgp_ipv6`. `auto_sourceif`, `auto_sourceip`: an address of `bgp_sourceif`, or of the interface that has `bgp_sourceip`. If not set, an address of the interface the session leaves by; without any, IPv4 prefixes have an IPv6 next hop (RFC 8950).",
		set: func(c *Config, v string) error {
			c.BGP.hop.mode = v
			return checkHop(v)
		},
	},
	{
		Env: "mpbgp_ipv4", Flag: "mpbgpIPv4", Type: String, Group: groupBGP, Since: second,
		Meaning: "The next hop of IPv4 prefixes on IPv6 sessions, with `mpbgp_nexthop=fixed`.",
		set:     addrTo(vip.IPv4, func(c *Config) *netip.Addr { return &c.BGP.hop.ip4 }),
	},
	{
		Env: "mpbgp_ipv6", Flag: "mpbgpIPv6", Type: String, Group: groupBGP, Since: second,
		Meaning: "The next hop of IPv6 prefixes on IPv4 sessions, with `mpbgp_nexthop=fixed`.",
		set:     addrTo(vip.IPv6, func(c *Config) *netip.Addr { return &c.BGP.hop.ip6 }),
	},
	{
		Env: "annotation", Aliases: []string{"annotations"}, Flag: "annotations", Type: String, Group: groupBGP, Since: second,
		Meaning: "The prefix of Node annotations that name peers. Beside the others there are then those of `<prefix>/bgp-peers-0-peer-ip`, `-peer-asn`, `-node-asn`, `-src-ip`, `-peer-port`, `-bgp-pass` (in base64), and so on from 0.",
		set:     setAnnotations,
	},
	{
		Env: "herald_bgp_communities", Flag: "bgpCommunities", Type: List, Group: groupBGP, Since: second,
		Meaning: "Communities of all routes: `65000:100`, large ones `65000:1:100`, or names such as `no-export`. The annotation `heraldvip.io/bgp-communities` on a Service wins over it.",
		set:     setCommunities,
	},
	{
		Env: "herald_bgp_localpref", Flag: "bgpLocalPref", Type: Int, Group: groupBGP, Since: second,
		Meaning: "The local preference told to peers of the same AS. Not set is 100.",
		set:     optional(func(c *Config) **uint32 { return &c.BGP.Attributes.LocalPref }),
	},
	{
		Env: "herald_bgp_med", Flag: "bgpMED", Type: Int, Group: groupBGP, Since: second,
		Meaning: "The MED of all routes; none if not set.",
		set:     optional(func(c *Config) **uint32 { return &c.BGP.Attributes.MED }),
	},
	{
		Env: "herald_bgp_prepend", Flag: "bgpPrepend", Type: Int, Default: "0", Group: groupBGP, Since: second,
		Meaning: "How often the AS number is repeated towards peers of another AS.",
		set: numberTo(vip.MaxPrepend, func(c *Config, n int) {
			if n > 0 {
				c.BGP.Attributes.Prepend = &n
			}
		}),
	},
	{
		Env: "herald_bgp_aggregates", Flag: "bgpAggregates", Type: List, Group: groupBGP, Since: second,
		Meaning: "Prefixes told beside the host routes, each as long as this node advertises a VIP in it, such as `192.0.2.0/24`.",
		set:     setAggregates,
	},
	{
		Env: "herald_bgp_restart_time", Flag: "bgpRestartTime", Type: Seconds, Default: "0", Group: groupBGP, Since: second,
		Meaning: "Ask routers to keep the routes for so long while Herald restarts (RFC 4724). Nothing is then withdrawn when it stops, so a node that is shut down draws traffic for so long. 0 is off.",
		set:     seconds0To(func(c *Config) *time.Duration { return &c.BGP.RestartTime }, 4095), // 12 bits in the capability
	},
	{
		Env: "herald_bgp_drain_time", Flag: "bgpDrainTime", Type: Seconds, Default: "2", Group: groupBGP, Since: second,
		Meaning: "How long routes stay, marked as about to go (RFC 8326), when Herald stops.",
		set:     seconds0To(func(c *Config) *time.Duration { return &c.BGP.DrainTime }, 15),
	},
	{
		Env: "herald_bgp_ready", Flag: "bgpReady", Type: Bool, Default: "false", Group: groupBGP, Since: second,
		Meaning: "`/readyz` needs at least one established session.",
		set:     boolTo(func(c *Config) *bool { return &c.BGP.RequireSession }),
	},
}
