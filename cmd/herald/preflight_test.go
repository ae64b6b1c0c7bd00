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

// Each option that makes a table of nftables is checked for, and its line says what does not work without it.
func TestPreflightNftables(t *testing.T) {
	var plain, all config.Config
	all.Services.KeepConnections, all.Services.LimitPorts = 1, true
	all.Egress.Enable, all.Services.Enable = true, true
	all.ControlPlane.Enable, all.ControlPlane.Balance = true, config.Balance{Enable: true, Method: config.Masquerade}
	if got := nftablesUses(plain); len(got) != 0 {
		t.Errorf("without such an option: %v", got)
	}
	uses := nftablesUses(all)
	for i := range uses {
		uses[i].check = func() error { return errors.New("operation not supported") }
	}
	fine := nftablesUses(all)
	for i := range fine {
		fine[i].check = func() error { return nil }
	}
	if got := checkNftables(fine); len(got) != len(fine)-2 || got[len(got)-1].Subject != "lb_enable" {
		t.Errorf("where the kernel takes all: %v, want no line for egress, which perhaps no Service asks for, and none for invalid packets", got)
	}
	var out strings.Builder
	if writeResults(&out, checkNftables(uses)) {
		t.Error("a node that can't limit ports is fit")
	}
	for _, want := range []string{
		"warning  herald_keep_connections  nftables can't be used (operation not supported): a move of a VIP resets",
		"warning  cp_enable ", "warning  svc_enable ", "error    enable_service_security ", "warning  lb_enable ", "warning  egress_enable ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
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
