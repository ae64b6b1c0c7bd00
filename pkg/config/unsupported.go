package config

import "slices"

const reasonElection = "by ARP the control plane's VIP always has one owner, which is elected; by BGP or a routing " +
	"table alone every node advertises it whose API server is ready; for those of Services there is svc_election"

// unsupported are kube-vip's options that Herald lacks; "*" ends a pattern, "--" begins a flag without variable.
var unsupported = slices.Concat(
	lacking(groupControlPlane, NoEffect, reasonElection,
		Option{Env: "vip_leaderelection", Flag: "leaderElection", Type: Bool, Default: "false",
			Meaning: "Elect an owner of the control plane's VIP."}),
	lacking(groupControlPlane, NoEffect, "a node's own API server is always asked first, and the VIP goes to one whose "+
		"API server is ready",
		Option{Env: "cp_detect", Flag: "autodetectcp", Type: Bool, Default: "false",
			Meaning: "Find a working API server on the node."}),
	lacking(groupControlPlane, Unused, reasonElection,
		Option{Env: "vip_startleader", Type: Bool, Default: "false", Meaning: "Start as the owner."}),
	lacking(groupControlPlane, Unused, "Herald needs a cluster, of one node at least",
		Option{Env: "vip_singlenode", Type: Bool, Default: "false", Meaning: "Run without a cluster."}),
	lacking(groupControlPlane, Refused, "Herald elects owners by Leases of the API server; remove it, and the options "+
		"of etcd",
		Option{Env: "--leaderElectionType", Flag: "leaderElectionType", Type: String, Default: "kubernetes",
			Meaning: "By what owners are elected: `kubernetes` or `etcd`."}),
	lacking(groupControlPlane, NoEffect, "owners are elected by Leases of the API server",
		Option{Env: "--etcdEndpoints", Flag: "etcdEndpoints", Type: List, Meaning: "The etcd of such elections."},
		Option{Env: "--etcdCACert", Flag: "etcdCACert", Type: Path, Meaning: "Its CA."},
		Option{Env: "--etcdCert", Flag: "etcdCert", Type: Path, Meaning: "The certificate of its clients."},
		Option{Env: "--etcdKey", Flag: "etcdKey", Type: Path, Meaning: "The key of that."}),
	lacking(groupControlPlane, Unused, "API servers are balanced by nftables, over those that their nodes publish as "+
		"ready (control_plane_health_check_period_seconds)",
		Option{Env: "backend_health_check_interval", Type: Seconds, Default: "5",
			Meaning: "How often API servers that are balanced are checked."},
		Option{Env: "iptables_backend", Type: String, Meaning: "The iptables that masquerading uses, `nft` or `legacy`."}),
	// docs/why.md, "BGP next hops and links"
	lacking(groupBGP, Unused, "a Service's VIP that is announced by BGP alone is on no link, and kube-proxy serves it "+
		"all the same; with vip_arp=true its owner has it on vip_interface, too",
		Option{Env: "bgp_attach_ip_to_interface", Flag: "bgpAttachIPToInterface", Type: Bool, Default: "false",
			Meaning: "Bind the VIPs of Services to `vip_interface`, too."}),
	lacking(groupBGP, Unused, "Herald hands no routes to zebra; make FRR a peer by bgp_peers",
		Option{Env: "zebra_enable", Flag: "zebra", Type: Bool, Default: "false", Meaning: "Hand routes to FRR's zebra."},
		Option{Env: "zebra_url", Flag: "zebraUrl", Type: String, Default: "unix:/var/run/frr/zserv.api",
			Meaning: "Where zebra is."},
		Option{Env: "zebra_version", Flag: "zebraVersion", Type: Int, Default: "6", Meaning: "Its protocol's version."},
		Option{Env: "zebra_software_name", Flag: "zebraSoftwareName", Type: String, Default: "frr8.3",
			Meaning: "Its name and version."}),
	lacking(groupRouting, NoEffect, "routes of an earlier process that nothing asks for any more are always removed",
		Option{Env: "vip_cleanroutingtable", Flag: "cleanRoutingTable", Type: Bool, Default: "false",
			Meaning: "Remove left-over routes at start."}),
	lacking(groupDHCP, Unused, "addresses are IP addresses; names are not looked up",
		Option{Env: "dns_mode", Flag: "dnsMode", Type: String, Default: "first",
			Meaning: "Which addresses of a name are used: `first`, `ipv4`, `ipv6` or `dual`."}),
	lacking(groupDHCP, Unused, "the control plane's VIP is not leased by DHCP; reserve an address, and set it by "+
		"address and in DNS",
		Option{Env: "vip_ddns", Flag: "ddns", Type: Bool, Default: "false",
			Meaning: "Get the control plane's address by DHCP and dynamic DNS."}),
	lacking(groupEgress, Unused, "Herald always has egress done by nftables",
		Option{Env: "egress_withnftables", Flag: "egressWithNftables", Type: Bool, Default: "false",
			Meaning: "Use nftables."}),
	lacking(groupEgress, Unused, "Herald always removes what an earlier Herald left, and nothing of kube-vip's: the "+
		"commands that remove that are in docs/migrate-from-kube-vip.md",
		Option{Env: "egress_clean", Aliases: []string{"EGRESS_CLEAN"}, Type: Bool, Default: "false",
			Meaning: "Remove left-over rules at start."}),
	lacking(groupEgress, Unused, "what pods send to destinations inside of the cluster always keeps its source",
		Option{Env: "egress_enableinternalsnat", Type: Bool, Default: "false",
			Meaning: "Give packets within the cluster the VIP as their source, too."}),
	lacking(groupEgress, Refused, "Herald has egress_enable, egress_podcidr and egress_servicecidr; remove it",
		Option{Env: "egress_*", Type: String, Meaning: "All other options of egress."}),
	// docs/why.md, "Nodes are not labelled"
	lacking(groupOthers, Unused, "Herald does not write to Nodes; the owner of a VIP is in the annotation "+
		"kube-vip.io/vipHost of its Service, and in what herald status prints",
		Option{Env: "enable_node_labeling", Flag: "enableNodeLabeling", Type: Bool, Default: "false",
			Meaning: "Label the node that owns a VIP."}),
	lacking(groupOthers, Refused, "elections are for every Service or for none; remove it, and set svc_election=true if "+
		"each Service is to have one owner",
		Option{Env: "per_service_election_on_demand", Flag: "perServiceElectionOnDemand", Type: Bool, Default: "false",
			Meaning: "An election for those Services that ask for it by an annotation; the others are announced by all nodes."}),
	lacking(groupOthers, Refused, "Herald makes no WireGuard tunnels; remove it, and announce VIPs by BGP over a tunnel "+
		"that the nodes have",
		Option{Env: "vip_wireguard", Flag: "wireguard", Type: Bool, Default: "false",
			Meaning: "Announce VIPs over WireGuard."}),
	lacking(groupOthers, Unused, "Herald copies no packets; tc does, by its action mirred",
		Option{Env: "mirror_dest_interface", Flag: "mirrorDestInterface", Type: Interface,
			Meaning: "Copy the VIPs' traffic to this interface."}),
	lacking(groupOthers, Refused, "Herald does not read kube-vip's form of file; remove it, and use herald_config, a "+
		"file whose keys are the names of the environment variables",
		Option{Env: "config_file", Flag: "config-file", Type: Path, Meaning: "A file in kube-vip's own form."}),
	lacking(groupOthers, NoEffect, "a VIP is always kept until another node has it, or until its owner can't know "+
		"whether another has",
		Option{Env: "vip_preserve_on_leadership_loss", Flag: "preserveVipOnLeadershipLoss", Type: Bool, Default: "false",
			Meaning: "Keep a VIP bound after losing its lease, until another node has it."}),
	lacking(groupOthers, NoEffect, "VIPs always leave a node whose link goes down",
		// not Bool: kube-vip v1.2.3's manifests have the timeout here, too
		Option{Env: "vip_loseleadership", Flag: "loseLeadership", Type: String, Default: "false",
			Meaning: "Give up VIPs when the link goes down."},
		Option{Env: "vip_loseleadership_timeout_seconds", Flag: "loseLeadershiptTimeoutSeconds", Type: Seconds, Default: "30",
			Meaning: "How long the link must be down for that."}),
	lacking(groupOthers, Unused, "the annotations of leases are Herald's own",
		Option{Env: "vip_leaseannotations", Type: String, Meaning: "Annotations of the leases, as JSON."}),
	lacking(groupOthers, NoEffect, "the addresses of VIPs always have global scope",
		Option{Env: "vip_interfaceloglobal", Flag: "loInterfaceGlobalScope", Type: Bool, Default: "false",
			Meaning: "Global scope for addresses on `lo`."}),
	lacking(groupOthers, Unused, "one Herald on each node announces all VIPs; a second one waits until the first ends",
		Option{Env: "instance_name", Aliases: []string{"INSTANCE_NAME"}, Flag: "instanceName", Type: String,
			Meaning: "Distinguishes several announcers on one node."}),
	lacking(groupOthers, Unused, "Herald acts on the first change, and gathers those that come while it does",
		Option{Env: "debounce_time", Flag: "debounceTime", Type: String, Meaning: "How long changes are gathered."}),
	lacking(groupOthers, Unused, "Herald serves no profiles; its metrics have what the Go runtime counts",
		Option{Env: "enable_pprof", Flag: "enablePprof", Type: Bool, Default: "false",
			Meaning: "Serve Go's profiles of the process."},
		Option{Env: "pprof_server", Flag: "pprofServer", Type: Endpoint, Default: "127.0.0.1:6060",
			Meaning: "Where they are served."}),
	lacking(groupOthers, Unused, "address pools are in the ConfigMap that svc_pools names",
		Option{Env: "vip_configmap", Flag: "configMap", Type: Name, Meaning: "A ConfigMap of Services."}),
	lacking(groupOthers, Unused, "Herald reads EndpointSlices, in which Kubernetes has what Endpoints have",
		Option{Env: "enable_endpoints", Flag: "enableEndpoints", Type: Bool, Default: "false", Meaning: "Read Endpoints."}),
	lacking(groupOthers, NoEffect, "Herald always reads EndpointSlices",
		Option{Env: "enable_endpointslices", Flag: "enableEndpointSlices", Type: Bool, Default: "false",
			Meaning: "Read EndpointSlices."}),
	lacking(groupObsolete, Unused, "Herald does not use Equinix Metal's API",
		Option{Env: "vip_packet*", Type: String, Meaning: "Equinix Metal's API."},
		Option{Env: "--metal", Flag: "metal", Type: Bool, Default: "false", Meaning: "Announce VIPs by Equinix Metal's API."},
		Option{Env: "--metalKey", Flag: "metalKey", Type: String, Meaning: "The key of that API."},
		Option{Env: "--metalProject", Flag: "metalProject", Type: String, Meaning: "The name of a project there."},
		Option{Env: "--metalProjectID", Flag: "metalProjectID", Type: String, Meaning: "Its ID."},
		Option{Env: "provider_config", Flag: "provider-config", Type: Path, Meaning: "Equinix Metal's settings."}),
)

// lacking sets the group of options, what a value does, and why Herald lacks them, and what to do instead.
func lacking(group Group, effect Effect, reason string, options ...Option) []Option {
	for i := range options {
		options[i].Group, options[i].Effect, options[i].Reason = group, effect, reason
	}
	return options
}
