package plan

import (
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// advices is what to do about a Service by the reason of its verdict, or of an Event about it. NAMESPACE and NAME
// stand for the Service.
var advices = map[vip.Reason]string{
	vip.NoAddress: `give it an address: kubectl -n NAMESPACE annotate service NAME ` +
		`kube-vip.io/loadbalancerIPs=ADDRESS, or a ConfigMap of pools (herald pools)`,
	vip.NoPoolAddress: `look at the pools (herald pools): add a range, or delete Services that need no address`,
	vip.AddressOutsidePools: `add a range with the address to a pool again, or have it given another one ` +
		`(docs/pools.md, "To renumber")`,
	vip.AddressRefused: `do what the message says, or ask for another address: kubectl -n NAMESPACE annotate ` +
		`--overwrite service NAME kube-vip.io/loadbalancerIPs=ADDRESS`,
	vip.AddressConflict: `ask for another address, or share this one by the annotation heraldvip.io/sharing-key ` +
		`on both Services; herald status says who has it. Pools limit what a namespace may ask for ` +
		`(svc_addresses=pools)`,
	vip.AddressInUse: `find the host with that MAC (the switch knows its port) and take the address off it, ` +
		`or ask for another address`,
	vip.FormerOwnerAnswers: `do what the message says: the node that it names runs, and is not heard, or a switch ` +
		`answers in its place`,
	vip.AddressOffLink: `have routers and hosts of the link route the address there, or ask for one of the ` +
		`link's network`,
	vip.InvalidField: `correct the field that the message names: kubectl -n NAMESPACE edit service NAME`,
	vip.NoEndpoints: `find out why its Pods are not ready: kubectl -n NAMESPACE get endpointslices -l ` +
		`kubernetes.io/service-name=NAME, then kubectl describe the Pods`,
	vip.NoEligibleNode: `mend what keeps the nodes from it, one of those listed; herald undrain NODE if it is a ` +
		`drain`,
	vip.NoBGPSession: `mend the session: the last table of herald status says why it is down; if it is up, ` +
		`have the router take the family of the VIP`,
	vip.LocalNoElection: `set svc_election=true on all nodes, or externalTrafficPolicy: Cluster`,
	vip.HeldByOtherAnnouncer: `stop the other announcer (kube-vip?) for this Service; Herald takes over when that no ` +
		`longer renews the lease`,
	vip.UnmanagedAddress: `remove the address by the command in the message, on the node that it names`,
	vip.PortNotMapped: `the message says what the router answers: allow UPnP there, or take the annotation ` +
		`kube-vip.io/forwardUPNP away`,
	vip.VIPUnanswered: `look at the link of the owner: cable, VLAN, port security or ARP inspection on the ` +
		`switch; herald drain OWNER moves its VIPs meanwhile`,
	vip.VIPForeignMAC: `find the host with that MAC and take the address off it; until then some clients reach ` +
		`that host`,
	vip.DHCPFailed: `look at the DHCP server: free leases, and whether it answers on the link; ask for a ` +
		`fixed address meanwhile`,
	vip.StatusRefused: `make the Service smaller, have the webhook or policy that the message names let its status ` +
		`pass, or give Herald the right that it lacks (herald manifest rbac)`,
	vip.FamilyMissing: `name an address of each family: kubectl -n NAMESPACE annotate --overwrite service NAME ` +
		`kube-vip.io/loadbalancerIPs=IPV4,IPV6`,
	vip.StatusContested: `stop the program that the message names for this Service, or have one of the two serve ` +
		`it (spec.loadBalancerClass)`,
	vip.AddressContested: `find the program on that node, NetworkManager, systemd-networkd or keepalived say, and ` +
		`have it leave the address alone`,
	vip.EgressUnavailable: `do what the message says; until then what its pods send has the source that the ` +
		`network plugin gives it`,
	vip.NodeLeaseNotHeld: `look whether the node reaches the API server: its log, and herald_api_reachable`,
	vip.OtherClass: `if Herald is to announce it, set the options that the message names, the same on all nodes, ` +
		`or make it again with Herald's class, or without one`,
	vip.Ignored: `if Herald is to announce it: kubectl -n NAMESPACE annotate service NAME ` +
		`kube-vip.io/ignore-`,
}

// Advice returns what to do about a verdict or Event, or "".
func Advice(service vip.Key, reason vip.Reason) string {
	return strings.NewReplacer("NAMESPACE", service.Namespace, "NAME", service.Name).Replace(advices[reason])
}
