package bgp

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// Where a session begins, and what is the next hop on it: r32 has 10.32.0.2 and
// fd32::2, lo has 192.0.2.32 (and another one during other tests, so this one has none beside it).
func TestEndpoints(t *testing.T) {
	r := newRouter(t, 32)
	sh(t, "ip addr add 192.0.2.32/32 dev lo")
	t.Cleanup(func() { sh(t, "ip addr del 192.0.2.32/32 dev lo") })
	ip := func(s string) netip.Addr {
		if s == "" {
			return netip.Addr{}
		}
		return netip.MustParseAddr(s)
	}
	tests := []struct {
		name           string
		peer           vip.BGPPeer
		source         string
		hop4, hop6, id string
		bind, wrong    string
	}{
		{name: "IPv4", peer: vip.BGPPeer{Address: r.v4()}, hop4: "10.32.0.2", hop6: "fd32::2", id: "10.32.0.2"},
		{name: "IPv6", peer: vip.BGPPeer{Address: r.v6()}, hop4: "10.32.0.2", hop6: "fd32::2"},
		{name: "fixed", peer: vip.BGPPeer{Address: r.v4(), NextHop6: ip("fd00::9")}, hop4: "10.32.0.2", hop6: "fd00::9", id: "10.32.0.2"},
		{name: "fixed on IPv6", peer: vip.BGPPeer{Address: r.v6(), NextHop4: ip("192.0.2.9")}, hop4: "192.0.2.9", hop6: "fd32::2"},
		{name: "of an interface", peer: vip.BGPPeer{Address: r.v6(), NextHopInterface: "lo"}, hop4: "192.0.2.32", hop6: "fd32::2"},
		{name: "of one without", peer: vip.BGPPeer{Address: r.v4(), NextHopInterface: "lo"}, hop4: "10.32.0.2", hop6: "", id: "10.32.0.2"},
		{name: "no IPv4 there: RFC 8950", peer: vip.BGPPeer{Address: r.v6(), NextHopInterface: "none"}, hop4: "fd32::2", hop6: "fd32::2"},
		{name: "source address", peer: vip.BGPPeer{Address: r.v4(), Source: ip("192.0.2.32")}, source: "192.0.2.32", hop4: "192.0.2.32", id: "192.0.2.32"},
		{name: "source interface", peer: vip.BGPPeer{Address: r.v4(), SourceInterface: "r32"}, source: "10.32.0.2", bind: "r32", hop4: "10.32.0.2", hop6: "fd32::2", id: "10.32.0.2"},
		{name: "source interface lo", peer: vip.BGPPeer{Address: r.v4(), SourceInterface: "lo"}, source: "192.0.2.32", hop4: "192.0.2.32", id: "192.0.2.32"},
		{name: "a router on this node", peer: vip.BGPPeer{Address: ip("127.0.0.1")}, hop4: "10.32.0.2", hop6: "fd32::2"},
		{name: "the same by IPv6", peer: vip.BGPPeer{Address: ip("::1")}, hop4: "10.32.0.2", hop6: "fd32::2"},
		{name: "the same, next hop of an interface", peer: vip.BGPPeer{Address: ip("127.0.0.1"), NextHopInterface: "lo"}, hop4: "192.0.2.32",
			hop6: ""},
		{name: "the same, fixed", peer: vip.BGPPeer{Address: ip("127.0.0.1"), NextHop4: ip("192.0.2.9"), NextHop6: ip("fd00::9")},
			hop4: "192.0.2.9", hop6: "fd00::9"},
		{name: "no such interface", peer: vip.BGPPeer{Address: r.v4(), SourceInterface: "eth9"}, wrong: "no interface eth9"},
		{name: "no address there", peer: vip.BGPPeer{Address: r.v6(), SourceInterface: "lo"}, wrong: "lo has no IPv6 address"},
		{name: "no route", peer: vip.BGPPeer{Address: ip("203.0.113.1")}, wrong: "no way to the peer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.peer.Port = 179
			at, err := newPeer(tt.peer, New(Options{Node: "n1", Log: check.Log(t), Links: kernelLinks})).findEndpoints()
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("%v, want %s", err, tt.wrong)
				}
				return
			}
			check.OK(t, err)
			if at.remote != tt.peer.Address.String() || at.source != ip(tt.source) || at.bind != tt.bind || at.nextHop4 != ip(tt.hop4) || at.nextHop6 != ip(tt.hop6) {
				t.Errorf("%+v", at)
			}
			if tt.id != "" && at.id != ip(tt.id) || !at.id.Is4() {
				t.Errorf("identifier %s, want %s", at.id, tt.id)
			}
		})
	}
}

// Of several addresses it is always the same one; what may be another program's VIP comes last.
func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	links := map[string]vip.Link{
		"eth0": {Prefixes: prefixes("fd34::3/64", "10.34.0.9/24", "10.34.0.1/32", "fd34::2/64", "10.34.0.2/24")},
		"lo":   {Prefixes: prefixes("10.34.0.9/32", "10.34.0.8/32")},
		"eth1": {Prefixes: prefixes("fd34::4/128", "10.34.0.3/24", "10.34.0.1/32")}, // by DHCPv6
	}
	for link, want := range map[string][2]string{"eth0": {"10.34.0.2", "fd34::2"}, "lo": {"10.34.0.8", "invalid IP"},
		"eth1": {"10.34.0.3", "fd34::4"}, "eth9": {"invalid IP", "invalid IP"}} {
		check.Equal(t, [2]string{addressOf(links[link], vip.IPv4).String(), addressOf(links[link], vip.IPv6).String()}, want, "%s", link)
	}
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

// The identifier that is asked for wins.
func TestIdentifier(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, tt := range []struct {
		peer vip.BGPPeer
		o    Options
		want string
	}{
		{vip.BGPPeer{RouterID: a}, Options{RouterID: b}, "192.0.2.1"},
		{vip.BGPPeer{}, Options{RouterID: b, RouterInterface: "none"}, "192.0.2.2"},
		{vip.BGPPeer{}, Options{RouterInterface: "none"}, "bgp_routerinterface: interface none"},
		{vip.BGPPeer{}, Options{}, "10.0.0.1"},
	} {
		tt.o.Log, tt.o.Links = check.Log(t), kernelLinks
		id, err := newPeer(tt.peer, New(tt.o)).identifier(netip.MustParseAddr("10.0.0.1"))
		if got := id.String(); err == nil && got != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %v, want %s", got, err, tt.want)
		}
	}
	if x, y := idFromName("n1"), idFromName("n2"); x == y || !x.Is4() || x.IsUnspecified() {
		t.Errorf("made of names: %s and %s", x, y)
	}
}

// Annotations that can't be read change nothing, and are logged once.
func TestPeerList(t *testing.T) {
	peer := func(a string, as uint32) vip.BGPPeer { return vip.BGPPeer{Address: netip.MustParseAddr(a), AS: as} }
	fixed, other, third := peer("192.0.2.1", 65001), peer("192.0.2.2", 65002), peer("192.0.2.3", 65003)
	var log strings.Builder
	var named []vip.BGPPeer
	var err error
	l := &PeerList{
		Fixed: []vip.BGPPeer{fixed}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Read: func() ([]vip.BGPPeer, error) { return named, err },
	}
	for _, tt := range []struct {
		what  string
		named []vip.BGPPeer
		err   error
		want  []vip.BGPPeer
		logs  int
	}{
		{"none named", nil, nil, []vip.BGPPeer{fixed}, 0},
		{"one of the options is named again", []vip.BGPPeer{peer("192.0.2.1", 65009), other}, nil, []vip.BGPPeer{fixed, other}, 0},
		{"unreadable", nil, errors.New("no number"), []vip.BGPPeer{fixed, other}, 1},
		{"still unreadable", nil, errors.New("no number"), []vip.BGPPeer{fixed, other}, 1},
		{"unreadable for another reason", nil, errors.New("no address"), []vip.BGPPeer{fixed, other}, 2},
		{"readable", []vip.BGPPeer{third}, nil, []vip.BGPPeer{fixed, third}, 2},
		{"none named any more", nil, nil, []vip.BGPPeer{fixed}, 2},
	} {
		named, err = tt.named, tt.err
		check.Same(t, tt.want, l.Peers(), "%s", tt.what)
		check.Equal(t, strings.Count(log.String(), "can't be read"), tt.logs, "%s: lines of log", tt.what)
	}
}

// A password in a file is read again. One that can't be read changes nothing, and is logged once.
func TestPasswordFile(t *testing.T) {
	var log strings.Builder
	var text vip.Secret
	var err error
	a, b := vip.BGPPeer{Address: netip.MustParseAddr("192.0.2.1"), Password: "old", PasswordFile: "/keys/a"}, vip.BGPPeer{Address: netip.MustParseAddr("192.0.2.2"), Password: "other"}
	l := &PeerList{Fixed: []vip.BGPPeer{a, b}, Log: slog.New(slog.NewTextHandler(&log, nil)), ReadPassword: func(path string) (vip.Secret, error) {
		check.Equal(t, path, "/keys/a", "what is read")
		return text, err
	}}
	for _, tt := range []struct {
		what          string
		text          vip.Secret
		err           error
		want          vip.Secret
		changes, logs int
	}{
		{"as it was", "old", nil, "old", 0, 0},
		{"another", "new", nil, "new", 1, 0},
		{"the same", "new", nil, "new", 1, 0},
		{"unreadable", "", errors.New("no such file"), "new", 1, 1},
		{"still unreadable", "", errors.New("no such file"), "new", 1, 1},
		{"empty", "", errors.New("1 to 80 bytes"), "new", 1, 2},
		{"the same, readable again", "new", nil, "new", 1, 2},
		{"empty again", "", errors.New("1 to 80 bytes"), "new", 1, 3},
		{"a third", "newest", nil, "newest", 2, 3},
	} {
		text, err = tt.text, tt.err
		l.ReadPasswords()
		if got := l.Peers(); got[0].Password != tt.want || got[1] != b {
			t.Errorf("%s: %q, want %q; the other: %+v", tt.what, string(got[0].Password), string(tt.want), got[1])
		}
		if changes, logs := strings.Count(log.String(), "has changed"), strings.Count(log.String(), "can't be read"); changes != tt.changes || logs != tt.logs {
			t.Errorf("%s: %d lines of changes and %d of errors, want %d and %d", tt.what, changes, logs, tt.changes, tt.logs)
		}
		check.Lacks(t, log.String(), "newest")
	}
	check.Equal(t, l.Fixed[0].Password, a.Password, "what was handed in")
}

// The kernel loops back what this node advertises: it is no router to itself.
func TestOwnAdvertisement(t *testing.T) {
	t.Parallel()
	newRouter(t, 54)
	d := &routerDiscovery{heard: mailbox.New[netip.Addr]()}
	defer d.close()
	check.Until(t, 30*time.Second, "this node advertises itself", func() error { // once it has a link-local address
		links := kernelLinks()
		_, err := d.router(links[slices.IndexFunc(links, func(l vip.Link) bool { return l.Name == "r54" })], "r54", false)
		if err != nil && strings.Contains(err.Error(), "no router advertisement was heard on r54 yet") {
			return nil
		}
		return err
	})
	select {
	case <-d.heard.Changed:
		t.Errorf("the router is %s, this node itself", d.heard.Get())
	case <-time.After(time.Second):
	}
}

var fastBFD = vip.BFD{MinReceive: 300 * time.Millisecond, MinTransmit: 300 * time.Millisecond, Multiplier: 3}

// A router whose processes stop answering, without closing anything, has no BGP session after the Detection Time, long before the hold time
// ends; it has one again once it answers. FRR and BIRD understand BFD of this node (over IPv6: TestUnnumbered, since one process has the
// port); that Herald stops is no failure to them. One that does not do BFD keeps its BGP session.
func TestBFD(t *testing.T) {
	t.Parallel()
	bird := newBIRD(t, 51, "bfd on;", "protocol bfd { interface \"*\" { interval 300 ms; multiplier 3; }; }\n")
	frr := newRouter(t, 52)
	frr.frr(fmt.Sprintf(frrHead, frr.here4(), "65000", " neighbor "+frr.here4()+" bfd\n"))
	without := newBIRD(t, 53, "", "")
	s := runSpeaker(t, nil, vip.BGPPeer{Address: bird.v4(), AS: 65001, BFD: fastBFD}, vip.BGPPeer{Address: frr.v4(), AS: 65001, BFD: fastBFD},
		vip.BGPPeer{Address: without.v4(), AS: 65001, BFD: fastBFD})
	s.advertise("198.51.100.7/32")
	s.up()
	bfdUp := func(i int) {
		t.Helper()
		s.awaits(i, 20*time.Second, "BFD", func(x vip.BGPSession) bool { return x.BFD == "up" && x.Up() })
	}
	bfdUp(0)
	bfdUp(1)

	silence := func(i int, r *router, names ...string) {
		t.Helper()
		for _, name := range names {
			check.OK(t, syscall.Kill(r.proc[name].Process.Pid, syscall.SIGSTOP))
		}
		took := s.awaits(i, 5*time.Second, "the end of the BGP session", func(x vip.BGPSession) bool {
			return !x.Up() && strings.Contains(x.Reason, "BFD: nothing was heard of the neighbor for 900ms")
		})
		t.Logf("%s: down after %v: %s", names, took.Round(10*time.Millisecond), s.Sessions()[i].Reason)
		for _, name := range names {
			check.OK(t, syscall.Kill(r.proc[name].Process.Pid, syscall.SIGCONT))
		}
		bfdUp(i)
	}
	silence(0, bird, "bird")
	silence(1, frr, "bfdd", "bgpd")
	for i, want := range []float64{1, 1, 0} {
		got := check.Metric(t, "", s.metrics.bfdFailures.WithLabelValues(s.Sessions()[i].Peer, "65001"))
		if got < want || want == 0 && got > 0 { // a machine under load may add some
			t.Errorf("%s failed %v times, want %v", s.Sessions()[i].Peer, got, want)
		}
	}
	if x := s.Sessions()[2]; !x.Up() || x.BFD != "down" {
		t.Errorf("the router without BFD: %+v", x)
	}

	s.stop()
	says(t, 5*time.Second, "FRR is told that this is no failure", "Remote diagnostics: administratively down", func() (string, error) { return frr.vtysh("show bfd peers") })
}
