package nft

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

// What kube-vip's egress has left is one warning with commands that remove it, and nothing of anybody else's. The rules are those that
// kube-vip v1.2.3 makes by iptables-nft (pkg/vip/egress.go), and the table that it makes itself (pkg/nftables).
func TestWarnOfKubeVIP(t *testing.T) {
	if _, err := exec.LookPath("iptables-nft"); err != nil && os.Getenv("HERALD_LAB") != "require" {
		t.Skip("there is no iptables-nft (package iptables):", err)
	}
	sh(t, "ip netns add n1")
	t.Cleanup(func() { sh(t, "ip netns del n1") })
	warned := func() string {
		var b bytes.Buffer
		inside(t, "n1", func() { warnOfKubeVIP(slog.New(slog.NewTextHandler(&b, nil))) })
		return b.String()
	}
	for _, tt := range []struct{ iptables, family, pod, vip, table string }{
		{"iptables-nft", "ip", "10.244.0.7/32", vip4.String(), "kube_vip_v4"},
		{"ip6tables-nft", "ip6", "fd01::7/128", vip6.String(), "kube_vip_v6"},
	} {
		do := func(lines string) string {
			return sh(t, strings.NewReplacer("IPTABLES", "ip netns exec n1 "+tt.iptables, "COMMENT", "-m comment --comment a3ViZS12aXAK=kube-vip-kube-system",
				"POD", tt.pod, "ADDRESS", tt.vip, "NFT", "ip netns exec n1 nft", "TABLE", tt.family+" "+tt.table).Replace(lines))
		}
		do("IPTABLES -t nat -A POSTROUTING -s POD -m mark --mark 0x4000/0x4000 -j MASQUERADE\nIPTABLES -t mangle -N CALI\nIPTABLES -t mangle -A CALI -d POD -j RETURN")
		others := do("IPTABLES-save | grep -v ^#")
		if got := warned(); got != "" {
			t.Errorf("%s: without rules of kube-vip's it logs %s", tt.family, got)
		}
		do(`IPTABLES -t mangle -N KUBE-VIP-EGRESS
IPTABLES -t mangle -A KUBE-VIP-EGRESS -d POD -j RETURN COMMENT
IPTABLES -t mangle -A KUBE-VIP-EGRESS -s POD -j MARK --set-mark 64/64 COMMENT
IPTABLES -t mangle -I PREROUTING 1 -j KUBE-VIP-EGRESS COMMENT
IPTABLES -t nat -I POSTROUTING 1 -s POD -m mark --mark 64/64 -j SNAT --to-source ADDRESS COMMENT
NFT add table TABLE
NFT 'add chain TABLE kube_vip_snat_7 { type nat hook postrouting priority srcnat; }'
NFT 'add chain TABLE kube_vip_snat_8 { type nat hook postrouting priority srcnat; }'`)
		if got := warned(); strings.Count(got, "level=WARN") != 1 || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: logged %q, want one warning", tt.family, got)
		}
		var commands string
		inside(t, "n1", func() { _, commands, _ = strings.Cut(check.Value(KubeVIPEgress())(t), "remove them: ") })
		sh(t, `ip netns exec n1 sh -c "set -e; `+commands+`"`)
		if got := warned(); got != "" {
			t.Errorf("%s: after %q it logs %s", tt.family, commands, got)
		}
		if left := do("IPTABLES-save | grep -v ^#"); left != others {
			t.Errorf("%s: after %q there is\n%s\nbefore kube-vip there was\n%s", tt.family, commands, left, others)
		}
	}
}

// Rules of portmap beside kube-proxy's nftables mode are told of; either alone is none of them.
func TestHostPorts(t *testing.T) {
	sh(t, "ip netns add n1")
	t.Cleanup(func() { sh(t, "ip netns del n1") })
	do := func(lines string) { sh(t, strings.ReplaceAll(lines, "NFT", "ip netns exec n1 nft")) }
	found := func() (text string) {
		inside(t, "n1", func() { text = check.Value(HostPorts())(t) })
		return text
	}
	do("NFT add table ip kube-proxy\nNFT add chain ip kube-proxy services")
	if got := found(); got != "" {
		t.Errorf("without hostPorts: %s", got)
	}
	for _, of := range []string{"nat CNI-HOSTPORT-DNAT", "cni_hostport hostports"} {
		table, _, _ := strings.Cut(of, " ")
		do("NFT add table ip " + table + "\nNFT add chain ip " + of)
		if got := found(); !strings.Contains(got, "hostPort") {
			t.Errorf("with %s: %q", of, got)
		}
		do("NFT delete table ip " + table)
	}
}
