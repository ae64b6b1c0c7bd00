package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agext/levenshtein"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heraldvip/herald/pkg/vip"
)

// Keys of the annotations that Herald reads or writes on Services.
const (
	addressesKey        = "kube-vip.io/loadbalancerIPs"
	ignoreKey           = "kube-vip.io/ignore"
	interfaceKey        = "kube-vip.io/serviceInterface"
	vipHostKey          = "kube-vip.io/vipHost"
	leaseNameKey        = "kube-vip.io/leaseName"
	withoutEndpointsKey = "kube-vip.io/allow-reconcile-without-endpoints"
	allPortsKey         = "kube-vip.io/ignore-service-security"
	ipModeKey           = "heraldvip.io/ip-mode"
	sharingKeyKey       = "heraldvip.io/sharing-key"
	announceKey         = "heraldvip.io/announce"
	communitiesKey      = "heraldvip.io/bgp-communities"
	localPrefKey        = "heraldvip.io/bgp-local-pref"
	medKey              = "heraldvip.io/bgp-med"
	prependKey          = "heraldvip.io/bgp-prepend"
	peersKey            = "heraldvip.io/bgp-peers"
	announcerKey        = "heraldvip.io/announcer"
	serviceVLANKey      = "kube-vip.io/serviceVLAN"
)

// An Annotation is one row of the reference of annotations.
type Annotation struct {
	Key         string
	Value       string // what it may be set to
	Meaning     string
	Written     bool   // Herald writes it; setting it has no effect
	Unsupported bool   // kube-vip has it, this version of Herald does not
	Instead     string // what Herald does instead of an Unsupported one
}

// Annotations explains every annotation on a Service, for the generated reference.
var Annotations = []Annotation{
	{Key: addressesKey, Value: "IP addresses, separated by commas",
		Meaning: "The addresses of the Service, IPv4, IPv6 or both; those after the first 16 are left out. Wins over " +
			"MetalLB's and Cilium's annotations, which win over spec.loadBalancerIP; each of them wins over what Herald gave " +
			"from a pool, and over what only the status names. An Event names what does not count. An empty value is as if " +
			"the annotation were absent; while one can't be read the Service keeps what it has."},
	{Key: poolKey, Value: "names of pools, separated by commas",
		Meaning: "The pools that the Service wants an address of, the first that has one. The default is those that are " +
			"offered to its namespace. MetalLB's `metallb.io/address-pool` is understood as well. See pools.md."},
	{Key: allocatedKey, Value: "names of pools",
		Meaning: "The pools that kube-vip.io/loadbalancerIPs was given of. Remove it to make the address your own, " +
			"as if you had set it. Without both annotations the Service keeps what its status names.", Written: true},
	{Key: allocatedAddressesKey, Value: "IP addresses, separated by commas",
		Meaning: "The addresses that the Service was given of pools. If kube-vip.io/loadbalancerIPs has others, you named " +
			"those, and what was given stays beside them only as the other family of a Service that has two.",
		Written: true},
	{Key: renumberKey, Value: "true or false",
		Meaning: "Herald may give the Service another address, as soon as there is one, if no pool offers it any more what " +
			"it was given. Without it the Service keeps its address. See pools.md."},
	{Key: ignoreKey, Value: "true or false", Meaning: "Herald leaves the Service alone. Set later it takes the VIP down."},
	{Key: interfaceKey, Value: "the name of a network interface, or auto",
		Meaning: "The interface that carries the VIP. auto is the one whose subnet contains it. Wins over " +
			"vip_servicesinterface."},
	{Key: serviceVLANKey, Value: "the name of a VLAN's interface, such as eth0.200",
		Meaning: "The interface that carries the VIP, which Herald does not make. Wins over kube-vip.io/serviceInterface."},
	{Key: leaseNameKey, Value: "name, or namespace/name",
		Meaning: "The Service's name in the table of owners, in its own namespace; the default is kubevip-<service>. " +
			"Services with one name move together. While a kube-vip renews a Lease of that name, Herald leaves them to it. " +
			"No effect while the Service shares an address with one of another namespace."},
	{Key: sharingKeyKey, Value: "any text of at most 253 bytes",
		Meaning: "Services of different namespaces may share an address if they have the same text here. Choose a text " +
			"that others can't guess. Services of one namespace need none."},
	{Key: withoutEndpointsKey, Value: "true or false",
		Meaning: "Announce the VIP even while the Service has no ready endpoint. Without effect if externalTrafficPolicy " +
			"is Local."},
	{Key: allPortsKey, Value: "true or false",
		Meaning: "With enable_service_security: do not limit the VIP to the ports of the Service. Without effect on a VIP " +
			"that another Service has as well, unless that says so, too."},
	{Key: ipModeKey, Value: "VIP or Proxy",
		Meaning: "The ipMode to write to the status. VIP: packets arrive with the VIP as their destination, and " +
			"kube-proxy serves it. Proxy: kube-proxy leaves the address alone. Wins over the option."},
	{Key: upnpKey, Value: "true or false",
		Meaning: "Have the UPnP gateways of the VIP's link forward the Service's ports to it. Needs enable_upnp. See " +
			"upnp.md."},
	{Key: upnpLeaseKey, Value: "a duration such as 1h, or 0",
		Meaning: "How long a gateway is to keep a mapping that is not renewed; Herald renews at half of it. The default " +
			"is 1h; 0 is for ever."},
	{Key: externalPortKey, Value: "a port, or pairs of Service port and external port such as 80=8080,443=8443",
		Meaning: "The external ports, where they are not those of the Service."},
	{Key: hostnameKey, Value: "a host name",
		Meaning: "The name to give to the DHCP server: option 12, and the FQDN option of DHCPv6. It is also the client " +
			"identifier of DHCPv4, as with kube-vip, so each Service needs its own."},
	{Key: hwaddrKey, Value: "a locally administered MAC address",
		Meaning: "The MAC address of the VIP leased by DHCP, which must be no other's, for servers that have an address " +
			"reserved for it. The default is made of the Service's UID. It is also the client identifier of DHCPv4, unless " +
			"kube-vip.io/loadbalancerHostname is set, and, if set here, of DHCPv6."},
	{Key: requestedKey, Value: "an IP address, or one of each family",
		Meaning: "The address to ask the DHCP server for while nothing is leased. Herald writes the one that was leased."},
	{Key: macvlanKey, Value: "the name of a network interface",
		Meaning: "The name of the interface that Herald makes for the VIP leased by DHCP. It must begin with herald-, " +
			"unless dhcp_macvlan_prefixes allows others, and not be one that Herald makes itself. Services of a namespace " +
			"that name the same one share one lease and one VIP. An interface of that name that is not Herald's is left " +
			"alone, and the Service gets no VIP."},
	{Key: broadcastKey, Value: "true or false",
		Meaning: "Have the DHCP server answer by broadcast, where something on the way or the node swallows answers to an " +
			"address it does not know yet."},
	{Key: rpFilterKey, Value: "0, 1 or 2",
		Meaning: "The reverse path filter of the interface that Herald makes. The default is 2 (loose). 1 (strict) drops " +
			"what clients send, since answers leave by the interface below."},
	{Key: dhcpLeaseKey, Value: "JSON",
		Meaning: "What a DHCP server has leased: address, server, when it expires. Another node goes on with it.",
		Written: true},
	{Key: announceKey, Value: "arp, bgp, or both with a comma between",
		Meaning: "How the VIP is announced. arp: by ARP and NDP. bgp: by routes, advertised by BGP and put into the " +
			"routing table (vip_routingtable), as far as each is enabled. The default is every way that is enabled."},
	{Key: communitiesKey, Value: "communities, separated by commas",
		Meaning: "Communities of the VIP's routes: 65000:100, large ones 65000:1:100, names such as no-export, or none; " +
			"64 at most. Wins over the option."},
	{Key: localPrefKey, Value: "0 to 4294967295",
		Meaning: "The local preference sent to BGP peers of the same AS. Wins over the option."},
	{Key: medKey, Value: "0 to 4294967295", Meaning: "The MED of the VIP's routes. Wins over the option."},
	{Key: prependKey, Value: "0 to 16",
		Meaning: "How often the AS number is repeated towards BGP peers of another AS. Wins over the option."},
	{Key: peersKey, Value: "addresses or interfaces of peers, separated by commas",
		Meaning: "The BGP peers to which the VIP is announced, as the options name them. 100 at most. The default is all " +
			"of them. If it can't be read, it is none."},
	{Key: egressKey, Value: "true or false",
		Meaning: "What the Service's pods send to destinations outside of the cluster has the VIP as its source. See " +
			"egress.md."},
	{Key: egressAllowedNetworksKey, Value: "networks, separated by commas",
		Meaning: "With egress: only to these destinations. 64 at most."},
	{Key: egressDeniedNetworksKey, Value: "networks, separated by commas",
		Meaning: "With egress: not to these destinations. 64 at most."},
	{Key: egressDestinationPortsKey, Value: "ports such as tcp:443,udp:53",
		Meaning: "With egress: only to these ports. Without a protocol it is TCP. 64 at most."},
	{Key: egressSourcePortsKey, Value: "ports such as tcp:443,udp:53",
		Meaning: "With egress: only from these ports of the pods. 64 at most."},
	{Key: vipHostKey, Value: "a node's name",
		Meaning: "The node that announces the VIP; absent while none does. By BGP several may; this is the one that wrote " +
			"the status.", Written: true},
	{Key: announcerKey, Value: "a namespace",
		Meaning: "That of the Herald that wrote the status, so that it clears what it wrote, and nothing that another " +
			"announcer wrote.", Written: true},

	{Key: "kube-vip.io/flush-conntrack", Value: "true or false",
		Meaning: "Flush the connection tracking entries of the VIP when a node takes it over.", Unsupported: true,
		Instead: "a node that takes over a VIP forgets what would keep clients from being served, and keeps TCP " +
			"connections (herald_keep_connections)"},
	{Key: "kube-vip.io/ddns", Value: "true or false", Meaning: "Register the host name by dynamic DNS.", Unsupported: true,
		Instead: "the DHCP server is given the name (kube-vip.io/loadbalancerHostname), and may register it"},
	{Key: "kube-vip.io/egress-internal", Value: "true or false",
		Meaning: "Make the rules of egress by nftables instead of iptables.", Unsupported: true,
		Instead: "nftables is what Herald uses anyway"},
	{Key: "kube-vip.io/egress-no-internal-traffic", Value: "true or false",
		Meaning: "Leave traffic within the cluster alone.", Unsupported: true, Instead: "Herald always does that"},
	{Key: "kube-vip.io/egress-detect-api-server", Value: "true or false",
		Meaning: "Leave traffic to the API server alone.", Unsupported: true, Instead: "Herald always does that"},
	{Key: "kube-vip.io/egress-ipv6", Value: "true or false", Meaning: "Use the IPv6 VIP for egress.", Unsupported: true,
		Instead: "pods have egress in each family of which the Service has a VIP"},
	{Key: "kube-vip.io/forcePerServiceElection", Value: "true or false",
		Meaning: "Elect an owner for this Service alone, where per_service_election_on_demand is set.", Unsupported: true,
		Instead: "owners are elected as svc_election says; per_service_election_on_demand is refused"},
}

// readAnnotations fills in what annotations say, unreadable ones in s.Invalid.
func readAnnotations(s *vip.Service, annotations, selector map[string]string, loadBalancerIP string) {
	r := annotationReader{s, annotations}
	s.VIPHost = vip.Truncate(annotations[vipHostKey], maxName+1)
	s.Announcer = vip.Truncate(annotations[announcerKey], maxName+1)
	s.Ignore = parseAnnotation(r, ignoreKey, parseBool)
	s.AllowWithoutEndpoints = parseAnnotation(r, withoutEndpointsKey, parseBool)
	s.AllPorts = parseAnnotation(r, allPortsKey, parseBool)
	s.Interface = cmp.Or(parseAnnotation(r, serviceVLANKey, parseInterface),
		parseAnnotation(r, interfaceKey, parseInterface))
	s.Lease = parseAnnotation(r, leaseNameKey, r.parseLeaseName)
	r.readPools()
	r.readAddresses(loadBalancerIP)
	s.IPMode = parseAnnotation(r, ipModeKey, parseIPMode)
	s.Forward = r.forward()
	s.DHCP = r.dhcp()
	s.Announce = parseAnnotation(r, announceKey, parseMethods)
	s.BGPAttributes = r.bgpAttributes()
	s.Egress = r.egress(selector)
	r.reportUnknown()
}

type annotationReader struct {
	service     *vip.Service
	annotations map[string]string
}

func (r annotationReader) value(key string) string { return strings.TrimSpace(r.annotations[key]) }

// invalid adds to Service.Invalid an annotation, its value and the problem.
func (r annotationReader) invalid(key, problem string) {
	text := fmt.Sprintf("%s is %s: %s.", key, vip.Quote(r.annotations[key]), problem)
	r.service.Invalid = append(r.service.Invalid, text)
}

// parseAnnotation returns what parse makes of an annotation, problems in Service.Invalid.
func parseAnnotation[T any](r annotationReader, key string, parse func(value string) (v T, problem string)) (v T) {
	value := r.value(key)
	if value == "" {
		return v
	}
	v, problem := parse(value)
	if problem != "" {
		r.invalid(key, problem)
	}
	return v
}

func parseBool(value string) (on bool, problem string) {
	on, err := strconv.ParseBool(value)
	if err != nil {
		return false, "neither true nor false, so it counts as false"
	}
	return on, ""
}

// maxName is the longest name in Kubernetes (RFC 1123 subdomains); cut to one more, nothing is named.
const maxName = 253

// parseInterface returns even no name of a link: a VIP never goes to one that nobody asked for.
func parseInterface(value string) (name, problem string) {
	if !vip.IsLinkName(value) {
		return vip.Truncate(value, 60), "no name of a network interface; write one of at most 15 characters, or auto"
	}
	return value, ""
}

// parseLeaseName reads name or namespace/name of a permitted Lease.
func (r annotationReader) parseLeaseName(value string) (name, problem string) {
	namespace, name, both := strings.Cut(value, "/")
	if !both {
		namespace, name = r.service.Key.Namespace, value
	}
	switch {
	case namespace != r.service.Key.Namespace:
		return "", fmt.Sprintf("the Lease must be in the Service's own namespace; write a name, or %s/name. The default "+
			"is used", r.service.Key.Namespace)
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return "", "no name that a Lease can have; write lower case letters, digits, - and . only. The default is used"
	case strings.HasPrefix(name, vip.NodeLeasePrefix):
		return "", fmt.Sprintf("names that begin with %s are those of node leases; write another. The default is used",
			vip.NodeLeasePrefix)
	case slices.Contains(otherLeases, name):
		return "", "a Lease that Herald uses for something else; write another. The default is used"
	}
	return name, ""
}

// otherLeases are Herald's names beside those of node leases: no Service may have them.
var otherLeases = []string{"herald-table", "herald-pools"}

// maxSharingKey is how many bytes of a sharing key are kept.
const maxSharingKey = 253

func parseSharingKey(value string) (key, problem string) {
	if len(value) > maxSharingKey {
		return "", fmt.Sprintf("longer than %d bytes; write a shorter text. The addresses are shared with no other namespace",
			maxSharingKey)
	}
	return value, ""
}

func parseIPMode(value string) (mode vip.IPMode, problem string) {
	for _, mode := range []vip.IPMode{vip.ModeVIP, vip.ModeProxy} {
		if strings.EqualFold(value, string(mode)) {
			return mode, ""
		}
	}
	return "", "write VIP or Proxy. The default is used"
}

const (
	maxUnknownNamed   = 3  // unknown annotations of a Service that its user is told of
	maxUnknownChecked = 32 // unknown annotations of a Service that are compared with the known ones
)

// reportUnknown tells of the first three annotations that are probably mistyped.
func (r annotationReader) reportUnknown() {
	var unknown []string
	for key := range r.annotations {
		if strings.HasPrefix(key, "heraldvip.io/") || strings.HasPrefix(key, "kube-vip.io/") {
			if !slices.ContainsFunc(Annotations, func(a Annotation) bool { return a.Key == key }) {
				unknown = append(unknown, key)
			}
		}
	}
	slices.Sort(unknown)
	reported := 0
	for _, key := range unknown[:min(len(unknown), maxUnknownChecked)] {
		if len(validation.IsQualifiedName(key)) > 0 {
			continue // the API server takes no such key, and it could not be shown
		}
		text := vip.Truncate(key, 80)
		switch near := nearestAnnotation(key); {
		case near != "":
			text += " is not known; did you mean " + near + "? It has no effect."
		case strings.HasPrefix(key, "heraldvip.io/"):
			text += " is not known on a Service. It has no effect."
		default:
			continue
		}
		r.service.Invalid = append(r.service.Invalid, text)
		if reported++; reported == maxUnknownNamed {
			return
		}
	}
}

// nearestAnnotation returns the annotation within two letters of key, or "".
func nearestAnnotation(key string) (nearest string) {
	_, name, _ := strings.Cut(strings.ToLower(key), "/")
	least := 3
	for _, a := range Annotations {
		if a.Written || a.Unsupported {
			continue
		}
		_, known, _ := strings.Cut(strings.ToLower(a.Key), "/")
		if d := levenshtein.Distance(name, known, nil); d < least {
			nearest, least = a.Key, d
		}
	}
	return nearest
}
