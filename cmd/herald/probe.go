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
		n, earlier, err := resolve(ctx, a)
		p.Link, p.MAC = n.Link, n.MAC
		p.Node = macs[n.MAC]
		p.Answer = neighborAnswer(a, n, err, p.Node, e.Owner)
		if earlier && p.MAC != "" {
			p.Answer = strings.Replace(p.Answer, " answers on ", " has answered within the last minute on ", 1)
		}
		for i := range p.TCP {
			if n.Link != "" && n.MAC == "" && p.TCP[i].Open {
				p.TCP[i].Answer += ", by the rules of kube-proxy on this machine: from elsewhere there is no answer"
			}
		}
		all = append(all, p)
	}
	return all
}

// resolve has the kernel ask who has an address, and waits for at most probeTimeout for an answer. A datagram to a port that no
// Service has (discard, RFC 863) is enough; a connection to one of the Service is answered by kube-proxy of this machine, if that is a node.
// earlier: the kernel asks nobody, since it has had an answer within its reachable time (RFC 4861 section 6.3.2), about half a minute.
func resolve(ctx context.Context, a netip.Addr) (n netif.Neighbor, earlier bool, err error) {
	if n, err = netif.LookUpNeighbor(a); err != nil || n.Confirmed {
		return n, true, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", netip.AddrPortFrom(a, 9).String())
	if err != nil {
		return n, false, nil // there is no route to it
	}
	defer c.Close()
	_, _ = c.Write(nil) // what it is answered with does not matter
	for end := time.Now().Add(probeTimeout); ; time.Sleep(20 * time.Millisecond) {
		n, err = netif.LookUpNeighbor(a)
		if err != nil || n.Link == "" || n.Confirmed || time.Now().After(end) {
			return n, false, err
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

// neighborAnswer says in words who answers for an address by ARP or NDP; node is whose the MAC is, "" if no node is known to have it.
func neighborAnswer(a netip.Addr, n netif.Neighbor, err error, node, owner string) string {
	switch {
	case err != nil:
		return "who answers for it can't be read: " + err.Error()
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
		return fmt.Sprintf("%s answers on %s, which is the MAC of no node that runs Herald: find that host", n.MAC, n.Link)
	case node != owner && owner != "":
		return fmt.Sprintf("%s answers on %s, which is node %s, and the owner is %s", n.MAC, n.Link, node, owner)
	}
	return fmt.Sprintf("%s answers on %s: node %s", n.MAC, n.Link, node)
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
