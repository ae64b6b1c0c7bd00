package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// Allocation is what the plan must know to have pools give addresses.
type Allocation struct {
	Lease    vip.Key // whose holder gives them
	Provider vip.Key // the lease of kube-vip's cloud provider: while that renews it, it serves the ConfigMap
}

// planPools adds the PoolInput; all nodes see which addresses are released, one gives them.
func (f *admission) planPools() {
	if f.Allocation == nil {
		return
	}
	in := vip.PoolInput{Now: f.Now, Source: f.Pools}
	if in.Source != nil && !in.Source.Gone {
		in.Requests, in.Allocate = f.addressRequests(), f.intendPoolsLease() && f.providerHolder() == ""
	}
	if in.Allocate {
		in.DHCPMode, in.Reserved, in.InUse = f.DHCPMode, f.reserved.all(), f.addressesInUse()
		f.reportPools()
	}
	f.out.Pools = []vip.PoolInput{in}
}

func (f *admission) addressRequests() []vip.AddressRequest {
	all := make([]vip.AddressRequest, 0, len(f.all))
	for _, s := range f.all {
		if !s.LoadBalancer || s.Key == ControlPlaneKey {
			continue
		}
		reason, _ := f.whyNotOurs(s.Service)
		foreign := reason != "" || s.Source != "" && len(s.Addresses) == 0 || f.keepsAnother(s.Service)
		q := vip.AddressRequest{Service: s.Service, Foreign: foreign, Lost: s.lost}
		if released := f.released(s.Service); len(released) > 0 && !foreign {
			for _, a := range released {
				q.Lost = append(q.Lost, vip.LostAddress{Addr: a})
			}
		} else if len(f.unofferedOf(s.Service)) > 0 {
			q.Foreign, q.Refused = true, true
		}
		all = append(all, q)
	}
	return all
}

// dropLeftovers takes from Services status addresses that none can have, such as of k3s's ServiceLB.
func (f *admission) dropLeftovers() {
	cloned := false
	for i := range f.Services {
		s := &f.Services[i]
		if s.Source != vip.SourceStatus || f.wroteStatus(s) || !slices.ContainsFunc(s.Addresses,
			func(a netip.Addr) bool { return f.isLeftover(s, a) }) {
			continue
		}
		if !cloned {
			f.Services, cloned = slices.Clone(f.Services), true
			s = &f.Services[i]
		}
		s.Addresses = slices.DeleteFunc(slices.Clone(s.Addresses), func(a netip.Addr) bool {
			return f.isLeftover(s, a)
		})
		if len(s.Addresses) == 0 {
			s.Source = ""
		}
	}
}

func (p *facts) isLeftover(s *vip.Service, a netip.Addr) bool {
	return p.whyRefused(&service{Service: s}, a) != ""
}

// keepsAnother reports whether another program's status names an unrequested address.
func (p *facts) keepsAnother(s *vip.Service) bool {
	return !p.wroteStatus(s) && slices.ContainsFunc(s.StatusVIPs(), func(a netip.Addr) bool {
		return !slices.Contains(s.Addresses, a) && !slices.ContainsFunc(s.Addresses, netip.Addr.IsUnspecified) &&
			!p.isLeftover(s, a)
	})
}

// addressesInUse probes given addresses, and returns what hosts have (docs/why.md, "Address checks").
func (f *admission) addressesInUse() (inUse []netip.Addr) {
	if !f.ProbeNew {
		return nil
	}
	for _, s := range f.all {
		if s.Allocated == "" || !s.bindsAddresses {
			continue
		}
		for _, a := range s.Record.InUse { // its owner may be on a link that this node is not on
			if s.IsGiven(a) && !s.statusHas(a) {
				inUse = append(inUse, a)
			}
		}
		for _, a := range s.addrs {
			link, _ := linkFor(&f.self.Info, s.Interface, a.Addr)
			x := vip.Address{Addr: a.Addr, Link: link}
			if !s.IsGiven(a.Addr) || s.statusHas(a.Addr) || f.isBound(x) || linkFault(&f.self.Info, link) != "" {
				continue
			}
			if _, others := f.checks.probe(x); len(others) > 0 {
				inUse = append(inUse, a.Addr)
			}
		}
	}
	slices.SortFunc(inUse, netip.Addr.Compare)
	return slices.Compact(inUse)
}

// givesAddresses reports whether a Herald gives addresses, not the provider.
func (p *facts) givesAddresses() bool {
	return p.Allocation != nil && p.Pools != nil && !p.Pools.Gone && p.providerHolder() == ""
}

// providerHolder is who renews the lease of kube-vip's cloud provider, or "".
func (p *facts) providerHolder() string {
	if c := p.Claims[p.Allocation.Provider]; c.Valid {
		return c.Holder
	}
	return ""
}

// intendPoolsLease plans the owner of pools, and reports whether this node is it.
func (f *admission) intendPoolsLease() bool {
	c := f.Claims[f.Allocation.Lease]
	if !c.Valid {
		c.Holder = ""
	}
	if f.self == nil || c.Holder != "" && c.Holder != f.Self {
		return false
	}
	owner, holds := vip.Owner{Unit: f.Allocation.Lease, Node: f.Self}, c.Holder == f.Self
	if !holds || !f.mayAllocate(f.self) {
		best := f.bestAllocator()
		if best == nil {
			return false
		}
		owner.Node = best.Name
	}
	f.out.Owners = append(f.out.Owners, owner)
	return holds && owner.Node == f.Self && f.Tenure.Holds(f.Now) && f.Tenure.RenewalLateSince.IsZero()
}

// bestAllocator returns who is to give addresses, or nil.
func (p *facts) bestAllocator() *member {
	key := hashKey(p.Allocation.Lease)
	well := func(n *member) bool { return p.mayAllocate(n) && !n.Stalled && !n.shuttingDown }
	return cmp.Or(chosen(key, p.alive, "", well), chosen(key, p.alive, "", p.mayAllocate))
}

// mayAllocate reports whether n is to give addresses: of the pools that this node reads, to the Services of most.
func (p *facts) mayAllocate(n *member) bool {
	mine, its := p.self.Info.Options, n.Info.Options
	return n.refusal == "" && n.caresForServices && (mine == nil || its == nil || its.Pools == mine.Pools)
}

// reportPools reports Assignments, waiting Services, and faults of the ConfigMap.
func (f *admission) reportPools() {
	lacking := make(map[string]*service) // an address, by UID
	for _, s := range f.all {
		if len(s.Addresses) == 0 {
			lacking[s.UID] = s
		}
	}
	for _, a := range f.Assignments {
		reason, message, waits := vip.AddressAllocated, a.Reason, ""
		if len(a.Addresses) == 0 {
			waits = a.Reason
		} else {
			f.out.Assignments = append(f.out.Assignments, a)
			waits = f.AssignmentRefusals[a.Service]
		}
		if waits != "" {
			reason, message = vip.NoPoolAddress, "it waits for an address: "+waits
			if s := lacking[a.UID]; s != nil {
				s.report(vip.ConditionFalse, vip.NoPoolAddress, message)
			}
		}
		f.addEvent(&service{Service: &vip.Service{Key: a.Service, UID: a.UID}}, reason, message, 0)
	}
	for i := range f.Services {
		if s := &f.Services[i]; s.Superseded && s.LoadBalancer {
			f.out.Assignments = append(f.out.Assignments, vip.Assignment{Service: s.Key, UID: s.UID, Had: s.Addresses,
				HadPool: s.Allocated, Remove: true})
		}
	}
	for _, s := range f.all {
		if all := f.outsidePools(s); len(all) > 0 {
			f.addEvent(s, vip.AddressOutsidePools, outsideMessage(vip.JoinAddrs(all, ", "), s.Allocated), 0)
		}
	}
	for _, x := range f.PoolProblems {
		f.out.Events = append(f.out.Events, vip.Event{
			Service: f.Pools.ConfigMap, Kind: "ConfigMap", UID: f.Pools.UID, Warning: true,
			Reason: vip.PoolProblemFound, Message: x.String(),
		})
	}
}

func (f *admission) whyNoAddress(s *service) string {
	text := "it names no address"
	if vips := s.StatusVIPs(); len(vips) > 0 && !s.statusOurs {
		text += fmt.Sprintf(" (what another program has left in its status, %s, can't be that of a Service)", vips[0])
	}
	switch {
	case f.Allocation == nil || f.Pools == nil || f.Pools.Gone:
		return text + "; set the annotation kube-vip.io/loadbalancerIPs or spec.loadBalancerIP, by hand or by an " +
			"address allocator"
	case f.providerHolder() != "":
		return fmt.Sprintf("%s yet; kube-vip's cloud provider (%s), which renews the lease %s, is to give it one",
			text, f.providerHolder(), f.Allocation.Provider)
	}
	pools := cmp.Or(strings.Join(s.Pools, ","), "the pools of ConfigMap "+f.Pools.ConfigMap.String())
	return fmt.Sprintf("%s yet; it is to be given one of %s", text, pools)
}

// Reserved returns what no Service may have, as far as w shows it.
func Reserved(r Rules, w *vip.World) []vip.ReservedRange { return newReservedAddresses(&r, w).all() }

// all returns what no Service may have, without what EndpointSlices alone say.
func (r *reservedAddresses) all() []vip.ReservedRange {
	out := slices.DeleteFunc(slices.Clone(r.ranges), func(x vip.ReservedRange) bool { return x.FromSlice })
	for _, m := range []map[netip.Addr]description{r.nodes, r.kubelets, r.programs, r.routers, r.subnets} {
		for a, what := range m {
			out = append(out, vip.ReservedRange{Prefix: netip.PrefixFrom(a, a.BitLen()), Description: what.String()})
		}
	}
	return out
}
