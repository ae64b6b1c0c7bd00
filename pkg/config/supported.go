package config

import "time"

// first is the release that most options here came with.
const first = "0.1"

// second is the release after that.
const second = "0.2"

// anywhere: an empty value is a value wherever it is given.
var anywhere = []Origin{FromFlag, FromFile, FromEnv}

var supported = []Option{
	// General.
	{
		Env: "vip_loglevel", Flag: "log", Type: Int, Default: "0", Group: groupGeneral, Since: first,
		Meaning: "What is logged, as a level of Go's slog: -4 debug, 0 info, 4 warnings, 8 errors.",
		set:     setLogLevel,
	},
	{
		Env: "vip_nodename", Flag: "nodeName", Type: Name, Group: groupGeneral, Since: first,
		Meaning: "The name of this node, under which it holds leases. Lower-cased. It must be the name of its Node object. The host's name if not set.",
		set:     setNodeName,
	},
	{
		Env: "cp_namespace", Flag: "namespace", Short: "n", Type: Name, Default: "kube-system", Group: groupGeneral, Since: first,
		Meaning: "The namespace of the announcers and of their leases. Used only if the pod's own namespace is not known, as in a static Pod, which has no ServiceAccount.",
		set:     namespaceTo(func(c *Config) *string { return &c.Node.Namespace }),
	},
	{
		Env: "herald_config", Flag: "config", Type: Path, Group: groupGeneral, Since: first,
		Meaning: "A YAML file of options, its keys being the names of the environment variables. The file wins over flags, the environment over both.",
		set:     func(*Config, string) error { return nil }, // read before the table is
	},

	// Interfaces and addresses.
	{
		Env: "vip_interface", Flag: "interface", Type: Interface, Group: groupLinks, Since: first,
		Meaning: "The interface that carries VIPs. If not set, that of the default route (IPv4, else IPv6). For the control plane's VIP it is the one whose subnet has it, if there is one.",
		set:     setInterface,
	},
	{
		Env: "vip_servicesinterface", Flag: "serviceInterface", Type: Interface, Group: groupLinks, Since: first,
		Meaning: "The interface of Services' VIPs, if it isn't `vip_interface`. `auto` is the one whose subnet has the VIP. The annotation `kube-vip.io/serviceInterface` on a Service wins over it.",
		set:     setServicesInterface,
	},
	{
		Env: "vip_subnet", Flag: "vipSubnet", Type: String, Default: "32,128", Group: groupLinks, Since: first,
		Meaning: "The prefix lengths with which VIPs are bound, IPv4 first, such as `24,64`. One of them (`24`, `/24`, `64`) leaves the other at its default. `auto` is that of the interface's own address whose subnet has the VIP.",
		set:     setSubnet,
	},
	{
		Env: "vip_allow_interface_not_up", Flag: "allowInterfaceNotUp", Type: Bool, Default: "false", Group: groupLinks, Since: first,
		Meaning: "Start although the interface is not up, and wait for it. The node carries no VIP before it is.",
		set:     boolTo(func(c *Config) *bool { return &c.Link.AllowDown }),
	},

	// Leases.
	{
		Env: "vip_leaseduration", Flag: "leaseDuration", Type: Seconds, Default: "15", Group: groupLeases, Since: first,
		Meaning: "How long the others wait for a node that no longer renews its lease. That is if they can't tell on the wire that it is gone (`herald_peers_port`). More than `vip_renewdeadline`.",
		set:     secondsTo(func(c *Config) *time.Duration { return &c.Lease.Duration }),
	},
	{
		Env: "vip_renewdeadline", Flag: "leaseRenewDuration", Type: Seconds, Default: "10", Group: groupLeases, Since: first,
		Meaning: "How long a node keeps its VIPs without being able to renew its lease. More than 1.2 times `vip_retryperiod`.",
		set:     secondsTo(func(c *Config) *time.Duration { return &c.Lease.RenewDeadline }),
	},
	{
		Env: "vip_retryperiod", Flag: "leaseRetry", Type: Seconds, Default: "2", Group: groupLeases, Since: first,
		Meaning: "How often a node renews its lease.",
		set:     secondsTo(func(c *Config) *time.Duration { return &c.Lease.RetryPeriod }),
	},
	{
		Env: "herald_peers_port", Flag: "peersPort", Type: Port, Default: "7947", Group: groupLeases, Since: first,
		Meaning: "The port by which the nodes watch each other on the link of VIPs. UDP and TCP; the same on all nodes, and open between them. So the VIPs of a dead node move in less than a second. 0 is off: they move after `vip_leaseduration`.",
		set:     setPeersPort,
	},
	{
		Env: "herald_peers_key", Flag: "peersKey", Type: Path, Group: groupLeases, Since: first,
		Meaning: "A file with the key by which the nodes seal what they tell each other. One per line, in base64, the newest first. It is read again each minute. If not set, Herald makes a key itself and keeps it in the Secret `herald-peers` in the announcers' namespace.",
		set:     setPeersKey,
	},

	// Services.
	{
		Env: "svc_enable", Flag: "services", Type: Bool, Default: "false", Group: groupServices, Since: first,
		Meaning: "Announce the addresses of Services of type LoadBalancer. Without it Herald announces nothing, and warns of that.",
		set:     boolTo(func(c *Config) *bool { return &c.Services.Enable }),
	},
	{
		Env: "svc_election", Flag: "servicesElection", FlagAliases: []string{"enableServicesElection"}, Type: Bool, Default: "false", Group: groupServices, Since: first,
		Meaning: "Elect an owner for each Service, which spreads VIPs over the nodes. Otherwise one node owns all VIPs (`svc_leasename`). Services with `externalTrafficPolicy: Local` need it if they are announced by ARP.",
		set:     boolTo(func(c *Config) *bool { return &c.Services.Election }),
	},
	{
		Env: "svc_namespace", Flag: "serviceNamespace", Type: Name, Group: groupServices, Since: first,
		Meaning: "Look after the Services of this namespace only; namespaced Roles then suffice. All namespaces if not set.",
		set:     namespaceTo(func(c *Config) *string { return &c.Services.Namespace }),
	},
	{
		Env: "svc_leasename", Flag: "servicesLeaseName", Type: Name, Default: "plndr-svcs-lock", Group: groupServices, Since: first,
		Meaning: "The one lease for all Services while `svc_election` is false. `name`, in the announcers' namespace, or `namespace/name`.",
		set:     setServicesLease,
	},
	{
		Env: "svc_ipmode", Flag: "ipMode", Type: String, Default: "VIP", Group: groupServices, Since: first,
		Meaning: "The `ipMode` written to a Service's status, `VIP` or `Proxy`. `VIP`: packets arrive with the VIP as destination; kube-proxy serves it on every node. `Proxy`: kube-proxy leaves the address alone. The annotation `heraldvip.io/ip-mode` on a Service wins over it.",
		set:     setIPMode,
	},
	{
		Env: "vip_rebalance", Flag: "rebalance", Type: Bool, Default: "false", Group: groupServices, Since: first,
		Meaning: "Move VIPs to nodes that carry fewer. One after another, make before break, and to a node that has been up for half a minute, longer if it comes and goes. Without it VIPs stay where they are. Needs `svc_election`.",
		set:     boolTo(func(c *Config) *bool { return &c.Services.Rebalance }),
	},
	{
		Env: "disable_service_updates", Flag: "disableServiceUpdates", Type: Bool, Default: "false", Group: groupServices, Since: first,
		Meaning: "Announce VIPs, but write neither status nor annotations to Services.",
		set:     boolTo(func(c *Config) *bool { return &c.Services.ReadOnly }),
	},

	// Load balancer class.
	{
		Env: "lb_class_name", Flag: "lbClassName", Aliases: []string{"LoadBalancerClassName"}, FlagAliases: []string{"LoadBalancerClassName"},
		Type: String, Default: "kube-vip.io/kube-vip-class", Group: groupClass, Since: first, Empty: anywhere,
		Meaning: "The `spec.loadBalancerClass` that is Herald's. May be set to nothing (`lb_class_name=`): then only Services without a class are.",
		set:     setClass,
	},
	{
		Env: "lb_class_only", Flag: "lbClassOnly", Type: Bool, Default: "false", Group: groupClass, Since: first,
		Meaning: "With legacy handling: only Services that carry the class.",
		set:     boolTo(func(c *Config) *bool { return &c.Class.Only }),
	},
	{
		Env: "lb_class_legacy_handling", Flag: "lbClassNameLegacyHandling", Aliases: []string{"LoadBalancerClassLegacyHandling"}, FlagAliases: []string{"LoadBalancerClassLegacyHandling"},
		Type: Bool, Default: "true", Group: groupClass, Since: first,
		Meaning: "Services without a class are Herald's too, besides those that carry the class. `false`: the class must be equal to `lb_class_name`; Services without one only if that is empty.",
		set:     boolTo(func(c *Config) *bool { return &c.Class.Legacy }),
	},

	// ARP and NDP.
	{
		Env: "vip_arp", Flag: "arp", Type: Bool, Default: "false", Group: groupARP, Since: first,
		Meaning: "Announce VIPs to the link's neighbours by ARP (IPv4) and NDP (IPv6). `svc_enable` needs this, `bgp_enable` or both. VIPs by DHCP need it.",
		set:     boolTo(func(c *Config) *bool { return &c.ARP.Enable }),
	},
	{
		Env: "vip_arpRate", Flag: "arpRate", Type: Milliseconds, Default: "3000", Group: groupARP, Since: first,
		Meaning: "The period of repeated announcements. Less than 500 is taken as 3000.",
		set:     setArpRate,
	},
	{
		Env: "vip_skipdad", Flag: "skipDAD", Type: Bool, Default: "false", Group: groupARP, Since: first,
		Meaning: "Do not ask the network, for 0.12 s, whether another host has the address before a VIP is used for the first time. A VIP that moves between nodes never waits for that.",
		set:     boolTo(func(c *Config) *bool { return &c.ARP.SkipDAD }),
	},

	// API server.
	{
		Env: "k8s_config_file", Flag: "k8sConfigPath", Type: Path, Group: groupAPIServer, Since: first,
		Meaning: "A kubeconfig file. The first of these is used: this file if it exists, the pod's ServiceAccount, `/etc/kubernetes/admin.conf`, `$HOME/.kube/config`.",
		set:     setKubeConfig,
	},
	{
		Env: "kubernetes_addr", Flag: "kubernetesAddr", Type: URL, Group: groupAPIServer, Since: first,
		Meaning: "The API server's URL, instead of the one that the kubeconfig or the pod names, such as `https://192.0.2.1:6443`.",
		set:     setServer,
	},

	// Metrics and health.
	{
		Env: "prometheus_server", Flag: "prometheusHTTPServer", Type: Endpoint, Default: ":2112", Group: groupServing, Since: first,
		Empty:   []Origin{FromFlag, FromFile},
		Meaning: "Where `/metrics`, `/healthz`, `/readyz` and `/debug/plan` are served. `off`, or an empty flag, is nowhere. An address in use is a warning, and tried again.",
		set:     setMetrics,
	},
	{
		Env: "health_check_port", Flag: "healthCheckPort", Type: Port, Default: "0", Group: groupServing, Since: first,
		Meaning: "A port on which `/healthz` and `/readyz` are served besides, for probes. 0 is none. Generated manifests set it to 2113.",
		set:     setHealthPort,
	},

	// Control-plane VIP.
	{
		Env: "cp_enable", Flag: "controlplane", Type: Bool, Default: "false", Group: groupControlPlane, Since: second,
		Meaning: "Announce a VIP for the API servers, `address`, on a node whose own API server is ready.",
		set:     boolTo(func(c *Config) *bool { return &c.ControlPlane.Enable }),
	},
	{
		Env: "address", Aliases: []string{"vip_address"}, Flag: "address", FlagAliases: []string{"vip"}, Type: List, Group: groupControlPlane, Since: second,
		Meaning: "The VIP of the control plane: an IP address, or one of each family with a comma between.",
		set:     setAddress,
	},
	{
		Env: "port", Flag: "port", Type: Port, Default: "6443", Group: groupControlPlane, Since: second,
		Meaning: "The port of the API servers.",
		set:     setAPIPort,
	},
	{
		Env: "vip_leasename", Flag: "leaseName", Type: Name, Default: "plndr-cp-lock", Group: groupControlPlane, Since: second,
		Meaning: "The lease of the control plane's VIP. `name`, in the announcers' namespace, or `namespace/name`.",
		set:     setControlPlaneLease,
	},
	{
		Env: "control_plane_health_check_address", Flag: "cpCheckAddress", FlagAliases: []string{"controlPlaneHealthCheckAddress"}, Type: URL, Group: groupControlPlane, Since: second,
		Meaning: "What is asked whether the API server of this node is ready; any answer but 200 is no. If not set, `/readyz` at `port` of 127.0.0.1, or of the node's own addresses if nothing listens there.",
		set:     setHealthCheck,
	},
	{
		Env: "control_plane_health_check_period_seconds", Flag: "cpCheckPeriod", Type: Seconds, Default: "1", Group: groupControlPlane, Since: second,
		Meaning: "How often it is asked.",
		set:     secondsTo(func(c *Config) *time.Duration { return &c.ControlPlane.CheckPeriod }),
	},
	{
		Env: "control_plane_health_check_timeout_seconds", Flag: "cpCheckTimeout", Type: Seconds, Default: "2", Group: groupControlPlane, Since: second,
		Meaning: "How long an answer may take.",
		set:     secondsTo(func(c *Config) *time.Duration { return &c.ControlPlane.CheckTimeout }),
	},
	{
		Env: "control_plane_health_check_failure_threshold", Flag: "cpCheckFailures", Type: Int, Default: "3", Group: groupControlPlane, Since: second,
		Meaning: "After how many failures in a row it counts as not ready. The VIP then goes to a node with one that is. One good answer makes it ready again.",
		set:     setFailures,
	},
}
