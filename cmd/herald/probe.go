package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/netif"
	"github.com/heraldvip/herald/pkg/vip"
)

// How much is asked at most.
const (
	maxProbedAddresses = 4
	maxProbedPorts     = 4
	probeTimeout       = time.Second
)

// An addressProbe is what this machine got for an answer at a VIP.
type addressProbe struct {
	Address netip.Addr `json:"address"`
	Link    string     `json:"link,omitempty"` // of this machine, if the address is on it
	MAC     string     `json:"mac,omitempty"`  // that answered by ARP or NDP
	Node    string     `json:"node,omitempty"` // whose MAC that is
	Answer  string     `json:"answer"`         // in words
	TCP     []tcpProbe `json:"tcp,omitempty"`
}

// A tcpProbe is the outcome of a TCP connection to a port of a VIP.
type tcpProbe struct {
	Port   uint16 `json:"port"`
	Open   bool   `json:"open"`
	Answer string `json:"answer"` // in words
}

// probeAll asks the VIPs of a Service from this machine: each by ARP or NDP, if it is on a link, and its ports by TCP.
func probeAll(ctx context.Context, s kube.Snapshot, e serviceExplanation) (all []addressProbe) {
	macs := macsOf(s, e.service)
	for _, a := range e.service.StatusVIPs() {
		if len(all) == maxProbedAddresses {
			break
		}
		p := addressProbe{Address: a}
		for _, port := range e.service.Ports {
			if port.Protocol == "TCP" && len(p.TCP) < maxProbedPorts {
				p.TCP = append(p.TCP, probeTCP(ctx, netip.AddrPortFrom(a, port.Port)))
			}
		}
		n := resolve(ctx, a)
		p.Link, p.MAC = n.Link, n.MAC
		p.Node = macs[n.MAC]
		p.Answer = n.answer(a, p.Node, e.Owner)
		for i := range p.TCP {
			if n.Link != "" && n.MAC == "" && p.TCP[i].Open {
				p.TCP[i].Answer += ", by the rules of kube-proxy on this machine: from elsewhere there is no answer"
			}
		}
		all = append(all, p)
	}
	return all
}

// A resolution is what the kernel of this machine knows of who answers for an address by ARP or NDP.
type resolution struct {
	netif.Neighbor
	earlier bool  // nobody was asked now: there was an answer within the kernel's reachable time (RFC 4861 section 6.3.2), about half a minute
	err     error // it can't be read
}

// resolve has the kernel ask who has an address, and waits for at most probeTimeout for an answer. A datagram to a port that no
// Service has (discard, RFC 863) is enough; a connection to one of the Service is answered by kube-proxy of this machine, if that is a node.
func resolve(ctx context.Context, a netip.Addr) resolution {
	n, err := netif.LookUpNeighbor(a)
	if err != nil || n.Confirmed {
		return resolution{n, true, err}
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", netip.AddrPortFrom(a, 9).String())
	if err != nil {
		return resolution{Neighbor: n} // there is no route to it
	}
	defer c.Close()
	_, _ = c.Write(nil) // what it is answered with does not matter
	for end := time.Now().Add(probeTimeout); ; time.Sleep(20 * time.Millisecond) {
		n, err = netif.LookUpNeighbor(a)
		if err != nil || n.Link == "" || n.Confirmed || time.Now().After(end) {
			return resolution{n, false, err}
		}
	}
}

// probeTCP opens a connection and closes it.
func probeTCP(ctx context.Context, to netip.AddrPort) tcpProbe {
	p := tcpProbe{Port: to.Port()}
	began := time.Now()
	c, err := (&net.Dialer{Timeout: probeTimeout}).DialContext(ctx, "tcp", to.String())
	var timeout net.Error
	switch {
	case err == nil:
		_ = c.Close()
		p.Open, p.Answer = true, fmt.Sprintf("a connection was opened (%s)", time.Since(began).Round(100*time.Microsecond))
	case errors.Is(err, syscall.ECONNREFUSED):
		p.Answer = "refused: the packet arrives, but nothing serves the port there (kube-proxy, endpoints)"
	case errors.Is(err, syscall.EHOSTUNREACH):
		p.Answer = "no host: nobody answers for the address on the link, or a router says so"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		p.Answer = fmt.Sprintf("no answer within %s", probeTimeout)
	default:
		p.Answer = err.Error()
	}
	return p
}

// answer says in words who answers for the address a; node is whose the MAC is, "" if no node is known to have it.
func (n resolution) answer(a netip.Addr, node, owner string) string {
	answers := n.MAC + " answers on " + n.Link
	if n.earlier {
		answers = n.MAC + " has answered within the last minute on " + n.Link
	}
	switch {
	case n.err != nil:
		return "who answers for it can't be read: " + n.err.Error()
	case n.Local:
		return "this machine has the address itself"
	case n.Link == "":
		return "it is on no link of this machine, so only a router can say who answers for it"
	case n.MAC == "":
		return "nobody answers for it on " + n.Link
	case !n.Confirmed:
		whose := "no node's MAC"
		if node != "" {
			whose = "node " + node
		}
		return fmt.Sprintf("%s (%s) was the last to announce it on %s; whether it answers now is not known: arping -I %s %s, as root", n.MAC, whose, n.Link, n.Link, a)
	case node == "":
		return answers + ", which is the MAC of no node that runs Herald: find that host"
	case node != owner && owner != "":
		return answers + ", which is node " + node + ", and the owner is " + owner
	}
	return answers + ": node " + node
}

// macsOf returns the nodes by the MACs of their links, in lower case, and the owner by those of the Service's DHCP leases.
func macsOf(s kube.Snapshot, service vip.Service) map[string]string {
	all := make(map[string]string)
	for _, n := range nodeLeases(s) {
		for _, link := range n.Info.Links {
			if link.MAC != "" {
				all[strings.ToLower(link.MAC)] = n.Name
			}
		}
	}
	for _, l := range service.DHCP.Leases {
		if l.MAC != "" {
			all[strings.ToLower(l.MAC)] = service.VIPHost
		}
	}
	return all
}
