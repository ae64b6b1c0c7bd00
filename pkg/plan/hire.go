package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A tenant is who leases addresses from DHCP servers: a Service, or all Services of a
// namespace that name the same macvlan. All that a server knows it by is a function
// of the Service, so whichever node has it goes on with its leases.
type tenant struct {
	id       string
	first    *service // the oldest, whose annotations count
	link     string   // the macvlan
	mac      string
	families []vip.Family
	declined map[vip.Family]string // leased, but not to be had: why
}

// fromStatus is vip.Service.Source if nothing but the status names an address.
const fromStatus = "status.loadBalancer.ingress"

// asks is the addresses that s asks for: as it names them, but for dhcp_mode, and
// for what only the status names because a DHCP server has leased it.
func (m *maker) asks(s *vip.Service) []netip.Addr {
	any4, any6 := vip.IPv4.Unspecified(), vip.IPv6.Unspecified()
	has := func(f vip.Family) bool { return len(s.Families) == 0 || slices.Contains(s.Families, f) }
	switch {
	case s.Source == fromStatus && len(s.DHCP.Leases) > 0:
		asks := slices.Clone(s.Addresses)
		for i, a := range asks {
			if slices.ContainsFunc(s.DHCP.Leases, func(k vip.DHCPLease) bool { return k.Addr == a }) {
				asks[i] = vip.FamilyOf(a).Unspecified()
			}
		}
		return asks
	case len(s.Addresses) != 1 || s.Addresses[0] != any4:
	case m.DHCPMode == "ipv6":
		return []netip.Addr{any6}
	case m.DHCPMode == "dual" && has(vip.IPv6) && !has(vip.IPv4):
		return []netip.Addr{any6}
	case m.DHCPMode == "dual" && has(vip.IPv6):
		return []netip.Addr{any4, any6}
	}
	return s.Addresses
}

// tenantID says who leases for s.
func tenantID(s *vip.Service) string {
	if s.DHCP.Macvlan != "" {
		return "macvlan " + s.Key.Namespace + "/" + s.DHCP.Macvlan
	}
	return s.UID
}

// admitHire takes note that s asks for an address of a family by DHCP, or says why it
// may not.
func (m *maker) admitHire(s *service, a netip.Addr) string {
	f := vip.FamilyOf(a)
	switch {
	case s.control:
		return fmt.Sprintf("%s asks for an address by DHCP, which the control plane can't have: the nodes must know it before there is an API server", a)
	case len(s.Families) > 0 && !slices.Contains(s.Families, f):
		return fmt.Sprintf("%s asks for an %s address, but spec.ipFamilies has no %s", a, f, f)
	}
	s.hires = append(s.hires, f)
	return ""
}

// lodge finds out who leases, and what: oldest first. Of two that want one link, or
// one hardware address, the older has it.
func (m *maker) lodge() {
	m.tenants = make(map[string]*tenant)
	links, macs := make(map[string]*tenant), make(map[string]*tenant)
	for _, s := range m.serving {
		if len(s.hires) == 0 {
			continue
		}
		id := tenantID(s.Service)
		t := m.tenants[id]
		if t == nil {
			t = newTenant(id, s)
			clash := ""
			if o := links[t.link]; o != nil {
				clash = fmt.Sprintf("the interface %s (kube-vip.io/macvlanName) is that of Service %s, which is older and of another namespace", t.link, o.first.Key)
			} else if o := macs[t.mac]; o != nil {
				clash = fmt.Sprintf("the hardware address %s (kube-vip.io/hwaddr) is that of Service %s, which is older", t.mac, o.first.Key)
			}
			if clash != "" {
				m.settle(s, vip.DHCPFailed, clash)
				continue
			}
			m.tenants[id], links[t.link], macs[t.mac] = t, t, t
		}
		s.tenant = t
		for _, f := range s.hires {
			if !slices.Contains(t.families, f) {
				t.families = append(t.families, f)
			}
			m.lodged(s, f)
		}
	}
	m.serving = slices.DeleteFunc(m.serving, func(s *service) bool { return s.settled })
}

// lodged gives s the address that is leased for it, if one is.
func (m *maker) lodged(s *service, f vip.Family) {
	k, _ := m.contract(s, f)
	if !k.Addr.IsValid() {
		s.verdict.Addresses = append(s.verdict.Addresses, f.Unspecified())
		return
	}
	s.verdict.Addresses = append(s.verdict.Addresses, k.Addr)
	if why := m.refuse(s, k.Addr); why != "" {
		s.tenant.declined[f] = why
		m.note(s, vip.AddressRefused, "a DHCP server has leased an address that a Service may not take: "+why)
		return
	}
	s.addrs = append(s.addrs, vip.Address{Addr: k.Addr, Bits: k.Bits})
}

// newTenant makes the identity of a tenant: a pure function of its name, unless the
// annotations of the oldest Service say otherwise.
func newTenant(id string, s *service) *tenant {
	sum := sha256.Sum256([]byte(id))
	t := &tenant{id: id, first: s, link: s.DHCP.Macvlan, mac: s.DHCP.MAC, declined: make(map[vip.Family]string)}
	if t.link == "" {
		t.link = "herald-" + hex.EncodeToString(sum[:4])
	}
	if t.mac == "" {
		mac := slices.Clone(sum[4:10])
		mac[0] = mac[0]&0xfc | 2 // one interface's, locally administered
		t.mac = fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
	}
	return t
}

// duid is the client's identifier in DHCPv6: of the hardware address if somebody chose
// that, else a UUID (RFC 8415 sections 11.4 and 11.5).
func (t *tenant) duid() string {
	if mac := t.first.DHCP.MAC; mac != "" {
		return "00030001" + strings.ReplaceAll(mac, ":", "")
	}
	uuid := strings.ReplaceAll(t.id, "-", "")
	if b, err := hex.DecodeString(uuid); err != nil || len(b) != 16 {
		sum := sha256.Sum256([]byte(t.id))
		uuid = hex.EncodeToString(sum[16:])
	}
	return "0004" + strings.ToLower(uuid)
}

// iaid is RFC 8415 section 12's.
func (t *tenant) iaid() uint32 {
	sum := sha256.Sum256([]byte(t.id))
	return uint32(sum[10])<<24 | uint32(sum[11])<<16 | uint32(sum[12])<<8 | uint32(sum[13])
}

// parent is the link of a node that carries the macvlan of s: there is no address
// yet whose subnet could say.
func parent(s *service, info *vip.NodeInfo) string { return info.LinkFor(s.Interface) }

// A hireKey says which Hire it is.
type hireKey struct {
	id     string
	family vip.Family
}

// hired is what this node's client for a tenant says.
func (m *maker) hired(t *tenant, f vip.Family) (vip.DHCPState, bool) {
	if h := m.hires[hireKey{t.id, f}]; h != nil {
		return *h, true
	}
	return vip.DHCPState{}, false
}

// recorded is what the status of a Service of s's tenant says of a lease.
func (m *maker) recorded(s *service, f vip.Family) vip.DHCPLease {
	for _, x := range []*service{s, s.tenant.first} {
		for _, k := range x.DHCP.Leases {
			told := x.host != "" && slices.ContainsFunc(x.Ingress, func(i vip.Ingress) bool { return i.Addr == k.Addr })
			if told && vip.FamilyOf(k.Addr) == f && k.MAC == s.tenant.mac {
				return k
			}
		}
	}
	return vip.DHCPLease{}
}

// contract is what is leased for s, and whether it may be used here and now. What this
// node's client says counts. Without one it is what is recorded: the owner of a moment
// ago may have been another process, or another node.
func (m *maker) contract(s *service, f vip.Family) (k vip.DHCPLease, holds bool) {
	if h, ok := m.hired(s.tenant, f); ok && h.Request.MAC == s.tenant.mac {
		return h.Lease, h.Lease.Valid(m.Now)
	}
	k = m.recorded(s, f)
	return k, k.Valid(m.Now)
}

// leased reports whether a is leased to s rather than asked for by it.
func (s *service) leased(a netip.Addr) bool {
	if !slices.Contains(s.hires, vip.FamilyOf(a)) {
		return false
	}
	return !slices.Contains(s.Addresses, a) || s.Source == fromStatus && slices.ContainsFunc(s.DHCP.Leases, func(k vip.DHCPLease) bool { return k.Addr == a })
}

// lets says who has a: the tenant, or nil if nobody leases it.
func (s *service) lets(a netip.Addr) *tenant {
	if s.leased(a) {
		return s.tenant
	}
	return nil
}

// hire wants the links and the leases of a unit that this node has.
func (m *maker) hire(u *unit) {
	for _, t := range m.tenantsOf(u) {
		s := t.first
		filter := 2
		if s.DHCP.RPFilter != "" {
			filter = int(s.DHCP.RPFilter[0] - '0')
		}
		on := parent(s, &m.members[m.Self].Info)
		m.plan.Macvlans = append(m.plan.Macvlans, vip.Macvlan{
			Name: t.link, Parent: on, MAC: t.mac, RPFilter: filter, IPv6: slices.Contains(t.families, vip.IPv6),
		})
		if filter == 1 || filter == 0 && m.StrictRPFilter {
			m.say(s, vip.InvalidField, fmt.Sprintf("kube-vip.io/rp_filter is %q, and net.ipv4.conf.all.rp_filter of node %s is 1 at least with it: what clients send to the VIP is dropped, since answers leave by %s; remove the annotation",
				s.DHCP.RPFilter, m.Self, on), 0)
		}
		if why := m.MacvlanErrors[t.link]; why != "" {
			m.say(s, vip.DHCPFailed, fmt.Sprintf("node %s can't have the interface %s: %s", m.Self, t.link, why), 0)
			continue
		}
		for _, f := range t.families {
			h := vip.DHCPRequest{
				ID: t.id, Family: f, Link: t.link, MAC: t.mac, DUID: t.duid(), IAID: t.iaid(),
				Hostname: s.DHCP.Hostname, Broadcast: s.DHCP.Broadcast, LastLease: m.recorded(s, f),
			}
			for _, a := range s.DHCP.Requested {
				if vip.FamilyOf(a) == f && a.IsGlobalUnicast() {
					h.Requested = a
				}
			}
			if why := t.declined[f]; why != "" {
				x, _ := m.hired(t, f)
				h.Declined, h.DeclinedWhy = x.Lease.Addr, why
			}
			m.plan.DHCPRequests = append(m.plan.DHCPRequests, h)
		}
	}
}

func (m *maker) tenantsOf(u *unit) []*tenant {
	var list []*tenant
	for _, s := range u.services {
		if s.tenant != nil && !slices.Contains(list, s.tenant) {
			list = append(list, s.tenant)
		}
	}
	return list
}

// stands reports whether the macvlan of a tenant is there.
func (m *maker) stands(t *tenant) bool {
	x := m.macvlans[t.link]
	return x != nil && x.MAC == t.mac
}

// leasing says what is missing of the leases of s: how many addresses, what is wrong,
// and whether the answer is still open.
func (m *maker) leasing(s *service) (missing int, wrong []string, open bool) {
	for _, f := range s.hires {
		h, ok := m.hired(s.tenant, f)
		if h.Problem != "" {
			wrong = append(wrong, h.Problem)
		}
		if k, holds := m.contract(s, f); !holds || s.tenant.declined[f] != "" {
			missing++
			open = open || !ok || !h.Lost && h.Problem == "" && k.Addr == netip.Addr{}
		}
	}
	return missing, wrong, open
}

// sparing is for how long a lease may have been prolonged before that is recorded: a
// short one would otherwise be written every few seconds.
const sparing = time.Minute

// record is what is to be written of the leases of s that stand here.
func (m *maker) record(s *service, bound func(netip.Addr) bool) (list []vip.DHCPLease) {
	for _, f := range s.hires {
		k, holds := m.contract(s, f)
		if !holds || !bound(k.Addr) {
			continue
		}
		k.Expires, k.Renews, k.Rebinds = k.Expires.UTC().Truncate(time.Second), time.Time{}, time.Time{}
		was := m.recorded(s, f)
		longer := k.Expires.Sub(was.Expires)
		if was.Addr == k.Addr && was.Server == k.Server && was.Bits == k.Bits && was.Router == k.Router &&
			was.Expires.IsZero() == k.Expires.IsZero() && longer >= 0 && longer < sparing && slices.Contains(s.DHCP.Leases, was) {
			k = was
		}
		list = append(list, k)
	}
	return list
}

// giveBack has leases given back that nobody asks for any more: the Service is gone,
// is not ours, or has other addresses. A lease whose Service merely has no
// endpoints, or is another node's, is left to whoever goes on with it.
func (m *maker) giveBack() {
	if !m.Tenure.Holds(m.Now) || m.World.Stopping {
		return
	}
	asked, linked := make(map[string]bool), make(map[string]bool)
	for _, x := range m.plan.Macvlans {
		linked[x.Name] = true
	}
	for _, s := range m.all {
		if len(s.hires) > 0 {
			asked[tenantID(s.Service)] = true
		}
	}
	for _, h := range m.DHCPStates {
		if asked[h.Request.ID] || !h.Lease.Addr.IsValid() {
			continue
		}
		link := m.macvlans[h.Request.Link]
		if link == nil {
			continue
		}
		if !linked[link.Name] {
			linked[link.Name] = true
			m.plan.Macvlans = append(m.plan.Macvlans, *link)
		}
		x := h.Request
		x.Release, x.Declined, x.DeclinedWhy = true, netip.Addr{}, ""
		m.plan.DHCPRequests = append(m.plan.DHCPRequests, x)
	}
}
