package vip

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Key names a namespaced object: a Service or a Lease.
type Key struct {
	Namespace string
	Name      string
}

// String is namespace/name, as kubectl and Events write it.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// MarshalText lets a Key be the key of a JSON object.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what String returns.
func (k *Key) UnmarshalText(text []byte) error {
	namespace, name, found := strings.Cut(string(text), "/")
	if !found {
		namespace, name = "", namespace
	}
	*k = Key{Namespace: namespace, Name: name}
	return nil
}

// IsZero reports whether k names nothing.
func (k Key) IsZero() bool { return k == Key{} }

// Compare orders Keys by namespace, then name.
func (k Key) Compare(o Key) int {
	if c := strings.Compare(k.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.Name, o.Name)
}

// A Service is what Herald needs to know of a Kubernetes Service.
type Service struct {
	Key     Key
	UID     string
	Created time.Time // metadata.creationTimestamp, whole seconds; decides who is older
	Deleted time.Time `json:",omitzero"` // metadata.deletionTimestamp: it is gone once it has no finalizer; zero: it stays

	Finalizer bool // it has the finalizer of load balancers, service.kubernetes.io/load-balancer-cleanup

	LoadBalancer bool   // spec.type is LoadBalancer
	HasClass     bool   // spec.loadBalancerClass is set (it may be set to "")
	Class        string // spec.loadBalancerClass
	Ignore       bool   // kube-vip.io/ignore

	Addresses []netip.Addr // the addresses it asks for, in order, unmapped, without repetition
	Source    string       // the field that named them, for messages; "" if none did
	Families  []Family     // spec.ipFamilies; a VIP of another family can't reach a backend
	DualStack DualStack    // spec.ipFamilyPolicy
	Pools     []string     // the pools it asks for, in order (heraldvip.io/pool)
	Renumber  bool         // heraldvip.io/renumber: what it was given may be replaced if no pool offers it any more
	// heraldvip.io/allocated as it stands: the pools of Addresses, with commas; "" if a person set them
	Allocated string
	Own       []netip.Addr // those of Addresses that a person named, where Herald gave the others
	// what Herald gave is still written, but a person has named others since
	Superseded bool
	Labels     map[string]string // at most 64 of them, the first by name; nil without pools
	Interface  string            // kube-vip.io/serviceInterface: a link's name, "auto", or "" for the node's default
	Lease      string            // kube-vip.io/leaseName: a Lease's name in the Service's own namespace, or ""

	// heraldvip.io/sharing-key: Services of other namespaces with it may share the addresses; "": none
	SharingKey string

	DHCP DHCP // how an address is asked for if one is 0.0.0.0 or ::

	Local                 bool        // externalTrafficPolicy is Local
	NoKubeProxy           bool        // a label leaves it to another proxy
	HealthCheckNodePort   uint16      // spec.healthCheckNodePort; 0 if there is none
	ClientIPAffinity      bool        // sessionAffinity is ClientIP
	Ports                 []Port      // in the order of the spec
	AllowWithoutEndpoints bool        // kube-vip.io/allow-reconcile-without-endpoints
	AllPorts              bool        // kube-vip.io/ignore-service-security: enable_service_security does not apply to it
	Egress                *EgressRule // kube-vip.io/egress; nil: what its pods send keeps its source
	Pods                  []Pod       // with Egress: its pods, sorted by name
	PodsUnknown           string      // with Egress: why Pods is not known, or ""
	IPMode                IPMode      // heraldvip.io/ip-mode; "" if not said
	Endpoints             Endpoints
	Announce              []Method      // heraldvip.io/announce: the ways it wants; nil is all that are enabled
	BGPAttributes         BGPAttributes // heraldvip.io/bgp-*: what it says of its routes
	Forward               *Forward      // kube-vip.io/forwardUPNP: what gateways are asked for; nil for nothing

	Ingress    []Ingress   // status.loadBalancer.ingress as it stands
	Conditions []Condition // status.conditions of Herald's types, as they stand
	Record     Record      // the one among Conditions
	Written    time.Time   // when Herald last changed the status, in whole seconds (metadata.managedFields), or zero
	VIPHost    string      // kube-vip.io/vipHost as it stands: the node that last wrote the status
	// heraldvip.io/announcer as it stands: which installation; "" for another program
	Announcer string
	Invalid   []string // what could not be read, each a sentence that names the field
}

// SourceStatus is Source where only the status names an address.
const SourceStatus = "status.loadBalancer.ingress"

// IsGiven reports whether Herald gave a, one of Addresses, from a pool.
func (s *Service) IsGiven(a netip.Addr) bool { return s.Allocated != "" && !slices.Contains(s.Own, a) }

// Peculiar returns what s asks for that would decide where, or how, a shared address is announced, but for its link.
func (s *Service) Peculiar() string {
	switch {
	case s.Local:
		return "externalTrafficPolicy Local"
	case s.ClientIPAffinity:
		return "sessionAffinity ClientIP"
	case s.Lease != "":
		return "kube-vip.io/leaseName"
	case s.Announce != nil:
		return "heraldvip.io/announce"
	case s.BGPAttributes.named():
		return "heraldvip.io/bgp-..."
	}
	return ""
}

// Lacks returns the families that a RequireDualStack Service with an address lacks.
func (s *Service) Lacks() (families []Family) {
	if s.DualStack != RequireDualStack || len(s.Addresses) == 0 ||
		slices.ContainsFunc(s.Addresses, netip.Addr.IsUnspecified) {
		return nil
	}
	for _, f := range []Family{IPv4, IPv6} {
		if !slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return FamilyOf(a) == f }) {
			families = append(families, f)
		}
	}
	return families
}

// StatusVIPs returns the VIPs of the status; mode Proxy is gateways' (UPnP), unless all are.
func (s *Service) StatusVIPs() (vips []netip.Addr) {
	isVIP := func(i Ingress) bool { return i.IPMode != ModeProxy }
	all := !slices.ContainsFunc(s.Ingress, isVIP)
	for _, i := range s.Ingress {
		if i.Addr.IsValid() && (all || isVIP(i)) {
			vips = append(vips, i.Addr)
		}
	}
	return vips
}

// LeaseKey is the unit that a Service asks for, or kubevip- and its name, in its namespace.
func (s *Service) LeaseKey() Key {
	if s.Lease != "" {
		return Key{Namespace: s.Key.Namespace, Name: s.Lease}
	}
	return OwnLeaseKey(s.Key)
}

// LeaseKeys are the units that a Service may have: LeaseKey, and OwnLeaseKey in its place.
func (s *Service) LeaseKeys() []Key {
	if s.Lease == "" {
		return []Key{s.LeaseKey()}
	}
	return []Key{s.LeaseKey(), OwnLeaseKey(s.Key)}
}

// OwnLeaseKey is the unit of the Service k if it names none.
func OwnLeaseKey(k Key) Key { return Key{Namespace: k.Namespace, Name: "kubevip-" + k.Name} }

// DHCP is what a Service's annotations say to DHCP servers.
type DHCP struct {
	Hostname  string       // kube-vip.io/loadbalancerHostname
	MAC       string       // kube-vip.io/hwaddr, as net.HardwareAddr writes it
	Requested []netip.Addr // kube-vip.io/requestedIP: one of a family at most
	Macvlan   string       // kube-vip.io/macvlanName
	Broadcast bool         // kube-vip.io/dhcp-broadcast
	RPFilter  string       // kube-vip.io/rp_filter: "0", "1", "2", or "" if not said
	Leases    []DHCPLease  // heraldvip.io/dhcp-lease: what was leased when the status was written last
}

// A Family is an IP version, 4 or 6.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// CompareAge orders Services by creationTimestamp, oldest first, then by Key.
func CompareAge(a, b *Service) int {
	return cmp.Or(a.Created.Compare(b.Created), a.Key.Compare(b.Key))
}

// FamilyOf is the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Unspecified is the family's 0.0.0.0 or ::.
func (f Family) Unspecified() netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// String is "IPv4" or "IPv6", as Services spell it.
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// MarshalText writes String; without it encoding/json writes lists in base64.
func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// A DualStack is spec.ipFamilyPolicy of a Service.
type DualStack uint8

// The policies. SingleStack stands for a Service without one.
const (
	SingleStack DualStack = iota
	PreferDualStack
	RequireDualStack
)

// A Port is one a Service listens on. Services share an address if they share no Port.
type Port struct {
	Protocol string // TCP, UDP or SCTP
	Port     uint16
}

// An IPMode says how packets for the address arrive (KEP-1860, Service .status.loadBalancer.ingress.ipMode).
type IPMode string

// The modes Kubernetes knows. An API server without the field has "".
const (
	ModeVIP   IPMode = "VIP"   // with the VIP as destination: kube-proxy serves it on every node
	ModeProxy IPMode = "Proxy" // kube-proxy leaves the address alone
)

// Endpoints are a Service's backends, of all EndpointSlices; node names sorted, each once.
type Endpoints struct {
	Ready       []string `json:"readyOn,omitempty"`       // nodes with a ready endpoint
	Terminating []string `json:"terminatingOn,omitempty"` // nodes with a serving, terminating endpoint
	WithoutNode bool     `json:"withoutNode,omitempty"`   // there is a usable endpoint that names no node
}

// Any reports whether an endpoint gets traffic: ready, or else serving while it ends (KEP-1669).
func (e Endpoints) Any() bool {
	return len(e.Ready) > 0 || len(e.Terminating) > 0 || e.WithoutNode
}

// Local is the nodes with a ready endpoint, else with a serving, terminating one.
func (e Endpoints) Local() []string {
	if len(e.Ready) > 0 {
		return e.Ready
	}
	return e.Terminating
}

// An Ingress is one entry of a Service's status.loadBalancer.ingress.
type Ingress struct {
	Addr     netip.Addr // zero if the entry has a hostname only
	Hostname string
	IPMode   IPMode
	Ports    []Port
}
