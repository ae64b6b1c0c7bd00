package bgp

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// offlinePeer is a peer that no goroutine runs, on a node with the links, and what it logs. It has a server and a
// guard, and nothing is sent.
func offlinePeer(t *testing.T, c vip.BGPPeer, links func() []vip.Link) (*peer, *Speaker, *strings.Builder) {
	t.Helper()
	log := &strings.Builder{}
	s := New(Options{Node: "n1", RouterID: routerID, Links: links, Poke: func() {}, Log: slog.New(slog.NewTextHandler(log, nil))})
	p := newPeer(c, s)
	check.OK(t, p.start())
	close(p.ended) // nobody takes what the guard reports
	t.Cleanup(func() { p.guard.listener.Close(); giveServer(p.server) })
	return p, s, log
}

// asPath is the AS numbers that the path of a prefix has in the server's table.
func asPath(t *testing.T, p *peer, prefix string) (numbers []uint32) {
	t.Helper()
	check.OK(t, p.server.ListPath(t.Context(), &api.ListPathRequest{TableType: api.TableType_GLOBAL, Family: ipv4Unicast}, func(d *api.Destination) {
		for _, x := range d.Paths[0].Pattrs {
			var path api.AsPathAttribute
			if d.Prefix == prefix && x.MessageIs(&path) {
				check.OK(t, x.UnmarshalTo(&path))
				numbers = append(numbers, path.Segments[0].Numbers...)
			}
		}
	}))
	return numbers
}

// A router whose AS number is not configured says it when the session begins: only one of another AS gets a longer
// path, since a router of the same takes its own number in it for a loop, and refuses the route.
func TestPrependWithoutAS(t *testing.T) {
	p, s, _ := offlinePeer(t, vip.BGPPeer{Interface: "eth1", LocalAS: 65000}, func() []vip.Link { return nil })
	all := routes("198.51.100.7/32")
	all[0].Attributes.Prepend = ptr(2)
	s.Put(all)
	at := endpoints{nextHop4: netip.MustParseAddr("192.0.2.9")}
	t.Cleanup(func() { check.OK(t, p.server.DeletePath(context.Background(), &api.DeletePathRequest{})) })
	up := func(as uint32) {
		for _, x := range []progress{{state: "openconfirm", router: open{as: as}}, {state: stateIdle}} {
			p.changeState(x, false)
			p.advertise(at)
		}
	}
	p.advertise(at)
	check.Equal(t, len(asPath(t, p, "198.51.100.7/32")), 0, "AS numbers to a router whose own is not known")
	for _, tt := range []struct {
		as   uint32
		want []uint32
	}{{65000, nil}, {65001, []uint32{65000, 65000}}, {65000, nil}} {
		up(tt.as)
		check.Same(t, tt.want, asPath(t, p, "198.51.100.7/32"), "to AS %d", tt.as)
	}
}

// While there is neither a session nor a way to the router, as after BFD has ended it, that is the reason. What is to
// be advertised stays so.
func TestNoWayAfterASession(t *testing.T) {
	p, s, _ := offlinePeer(t, vip.BGPPeer{Address: netip.MustParseAddr("192.0.2.1"), AS: 65001, LocalAS: 65000, SourceInterface: "eth9"}, func() []vip.Link { return nil })
	s.Put(routes("198.51.100.7/32"))
	p.advertise(endpoints{nextHop4: netip.MustParseAddr("192.0.2.9")})
	t.Cleanup(func() { check.OK(t, p.server.DeletePath(context.Background(), &api.DeletePathRequest{})) })
	p.changeState(progress{state: stateIdle}, true)
	p.update()
	check.Contains(t, p.session().Reason, "no interface eth9")
	check.Equal(t, len(p.advertised), 1, "prefixes in the table")
}

// A session carries no family that this node has no next hop for, though the router takes it, until there is one: each change is told.
func TestNoNextHop(t *testing.T) {
	var link vip.Link
	p, s, _ := offlinePeer(t, vip.BGPPeer{Address: netip.MustParseAddr("192.0.2.1"), AS: 65001, LocalAS: 65000, SourceInterface: "eth0"}, func() []vip.Link { return []vip.Link{link} })
	s.Put(routes("198.51.100.7/32", "2001:db8::7/128"))
	t.Cleanup(func() {
		check.OK(t, p.server.DeletePath(context.Background(), &api.DeletePathRequest{}))
		_ = p.server.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: guardAddress})
	})
	for i, tt := range []struct{ have, want string }{
		{"192.0.2.9/24", "1 true false"},
		{"192.0.2.9/24 fd00::9/64", "2 true true"},
		{"192.0.2.9/24", "1 true false"},
	} {
		link = vip.Link{Name: "eth0", Prefixes: prefixes(strings.Fields(tt.have)...)}
		poked := false
		p.o.Poke = func() { poked = true }
		p.update()
		if i == 0 {
			p.changeState(progress{state: vip.Established}, false)
		}
		x := p.session()
		if got := fmt.Sprint(x.Prefixes, x.Takes(netip.MustParseAddr("198.51.100.7")), x.Takes(netip.MustParseAddr("2001:db8::7"))); got != tt.want || !poked {
			t.Errorf("with %s: prefixes, and whether it takes IPv4 and IPv6: %s, want %s; poked: %v", tt.have, got, tt.want, poked)
		}
	}
}

// An IPv6 next hop of IPv4 prefixes is one only for a router whose OPEN says that it takes such, whatever else a capability names (RFC 8950
// section 4). What was advertised is withdrawn before GoBGP sends it.
func TestNoIPv6NextHop(t *testing.T) {
	link := vip.Link{Name: "eth0", Prefixes: prefixes("fd00::9/64")}
	p, s, _ := offlinePeer(t, vip.BGPPeer{Address: netip.MustParseAddr("fd00::1"), AS: 65001, LocalAS: 65000, SourceInterface: "eth0"}, func() []vip.Link { return []vip.Link{link} })
	s.Put(routes("198.51.100.7/32", "2001:db8::7/128"))
	t.Cleanup(func() {
		check.OK(t, p.server.DeletePath(context.Background(), &api.DeletePathRequest{}))
		_ = p.server.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: guardAddress})
	})
	p.update()
	for _, tt := range []struct{ capabilities, have, want string }{
		{"", "fd00::9/64", "1 false true"},
		{"02 08 0506 0001 0001 0002", "fd00::9/64", "2 true true"},
		{"02 08 0506 0001 0002 0002", "fd00::9/64", "1 false true"},
		{"02 0e 050c 0001 0080 0002 0001 0001 0002", "fd00::9/64", "2 true true"},
		{"02 08 0506 0001 0001 0001", "fd00::9/64", "1 false true"},
		{"02 10 0506 0001 0080 0002 0506 0001 0001 0002", "fd00::9/64", "2 true true"},
		{"", "fd00::9/64 192.0.2.9/24", "2 true true"},
	} {
		link.Prefixes = prefixes(strings.Fields(tt.have)...)
		in := &inbound{as: 65001, localAS: 65000}
		_, refused := in.next(openWith(goodParams + tt.capabilities))
		if refused != nil {
			t.Fatal(refused)
		}
		for _, state := range []string{"openconfirm", vip.Established} {
			p.changeState(progress{state: state, noHop6: in.noHop6}, false)
			p.update()
		}
		x := p.session()
		got := fmt.Sprint(x.Prefixes, x.Takes(netip.MustParseAddr("198.51.100.7")), x.Takes(netip.MustParseAddr("2001:db8::7")))
		check.Equal(t, got, tt.want, "with %q and %s: prefixes, and whether it takes IPv4 and IPv6", tt.capabilities, tt.have)
		p.changeState(progress{state: stateIdle}, false)
		p.update()
	}
}

// A session from an interface stays as it is when that gets a lower address, and begins again when its own has gone.
func TestSourceStays(t *testing.T) {
	var link vip.Link
	p, _, _ := offlinePeer(t, vip.BGPPeer{Address: netip.MustParseAddr("192.0.2.1"), Port: 179, SourceInterface: "eth0"}, func() []vip.Link { return []vip.Link{link} })
	for _, tt := range []struct{ have, want string }{
		{"10.0.0.5/24", "10.0.0.5"},
		{"10.0.0.4/24 10.0.0.5/24", "10.0.0.5"},
		{"10.0.0.4/24 10.0.0.6/24", "10.0.0.4"},
	} {
		link = vip.Link{Name: "eth0", Prefixes: prefixes(strings.Fields(tt.have)...)}
		at := check.Value(p.findEndpoints())(t)
		check.Equal(t, at.source.String(), tt.want, "with %s: from", tt.have)
		p.at = at
	}
}

// A session whose own address has gone from this node is set up again from another one, and does not wait for the hold time. It stays while
// the node still has the address, whatever the kernel would choose now, and while there is no way to the router.
func TestSessionAddressGone(t *testing.T) {
	const here, gone = "127.0.0.1", "127.0.0.9"
	for _, tt := range []struct {
		name, from string
		has        []string // addresses of this node
		noWay      bool
		want       bool
	}{
		{"it has gone", gone, []string{here}, false, true},
		{"it is there", gone, []string{here, gone}, false, false},
		{"it is the one that the kernel chooses", here, nil, false, false},
		{"it has gone, and so has the way", gone, nil, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, _, log := offlinePeer(t, vip.BGPPeer{Address: netip.MustParseAddr(here), AS: 65001, LocalAS: 65000, Port: 1}, func() []vip.Link { return nil })
			p.ownAddresses = func() (all []net.Addr, err error) {
				for _, a := range tt.has {
					all = append(all, &net.IPNet{IP: net.ParseIP(a), Mask: net.CIDRMask(8, 32)})
				}
				return all, nil
			}
			if tt.noWay {
				p.config.SourceInterface = "eth9"
			}
			p.connect(endpoints{remote: here, local: netip.MustParseAddr(tt.from)})
			p.changeState(progress{state: vip.Established}, false)
			p.update()
			defer func() { _ = p.server.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: guardAddress}) }()
			check.Equal(t, strings.Contains(log.String(), "set up again"), tt.want, "it is set up again\n%s", log)
		})
	}
}

// FuzzGuard has the guard and GoBGP's parser read what a router sends: what passes the guard is all right for GoBGP.
func FuzzGuard(f *testing.F) {
	for _, m := range badMessages() {
		before := slices.Concat([][]byte{goodOpen, keepalive}[:m.after]...)
		f.Add(slices.Concat(before, m.bytes), uint32(65001))
	}
	whole := [][]byte{goodOpen, keepalive, update(origin + path + hop), frame(5, 0, 2, 0, 1), frame(2, 0, 0, 0, 0), keepalive}
	f.Add(slices.Concat(whole...), uint32(0))
	for _, extended := range []string{"ff 0008 02 0005 4103 0000fd", "ff 0009 02 0006 4104 0000fde9", "ff"} {
		f.Add(frame(1, unhex("04 fde9 001e c0000202 ff"+extended)...), uint32(65001))
	}
	f.Fuzz(func(t *testing.T, sent []byte, as uint32) {
		in := &inbound{as: as, localAS: 65000, localID: [4]byte{192, 0, 2, 100}}
		for from, n := bytes.NewReader(sent), 0; ; n++ {
			m, err := readMessage(from)
			if err != nil {
				return
			}
			if in.received == 2 && m.kind() == bgp.BGP_MSG_ROUTE_REFRESH {
				in.refreshes = nil // else it waits
			}
			in.alive = time.Time{}
			pass, refused := in.next(m)
			if refused != nil {
				control := strings.ContainsFunc(refused.why, func(r rune) bool { return r < ' ' })
				if n := len(refused.message()); n > maxSize || refused.why == "" || control {
					t.Errorf("a NOTIFICATION of %d bytes: %q", n, refused.why)
				}
				return
			}
			if pass == nil {
				continue
			}
			parsed, err := bgp.ParseBGPMessage(pass)
			if err == nil {
				err = bgp.ValidateBGPMessage(parsed)
			}
			if o, ok := parsed.Body.(*bgp.BGPOpen); err == nil && ok {
				_, err = bgp.ValidateOpenMsg(o, as, 65000, net.IPv4(192, 0, 2, 99))
			}
			if err != nil || len(pass) > maxSize {
				t.Fatalf("GoBGP refuses what has passed: %v\n%x", err, []byte(pass))
			}
			kind := parsed.Header.Type
			if (n == 0) != (kind == bgp.BGP_MSG_OPEN) || kind == bgp.BGP_MSG_UPDATE || kind == bgp.BGP_MSG_NOTIFICATION {
				t.Fatalf("message %d is of type %d", n, kind)
			}
		}
	})
}

// A session lasts once it has been up, or down, for ten seconds, or for a third of a longer hold time, which is told then.
func TestLasting(t *testing.T) {
	p, _, _ := offlinePeer(t, vip.BGPPeer{Interface: "eth1"}, func() []vip.Link { return nil })
	pokes := 0
	p.o.Poke = func() { pokes++ }
	for _, tt := range []struct {
		hold, ago time.Duration
		want      bool
	}{
		{30 * time.Second, 9 * time.Second, false},
		{30 * time.Second, 10 * time.Second, true},
		{3 * time.Second, 9 * time.Second, false},
		{90 * time.Second, 29 * time.Second, false},
		{90 * time.Second, 30 * time.Second, true},
	} {
		for _, x := range []progress{{state: vip.Established}, {state: stateIdle}} {
			p.changeState(x, false)
			p.o.HoldTime, pokes = tt.hold, 0
			s := *p.status.Load()
			s.Since = time.Now().Add(-tt.ago)
			p.status.Store(&s)
			p.setLasting()
			p.setLasting()
			if got := p.session().Lasting; got != tt.want || (pokes == 1) != tt.want {
				t.Errorf("%s for %v, with a hold time of %v: lasting %v, want %v, with %d pokes", x.state, tt.ago, tt.hold, got, tt.want, pokes)
			}
		}
	}
}

// The summary of the sessions changes if one goes up or down, and else
// every ten seconds at most: each change costs a write of the node lease.
func TestSummary(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var last atomic.Pointer[summary]
	session := func(state string, prefixes int) []vip.BGPSession {
		return []vip.BGPSession{{Peer: "192.0.2.1", State: state, Prefixes: prefixes}}
	}
	without6 := session(vip.Established, 1) // the router was configured otherwise meanwhile
	without6[0].NoIPv6 = true
	lasting := slices.Clone(without6)
	lasting[0].Lasting = true
	for _, tt := range []struct {
		after time.Duration
		have  []vip.BGPSession
		want  []vip.BGPSession
	}{
		{0, session("waiting", 0), session("down", 0)},
		{1, session("active", 0), session("down", 0)},
		{2, session(vip.Established, 1), session(vip.Established, 1)},
		{3, session(vip.Established, 2), session(vip.Established, 1)},
		{11, session(vip.Established, 900), session(vip.Established, 1)},
		{12, session(vip.Established, 1000), session(vip.Established, 1000)},
		{13, session("idle", 0), session("down", 0)},
		{14, session(vip.Established, 2), session(vip.Established, 2)},
		{15, without6, without6},
		{16, lasting, lasting},
		{17, nil, nil},
	} {
		got := summarize(&last, tt.have, noon.Add(tt.after*time.Second))
		check.Same(t, tt.want, got, "after %d s", tt.after)
	}
}

// A route drains for as long as any other, whatever drained before it.
func TestDrainsAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{DrainTime: 2 * time.Second})
		all := routes("198.51.100.7/32", "198.51.100.8/32")
		all[0].Drain = true
		s.Put(all)
		began := time.Now()
		time.Sleep(2 * time.Second)
		all = slices.Clone(all)
		all[1].Drain = true
		s.Put(all)
		for i, want := range []time.Time{began, began.Add(2 * time.Second)} {
			check.Same(t, want, s.wanted.Get().draining[all[i].Prefix], "%s drains since", all[i].Prefix)
		}
	})
}
