package main

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/heraldvip/herald/pkg/config"
)

// A node that announces nothing by ARP need not have strict ARP: what it answers for is asked for by nobody.
func TestPreflightOfLink(t *testing.T) {
	files := fstest.MapFS{"sys/class/net/kube-ipvs0/ifindex": {}}
	for _, of := range []string{"all", "eth0"} {
		for _, name := range []string{"arp_ignore", "arp_announce", "rp_filter", "arp_filter"} {
			files["proc/sys/net/ipv4/conf/"+of+"/"+name] = &fstest.MapFile{Data: []byte("0\n")}
		}
	}
	for arp, want := range map[bool]string{true: "strict ARP error, ARP replies ok, reverse path filter ok", false: "reverse path filter ok"} {
		var c config.Config
		c.ARP.Enable = arp
		var got []string
		for _, r := range checkLinkSettings(c, files, "eth0") {
			got = append(got, r.Subject+" "+string(r.Severity))
		}
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("vip_arp=%v: %s, want %s", arp, got, want)
		}
	}
}

// A kernel without nftables makes a node unfit only where ports are to be limited.
func TestPreflightNftables(t *testing.T) {
	var plain, limits config.Config
	plain.Services.Enable, limits.Services.Enable, limits.Services.LimitPorts = true, true, true
	if got := checkNftables(config.Config{}, errors.New("unused")); len(got) != 0 {
		t.Errorf("without an option that needs it: %v", got)
	}
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
