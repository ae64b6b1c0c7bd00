package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// newServiceAge is when users hear of missing endpoints, which come after the Service.
	newServiceAge = 3 * time.Second
	// oldServiceAge is when no endpoints are expected to come soon.
	oldServiceAge = 30 * time.Second
)

// An admission is the first stage: Services that may have an address, and their units.
type admission struct {
	*draft
	dhcp   *dhcp
	checks *addressChecks

	all              []*service // every Service of type LoadBalancer, and those whose status Herald wrote
	accepted         []*service // with an address and an endpoint: oldest first
	withoutEndpoints []*service // with an address that a status may name, and no endpoint: oldest first
	withdrawn        []*service // no longer Herald's to announce, with a status or a finalizer that it has to clear
	units            []*unit    // of accepted
}

// admit is the first stage.
func admit(f *facts) *admission {
	d := &draft{facts: f, wanted: make(map[netip.Addr]bool, len(f.Bound))}
	a := &admission{draft: d, dhcp: newDHCP(d), checks: newAddressChecks(d)}
	a.dropLeftovers()
	a.findServices()
	a.planPools()
	a.units = d.groupIntoUnits(a.accepted)
	return a
}

// findServices sorts the Services of the World, and gives others a verdict.
func (f *admission) findServices() {
	f.all = make([]*service, 0, len(f.Services))
	f.accepted = make([]*service, 0, len(f.Services))
	backing := make([]service, len(f.Services))
	for i := range f.Services {
		s := &backing[i]
		s.Service = &f.Services[i]
		s.Interface, s.Announce = s.Service.Interface, s.Service.Announce
		if s.statusOurs = f.wroteStatus(s.Service); s.statusOurs {
			s.statusBy = s.VIPHost
		}
		if !s.LoadBalancer && !s.statusOurs && len(s.Conditions) == 0 {
			continue
		}
		s.verdict.Service = s.Key
		f.all = append(f.all, s)
		f.admitService(s, i == 0 && f.ControlPlane != nil)
		if !s.hasVerdict() {
			f.accepted = append(f.accepted, s)
		}
	}
	slices.SortFunc(f.accepted, byAge)
	f.dhcp.assignClients(f.accepted)
	f.accepted = slices.DeleteFunc(f.accepted, (*service).hasVerdict)
	f.dropConflicts()
	f.accepted = slices.DeleteFunc(f.accepted, (*service).hasVerdict)
	f.setAsideWithoutEndpoints()
}

// wroteStatus reports whether this installation's Herald wrote the status.
func (p *facts) wroteStatus(s *vip.Service) bool {
	return s.Announcer == p.Announcer && (s.VIPHost != "" || s.Announcer != "")
}

// lacksEndpoints reports whether s is nowhere for want of an endpoint (docs/why.md, "Endpoints").
func (s *service) lacksEndpoints() bool {
	return !s.Endpoints.Any() && (s.Local || !s.AllowWithoutEndpoints)
}

// setAsideWithoutEndpoints drops Services without endpoints, and rejects those no status names.
func (f *admission) setAsideWithoutEndpoints() {
	f.accepted = slices.DeleteFunc(f.accepted, func(s *service) bool {
		switch {
		case !s.lacksEndpoints():
			return false
		case !s.hasStatus: // nothing else would tell of it
			f.reject(s, vip.NoEligibleNode, s.noEndpoints)
		case len(s.addrs) == 0:
			f.reject(s, vip.NoEndpoints, s.noEndpoints)
		default:
			f.withoutEndpoints = append(f.withoutEndpoints, s)
		}
		return true
	})
}

func byAge(a, b *service) int { return vip.CompareAge(a.Service, b.Service) }

// admitService sets capabilities, addresses and lease of s, or rejects it.
func (f *admission) admitService(s *service, controlPlane bool) {
	if reason, message := f.whyNotOurs(s.Service); reason != "" && !controlPlane {
		s.notOurs = s.LoadBalancer && !s.statusOurs && len(s.Ingress) > 0 && reason != vip.ServiceDeleted
		f.withdraw(s, reason, message)
		return
	}
	for _, text := range s.Invalid {
		f.addEventIfResponsible(s, vip.InvalidField, text)
	}
	if len(s.Addresses) == 0 && s.Source == "" {
		if f.givesAddresses() { // who does tells of it
			f.rejectSilently(s, vip.NoAddress, f.whyNoAddress(s))
		} else {
			f.reject(s, vip.NoAddress, f.whyNoAddress(s))
		}
		return
	}
	pool := ""
	if !controlPlane {
		pool = f.setMethods(s)
	}
	s.capabilities = f.capabilitiesOf(s.Service, s.Announce, controlPlane)
	switch {
	// the Events about invalid fields are enough
	case len(s.Addresses) == 0, !s.hasMethod() && s.Announce != nil && len(s.Announce) == 0:
		f.rejectSilently(s, vip.InvalidField, strings.Join(s.Invalid, " "))
		return
	case !s.hasMethod() && pool != "":
		f.reject(s, vip.InvalidField, fmt.Sprintf("pool %s (pool-%s.announce), of which %s is, is announced by %v, which is "+
			"not enabled (vip_arp, bgp_enable, vip_routingtable); ask the operator", pool, pool, s.Addresses[0], s.Announce))
		return
	case !s.hasMethod():
		f.reject(s, vip.InvalidField, fmt.Sprintf("heraldvip.io/announce asks for %v, which is not enabled (vip_arp, "+
			"bgp_enable, vip_routingtable)", s.Announce))
		return
	case f.ControlPlane != nil && !controlPlane && s.leaseFollows && s.lease == f.ControlPlane.Lease:
		f.reject(s, vip.InvalidField, fmt.Sprintf("kube-vip.io/leaseName names the lease of the control plane's VIP "+
			"(%s); write another", s.lease))
		return
	}
	s.verdict.Lease = s.lease
	if refused := f.admitAddresses(s); len(s.addrs)+len(s.dhcpFamilies) == 0 {
		f.reject(s, vip.AddressRefused, strings.Join(refused, "; "))
	} else if len(refused) > 0 {
		f.addEventIfResponsible(s, vip.AddressRefused, strings.Join(refused, "; "))
	}
}

// whyNotOurs returns why s is not this Herald's, or no longer; "" if it is.
func (p *facts) whyNotOurs(s *vip.Service) (reason vip.Reason, message string) {
	switch {
	case !p.Enabled:
		return vip.Ignored, "svc_enable is false"
	case !s.LoadBalancer:
		return vip.NotLoadBalancer, "spec.type is not LoadBalancer"
	case s.Ignore:
		return vip.Ignored, `the annotation kube-vip.io/ignore is "true"`
	case p.self != nil && p.self.exclusion == otherOptionsExclusion && !p.hasOrGives(s):
		return vip.OtherClass, "node " + p.Self + " announces nothing: " + otherOptionsExclusion
	case p.Serve(s) && !s.Deleted.IsZero():
		return vip.ServiceDeleted, "the Service is being deleted"
	case p.Serve(s):
		return "", ""
	case s.HasClass:
		return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is %q, this Herald serves %q", s.Class, p.Class)
	case p.ClassStrict:
		return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is not set, this Herald serves only %q "+
			"(lb_class_legacy_handling is false)", p.Class)
	}
	return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is not set, this Herald serves only %q (lb_class_only "+
		"is true)", p.Class)
}

// hasOrGives reports whether this node owns the lease of s, or hands it over.
func (p *facts) hasOrGives(s *vip.Service) bool {
	k := p.capabilitiesOf(s, nil, false).lease
	_, gives := p.HandingOver[k]
	return gives || p.Claims[k].Valid && p.Claims[k].Holder == p.Self
}

// admitAddresses sets addrs, dhcpFamilies and Interface of s, and returns sentences.
func (f *admission) admitAddresses(s *service) (refused []string) {
	var unwanted []string
	s.addrs = make([]address, 0, len(s.Addresses))
	for _, a := range requestedAddresses(s, f.DHCPMode) {
		family, why := vip.FamilyOf(a), ""
		switch {
		case !a.IsUnspecified():
			if why = f.whyRefused(s, a); why != "" && s.IsGiven(a) && s.hasFamily(family) {
				s.lost = append(s.lost, vip.LostAddress{Addr: a, Why: why}) // the pools have another
			}
		case s.noDHCP != "":
			why = fmt.Sprintf("%s asks for an address by DHCP, which %s", a, s.noDHCP)
		case f.whyMacvlanRefused(s.DHCP.Macvlan) != "":
			why = fmt.Sprintf("%s asks for an address by DHCP, but %s", a, f.whyMacvlanRefused(s.DHCP.Macvlan))
		case !s.hasFamily(family):
			why = fmt.Sprintf("%s asks for an %s address, but spec.ipFamilies has no %s", a, family, family)
		}
		if why == "" {
			why = f.judgeOffer(s, a)
		}
		switch {
		case why != "" && s.IsGiven(a) && !s.hasFamily(family): // the node that gives addresses takes it off s
			unwanted = append(unwanted, why)
		case why != "":
			refused = append(refused, why)
		case a.IsUnspecified():
			s.dhcpFamilies = append(s.dhcpFamilies, family)
		default:
			s.addrs = append(s.addrs, address{Address: vip.Address{Addr: a}})
			s.verdict.Addresses = append(s.verdict.Addresses, a)
		}
	}
	// else the node that gives addresses says why it gives none; beside what only the status names it never does
	if lacks := s.Lacks(); len(lacks) > 0 && (!f.givesAddresses() || s.Source == vip.SourceStatus) {
		f.addEventIfResponsible(s, vip.FamilyMissing,
			fmt.Sprintf("spec.ipFamilyPolicy is RequireDualStack, and the Service has no %s address: name one beside "+
				"%s, by the annotation kube-vip.io/loadbalancerIPs, or ask the operator for a pool that has some",
				lacks[0], s.Addresses[0]))
	}
	f.setInterface(s)
	if len(s.addrs)+len(s.dhcpFamilies) == 0 {
		refused = append(refused, unwanted...)
	}
	return refused
}
