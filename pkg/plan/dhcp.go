package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// sourceStatus is vip.Service.Source if nothing but the status names an address.
	sourceStatus = "status.loadBalancer.ingress"
	// recordAfter is how much longer than recorded a lease must last before that is recorded: a short one would
	// otherwise be written every few seconds.
	recordAfter = time.Minute
)

// dhcp plans which addresses DHCP servers are asked for.
type dhcp struct {
	*pass
	states map[dhcpKey]vip.DHCPState
}

// A dhcpKey identifies a vip.DHCPRequest.
type dhcpKey struct {
	id     string
	family vip.Family
}

// A dhcpClient is a client of DHCP servers: for a Service, or for all Services of a namespace that name the
// same macvlan. All that a server knows it by is a function of the Service, so whichever node owns that goes on
// with its leases (decision 0030).
type dhcpClient struct {
	id       string
	sum      [sha256.Size]byte // of id
	oldest   *service          // whose annotations count
	link     string            // the macvlan
	mac      string
	families []vip.Family
	declined map[vip.Family]string // why what is leased can't be used
}

func newDHCP(p *pass) *dhcp {
	d := &dhcp{p, make(map[dhcpKey]vip.DHCPState, len(p.DHCPStates))}
	for _, x := range p.DHCPStates {
		d.states[dhcpKey{x.Request.ID, x.Request.Family}] = x
	}
	return d
}

// requestedAddresses are the addresses that s asks for. 0.0.0.0 and :: ask for one by DHCP: dhcp_mode says for
// which families 0.0.0.0 alone stands, and an address that only the status names because it was leased is asked
// for so again.
func requestedAddresses(s *service, dhcpMode string) []netip.Addr {
	any4, any6 := vip.IPv4.Unspecified(), vip.IPv6.Unspecified()
	switch {
	case s.Source == sourceStatus && len(s.DHCP.Leases) > 0:
		all := slices.Clone(s.Addresses)
		for i, a := range all {
			if slices.ContainsFunc(s.DHCP.Leases, func(l vip.DHCPLease) bool { return l.Addr == a }) {
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

// clientID is the ID of the DHCP client of s.
func clientID(s *vip.Service) string {
	if s.DHCP.Macvlan != "" {
		return "macvlan " + s.Key.Namespace + "/" + s.DHCP.Macvlan
	}
	return s.UID
}

// assignClients gives every Service that asks for addresses by DHCP its client, and the addresses that are
// leased. A Service whose client would have the macvlan or the MAC of that of an older one is rejected.
// services are sorted, oldest first.
func (d *dhcp) assignClients(services []*service) {
	clients, byLink, byMAC := make(map[string]*dhcpClient), make(map[string]*dhcpClient), make(map[string]*dhcpClient)
	for _, s := range services {
		if len(s.dhcpFamilies) == 0 {
			continue
		}
		id := clientID(s.Service)
		c := clients[id]
		if c == nil {
			c = newDHCPClient(id, s)
			if o := byLink[c.link]; o != nil {
				d.reject(s, vip.DHCPFailed, fmt.Sprintf("the interface %s (kube-vip.io/macvlanName) is that of Service %s, which is older and of another namespace", c.link, o.oldest.Key))
				continue
			}
			if o := byMAC[c.mac]; o != nil {
				d.reject(s, vip.DHCPFailed, fmt.Sprintf("the hardware address %s (kube-vip.io/hwaddr) is that of Service %s, which is older", c.mac, o.oldest.Key))
				continue
			}
			clients[id], byLink[c.link], byMAC[c.mac] = c, c, c
		}
		s.client = c
		for _, f := range s.dhcpFamilies {
			if !slices.Contains(c.families, f) {
				c.families = append(c.families, f)
			}
			d.assignLeased(s, f)
		}
	}
}

// assignLeased adds the address of a family that is leased for s, if one is and s may have it, to s.addrs. One
// that it may not have is declined.
func (d *dhcp) assignLeased(s *service, f vip.Family) {
	l, _ := d.leaseOf(s, f)
	if !l.Addr.IsValid() {
		s.verdict.Addresses = append(s.verdict.Addresses, f.Unspecified())
		return
	}
	s.verdict.Addresses = append(s.verdict.Addresses, l.Addr)
	if why := d.reserved.refuse(s, l.Addr); why != "" {
		s.client.declined[f] = why
		d.eventIfResponsible(s, vip.AddressRefused, "a DHCP server has leased an address that a Service may not take: "+why)
		return
	}
	a := address{vip.Address{Addr: l.Addr, Bits: l.Bits}, s.client}
	if slices.Contains(s.Addresses, l.Addr) && s.Source != sourceStatus {
		a.client = nil // one that s asks for by name as well is that first: it is not bound to the macvlan
	}
	s.addrs = append(s.addrs, a)
}

// newDHCPClient makes a client: its macvlan and its MAC are a function of its ID, unless the annotations of the
// oldest Service name them.
func newDHCPClient(id string, s *service) *dhcpClient {
	sum := sha256.Sum256([]byte(id))
	c := &dhcpClient{id: id, sum: sum, oldest: s, link: s.DHCP.Macvlan, mac: s.DHCP.MAC, declined: make(map[vip.Family]string)}
	if c.link == "" {
		c.link = "herald-" + hex.EncodeToString(sum[:4])
	}
	if c.mac == "" {
		mac := slices.Clone(sum[4:10])
		mac[0] = mac[0]&0xfc | 2 // unicast, locally administered
		c.mac = fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
	}
	return c
}

// duid is the DHCP Unique Identifier, in hexadecimal: DUID-LL of the MAC if somebody chose that, else DUID-UUID
// (RFC 8415 sections 11.4 and 11.5).
func (c *dhcpClient) duid() string {
	if mac := c.oldest.DHCP.MAC; mac != "" {
		return "00030001" + strings.ReplaceAll(mac, ":", "")
	}
	uuid := strings.ReplaceAll(c.id, "-", "")
	if b, err := hex.DecodeString(uuid); err != nil || len(b) != 16 {
		uuid = hex.EncodeToString(c.sum[16:])
	}
	return "0004" + strings.ToLower(uuid)
}

// recordedLease is what the status of s, or of the oldest Service with its client, records as leased to that;
// the zero value if nothing is.
func (d *dhcp) recordedLease(s *service, f vip.Family) vip.DHCPLease {
	for _, x := range []*service{s, s.client.oldest} {
		for _, l := range x.DHCP.Leases {
			if x.statusBy != "" && x.inStatus(l.Addr) && vip.FamilyOf(l.Addr) == f && l.MAC == s.client.mac {
				return l
			}
		}
	}
	return vip.DHCPLease{}
}

// leaseOf is what is leased for s, and whether that is valid now. It is what this node's client has, or,
// without one, what is recorded: the owner of a moment ago may have been another process, or another node.
func (d *dhcp) leaseOf(s *service, f vip.Family) (l vip.DHCPLease, valid bool) {
	if x, ok := d.states[dhcpKey{s.client.id, f}]; ok && x.Request.MAC == s.client.mac {
		return x.Lease, x.Lease.Valid(d.Now)
	}
	l = d.recordedLease(s, f)
	return l, l.Valid(d.Now)
}

// usable reports whether a leased address of s may be bound now: the lease is valid, and the macvlan is there.
func (d *dhcp) usable(s *service, a netip.Addr) bool {
	_, valid := d.leaseOf(s, vip.FamilyOf(a))
	return valid && slices.ContainsFunc(d.Macvlans, func(x vip.Macvlan) bool { return x.Name == s.client.link && x.MAC == s.client.mac })
}

// request adds the macvlans and the DHCPRequests of a unit that this node has to the Plan.
func (d *dhcp) request(u *unit) {
	var done []*dhcpClient
	for _, s := range u.services {
		if s.client != nil && !slices.Contains(done, s.client) {
			done = append(done, s.client)
			d.requestClient(s.client)
		}
	}
}

// requestClient adds the macvlan of a client and a DHCPRequest for each of its families; the latter not while
// the kernel can't have the macvlan, which an Event tells.
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
		d.event(s, vip.InvalidField, fmt.Sprintf("kube-vip.io/rp_filter is %q, and net.ipv4.conf.all.rp_filter of node %s is 1 at least with it: what clients send to the VIP is dropped, since answers leave by %s; remove the annotation",
			s.DHCP.RPFilter, d.Self, parent), 0)
	}
	if why := d.MacvlanErrors[c.link]; why != "" {
		d.event(s, vip.DHCPFailed, fmt.Sprintf("node %s can't have the interface %s: %s", d.Self, c.link, why), 0)
		return
	}
	for _, f := range c.families {
		r := vip.DHCPRequest{
			ID: c.id, Family: f, Link: c.link, MAC: c.mac, DUID: c.duid(), IAID: binary.BigEndian.Uint32(c.sum[10:]),
			Hostname: s.DHCP.Hostname, Broadcast: s.DHCP.Broadcast, LastLease: d.recordedLease(s, f),
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

// missingLeases is how many addresses of s are not leased, or not usable, what the DHCP clients say is wrong,
// and whether one of them has yet to find out: it has neither a lease nor a problem.
func (d *dhcp) missingLeases(s *service) (missingLeases int, problems []string, undecided bool) {
	for _, f := range s.dhcpFamilies {
		x, ok := d.states[dhcpKey{s.client.id, f}]
		if x.Problem != "" {
			problems = append(problems, x.Problem)
		}
		if l, valid := d.leaseOf(s, f); !valid || s.client.declined[f] != "" {
			missingLeases++
			undecided = undecided || !ok || !x.Lost && x.Problem == "" && l.Addr == netip.Addr{}
		}
	}
	return missingLeases, problems, undecided
}

// leasesToRecord are the leases of s whose addresses are in ingress, as the status is to have them.
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
			was.Expires.IsZero() == l.Expires.IsZero() && longer >= 0 && longer < recordAfter && slices.Contains(s.DHCP.Leases, was) {
			l = was
		}
		list = append(list, l)
	}
	return list
}

// release has leases released that no Service asks for any more: it was deleted, is not ours, or has other
// addresses. A lease whose Service merely has no endpoints, or is another node's, is left to the next owner.
// Nothing is released while this process stops, or without a valid tenure.
func (d *dhcp) release(all []*service) {
	if !d.Tenure.Holds(d.Now) || d.Stopping {
		return
	}
	requested := make(map[string]bool)
	for _, s := range all {
		if len(s.dhcpFamilies) > 0 {
			requested[clientID(s.Service)] = true
		}
	}
	for _, x := range d.DHCPStates {
		ofRequest := func(l vip.Macvlan) bool { return l.Name == x.Request.Link }
		i := slices.IndexFunc(d.Macvlans, ofRequest)
		if requested[x.Request.ID] || !x.Lease.Addr.IsValid() || i < 0 {
			continue
		}
		if !slices.ContainsFunc(d.out.Macvlans, ofRequest) {
			d.out.Macvlans = append(d.out.Macvlans, d.Macvlans[i])
		}
		r := x.Request
		r.Release, r.Declined, r.DeclinedWhy = true, netip.Addr{}, ""
		d.out.DHCPRequests = append(d.out.DHCPRequests, r)
	}
}
