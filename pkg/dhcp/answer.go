package dhcp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
	"unicode"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/insomniacslk/dhcp/iana"
)

// errNotForUs: the message is for another client, or of another transaction.
var errNotForUs = errors.New("a message for another client")

// infinite is the lease time that never ends (RFC 2131 section 3.3, RFC 8415 section 7.7).
const infinite = 0xffffffff * time.Second

// An answer is a server's message, checked.
type answer struct {
	server   string // its address, or its DUID in hexadecimal
	refusal  string // why it leases nothing, or ""
	addr     netip.Addr
	bits     int
	router   netip.Addr
	duration time.Duration // of the lease; infinite: for ever
	t1, t2   time.Duration

	// DHCPv6 only.
	status     iana.StatusCode // of the refusal
	preference uint8
	reply      bool // a Reply: no Request is needed
}

// lease is what a leases to the client with mac, whose request left at sent.
func (a answer) lease(mac string, sent time.Time) vip.DHCPLease {
	k := vip.DHCPLease{Addr: a.addr, Bits: a.bits, MAC: mac, Server: a.server, Router: a.router}
	if a.addr.IsValid() && a.duration != infinite {
		k.Expires, k.Renews, k.Rebinds = sent.Add(a.duration), sent.Add(a.t1), sent.Add(a.t2)
	}
	return k
}

// setTimes sets t1 and t2 as sent, if in order, else as recommended (RFC 2131 section 4.4.5, RFC 8415 section 21.4).
func (a *answer) setTimes(t1, t2, defaultT2 time.Duration) {
	if a.t2 = t2; a.t2 < time.Second || a.t2 >= a.duration {
		a.t2 = defaultT2
	}
	if a.t1 = t1; a.t1 < time.Second || a.t1 >= a.t2 {
		a.t1 = min(a.duration/2, a.t2/8*5)
	}
}

// recoverDecoder turns a panic into err: the decoder is others', and what it reads anybody's, but no VIP may go for it.
func recoverDecoder(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("an answer can't be decoded: %v", r)
	}
}

// printable is what of s can be printed, at most some 100 bytes.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > 100 {
		s = strings.ToValidUTF8(s[:100], "") + "..."
	}
	return strings.TrimSpace(s)
}
