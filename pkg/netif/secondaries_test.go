package netif

import (
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// With an address the kernel removes those of the same network that were added after it, unless promote_secondaries is set. Other VIPs are there
// when Set returns, and an address of the node stays: also when the VIP's lifetime ends, since Herald was killed.
func TestKernelSecondaries(t *testing.T) {
	first, second, third := addr("10.9.0.1/24", "eth0"), addr("10.9.0.2/24", "eth0"), addr("10.9.0.3/24", "eth0")
	for how, promote := range map[string]string{"promoted": "1", "removed": "0", "taken back": "0", "taken back for the last": "0", "expired": "0"} {
		t.Run(how, func(t *testing.T) {
			eth0 := newVeth(t, "eth0")
			sysctl(t, "net/ipv4/conf/eth0/promote_secondaries", promote)
			r, stop := kernelRig(t)
			defer func() { stop() }()
			check.Value(r.Set(t.Context(), []vip.Address{first, second, third}))(t)
			if how == "taken back" { // by another program
				sysctl(t, "net/ipv4/conf/eth0/promote_secondaries", "0")
			}
			have, err := r.Set(t.Context(), []vip.Address{second, third})
			if got := addresses(t, "eth0"); err != nil || len(have) != 2 || !strings.Contains(got, "10.9.0.2/24") || !strings.Contains(got, "10.9.0.3/24") {
				t.Errorf("%v, %v; the kernel has\n%s", have, err, got)
			}
			addOther(t, eth0, "10.9.0.5/24")
			r.await(t, "the node's own address", func() bool { return r.IsLocal(addr("10.9.0.5/24", "eth0").Addr) })
			if how == "taken back for the last" { // no VIP is wanted on the link then
				sysctl(t, "net/ipv4/conf/eth0/promote_secondaries", "0")
			}
			if how != "expired" {
				check.Value(r.Set(t.Context(), nil))(t)
			}
			stop()
			stop = func() {}
			check.True(t, 10*time.Second, "the VIPs to be gone", func() bool { return !strings.Contains(addresses(t, "eth0"), "proto=v") })
			check.Equal(t, addresses(t, "eth0"), "eth0 10.9.0.5/24 permanent", "the kernel without VIPs")
		})
	}
}
