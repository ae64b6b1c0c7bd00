package pool

import (
	"strings"
	"testing"
)

// What nearly is an address, a range or a CIDR is refused with what was probably meant, and that can be read.
func TestNearMisses(t *testing.T) {
	for text, want := range map[string]string{
		"192.168.51.180-185":              "192.168.51.180-192.168.51.185",
		"192.168.51.180-52.10":            "192.168.51.180-192.168.52.10",
		"192.168.51.180 - .185":           "192.168.51.180-192.168.51.185",
		"2001:db8::10-20":                 "2001:db8::10-2001:db8::20",
		"10.0.0.1\u201310.0.0.9":          "10.0.0.1-10.0.0.9",
		"10.0.0.1\u20149":                 "10.0.0.1-10.0.0.9",
		"10.0.0.1..10.0.0.9":              "10.0.0.1-10.0.0.9",
		"10.0.0.1 to 10.0.0.9":            "10.0.0.1-10.0.0.9",
		"10.0.0.1 10.0.0.9":               "10.0.0.1-10.0.0.9",
		"10.0.0.0/28 10.0.1.0/28":         "10.0.0.0/28,10.0.1.0/28",
		"10.0.0.1;10.0.0.9":               "10.0.0.1,10.0.0.9",
		"10.0.0.0 / 24":                   "10.0.0.0/24",
		"10.0.0.0/255.255.255.0":          "10.0.0.0/24",
		"\"10.0.0.0/24\"":                 "10.0.0.0/24",
		"[fd00::1]":                       "fd00::1",
		"10.0.0.9-5":                      "",
		"10.0.0.0/255.0.255.0":            "",
		"10.0.0.300-310":                  "",
		"10.0.0.1-1.2.3.4.5":              "",
		"web.example.com":                 "",
		"10.0.0.0/33":                     "",
		strings.Repeat("10.0.0.1 ", 1000): "",
	} {
		_, problem := parseAddresses(text)
		_, meant, said := strings.Cut(problem, "did you mean ")
		if got := strings.TrimSuffix(meant, "?"); problem == "" || got != want || said != (want != "") {
			t.Errorf("%.60q: %s, want %q", text, problem, want)
			continue
		}
		if want != "" {
			if _, again := parseAddresses(want); again != "" {
				t.Errorf("%q: what it suggests can't be read: %s", text, again)
			}
		}
	}
}
