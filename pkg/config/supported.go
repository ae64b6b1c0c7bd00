package config

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// The releases that options came with.
const (
	first  = "0.1"
	second = "0.2"
	third  = "0.3"
)

// anywhere: an empty value is a value wherever it is given.
var anywhere = []Origin{FromFlag, FromFile, FromEnv}

// supported are the options that this version supports, but for those of BGP.
var supported = slices.Concat(
	inSection(groupGeneral, first, []Option{
		{Env: "vip_loglevel", Flag: "log", Type: Int, Default: "0",
			Meaning: "What is logged, as a level of Go's slog: -4 debug, 0 info, 4 warnings, 8 errors.",
			set:     store(parseLogLevel, func(c *Config) *slog.Level { return &c.Log.Level })},
		{Env: "vip_nodename", Flag: "nodeName", Type: Name,
			Meaning: "The name of this node, under which it holds leases. Lower-cased. It must be the name of its Node object. The host's name if not set.",
			set:     func(c *Config, v string) (err error) { c.Node.Name, err = parseNodeName(v); return err }},
		{Env: "cp_namespace", Flag: "namespace", Short: "n", Type: Name, Default: "kube-system",
			Meaning: "The namespace of the announcers and of their leases. Used only if the pod's own namespace is not known, as in a static Pod, which has no ServiceAccount.",
			set:     store(parseNamespace, func(c *Config) *string { return &c.Node.Namespace })},
		{Env: "herald_config", Flag: "config", Type: Path,
			Meaning: "A YAML file of options, its keys being the names of the environment variables. The file wins over flags, the environment over both.",
			set:     func(*Config, string) error { return nil }}, // collect reads it
	}),
	inSection(groupLinks, first, []Option{
		{Env: "vip_interface", Flag: "interface", Type: Interface,
			Meaning: "The interface that carries VIPs. If not set, that of the default route (IPv4, else IPv6). For the control plane's VIP it is the one whose subnet has it, if there is one.",
			set:     store(parseInterface, func(c *Config) *string { return &c.Link.Interface })},
		{Env: "vip_servicesinterface", Flag: "serviceInterface", Type: Interface,
			Meaning: "The interface of Services' VIPs, if it isn't `vip_interface`. `auto` is the one whose subnet has the VIP. The annotation `kube-vip.io/serviceInterface` on a Service wins over it.",
			set:     store(parseLinkName, func(c *Config) *string { return &c.Link.Services })},
		{Env: "vip_subnet", Flag: "vipSubnet", Type: String, Default: "32,128",
			Meaning: "The prefix lengths with which VIPs are bound, IPv4 first, such as `24,64`. One of them (`24`, `/24`, `64`) leaves the other at its default. `auto` is that of the interface's own address whose subnet has the VIP.",
			set: func(c *Config, v string) (err error) {
				c.Link.Bits4, c.Link.Bits6, err = parsePrefixLengths(v)
				return err
			}},
		{Env: "vip_allow_interface_not_up", Flag: "allowInterfaceNotUp", Type: Bool, Default: "false",
			Meaning: "Start although the interface is not up, and wait for it. The node carries no VIP before it is.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Link.AllowDown })},
	}),
	inSection(groupLeases, first, []Option{
		{Env: "vip_leaseduration", Flag: "leaseDuration", Type: Seconds, Default: "15",
			Meaning: "How long the others wait for a node that no longer renews its lease. Where nodes exchange heartbeats (`herald_peers_port`), a dead one is noticed sooner. More than `vip_renewdeadline`.",
			set:     store(seconds(1, maxSeconds), func(c *Config) *time.Duration { return &c.Lease.Duration })},
		{Env: "vip_renewdeadline", Flag: "leaseRenewDuration", Type: Seconds, Default: "10",
			Meaning: "How long a node keeps its VIPs without being able to renew its lease. More than 1.2 times `vip_retryperiod`.",
			set:     store(seconds(1, maxSeconds), func(c *Config) *time.Duration { return &c.Lease.RenewDeadline })},
		{Env: "vip_retryperiod", Flag: "leaseRetry", Type: Seconds, Default: "2",
			Meaning: "How often a node renews its lease.",
			set:     store(seconds(1, maxSeconds), func(c *Config) *time.Duration { return &c.Lease.RetryPeriod })},
		{Env: "herald_peers_port", Flag: "peersPort", Type: Port, Default: "7947",
			Meaning: "The port of the heartbeats that nodes exchange on the link of VIPs. UDP and TCP; the same on all nodes, and open between them. The VIPs of a dead node then move in less than a second. 0 is off: they move after `vip_leaseduration`.",
			set:     store(parsePortOrNone, func(c *Config) *uint16 { return &c.Peers.Port })},
		{Env: "herald_peers_key", Flag: "peersKey", Type: Path,
			Meaning: "A file with the keys that encrypt the heartbeats. One per line, in base64, the newest first. It is read again each half minute. If not set, Herald makes a key itself and keeps it in the Secret `herald-peers` in the announcers' namespace, which comes with the manifests.",
			set:     store(pathOf("a file with a key"), func(c *Config) *string { return &c.Peers.KeyFile })},
	}),
	inSection(groupServices, first, []Option{
		{Env: "svc_enable", Flag: "services", Type: Bool, Default: "false",
			Meaning: "Announce the addresses of Services of type LoadBalancer. Without it Herald announces nothing, and warns of that.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Services.Enable })},
		{Env: "svc_election", Flag: "servicesElection", FlagAliases: []string{"enableServicesElection"}, Type: Bool, Default: "false",
			Meaning: "Elect an owner for each Service, which spreads VIPs over the nodes. Otherwise one node owns all VIPs (`svc_leasename`). Services with `externalTrafficPolicy: Local` need it if they are announced by ARP.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Services.Election })},
		{Env: "svc_namespace", Flag: "serviceNamespace", Type: Name,
			Meaning: "Announce the Services of this namespace only; namespaced Roles are then enough. All namespaces if not set.",
			set:     store(parseNamespace, func(c *Config) *string { return &c.Services.Namespace })},
		{Env: "svc_leasename", Flag: "servicesLeaseName", Type: Name, Default: "plndr-svcs-lock",
			Meaning: "The one lease for all Services while `svc_election` is false. `name`, in the announcers' namespace, or `namespace/name`.",
			set:     store(parseLease, func(c *Config) *vip.Key { return &c.Services.Lease })},
		{Env: "svc_ipmode", Flag: "ipMode", Type: String, Default: "VIP",
			Meaning: "The `ipMode` written to a Service's status, `VIP` or `Proxy`. `VIP`: packets arrive with the VIP as destination; kube-proxy serves it on every node. `Proxy`: kube-proxy leaves the address alone. The annotation `heraldvip.io/ip-mode` on a Service wins over it.",
			set:     store(oneOf("VIP", "Proxy"), func(c *Config) *string { return &c.Services.IPMode })},
		{Env: "svc_reserved", Flag: "servicesReserved", Type: List,
			Meaning: "Addresses and ranges that no Service may have, such as `10.244.0.0/16,192.168.0.1`. For pod ranges that only the network plugin knows, and for other hosts. What Herald knows itself is refused without it: nodes, their gateways, API servers, ServiceCIDRs, `spec.podCIDRs` of Nodes.",
			set:     store(list(parsePrefix), func(c *Config) *[]netip.Prefix { return &c.Services.Reserved })},
		{Env: "svc_quota", Flag: "servicesQuota", Type: Int, Default: "0",
			Meaning: "How many addresses the Services of one namespace may have together. 0 is no limit but that of 16 addresses a Service. What a Service has already stays when the option is lowered.",
			set:     store(parseQuota, func(c *Config) *int { return &c.Services.Quota })},
		{Env: "vip_rebalance", Flag: "rebalance", Type: Bool, Default: "false",
			Meaning: "Move VIPs to nodes that carry fewer. One after another, make before break, and to a node that has been up for half a minute, longer if it comes and goes. Without it VIPs stay where they are. Needs `svc_election`.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Services.Rebalance })},
		{Env: "herald_keep_connections", Flag: "keepConnections", Type: Seconds, Default: "3600",
			Meaning: "How long TCP connections outlive a move of their Service's VIP. Its owner sends the packets of those that it does not know on to the node that had the VIP before, by nftables. 0: a move resets them.",
			set:     store(seconds(0, maxSeconds), func(c *Config) *time.Duration { return &c.Services.KeepConnections })},
		{Env: "disable_service_updates", Flag: "disableServiceUpdates", Type: Bool, Default: "false",
			Meaning: "Announce VIPs, but write neither status nor annotations to Services.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Services.ReadOnly })},
	}),
	inSection(groupClass, first, []Option{
		{Env: "lb_class_name", Flag: "lbClassName", Aliases: []string{"LoadBalancerClassName"}, FlagAliases: []string{"LoadBalancerClassName"}, Type: String, Default: "kube-vip.io/kube-vip-class", Empty: anywhere,
			Meaning: "The `spec.loadBalancerClass` that is Herald's. May be set to nothing (`lb_class_name=`): then only Services without a class are.",
			set:     store(parseClass, func(c *Config) *string { return &c.Class.Name })},
		{Env: "lb_class_only", Flag: "lbClassOnly", Type: Bool, Default: "false",
			Meaning: "With legacy handling: only Services that carry the class.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Class.Only })},
		{Env: "lb_class_legacy_handling", Flag: "lbClassNameLegacyHandling", Aliases: []string{"LoadBalancerClassLegacyHandling"}, FlagAliases: []string{"LoadBalancerClassLegacyHandling"}, Type: Bool, Default: "true",
			Meaning: "Services without a class are Herald's too, in addition to those with its class. `false`: the class must be equal to `lb_class_name`; Services without one only if that is empty.",
			set:     store(parseBool, func(c *Config) *bool { return &c.Class.Legacy })},
	}),
	inSection(groupARP, first, []Option{
		{Env: "vip_arp", Flag: "arp", Type: Bool, Default: "false",
			Meaning: "Announce VIPs to the link's neighbours by ARP (IPv4) and NDP (IPv6). `svc_enable` needs this, `bgp_enable` or both. VIPs by DHCP need it.",
			set:     store(parseBool, func(c *Config) *bool { return &c.ARP.Enable })},
		{Env: "vip_arpRate", Flag: "arpRate", Type: Milliseconds, Default: "3000",
			Meaning: "The period of repeated announcements. Less than 500 is taken as 3000.",
			set:     store(parseARPPeriod, func(c *Config) *time.Duration { return &c.ARP.Period })},
		{Env: "vip_skipdad", Flag: "skipDAD", Type: Bool, Default: "false",
			Meaning: "Do not ask the network, for 0.12 s, whether another host has the address before a VIP is used for the first time. A VIP that moves between nodes never waits for that.",
			set:     store(parseBool, func(c *Config) *bool { return &c.ARP.SkipDAD })},
	}),
	inSection(groupAPIServer, first, []Option{
		{Env: "k8s_config_file", Flag: "k8sConfigPath", Type: Path,
			Meaning: "A kubeconfig file. The first of these is used: this file if it exists, the pod's ServiceAccount, `/etc/kubernetes/admin.conf`, `$HOME/.kube/config`.",
			set:     store(pathOf("a kubeconfig file"), func(c *Config) *string { return &c.Kube.ConfigFile })},
		{Env: "kubernetes_addr", Flag: "kubernetesAddr", Type: URL,
			Meaning: "The API server's URL, instead of the one that the kubeconfig or the pod names, such as `https://192.0.2.1:6443`.",
			set:     store(parseServer, func(c *Config) *string { return &c.Kube.Server })},
	}),
	inSection(groupServing, first, []Option{
		{Env: "prometheus_server", Flag: "prometheusHTTPServer", Type: Endpoint, Default: ":2112", Empty: []Origin{FromFlag, FromFile},
			Meaning: "Where `/metrics`, `/healthz`, `/readyz` and `/debug/plan` are served, the last over loopback only. `off`, or an empty flag, is nowhere. Without a host: on all addresses but VIPs. An address in use is a warning, and tried again.",
			set:     store(parseListenAddress, func(c *Config) *string { return &c.Serve.Metrics })},
		{Env: "health_check_port", Flag: "healthCheckPort", Type: Port, Default: "0",
			Meaning: "A port on which `/healthz` and `/readyz` are served as well, to this node alone: for kubelet. 0 is none. Generated manifests set it to 2113.",
			set:     store(parsePortOrNone, func(c *Config) *uint16 { return &c.Serve.HealthPort })},
	}),
	inSection(groupPools, third, []Option{
		{Env: "svc_pools", Aliases: []string{"KUBEVIP_CONFIG_MAP"}, Flag: "pools", Type: Name, Default: "kubevip", Empty: anywhere,
			Meaning: "The ConfigMap of address pools. Services that name no address are given one of these; see pools.md. Empty (`svc_pools=`): they are given none.",
			set:     store(parseConfigMap, func(c *Config) *string { return &c.Pools.Name })},
		{Env: "svc_pools_namespace", Aliases: []string{"KUBEVIP_NAMESPACE"}, Flag: "poolsNamespace", Type: Name, Default: "kube-system",
			Meaning: "The namespace of that ConfigMap.",
			set:     store(parseNamespace, func(c *Config) *string { return &c.Pools.Namespace })},
	}),
	inSection(groupControlPlane, second, []Option{
		{Env: "cp_enable", Flag: "controlplane", Type: Bool, Default: "false",
			Meaning: "Announce a VIP for the API servers, `address`, on a node whose own API server is ready.",
			set:     store(parseBool, func(c *Config) *bool { return &c.ControlPlane.Enable })},
		{Env: "address", Aliases: []string{"vip_address"}, Flag: "address", FlagAliases: []string{"vip"}, Type: List,
			Meaning: "The VIP of the control plane: an IP address, or one of each family with a comma between.",
			set:     store(parseVIPs, func(c *Config) *[]netip.Addr { return &c.ControlPlane.Addresses })},
		{Env: "port", Flag: "port", Type: Port, Default: "6443",
			Meaning: "The port of the API servers.",
			set:     store(parsePort, func(c *Config) *uint16 { return &c.ControlPlane.Port })},
		{Env: "vip_leasename", Flag: "leaseName", Type: Name, Default: "plndr-cp-lock",
			Meaning: "The lease of the control plane's VIP. `name`, in the announcers' namespace, or `namespace/name`.",
			set:     store(parseLease, func(c *Config) *vip.Key { return &c.ControlPlane.Lease })},
		{Env: "control_plane_health_check_address", Flag: "cpCheckAddress", FlagAliases: []string{"controlPlaneHealthCheckAddress"}, Type: URL,
			Meaning: "The URL of the health check of this node's own API server, which counts as ready if the answer is 200. If not set, `/readyz` at `port` of 127.0.0.1, or of the node's own addresses if nothing listens there.",
			set:     store(parseCheckURL, func(c *Config) *string { return &c.ControlPlane.CheckURL })},
		{Env: "control_plane_health_check_period_seconds", Flag: "cpCheckPeriod", Type: Seconds, Default: "1",
			Meaning: "How often it is checked.",
			set:     store(seconds(1, maxSeconds), func(c *Config) *time.Duration { return &c.ControlPlane.CheckPeriod })},
		{Env: "control_plane_health_check_timeout_seconds", Flag: "cpCheckTimeout", Type: Seconds, Default: "2",
			Meaning: "How long an answer may take.",
			set:     store(seconds(1, maxSeconds), func(c *Config) *time.Duration { return &c.ControlPlane.CheckTimeout })},
		{Env: "control_plane_health_check_failure_threshold", Flag: "cpCheckFailures", Type: Int, Default: "3",
			Meaning: "After how many failures in a row it counts as not ready. The VIP then goes to a node whose API server is ready. One good answer makes it ready again.",
			set:     store(number(1, 100), func(c *Config) *int { return &c.ControlPlane.CheckFailures })},
	}),
	inSection(groupDHCP, second, []Option{
		{Env: "enable_upnp", Aliases: []string{"enableUPNP"}, Flag: "enableUPNP", Type: Bool, Default: "false",
			Meaning: "Have the UPnP gateways of a VIP's link forward the ports of those Services that ask for it (`kube-vip.io/forwardUPNP`). Anybody who may annotate a Service may then open ports to the Internet.",
			set:     store(parseBool, func(c *Config) *bool { return &c.UPnP.Enable })},
		{Env: "upnp_status", Flag: "upnpStatus", Type: Bool, Default: "true",
			Meaning: "Write the gateways' external addresses to a Service's status, behind its VIPs, once its ports are open there.",
			set:     store(parseBool, func(c *Config) *bool { return &c.UPnP.Status })},
		{Env: "upnp_namespaces", Flag: "upnpNamespaces", Type: List,
			Meaning: "The namespaces whose Services may have ports opened, with commas between. All if not set.",
			set:     store(list(parseListedNamespace), func(c *Config) *[]string { return &c.UPnP.Namespaces })},
		{Env: "upnp_ports", Flag: "upnpPorts", Type: List,
			Meaning: "The external ports that may be opened, such as `80,443,30000-32767`. All if not set.",
			set:     store(list(parsePortRange), func(c *Config) *[][2]uint16 { return &c.UPnP.Ports })},
		{Env: "upnp_gateways", Flag: "upnpGateways", Type: List,
			Meaning: "The addresses of the gateways that are asked, with commas between. Any gateway that answers on the VIP's link if not set.",
			set:     store(list(parseGateway), func(c *Config) *[]netip.Addr { return &c.UPnP.Gateways })},
		{Env: "dhcp_backoff_attempts", Flag: "dhcpBackoffAttempts", Type: Int, Default: "3",
			Meaning: "After how many tries in a row without an answer a DHCP client rests for half a minute. 0 is never: the time between tries grows instead, up to a minute (IPv4) or two (IPv6).",
			set:     store(parseAttempts, func(c *Config) *int { return &c.DHCP.Attempts })},
		{Env: "dhcp_mode", Flag: "dhcpMode", Type: String, Default: "ipv4",
			Meaning: "What a Service asks for that names `0.0.0.0` and nothing else. `ipv4`: an IPv4 address. `ipv6`: an IPv6 address. `dual`: both, as far as the Service has both families. A Service can always name `0.0.0.0,::` itself.",
			set:     store(oneOf("ipv4", "ipv6", "dual"), func(c *Config) *string { return &c.DHCP.Mode })},
	}),
)
