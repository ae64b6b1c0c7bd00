package main

import (
	"context"
	"net/netip"
	"os"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/vip"
)

// watch wires what sees the other nodes on the VIPs' link.
func (n *node) watch(cfg config.Config) {
	from, read := "the Secret "+cfg.Node.Namespace+"/"+kube.PeersSecret, func(ctx context.Context) ([]byte, error) {
		return n.cluster.PeersKeys(ctx, peers.NewKey)
	}
	if file := cfg.Peers.KeyFile; file != "" {
		from, read = file, func(context.Context) ([]byte, error) { return os.ReadFile(file) }
	}
	n.keys = peers.NewKeys(n.log, from, read)
	answers := func(ctx context.Context, a netip.Addr) bool {
		info := n.links.Info()
		_, ok := n.announcer.Answers(ctx, info.LinkFor(""), a)
		return ok
	}
	n.peers = peers.New(peers.Options{
		Node: cfg.Node.Name, Port: cfg.Peers.Port, Log: n.log,
		Poke: func() { n.leases.Wake() }, Keys: n.keys.Get,
		Address: func() netip.Addr {
			info := n.links.Info()
			a := info.HeartbeatAddress()
			if a.Is6() && a.IsLinkLocalUnicast() {
				a = a.WithZone(info.LinkFor(""))
			}
			return a
		},
		Nodes: func() map[string]netip.AddrPort {
			all := make(map[string]netip.AddrPort)
			for name, info := range n.leases.NodeInfos() {
				all[name] = netip.AddrPortFrom(info.HeartbeatAddress(), cfg.Peers.Port)
			}
			return all
		},
		Answers: answers,
	})
	n.gateway = peers.NewGateway(peers.GatewayOptions{
		Address: func() netip.Addr {
			info := n.links.Info()
			return n.links.Gateway(info.LinkFor(""))
		},
		Answers: answers, Poke: func() { n.leases.Wake() },
	})
}

// sights is the other nodes as they look on the wire; nil if this one can't see.
func (n *node) sights() map[string]vip.PeerStatus {
	if n.peers.Off() != "" {
		return nil
	}
	return n.peers.Statuses()
}
