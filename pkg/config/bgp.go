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
	// annotation: the prefix of Node annotations that name peers, without a slash; "" is none
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

// A localSide is what all sessions have on this node.
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

// checkBGP checks what the options of BGP mean together, and completes the peers. Without bgp_enable
// it warns of each of them that was given.
func (p *parser) checkBGP() {
	c := &p.config.BGP
	if !c.Enable {
		for _, o := range bgpOptions {
			if s, ok := p.given[o.Env]; ok && o.Env != "bgp_enable" && !isDefault(o, s.Value) {
				p.warn("%s (%s) has no effect without bgp_enable=true", s.name, s.where)
			}
		}
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

// addListedPeers adds the peers of bgp_peers.
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
