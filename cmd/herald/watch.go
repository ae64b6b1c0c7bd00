package main

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"time"

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
	n.peers = peers.New(peers.Options{
		Node: cfg.Node.Name, Port: cfg.Peers.Port, Log: n.log,
		Poke: func() { n.leases.Wake() }, Key: n.keys.Get,
		Address: func() netip.Addr {
			info := n.links.Info()
			a := wireAddress(info)
			if a.Is6() && a.IsLinkLocalUnicast() {
				a = a.WithZone(info.LinkFor(""))
			}
			return a
		},
		Nodes: func() map[string]netip.AddrPort {
			all := make(map[string]netip.AddrPort)
			for name, info := range n.leases.Infos() {
				all[name] = netip.AddrPortFrom(wireAddress(info), cfg.Peers.Port)
			}
			return all
		},
		Answers: func(ctx context.Context, a netip.Addr) bool {
			info := n.links.Info()
			_, ok := n.announcer.Answers(ctx, info.LinkFor(""), a)
			return ok
		},
	})
	n.anchor = newAnchor(n.gateway, func() { n.leases.Wake() })
}

// sights is the other nodes as they look on the wire; nil if this one can't see.
func (n *node) sights() map[string]vip.PeerStatus {
	if n.peers.Off() != "" {
		return nil
	}
	return n.peers.Sights()
}

// gateway asks the VIPs' link for this node's default gateway.
func (n *node) gateway(ctx context.Context) vip.Liveness {
	info := n.links.Info()
	link := info.LinkFor("")
	via := n.links.Gateway(link)
	if !via.IsValid() {
		return vip.Unknown
	}
	if _, ok := n.announcer.Answers(ctx, link, via); ok {
		return vip.Alive
	}
	return vip.Dead
}

// wireAddress is the address by which the others reach a node on its link of VIPs:
// the first IPv4 one, else the first IPv6 one; zero if it has none.
func wireAddress(info vip.NodeInfo) netip.Addr {
	var found netip.Addr
	for _, a := range info.OwnAddresses(info.LinkFor("")) {
		if !found.IsValid() || a.Is4() && !found.Is4() {
			found = a
		}
	}
	return found
}

// An anchor is something on the VIPs' link that is no node: the default gateway.
// Of two halves of a cluster, that which has it is the better one.
type anchor struct {
	ask  func(context.Context) vip.Liveness
	poke func()
	want chan struct{} // capacity 1: somebody wants to know

	mu   sync.Mutex // guards what follows
	last vip.Liveness
	at   time.Time // when that was asked
}

// How long an answer is news, and how long it is good.
const (
	anchorNew  = 500 * time.Millisecond
	anchorGood = 2 * time.Second
)

func newAnchor(ask func(context.Context) vip.Liveness, poke func()) *anchor {
	return &anchor{ask: ask, poke: poke, want: make(chan struct{}, 1)}
}

// String names the task.
func (a *anchor) String() string { return "anchor" }

// Seen is how the gateway looked a moment ago; Unknown if there is none, or until
// it has been asked. It does not block.
func (a *anchor) Seen() vip.Liveness {
	a.mu.Lock()
	defer a.mu.Unlock()
	age := time.Since(a.at)
	if age > anchorNew {
		select {
		case a.want <- struct{}{}:
		default:
		}
	}
	if age > anchorGood {
		return vip.Unknown
	}
	return a.last
}

// Run asks whenever somebody wants to know, until ctx ends.
func (a *anchor) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.want:
		}
		seen := a.ask(ctx)
		a.mu.Lock()
		a.last, a.at = seen, time.Now()
		a.mu.Unlock()
		a.poke()
	}
}
