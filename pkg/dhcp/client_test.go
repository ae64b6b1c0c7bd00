package dhcp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What is sent: identifiers, host name, and to whom.
func TestMessages(t *testing.T) {
	w := &fakeServer{answer: honest4("10.0.0.50", 3600)}
	bubble(t, 0, w, func(c *Clients) {
		h := request4
		h.Requested, h.Broadcast = netip.MustParseAddr("10.0.0.50"), true
		got := put(c, h)
		if got.State != stateBound || got.Lease.Addr != h.Requested || got.Lease.Bits != 24 || got.Lease.Server != "10.0.0.1" {
			t.Fatalf("%+v", got)
		}
		check.Equal(t, time.Until(got.Lease.Renews), 30*time.Minute, "renews, at half of the lease, in")
		after(c, 31*time.Minute)
		messages := w.messages()
		if check.Same(t, []string{"DISCOVER", "REQUEST", "REQUEST"}, w.kinds(), "sent"); t.Failed() {
			return
		}
		discover, _ := dhcpv4.FromBytes(messages[0].b)
		check.Equal(t, string(discover.GetOneOption(dhcpv4.OptionClientIdentifier)), "host", "client identifier")
		if discover.HostName() != "host" || !discover.IsBroadcast() || discover.RequestedIPAddress().String() != "10.0.0.50" || discover.ServerIdentifier() != nil {
			t.Errorf("DISCOVER: %s", discover.Summary())
		}
		request, _ := dhcpv4.FromBytes(messages[1].b)
		if request.ServerIdentifier().String() != "10.0.0.1" || !request.ClientIPAddr.IsUnspecified() || request.RequestedIPAddress().String() != "10.0.0.50" {
			t.Errorf("REQUEST: %s", request.Summary())
		}
		// RFC 2131 section 4.3.2, RENEWING: unicast, ciaddr, neither server nor requested address.
		renew, _ := dhcpv4.FromBytes(messages[2].b)
		if renew.ServerIdentifier() != nil || renew.RequestedIPAddress() != nil || renew.ClientIPAddr.String() != "10.0.0.50" || renew.IsBroadcast() {
			t.Errorf("renewal: %s", renew.Summary())
		}
		if to := messages[2].to; to.Dst.String() != "10.0.0.1" || to.Src.String() != "10.0.0.50" || to.MAC.String() != "02:00:00:00:00:01" {
			t.Errorf("renewal went %s", to.String())
		}
	})
}

// The recorded lease is requested without a server identifier (INIT-REBOOT).
func TestInitReboot(t *testing.T) {
	recorded := vip.DHCPLease{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 24, MAC: request4.MAC, Server: "10.0.0.1"}
	run := func(expires time.Duration, answer func([]byte, *PacketAddr) [][]byte, test func(*Clients, *fakeServer, vip.DHCPState)) {
		w := &fakeServer{answer: answer}
		bubble(t, 0, w, func(c *Clients) {
			h := request4
			h.LastLease = recorded
			h.LastLease.Expires = time.Now().Add(expires)
			test(c, w, put(c, h))
		})
	}
	run(time.Hour, nil, func(c *Clients, w *fakeServer, got vip.DHCPState) {
		check.Equal(t, brief(got), "init-reboot 10.0.0.50", "at once")
		m, _ := dhcpv4.FromBytes(w.messages()[0].b)
		if m.ServerIdentifier() != nil || !m.ClientIPAddr.IsUnspecified() || m.RequestedIPAddress().String() != "10.0.0.50" {
			t.Errorf("INIT-REBOOT: %s", m.Summary())
		}
		check.Equal(t, brief(after(c, time.Minute)), "rebinding 10.0.0.50", "no server")
		if got := after(c, time.Hour); got.Lease.Addr.IsValid() || !got.Lost {
			t.Errorf("after its end: %+v", got)
		}
	})
	run(-time.Hour, nil, func(c *Clients, _ *fakeServer, got vip.DHCPState) {
		check.Equal(t, brief(got), "init-reboot", "over, at once")
		check.Equal(t, brief(after(c, time.Minute)), "selecting lost", "over, no server")
	})
	nak := func(b []byte, _ *PacketAddr) [][]byte {
		if kind(b) != "REQUEST" {
			return nil
		}
		return [][]byte{reply4(b, dhcpv4.MessageTypeNak, "0.0.0.0", dhcpv4.WithOption(dhcpv4.OptMessage("wrong \x1b[31mnetwork\n")))}
	}
	run(time.Hour, nak, func(_ *Clients, _ *fakeServer, got vip.DHCPState) {
		if got.Lease.Addr.IsValid() || !got.Lost || !strings.Contains(got.Problem, "DHCPNAK") || strings.ContainsAny(got.Problem, "\x1b\n") {
			t.Errorf("refused: %+v", got)
		}
	})
	// The recorded lease of another client is ignored.
	w := &fakeServer{}
	bubble(t, 0, w, func(c *Clients) {
		h := request4
		h.LastLease = recorded
		h.LastLease.MAC, h.LastLease.Expires = "02:00:00:00:00:bb", time.Now().Add(time.Hour)
		if got := put(c, h); got.Lease.Addr.IsValid() || w.kinds()[0] != "DISCOVER" {
			t.Errorf("another client's: %+v, %v", got, w.kinds())
		}
	})
}

// What somebody wrote as the server of a recorded lease is sent nothing, unless it is a host's IPv4 address.
func TestRecordedServer(t *testing.T) {
	for server, told := range map[string]bool{"10.0.0.1": true, "2001:db8::1": false, "fe80::1%eth0": false, "::ffff:10.0.0.1": false, "": false, "none": false, "0.0.0.0": false, "255.255.255.255": false} {
		w := &fakeServer{}
		bubble(t, 0, w, func(c *Clients) {
			h := request4
			h.LastLease = vip.DHCPLease{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 24, MAC: h.MAC, Server: server, Expires: time.Now().Add(time.Hour)}
			put(c, h)
			h.Release = true
			put(c, h)
			after(c, time.Second)
			for _, m := range w.messages() {
				if !m.to.Src.Is4() || !m.to.Dst.Is4() {
					t.Errorf("server %q: %s sent from %s to %s", server, kind(m.b), m.to.Src, m.to.Dst)
				}
			}
			check.Equal(t, slices.Contains(w.kinds(), "RELEASE"), told, "server %q: told, by %v", server, w.kinds())
		})
	}
	if _, err := (conn4{}).WriteTo(nil, &PacketAddr{Src: unspecified4, Dst: netip.MustParseAddr("2001:db8::1")}); err == nil {
		t.Error("IPv6 in IPv4")
	}
}

// ignored expects no lease by a server's answers, but one by an honest server after it. It returns the problem that was reported.
func ignored(t *testing.T, r vip.DHCPRequest, answer, honest func([]byte, *PacketAddr) [][]byte) (problem string) {
	w := &fakeServer{answer: answer}
	bubble(t, 0, w, func(c *Clients) {
		put(c, r)
		got := after(c, time.Minute)
		problem = got.Problem
		check.Equal(t, got.Lease.Addr, netip.Addr{}, "leased")
		w.setAnswer(honest)
		got = after(c, 2*time.Minute)
		check.Equal(t, got.State+got.Problem, stateBound, "with an honest server")
	})
	return problem
}

// Answers that can't be right are ignored, and the problem says why.
func TestInvalidAnswers4(t *testing.T) {
	offer := func(addr string, o ...dhcpv4.Modifier) func([]byte, *PacketAddr) [][]byte {
		return func(b []byte, _ *PacketAddr) [][]byte {
			k := dhcpv4.MessageTypeOffer
			if kind(b) == "REQUEST" {
				k = dhcpv4.MessageTypeAck
			}
			return [][]byte{reply4(b, k, addr, append([]dhcpv4.Modifier{dhcpv4.WithLeaseTime(3600)}, o...)...)}
		}
	}
	generic := func(code dhcpv4.OptionCode, b ...byte) dhcpv4.Modifier { return dhcpv4.WithGeneric(code, b) }
	tests := map[string]struct {
		answer  func([]byte, *PacketAddr) [][]byte
		problem string // "": not reported
	}{
		"no address":       {offer("0.0.0.0"), "no host can have"},
		"loopback":         {offer("127.0.0.1"), "no host can have"},
		"multicast":        {offer("224.0.0.1"), "no host can have"},
		"broadcast":        {offer("255.255.255.255"), "no host can have"},
		"link-local":       {offer("169.254.1.1"), "no host can have"},
		"reserved":         {offer("240.0.0.1"), "no host can have"},
		"network":          {offer("10.0.0.0"), "the network"},
		"net broadcast":    {offer("10.0.0.255"), "the network"},
		"its own":          {offer("10.0.0.1"), "its own address"},
		"router's":         {offer("10.0.0.9", dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 0, 0, 9)))), "the router's"},
		"no time":          {offer("10.0.0.50", dhcpv4.WithLeaseTime(0)), "for 0s"},
		"a second":         {offer("10.0.0.50", dhcpv4.WithLeaseTime(1)), "for 1s"},
		"no lease time":    {offer("10.0.0.50", dhcpv4.WithoutOption(dhcpv4.OptionIPAddressLeaseTime)), "for 0s"},
		"short lease time": {offer("10.0.0.50", generic(dhcpv4.OptionIPAddressLeaseTime, 1)), "for 0s"},
		"holes in mask":    {offer("10.0.0.50", generic(dhcpv4.OptionSubnetMask, 255, 0, 255, 0)), "subnet mask"},
		"odd mask":         {offer("10.0.0.50", generic(dhcpv4.OptionSubnetMask, 255, 0)), "2 bytes"},
		"no server":        {offer("10.0.0.50", dhcpv4.WithoutOption(dhcpv4.OptionServerIdentifier)), "no server"},
		"zero server":      {offer("10.0.0.50", generic(dhcpv4.OptionServerIdentifier, 0, 0, 0, 0)), "no server"},
		"another client's": {offer("10.0.0.50", dhcpv4.WithHwAddr(net.HardwareAddr{2, 0, 0, 0, 0, 9})), ""},
		"another id":       {offer("10.0.0.50", generic(dhcpv4.OptionClientIdentifier, 1, 2, 3)), ""},
		"another exchange": {offer("10.0.0.50", dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4})), ""},
		"garbage":          {func([]byte, *PacketAddr) [][]byte { return [][]byte{{1, 2, 3}, make([]byte, 300), {}} }, ""},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			got := ignored(t, request4, x.answer, honest4("10.0.0.50", 3600))
			check.Contains(t, got, x.problem, "mv")
		})
	}
}

// The same for DHCPv6.
func TestInvalidAnswers6(t *testing.T) {
	say := func(addr string, lease time.Duration, o ...dhcpv6.Option) func([]byte, *PacketAddr) [][]byte {
		return func(b []byte, _ *PacketAddr) [][]byte {
			k := dhcpv6.MessageTypeAdvertise
			if kind(b) != "SOLICIT" {
				k = dhcpv6.MessageTypeReply
			}
			return [][]byte{reply6(b, k, addr, lease, o...)}
		}
	}
	ia := func(id byte, t1, t2, preferred, valid time.Duration) dhcpv6.Option {
		o := &dhcpv6.OptIANA{IaId: [4]byte{0, 0, 0, id}, T1: t1, T2: t2}
		o.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd00::50"), PreferredLifetime: preferred, ValidLifetime: valid})
		return o
	}
	tests := map[string]struct {
		answer  func([]byte, *PacketAddr) [][]byte
		problem string
	}{
		"loopback":        {say("::1", time.Hour), "no host can have"},
		"multicast":       {say("ff02::1", time.Hour), "no host can have"},
		"link-local":      {say("fe80::1", time.Hour), "no host can have"},
		"mapped":          {say("::ffff:10.0.0.1", time.Hour), "no host can have"},
		"no time":         {say("fd00::50", 0), "is over"},
		"a second":        {say("fd00::50", time.Second), "for 1s"},
		"another's":       {say("", 0, ia(9, 0, 0, time.Hour, time.Hour)), ""},
		"preferred":       {say("", 0, ia(7, 0, 0, 2*time.Hour, time.Hour)), "preferred for longer"},
		"T1 after T2":     {say("", 0, ia(7, 50*time.Minute, 40*time.Minute, time.Hour, time.Hour)), "later than rebinding"},
		"exhausted":       {say("", 0, &dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "none\nleft"}), "NoAddrsAvail noneleft"},
		"nothing":         {say("", 0), ""},
		"garbage":         {func([]byte, *PacketAddr) [][]byte { return [][]byte{{2, 2, 3}, make([]byte, 300), {}} }, ""},
		"unlike a client": {say("fd00::50", time.Hour, dhcpv6.OptClientID(&dhcpv6.DUIDEN{EnterpriseIdentifier: []byte{1}})), ""},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			if name == "unlike a client" { // the first of two identifiers counts
				honest := x.answer
				x.answer = func(b []byte, to *PacketAddr) [][]byte {
					r := honest(b, to)
					r[0][4+4] ^= 0xff // within the DUID
					return r
				}
			}
			check.Contains(t, ignored(t, request6, x.answer, say("fd00::50", time.Hour)), x.problem)
		})
	}
}

// An answer to a Solicit that leases nothing, and does not say why, is one that can't be accepted: a Reply of that kind neither makes the
// client bound nor is answered at once by another Solicit, and an Advertise does not come before one with an address.
func TestAnswerWithoutAddress6(t *testing.T) {
	for name, x := range map[string]struct {
		kind   dhcpv6.MessageType
		option dhcpv6.Option
	}{
		"Reply":                              {dhcpv6.MessageTypeReply, dhcpv6.OptPreference(0)},
		"Reply with an IA_NA without any":    {dhcpv6.MessageTypeReply, &dhcpv6.OptIANA{IaId: [4]byte{0, 0, 0, 7}}},
		"Advertise with a higher preference": {dhcpv6.MessageTypeAdvertise, dhcpv6.OptPreference(9)},
	} {
		t.Run(name, func(t *testing.T) {
			empty, both := 0, false
			w := &fakeServer{answer: func(b []byte, _ *PacketAddr) [][]byte {
				switch {
				case kind(b) == "REQUEST":
					if asked := asked6(b); asked != nil {
						return [][]byte{reply6(b, dhcpv6.MessageTypeReply, asked.IPv6Addr.String(), time.Hour)}
					}
					return nil
				case kind(b) != "SOLICIT" || empty > 100: // it would never end
					return nil
				}
				empty++
				answers := [][]byte{reply6(b, x.kind, "", 0, x.option)}
				if both {
					answers = append(answers, reply6(b, dhcpv6.MessageTypeAdvertise, "fd00::50", time.Hour))
				}
				return answers
			}}
			bubble(t, 0, w, func(c *Clients) {
				put(c, request6)
				got := after(c, 30*time.Second)
				check.Equal(t, got.State, stateSelecting, "state")
				check.Contains(t, got.Problem, "without an address")
				w.mu.Lock()
				check.Between(t, empty, 0, 10, "Solicits in half a minute")
				empty, both = 0, true
				w.mu.Unlock()
				check.Equal(t, after(c, 2*time.Minute).Lease.Addr.String(), "fd00::50", "with a server that leases")
			})
		})
	}
}

// Of several servers the one with the highest preference is asked.
func TestPreference(t *testing.T) {
	w := &fakeServer{answer: func(b []byte, _ *PacketAddr) [][]byte {
		if kind(b) == "SOLICIT" {
			return [][]byte{
				reply6(b, dhcpv6.MessageTypeAdvertise, "fd00::50", time.Hour),
				reply6(b, dhcpv6.MessageTypeAdvertise, "fd00::51", time.Hour, dhcpv6.OptPreference(9)),
			}
		}
		return [][]byte{reply6(b, dhcpv6.MessageTypeReply, asked6(b).IPv6Addr.String(), time.Hour)}
	}}
	bubble(t, 0, w, func(c *Clients) {
		put(c, request6)
		check.Equal(t, brief(after(c, 2*time.Second)), "bound fd00::51", "of two")
	})
}

// The answer of a server that was not asked to renew is ignored.
func TestRenewalAnsweredByAnotherServer(t *testing.T) {
	w := &fakeServer{answer: honest4("10.0.0.50", 1000)}
	bubble(t, 0, w, func(c *Clients) {
		put(c, request4)
		w.setAnswer(func(b []byte, to *PacketAddr) [][]byte {
			if to.MAC == nil {
				return nil
			}
			return [][]byte{reply4(b, dhcpv4.MessageTypeNak, "0.0.0.0", otherServer4), reply4(b, dhcpv4.MessageTypeAck, "10.0.0.66", otherServer4, dhcpv4.WithLeaseTime(1000))}
		})
		check.Equal(t, brief(after(c, 800*time.Second)), "renewing 10.0.0.50", "after answers of another")
	})
}

// otherServer4 is the identifier of a server that has leased nothing here.
var otherServer4 = dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 0, 0, 66)))

// A second server of the link, which says that the leased address is wrong, ends no lease that its own server confirms.
// If that never answers, the second one counts in the end.
func TestOtherServerRefuses4(t *testing.T) {
	r := request4
	r.LastLease = vip.DHCPLease{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 24, MAC: r.MAC, Server: "10.0.0.1"}
	nak := func(b []byte, _ *PacketAddr) [][]byte {
		return [][]byte{reply4(b, dhcpv4.MessageTypeNak, "0.0.0.0", otherServer4)}
	}
	both := func(b []byte, to *PacketAddr) [][]byte {
		return append(nak(b, to), honest4("10.0.0.50", 1000)(b, to)...)
	}
	for name, x := range map[string]struct {
		expires time.Duration
		lost    int // how many first answers of the lease's own server
	}{
		"both answer": {expires: time.Hour}, "an answer is lost": {time.Hour, 1}, "the lease is over": {expires: -time.Hour},
	} {
		w := &fakeServer{}
		n := 0
		w.answers(byKind{"REQUEST": func(b []byte, to *PacketAddr) [][]byte {
			if n++; n <= x.lost {
				return nak(b, to)
			}
			return both(b, to)
		}})
		bubble(t, 0, w, func(c *Clients) {
			r.LastLease.Expires = time.Now().Add(x.expires)
			put(c, r)
			check.Equal(t, brief(after(c, 3*time.Second)), "bound 10.0.0.50", "%s, sent %v", name, w.kinds())
		})
	}
	for name, expires := range map[string]time.Duration{"replaced": time.Hour, "replaced, and the lease is over": -time.Hour} {
		w := &fakeServer{}
		w.answers(byKind{"DISCOVER": honest4("10.0.0.51", 1000), "REQUEST": func(b []byte, to *PacketAddr) [][]byte {
			if m, _ := dhcpv4.FromBytes(b); m.ServerIdentifier() == nil {
				return nak(b, to)
			}
			return honest4("10.0.0.51", 1000)(b, to)
		}})
		bubble(t, 0, w, func(c *Clients) {
			r.LastLease.Expires = time.Now().Add(expires)
			put(c, r)
			check.Equal(t, brief(after(c, 6*time.Second)), "bound 10.0.0.51", "%s, sent %v", name, w.kinds())
		})
	}
	// REBINDING: its own server can't be reached by unicast.
	w := &fakeServer{answer: honest4("10.0.0.50", 1000)}
	bubble(t, 0, w, func(c *Clients) {
		put(c, request4)
		w.answers(byKind{"REQUEST": func(b []byte, to *PacketAddr) [][]byte {
			if to.Dst != broadcast4 {
				return nil
			}
			return both(b, to)
		}})
		check.Equal(t, brief(after(c, 990*time.Second)), "bound 10.0.0.50", "rebinding, sent %v", w.kinds())
		w.answers(byKind{"REQUEST": nak})
		got := after(c, 0)
		for ends := got.Lease.Expires; !got.Lost; got = after(c, time.Second) {
			if time.Now().After(ends.Add(time.Second)) {
				t.Fatalf("rebinding, and only the other answers: %+v", got)
			}
		}
		check.Contains(t, got.Problem, "refused by 10.0.0.66: DHCPNAK")
	})
}

// An offer of the address that is asked for counts, whoever offers another one first; without such a wish the first counts at once.
func TestOfferOfWhatIsAskedFor4(t *testing.T) {
	offers := func(addrs ...string) func([]byte, *PacketAddr) [][]byte {
		return func(b []byte, _ *PacketAddr) (all [][]byte) {
			for _, a := range addrs {
				all = append(all, reply4(b, dhcpv4.MessageTypeOffer, a, dhcpv4.WithLeaseTime(1000)))
			}
			return all
		}
	}
	for _, x := range []struct {
		asked string
		offer []string
		after time.Duration
		want  string
	}{
		{"10.0.0.50", []string{"10.0.0.77", "10.0.0.50"}, 0, "10.0.0.50"},
		{"10.0.0.50", []string{"10.0.0.77", "10.0.0.78"}, 1200 * time.Millisecond, "10.0.0.77"},
		{"", []string{"10.0.0.77", "10.0.0.78"}, 0, "10.0.0.77"},
	} {
		w := &fakeServer{}
		w.answers(byKind{"DISCOVER": offers(x.offer...), "REQUEST": func(b []byte, _ *PacketAddr) [][]byte {
			m, _ := dhcpv4.FromBytes(b)
			return [][]byte{reply4(b, dhcpv4.MessageTypeAck, m.RequestedIPAddress().String(), dhcpv4.WithLeaseTime(1000))}
		}})
		bubble(t, 0, w, func(c *Clients) {
			r := request4
			r.Requested, _ = netip.ParseAddr(x.asked)
			put(c, r)
			check.Equal(t, brief(after(c, x.after)), "bound "+x.want, "asked for %q, offered %v", x.asked, x.offer)
		})
	}
}

// The same for DHCPv6: a second server whose address range is another one.
func TestOtherServerRefuses6(t *testing.T) {
	r := request6
	m := &dhcpv6.DUIDEN{EnterpriseNumber: 1, EnterpriseIdentifier: []byte{1, 2, 3, 4}}
	r.LastLease = vip.DHCPLease{Addr: netip.MustParseAddr("fd00::50"), Bits: 128, MAC: r.MAC, Server: fmt.Sprintf("%x", m.ToBytes())}
	notOnLink := &dhcpv6.OptStatusCode{StatusCode: iana.StatusNotOnLink}
	refuse := func(b []byte, _ *PacketAddr) [][]byte { return [][]byte{byOther(answerReply6(b, notOnLink)[0])} }
	confirm := func(b []byte, to *PacketAddr) [][]byte {
		return append(refuse(b, to), answerReply6(b, &dhcpv6.OptStatusCode{StatusCode: iana.StatusSuccess})...)
	}
	rebind := func(b []byte, to *PacketAddr) [][]byte {
		return append([][]byte{byOther(answerReply6(b, iaOf(iana.StatusNotOnLink))[0])}, honest6("fd00::50")(b, to)...)
	}
	for name, expires := range map[string]time.Duration{"confirmed": time.Hour, "the lease is over": -time.Hour} {
		w := &fakeServer{}
		w.answers(byKind{"CONFIRM": confirm, "RENEW": honest6("fd00::50"), "REBIND": rebind})
		bubble(t, 0, w, func(c *Clients) {
			r.LastLease.Expires = time.Now().Add(expires)
			put(c, r)
			check.Equal(t, brief(after(c, 3*time.Second)), "bound fd00::50", "%s, sent %v", name, w.kinds())
		})
	}
	w := &fakeServer{}
	w.answers(byKind{"CONFIRM": refuse, "SOLICIT": honest6("fd00::51")})
	bubble(t, 0, w, func(c *Clients) {
		r.LastLease.Expires = time.Now().Add(time.Hour)
		put(c, r)
		check.Equal(t, brief(after(c, 10*time.Second)), "bound fd00::51", "replaced, sent %v", w.kinds())
	})
	w = &fakeServer{}
	w.answers(byKind{"REQUEST": honest6("fd00::50"), "SOLICIT": func(b []byte, _ *PacketAddr) [][]byte {
		return [][]byte{byOther(reply6(b, dhcpv6.MessageTypeAdvertise, "fd00::77", time.Hour)), reply6(b, dhcpv6.MessageTypeAdvertise, "fd00::50", time.Hour)}
	}})
	bubble(t, 0, w, func(c *Clients) {
		r := request6
		r.Requested = netip.MustParseAddr("fd00::50")
		put(c, r)
		if got := after(c, 3*time.Second); got.State != stateBound || toOther(w.messages()[1].b) {
			t.Errorf("offered what is asked for: %+v, sent %v", got, w.kinds())
		}
	})
}

// A lease for ever is never renewed.
func TestInfiniteLease(t *testing.T) {
	w := &fakeServer{answer: honest4("10.0.0.50", 0xffffffff)}
	bubble(t, 0, w, func(c *Clients) {
		put(c, request4)
		got := after(c, 1000*time.Hour)
		if got.State != stateBound || !got.Lease.Expires.IsZero() || len(w.messages()) != 2 {
			t.Errorf("%+v after %v", got, w.kinds())
		}
	})
}

// A lease for ever that is recorded, and that no server confirms when the process starts, is kept, and asked for ever more seldom.
func TestInfiniteLeaseUnconfirmed(t *testing.T) {
	for _, r := range []vip.DHCPRequest{request4, request6} {
		w := &fakeServer{}
		bubble(t, 0, w, func(c *Clients) {
			r.LastLease = vip.DHCPLease{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 24, MAC: r.MAC, Server: "10.0.0.1"}
			if r.Family == vip.IPv6 {
				r.LastLease.Addr, r.LastLease.Bits, r.LastLease.Server = netip.MustParseAddr("2001:db8::50"), 128, "00030001020000000001"
			}
			put(c, r)
			got := after(c, time.Hour)
			check.Equal(t, brief(got), "rebinding "+r.LastLease.Addr.String(), "%v", r.Family)
			check.Between(t, len(w.messages()), 10, 100, "%v: messages in an hour", r.Family)
		})
	}
}

// While nobody answers the client asks ever more seldom, and reports that.
func TestBackOff(t *testing.T) {
	for _, h := range []vip.DHCPRequest{request4, request6} {
		w := &fakeServer{}
		bubble(t, 0, w, func(c *Clients) {
			check.Equal(t, put(c, h).Problem, "", "problem at once")
			got := after(c, 20*time.Second)
			check.Contains(t, got.Problem, "no DHCP server answered on mv (tried ")
			check.Equal(t, got.Lost, false, "lost")
			after(c, time.Hour)
			messages := w.messages()
			check.Between(t, len(messages), 30, 80, "messages in an hour")
			for i := 1; i < len(messages); i++ {
				check.Between(t, messages[i].at.Sub(messages[i-1].at), 800*time.Millisecond, 140*time.Second, "message %d came after the one before after", i)
			}
		})
		w = &fakeServer{}
		bubble(t, 3, w, func(c *Clients) {
			put(c, h)
			after(c, 25*time.Second)
			check.Equal(t, len(w.messages()), 3, "messages with dhcp_backoff_attempts=3")
			after(c, 30*time.Second)
			if n := len(w.messages()); n < 4 {
				t.Error("it never asked again")
			}
		})
	}
}

// All that a server leases may be in use, as where a router answers for every address: a client does not use it up.
func TestDeclinesEverMoreSeldom(t *testing.T) {
	w := &fakeServer{answer: honest4("10.0.0.50", 3600), used: map[netip.Addr]string{netip.MustParseAddr("10.0.0.50"): "02:00:00:00:00:01"}}
	bubble(t, 0, w, func(c *Clients) {
		put(c, request4)
		after(c, 24*time.Hour)
		declined := 0
		for _, kind := range w.kinds() {
			if kind == "DECLINE" {
				declined++
			}
		}
		check.Between(t, declined, 8, 25, "addresses declined in a day")
	})
}

// A thousand changes of what is requested leave no goroutine and no socket, and one client.
func TestManyChangesOfRequest(t *testing.T) {
	before := runtime.NumGoroutine()
	w := &fakeServer{answer: honest4("10.0.0.50", 3600)}
	bubble(t, 0, w, func(c *Clients) {
		for i := range 1000 {
			h := request4
			h.Hostname = fmt.Sprint("host", i%3)
			switch i % 7 {
			case 0:
				put(c)
				continue
			case 1:
				h.Release = true
			}
			put(c, h)
		}
		h := request4
		h.Hostname = "last"
		put(c, h)
		got := after(c, time.Second)
		check.Equal(t, got.State+" "+got.Request.Hostname, "bound last", "state and host name")
		check.Equal(t, len(*c.clients.Load()), 1, "clients")
	})
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// While nothing is leased, each attempt asks for the address that is requested by then.
func TestRequestedMeanwhile(t *testing.T) {
	w := &fakeServer{}
	bubble(t, 0, w, func(c *Clients) {
		asked := func() string {
			m, _ := dhcpv4.FromBytes(w.messages()[len(w.messages())-1].b)
			return m.RequestedIPAddress().String()
		}
		r := request4
		r.LastLease = vip.DHCPLease{Addr: netip.MustParseAddr("10.0.0.50"), MAC: r.MAC, Expires: time.Now().Add(-time.Hour)}
		put(c, r)
		after(c, 10*time.Second)
		check.Equal(t, asked(), "10.0.0.50", "asks, as nothing is requested, for")
		r.Requested = netip.MustParseAddr("10.0.0.60")
		put(c, r)
		after(c, 20*time.Second)
		check.Equal(t, asked(), "10.0.0.60", "asks for")
	})
}

// Who asks for something else goes on with its lease if servers know it by the same identity: on another network they refuse that
// (RFC 2131 section 3.2, RFC 8415 section 18.2.3). As another client it gives the lease back first, and asks anew.
func TestChangedRequest(t *testing.T) {
	const goesOn, asksAnew = "REQUEST", "RELEASE DISCOVER REQUEST"
	for _, tt := range []struct {
		name    string
		request vip.DHCPRequest
		change  func(*vip.DHCPRequest)
		want    string // what is sent
	}{
		{"nothing", request4, func(*vip.DHCPRequest) {}, ""},
		{"another parent", request4, func(r *vip.DHCPRequest) { r.Parent = "eth1" }, goesOn},
		{"by broadcast", request4, func(r *vip.DHCPRequest) { r.Broadcast = true }, goesOn},
		{"another host name", request4, func(r *vip.DHCPRequest) { r.Hostname = "other" }, asksAnew},
		{"another MAC", request4, func(r *vip.DHCPRequest) { r.MAC = "02:00:00:00:00:bb" }, asksAnew},
		{"another DUID", request6, func(r *vip.DHCPRequest) { r.DUID = "0003000102000000bb" }, "RELEASE SOLICIT"},
		{"another host name by IPv6", request6, func(r *vip.DHCPRequest) { r.Hostname = "other" }, "CONFIRM RENEW"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &fakeServer{answer: honest(tt.request.Family)}
			bubble(t, 0, w, func(c *Clients) {
				r := tt.request
				r.Parent = "eth0"
				put(c, r)
				r.LastLease = after(c, 2*time.Second).Lease
				r.Requested = r.LastLease.Addr
				put(c, r)
				before := len(w.kinds())
				tt.change(&r)
				put(c, r)
				got := after(c, 2*time.Second)
				if got.State != stateBound || got.Lease.Addr != r.Requested || got.Request.Release {
					t.Errorf("%+v", got)
				}
				check.Equal(t, strings.Join(w.kinds()[before:], " "), tt.want, "sent")
			})
		})
	}
}

// What a server may have leased is given back also before the client has its answer, and while it asks whether another host uses the address.
func TestReleasedBeforeBound(t *testing.T) {
	for _, tt := range []struct {
		request  vip.DHCPRequest
		silentTo string // what the server does not answer
		want     string // what is sent
	}{
		{request4, "", "DISCOVER REQUEST RELEASE"},
		{request4, "REQUEST", "DISCOVER REQUEST RELEASE"},
		{request4, "DISCOVER", "DISCOVER"},
		{request6, "", "SOLICIT RELEASE"},
		{request6, "REQUEST", "SOLICIT REQUEST RELEASE"},
	} {
		t.Run(fmt.Sprint(tt.request.Family, tt.silentTo), func(t *testing.T) {
			w := &fakeServer{checking: time.Second}
			answer := honest(tt.request.Family)
			w.answer = func(b []byte, to *PacketAddr) [][]byte {
				switch {
				case kind(b) == tt.silentTo:
					return nil
				case kind(b) == "SOLICIT" && tt.silentTo != "":
					return [][]byte{reply6(b, dhcpv6.MessageTypeAdvertise, "fd00::50", time.Hour)}
				}
				return answer(b, to)
			}
			bubble(t, 0, w, func(c *Clients) {
				r := tt.request
				put(c, r)
				check.Equal(t, after(c, 2*time.Second).Lease.Addr, netip.Addr{}, "leased")
				r.Release = true
				put(c, r)
				check.Equal(t, after(c, time.Second).State, "", "state of one that has ended")
				check.Equal(t, strings.Join(slices.Compact(w.kinds()), " "), tt.want, "sent")
			})
		})
	}
}

// A Service that is wanted again after its lease was given back gets a new one.
func TestWantedAgainAfterRelease(t *testing.T) {
	w := &fakeServer{answer: honest4("10.0.0.50", 3600)}
	bubble(t, 0, w, func(c *Clients) {
		put(c, request4)
		h := request4
		h.Release = true
		if got := put(c, h); got.Request.ID != "" && got.State != stateReleasing {
			t.Errorf("released: %+v", got)
		}
		after(c, time.Second)
		if k := w.kinds(); k[len(k)-1] != "RELEASE" {
			t.Errorf("%v", k)
		}
		put(c, request4)
		check.Equal(t, after(c, time.Second).State, stateBound, "wanted again")
	})
}

// Renewals happen at T1, by halves until T2, then to all, and stop at the end.
func TestRenewalScheduleWithoutAnswer(t *testing.T) {
	w := &fakeServer{answer: honest4("10.0.0.50", 1000)}
	bubble(t, 0, w, func(c *Clients) {
		got := put(c, request4)
		w.setAnswer(nil)
		began := got.Lease.Expires.Add(-1000 * time.Second)
		after(c, 998*time.Second)
		unicast, broadcast := 0, 0
		for _, a := range w.messages()[2:] {
			at := a.at.Sub(began)
			switch {
			case a.to.MAC != nil:
				unicast++
				check.Between(t, at, 500*time.Second, 875*time.Second, "asked its server after")
			default:
				broadcast++
				check.Between(t, at, 875*time.Second, 1000*time.Second, "asked all servers after")
			}
		}
		check.Between(t, unicast, 5, 15, "messages to its server")
		check.Between(t, broadcast, 3, 12, "messages to all")
		check.Equal(t, after(c, time.Second).Lease.Addr.IsValid(), true, "there before its end")
		check.Equal(t, brief(after(c, time.Second)), "selecting lost", "after its end")
	})
}

// kube-vip's servers know a client by its host name, if it has one; others by its MAC address.
func TestClientID(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0xaa}
	check.Same(t, []byte{1, 2, 0, 0, 0, 0, 0xaa}, clientID(mac, ""), "without a name")
	check.Equal(t, string(clientID(mac, "web")), "web", "with a name")
}

// A junkConn is a connection on whose link a host sends, a million times a second, what can't be read.
type junkConn struct {
	net.PacketConn
	until time.Time
	read  int
}

func (c *junkConn) ReadFrom([]byte) (int, net.Addr, error) {
	time.Sleep(time.Microsecond)
	if !time.Now().Before(c.until) {
		return 0, nil, os.ErrDeadlineExceeded
	}
	c.read++
	return 0, nil, errNotForUs
}

// TestFloodOfJunk: what can't be read counts for what is read in a second, and is ignored.
func TestFloodOfJunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &junkConn{until: time.Now().Add(10 * time.Second)}
		done, ignored, err := (&client{}).receive(t.Context(), c, transaction{})
		check.OK(t, err)
		if done || ignored != nil || c.read < 9*readsPerSecond || c.read > 11*readsPerSecond {
			t.Errorf("%v, %v: %d were read in ten seconds", done, ignored, c.read)
		}
	})
}

// other6 is another server than that of reply6.
var other6 = &dhcpv6.DUIDEN{EnterpriseNumber: 1, EnterpriseIdentifier: []byte{5, 6, 7, 8}}

// byOther is the answer r, sent by other6.
func byOther(r []byte) []byte {
	m, err := dhcpv6.MessageFromBytes(r)
	if err != nil {
		panic(err)
	}
	m.UpdateOption(dhcpv6.OptServerID(other6))
	return m.ToBytes()
}

// An offer is an address in an IA_NA, preferred for as long as it is valid.
type offer struct {
	addr  string
	valid time.Duration
}

// iaOf is the IA_NA of request6, with a status unless that is success, and addresses.
func iaOf(status iana.StatusCode, offers ...offer) dhcpv6.Option {
	ia := &dhcpv6.OptIANA{IaId: [4]byte{0, 0, 0, 7}}
	for _, o := range offers {
		ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(o.addr), PreferredLifetime: o.valid, ValidLifetime: o.valid})
	}
	if status != iana.StatusSuccess {
		ia.Options.Add(&dhcpv6.OptStatusCode{StatusCode: status})
	}
	return ia
}

// answerReply6 is a Reply to b.
func answerReply6(b []byte, options ...dhcpv6.Option) [][]byte {
	return [][]byte{reply6(b, dhcpv6.MessageTypeReply, "", 0, options...)}
}

// honest6 is a server that leases addr for an hour.
func honest6(addr string) func([]byte, *PacketAddr) [][]byte {
	return func(b []byte, _ *PacketAddr) [][]byte {
		return [][]byte{reply6(b, dhcpv6.MessageTypeReply, addr, time.Hour)}
	}
}

// honest is a server that leases 10.0.0.50 or fd00::50 for an hour.
func honest(family vip.Family) func([]byte, *PacketAddr) [][]byte {
	if family == vip.IPv6 {
		return honest6("fd00::50")
	}
	return honest4("10.0.0.50", 3600)
}

// byKind is what answers messages, by their type.
type byKind map[string]func(b []byte, to *PacketAddr) [][]byte

// answers replaces the answers of w to some types of messages; the others are not answered any more.
func (w *fakeServer) answers(answers byKind) {
	w.setAnswer(func(b []byte, to *PacketAddr) [][]byte {
		if answer := answers[kind(b)]; answer != nil {
			return answer(b, to)
		}
		return nil
	})
}

// bound6 leases fd00::50 for an hour, and has test go on from there.
func bound6(t *testing.T, test func(*fakeServer, *Clients)) {
	t.Helper()
	w := &fakeServer{answer: honest6("fd00::50")}
	bubble(t, 0, w, func(c *Clients) {
		put(c, request6)
		check.Equal(t, brief(after(c, 3*time.Second)), "bound fd00::50", "at first")
		test(w, c)
	})
}

// keeps waits for d, during which fd00::50 must be leased, and returns the state then.
func keeps(t *testing.T, c *Clients, d time.Duration) (got vip.DHCPState) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if got = after(c, 5*time.Second); got.Lost || got.Lease.Addr.String() != "fd00::50" {
			t.Errorf("%v before the end: %+v", time.Until(end), got)
			return got
		}
	}
	return got
}

// A status by which a server does not renew a lease takes nothing from it: it lasts until its lifetime ends (RFC 8415 section 18.2.10.1).
func TestRenewalRefused6(t *testing.T) {
	for name, status := range map[string]dhcpv6.Option{
		"NoAddrsAvail":                iaOf(iana.StatusNoAddrsAvail),
		"UnspecFail":                  iaOf(iana.StatusUnspecFail),
		"UnspecFail of a whole Reply": &dhcpv6.OptStatusCode{StatusCode: iana.StatusUnspecFail},
	} {
		t.Run(name, func(t *testing.T) {
			refuse := func(b []byte, _ *PacketAddr) [][]byte { return answerReply6(b, status) }
			bound6(t, func(w *fakeServer, c *Clients) {
				w.answers(byKind{"RENEW": refuse})
				check.Equal(t, keeps(t, c, 40*time.Minute).State, stateRenewing, "refused")
				w.answers(byKind{"RENEW": honest6("fd00::50"), "REBIND": honest6("fd00::50")})
				check.Equal(t, keeps(t, c, 15*time.Minute).State, stateBound, "with an honest server")
				check.Between(t, len(w.messages()), 4, 20, "messages: %v", w.kinds())
			})
			bound6(t, func(w *fakeServer, c *Clients) {
				w.answers(byKind{"RENEW": refuse, "REBIND": refuse})
				check.Equal(t, keeps(t, c, 59*time.Minute).State, stateRebinding, "refused by all")
				why, _, _ := strings.Cut(name, " ")
				if got := after(c, time.Minute); !got.Lost || got.Lease.Addr.IsValid() || !strings.Contains(got.Problem, why) {
					t.Errorf("after its end: %+v", got)
				}
			})
		})
	}
}

// A server that says that the address does not fit the link, or that the lease is over, ends the lease.
func TestLeaseEndedByServer6(t *testing.T) {
	for name, ia := range map[string]dhcpv6.Option{
		"NotOnLink": iaOf(iana.StatusNotOnLink),
		"over":      iaOf(iana.StatusSuccess, offer{"fd00::50", 0}),
	} {
		bound6(t, func(w *fakeServer, c *Clients) {
			w.answers(byKind{"RENEW": func(b []byte, _ *PacketAddr) [][]byte { return answerReply6(b, ia) }})
			if got := after(c, 30*time.Minute); !got.Lost || !strings.Contains(got.Problem, name) {
				t.Errorf("%s: %+v", name, got)
			}
		})
	}
}

// What a server says of another address, by its lifetime or by a status, says nothing of the lease.
func TestOtherAddressEnded6(t *testing.T) {
	refused := &dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd00::51"), PreferredLifetime: time.Hour, ValidLifetime: time.Hour}
	refused.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNotOnLink})
	withStatus := &dhcpv6.OptIANA{IaId: [4]byte{0, 0, 0, 7}}
	withStatus.Options.Add(refused)
	for name, ia := range map[string]dhcpv6.Option{
		"over":                 iaOf(iana.StatusSuccess, offer{"fd00::51", 0}),
		"over, and ours short": iaOf(iana.StatusSuccess, offer{"fd00::50", 2 * time.Second}, offer{"fd00::51", 0}),
		"not on link":          withStatus,
	} {
		t.Run(name, func(t *testing.T) {
			other := func(b []byte, _ *PacketAddr) [][]byte { return answerReply6(b, ia) }
			bound6(t, func(w *fakeServer, c *Clients) {
				w.answers(byKind{"RENEW": other, "REBIND": other})
				check.Equal(t, keeps(t, c, 55*time.Minute).State, stateRebinding, "another address has ended")
				w.answers(byKind{"REBIND": honest6("fd00::50")})
				check.Equal(t, keeps(t, c, 5*time.Minute).State, stateBound, "with an honest server")
			})
		})
	}
}

// otherKnowsNothing answers a Rebind as other6 does if it knows nothing of the lease.
func otherKnowsNothing(b []byte, _ *PacketAddr) [][]byte {
	return [][]byte{byOther(answerReply6(b, iaOf(iana.StatusNoBinding))[0])}
}

// asked6 is the address that a message asks for, or nil.
func asked6(b []byte) *dhcpv6.OptIAAddress {
	m, _ := dhcpv6.MessageFromBytes(b)
	return m.Options.OneIANA().Options.OneAddress()
}

// toOther reports whether b is a Request to other6 for fd00::50.
func toOther(b []byte) bool {
	m, _ := dhcpv6.MessageFromBytes(b)
	asked := asked6(b)
	return kind(b) == "REQUEST" && m.Options.ServerID() != nil && m.Options.ServerID().Equal(other6) && asked != nil && asked.IPv6Addr.String() == "fd00::50"
}

// A server that knows nothing of a lease, and answers a Rebind so, is sent a Request for it (RFC 8415 section 18.2.10.1).
func TestRebindWithoutBinding6(t *testing.T) {
	request := func(b []byte, to *PacketAddr) [][]byte {
		if !toOther(b) {
			return nil
		}
		return [][]byte{byOther(honest6("fd00::50")(b, to)[0])}
	}
	t.Run("it leases the address", func(t *testing.T) {
		bound6(t, func(w *fakeServer, c *Clients) {
			w.answers(byKind{"REBIND": otherKnowsNothing, "REQUEST": request})
			check.Equal(t, keeps(t, c, 55*time.Minute).State, stateBound, "leased again")
			if k := w.kinds(); k[len(k)-1] != "REQUEST" || k[len(k)-2] != "REBIND" {
				t.Errorf("sent %v", k)
			}
		})
	})
	for name, refuse := range map[string]func([]byte, *PacketAddr) [][]byte{
		"it does not answer then": nil,
		"it has no address": func(b []byte, _ *PacketAddr) [][]byte {
			return [][]byte{byOther(answerReply6(b, iaOf(iana.StatusNoAddrsAvail))[0])}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bound6(t, func(w *fakeServer, c *Clients) {
				w.answers(byKind{"REBIND": otherKnowsNothing, "REQUEST": refuse})
				check.Equal(t, keeps(t, c, 59*time.Minute).State, stateRebinding, "not leased again")
				check.Between(t, len(w.messages()), 0, 60, "messages")
				check.Equal(t, after(c, time.Minute).Lost, true, "lost after its end")
			})
		})
	}
	t.Run("another knows it", func(t *testing.T) {
		bound6(t, func(w *fakeServer, c *Clients) {
			w.answers(byKind{"REBIND": func(b []byte, to *PacketAddr) [][]byte {
				return append(otherKnowsNothing(b, to), honest6("fd00::50")(b, to)...)
			}})
			check.Equal(t, keeps(t, c, 55*time.Minute).State, stateBound, "another knows it")
			check.Equal(t, slices.Contains(w.kinds(), "REQUEST"), false, "a Request is among %v", w.kinds())
		})
	})
	t.Run("a recorded lease that is over", func(t *testing.T) {
		w := &fakeServer{}
		w.answers(byKind{"REBIND": otherKnowsNothing, "REQUEST": request})
		bubble(t, 0, w, func(c *Clients) {
			r := request6
			r.LastLease = vip.DHCPLease{Addr: netip.MustParseAddr("fd00::50"), Bits: 128, MAC: r.MAC, Server: "00020000000101020304", Expires: time.Now().Add(-time.Minute)}
			put(c, r)
			check.Equal(t, brief(after(c, 3*time.Second)), "bound fd00::50", "sent %v", w.kinds())
		})
	})
}

// Of several addresses in an IA_NA the one that was asked for is leased, wherever it stands.
func TestSeveralAddresses6(t *testing.T) {
	bound6(t, func(w *fakeServer, c *Clients) {
		w.answers(byKind{"RENEW": func(b []byte, _ *PacketAddr) [][]byte {
			return answerReply6(b, iaOf(iana.StatusSuccess, offer{"2001:db8::50", time.Hour}, offer{"fd00::50", time.Hour}))
		}})
		check.Equal(t, keeps(t, c, 40*time.Minute).State, stateBound, "the second of two")
	})
}

// An address that can't be accepted does not keep the next one from being leased.
func TestNextAddress6(t *testing.T) {
	for name, first := range map[string]offer{"short": {"fd00::50", 2 * time.Second}, "unusable": {"fe80::1", time.Hour}} {
		w := &fakeServer{answer: func(b []byte, _ *PacketAddr) [][]byte {
			return answerReply6(b, iaOf(iana.StatusSuccess, first, offer{"fd00::51", time.Hour}))
		}}
		bubble(t, 0, w, func(c *Clients) {
			put(c, request6)
			check.Equal(t, brief(after(c, 3*time.Second)), "bound fd00::51", "%s", name)
		})
	}
}
