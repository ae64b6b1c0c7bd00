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
	filterKey    = "kube-vip.io/rp_filter"
	leasesKey    = "heraldvip.io/dhcp-lease"
)

func (r reader) dhcp() vip.DHCP {
	return vip.DHCP{
		Hostname: r.hostname(), MAC: r.hwaddr(), Requested: r.requested(), Macvlan: r.macvlan(),
		Broadcast: r.truth(broadcastKey), RPFilter: r.filter(), Leases: readLeases(r.of[leasesKey]),
	}
}

// hostname is a name as RFC 1123 has it. Upper case is left to the server.
func (r reader) hostname() string {
	value := strings.TrimSuffix(strings.TrimSpace(r.of[hostnameKey]), ".")
	if value == "" {
		return ""
	}
	if len(validation.IsDNS1123Subdomain(strings.ToLower(value))) > 0 ||
		slices.ContainsFunc(strings.Split(value, "."), func(l string) bool { return len(l) > 63 }) {
		r.wrong(hostnameKey, "no host name; write letters, digits, dashes and dots, at most 63 between two dots. No name is given")
		return ""
	}
	return value
}

func (r reader) hwaddr() string {
	value := strings.TrimSpace(r.of[hwaddrKey])
	if value == "" {
		return ""
	}
	mac, err := net.ParseMAC(value)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || [6]byte(mac) == [6]byte{} {
		r.wrong(hwaddrKey, "no MAC address of one interface; write one such as 02:00:5e:10:20:30. The default is used")
		return ""
	}
	return mac.String()
}

func (r reader) requested() []netip.Addr {
	value := strings.TrimSpace(r.of[requestedKey])
	if value == "" {
		return nil
	}
	var list []netip.Addr
	for text := range strings.SplitSeq(value, ",") {
		a, why := address(text)
		if slices.ContainsFunc(list, func(b netip.Addr) bool { return vip.FamilyOf(a) == vip.FamilyOf(b) }) {
			why = "two addresses of one family"
		}
		switch {
		case why != "":
			r.wrong(requestedKey, "%s; write one IP address, or one of each family. No address is asked for", why)
			return nil
		case a.IsUnspecified(): // any will do
		default:
			list = append(list, a)
		}
	}
	return list
}

func (r reader) macvlan() string {
	value := strings.TrimSpace(r.of[macvlanKey])
	// As for link: dev_valid_name() in the kernel's net/core/dev.c.
	if len(value) > 15 || value == "." || value == ".." || strings.ContainsAny(value, "/: \t\n\v\f\r\x00%") {
		r.wrong(macvlanKey, "no name of a network interface; write one of at most 15 characters. The default is used")
		return ""
	}
	return value
}

func (r reader) filter() string {
	value := strings.TrimSpace(r.of[filterKey])
	switch value {
	case "", "0", "1", "2":
		return value
	}
	r.wrong(filterKey, "write 0, 1 or 2. The default is used")
	return ""
}

// readLeases reads what Herald wrote. What somebody has spoilt counts as absent: the
// next status puts it right.
func readLeases(text string) []vip.DHCPLease {
	if text == "" || len(text) > 4096 {
		return nil
	}
	var all, sound []vip.DHCPLease
	if json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	for _, k := range all {
		k.Addr = k.Addr.Unmap()
		if k.Addr.IsGlobalUnicast() && k.Addr.Zone() == "" && k.Bits > 0 && k.Bits <= k.Addr.BitLen() && len(sound) < 2 {
			k.Expires = k.Expires.UTC()
			sound = append(sound, k)
		}
	}
	return sound
}

func sameLeases(a, b []vip.DHCPLease) bool {
	return slices.EqualFunc(a, b, func(x, y vip.DHCPLease) bool {
		return x.Addr == y.Addr && x.Bits == y.Bits && x.MAC == y.MAC && x.Server == y.Server && x.Router == y.Router && x.Expires.Equal(y.Expires)
	})
}

func leasedAddrs(leases []vip.DHCPLease) []netip.Addr {
	addrs := make([]netip.Addr, len(leases))
	for i, k := range leases {
		addrs[i] = k.Addr
	}
	return addrs
}

// leaseAnnotations adds what is to be said of leases to a patch of r's annotations.
func leaseAnnotations(annotations map[string]any, r *record, w vip.Status) error {
	switch {
	case len(w.DHCPLeases) > 0:
		text, err := json.Marshal(w.DHCPLeases)
		if err != nil {
			return err
		}
		var addrs []string
		for _, k := range w.DHCPLeases {
			addrs = append(addrs, k.Addr.String())
		}
		annotations[leasesKey], annotations[requestedKey] = string(text), strings.Join(addrs, ",")
	case r.leasing:
		annotations[leasesKey] = nil // null removes it
	}
	return nil
}
