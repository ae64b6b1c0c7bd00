package vip

import (
	"net/netip"
	"testing"
)

func TestLastAddr(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.0.0.0/8": "10.255.255.255", "10.1.2.3/30": "10.1.2.3", "10.1.2.1/30": "10.1.2.3", "10.1.2.3/32": "10.1.2.3", "0.0.0.0/0": "255.255.255.255",
		"10.0.0.0/13": "10.7.255.255", "fd77::1/64": "fd77::ffff:ffff:ffff:ffff", "::/0": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := LastAddr(netip.MustParsePrefix(prefix)).String(); got != want {
			t.Errorf("%s ends with %s, want %s", prefix, got, want)
		}
	}
	if got := LastAddr(netip.Prefix{}); got.IsValid() {
		t.Errorf("no prefix ends with %s", got)
	}
}
