package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// A peerText is one peer of bgp_peers as it is written.
type peerText struct {
	number int // its place, from 1
	peer   vip.BGPPeer
	hop    hopText
	bfd    bool
}

const unnumbered = "unnumbered:"

var bfdSuffix = regexp.MustCompile(`(?:^|:)((?:true|false)(?:;.*)?)$`)

// The fields of a peer after its address, in order.
var peerFields = []string{"AS number", "password", "multihop", "port", "mpbgp options", "BFD options"}

// setPeers reads peer,peer,... with each being
// address:AS:password:multihop:port:mpbgp options:BFD options, where the address is
// an IPv4 address, an IPv6 address in brackets, or unnumbered:<interface>. All but address
// and AS may be left out. Errors name the peer and the field, and no password.
func setPeers(c *Config, v string) error {
	var errs []error
	for i, text := range strings.Split(v, ",") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		t, err := readPeer(text)
		t.number = i + 1
		if err != nil {
			errs = append(errs, fmt.Errorf("peer %d: %w", t.number, err))
			continue
		}
		c.BGP.listed = append(c.BGP.listed, t)
	}
	return errors.Join(errs...)
}

// readPeer reads one peer.
func readPeer(text string) (peerText, error) {
	t := peerText{peer: vip.BGPPeer{Port: bgpPort}}
	rest, err := t.address(text)
	if err != nil {
		return t, err
	}
	// An older spelling puts the mpbgp options after a slash.
	old := ""
	if i := strings.LastIndex(rest, "/mpbgp_"); i >= 0 {
		rest, old = rest[:i], rest[i+1:]
	}
	fields := strings.SplitN(rest, ":", len(peerFields)-1)
	fields = append(fields, make([]string, len(peerFields)-len(fields))...)
	// An IPv6 address among the mpbgp options has colons of its own.
	if m := bfdSuffix.FindStringSubmatch(fields[4]); m != nil {
		fields[4], fields[5] = strings.TrimSuffix(fields[4], m[0]), m[1]
	}
	if !strings.HasSuffix(fields[4], "::") {
		fields[4] = strings.TrimSuffix(fields[4], ":") // an empty last field
	}
	if old != "" {
		fields[4] = old
	}
	var errs []error
	for i, read := range []func(string) error{t.as, t.password, t.multihop, t.port, t.mpbgp, t.bfdOptions} {
		if err := read(fields[i]); err != nil {
			errs = append(errs, fmt.Errorf("field %d (%s) %w", i+2, peerFields[i], err))
		}
	}
	return t, errors.Join(errs...)
}

// address reads the first field and returns the others.
func (t *peerText) address(text string) (rest string, err error) {
	if link, ok := strings.CutPrefix(text, unnumbered); ok {
		link, rest, _ = strings.Cut(link, ":")
		link, old, _ := strings.Cut(link, "/")
		if link == "" || checkLink(link) != nil {
			return "", errors.New("field 1 (address) must be unnumbered:<interface> with the name of a link")
		}
		t.peer.Interface = link
		if old != "" {
			rest = "/" + old
		}
		return rest, nil
	}
	host := text
	if strings.HasPrefix(text, "[") {
		end := strings.IndexByte(text, ']')
		if end < 0 {
			return "", errors.New("field 1 (address) lacks the closing bracket")
		}
		host, rest = text[1:end], strings.TrimPrefix(text[end+1:], ":")
	} else {
		host, rest, _ = strings.Cut(text, ":")
	}
	a, err := netip.ParseAddr(host)
	a = a.Unmap()
	switch {
	case err != nil || a.Zone() != "" || a.Is6() && text[0] != '[':
		return "", errors.New("field 1 (address) must be an IPv4 address, an IPv6 address in brackets, or unnumbered:<interface>")
	case a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast():
		return "", errors.New("field 1 (address) must be an address of one router; where there is only a link-local one write unnumbered:<interface>")
	}
	t.peer.Address = a
	return rest, nil
}

func (t *peerText) as(v string) (err error) {
	if v == "" && t.peer.Interface != "" {
		return nil // the router says it
	}
	t.peer.AS, err = parseAS(v)
	return err
}

func (t *peerText) password(v string) error {
	if len(v) > maxPassword {
		return fmt.Errorf("must be at most %d bytes", maxPassword)
	}
	t.peer.Password = vip.Secret(v)
	return nil
}

func (t *peerText) multihop(v string) (err error) {
	if v == "" {
		return nil
	}
	if t.peer.Multihop, err = strconv.ParseBool(v); err != nil {
		return errors.New("must be true or false")
	}
	return nil
}

func (t *peerText) port(v string) error {
	if v == "" {
		return nil
	}
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 {
		return errors.New("must be a port from 1 to 65535")
	}
	t.peer.Port = uint16(n)
	return nil
}

func (t *peerText) mpbgp(v string) error {
	if v == "" {
		return nil
	}
	for pair := range strings.SplitSeq(v, ";") {
		key, value, _ := strings.Cut(pair, "=")
		var err error
		switch key {
		case "":
		case "mpbgp_nexthop":
			t.hop.mode, err = value, checkHop(value)
		case "mpbgp_ipv4":
			t.hop.ip4, err = hopAddr(value, vip.IPv4)
		case "mpbgp_ipv6":
			t.hop.ip6, err = hopAddr(value, vip.IPv6)
		default:
			err = errors.New("must be mpbgp_nexthop, mpbgp_ipv4 and mpbgp_ipv6, each with a value")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hopAddr reads a next hop; an empty one is none.
func hopAddr(v string, f vip.Family) (netip.Addr, error) {
	if v == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(v)
	if err != nil || vip.FamilyOf(a) != f {
		return netip.Addr{}, fmt.Errorf("must be an %s address", f)
	}
	return a, nil
}

func (t *peerText) bfdOptions(v string) error {
	on, _, _ := strings.Cut(v, ";")
	if on == "" {
		return nil
	}
	b, err := strconv.ParseBool(on)
	if err != nil {
		return errors.New("must begin with true or false")
	}
	t.bfd = b
	return nil
}

// check says what a next hop lacks.
func (h hopText) check(o own) error {
	switch {
	case h.mode == hopFixed && !h.ip4.IsValid() && !h.ip6.IsValid():
		return errors.New("fixed needs mpbgp_ipv4 or mpbgp_ipv6")
	case h.mode == hopSourceIf && o.link == "":
		return errors.New("auto_sourceif needs bgp_sourceif")
	case h.mode == hopSourceIP && !o.source.IsValid():
		return errors.New("auto_sourceip needs bgp_sourceip")
	}
	return nil
}

// passwordFile begins a password that is the path of a file with it.
const passwordFile = "@/"

// finish adds what all peers have in common, and reads the password if it is in a file.
func (t peerText) finish(o own, common hopText, src Sources) (vip.BGPPeer, error) {
	p := t.peer
	p.LocalAS, p.SourceInterface = o.as, o.link
	if o.source.IsValid() && p.Address.IsValid() && vip.FamilyOf(o.source) == vip.FamilyOf(p.Address) {
		p.Source = o.source
	}
	hop := t.hop
	if hop.mode == "" {
		hop.mode = common.mode
	}
	if !hop.ip4.IsValid() {
		hop.ip4 = common.ip4
	}
	if !hop.ip6.IsValid() {
		hop.ip6 = common.ip6
	}
	if err := hop.check(o); err != nil {
		return p, fmt.Errorf("mpbgp_nexthop: %w", err)
	}
	switch hop.mode {
	case hopFixed:
		p.NextHop4, p.NextHop6 = hop.ip4, hop.ip6
	case hopSourceIf:
		p.NextHopInterface = o.link
	}
	if path, ok := strings.CutPrefix(string(p.Password), passwordFile); ok {
		path = "/" + path
		if src.ReadFile == nil {
			return p, errors.New("the password is in a file, and files can't be read here")
		}
		text, err := src.ReadFile(path)
		if err != nil {
			return p, fmt.Errorf("the password can't be read: %w", err)
		}
		p.Password = vip.Secret(strings.TrimRight(string(text), "\r\n"))
		if len(p.Password) == 0 || len(p.Password) > maxPassword {
			return p, fmt.Errorf("the password in %s must have 1 to %d bytes", path, maxPassword)
		}
	}
	if p.Interface != "" && p.Password != "" {
		return p, errors.New("a session without addresses can't have a password: gobgp does not sign link-local ones")
	}
	return p, nil
}

// AnnotatedPeers reads the peers that Node annotations name, without their prefix:
// bgp-peers-<n>-peer-ip (several with commas between), -peer-asn, -node-asn, -src-ip,
// -peer-port and -bgp-pass (in base64), n counting from 0. -src-ip is the BGP identifier,
// too. Its error tells of all that can't be read, and no password.
func (b BGP) AnnotatedPeers(annotations map[string]vip.Secret) ([]vip.BGPPeer, error) {
	of := func(key string) string { return string(annotations[key]) }
	var peers []vip.BGPPeer
	var errs []error
	for n := 0; ; n++ {
		key := func(what string) string { return fmt.Sprintf("bgp-peers-%d-%s", n, what) }
		list := of(key("peer-ip"))
		if list == "" {
			break
		}
		t := peerText{peer: vip.BGPPeer{Port: bgpPort}, hop: b.hop}
		fail := func(what string, err error) {
			if err != nil {
				errs = append(errs, fmt.Errorf("annotation %s/%s %w", b.AnnotationPrefix, key(what), err))
			}
		}
		o := b.own
		fail("peer-asn", t.as(of(key("peer-asn"))))
		if v := of(key("node-asn")); v != "" {
			var err error
			o.as, err = parseAS(v)
			fail("node-asn", err)
		}
		if v := of(key("peer-port")); v != "" {
			fail("peer-port", t.port(v))
		}
		if v := of(key("src-ip")); v != "" {
			a, err := netip.ParseAddr(v)
			if err != nil {
				fail("src-ip", errors.New("must be an IP address"))
			}
			o.source = a.Unmap()
			if o.source.Is4() {
				t.peer.RouterID = o.source
			}
		}
		if v := of(key("bgp-pass")); v != "" {
			text, err := base64.StdEncoding.DecodeString(v)
			if err != nil {
				fail("bgp-pass", errors.New("must be in base64"))
			}
			fail("bgp-pass", t.password(string(text)))
		}
		t.peer.Multihop = b.single.Multihop
		for a := range strings.SplitSeq(list, ",") {
			x := t
			addr, err := netip.ParseAddr(strings.TrimSpace(a))
			if err != nil {
				fail("peer-ip", errors.New("must be IP addresses with commas between"))
				continue
			}
			x.peer.Address = addr.Unmap()
			p, err := x.finish(o, b.hop, Sources{}) // a node's annotation reads no file
			fail("peer-ip", err)
			if !slices.ContainsFunc(peers, func(q vip.BGPPeer) bool { return q.Name() == p.Name() }) {
				peers = append(peers, p)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return peers, nil
}
