package kube

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heraldvip/herald/pkg/vip"
)

// Annotations about addresses from DHCP servers.
const (
	hostnameKey  = "kube-vip.io/loadbalancerHostname"
	hwaddrKey    = "kube-vip.io/hwaddr"
	requestedKey = "kube-vip.io/requestedIP"
	macvlanKey   = "kube-vip.io/macvlanName"
	broadcastKey = "kube-vip.io/dhcp-broadcast"
	rpFilterKey  = "kube-vip.io/rp_filter"
	dhcpLeaseKey = "heraldvip.io/dhcp-lease"
)

func (r annotationReader) dhcp() vip.DHCP {
	return vip.DHCP{
		Hostname:  parseAnnotation(r, hostnameKey, parseHostname),
		MAC:       parseAnnotation(r, hwaddrKey, parseMAC),
		Requested: parseAnnotation(r, requestedKey, parseRequestedAddrs),
		Macvlan:   parseAnnotation(r, macvlanKey, parseMacvlanName),
		Broadcast: parseAnnotation(r, broadcastKey, parseBool),
		RPFilter:  parseAnnotation(r, rpFilterKey, parseRPFilter),
		Leases:    parseDHCPLeases(r.annotations[dhcpLeaseKey]),
	}
}

// parseHostname reads a name (RFC 1123 section 2.1), without a dot at its end.
func parseHostname(value string) (name, problem string) {
	name = strings.TrimSuffix(value, ".")
	longLabel := func(label string) bool { return len(label) > 63 }
	if name != "" && len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 ||
		slices.ContainsFunc(strings.Split(name, "."), longLabel) {
		return "", "no host name; write letters, digits, dashes and dots, at most 63 between two dots. No name is given"
	}
	return name, ""
}

// kubeVIPsMACs begin the MAC addresses that kube-vip makes and writes.
var kubeVIPsMACs = [3]byte{0x00, 0x00, 0x6c}

// parseMAC reads a locally administered unicast MAC address, or one of kube-vip.
func parseMAC(value string) (mac, problem string) {
	m, err := net.ParseMAC(value)
	switch {
	case err != nil || len(m) != 6 || m[0]&1 != 0 || [6]byte(m) == [6]byte{}:
		return "", "no MAC address of one interface; write one such as 02:00:5e:10:20:30. The default is used"
	case m[0]&2 == 0 && [3]byte(m[:3]) != kubeVIPsMACs:
		return "", "not locally administered: the second digit must be 2, 6, a or e, as in 02:00:5e:10:20:30. The default " +
			"is used"
	}
	return m.String(), ""
}

// parseRequestedAddrs reads an address of each family, not 0.0.0.0 or ::.
func parseRequestedAddrs(value string) (addrs []netip.Addr, problem string) {
	for text := range strings.SplitSeq(value, ",") {
		a, problem := parseAddress(text)
		if hasFamilyOf(addrs, a) {
			problem = "two addresses of one family"
		}
		if problem != "" {
			return nil, problem + "; write one IP address, or one of each family. No address is asked for"
		}
		if !a.IsUnspecified() {
			addrs = append(addrs, a)
		}
	}
	return addrs, ""
}

// hasFamilyOf reports whether one of addrs is of a's family.
func hasFamilyOf(addrs []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(b netip.Addr) bool { return vip.FamilyOf(a) == vip.FamilyOf(b) })
}

// parseMacvlanName reads a name for a link, without %, a pattern to dev_alloc_name().
func parseMacvlanName(value string) (name, problem string) {
	if !vip.IsLinkName(value) || strings.Contains(value, "%") {
		return "", "no name of a network interface; write one of at most 15 characters. The default is used"
	}
	return value, ""
}

func parseRPFilter(value string) (filter, problem string) {
	if !slices.Contains([]string{"0", "1", "2"}, value) {
		return "", "write 0, 1 or 2. The default is used"
	}
	return value, ""
}

// parseDHCPLeases reads at most two leases of Herald; unreadable ones are absent.
func parseDHCPLeases(text string) []vip.DHCPLease {
	var all, valid []vip.DHCPLease
	if text == "" || len(text) > 4096 || json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	for _, l := range all {
		l.Addr = l.Addr.Unmap()
		if l.Addr.IsGlobalUnicast() && l.Addr.Zone() == "" && l.Bits > 0 && l.Bits <= l.Addr.BitLen() && len(valid) < 2 {
			l.Expires = l.Expires.UTC()
			valid = append(valid, l)
		}
	}
	return valid
}

func equalDHCPLeases(a, b []vip.DHCPLease) bool {
	return slices.EqualFunc(a, b, func(x, y vip.DHCPLease) bool {
		return x.Addr == y.Addr && x.Bits == y.Bits && x.MAC == y.MAC && x.Server == y.Server && x.Router == y.Router &&
			x.Expires.Equal(y.Expires)
	})
}

// leasedAddrs returns the addresses of leases.
func leasedAddrs(leases []vip.DHCPLease) []netip.Addr {
	addrs := make([]netip.Addr, len(leases))
	for i, l := range leases {
		addrs[i] = l.Addr
	}
	return addrs
}

// requestedBeside returns what requestedKey is to name: leased addresses, and those requested of other families.
func (s *cachedService) requestedBeside(leases []vip.DHCPLease) []netip.Addr {
	addrs := leasedAddrs(leases)
	others := slices.DeleteFunc(slices.Clone(s.DHCP.Requested), func(a netip.Addr) bool { return hasFamilyOf(addrs, a) })
	return append(addrs, others...)
}

// addLeaseAnnotations adds leases, and addresses to request, to a patch.
func addLeaseAnnotations(patch map[string]any, s *cachedService, w vip.Status) error {
	if len(w.DHCPLeases) == 0 {
		if s.hasLeaseAnnotation {
			patch[dhcpLeaseKey] = nil // null removes it
		}
		return nil
	}
	text, err := json.Marshal(w.DHCPLeases)
	patch[dhcpLeaseKey], patch[requestedKey] = string(text), vip.JoinAddrs(s.requestedBeside(w.DHCPLeases), ",")
	return err
}
