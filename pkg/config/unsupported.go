package config

import "slices"

// Why options of kube-vip are not supported, and what to do instead.
const (
	reasonElection = "by ARP the control plane's VIP always has one owner, which is elected; by BGP or a routing " +
		"table alone every node advertises it whose API server is ready; for those of Services there is svc_election"
	reasonDetect   = "a node's own API server is always asked first, and the VIP goes to one whose API server is ready"
	reasonBalancer = "API servers are balanced by nftables, over those that their nodes publish as ready " +
		"(control_plane_health_check_period_seconds)"
	reasonEtcd       = "Herald elects owners by Leases of the API server; remove it, and the options of etcd"
	reasonEtcdUnused = "owners are elected by Leases of the API server"
	reasonZebra      = "Herald hands no routes to zebra; make FRR a peer by bgp_peers"
	reasonAttach     = "a Service's VIP that is announced by BGP alone is on no link, and kube-proxy serves it all " +
		"the same; with vip_arp=true its owner has it on vip_interface, too"
	reasonTable   = "routes of an earlier process that nothing asks for any more are always removed"
	reasonDNSMode = "addresses are IP addresses; names are not looked up"
	reasonDDNS    = "the control plane's VIP is not leased by DHCP; reserve an address, and set it by address and " +
		"in DNS"
	reasonEgress    = "Herald has egress_enable, egress_podcidr and egress_servicecidr; remove it"
	reasonEgressHow = "Herald always has egress done by nftables"
	reasonEgressOld = "Herald always removes what an earlier Herald left, and nothing of kube-vip's: the commands " +
		"that remove that are in docs/migrate-from-kube-vip.md"
	reasonInternal = "what pods send to destinations inside of the cluster always keeps its source"
	reasonLabels   = "Herald does not write to Nodes; the owner of a VIP is in the annotation kube-vip.io/vipHost " +
		"of its Service, and in what herald status prints"
	reasonDemand = "elections are for every Service or for none; remove it, and set svc_election=true if each " +
		"Service is to have one owner"
	reasonWireGuard = "Herald makes no WireGuard tunnels; remove it, and announce VIPs by BGP over a tunnel that the " +
		"nodes have"
	reasonMirror = "Herald copies no packets; tc does, by its action mirred"
	reasonConfig = "Herald does not read kube-vip's form of file; remove it, and use herald_config, a file whose " +
		"keys are the names of the environment variables"
	reasonPreserve  = "a VIP is always kept until another node has it, or until its owner can't know whether another has"
	reasonLink      = "VIPs always leave a node whose link goes down"
	reasonLeases    = "the annotations of leases are Herald's own"
	reasonLoopback  = "the addresses of VIPs always have global scope"
	reasonInstance  = "one Herald on each node announces all VIPs; a second one waits until the first ends"
	reasonDebounce  = "Herald acts on the first change, and gathers those that come while it does"
	reasonEndpoints = "Herald reads EndpointSlices, in which Kubernetes has what Endpoints have"
	reasonSlices    = "Herald always reads EndpointSlices"
	reasonProfiles  = "Herald serves no profiles; its metrics have what the Go runtime counts"
	reasonSingle    = "Herald needs a cluster, of one node at least"
	reasonPools     = "address pools are in the ConfigMap that svc_pools names"
	reasonPacket    = "Herald does not use Equinix Metal's API"
)

// unsupported are kube-vip's options that Herald lacks; "*" ends a pattern, "--" begins a flag without variable.
var unsupported = slices.Concat(
	inSection(groupControlPlane, []Option{
		{Env: "vip_leaderelection", Flag: "leaderElection", Type: Bool, Default: "false", Reason: reasonElection,
			Effect: NoEffect, Meaning: "Elect an owner of the control plane's VIP."},
		{Env: "cp_detect", Flag: "autodetectcp", Type: Bool, Default: "false", Reason: reasonDetect, Effect: NoEffect,
			Meaning: "Find a working API server on the node."},
		{Env: "vip_startleader", Type: Bool, Default: "false", Reason: reasonElection, Effect: Unused,
			Meaning: "Start as the owner."},
		{Env: "vip_singlenode", Type: Bool, Default: "false", Reason: reasonSingle, Effect: Unused,
			Meaning: "Run without a cluster."},
		{Env: "--leaderElectionType", Flag: "leaderElectionType", Type: String, Default: "kubernetes", Reason: reasonEtcd,
			Effect: Refused, Meaning: "By what owners are elected: `kubernetes` or `etcd`."},
		{Env: "--etcdEndpoints", Flag: "etcdEndpoints", Type: List, Reason: reasonEtcdUnused, Effect: NoEffect,
			Meaning: "The etcd of such elections."},
		{Env: "--etcdCACert", Flag: "etcdCACert", Type: Path, Reason: reasonEtcdUnused, Effect: NoEffect, Meaning: "Its CA."},
		{Env: "--etcdCert", Flag: "etcdCert", Type: Path, Reason: reasonEtcdUnused, Effect: NoEffect,
			Meaning: "The certificate of its clients."},
		{Env: "--etcdKey", Flag: "etcdKey", Type: Path, Reason: reasonEtcdUnused, Effect: NoEffect,
			Meaning: "The key of that."},
		{Env: "backend_health_check_interval", Type: Seconds, Default: "5", Reason: reasonBalancer, Effect: Unused,
			Meaning: "How often API servers that are balanced are checked."},
		{Env: "iptables_backend", Type: String, Reason: reasonBalancer, Effect: Unused,
			Meaning: "The iptables that masquerading uses, `nft` or `legacy`."},
	}),
	inSection(groupBGP, []Option{
		// docs/why.md, "BGP next hops and links"
		{Env: "bgp_attach_ip_to_interface", Flag: "bgpAttachIPToInterface", Type: Bool, Default: "false",
			Reason: reasonAttach, Effect: Unused, Meaning: "Bind the VIPs of Services to `vip_interface`, too."},
		{Env: "zebra_enable", Flag: "zebra", Type: Bool, Default: "false", Reason: reasonZebra, Effect: Unused,
			Meaning: "Hand routes to FRR's zebra."},
		{Env: "zebra_url", Flag: "zebraUrl", Type: String, Default: "unix:/var/run/frr/zserv.api", Reason: reasonZebra,
			Effect: Unused, Meaning: "Where zebra is."},
		{Env: "zebra_version", Flag: "zebraVersion", Type: Int, Default: "6", Reason: reasonZebra, Effect: Unused,
			Meaning: "Its protocol's version."},
		{Env: "zebra_software_name", Flag: "zebraSoftwareName", Type: String, Default: "frr8.3", Reason: reasonZebra,
			Effect: Unused, Meaning: "Its name and version."},
	}),
	inSection(groupRouting, []Option{
		{Env: "vip_cleanroutingtable", Flag: "cleanRoutingTable", Type: Bool, Default: "false", Reason: reasonTable,
			Effect: NoEffect, Meaning: "Remove left-over routes at start."},
	}),
	inSection(groupDHCP, []Option{
		{Env: "dns_mode", Flag: "dnsMode", Type: String, Default: "first", Reason: reasonDNSMode, Effect: Unused,
			Meaning: "Which addresses of a name are used: `first`, `ipv4`, `ipv6` or `dual`."},
		{Env: "vip_ddns", Flag: "ddns", Type: Bool, Default: "false", Reason: reasonDDNS, Effect: Unused,
			Meaning: "Get the control plane's address by DHCP and dynamic DNS."},
	}),
	inSection(groupEgress, []Option{
		{Env: "egress_withnftables", Flag: "egressWithNftables", Type: Bool, Default: "false", Reason: reasonEgressHow,
			Effect: Unused, Meaning: "Use nftables."},
		{Env: "egress_clean", Aliases: []string{"EGRESS_CLEAN"}, Type: Bool, Default: "false", Reason: reasonEgressOld,
			Effect: Unused, Meaning: "Remove left-over rules at start."},
		{Env: "egress_enableinternalsnat", Type: Bool, Default: "false", Reason: reasonInternal, Effect: Unused,
			Meaning: "Give packets within the cluster the VIP as their source, too."},
		{Env: "egress_*", Type: String, Reason: reasonEgress, Effect: Refused, Meaning: "All other options of egress."},
	}),
	inSection(groupOthers, []Option{
		// docs/why.md, "Nodes are not labelled"
		{Env: "enable_node_labeling", Flag: "enableNodeLabeling", Type: Bool, Default: "false", Reason: reasonLabels,
			Effect: Unused, Meaning: "Label the node that owns a VIP."},
		{Env: "per_service_election_on_demand", Flag: "perServiceElectionOnDemand", Type: Bool, Default: "false",
			Reason: reasonDemand, Effect: Refused, Meaning: "An election for those Services that ask for it by an " +
				"annotation; the others are announced by all nodes."},
		{Env: "vip_wireguard", Flag: "wireguard", Type: Bool, Default: "false", Reason: reasonWireGuard, Effect: Refused,
			Meaning: "Announce VIPs over WireGuard."},
		{Env: "mirror_dest_interface", Flag: "mirrorDestInterface", Type: Interface, Reason: reasonMirror, Effect: Unused,
			Meaning: "Copy the VIPs' traffic to this interface."},
		{Env: "config_file", Flag: "config-file", Type: Path, Reason: reasonConfig, Effect: Refused,
			Meaning: "A file in kube-vip's own form."},
		{Env: "vip_preserve_on_leadership_loss", Flag: "preserveVipOnLeadershipLoss", Type: Bool, Default: "false",
			Reason: reasonPreserve, Effect: NoEffect, Meaning: "Keep a VIP bound after losing its lease, until another node " +
				"has it."},
		// Not Bool: kube-vip v1.2.3's manifests have the timeout here, too.
		{Env: "vip_loseleadership", Flag: "loseLeadership", Type: String, Default: "false", Reason: reasonLink,
			Effect: NoEffect, Meaning: "Give up VIPs when the link goes down."},
		{Env: "vip_loseleadership_timeout_seconds", Flag: "loseLeadershiptTimeoutSeconds", Type: Seconds, Default: "30",
			Reason: reasonLink, Effect: NoEffect, Meaning: "How long the link must be down for that."},
		{Env: "vip_leaseannotations", Type: String, Reason: reasonLeases, Effect: Unused,
			Meaning: "Annotations of the leases, as JSON."},
		{Env: "vip_interfaceloglobal", Flag: "loInterfaceGlobalScope", Type: Bool, Default: "false", Reason: reasonLoopback,
			Effect: NoEffect, Meaning: "Global scope for addresses on `lo`."},
		{Env: "instance_name", Aliases: []string{"INSTANCE_NAME"}, Flag: "instanceName", Type: String,
			Reason: reasonInstance, Effect: Unused, Meaning: "Distinguishes several announcers on one node."},
		{Env: "debounce_time", Flag: "debounceTime", Type: String, Reason: reasonDebounce, Effect: Unused,
			Meaning: "How long changes are gathered."},
		{Env: "enable_pprof", Flag: "enablePprof", Type: Bool, Default: "false", Reason: reasonProfiles, Effect: Unused,
			Meaning: "Serve Go's profiles of the process."},
		{Env: "pprof_server", Flag: "pprofServer", Type: Endpoint, Default: "127.0.0.1:6060", Reason: reasonProfiles,
			Effect: Unused, Meaning: "Where they are served."},
		{Env: "vip_configmap", Flag: "configMap", Type: Name, Reason: reasonPools, Effect: Unused,
			Meaning: "A ConfigMap of Services."},
		{Env: "enable_endpoints", Flag: "enableEndpoints", Type: Bool, Default: "false", Reason: reasonEndpoints,
			Effect: Unused, Meaning: "Read Endpoints."},
		{Env: "enable_endpointslices", Flag: "enableEndpointSlices", Type: Bool, Default: "false", Reason: reasonSlices,
			Effect: NoEffect, Meaning: "Read EndpointSlices."},
	}),
	inSection(groupObsolete, []Option{
		{Env: "vip_packet*", Type: String, Reason: reasonPacket, Effect: Unused, Meaning: "Equinix Metal's API."},
		{Env: "--metal", Flag: "metal", Type: Bool, Default: "false", Reason: reasonPacket, Effect: Unused,
			Meaning: "Announce VIPs by Equinix Metal's API."},
		{Env: "--metalKey", Flag: "metalKey", Type: String, Reason: reasonPacket, Effect: Unused,
			Meaning: "The key of that API."},
		{Env: "--metalProject", Flag: "metalProject", Type: String, Reason: reasonPacket, Effect: Unused,
			Meaning: "The name of a project there."},
		{Env: "--metalProjectID", Flag: "metalProjectID", Type: String, Reason: reasonPacket, Effect: Unused,
			Meaning: "Its ID."},
		{Env: "provider_config", Flag: "provider-config", Type: Path, Reason: reasonPacket, Effect: Unused,
			Meaning: "Equinix Metal's settings."},
	}),
)
