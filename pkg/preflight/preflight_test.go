package preflight

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// fileSystem is a file system with the given files, "path=content".
func fileSystem(files ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for _, f := range files {
		name, text, _ := strings.Cut(f, "=")
		m[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return m
}

// ipv4Conf is the settings of all links and of eth0: arp_ignore, arp_announce, rp_filter.
func ipv4Conf(all, eth0 [3]string) []string {
	var files []string
	for i, name := range []string{"arp_ignore", "arp_announce", "rp_filter"} {
		files = append(files, "proc/sys/net/ipv4/conf/all/"+name+"="+all[i], "proc/sys/net/ipv4/conf/eth0/"+name+"="+eth0[i])
	}
	return files
}

func TestResults(t *testing.T) {
	const has = "sys/class/net/kube-ipvs0/mtu=1500"
	none := [3]string{"0", "0", "0"}
	tests := []struct {
		name     string
		got      Result
		severity Severity
		message  string // a part of it
	}{
		{"all capabilities", Capabilities(fileSystem("proc/self/status=Name:\tx\nCapEff:\t000001ffffffffff")), OK, "NET_ADMIN"},
		{"just the two", Capabilities(fileSystem("proc/self/status=CapEff:\t0000000000003000")), OK, "NET_RAW"},
		{"one", Capabilities(fileSystem("proc/self/status=CapEff:\t0000000000001000")), Error, "lacks NET_RAW"},
		{"none", Capabilities(fileSystem("proc/self/status=CapEff:\t0000000000000000")), Error, "lacks NET_ADMIN (to bind addresses) and NET_RAW"},
		{"not to be read", Capabilities(fileSystem()), Warning, "can't be checked"},
		{"no number", Capabilities(fileSystem("proc/self/status=CapEff:\tx")), Warning, "can't be checked"},

		{"no ipvs", StrictARP(fileSystem(ipv4Conf(none, none)...), "eth0"), OK, "not needed"},
		{"ipvs, not strict", StrictARP(fileSystem(append(ipv4Conf(none, none), has)...), "eth0"), Error, "strictARP"},
		{"half", StrictARP(fileSystem(append(ipv4Conf([3]string{"1", "1", "0"}, none), has)...), "eth0"), Error, "arp_announce 1"},
		{"for all links", StrictARP(fileSystem(append(ipv4Conf([3]string{"1", "2", "0"}, none), has)...), "eth0"), OK, "set"},
		{"for the link", StrictARP(fileSystem(append(ipv4Conf(none, [3]string{"1", "2", "0"}), has)...), "eth0"), OK, "set"},
		{"unknown link", StrictARP(fileSystem(append(ipv4Conf(none, none), has)...), "eth1"), Warning, "can't be checked"},

		{"no filter", ReversePath(fileSystem(ipv4Conf(none, none)...), "eth0"), OK, "rp_filter is 0"},
		{"strict for all", ReversePath(fileSystem(ipv4Conf([3]string{"0", "0", "1"}, none)...), "eth0"), Warning, "strict"},
		{"loose for the link wins", ReversePath(fileSystem(ipv4Conf([3]string{"0", "0", "1"}, [3]string{"0", "0", "2"})...), "eth0"), OK, "rp_filter is 2"},
		{"no such link", ReversePath(fileSystem(), "eth0"), Warning, "can't be checked"},
	}
	for _, tt := range tests {
		if tt.got.Severity != tt.severity || !strings.Contains(tt.got.Message, tt.message) {
			t.Errorf("%s: %s: %s, want %s with %q", tt.name, tt.got.Severity, tt.got.Message, tt.severity, tt.message)
		}
	}
}

// TestHere: the kernel's own files are read as they are.
func TestHere(t *testing.T) {
	here := os.DirFS("/")
	for _, f := range []Result{Capabilities(here), ReversePath(here, "lo")} {
		if strings.Contains(f.Message, "can't be checked") {
			t.Errorf("%s: %s", f.Subject, f.Message)
		}
	}
}
