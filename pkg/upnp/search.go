package upnp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// Bounds of a search.
const (
	datagramMost = 4096 // bytes; longer answers are cut, and then not understood
	answersMost  = 64   // looked at in one search
	locationMost = 1024 // bytes of a URL
	subnetsMost  = 4    // of a link that are searched
	ssdpPort     = 1900
	// waitMost is how long answers may take (MX, in seconds): gateways wait for a
	// random part of it.
	waitMost = 1
)

// Where control points ask (UPnP Device Architecture 2.0, section 1.3.2 and annex A).
var (
	group4 = netip.MustParseAddr("239.255.255.250")
	group6 = netip.MustParseAddr("ff02::c")
)

// targets are what is searched for. A gateway of version 2 answers to 1 as well;
// some don't know that.
var targets = []string{
	"urn:schemas-upnp-org:device:InternetGatewayDevice:1",
	"urn:schemas-upnp-org:device:InternetGatewayDevice:2",
}

// A side is where gateways are searched for: a link, in one family.
type side struct {
	link   string
	family vip.Family
}

func (s side) String() string { return s.link + " (" + s.family.String() + ")" }

// sideOf is where the gateways of a mapping are.
func sideOf(m vip.Mapping) side { return side{m.Link, vip.FamilyOf(m.Addr)} }

// An answer is where a gateway says that its description is.
type answer struct {
	addr     netip.Addr // of the gateway, without a zone
	location *url.URL
	boot     string // BOOTID.UPNP.ORG: another after each reboot; "" if it has none
}

var errNoAddress = errors.New("the link has no address of this family of its own, from which gateways could be asked")

// sources are the addresses to ask from on s: one in each of the link's IPv4
// subnets, since a gateway may know one of them only; for IPv6 the link-local one,
// which the kernel chooses.
func sources(s side, own []netip.Prefix) (list []netip.Addr) {
	if s.family == vip.IPv6 {
		return []netip.Addr{netip.IPv6Unspecified()}
	}
	var subnets []netip.Prefix
	for _, p := range own {
		if p.Addr().Is4() && !slices.Contains(subnets, p.Masked()) && len(list) < subnetsMost {
			subnets, list = append(subnets, p.Masked()), append(list, p.Addr())
		}
	}
	return list
}

// search asks on s, from an address, who is a gateway, and calls found with each
// answer that admit lets pass.
func search(ctx context.Context, s side, from netip.Addr, own []netip.Prefix, wait time.Duration, found func(answer)) error {
	network, to := "udp6", netip.AddrPortFrom(group6.WithZone(s.link), ssdpPort)
	if s.family == vip.IPv4 {
		network, to = "udp4", netip.AddrPortFrom(group4, ssdpPort)
	}
	config := net.ListenConfig{Control: onLink(s.link)}
	pc, err := config.ListenPacket(ctx, network, netip.AddrPortFrom(from, 0).String())
	if err != nil {
		return fmt.Errorf("search for gateways on %s: %w", s, err)
	}
	conn := pc.(*net.UDPConn)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	for range 2 { // datagrams get lost
		for _, t := range targets {
			if _, err := conn.WriteToUDPAddrPort(question(t, to), to); err != nil {
				return fmt.Errorf("search for gateways on %s: %w", s, err)
			}
		}
	}
	listen(conn, s, own, found)
	return nil
}

// listen passes answers on until the deadline of conn.
func listen(conn *net.UDPConn, s side, own []netip.Prefix, found func(answer)) {
	seen := make(map[netip.Addr]bool)
	buf := make([]byte, datagramMost)
	for range answersMost {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			break
		}
		a, err := readAnswer(buf[:n])
		if err != nil || admit(&a, s, from.Addr(), own) != nil || seen[a.addr] {
			continue
		}
		seen[a.addr] = true
		found(a)
	}
}

// question is an M-SEARCH request.
func question(target string, to netip.AddrPort) []byte {
	host := netip.AddrPortFrom(to.Addr().WithZone(""), to.Port())
	return fmt.Appendf(nil, "M-SEARCH * HTTP/1.1\r\nHOST: %s\r\nMAN: \"ssdp:discover\"\r\nMX: %d\r\nST: %s\r\n\r\n", host, waitMost, target)
}

// readAnswer understands the answer to an M-SEARCH.
func readAnswer(datagram []byte) (answer, error) {
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(datagram)), nil)
	if err != nil {
		return answer{}, err
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("status %d", response.StatusCode)
	}
	if !slices.Contains(targets, response.Header.Get("ST")) {
		return answer{}, errors.New("not what was searched for")
	}
	location := response.Header.Get("LOCATION")
	if location == "" || len(location) > locationMost {
		return answer{}, errors.New("no location of a usable length")
	}
	u, err := url.Parse(location)
	if err != nil {
		return answer{}, err
	}
	boot := response.Header.Get("BOOTID.UPNP.ORG")
	if len(boot) > 20 { // a 31-bit number
		boot = boot[:20]
	}
	return answer{location: u, boot: boot}, nil
}

// admit checks that an answer which came from the address from speaks for that
// address, and that it is a host on the link. It fills in a.addr.
func admit(a *answer, s side, from netip.Addr, own []netip.Prefix) error {
	from = from.Unmap().WithZone("")
	if a.location.Scheme != "http" || a.location.User != nil {
		return errors.New("its description is not to be had by plain http")
	}
	host, err := netip.ParseAddr(a.location.Hostname())
	if err != nil {
		return errors.New("its description is at a name, not at an address")
	}
	host = host.Unmap().WithZone("")
	if vip.FamilyOf(host) != s.family {
		return fmt.Errorf("its description is at an address of the other family, %s", host)
	}
	// An IPv6 gateway answers from its link-local address and is reached at another.
	if host != from && !(s.family == vip.IPv6 && from.IsLinkLocalUnicast()) {
		return fmt.Errorf("%s says that its description is at another host, %s", from, host)
	}
	for _, h := range []netip.Addr{host, from} {
		if !neighbour(h, own) {
			return fmt.Errorf("%s is not on the link", h)
		}
	}
	a.addr = host
	return nil
}

// neighbour reports whether a can be another host on a link with these prefixes.
func neighbour(a netip.Addr, own []netip.Prefix) bool {
	if !a.IsGlobalUnicast() && !(a.Is6() && a.IsLinkLocalUnicast()) {
		return false
	}
	if slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr() == a }) {
		return false // this node itself
	}
	if a.Is6() && a.IsLinkLocalUnicast() {
		return true
	}
	return slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) })
}

// onLink binds a socket to a link: nothing leaves or enters by another.
func onLink(link string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link)
		})
		return errors.Join(err, failed)
	}
}

// overhear calls hint whenever a gateway on s announces itself or says good-bye,
// until ctx ends. What it says is not believed: it is only a reason to search.
func overhear(ctx context.Context, s side, hint func()) error {
	link, err := net.InterfaceByName(s.link)
	if err != nil {
		return err
	}
	network, group := "udp4", net.UDPAddr{IP: group4.AsSlice(), Port: ssdpPort}
	if s.family == vip.IPv6 {
		network, group = "udp6", net.UDPAddr{IP: group6.AsSlice(), Port: ssdpPort, Zone: s.link}
	}
	conn, err := net.ListenMulticastUDP(network, link, &group)
	if err != nil {
		return fmt.Errorf("listen to gateways on %s: %w", s, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, datagramMost)
	for {
		n, _, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		if announces(buf[:n]) {
			hint()
		}
	}
}

// announces reports whether a datagram is a gateway's NOTIFY.
func announces(datagram []byte) bool {
	request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(datagram)))
	if err != nil || request.Method != "NOTIFY" {
		return false
	}
	request.Body.Close()
	return strings.Contains(request.Header.Get("NT"), ":InternetGatewayDevice:")
}
