package dhcp

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

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

// byKind is what answers messages, by their type.
type byKind map[string]func(b []byte, to *PacketAddr) [][]byte

// answers replaces the answers of w to some types of messages; the others are not answered any more.
func (w *fakeServer) answers(answers byKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = func(b []byte, to *PacketAddr) [][]byte {
		if answer := answers[kind(b)]; answer != nil {
			return answer(b, to)
		}
		return nil
	}
}

// bound6 leases fd00::50 for an hour, and has test go on from there.
func bound6(t *testing.T, test func(*fakeServer, *Clients)) {
	t.Helper()
	w := &fakeServer{answer: honest6("fd00::50")}
	bubble(t, 0, w, func(c *Clients) {
		put(c, request6)
		if got := after(c, 3*time.Second); got.State != stateBound || got.Lease.Addr.String() != "fd00::50" {
			t.Fatalf("%+v", got)
		}
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
				if got := keeps(t, c, 40*time.Minute); got.State != stateRenewing {
					t.Errorf("%+v", got)
				}
				w.answers(byKind{"RENEW": honest6("fd00::50"), "REBIND": honest6("fd00::50")})
				if got := keeps(t, c, 15*time.Minute); got.State != stateBound {
					t.Errorf("with an honest server: %+v", got)
				}
				if n := len(w.messages()); n < 4 || n > 20 {
					t.Errorf("sent %v", w.kinds())
				}
			})
			bound6(t, func(w *fakeServer, c *Clients) {
				w.answers(byKind{"RENEW": refuse, "REBIND": refuse})
				if got := keeps(t, c, 59*time.Minute); got.State != stateRebinding {
					t.Errorf("%+v", got)
				}
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
				if got := keeps(t, c, 55*time.Minute); got.State != stateRebinding {
					t.Errorf("%+v", got)
				}
				w.answers(byKind{"REBIND": honest6("fd00::50")})
				if got := keeps(t, c, 5*time.Minute); got.State != stateBound {
					t.Errorf("with an honest server: %+v", got)
				}
			})
		})
	}
}

// otherKnowsNothing answers a Rebind as other6 does if it knows nothing of the lease.
func otherKnowsNothing(b []byte, _ *PacketAddr) [][]byte {
	return [][]byte{byOther(answerReply6(b, iaOf(iana.StatusNoBinding))[0])}
}

// toOther reports whether b is a Request to other6 for fd00::50.
func toOther(b []byte) bool {
	m, _ := dhcpv6.MessageFromBytes(b)
	asked := m.Options.OneIANA().Options.OneAddress()
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
			if got := keeps(t, c, 55*time.Minute); got.State != stateBound {
				t.Errorf("%+v", got)
			}
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
				if got := keeps(t, c, 59*time.Minute); got.State != stateRebinding {
					t.Errorf("%+v", got)
				}
				if n := len(w.messages()); n > 60 {
					t.Errorf("%d messages", n)
				}
				if got := after(c, time.Minute); !got.Lost {
					t.Errorf("after its end: %+v", got)
				}
			})
		})
	}
	t.Run("another knows it", func(t *testing.T) {
		bound6(t, func(w *fakeServer, c *Clients) {
			w.answers(byKind{"REBIND": func(b []byte, to *PacketAddr) [][]byte {
				return append(otherKnowsNothing(b, to), honest6("fd00::50")(b, to)...)
			}})
			if got := keeps(t, c, 55*time.Minute); got.State != stateBound {
				t.Errorf("%+v", got)
			}
			if slices.Contains(w.kinds(), "REQUEST") {
				t.Errorf("sent %v", w.kinds())
			}
		})
	})
	t.Run("a recorded lease that is over", func(t *testing.T) {
		w := &fakeServer{}
		w.answers(byKind{"REBIND": otherKnowsNothing, "REQUEST": request})
		bubble(t, 0, w, func(c *Clients) {
			r := request6
			r.LastLease = vip.DHCPLease{Addr: netip.MustParseAddr("fd00::50"), Bits: 128, MAC: r.MAC, Server: "00020000000101020304", Expires: time.Now().Add(-time.Minute)}
			put(c, r)
			if got := after(c, 3*time.Second); got.State != stateBound || got.Lost || got.Lease.Addr != r.LastLease.Addr {
				t.Errorf("%+v, sent %v", got, w.kinds())
			}
		})
	})
}

// Of several addresses in an IA_NA the one that was asked for is leased, wherever it stands.
func TestSeveralAddresses6(t *testing.T) {
	bound6(t, func(w *fakeServer, c *Clients) {
		w.answers(byKind{"RENEW": func(b []byte, _ *PacketAddr) [][]byte {
			return answerReply6(b, iaOf(iana.StatusSuccess, offer{"2001:db8::50", time.Hour}, offer{"fd00::50", time.Hour}))
		}})
		if got := keeps(t, c, 40*time.Minute); got.State != stateBound {
			t.Errorf("%+v", got)
		}
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
			if got := after(c, 3*time.Second); got.State != stateBound || got.Lease.Addr.String() != "fd00::51" {
				t.Errorf("%s: %+v", name, got)
			}
		})
	}
}
