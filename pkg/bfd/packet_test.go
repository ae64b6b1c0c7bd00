package bfd

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
)

// good is a packet in the state up, and how it is written: RFC 5880 section 4.1.
var (
	good      = packet{diag: diagNeighborDown, state: Up, poll: true, multiplier: 3, mine: 0x01020304, yours: 5, desiredMinTx: 300 * time.Millisecond, requiredMinRx: time.Second}
	goodBytes = []byte{1<<5 | 3, 3<<6 | 1<<5, 3, 24, 1, 2, 3, 4, 0, 0, 0, 5, 0, 4, 0x93, 0xe0, 0, 0xf, 0x42, 0x40, 0, 0, 0, 0}
)

func TestPacket(t *testing.T) {
	if diff := cmp.Diff(goodBytes, good.marshal()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for name, tt := range map[string]struct {
		change func(b []byte) []byte
		wrong  string // "" if it is taken
	}{
		"as it is":                   {func(b []byte) []byte { return b }, ""},
		"padded":                     {func(b []byte) []byte { return append(b, 0, 0) }, ""},
		"Demand mode, echo packets":  {func(b []byte) []byte { b[1] |= 2; b[23] = 1; return b }, ""},
		"down, of nobody":            {func(b []byte) []byte { b[1] = 1<<6 | 1<<5; b[11] = 0; return b }, ""},
		"short":                      {func(b []byte) []byte { return b[:23] }, "23 bytes"},
		"version 2":                  {func(b []byte) []byte { b[0] = 2 << 5; return b }, "version 2"},
		"authenticated":              {func(b []byte) []byte { b[1] |= 4; b[3] = 26; return append(b, 1, 2) }, "authenticated"},
		"length too small":           {func(b []byte) []byte { b[3] = 23; return b }, "length 23"},
		"length too large":           {func(b []byte) []byte { b[3] = 25; return b }, "length 25"},
		"Detect Mult 0":              {func(b []byte) []byte { b[2] = 0; return b }, "Detect Mult"},
		"Multipoint":                 {func(b []byte) []byte { b[1] |= 1; return b }, "Multipoint"},
		"My Discriminator 0":         {func(b []byte) []byte { clear(b[4:8]); return b }, "My Discriminator"},
		"up, Your Discriminator 0":   {func(b []byte) []byte { clear(b[8:12]); return b }, "Your Discriminator"},
		"init, Your Discriminator 0": {func(b []byte) []byte { b[1] = 2 << 6; clear(b[8:12]); return b }, "Your Discriminator"},
	} {
		p, err := parsePacket(tt.change(bytes.Clone(goodBytes)))
		switch {
		case tt.wrong == "":
			check.OK(t, err)
			if p.mine != good.mine || p.desiredMinTx != good.desiredMinTx || p.requiredMinRx != good.requiredMinRx || !p.poll {
				t.Errorf("%s: %+v", name, p)
			}
		case err == nil || !strings.Contains(err.Error(), tt.wrong):
			t.Errorf("%s: %v, want %s", name, err, tt.wrong)
		}
	}
}

// What is taken can be written, and is the same then.
func FuzzPacket(f *testing.F) {
	f.Add(goodBytes)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePacket(b)
		if err != nil {
			return
		}
		again, err := parsePacket(p.marshal())
		if err != nil || again != p {
			t.Errorf("%+v became %+v, %v", p, again, err)
		}
	})
}
