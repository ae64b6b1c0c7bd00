package e2e

import (
	"net"
	"os"
	"strings"
	"testing"
)

// ipv6Only: the lab has no IPv4 address but 127.0.0.1.
var ipv6Only = os.Getenv("HERALD_FAMILY") == "6"

// needIPv6Only skips a test that is about clusters without IPv4 if the lab has IPv4.
func needIPv6Only(t *testing.T) {
	t.Helper()
	if !ipv6Only {
		t.Skip("this lab has IPv4 (HERALD_FAMILY=6 makes one without)")
	}
}

// bothFamilies returns an address of the LAN, and the IPv6 address that ends alike: fd77::1050 beside 10.77.0.50. It is the latter alone in a
// lab without IPv4.
func bothFamilies(v4 string) []string {
	v6 := "fd77::10" + v4[strings.LastIndex(v4, ".")+1:]
	if ipv6Only {
		return []string{v6}
	}
	return []string{v4, v6}
}

// httpURL is the page at a port of an address.
func httpURL(vip, port string) string { return "http://" + net.JoinHostPort(vip, port) + "/" }
