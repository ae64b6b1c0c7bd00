package kube

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// reserve is what no VIP may be of. Of the cluster IPs outside the known Service
// ranges and of the pods' addresses only those are listed that a Service asks
// for: there may be very many of them.
//
// What is made to follow "<address> is " if the Prefix is one address, and
// "<address> is in " if it is a range.
func (c *Cluster) reserve() []vip.ReservedRange {
	var out []vip.ReservedRange
	if c.ranges != nil {
		for _, prefixes := range c.ranges.values {
			for _, p := range prefixes {
				out = append(out, vip.ReservedRange{Prefix: p, Description: "the cluster's Service range"})
			}
		}
	}
	known := make(map[netip.Addr]bool)
	single := func(a netip.Addr, what string) {
		if !known[a] {
			known[a] = true
			out = append(out, vip.ReservedRange{Prefix: netip.PrefixFrom(a, a.BitLen()), Description: what})
		}
	}
	for _, s := range c.parts[apiService] {
		for _, a := range s.addrs {
			single(a, "the address of an API server")
		}
	}
	if c.host.IsValid() {
		single(c.host, "the address of the API server")
	}
	for i := range c.listed {
		for _, a := range sought(&c.listed[i]) {
			u := c.uses[a]
			if u == nil || !c.listed[i].LoadBalancer {
				continue
			}
			if len(u.clusterIP) > 0 {
				single(a, "the cluster IP of Service "+slices.MinFunc(u.clusterIP, vip.Key.Compare).String())
			}
			if len(u.endpoints) > 0 {
				of := slices.MinFunc(u.endpoints, func(a, b *slice) int { return a.service.Compare(b.service) })
				single(a, "the address of a pod of Service "+of.service.String())
			}
		}
	}
	slices.SortFunc(out, func(a, b vip.ReservedRange) int { return a.Prefix.Compare(b.Prefix) })
	return out
}

// sought is the addresses that s asks for, and those that DHCP servers have leased for it.
func sought(s *vip.Service) []netip.Addr {
	if len(s.DHCP.Leases) == 0 {
		return s.Addresses
	}
	return append(slices.Clone(s.Addresses), leasedAddrs(s.DHCP.Leases)...)
}
