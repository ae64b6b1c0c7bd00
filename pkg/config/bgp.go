package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// BGP says how VIPs are told to routers.
type BGP struct {
	Enable           bool          // bgp_enable
	Peers            []vip.BGPPeer // bgp_peers, and bgp_peeraddress with what belongs to it
	RouterID         netip.Addr    // bgp_routerid; zero derives one
	RouterInterface  string        // bgp_routerinterface
	Hold             time.Duration
	Keepalive        time.Duration     // less than Hold
	AnnotationPrefix string            // annotation: the prefix of Node annotations that name peers, without a slash; "" is none
	Attributes       vip.BGPAttributes // of routes whose Service says nothing else
	Aggregates       []netip.Prefix    // herald_bgp_aggregates: told beside the host routes in them
	RestartTime      time.Duration     // herald_bgp_restart_time; 0 is off
	DrainTime        time.Duration     // herald_bgp_drain_time
	RequireSession   bool              // herald_bgp_ready: /readyz needs a session

	own    own
	single vip.BGPPeer // bgp_peeraddress, bgp_peeras, bgp_peerpass, bgp_multihop
	listed []peerText  // bgp_peers
	hop    hopText
}

// own is what all sessions have on this side.
type own struct {
	as     uint32     // bgp_as
	link   string     // bgp_sourceif
	source netip.Addr // bgp_sourceip
}

// A hopText says which next hop prefixes of the other family than the session's have.
type hopText struct {
	mode string // mpbgp_nexthop
	ip4  netip.Addr
	ip6  netip.Addr
}

// defaultHold and the like hold while an option is not given.
const (
	defaultAS   = "65000"
	defaultHold = "30"
	maxHold     = 65535 // 16 bits in an OPEN message
	minHold     = 3     // RFC 4271 section 4.2; 0, which would be "for ever", is not offered
	asTrans     = 23456 // RFC 6793: stands for numbers that old routers can't say
	bgpPort     = 179
)

var errAS = errors.New("must be an AS number: a whole number from 1 to 4294967294, not 23456")

func parseAS(v string) (uint32, error) {
	n, err := strconv.ParseUint(v, 10, 32)
	if err != nil || n == 0 || n == asTrans || n == 1<<32-1 {
		return 0, errAS
	}
	return uint32(n), nil
}

func asTo(at func(*Config) *uint32) func(*Config, string) error {
	return func(c *Config, v string) (err error) {
		*at(c), err = parseAS(v)
		return err
	}
}

// addrTo takes an address, or "" for none, of a family if that is not 0.
func addrTo(family vip.Family, at func(*Config) *netip.Addr) func(*Config, string) error {
	return func(c *Config, v string) error {
		if v == "" {
			return nil
		}
		a, err := netip.ParseAddr(v)
		switch {
		case err != nil || a.Zone() != "":
			return errors.New("must be an IP address")
		case family != 0 && vip.FamilyOf(a.Unmap()) != family:
			return fmt.Errorf("must be an %s address", family)
		case a.IsUnspecified() || a.IsMulticast():
			return errors.New("must be an address of one host")
		}
		*at(c) = a.Unmap()
		return nil
	}
}

func linkTo(at func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error {
		*at(c) = v
		return checkLink(v)
	}
}

func numberTo(most int, at func(*Config, int)) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil || n > uint64(most) {
			return fmt.Errorf("must be a whole number from 0 to %d", most)
		}
		at(c, int(n))
		return nil
	}
}

func setHold(c *Config, v string) error {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n < minHold {
		return fmt.Errorf("must be a whole number of seconds from %d to %d", minHold, maxHold)
	}
	c.BGP.Hold = time.Duration(n) * time.Second
	return nil
}

func setKeepalive(c *Config, v string) error {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n < 1 {
		return fmt.Errorf("must be a whole number of seconds from 1 to %d", maxHold)
	}
	c.BGP.Keepalive = time.Duration(n) * time.Second
	return nil
}

// maxPassword is what the kernel takes (TCP_MD5SIG_MAXKEYLEN).
const maxPassword = 80

func setPassword(c *Config, v string) error {
	if len(v) > maxPassword {
		return fmt.Errorf("must be at most %d bytes", maxPassword)
	}
	c.BGP.single.Password = vip.Secret(v)
	return nil
}

// Where a next hop comes from, in kube-vip's words.
const (
	hopFixed    = "fixed"
	hopSourceIf = "auto_sourceif"
	hopSourceIP = "auto_sourceip"
)

func checkHop(v string) error {
	switch v {
	case "", hopFixed, hopSourceIf, hopSourceIP:
		return nil
	}
	return fmt.Errorf("must be %s, %s or %s", hopFixed, hopSourceIf, hopSourceIP)
}

// setAnnotations takes a prefix of annotations, as "example.com" or "example.com/".
func setAnnotations(c *Config, v string) error {
	v = strings.TrimSuffix(v, "/")
	if v != "" && !isSubdomain(v) {
		return errors.New("must be the prefix of annotations, such as example.com")
	}
	c.BGP.AnnotationPrefix = v
	return nil
}

func setCommunities(c *Config, v string) error {
	if v == "" {
		return nil
	}
	var err error
	c.BGP.Attributes.Communities, c.BGP.Attributes.LargeCommunities, err = vip.ParseCommunities(v)
	return err
}

func setAggregates(c *Config, v string) error {
	if v == "" {
		return nil
	}
	for i, t := range strings.Split(v, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(t))
		if err != nil || p != p.Masked() || p.Bits() == 0 {
			return fmt.Errorf("must be prefixes with commas between, such as 192.0.2.0/24,2001:db8::/64; number %d, %q, is none, or has host bits", i+1, t)
		}
		c.BGP.Aggregates = append(c.BGP.Aggregates, p)
	}
	return nil
}

// optional makes an option of a number that may be left out.
func optional(at func(*Config) **uint32) func(*Config, string) error {
	return func(c *Config, v string) error {
		if v == "" {
			return nil
		}
		n, err := strconv.ParseUint(v, 10, 32)
		if err != nil {
			return errors.New("must be a whole number from 0 to 4294967295")
		}
		*at(c) = new(uint32)
		**at(c) = uint32(n)
		return nil
	}
}

func seconds0To(at func(*Config) *time.Duration, most int) func(*Config, string) error {
	return numberTo(most, func(c *Config, n int) { *at(c) = time.Duration(n) * time.Second })
}

// bgp puts together what the options of BGP say.
func (p *parser) bgp(by func(string) Setting, src Sources) {
	c := &p.config.BGP
	if !c.Enable {
		for _, o := range ofBGP {
			if s, ok := p.given[o.Env]; ok && o.Env != "bgp_enable" && !harmless(o, s.Value) {
				p.warn("%s (%s) has no effect without bgp_enable=true", s.name, s.place)
			}
		}
		*c = BGP{}
		return
	}
	hold, keep := by("bgp_hold_time"), by("bgp_keepalive_interval")
	switch {
	case p.bad[hold.Option.Env] || p.bad[keep.Option.Env]:
	case keep.From == FromDefault:
		c.Keepalive = max(c.Hold/3, time.Second).Truncate(time.Second)
	case c.Keepalive >= c.Hold:
		p.relate(keep, "must be less than %v", hold, "must be more than %v")
	}
	if hop := by("mpbgp_nexthop"); !p.bad[hop.Option.Env] {
		if err := c.hop.check(c.own); err != nil {
			p.fail(hop, err)
		}
	}
	if a := by("annotation"); c.AnnotationPrefix != "" && p.config.Services.Namespace != "" {
		p.warn("%v has no effect with %v: Herald then sees no Nodes", a, by("svc_namespace"))
	}
	listed, single := by("bgp_peers"), by("bgp_peeraddress")
	seen := make(map[string]bool)
	for _, t := range c.listed {
		peer, err := t.finish(c.own, c.hop, src)
		name := peer.Name()
		switch {
		case err != nil:
			p.fail(listed, fmt.Errorf("peer %d: %w", t.number, err))
		case seen[name]:
			p.fail(listed, fmt.Errorf("peer %d: %s is named twice", t.number, name))
		default:
			c.Peers = append(c.Peers, peer)
			if t.bfd {
				p.warn("bgp_peers (%s), peer %d (%s): there is no BFD in this version; a short bgp_hold_time takes its place", listed.place, t.number, name)
			}
		}
		seen[name] = true
	}
	if a := c.single.Address; a.IsValid() && !seen[a.String()] && !p.bad["bgp_peeras"] {
		c.single.Port = bgpPort
		peer, err := peerText{peer: c.single, hop: c.hop}.finish(c.own, c.hop, src)
		if err != nil {
			p.fail(single, err)
		}
		c.Peers = append(c.Peers, peer)
	}
	if len(c.Peers) == 0 && c.AnnotationPrefix == "" && !p.bad[listed.Option.Env] && !p.bad[single.Option.Env] {
		p.fail(by("bgp_enable"), errors.New("needs a peer: set bgp_peers, bgp_peeraddress or annotation"))
	}
}
