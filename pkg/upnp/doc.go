// Package upnp has the gateways of a link forward ports to VIPs: it looks for
// them (SSDP), asks them for mappings (UPnP Internet Gateway Device 1 and 2:
// WANIPConnection, WANPPPConnection) and for pinholes in their IPv6 firewall
// (WANIPv6FirewallControl), renews what it was given, and makes it anew when a
// gateway has forgotten it.
//
// Whoever answers on the LAN is a stranger. What is read from the wire is bounded
// in size, number and time; a gateway is only spoken to at the address it
// answered from, which must be on the link's own subnet; redirects, proxies and
// names are refused. So no answer can send a request to anywhere else.
//
// Requests are sent from the VIP itself where that is bound: a gateway in "secure
// mode" lets a host map ports to its own address only.
//
// A mapping outlives the process that made it, and moves with its VIP: nothing
// changes on the gateway when another node answers for the VIP. The next owner
// finds the mapping, knows it by the address it leads to, and renews it. A node
// removes only what it made or renewed itself, and did not give away since.
package upnp
