package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// A dhcpClient is one of a Service, or of all of a namespace that name one macvlan. Servers know it by a function of
// the Service, so any owner goes on with its leases (docs/why.md, "DHCP identity").
type dhcpClient struct {
	id            string
	sum           [sha256.Size]byte // of id
	oldest        *service          // whose annotations count
	link          string            // the macvlan
	mac, hostname string
	families      []vip.Family
	declined      map[vip.Family]string // why what is leased can't be used

	hasAddress bool   // one of its Services has an address that is leased to it (hasLeased)
	refused    string // why it can't be had
}

// clientID returns the ID, of namespace and macvlan, or the UID.
func clientID(s *vip.Service) string {
	if s.DHCP.Macvlan != "" {
		return "macvlan " + s.Key.Namespace + "/" + s.DHCP.Macvlan
	}
	return s.UID
}

func clientLink(s *vip.Service) string {
	if s.DHCP.Macvlan != "" {
		return s.DHCP.Macvlan
	}
	sum := sha256.Sum256([]byte(clientID(s)))
	return macvlanPrefix + hex.EncodeToString(sum[:4])
}

// newDHCPClient returns a client with macvlan and MAC of s, or hashes.
func newDHCPClient(id string, s *service) *dhcpClient {
	sum := sha256.Sum256([]byte(id))
	c := &dhcpClient{id: id, sum: sum, oldest: s, link: clientLink(s.Service), mac: s.DHCP.MAC,
		hostname: s.DHCP.Hostname, declined: make(map[vip.Family]string)}
	if c.mac == "" {
		mac := slices.Clone(sum[4:10])
		mac[0] = mac[0]&0xfc | 2 // unicast, locally administered
		c.mac = strings.ReplaceAll(fmt.Sprintf("% x", mac), " ", ":")
	}
	return c
}

// duid returns in hexadecimal a DUID-LL of a chosen MAC (RFC 8415 11.4), else a DUID-UUID (11.5).
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

// newClients returns the clients of services, those first whose address is leased.
func (d *dhcp) newClients(services []*service) (clients []*dhcpClient) {
	byID := make(map[string]*dhcpClient)
	for _, s := range services {
		if len(s.dhcpFamilies) == 0 {
			continue
		}
		id := clientID(s.Service)
		c := byID[id]
		if c == nil {
			c = newDHCPClient(id, s)
			byID[id], clients = c, append(clients, c)
		}
		s.client = c
		c.families = vip.AppendUnique(c.families, s.dhcpFamilies...)
		c.hasAddress = c.hasAddress || !s.statusTellsUse && d.leaseHeld(s) ||
			slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool { return c.hasLeased(s, i.Addr) })
	}
	first := slices.DeleteFunc(slices.Clone(clients), func(c *dhcpClient) bool { return !c.hasAddress })
	return append(first, slices.DeleteFunc(clients, func(c *dhcpClient) bool { return c.hasAddress })...)
}

const leasedText = "leased by a DHCP server"

func (c *dhcpClient) hasLeased(s *service, a netip.Addr) bool {
	return slices.Contains(s.Record.Leased, a) && s.Record.MAC == c.mac && s.Record.Link == c.link &&
		s.Record.Hostname == c.hostname
}

// maxClients is how many DHCP clients a namespace may have: each costs a macvlan, and the switch a MAC.
const maxClients = 128

// refuseTooMany refuses the youngest clients of namespaces with more than maxClients.
func refuseTooMany(clients []*dhcpClient) {
	counted := make(map[string]int) // by namespace
	for _, c := range clients {
		namespace := c.oldest.Key.Namespace
		if counted[namespace]++; !c.hasAddress && counted[namespace] > maxClients {
			c.refused = fmt.Sprintf("the Services of the namespace %s have %d DHCP clients, and may have no more: delete one, "+
				"let Services share one (kube-vip.io/macvlanName), or ask for a fixed address", namespace, maxClients)
		}
	}
}

// refuseClients refuses what is a node's or an earlier client's (docs/why.md, "What tenants can write").
func (d *dhcp) refuseClients(clients []*dhcpClient) {
	if len(clients) == 0 {
		return
	}
	const ofMAC = "the hardware address %s (kube-vip.io/hwaddr)"
	whose := make(map[string]func(*service) string) // how a Service is told
	for i := range d.Members {
		for _, mac := range macsOf(&d.Members[i].Info) {
			whose[fmt.Sprintf(ofMAC, mac)] = func(*service) string { return "node " + d.Members[i].Name }
		}
	}
	for _, c := range clients {
		identities := []string{fmt.Sprintf(ofMAC, c.mac), "the interface " + c.link + " (kube-vip.io/macvlanName)"}
		if c.hostname != "" && slices.Contains(c.families, vip.IPv4) { // servers of IPv6 go by the DUID
			identities = append(identities, "the host name "+c.hostname+" (kube-vip.io/loadbalancerHostname)")
		}
		for _, x := range identities {
			if owner := whose[x]; owner != nil {
				c.refused = fmt.Sprintf("%s is that of %s; write another", x, owner(c.oldest))
			}
		}
		for _, x := range identities {
			if c.refused == "" {
				whose[x] = func(s *service) string { return c.oldest.nameFor(s) + ", which comes first" }
			}
		}
	}
}

// macvlanPrefix begins names of macvlans that Herald chooses; 8 hexadecimal digits follow.
const macvlanPrefix = "herald-"

func (r *Rules) whyMacvlanRefused(name string) string {
	prefixes := r.MacvlanPrefixes
	if len(prefixes) == 0 {
		prefixes = []string{macvlanPrefix}
	}
	if name == "" {
		return ""
	}
	if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
		return fmt.Sprintf("kube-vip.io/macvlanName is %q, and must begin with %s (dhcp_macvlan_prefixes), so that it "+
			"is no other program's interface", name, strings.Join(prefixes, " or "))
	}
	if digits, ok := strings.CutPrefix(name, macvlanPrefix); ok && len(digits) == 8 {
		if _, err := hex.DecodeString(digits); err == nil {
			return fmt.Sprintf("kube-vip.io/macvlanName is %q, a name of the kind that Herald makes itself; write another", name)
		}
	}
	return ""
}

// hasLeased reports whether s was leased an address of a family, unnamed by it.
func (p *facts) hasLeased(s *service, family vip.Family) bool {
	return slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool {
		return vip.FamilyOf(i.Addr) == family && slices.Contains(s.Record.Leased, i.Addr) &&
			s.Record.Link == clientLink(s.Service) && (s.Source == vip.SourceStatus || !slices.Contains(s.Addresses, i.Addr))
	}) || !s.statusTellsUse && p.leaseHeld(s)
}
