package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// A dhcpClient is a client of DHCP servers: for a Service, or for all Services of a namespace
// that name the same macvlan. All that a server knows it by is a function of the Service, so
// whichever node owns that goes on with its leases (decision 0030).
type dhcpClient struct {
	id       string
	sum      [sha256.Size]byte // of id
	oldest   *service          // whose annotations count
	link     string            // the macvlan
	mac      string
	families []vip.Family
	declined map[vip.Family]string // why what is leased can't be used

	hasAddress bool   // the status of one of its Services names an address of it
	refused    string // why it can't be had
	waits      bool   // this node holds its unit, and begins no more clients
}

// clientID returns the ID of the DHCP client of s: the namespace and the macvlan that s names,
// which Services may share, else its UID.
func clientID(s *vip.Service) string {
	if s.DHCP.Macvlan != "" {
		return "macvlan " + s.Key.Namespace + "/" + s.DHCP.Macvlan
	}
	return s.UID
}

// newDHCPClient returns a client whose macvlan and MAC are those in the annotations of s, the
// oldest of its Services, or else a hash of id.
func newDHCPClient(id string, s *service) *dhcpClient {
	sum := sha256.Sum256([]byte(id))
	c := &dhcpClient{id: id, sum: sum, oldest: s, link: s.DHCP.Macvlan, mac: s.DHCP.MAC, declined: make(map[vip.Family]string)}
	if c.link == "" {
		c.link = macvlanPrefix + hex.EncodeToString(sum[:4])
	}
	if c.mac == "" {
		mac := slices.Clone(sum[4:10])
		mac[0] = mac[0]&0xfc | 2 // unicast, locally administered
		c.mac = fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
	}
	return c
}

// duid returns the DHCP Unique Identifier in hexadecimal: DUID-LL of the MAC if an annotation
// chose that (RFC 8415 section 11.4), else DUID-UUID (11.5) of the ID, or of its hash if that
// is no UUID.
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

// newClients sets the client of every Service that has dhcpFamilies, and returns them in the order of their oldest Services.
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
		for _, f := range s.dhcpFamilies {
			c.hasAddress = c.hasAddress || d.hasLeased(s, f)
		}
	}
	return clients
}

// maxClients is how many DHCP clients the Services of a namespace may have. Each costs the node that has it a
// macvlan, whose MAC address the switch learns, sockets, and packets; svc_quota allows fewer.
const maxClients = 128

// refuseTooMany sets refused of each client by which its namespace would have more than maxClients: of none
// that has an address, of the others those of the youngest Services.
func refuseTooMany(clients []*dhcpClient) {
	counted := make(map[string]int) // by namespace
	for _, has := range []bool{true, false} {
		for _, c := range clients {
			if c.hasAddress != has {
				continue
			}
			namespace := c.oldest.Key.Namespace
			if counted[namespace]++; !has && counted[namespace] > maxClients {
				c.refused = fmt.Sprintf("the Services of the namespace %s have %d DHCP clients, and may have no more: delete one, let Services share one (kube-vip.io/macvlanName), or ask for a fixed address", namespace, maxClients)
			}
		}
	}
}

// maxNodeClients is how many DHCP clients a node has before it begins no more. Those of a node that died are not refused: they have addresses.
const maxNodeClients = 512

// refuseBeyondNode sets waits of each client of a unit that this node holds by which it would have more than maxNodeClients: of none that has an
// address or a macvlan here, of the others the last by units.
func (d *dhcp) refuseBeyondNode(units []*unit) {
	here := make(map[string]bool, len(d.Macvlans))
	for _, x := range d.Macvlans {
		here[x.Name] = true
	}
	seen, running, others := make(map[*dhcpClient]bool), 0, []*dhcpClient(nil)
	for _, u := range units {
		for _, s := range u.services {
			switch c := s.client; {
			case c == nil || seen[c] || u.claim.Holder != d.Self:
			case c.hasAddress || here[c.link]:
				seen[c] = true
				running++
			default:
				seen[c] = true
				others = append(others, c)
			}
		}
	}
	for i, c := range others {
		c.waits = running+i >= maxNodeClients
	}
}

// refuseClients (decision 0063) sets refused of each client whose MAC is a node's, or whose macvlan or MAC is that of another, which comes before
// it. Clients whose MAC nobody chose come first, then those that have an address, then those of older Services.
func (d *dhcp) refuseClients(clients []*dhcpClient) {
	rank := func(c *dhcpClient) int {
		switch {
		case c.oldest.DHCP.MAC == "":
			return 0
		case c.hasAddress:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(clients, func(a, b *dhcpClient) int { return cmp.Compare(rank(a), rank(b)) })
	nodes, byLink, byMAC := make(map[string]string), make(map[string]*dhcpClient), make(map[string]*dhcpClient)
	for i := range d.Members {
		for _, mac := range macsOf(&d.Members[i].Info) {
			nodes[mac] = d.Members[i].Name
		}
	}
	for _, c := range clients {
		byLinkOf, byMACOf := byLink[c.link], byMAC[c.mac]
		switch {
		case c.refused != "":
		case nodes[c.mac] != "":
			c.refused = fmt.Sprintf("the hardware address %s (kube-vip.io/hwaddr) is that of node %s; write another", c.mac, nodes[c.mac])
		case byLinkOf != nil:
			c.refused = fmt.Sprintf("the interface %s (kube-vip.io/macvlanName) is that of %s, which comes first; write another", c.link, byLinkOf.oldest.nameFor(c.oldest))
		case byMACOf != nil:
			c.refused = fmt.Sprintf("the hardware address %s (kube-vip.io/hwaddr) is that of %s, which comes first; write another", c.mac, byMACOf.oldest.nameFor(c.oldest))
		default:
			byLink[c.link], byMAC[c.mac] = c, c
		}
	}
}

// macvlanPrefix begins the names of the macvlans that Herald names itself, which go on with 8 hexadecimal digits.
const macvlanPrefix = "herald-"

// whyMacvlanRefused returns why a Service may not choose that name for its macvlan, or "": it must begin with one of
// dhcp_macvlan_prefixes ("herald-" if there are none), so that it is no other program's, and must not be "herald-" and
// eight hexadecimal digits, as Herald makes them. No name, "", is allowed.
func (r *Rules) whyMacvlanRefused(name string) string {
	prefixes := r.MacvlanPrefixes
	if len(prefixes) == 0 {
		prefixes = []string{macvlanPrefix}
	}
	if name == "" {
		return ""
	}
	if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
		return fmt.Sprintf("kube-vip.io/macvlanName is %q, and must begin with %s (dhcp_macvlan_prefixes), so that it is no other program's interface", name, strings.Join(prefixes, " or "))
	}
	if digits, ok := strings.CutPrefix(name, macvlanPrefix); ok && len(digits) == 8 {
		if _, err := hex.DecodeString(digits); err == nil {
			return fmt.Sprintf("kube-vip.io/macvlanName is %q, a name of the kind that Herald makes itself; write another", name)
		}
	}
	return ""
}
