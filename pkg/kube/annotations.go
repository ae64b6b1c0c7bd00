package kube

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heraldvip/herald/pkg/vip"
)

// Keys of the annotations that Herald reads or writes on Services.
const (
	addressesKey        = "kube-vip.io/loadbalancerIPs"
	ignoreKey           = "kube-vip.io/ignore"
	interfaceKey        = "kube-vip.io/serviceInterface"
	hostKey             = "kube-vip.io/vipHost"
	leaseNameKey        = "kube-vip.io/leaseName"
	withoutEndpointsKey = "kube-vip.io/allow-reconcile-without-endpoints"
	ipModeKey           = "heraldvip.io/ip-mode"
	announceKey         = "heraldvip.io/announce"
	communitiesKey      = "heraldvip.io/bgp-communities"
	localPrefKey        = "heraldvip.io/bgp-local-pref"
	medKey              = "heraldvip.io/bgp-med"
	prependKey          = "heraldvip.io/bgp-prepend"
	peersKey            = "heraldvip.io/bgp-peers"
	markKey             = "heraldvip.io/announcer"
	serviceVLANKey      = "kube-vip.io/serviceVLAN"
)

// An Annotation is one row of the reference of annotations.
type Annotation struct {
	Key     string
	Value   string // what it may be set to
	Meaning string
	Written bool // Herald writes it; setting it has no effect
	Later   bool // kube-vip has it, this version of Herald does not
	// Misses is what a Service that carries a Later annotation goes without,
	// if that changes what is announced; its user is told so.
	Misses string
}

// Annotations explains every annotation on a Service, for the generated reference.
var Annotations = []Annotation{
	{Key: addressesKey, Value: "IP addresses, separated by commas", Meaning: "The addresses of the Service, IPv4, IPv6 or both. Wins over spec.loadBalancerIP, which wins over the addresses that the status has already. An empty value is as if the annotation were absent."},
	{Key: ignoreKey, Value: "true or false", Meaning: "Herald leaves the Service alone. Set later it takes the VIP down."},
	{Key: interfaceKey, Value: "the name of a network interface, or auto", Meaning: "The interface that carries the VIP. auto is the one whose subnet contains it. Wins over vip_servicesinterface."},
	{Key: leaseNameKey, Value: "name, or namespace/name", Meaning: "The Lease that decides which node owns the VIP, in the Service's own namespace; the default is kubevip-<service>. Services with the same Lease move together."},
	{Key: withoutEndpointsKey, Value: "true or false", Meaning: "Announce the VIP even while the Service has no ready endpoint. Without effect if externalTrafficPolicy is Local."},
	{Key: ipModeKey, Value: "VIP or Proxy", Meaning: "The ipMode to write to the status. VIP: packets arrive with the VIP as their destination, and kube-proxy serves it. Proxy: kube-proxy leaves the address alone. Wins over the option."},
	{Key: forwardKey, Value: "true or false", Meaning: "Have the UPnP gateways of the VIP's link forward the Service's ports to it. Needs enable_upnp. See upnp.md."},
	{Key: forwardLeaseKey, Value: "a duration such as 1h, or 0", Meaning: "How long a gateway is to keep a mapping that is not renewed; Herald renews at half of it. The default is 1h; 0 is for ever."},
	{Key: externalPortKey, Value: "a port, pairs of Service port and external port such as 80=8080,443=8443, or any", Meaning: "The external ports, where they are not those of the Service. any: where that one is taken, another will do."},
	{Key: hostnameKey, Value: "a host name", Meaning: "The name to give to the DHCP server: option 12, and the FQDN option of DHCPv6."},
	{Key: hwaddrKey, Value: "a MAC address", Meaning: "The MAC address of the VIP leased by DHCP, for servers that have an address reserved for it. The default is made of the Service's UID. It is the client identifier, too, and with it given, of DHCPv6."},
	{Key: requestedKey, Value: "an IP address, or one of each family", Meaning: "The address to ask the DHCP server for. Herald writes the one that was leased."},
	{Key: macvlanKey, Value: "the name of a network interface", Meaning: "The name of the interface that Herald makes for the VIP leased by DHCP. Services of a namespace that name the same one share one lease and one VIP. An interface of that name that is not Herald's is left alone, and the Service gets no VIP."},
	{Key: broadcastKey, Value: "true or false", Meaning: "Have the DHCP server answer by broadcast, where something on the way or the node swallows answers to an address it does not know yet."},
	{Key: filterKey, Value: "0, 1 or 2", Meaning: "The reverse path filter of the interface that Herald makes. The default is 2 (loose). 1 (strict) drops what clients send, since answers leave by the interface below."},
	{Key: leasesKey, Value: "JSON", Meaning: "What a DHCP server has leased: address, server, when it expires. Another node goes on with it.", Written: true},
	{Key: announceKey, Value: "arp, bgp, or both with a comma between", Meaning: "How the VIP is announced. The default is every way that is enabled."},
	{Key: communitiesKey, Value: "communities, separated by commas", Meaning: "Communities of the VIP's routes: 65000:100, large ones 65000:1:100, names such as no-export, or none. Wins over the option."},
	{Key: localPrefKey, Value: "0 to 4294967295", Meaning: "The local preference told to BGP peers of the same AS. Wins over the option."},
	{Key: medKey, Value: "0 to 4294967295", Meaning: "The MED of the VIP's routes. Wins over the option."},
	{Key: prependKey, Value: "0 to 16", Meaning: "How often the AS number is repeated towards BGP peers of another AS. Wins over the option."},
	{Key: peersKey, Value: "addresses or interfaces of peers, separated by commas", Meaning: "The BGP peers that are told of the VIP, as the options name them. The default is all of them. If it can't be read, no peer is."},
	{Key: hostKey, Value: "a node's name", Meaning: "The node that announces the VIP. By BGP several may; this is the one that wrote the status.", Written: true},
	{Key: markKey, Value: "a namespace", Meaning: "That of the Herald that wrote the status, so that it clears what it wrote, and nothing that another announcer wrote.", Written: true},

	{Key: serviceVLANKey, Value: "a VLAN ID", Meaning: "The VLAN that carries the VIP.", Later: true, Misses: "the VIP is announced without a VLAN"},
	{Key: "kube-vip.io/flush-conntrack", Value: "true or false", Meaning: "Flush the connection tracking entries of the VIP when a node takes it over.", Later: true},
	{Key: "kube-vip.io/ddns", Value: "true or false", Meaning: "Register the host name by dynamic DNS.", Later: true},
	{Key: "kube-vip.io/egress", Value: "true or false", Meaning: "Send what the Service's pods send with the VIP as its source. The same holds for all annotations whose name begins with egress.", Later: true},
	{Key: "kube-vip.io/forcePerServiceElection", Value: "true or false", Meaning: "Elect an owner for this Service alone.", Later: true},
	{Key: "kube-vip.io/ignore-service-security", Value: "true or false", Meaning: "Do not restrict the VIP to the ports of the Service.", Later: true},
}

// annotate reads the annotations of a Service into s. What can't be read adds a
// sentence to s.Invalid that names the annotation and what would be right.
func annotate(s *vip.Service, annotations map[string]string) {
	r := reader{s: s, of: annotations}
	r.addresses()
	s.VIPHost, s.Announcer = annotations[hostKey], annotations[markKey]
	s.Ignore = r.truth(ignoreKey)
	s.AllowWithoutEndpoints = r.truth(withoutEndpointsKey)
	s.Interface = r.link()
	s.Lease = r.lease()
	s.IPMode = r.mode()
	s.Forward = r.forward()
	s.DHCP = r.dhcp()
	s.Announce = r.announce()
	s.BGPAttributes = r.attributes()
	for _, a := range Annotations {
		v := strings.TrimSpace(annotations[a.Key])
		if a.Misses == "" || v == "" {
			continue
		}
		if on, err := strconv.ParseBool(v); err == nil && !on {
			continue
		}
		s.Invalid = append(s.Invalid, fmt.Sprintf("%s is not supported by this version of Herald: %s.", a.Key, a.Misses))
	}
}

// A reader reads annotations into a Service.
type reader struct {
	s  *vip.Service
	of map[string]string
}

// wrong says that an annotation can't be read.
func (r reader) wrong(key, format string, args ...any) {
	r.s.Invalid = append(r.s.Invalid, fmt.Sprintf("%s is %s: %s.", key, quote(r.of[key]), fmt.Sprintf(format, args...)))
}

func (r reader) addresses() {
	value := strings.TrimSpace(r.of[addressesKey])
	if value == "" {
		return
	}
	r.s.Source = addressesKey
	for _, text := range strings.Split(value, ",") {
		a, why := address(text)
		if why != "" {
			r.wrong(addressesKey, "%s; write IP addresses separated by commas, such as 192.168.0.10,fd00::10", why)
			r.s.Addresses = nil // half of what was meant is not what was meant
			return
		}
		r.s.Addresses = appendNew(r.s.Addresses, a)
	}
}

// address reads one IP address, or says why it can't.
func address(text string) (netip.Addr, string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return netip.Addr{}, "an address is missing"
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, quote(text) + " is not an IP address"
	}
	if a.Zone() != "" {
		return netip.Addr{}, quote(text) + " has a zone, which an address of a Service can't have"
	}
	return a.Unmap(), ""
}

func (r reader) truth(key string) bool {
	value := strings.TrimSpace(r.of[key])
	if value == "" {
		return false
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		r.wrong(key, "neither true nor false, so it counts as false")
	}
	return on
}

// link is the interface asked for. A name that no interface can have is kept: a
// VIP never goes to a link that its user did not ask for.
func (r reader) link() string {
	value := strings.TrimSpace(r.of[interfaceKey])
	// dev_valid_name() in the kernel's net/core/dev.c, IFNAMSIZ is 16.
	if len(value) > 15 || value == "." || value == ".." || strings.ContainsAny(value, "/: \t\n\v\f\r") {
		r.wrong(interfaceKey, "no name of a network interface; write one of at most 15 characters, or auto")
	}
	return value
}

func (r reader) lease() string {
	value := strings.TrimSpace(r.of[leaseNameKey])
	if value == "" {
		return ""
	}
	namespace, name, both := strings.Cut(value, "/")
	switch {
	case !both:
		name = value
	case namespace != r.s.Key.Namespace:
		r.wrong(leaseNameKey, "the Lease must be in the Service's own namespace; write a name, or %s/name. The default is used", r.s.Key.Namespace)
		return ""
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		r.wrong(leaseNameKey, "no name that a Lease can have; write lower case letters, digits, - and . only. The default is used")
		return ""
	}
	if strings.HasPrefix(name, nodeLeasePrefix) {
		r.wrong(leaseNameKey, "names that begin with %s are those of node leases; write another. The default is used", nodeLeasePrefix)
		return ""
	}
	return name
}

// nodeLeasePrefix begins the names of node leases, which no Service may reach.
const nodeLeasePrefix = "herald-node-"

func (r reader) mode() vip.IPMode {
	value := strings.TrimSpace(r.of[ipModeKey])
	switch {
	case value == "":
		return ""
	case strings.EqualFold(value, string(vip.ModeVIP)):
		return vip.ModeVIP
	case strings.EqualFold(value, string(vip.ModeProxy)):
		return vip.ModeProxy
	}
	r.wrong(ipModeKey, "write VIP or Proxy. The default is used")
	return ""
}

// quote shows a value that somebody else wrote: it may be of any length.
func quote(value string) string {
	const most = 60
	if len(value) <= most {
		return strconv.Quote(value)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(value[cut]) {
		cut--
	}
	return strconv.Quote(value[:cut]) + "..."
}

func appendNew(list []netip.Addr, a netip.Addr) []netip.Addr {
	for _, b := range list {
		if a == b {
			return list
		}
	}
	return append(list, a)
}
