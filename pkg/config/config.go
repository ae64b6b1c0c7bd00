// Package config turns flags, a file and the environment into one typed value.
//
// Options is the one table of all options. Flags, variables, keys of the file, the reference page and the generated
// manifests' environment come from it.
package config

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Config is what an operator asked for, checked, and never changed after Parse.
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

// OnlyControlPlane reports whether Herald is for the control plane's VIP alone.
func (c *Config) OnlyControlPlane() bool { return c.ControlPlane.Enable && !c.Services.Enable }

// GivesAddresses reports whether pools give addresses: who watches one namespace does not know those of others.
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
	KubeVIP   string // cp_namespace, if that is another one, and may be seen: where kube-vip may have its own
}

// Link configures which interfaces carry VIPs, and how.
type Link struct {
	Interface string // vip_interface; "" is that of the default route
	// Services is the interface of Services' VIPs: vip_servicesinterface, else Interface. Auto is the one whose subnet has
	// the VIP.
	Services  string
	AllowDown bool // vip_allow_interface_not_up
	Bits4     int  // vip_subnet: prefix length of IPv4 VIPs; AutoBits is that of the matching interface address
	Bits6     int  // likewise of IPv6 VIPs
}

// Auto leaves vip_servicesinterface to the VIP's address.
const Auto = "auto"

// AutoBits in Link.Bits4 and Link.Bits6 is the prefix length of the VIP's subnet on the link.
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
	// KeepConnections is how long older connections are kept after a move (herald_keep_connections); 0: it resets them.
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

// ARP configures how VIPs are announced by ARP and NDP.
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

// UPnP configures which ports gateways may be asked to forward.
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
	// MacvlanPrefixes begin the interface names that Services choose (dhcp_macvlan_prefixes).
	MacvlanPrefixes []string
}

// ControlPlane configures the VIP of the API servers.
type ControlPlane struct {
	Enable    bool         // cp_enable
	Addresses []netip.Addr // address: at most one of each family
	Port      uint16       // port of the API servers
	Lease     vip.Key      // vip_leasename: the VIP's lease
	// BalancedPort is the port of the VIP whose connections are balanced over API servers (lb_enable); 0: none is.
	BalancedPort uint16

	CheckURL      string        // control_plane_health_check_address; "" leaves it to Port
	CheckPeriod   time.Duration // between two health checks
	CheckTimeout  time.Duration // for one answer
	CheckFailures int           // in a row that make the API server count as not ready
	CheckCA       string        // control_plane_health_check_ca_path; "" leaves it to the credentials for the API server

	balance balance
}

type balance struct {
	enable bool   // lb_enable
	port   uint16 // lb_port
	method string // lb_fwdmethod
}

// The values of lb_fwdmethod: the owner serves all itself, or translates addresses to an API server's and its own.
const (
	forwardLocal      = "local"
	forwardMasquerade = "masquerade"
)

// anywhere: an empty value is a value wherever it is given.
var anywhere = []Origin{FromFlag, FromFile, FromEnv}

// supported are the options of this version, without BGP's.
var supported = slices.Concat(
	inSection(groupGeneral, []Option{
		{Env: "vip_loglevel", Flag: "log", Type: Int, Default: "0",
			Meaning: "What is logged, as a level of Go's slog: -4 debug, 0 info, 4 warnings, 8 errors. Warnings about " +
				"options are logged in any case.",
			set: store(parseLogLevel, func(c *Config) *slog.Level { return &c.Log.Level })},
		{Env: "herald_log_format", Flag: "logFormat", Type: String, Default: Text,
			Meaning: "The form of log lines, `text` (key=value) or `json`. With `json` each line is one JSON object, " +
				"durations are seconds. What is wrong with options, at the start, is text in any case.",
			set: store(oneOf(Text, JSON), func(c *Config) *string { return &c.Log.Format })},
		{Env: "vip_nodename", Flag: "nodeName", Type: Name,
			Meaning: "The name of this node, under which it holds leases. Lower-cased. It must be the name of its Node " +
				"object. The host's name if not set.",
			set: func(c *Config, v string) (err error) { c.Node.Name, err = parseNodeName(v); return err }},
		{Env: "cp_namespace", Flag: "namespace", Short: "n", Type: Name, Default: "kube-system",
			Meaning: "The namespace of the announcers and of their leases. Used only if the pod's own is not known, as in a " +
				"static Pod; else kube-vip's leases are looked for there, with `cp_enable`.",
			set: store(parseNamespace, func(c *Config) *string { return &c.Node.Namespace })},
		{Env: "herald_config", Flag: "config", Type: Path,
			Meaning: "A YAML file of options, its keys being the names of the environment variables. The file wins over " +
				"flags, the environment over both.",
			set: func(*Config, string) error { return nil }}, // collect reads it
	}),
	inSection(groupLinks, []Option{
		{Env: "vip_interface", Flag: "interface", Type: Interface,
			Meaning: "The interface that carries VIPs. If not set, that of the default route (IPv4, else IPv6); set it " +
				"where nodes have several default routes. For the control plane's VIP it is the one whose subnet has it, if " +
				"there is one.",
			set: store(parseInterface, func(c *Config) *string { return &c.Link.Interface })},
		{Env: "vip_servicesinterface", Flag: "serviceInterface", Type: Interface,
			Meaning: "The interface of Services' VIPs, if it isn't `vip_interface`. `auto` is the one whose subnet has the " +
				"VIP. The annotation `kube-vip.io/serviceInterface` on a Service wins over it.",
			set: store(parseLinkName, func(c *Config) *string { return &c.Link.Services })},
		{Env: "vip_subnet", Aliases: []string{"vip_cidr"}, Flag: "vipSubnet", FlagAliases: []string{"cidr"}, Type: String,
			Default: "32,128",
			Meaning: "The prefix lengths with which VIPs are bound, IPv4 first, such as `24,64`. One of them (`24`, `/24`, " +
				"`64`) leaves the other at its default. `auto` is that of the interface's own address whose subnet has the VIP.",
			set: func(c *Config, v string) (err error) {
				c.Link.Bits4, c.Link.Bits6, err = parsePrefixLengths(v)
				return err
			}},
		{Env: "vip_allow_interface_not_up", Flag: "allowInterfaceNotUp", Type: Bool, Default: "false",
			Meaning: "Start although the interface does not exist yet, and wait for it, as for one that is not up. " +
				"`herald preflight` lets both pass.",
			set: store(parseBool, func(c *Config) *bool { return &c.Link.AllowDown })},
	}),
	inSection(groupLeases, []Option{
		{Env: "vip_leaseduration", Flag: "leaseDuration", Type: Seconds, Default: "15",
			Meaning: "How long the others wait for a node that no longer renews its lease. Where nodes exchange heartbeats " +
				"(`herald_peers_port`), a dead one is noticed sooner. More than `vip_renewdeadline`.",
			set: store(seconds(3, maxSeconds), func(c *Config) *time.Duration { return &c.Lease.Duration })},
		{Env: "vip_renewdeadline", Flag: "leaseRenewDuration", Type: Seconds, Default: "10",
			Meaning: "How long a node keeps its VIPs without being able to renew its lease. More than 1.2 times " +
				"`vip_retryperiod`. If not set, two thirds of `vip_leaseduration` where that is less than 10.",
			set: store(seconds(2, maxSeconds), func(c *Config) *time.Duration { return &c.Lease.RenewDeadline })},
		{Env: "vip_retryperiod", Flag: "leaseRetry", Type: Seconds, Default: "2",
			Meaning: "How often a node renews its lease. If not set, 1 where `vip_renewdeadline` is less than 10.",
			set:     store(seconds(1, maxSeconds), func(c *Config) *time.Duration { return &c.Lease.RetryPeriod })},
		{Env: "herald_peers_port", Flag: "peersPort", Type: Port, Default: "7947",
			Meaning: "The port of the heartbeats that nodes exchange on the link of VIPs. If that is a loopback, they use " +
				"the link of the default route. UDP and TCP; the same on all nodes, and open between them. The VIPs of a dead " +
				"node then move in less than a second. 0 is off: they move after `vip_leaseduration`.",
			set: store(parsePortOrNone, func(c *Config) *uint16 { return &c.Peers.Port })},
		{Env: "herald_peers_key", Flag: "peersKey", Type: Path,
			Meaning: "A file with the keys that encrypt the heartbeats. One per line, in base64, the newest first. It is " +
				"read each half minute. If `herald manifest` mounts it, change it in place: a new file is seen " +
				"after a restart only. If not set, Herald makes a key and keeps it in the Secret `herald-peers`.",
			set: store(pathOf("a file with a key"), func(c *Config) *string { return &c.Peers.KeyFile })},
	}),
	inSection(groupServices, []Option{
		{Env: "svc_enable", Flag: "services", Type: Bool, Default: "false",
			Meaning: "Announce the addresses of Services of type LoadBalancer. Without it, and without `cp_enable`, Herald " +
				"announces nothing, and warns of that.",
			set: store(parseBool, func(c *Config) *bool { return &c.Services.Enable })},
		{Env: "svc_election", Aliases: []string{"enableServicesElection"}, Flag: "servicesElection",
			FlagAliases: []string{"enableServicesElection"}, Type: Bool, Default: "false",
			Meaning: "Elect an owner for each Service, which spreads VIPs over the nodes. Otherwise one node owns all VIPs " +
				"(`svc_leasename`). Services with `externalTrafficPolicy: Local` need it if they are announced by ARP.",
			set: store(parseBool, func(c *Config) *bool { return &c.Services.Election })},
		{Env: "svc_namespace", Flag: "serviceNamespace", Type: Name,
			Meaning: "Announce the Services of this namespace only; namespaced Roles are then enough. All namespaces if " +
				"not set.",
			set: store(parseNamespace, func(c *Config) *string { return &c.Services.Namespace })},
		{Env: "svc_leasename", Flag: "servicesLeaseName", Type: Name, Default: "plndr-svcs-lock",
			Meaning: "The name of all Services together in the table of owners, while `svc_election` is false. `name`, or " +
				"`namespace/name`. While a kube-vip renews a Lease of that name, Herald leaves them to it.",
			set: store(parseLease, func(c *Config) *vip.Key { return &c.Services.Lease })},
		{Env: "svc_ipmode", Flag: "ipMode", Type: String, Default: "VIP",
			Meaning: "The `ipMode` written to a Service's status, `VIP` or `Proxy`. `VIP`: packets arrive with the VIP as " +
				"destination; kube-proxy serves it on every node. `Proxy`: kube-proxy leaves the address alone. The annotation " +
				"`heraldvip.io/ip-mode` on a Service wins over it.",
			set: store(oneOf("VIP", "Proxy"), func(c *Config) *string { return &c.Services.IPMode })},
		{Env: "svc_reserved", Flag: "servicesReserved", Type: List,
			Meaning: "Addresses and ranges that no Service may have, such as `10.244.0.0/16,192.168.0.1`. For pod ranges " +
				"that only the network plugin knows, and for other hosts. What Herald knows itself is refused without it: " +
				"nodes, their gateways, API servers, ServiceCIDRs, `spec.podCIDRs` of Nodes.",
			set: store(list(parsePrefix), func(c *Config) *[]netip.Prefix { return &c.Services.Reserved })},
		{Env: "enable_service_security", Flag: "onlyAllowTrafficServicePorts", Type: Bool, Default: "false",
			Meaning: "Drop packets to other ports of a VIP than those of its Services. Without it what the node itself " +
				"listens on (SSH, kubelet) answers at a VIP, too. Needs nftables: a VIP that can't be limited is not bound. A " +
				"Service with `kube-vip.io/ignore-service-security` is exempt. See security.md.",
			set: store(parseBool, func(c *Config) *bool { return &c.Services.LimitPorts })},
		{Env: "vip_rebalance", Flag: "rebalance", Type: Bool, Default: "false",
			Meaning: "Move VIPs to nodes that carry fewer. One after another, make before break, and to a node that has " +
				"been up for half a minute, longer if it comes and goes. Without it VIPs stay where they are. Needs " +
				"`svc_election`.",
			set: store(parseBool, func(c *Config) *bool { return &c.Services.Rebalance })},
		{Env: "herald_keep_connections", Flag: "keepConnections", Type: Seconds, Default: "3600",
			Meaning: "How long TCP connections outlive a move of their VIP. Its owner sends the packets of those that it " +
				"does not know on to the node that had the VIP before, by nftables. 0: a move resets them.",
			set: store(seconds(0, maxSeconds), func(c *Config) *time.Duration { return &c.Services.KeepConnections })},
		{Env: "disable_service_updates", Flag: "disableServiceUpdates", Type: Bool, Default: "false",
			Meaning: "Announce VIPs, but write nothing to Services; only deleted ones lose their finalizers.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Services.ReadOnly })},
	}),
	inSection(groupEgress, []Option{
		{Env: "egress_enable", Flag: "egress", Type: Bool, Default: "true",
			Meaning: "Let Services have what their pods send leave the cluster with a VIP as its source " +
				"(`kube-vip.io/egress`). Needs nftables, and the permission to list and watch pods. See egress.md.",
			set: store(parseBool, func(c *Config) *bool { return &c.Egress.Enable })},
		{Env: "egress_podcidr", Flag: "egressPodCIDR", Type: List,
			Meaning: "Ranges of pods, for egress: what is sent there keeps its source. Beside `spec.podCIDRs` of Nodes, " +
				"which Herald knows; needed where the network plugin has other ranges.",
			set: store(list(parsePrefix), func(c *Config) *[]netip.Prefix { return &c.Egress.Pods })},
		{Env: "egress_servicecidr", Flag: "egressServiceCIDR", Type: List,
			Meaning: "Ranges of Services, for egress: what is sent there keeps its source. Beside the cluster's " +
				"ServiceCIDRs, which Herald knows.",
			set: store(list(parsePrefix), func(c *Config) *[]netip.Prefix { return &c.Egress.Services })},
	}),
	inSection(groupClass, []Option{
		{Env: "lb_class_name", Flag: "lbClassName", Aliases: []string{"LoadBalancerClassName"},
			FlagAliases: []string{"LoadBalancerClassName"}, Type: String, Default: "kube-vip.io/kube-vip-class", Empty: anywhere,
			Meaning: "The `spec.loadBalancerClass` that is Herald's. May be set to nothing (`lb_class_name=`): then only " +
				"Services without a class are.",
			set: store(parseClass, func(c *Config) *string { return &c.Class.Name })},
		{Env: "lb_class_only", Flag: "lbClassOnly", Type: Bool, Default: "false",
			Meaning: "With legacy handling: only Services that carry the class.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Class.Only })},
		{Env: "lb_class_legacy_handling", Flag: "lbClassNameLegacyHandling",
			Aliases: []string{"LoadBalancerClassLegacyHandling"}, FlagAliases: []string{"LoadBalancerClassLegacyHandling"},
			Type: Bool, Default: "true",
			Meaning: "Services without a class are Herald's too, in addition to those with its class. `false`: the class " +
				"must be equal to `lb_class_name`; Services without one only if that is empty.",
			set: store(parseBool, func(c *Config) *bool { return &c.Class.Legacy })},
	}),
	inSection(groupARP, []Option{
		{Env: "vip_arp", Flag: "arp", Type: Bool, Default: "false",
			Meaning: "Announce VIPs to the link's neighbours by ARP (IPv4) and NDP (IPv6). `svc_enable` needs this, " +
				"`bgp_enable` or `vip_routingtable`; any of them may be combined. VIPs by DHCP need this one.",
			set: store(parseBool, func(c *Config) *bool { return &c.ARP.Enable })},
		{Env: "vip_arpRate", Flag: "arpRate", Type: Milliseconds, Default: "3000",
			Meaning: "The period of repeated announcements. With more than ten frames a second on a node it is longer from " +
				"30 s after a change on ([ARP and NDP](../wire.md#announcing)). Less than 500 is taken as 3000.",
			set: store(parseARPPeriod, func(c *Config) *time.Duration { return &c.ARP.Period })},
		{Env: "vip_skipdad", Flag: "skipDAD", Type: Bool, Default: "false",
			Meaning: "Do not ask the network, for 0.12 s, whether another host has the address before a VIP is used for the " +
				"first time. A VIP that moves between nodes never waits for that.",
			set: store(parseBool, func(c *Config) *bool { return &c.ARP.SkipDAD })},
	}),
	inSection(groupAPIServer, []Option{
		{Env: "k8s_config_file", Flag: "k8sConfigPath", Type: Path,
			Meaning: "A kubeconfig file. The first of these is used: this file if it exists, `/etc/kubernetes/admin.conf` " +
				"(an empty one only without a ServiceAccount), the pod's ServiceAccount, `$HOME/.kube/config`.",
			set: store(pathOf("a kubeconfig file"), func(c *Config) *string { return &c.Kube.ConfigFile })},
		{Env: "kubernetes_addr", Flag: "kubernetesAddr", Type: URL,
			Meaning: "The API server's URL, instead of the one that the kubeconfig or the pod names, such as " +
				"`https://192.0.2.1:6443`.",
			set: store(parseServer, func(c *Config) *string { return &c.Kube.Server })},
	}),
	inSection(groupServing, []Option{
		{Env: "prometheus_server", Flag: "prometheusHTTPServer", Type: Endpoint, Default: ":2112",
			Empty: []Origin{FromFlag, FromFile},
			Meaning: "Where the pages are served. `/metrics`, `/healthz` and `/readyz`; over loopback only, the page of the " +
				"node (`/`) and `/debug/plan`. `off`, or an empty flag, is nowhere. Without a host: on all " +
				"addresses but VIPs. An address in use is a warning, and tried again.",
			set: store(parseListenAddress, func(c *Config) *string { return &c.Serve.Metrics })},
		{Env: "health_check_port", Flag: "healthCheckPort", Type: Port, Default: "0",
			Meaning: "A port on which `/healthz` and `/readyz` are served as well, to this node alone: for kubelet. 0 is " +
				"none. Generated manifests set it to 2113.",
			set: store(parsePortOrNone, func(c *Config) *uint16 { return &c.Serve.HealthPort })},
	}),
	inSection(groupPools, []Option{
		{Env: "svc_pools", Aliases: []string{"KUBEVIP_CONFIG_MAP"}, Flag: "pools", Type: Name, Default: "kubevip",
			Empty: anywhere,
			Meaning: "The ConfigMap of address pools. Services that name no address are given one of these; see pools.md. " +
				"With an empty one (`svc_pools=`), `svc_namespace` or `disable_service_updates` they are given none.",
			set: store(parseConfigMap, func(c *Config) *string { return &c.Pools.Name })},
		{Env: "svc_pools_namespace", Aliases: []string{"KUBEVIP_NAMESPACE"}, Flag: "poolsNamespace", Type: Name,
			Default: "kube-system", Meaning: "The namespace of that ConfigMap.",
			set: store(parseNamespace, func(c *Config) *string { return &c.Pools.Namespace })},
		{Env: "svc_addresses", Flag: "servicesAddresses", Type: String, Default: "any",
			Meaning: "Which addresses Services may ask for by name. `any`: all that are not reserved, and of no " +
				"`pool-<name>` with other `.namespaces`. " +
				"`pools`: those that a pool offers to their namespace. What a Service has already stays. See pools.md.",
			set: store(oneOf("any", "pools"), func(c *Config) *string { return &c.Services.Addresses })},
	}),
	inSection(groupControlPlane, []Option{
		{Env: "cp_enable", Flag: "controlplane", Type: Bool, Default: "false",
			Meaning: "Announce a VIP for the API servers, `address`. By ARP one node has it, whose own API server is ready; " +
				"by routes alone (BGP, a routing table) every such node.",
			set: store(parseBool, func(c *Config) *bool { return &c.ControlPlane.Enable })},
		{Env: "address", Aliases: []string{"vip_address"}, Flag: "address", FlagAliases: []string{"vip"}, Type: List,
			Meaning: "The VIP of the control plane: an IP address, or one of each family with a comma between.",
			set: where(func(c *Config) bool { return c.ControlPlane.Enable },
				store(parseVIPs, func(c *Config) *[]netip.Addr { return &c.ControlPlane.Addresses }))},
		{Env: "port", Flag: "port", Type: Port, Default: "6443", Meaning: "The port of the API servers.",
			set: store(parsePort, func(c *Config) *uint16 { return &c.ControlPlane.Port })},
		{Env: "vip_leasename", Flag: "leaseName", Type: Name, Default: "plndr-cp-lock",
			Meaning: "The name of the control plane's VIP in the table of owners, in the form of `svc_leasename`.",
			set:     store(parseLease, func(c *Config) *vip.Key { return &c.ControlPlane.Lease })},
		{Env: "lb_enable", Flag: "enableLoadBalancer", Type: Bool, Default: "false",
			Meaning: "Have the node that owns the VIP spread connections over all API servers that are ready. With " +
				"`lb_fwdmethod=masquerade`; with `local`, the default, the API server of that node answers all, with kube-vip " +
				"(whose ip_vs hands the packets to the node itself) as with Herald: a warning says so. See control-plane.md.",
			set: store(parseBool, func(c *Config) *bool { return &c.ControlPlane.balance.enable })},
		{Env: "lb_port", Flag: "lbPort", Type: Port,
			Meaning: "The port of the VIP that is balanced. If not set, `port`. No effect with `lb_fwdmethod=local`: the " +
				"VIP answers at `port`.",
			set: store(parsePort, func(c *Config) *uint16 { return &c.ControlPlane.balance.port })},
		{Env: "lb_fwdmethod", Flag: "lbForwardingMethod", Type: String, Default: forwardLocal,
			Meaning: "How balanced packets are forwarded. `masquerade`: the API servers see the node that owns the VIP as " +
				"the client. `local`: not at all. With `lb_enable` and `cp_enable` all others are an error.",
			set: where(func(c *Config) bool { return c.ControlPlane.Enable && c.ControlPlane.balance.enable },
				store(oneOf(forwardLocal, forwardMasquerade, "tunnel", "directroute", "bypass"),
					func(c *Config) *string { return &c.ControlPlane.balance.method }))},
		{Env: "control_plane_health_check_address", Flag: "cpCheckAddress",
			FlagAliases: []string{"controlPlaneHealthCheckAddress"}, Type: URL,
			Meaning: "The URL of the health check of this node's own API server. It is ready if the answer is 200, or 401 " +
				"or 403, since no credentials are sent there. If not set, `/readyz` at `port` of the node's own addresses; of " +
				"127.0.0.1 only while it has no other, since what listens there alone may be a proxy to other nodes' API servers.",
			set: store(parseCheckURL, func(c *Config) *string { return &c.ControlPlane.CheckURL })},
		{Env: "control_plane_health_check_period_seconds", Flag: "cpCheckPeriod",
			FlagAliases: []string{"controlPlaneHealthCheckPeriodSeconds"}, Type: Seconds, Default: "1",
			Meaning: "How often it is checked.",
			set:     store(seconds(1, maxSeconds), func(c *Config) *time.Duration { return &c.ControlPlane.CheckPeriod })},
		{Env: "control_plane_health_check_timeout_seconds", Flag: "cpCheckTimeout",
			FlagAliases: []string{"controlPlaneHealthCheckTimeoutSeconds"}, Type: Seconds, Default: "2",
			Meaning: "How long an answer may take.",
			set:     store(seconds(1, maxSeconds), func(c *Config) *time.Duration { return &c.ControlPlane.CheckTimeout })},
		{Env: "control_plane_health_check_failure_threshold", Flag: "cpCheckFailures",
			FlagAliases: []string{"controlPlaneHealthCheckFailureThreshold"}, Type: Int, Default: "3",
			Meaning: "After how many failures in a row it counts as not ready. The VIP then goes to a node whose API server " +
				"is ready. One good answer makes it ready again.",
			set: store(number(1, 100), func(c *Config) *int { return &c.ControlPlane.CheckFailures })},
		{Env: "control_plane_health_check_ca_path", Flag: "cpCheckCA",
			FlagAliases: []string{"controlPlaneHealthCheckCAPath"}, Type: Path,
			Meaning: "A file with the CA certificates (PEM) of the health check. The server at " +
				"`control_plane_health_check_address` is verified by them; if not set, by the cluster's CA, as the kubeconfig " +
				"or the pod's ServiceAccount has it.",
			set: store(pathOf("a file with CA certificates"), func(c *Config) *string { return &c.ControlPlane.CheckCA })},
	}),
	inSection(groupDHCP, []Option{
		{Env: "enable_upnp", Aliases: []string{"enableUPNP"}, Flag: "enableUPNP", Type: Bool, Default: "false",
			Meaning: "Have the UPnP gateways of a VIP's link forward the ports of those Services that ask for it " +
				"(`kube-vip.io/forwardUPNP`). Anybody who may annotate a Service may then open ports to the Internet.",
			set: store(parseBool, func(c *Config) *bool { return &c.UPnP.Enable })},
		{Env: "upnp_status", Flag: "upnpStatus", Type: Bool, Default: "true",
			Meaning: "Write the gateways' external addresses to a Service's status, behind its VIPs, once its ports are " +
				"open there.",
			set: store(parseBool, func(c *Config) *bool { return &c.UPnP.Status })},
		{Env: "upnp_namespaces", Flag: "upnpNamespaces", Type: List,
			Meaning: "The namespaces whose Services may have ports opened, with commas between. All if not set.",
			set:     store(list(parseListedNamespace), func(c *Config) *[]string { return &c.UPnP.Namespaces })},
		{Env: "upnp_ports", Flag: "upnpPorts", Type: List,
			Meaning: "The external ports that may be opened, such as `80,443,30000-32767`. All if not set.",
			set:     store(list(parsePortRange), func(c *Config) *[][2]uint16 { return &c.UPnP.Ports })},
		{Env: "upnp_gateways", Flag: "upnpGateways", Type: List,
			Meaning: "The addresses of the gateways that are asked, with commas between. Any gateway that answers on the " +
				"VIP's link if not set.",
			set: store(list(parseGateway), func(c *Config) *[]netip.Addr { return &c.UPnP.Gateways })},
		{Env: "dhcp_backoff_attempts", Flag: "dhcpBackoffAttempts", Type: Int, Default: "3",
			Meaning: "After how many tries in a row without an answer a DHCP client rests for half a minute. 0 is never: " +
				"the time between tries grows instead, up to a minute (IPv4) or two (IPv6).",
			set: store(parseAttempts, func(c *Config) *int { return &c.DHCP.Attempts })},
		{Env: "dhcp_macvlan_prefixes", Flag: "dhcpMacvlanPrefixes", Type: List, Default: "herald-",
			Meaning: "With what names begin that Services choose for interfaces of VIPs. Those in " +
				"`kube-vip.io/macvlanName`. Another program's interfaces must not be named so.",
			set: store(list(parseLinkPrefix), func(c *Config) *[]string { return &c.DHCP.MacvlanPrefixes })},
		{Env: "dhcp_mode", Flag: "dhcpMode", Type: String, Default: "ipv4",
			Meaning: "What a Service asks for that names `0.0.0.0` and nothing else. `ipv4`: an IPv4 address. `ipv6`: an " +
				"IPv6 address. `dual`: both, as far as the Service has both families. A Service can always name `0.0.0.0,::` " +
				"itself.",
			set: store(oneOf("ipv4", "ipv6", "dual"), func(c *Config) *string { return &c.DHCP.Mode })},
	}),
)
