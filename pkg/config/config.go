// Package config turns flags, a file and the environment into one typed value.
//
// Options is the one table of all options. The flags, the environment
// variables, the keys of the file, the reference page and the environment of
// the generated manifests all come from it.
package config

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Config is what an operator asked for, checked. It is never changed after Parse.
type Config struct {
	Log          Log
	Node         Node
	Link         Link
	Lease        Lease
	Peers        Peers
	Services     Services
	Egress       Egress
	Class        Class
	Pools        vip.Key // the ConfigMap of pools: svc_pools_namespace, svc_pools; without a Name there are none
	ARP          ARP
	BGP          BGP
	RoutingTable RoutingTable
	Kube         Kube
	Serve        Serve
	UPnP         UPnP
	DHCP         DHCP
	ControlPlane ControlPlane
}

// OnlyControlPlane reports whether all that Herald is for is the control plane's VIP.
func (c *Config) OnlyControlPlane() bool { return c.ControlPlane.Enable && !c.Services.Enable }

// GivesAddresses reports whether Services without an address are given one of a pool. Who watches the
// Services of one namespace does not know which addresses those of others have, so gives none.
func (c *Config) GivesAddresses() bool {
	return c.Services.Enable && !c.Services.ReadOnly && c.Services.Namespace == "" && c.Pools.Name != ""
}

// Log configures what is logged.
type Log struct {
	Level  slog.Level // vip_loglevel
	Format string     // herald_log_format: Text or JSON
}

// The values of herald_log_format.
const (
	Text = "text"
	JSON = "json"
)

// Node identifies this process.
type Node struct {
	Name      string // vip_nodename: lower case, an RFC 1123 subdomain
	Namespace string // the pod's own namespace, or cp_namespace: where the node leases are
}

// Link configures which interfaces carry VIPs, and how.
type Link struct {
	Interface string // vip_interface; "" is that of the default route
	// Services is the interface of Services' VIPs unless a Service says
	// otherwise: vip_servicesinterface, or Interface if that is not set.
	// Auto is the one whose subnet has the VIP.
	Services  string
	AllowDown bool // vip_allow_interface_not_up
	Bits4     int  // vip_subnet: prefix length of IPv4 VIPs; AutoBits is that of the matching interface address
	Bits6     int  // likewise of IPv6 VIPs
}

// Auto is the value of vip_servicesinterface that leaves the choice to the VIP's address.
const Auto = "auto"

// AutoBits in Link.Bits4 and Link.Bits6 is the prefix length of the interface's address whose subnet has the VIP.
const AutoBits = 0

// Lease is the timing of leases: Duration > RenewDeadline > 1.2 x RetryPeriod.
type Lease struct {
	Duration      time.Duration // vip_leaseduration: how long others wait for a node that is silent
	RenewDeadline time.Duration // vip_renewdeadline: how long an owner goes on without a renewal
	RetryPeriod   time.Duration // vip_retryperiod: how often a node renews
}

// Peers configures the heartbeats that nodes send each other.
type Peers struct {
	Port    uint16 // herald_peers_port: UDP and TCP; 0 is off
	KeyFile string // herald_peers_key: a file of keys; "" is the Secret that Herald makes itself
}

// Services configures which Services get VIPs, and how.
type Services struct {
	Enable    bool    // svc_enable
	Election  bool    // svc_election: an owner per Service; false: one owner for all
	Namespace string  // svc_namespace; "" is all of them
	Lease     vip.Key // svc_leasename: the single lease when Election is false
	Rebalance bool    // vip_rebalance: move VIPs to nodes that carry fewer
	// KeepConnections is how long after a move of a VIP connections that began before it are
	// kept (herald_keep_connections); 0: they are reset by the move.
	KeepConnections time.Duration
	ReadOnly        bool           // disable_service_updates: write nothing to Services
	IPMode          string         // svc_ipmode: "VIP" or "Proxy"
	LimitPorts      bool           // enable_service_security: VIPs take packets to ports of Services only
	Addresses       string         // svc_addresses: what Services may ask for by name: "any" or "pools"
	Reserved        []netip.Prefix // svc_reserved: what no Service may have
}

// Egress configures what pods send with a VIP as its source.
type Egress struct {
	Enable   bool           // egress_enable: Services may ask for it
	Pods     []netip.Prefix // egress_podcidr
	Services []netip.Prefix // egress_servicecidr
}

// Class configures which load balancer class is Herald's.
type Class struct {
	Name   string // lb_class_name; may be empty
	Only   bool   // lb_class_only: with Legacy, only Services that carry the class
	Legacy bool   // lb_class_legacy_handling: Services without a class are Herald's too
}

// ARP configures how VIPs are announced to the neighbours of a link (ARP and NDP).
type ARP struct {
	Enable  bool          // vip_arp
	Period  time.Duration // vip_arpRate: between repeated announcements
	SkipDAD bool          // vip_skipdad: do not ask whether a new VIP is free
}

// Kube configures how the API server is reached.
type Kube struct {
	ConfigFile string // k8s_config_file: a kubeconfig; "" leaves the choice to the usual places
	Server     string // kubernetes_addr: a URL that overrides the API server's address, or ""
}

// Serve configures where HTTP is served.
type Serve struct {
	Metrics    string // prometheus_server: host:port; "" is off
	HealthPort uint16 // health_check_port; 0 is off
}

// UPnP configures which ports gateways may be asked to forward for Services.
type UPnP struct {
	Enable     bool         // enable_upnp
	Status     bool         // upnp_status: external addresses are written to the status
	Namespaces []string     // upnp_namespaces: of Services that may have ports forwarded; nil is all
	Ports      [][2]uint16  // upnp_ports: the first and the last of external ports that may be forwarded; nil is all
	Gateways   []netip.Addr // upnp_gateways: which are asked; nil is any gateway on the VIP's link
}

// DHCP configures how addresses are leased from DHCP servers.
type DHCP struct {
	Attempts int    // dhcp_backoff_attempts: tries in a row before a pause; 0 is no pause
	Mode     string // dhcp_mode: "ipv4", "ipv6" or "dual"
	// MacvlanPrefixes is with which names of interfaces that Services choose begin (dhcp_macvlan_prefixes).
	MacvlanPrefixes []string
}

// ControlPlane configures the VIP of the API servers.
type ControlPlane struct {
	Enable    bool         // cp_enable
	Addresses []netip.Addr // address: at most one of each family
	Port      uint16       // port of the API servers
	Lease     vip.Key      // vip_leasename: the VIP's lease
	Balance   Balance

	CheckURL      string        // control_plane_health_check_address; "" leaves it to Port
	CheckPeriod   time.Duration // between two health checks
	CheckTimeout  time.Duration // for one answer
	CheckFailures int           // in a row that make the API server count as not ready
	CheckCA       string        // control_plane_health_check_ca_path; "" leaves it to the credentials for the API server
}

// Balance is how connections to the VIP are balanced over the API servers.
type Balance struct {
	Enable bool   // lb_enable, with lb_fwdmethod=masquerade
	Port   uint16 // lb_port: the port of the VIP; ControlPlane.Port if not set
	Method string // lb_fwdmethod: Local or Masquerade
}

// Local is the value of lb_fwdmethod with which the owner of the VIP serves all connections itself.
const Local = "local"

// Masquerade is the value of lb_fwdmethod with which the owner of the VIP translates the addresses of connections, to
// those of an API server and of its own.
const Masquerade = "masquerade"
