package preflight

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// machine is a file system with the given files, "path=content".
func machine(files ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for _, f := range files {
		name, text, _ := strings.Cut(f, "=")
		m[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return m
}

// arp is the settings of all links and of eth0: arp_ignore, arp_announce, rp_filter.
func arp(all, eth0 [3]string) []string {
	var files []string
	for i, name := range []string{"arp_ignore", "arp_announce", "rp_filter"} {
		files = append(files, "proc/sys/net/ipv4/conf/all/"+name+"="+all[i], "proc/sys/net/ipv4/conf/eth0/"+name+"="+eth0[i])
	}
	return files
}

func TestFindings(t *testing.T) {
	const has = "sys/class/net/kube-ipvs0/mtu=1500"
	none := [3]string{"0", "0", "0"}
	tests := []struct {
		name    string
		got     Finding
		grade   Grade
		message string // a part of it
	}{
		{"all capabilities", Capabilities(machine("proc/self/status=Name:\tx\nCapEff:\t000001ffffffffff")), Good, "NET_ADMIN"},
		{"just the two", Capabilities(machine("proc/self/status=CapEff:\t0000000000003000")), Good, "NET_RAW"},
		{"one", Capabilities(machine("proc/self/status=CapEff:\t0000000000001000")), Fault, "lacks NET_RAW"},
		{"none", Capabilities(machine("proc/self/status=CapEff:\t0000000000000000")), Fault, "lacks NET_ADMIN (to bind addresses) and NET_RAW"},
		{"not to be read", Capabilities(machine()), Doubt, "can't be told"},
		{"no number", Capabilities(machine("proc/self/status=CapEff:\tx")), Doubt, "can't be told"},

		{"no ipvs", StrictARP(machine(arp(none, none)...), "eth0"), Good, "not needed"},
		{"ipvs, not strict", StrictARP(machine(append(arp(none, none), has)...), "eth0"), Fault, "strictARP"},
		{"half", StrictARP(machine(append(arp([3]string{"1", "1", "0"}, none), has)...), "eth0"), Fault, "arp_announce 1"},
		{"for all links", StrictARP(machine(append(arp([3]string{"1", "2", "0"}, none), has)...), "eth0"), Good, "set"},
		{"for the link", StrictARP(machine(append(arp(none, [3]string{"1", "2", "0"}), has)...), "eth0"), Good, "set"},
		{"unknown link", StrictARP(machine(append(arp(none, none), has)...), "eth1"), Doubt, "can't be told"},

		{"no filter", ReversePath(machine(arp(none, none)...), "eth0"), Good, "rp_filter is 0"},
		{"strict for all", ReversePath(machine(arp([3]string{"0", "0", "1"}, none)...), "eth0"), Doubt, "strict"},
		{"loose for the link wins", ReversePath(machine(arp([3]string{"0", "0", "1"}, [3]string{"0", "0", "2"})...), "eth0"), Good, "rp_filter is 2"},
		{"no such link", ReversePath(machine(), "eth0"), Doubt, "can't be told"},
	}
	for _, tt := range tests {
		if tt.got.Grade != tt.grade || !strings.Contains(tt.got.Message, tt.message) {
			t.Errorf("%s: %s: %s, want %s with %q", tt.name, tt.got.Grade, tt.got.Message, tt.grade, tt.message)
		}
	}
}

// TestHere: the kernel's own files are read as they are.
func TestHere(t *testing.T) {
	here := os.DirFS("/")
	for _, f := range []Finding{Capabilities(here), ReversePath(here, "lo")} {
		if strings.Contains(f.Message, "can't be told") {
			t.Errorf("%s: %s", f.Subject, f.Message)
		}
	}
}
