package config

import "slices"

// What this version lacks, as messages name it.
const (
	lacksElection = "running without an election"
	lacksBalancer = "balancing over the API servers in the kernel"
	lacksZebra    = "handing routes to zebra"
	lacksRoutes   = "routing tables"
	lacksNames    = "names as addresses"
	lacksEgress   = "egress"
	lacksLabels   = "node labels"
	lacksFilter   = "dropping traffic to other ports"
	lacksMirror   = "mirroring traffic"
	lacksWG       = "WireGuard"
	lacksDemand   = "an election per Service on demand"
	lacksConfig   = "kube-vip's configuration file"
	lacksGeneric  = "this option"
)

// notYet are the options of kube-vip that this version knows of but doesn't
// support. A name that ends in * is for all names that begin so.
var notYet = slices.Concat(
	inSection(groupControlPlane, "", []Option{
		{Env: "vip_leaderelection", Flag: "leaderElection", Type: Bool, Default: "false", Missing: lacksElection, Effect: NoEffect, Meaning: "Elect an owner. Herald always does."},
		{Env: "cp_detect", Flag: "autodetectcp", Type: Bool, Default: "false", Missing: lacksElection, Effect: NoEffect, Meaning: "Find a working API server on the node. Herald always does."},
		// Refused, not only warned of: decision 0052.
		{Env: "lb_enable", Flag: "enableLoadBalancer", Type: Bool, Default: "false", Missing: lacksBalancer, Effect: Refused, Meaning: "Balance over the API servers in the kernel (ip_vs). Refused, since who asks for it counts on all API servers being used; see [0052](../decisions/0052-no-balancing-of-api-servers-in-the-kernel.md)."},
		{Env: "lb_port", Flag: "lbPort", Type: Port, Default: "6443", Missing: lacksBalancer, Effect: Unused, Meaning: "The port that is balanced."},
		{Env: "lb_fwdmethod", Flag: "lbForwardingMethod", Type: String, Default: "local", Missing: lacksBalancer, Effect: Unused, Meaning: "How balanced traffic is forwarded."},
		{Env: "control_plane_health_check_*", Type: String, Missing: lacksGeneric, Effect: Unused, Meaning: "All other options of the health check."},
		{Env: "backend_health_check_interval", Type: Seconds, Default: "5", Missing: lacksBalancer, Effect: Unused, Meaning: "How often balanced API servers are checked."},
		{Env: "iptables_backend", Type: String, Missing: lacksBalancer, Effect: Unused, Meaning: "`nft` or `legacy`."},
	}),
	inSection(groupBGP, "", []Option{
		{Env: "zebra_enable", Flag: "zebra", Type: Bool, Default: "false", Missing: lacksZebra, Effect: Unused, Meaning: "Hand routes to FRR's zebra."},
		{Env: "zebra_url", Flag: "zebraUrl", Type: String, Default: "unix:/var/run/frr/zserv.api", Missing: lacksZebra, Effect: Unused, Meaning: "Where zebra is."},
		{Env: "zebra_version", Flag: "zebraVersion", Type: Int, Default: "6", Missing: lacksZebra, Effect: Unused, Meaning: "Its protocol's version."},
		{Env: "zebra_software_name", Flag: "zebraSoftwareName", Type: String, Default: "frr8.3", Missing: lacksZebra, Effect: Unused, Meaning: "Its name and version."},
	}),
	inSection(groupRouting, "", []Option{
		{Env: "vip_routingtable", Flag: "table", Type: Bool, Default: "false", Missing: lacksRoutes, Effect: Refused, Meaning: "Put routes to VIPs into a table, for another daemon to export."},
		{Env: "vip_routingtableid", Flag: "tableID", Type: Int, Default: "198", Missing: lacksRoutes, Effect: Unused, Meaning: "The table."},
		{Env: "vip_routingtabletype", Flag: "tableType", Type: Int, Default: "1", Missing: lacksRoutes, Effect: Unused, Meaning: "The type of the routes."},
		{Env: "vip_routingprotocol", Flag: "routingProtocol", Type: Int, Default: "248", Missing: lacksRoutes, Effect: Unused, Meaning: "The protocol number of the routes."},
		{Env: "vip_cleanroutingtable", Flag: "cleanRoutingTable", Type: Bool, Default: "false", Missing: lacksRoutes, Effect: Unused, Meaning: "Remove left-over routes at start."},
	}),
	inSection(groupDHCP, "", []Option{
		{Env: "dns_mode", Flag: "dnsMode", Type: String, Default: "first", Missing: lacksNames, Effect: Unused, Meaning: "Which addresses of a name are used: `first`, `ipv4`, `ipv6` or `dual`."},
		{Env: "vip_ddns", Flag: "ddns", Type: Bool, Default: "false", Missing: lacksNames, Effect: Unused, Meaning: "Get the control plane's address by DHCP and dynamic DNS."},
	}),
	inSection(groupEgress, "", []Option{
		{Env: "egress_podcidr", Type: String, Missing: lacksEgress, Effect: Refused, Meaning: "The pods' ranges."},
		{Env: "egress_servicecidr", Type: String, Missing: lacksEgress, Effect: Refused, Meaning: "The Services' ranges."},
		{Env: "egress_withnftables", Type: Bool, Default: "false", Missing: lacksEgress, Effect: Refused, Meaning: "Use nftables."},
		{Env: "egress_clean", Aliases: []string{"EGRESS_CLEAN"}, Type: Bool, Default: "false", Missing: lacksEgress, Effect: Refused, Meaning: "Remove left-over rules at start."},
		{Env: "egress_*", Type: String, Missing: lacksEgress, Effect: Refused, Meaning: "All other options of egress."},
	}),
	inSection(groupOthers, "", []Option{
		{Env: "enable_node_labeling", Flag: "enableNodeLabeling", Type: Bool, Default: "false", Missing: lacksLabels, Effect: Unused, Meaning: "Label the node that owns a VIP."},
		{Env: "enable_service_security", Flag: "onlyAllowTrafficServicePorts", Type: Bool, Default: "false", Missing: lacksFilter, Effect: Refused, Meaning: "Drop traffic to a VIP's other ports. Refused, since who asks for it relies on it."},
		{Env: "per_service_election_on_demand", Type: Bool, Default: "false", Missing: lacksDemand, Effect: Refused, Meaning: "An election for those Services that ask for it."},
		{Env: "vip_wireguard", Flag: "wireguard", Type: Bool, Default: "false", Missing: lacksWG, Effect: Refused, Meaning: "Announce VIPs over WireGuard."},
		{Env: "mirror_dest_interface", Flag: "mirrorDestInterface", Type: Interface, Missing: lacksMirror, Effect: Unused, Meaning: "Copy the VIPs' traffic to this interface."},
		{Env: "config_file", Flag: "config-file", Type: Path, Missing: lacksConfig, Effect: Refused, Meaning: "A file in kube-vip's own form. Use `herald_config`, whose keys are the names of the environment variables."},
		{Env: "vip_preserve_on_leadership_loss", Type: Bool, Default: "false", Missing: lacksGeneric, Effect: Unused, Meaning: "Keep a VIP bound after losing it. Herald hands VIPs over before it takes them down, and lets the kernel drop those it can't vouch for."},
		{Env: "vip_loseleadership*", Type: String, Missing: lacksGeneric, Effect: NoEffect, Meaning: "Give up VIPs when the link goes down. Herald always does."},
		{Env: "vip_leaseannotations", Type: String, Missing: lacksGeneric, Effect: Unused, Meaning: "Annotations of the leases, as JSON."},
		{Env: "vip_interfaceloglobal", Flag: "loInterfaceGlobalScope", Type: Bool, Default: "false", Missing: lacksGeneric, Effect: Unused, Meaning: "Global scope for addresses on `lo`."},
		{Env: "instance_name", Type: String, Missing: lacksGeneric, Effect: Unused, Meaning: "Distinguishes several announcers on one node."},
		{Env: "debounce_time", Type: String, Missing: lacksGeneric, Effect: Unused, Meaning: "How long changes are gathered. Herald acts on the first and gathers what comes meanwhile."},
		{Env: "enable_endpoints", Flag: "enableEndpoints", Type: Bool, Default: "false", Missing: lacksGeneric, Effect: Unused, Meaning: "Use Endpoints. Herald reads EndpointSlices."},
	}),
	inSection(groupObsolete, "", []Option{
		{Env: "vip_cidr", Flag: "cidr", Type: String, Default: "32", Missing: lacksGeneric, Effect: Unused, Meaning: "The old name of `vip_subnet`."},
		{Env: "vip_singlenode", Type: Bool, Default: "false", Missing: lacksGeneric, Effect: Unused, Meaning: "Run without a cluster."},
		{Env: "vip_startleader", Type: Bool, Default: "false", Missing: lacksGeneric, Effect: Unused, Meaning: "Start as the owner."},
		{Env: "vip_configmap", Type: Name, Missing: lacksGeneric, Effect: Unused, Meaning: "A ConfigMap of Services."},
		{Env: "vip_packet*", Type: String, Missing: lacksGeneric, Effect: Unused, Meaning: "Equinix Metal's API."},
		{Env: "provider_config", Type: Path, Missing: lacksGeneric, Effect: Unused, Meaning: "Equinix Metal's settings."},
	}),
)
