package config

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A peerText is one peer of bgp_peers as it is written.
type peerText struct {
	number  int // its position in bgp_peers, from 1
	peer    vip.BGPPeer
	nextHop nextHop
}

// A nextHop is for routes whose family is not the session's.
type nextHop struct {
	mode string // mpbgp_nexthop; "" is not set
	ip4  netip.Addr
	ip6  netip.Addr
}

// The values of mpbgp_nexthop.
const (
	hopFixed    = "fixed"
	hopSourceIf = "auto_sourceif"
	hopSourceIP = "auto_sourceip"
)

var parseHopMode = oneOf(hopFixed, hopSourceIf, hopSourceIP)

const unnumbered = "unnumbered:"

// bfdSuffix matches the BFD options at a peer's end, which begin with a boolean.
var bfdSuffix = regexp.MustCompile(`(?:^|:)((?:true|false)(?:;.*)?)$`)

var peerFields = []string{"AS number", "password", "multihop", "port", "mpbgp options", "BFD options"}

// parsePeers parses peers between commas, each address:AS:password:multihop:port:mpbgp options:BFD options: the address
// is IPv4, IPv6 in brackets, or unnumbered:<interface>; only address and AS must be there. Its error names every wrong
// field, and no password.
func parsePeers(v string) ([]peerText, error) {
	var peers []peerText
	var errs []error
	for i, text := range strings.Split(v, ",") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		t, err := parsePeer(text)
		t.number = i + 1
		if err != nil {
			errs = append(errs, fmt.Errorf("peer %d: %w", t.number, err))
		}
		peers = append(peers, t)
	}
	return peers, errors.Join(errs...)
}

func parsePeer(text string) (peerText, error) {
	t := peerText{peer: vip.BGPPeer{Port: bgpPort}}
	rest, err := t.parseAddress(text)
	if err != nil {
		return t, err
	}
	old := ""
	if i := strings.LastIndex(rest, "/mpbgp_"); i >= 0 {
		rest, old = rest[:i], rest[i+1:]
	}
	fields := strings.SplitN(rest, ":", len(peerFields)-1)
	fields = append(fields, make([]string, len(peerFields)-len(fields))...)
	// An IPv6 address among the mpbgp options has colons, too.
	if m := bfdSuffix.FindStringSubmatch(fields[4]); m != nil {
		fields[4], fields[5] = strings.TrimSuffix(fields[4], m[0]), m[1]
	}
	if !strings.HasSuffix(fields[4], "::") {
		fields[4] = strings.TrimSuffix(fields[4], ":") // an empty last field
	}
	fields[4] = cmp.Or(old, fields[4])
	var errs []error
	for i, err := range []error{
		t.parseAS(fields[0]),
		parseInto(&t.peer.Password, fields[1], parsePassword),
		parseInto(&t.peer.Multihop, fields[2], parseBool),
		parseInto(&t.peer.Port, fields[3], parsePort),
		t.nextHop.parse(fields[4]),
		parseInto(&t.peer.BFD, fields[5], parseBFD),
	} {
		if err != nil {
			errs = append(errs, fmt.Errorf("field %d (%s) %w", i+2, peerFields[i], err))
		}
	}
	return t, errors.Join(errs...)
}

func (t *peerText) parseAddress(text string) (rest string, err error) {
	if link, ok := strings.CutPrefix(text, unnumbered); ok {
		link, rest, _ = strings.Cut(link, ":")
		link, old, _ := strings.Cut(link, "/")
		if _, err := parseLinkName(link); err != nil || link == "" {
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
	a, err := parseAddr(host)
	switch {
	case err != nil || a.Is6() && text[0] != '[':
		return "", errors.New("field 1 (address) must be an IPv4 address, an IPv6 address in brackets, or " +
			"unnumbered:<interface>")
	case a.IsUnspecified() || a.IsMulticast() || a.Is6() && a.IsLinkLocalUnicast():
		return "", errors.New("field 1 (address) must be an address of one router; where there is only a link-local one " +
			"write unnumbered:<interface>")
	}
	t.peer.Address = a
	return rest, nil
}

// parseAS parses the AS number, optional for an unnumbered link: then the OPEN message has it.
func (t *peerText) parseAS(v string) error {
	if v == "" && t.peer.Interface == "" {
		return errAS
	}
	return parseInto(&t.peer.AS, v, parseAS)
}

// parse parses mpbgp_nexthop=...;mpbgp_ipv4=...;mpbgp_ipv6=..., all optional.
func (h *nextHop) parse(v string) error {
	for pair := range strings.SplitSeq(v, ";") {
		key, value, _ := strings.Cut(pair, "=")
		var err error
		switch key {
		case "":
		case "mpbgp_nexthop":
			err = parseInto(&h.mode, value, parseHopMode)
		case "mpbgp_ipv4":
			err = parseInto(&h.ip4, value, hostAddr(vip.IPv4))
		case "mpbgp_ipv6":
			err = parseInto(&h.ip6, value, hostAddr(vip.IPv6))
		default:
			err = errors.New("must be mpbgp_nexthop, mpbgp_ipv4 and mpbgp_ipv6, each with a value")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// The bounds of BFD options.
const (
	minBFDInterval   = 50    // milliseconds: a node that is busy does not come to send more often than that
	maxBFDInterval   = 60000 // milliseconds
	minBFDMultiplier = 2     // with 1 a single lost packet would end the session
	maxBFDMultiplier = 255   // 8 bits in a packet
)

var defaultBFD = vip.BFD{MinReceive: 300 * time.Millisecond, MinTransmit: 300 * time.Millisecond, Multiplier: 3}

// parseBFD parses "true;300;300;3": whether there is BFD, the least ms between packets received, and sent, and the
// multiplier. Missing, empty and 0 are the default.
func parseBFD(v string) (vip.BFD, error) {
	fields := strings.Split(v, ";")
	on, err := parseBool(fields[0])
	if err != nil || len(fields) > 4 {
		return vip.BFD{}, errors.New("must be true;receive;transmit;multiplier, such as true;300;300;3, or false")
	}
	if !on {
		return vip.BFD{}, nil
	}
	for i, f := range fields {
		if f == "0" { // not set
			fields[i] = ""
		}
	}
	fields = append(fields, "", "", "")
	b := defaultBFD
	interval := func(v string) (time.Duration, error) {
		n, err := number(minBFDInterval, maxBFDInterval)(v)
		return time.Duration(n) * time.Millisecond, err
	}
	for _, err := range []struct {
		name string
		err  error
	}{
		{"receive interval in milliseconds", parseInto(&b.MinReceive, fields[1], interval)},
		{"transmit interval in milliseconds", parseInto(&b.MinTransmit, fields[2], interval)},
		{"multiplier", parseInto(&b.Multiplier, fields[3], number[uint8](minBFDMultiplier, maxBFDMultiplier))},
	} {
		if err.err != nil {
			return vip.BFD{}, fmt.Errorf("has a %s that %w", err.name, err.err)
		}
	}
	return b, nil
}

// check returns what a mode lacks, or nil.
func (h nextHop) check(local localSide) error {
	switch {
	case h.mode == hopFixed && !h.ip4.IsValid() && !h.ip6.IsValid():
		return errors.New("fixed needs mpbgp_ipv4 or mpbgp_ipv6")
	case h.mode == hopSourceIf && local.link == "":
		return errors.New("auto_sourceif needs bgp_sourceif")
	case h.mode == hopSourceIP && !local.source.IsValid():
		return errors.New("auto_sourceip needs bgp_sourceip")
	}
	return nil
}

// complete returns the peer with what all have in common: the local side, and unnamed parts of a next hop. It reads the
// password if that is in a file; a nil readFile can't.
func (t peerText) complete(local localSide, common nextHop, readFile func(string) ([]byte, error)) (vip.BGPPeer,
	error) {
	p := t.peer
	p.LocalAS, p.SourceInterface = local.as, local.link
	if local.source.IsValid() && p.Address.IsValid() && vip.FamilyOf(local.source) == vip.FamilyOf(p.Address) {
		p.Source = local.source
	}
	hop := nextHop{cmp.Or(t.nextHop.mode, common.mode), cmp.Or(t.nextHop.ip4, common.ip4),
		cmp.Or(t.nextHop.ip6, common.ip6)}
	if err := hop.check(local); err != nil {
		return p, fmt.Errorf("mpbgp_nexthop: %w", err)
	}
	switch hop.mode {
	case hopFixed:
		p.NextHop4, p.NextHop6 = hop.ip4, hop.ip6
	case hopSourceIf:
		p.NextHopInterface = local.link
	}
	if path, ok := strings.CutPrefix(string(p.Password), "@"); ok && strings.HasPrefix(path, "/") {
		var err error
		if p.Password, err = ReadPassword(path, readFile); err != nil {
			return p, err
		}
		p.PasswordFile = path
	}
	if p.Interface != "" && p.Password != "" {
		return p, errors.New("a session without addresses can't have a password: gobgp does not sign link-local ones")
	}
	return p, nil
}

// ReadPassword returns a file without its line's end. Its error has no password.
func ReadPassword(path string, readFile func(string) ([]byte, error)) (vip.Secret, error) {
	if readFile == nil {
		return "", errors.New("the password is in a file, and files can't be read here")
	}
	text, err := readFile(path)
	if err != nil {
		return "", fmt.Errorf("the password can't be read: %w", err)
	}
	password := vip.Secret(strings.TrimRight(string(text), "\r\n"))
	if len(password) == 0 || len(password) > maxPassword {
		return "", fmt.Errorf("the password in %s must have 1 to %d bytes", path, maxPassword)
	}
	return password, nil
}

// maxAnnotatedPeers is how many addresses of peers a Node's annotations may name.
const maxAnnotatedPeers = 100

// AnnotatedPeers parses the peers in Node annotations, without their prefix: bgp-peers-<n>-peer-ip (several with
// commas), -peer-asn, -node-asn, -src-ip (the BGP identifier, too), -peer-port, -peer-multi-hop and -bgp-pass (base64),
// n from 0. Older tools leave out bgp-peers-0-. All but peer-ip default to those of 0; an empty one is not set, of
// -peer-asn not there. More than maxAnnotatedPeers are an error. Errors name every wrong annotation, no password; then
// there are no peers.
func (b BGP) AnnotatedPeers(annotations map[string]vip.Secret) ([]vip.BGPPeer, error) {
	var peers []vip.BGPPeer
	var errs []error
	left := maxAnnotatedPeers
	for n := 0; ; n++ {
		prefix := fmt.Sprintf("bgp-peers-%d-", n)
		value := func(key string) string { return string(annotations[annotationOf(annotations, prefix, key)]) }
		check := func(key string, err error) {
			name := annotationOf(annotations, prefix, key)
			if err != nil && (n == 0 || name == prefix+key) { // else it is an error of peer 0 already
				errs = append(errs, fmt.Errorf("annotation %s/%s %w", b.AnnotationPrefix, name, err))
			}
		}
		addresses := value("peer-ip")
		if addresses == "" {
			break
		}
		t := peerText{peer: vip.BGPPeer{Port: bgpPort, Multihop: b.single.Multihop}}
		local := b.local
		check("peer-asn", t.parseAS(value("peer-asn")))
		check("node-asn", parseInto(&local.as, value("node-asn"), parseAS))
		check("peer-port", parseInto(&t.peer.Port, value("peer-port"), parsePort))
		check("peer-multi-hop", parseInto(&t.peer.Multihop, value("peer-multi-hop"), parseBool))
		check("src-ip", parseInto(&local.source, value("src-ip"), parseAddr))
		if value("src-ip") != "" && local.source.Is4() {
			t.peer.RouterID = local.source
		}
		check("bgp-pass", parseInto(&t.peer.Password, value("bgp-pass"), parseBase64Password))
		if left -= strings.Count(addresses, ",") + 1; left < 0 {
			check("peer-ip", fmt.Errorf("is one address too many: a node may have %d peers", maxAnnotatedPeers))
			break
		}
		for text := range strings.SplitSeq(addresses, ",") {
			address, err := parseAddr(strings.TrimSpace(text))
			if err != nil {
				check("peer-ip", errors.New("must be IP addresses with commas between"))
				continue
			}
			t.peer.Address = address
			p, err := t.complete(local, b.nextHop, nil) // an annotation must not make Herald read a file
			check("peer-ip", err)
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

// firstPeer is the prefix of peer 0, whose values others have, too.
const firstPeer = "bgp-peers-0-"

// annotationOf returns the name of the annotation that has the value of a key for the peer of a prefix.
func annotationOf(annotations map[string]vip.Secret, prefix, key string) string {
	own := prefix + key
	// no peer is without an AS number
	if _, given := annotations[own]; prefix != firstPeer && (key == "peer-ip" || given && key != "peer-asn") {
		return own
	}
	for _, name := range []string{own, firstPeer + key, key} {
		if annotations[name] != "" {
			return name
		}
	}
	return own
}

func parseBase64Password(v string) (vip.Secret, error) {
	text, err := base64.StdEncoding.DecodeString(v)
	if err != nil {
		return "", errors.New("must be in base64")
	}
	return parsePassword(string(text))
}
