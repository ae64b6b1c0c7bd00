package plan

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// recordAfter is how much longer a lease must last to be recorded again, or a quarter of what is left: each is a write.
const recordAfter = time.Minute

// dhcp plans macvlans and DHCPRequests, and gives Services what is leased.
type dhcp struct {
	*draft
	states map[dhcpKey]vip.DHCPState
}

// A dhcpKey identifies a vip.DHCPRequest.
type dhcpKey struct {
	id     string
	family vip.Family
}

// newDHCP indexes the DHCPStates of the World by client and family.
func newDHCP(p *draft) *dhcp {
	d := &dhcp{draft: p, states: make(map[dhcpKey]vip.DHCPState, len(p.DHCPStates))}
	for _, x := range p.DHCPStates {
		d.states[dhcpKey{x.Request.ID, x.Request.Family}] = x
	}
	return d
}

// requestedAddresses returns what s asks for: 0.0.0.0 and :: are leased.
func requestedAddresses(s *service, dhcpMode string) []netip.Addr {
	any4, any6 := vip.IPv4.Unspecified(), vip.IPv6.Unspecified()
	switch {
	case s.Source == vip.SourceStatus && len(s.DHCP.Leases) > 0:
		all := slices.Clone(s.Addresses)
		for i, a := range all {
			if slices.Contains(s.Record.Leased, a) && slices.ContainsFunc(s.DHCP.Leases,
				func(l vip.DHCPLease) bool { return l.Addr == a }) {
				all[i] = vip.FamilyOf(a).Unspecified()
			}
		}
		return all
	case len(s.Addresses) != 1 || s.Addresses[0] != any4:
	case dhcpMode == "ipv6", dhcpMode == "dual" && s.hasFamily(vip.IPv6) && !s.hasFamily(vip.IPv4):
		return []netip.Addr{any6}
	case dhcpMode == "dual" && s.hasFamily(vip.IPv6):
		return []netip.Addr{any4, any6}
	}
	return s.Addresses
}

// assignClients sets clients of services, and adds what is leased.
func (d *dhcp) assignClients(services []*service) {
	clients := d.newClients(services)
	refuseTooMany(clients)
	d.refuseClients(clients)
	for _, s := range services {
		switch {
		case len(s.dhcpFamilies) == 0:
		case s.client.refused != "":
			d.reject(s, vip.DHCPFailed, s.client.refused)
			s.client = nil
		default:
			for _, f := range s.dhcpFamilies {
				d.assignLeased(s, f)
			}
		}
	}
}

// assignLeased adds what is leased in family f, or declines it.
func (d *dhcp) assignLeased(s *service, f vip.Family) {
	l, valid := d.leaseOf(s, f)
	if !l.Addr.IsValid() || !valid && s.lacksEndpoints() { // of which nobody renews it
		s.verdict.Addresses = append(s.verdict.Addresses, f.Unspecified())
		return
	}
	s.verdict.Addresses = append(s.verdict.Addresses, l.Addr)
	for _, a := range s.DHCP.Requested {
		if vip.FamilyOf(a) == f && a != l.Addr && d.recordedLease(s, f).Addr == l.Addr { // it was written since
			d.addEventIfResponsible(s, vip.InvalidField, fmt.Sprintf("kube-vip.io/requestedIP names %s, but an address is "+
				"asked for only while none is leased, and %s is; to have another, reserve it on the DHCP server for the MAC %s",
				a, l.Addr, s.client.mac))
		}
	}
	if why := cmp.Or(d.whyRefused(s, l.Addr), d.whyNotOfLink(s, l.Addr)); why != "" {
		s.client.declined[f] = why
		d.addEventIfResponsible(s, vip.AddressRefused,
			"a DHCP server has leased an address that a Service may not take: "+why)
		return
	}
	if !s.hasAddress(l.Addr) { // one that s may have by name as well is not bound to the macvlan
		s.addrs = append(s.addrs, address{Address: vip.Address{Addr: l.Addr}, client: s.client, expired: !valid})
	}
}

// whyNotOfLink returns why leased a is of neither networks nor pools, or "".
func (d *dhcp) whyNotOfLink(s *service, a netip.Addr) string {
	if _, here := d.states[dhcpKey{s.client.id, vip.FamilyOf(a)}]; !here || d.self == nil || d.offers == nil ||
		d.offers.whyNot(s.Key.Namespace, a) == "" {
		return ""
	}
	link := d.self.Info.LinkFor(s.client.oldest.Interface)
	l := linkNamed(&d.self.Info, link)
	if l == nil {
		return ""
	}
	// whoever answers there could choose an address of others
	networks := slices.DeleteFunc(slices.Clone(l.Networks()), func(p netip.Prefix) bool {
		return p.Addr().Is4() != a.Is4() || p.Addr().IsLinkLocalUnicast() || p.IsSingleIP()
	})
	if len(networks) == 0 || slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return ""
	}
	return fmt.Sprintf("%s is in none of the networks that node %s has on %s, where the server was asked, and of no "+
		"pool that is offered to the namespace %s", a, d.Self, link, s.Key.Namespace)
}

// recordedLease returns the annotated lease that the Record confirms, or zero.
func (d *dhcp) recordedLease(s *service, f vip.Family) vip.DHCPLease {
	for _, x := range []*service{s, s.client.oldest} {
		for _, l := range x.DHCP.Leases {
			if x.statusOurs && x.statusHas(l.Addr) && vip.FamilyOf(l.Addr) == f && l.MAC == s.client.mac &&
				s.client.hasLeased(x, l.Addr) {
				return l
			}
		}
	}
	return vip.DHCPLease{}
}

// leaseOf returns the lease of s, maybe of another node.
func (d *dhcp) leaseOf(s *service, f vip.Family) (l vip.DHCPLease, valid bool) {
	if x, ok := d.states[dhcpKey{s.client.id, f}]; ok && x.Request.MAC == s.client.mac {
		return x.Lease, x.Lease.Valid(d.Now)
	}
	l = d.recordedLease(s, f)
	return l, l.Valid(d.Now)
}

func (d *dhcp) hasMacvlan(s *service) bool {
	return slices.ContainsFunc(d.Macvlans, func(x vip.Macvlan) bool {
		return x.Name == s.client.link && x.MAC == s.client.mac
	})
}

// requestClient adds the macvlan of c, and a DHCPRequest for each family.
func (d *dhcp) requestClient(c *dhcpClient) {
	s := c.oldest
	filter := 2
	if s.DHCP.RPFilter != "" {
		filter = int(s.DHCP.RPFilter[0] - '0')
	}
	parent := d.self.Info.LinkFor(s.Interface)
	d.out.Macvlans = append(d.out.Macvlans, vip.Macvlan{
		Name: c.link, Parent: parent, MAC: c.mac, RPFilter: filter, IPv6: slices.Contains(c.families, vip.IPv6),
	})
	if filter == 1 || filter == 0 && d.StrictRPFilter {
		d.addEvent(s, vip.InvalidField,
			fmt.Sprintf("kube-vip.io/rp_filter is %q, and net.ipv4.conf.all.rp_filter of node %s is 1 at least with "+
				"it: what clients send to the VIP is dropped, since answers leave by %s; remove the annotation",
				s.DHCP.RPFilter, d.Self, parent), 0)
	}
	if d.MacvlanErrors[c.link] != "" { // missingLeases says so
		return
	}
	for _, f := range c.families {
		r := vip.DHCPRequest{
			ID: c.id, Family: f, Link: c.link, Parent: parent, MAC: c.mac, DUID: c.duid(), Hostname: c.hostname,
			IAID: binary.BigEndian.Uint32(c.sum[10:]), Broadcast: s.DHCP.Broadcast, LastLease: d.recordedLease(s, f),
		}
		for _, a := range s.DHCP.Requested {
			if vip.FamilyOf(a) == f && a.IsGlobalUnicast() {
				r.Requested = a
			}
		}
		if why := c.declined[f]; why != "" {
			r.Declined, r.DeclinedWhy = d.states[dhcpKey{c.id, f}].Lease.Addr, why
		}
		d.out.DHCPRequests = append(d.out.DHCPRequests, r)
	}
}

// missingLeases returns how many leases s lacks; undecided while some are unanswered.
func (d *dhcp) missingLeases(s *service) (missing int, problems []string, undecided bool) {
	for _, f := range s.dhcpFamilies {
		if why := d.MacvlanErrors[s.client.link]; why != "" {
			return len(s.dhcpFamilies), []string{"it can't have the interface " + s.client.link + ": " + why}, false
		}
		x, ok := d.states[dhcpKey{s.client.id, f}]
		if x.Problem != "" {
			problems = append(problems, x.Problem)
		}
		if l, valid := d.leaseOf(s, f); !valid || s.client.declined[f] != "" {
			missing++
			undecided = undecided || !ok || !x.Lost && x.Problem == "" && l.Addr == netip.Addr{}
		}
	}
	return missing, problems, undecided
}

// leasesToRecord returns the valid leases in ingress; little longer ones as recorded.
func (d *dhcp) leasesToRecord(s *service, ingress []vip.Ingress) (list []vip.DHCPLease) {
	for _, f := range s.dhcpFamilies {
		l, valid := d.leaseOf(s, f)
		if !valid || !slices.ContainsFunc(ingress, func(i vip.Ingress) bool { return i.Addr == l.Addr }) {
			continue
		}
		l.Expires, l.Renews, l.Rebinds = l.Expires.UTC().Truncate(time.Second), time.Time{}, time.Time{}
		was := d.recordedLease(s, f)
		longer := l.Expires.Sub(was.Expires)
		if was.Addr == l.Addr && was.Server == l.Server && was.Bits == l.Bits && was.Router == l.Router &&
			was.Expires.IsZero() == l.Expires.IsZero() && longer >= 0 && longer < min(recordAfter, l.Expires.Sub(d.Now)/4) &&
			slices.Contains(s.DHCP.Leases, was) {
			l = was
		}
		list = append(list, l)
	}
	return list
}

// releaseUnrequested has this node's clients that nobody asks for give back what they have, or are just given.
func (d *dhcp) releaseUnrequested(all []*service) {
	if !d.Tenure.Holds(d.Now) || d.Stopping {
		return
	}
	requested := make(map[dhcpKey]bool)
	for _, s := range all {
		for _, f := range s.dhcpFamilies {
			requested[dhcpKey{clientID(s.Service), f}] = true
		}
	}
	for _, x := range d.DHCPStates {
		ofRequest := func(l vip.Macvlan) bool { return l.Name == x.Request.Link }
		i := slices.IndexFunc(d.Macvlans, ofRequest)
		if requested[dhcpKey{x.Request.ID, x.Request.Family}] || i < 0 {
			continue
		}
		if !slices.ContainsFunc(d.out.Macvlans, ofRequest) {
			d.out.Macvlans = append(d.out.Macvlans, d.Macvlans[i])
		}
		r := x.Request
		used := func(a vip.Address) bool { return a.Addr == x.Lease.Addr && a.Link == r.Link } // while its ports are closed
		r.Release, r.Declined, r.DeclinedWhy = !slices.ContainsFunc(d.out.Addresses, used), netip.Addr{}, ""
		d.out.DHCPRequests = append(d.out.DHCPRequests, r)
	}
}
