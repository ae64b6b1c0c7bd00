package bgp

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

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
