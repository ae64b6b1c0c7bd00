package nft

import (
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

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
