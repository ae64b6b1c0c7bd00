package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/testing/check"
)

// A node that announces nothing by ARP need not have strict ARP: what it answers for is asked for by nobody.
func TestPreflightOfLink(t *testing.T) {
	none := [4]string{"0", "0", "0", "0"}
	files := fileSystem(append(ipv4Conf(none, none), "sys/class/net/kube-ipvs0/ifindex=1")...)
	for arp, want := range map[bool]string{true: "strict ARP error, ARP replies ok, reverse path filter ok", false: "reverse path filter ok"} {
		var c config.Config
		c.ARP.Enable = arp
		var got []string
		for _, r := range checkLinkSettings(c, files, "eth0") {
			got = append(got, r.Subject+" "+string(r.Severity))
		}
		check.Equal(t, strings.Join(got, ", "), want, "vip_arp=%v", arp)
	}
}

// TestPreflightOfDownLink: a link that the manager waits for makes a node unfit, unless the option says that it is to. A new namespace has lo alone, and that is down.
func TestPreflightOfDownLink(t *testing.T) {
	runtime.LockOSThread() // for ever: the thread ends with the test
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Skip("needs root: ", err)
	}
	for _, tt := range []struct {
		link  string
		waits bool
		want  string
	}{
		{"lo", false, "error vip_interface=lo: the interface is not up"},
		{"", false, "error vip_interface is not set, and this node has no default route"},
		{"bond0", false, "error vip_interface=bond0: this node has no such interface; it has lo."},
		{"lo", true, "ok lo (vip_interface"},
		{"bond0", true, "ok bond0 (vip_interface"},
	} {
		var c config.Config
		c.Link.Interface, c.Link.AllowDown = tt.link, tt.waits
		if _, r := checkLink(c); !strings.HasPrefix(string(r.Severity)+" "+r.Message, tt.want) {
			t.Errorf("%q, %v: %s %s; want %s", tt.link, tt.waits, r.Severity, r.Message, tt.want)
		}
	}
}

// A kernel without nftables makes a node unfit only where ports are to be limited.
func TestPreflightNftables(t *testing.T) {
	var plain, limits config.Config
	plain.Services.Enable, limits.Services.Enable, limits.Services.LimitPorts = true, true, true
	check.Equal(t, len(checkNftables(config.Config{}, errors.New("unused"))), 0, "results without an option that needs it")
	refused := errors.New("operation not supported")
	for _, tt := range []struct {
		cfg  config.Config
		why  error
		want string
	}{{plain, nil, "nftables  the kernel takes"}, {plain, refused, "warning  nftables  operation not supported: "}, {limits, refused, "error  nftables  operation not supported: "}} {
		var out strings.Builder
		fit := writeResults(&out, checkNftables(tt.cfg, tt.why))
		if !strings.Contains(out.String(), tt.want) || fit != !strings.HasPrefix(tt.want, "error") {
			t.Errorf("fit: %t; no %q in\n%s", fit, tt.want, &out)
		}
	}
}

// TestPreflightPermissions: a right that Herald does without makes no node unfit, and the command that is named is for what the options ask for.
func TestPreflightPermissions(t *testing.T) {
	var services, alone config.Config
	services.Services.Enable, alone.ControlPlane.Enable = true, true
	for _, tt := range []struct {
		name             string
		cfg              config.Config
		missing, without []string
		want             severity
		message          string
	}{
		{"all", services, nil, nil, fine, "all 9"},
		{"Services", services, []string{"list nodes"}, nil, unfit, "not permitted: list nodes; herald manifest rbac prints"},
		{"the control plane alone", alone, nil, []string{"list nodes", "create events"}, doubtful,
			"not permitted: list nodes, create events; herald manifest rbac --controlplane, with"},
		{"not even Leases", alone, []string{"update leases"}, []string{"list nodes"}, unfit, "not permitted: update leases; herald manifest rbac --controlplane, with"},
	} {
		if r := checkPermissions(tt.cfg, 9, tt.missing, tt.without); r.Severity != tt.want || !strings.Contains(r.Message, tt.message) {
			t.Errorf("%s: %s: %s", tt.name, r.Severity, r.Message)
		}
	}
}

// TestPreflightOwnAPIServer: a node whose API server is not ready where Herald asks gets no VIP of the control plane, and is told where that is.
func TestPreflightOwnAPIServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	check.OK(t, os.WriteFile(file, []byte(nowhere), 0o600))
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	ready := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer ready.Close()
	for url, want := range map[string]string{ready.URL: "ok ready", server.URL: "warning GET " + server.URL + ": 404 Not Found"} {
		servers := kube.NewServers(9, func() []netip.Addr { return nil })
		_, _, err := kube.Connect(kube.Access{File: file, Servers: servers})
		check.OK(t, err)
		r := checkOwnAPIServer(t.Context(), config.ControlPlane{Port: 9, CheckURL: url, CheckTimeout: time.Second}, servers)
		if got := string(r.Severity) + " " + r.Message; !strings.HasPrefix(got, want) || r.Severity != fine && !strings.Contains(got, "port (9)") {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// fileSystem is a file system with the given files, "path=content".
func fileSystem(files ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for _, f := range files {
		name, text, _ := strings.Cut(f, "=")
		m[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return m
}

// ipv4Conf is the settings of all links and of eth0: arp_ignore, arp_announce, rp_filter, arp_filter.
func ipv4Conf(all, eth0 [4]string) []string {
	var files []string
	for i, name := range []string{"arp_ignore", "arp_announce", "rp_filter", "arp_filter"} {
		files = append(files, "proc/sys/net/ipv4/conf/all/"+name+"="+all[i], "proc/sys/net/ipv4/conf/eth0/"+name+"="+eth0[i])
	}
	return files
}

func TestPreflightResults(t *testing.T) {
	const has = "sys/class/net/kube-ipvs0/mtu=1500"
	none := [4]string{"0", "0", "0", "0"}
	tests := []struct {
		name     string
		got      checkResult
		severity severity
		message  string // a part of it
	}{
		{"all capabilities", checkCapabilities(fileSystem("proc/self/status=Name:\tx\nCapEff:\t000001ffffffffff")), fine, "NET_ADMIN"},
		{"just the two", checkCapabilities(fileSystem("proc/self/status=CapEff:\t0000000000003000")), fine, "NET_RAW"},
		{"one", checkCapabilities(fileSystem("proc/self/status=CapEff:\t0000000000001000")), unfit, "lacks NET_RAW"},
		{"none", checkCapabilities(fileSystem("proc/self/status=CapEff:\t0000000000000000")), unfit, "lacks NET_ADMIN (to bind addresses) and NET_RAW"},
		{"not to be read", checkCapabilities(fileSystem()), doubtful, "can't be checked"},
		{"no number", checkCapabilities(fileSystem("proc/self/status=CapEff:\tx")), doubtful, "can't be checked"},

		{"no ipvs", checkStrictARP(fileSystem(ipv4Conf(none, none)...), "eth0"), fine, "not needed"},
		{"ipvs, not strict", checkStrictARP(fileSystem(append(ipv4Conf(none, none), has)...), "eth0"), unfit, "strictARP"},
		{"half", checkStrictARP(fileSystem(append(ipv4Conf([4]string{"1", "1", "0", "0"}, none), has)...), "eth0"), unfit, "arp_announce 1"},
		{"for all links", checkStrictARP(fileSystem(append(ipv4Conf([4]string{"1", "2", "0", "0"}, none), has)...), "eth0"), fine, "set"},
		{"for the link", checkStrictARP(fileSystem(append(ipv4Conf(none, [4]string{"1", "2", "0", "0"}), has)...), "eth0"), fine, "set"},
		{"unknown link", checkStrictARP(fileSystem(append(ipv4Conf(none, none), has)...), "eth1"), doubtful, "can't be checked"},

		{"the kernel answers", checkARPAnswers(fileSystem(ipv4Conf(none, [4]string{"1", "2", "0", "0"})...), "eth0"), fine, "the kernel"},
		{"other networks", checkARPAnswers(fileSystem(ipv4Conf([4]string{"2", "0", "0", "0"}, none)...), "eth0"), doubtful, "arp_ignore is 2"},
		{"by route", checkARPAnswers(fileSystem(ipv4Conf(none, [4]string{"0", "0", "0", "1"})...), "eth0"), doubtful, "arp_filter 1"},

		{"no filter", checkReversePath(fileSystem(ipv4Conf(none, none)...), "eth0"), fine, "rp_filter is 0"},
		{"strict for all", checkReversePath(fileSystem(ipv4Conf([4]string{"0", "0", "1", "0"}, none)...), "eth0"), doubtful, "strict"},
		{"loose for the link wins", checkReversePath(fileSystem(ipv4Conf([4]string{"0", "0", "1", "0"}, [4]string{"0", "0", "2", "0"})...), "eth0"), fine, "rp_filter is 2"},
		{"no such link", checkReversePath(fileSystem(), "eth0"), doubtful, "can't be checked"},
	}
	for _, tt := range tests {
		if tt.got.Severity != tt.severity || !strings.Contains(tt.got.Message, tt.message) {
			t.Errorf("%s: %s: %s, want %s with %q", tt.name, tt.got.Severity, tt.got.Message, tt.severity, tt.message)
		}
	}
}

// TestPreflightHere: the kernel's own files are read as they are.
func TestPreflightHere(t *testing.T) {
	here := os.DirFS("/")
	for _, f := range []checkResult{checkCapabilities(here), checkReversePath(here, "lo")} {
		check.Equal(t, strings.Contains(f.Message, "can't be checked"), false, "%s can't be checked: %s", f.Subject, f.Message)
	}
}
