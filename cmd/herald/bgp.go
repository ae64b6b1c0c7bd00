package main

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/bgp"
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/vip"
)

// newSpeaker is the node's BGP speaker. Without bgp_enable it has no peers, and is not run.
func newSpeaker(n *node, cfg config.Config, log *slog.Logger) *bgp.Speaker {
	b := cfg.BGP
	return bgp.New(bgp.Options{
		Node: cfg.Node.Name, Peers: (&bgpPeers{node: n, cfg: cfg, log: log}).now,
		Links: n.links.Links, RouterID: b.RouterID, RouterInterface: b.RouterInterface, HoldTime: b.Hold, KeepaliveTime: b.Keepalive, RestartTime: b.RestartTime, DrainTime: b.DrainTime,
		Log: log, Poke: func() { n.agent.Poke() },
	})
}

// bgpPeers are those of the options and those that the Node's annotations name.
type bgpPeers struct {
	node *node
	cfg  config.Config
	log  *slog.Logger

	mu   sync.Mutex
	said string // what is wrong with the annotations, once told
	good []vip.BGPPeer
}

// now is the peers at this moment. Annotations that can't be read change nothing.
func (p *bgpPeers) now() []vip.BGPPeer {
	all := p.cfg.BGP.Peers
	if p.cfg.BGP.AnnotationPrefix == "" {
		return all
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	named, err := p.cfg.BGP.AnnotatedPeers(p.node.cluster.Annotations(p.cfg.Node.Name))
	text := ""
	if err == nil {
		p.good = named
	} else if text = err.Error(); text != p.said {
		p.log.Warn("the BGP peers in the Node's annotations can't be read; those known before stay", "err", err)
	}
	p.said = text
	all = slices.Clone(all)
	for _, x := range p.good {
		if !slices.ContainsFunc(all, func(y vip.BGPPeer) bool { return y.Name() == x.Name() }) {
			all = append(all, x)
		}
	}
	return all
}

// routingRule is what the plan must know of BGP; nil without bgp_enable.
func routingRule(b config.BGP) *plan.BGP {
	if !b.Enable {
		return nil
	}
	return &plan.BGP{Attributes: b.Attributes, Aggregates: b.Aggregates, Keep: b.RestartTime > 0}
}

// coarse is how often the others are told of what only people want to know: each
// change of a node's Info is written to its lease at once.
const coarse = 10 * time.Second

// A bulletin is what the other nodes may know of the sessions. It changes at once
// if one goes up or down, and now and then if it is a prefix more or less.
type bulletin struct {
	mu   sync.Mutex
	last []vip.BGPSession
	at   time.Time
}

// issue is the bulletin while the sessions are as given.
func (b *bulletin) issue(sessions []vip.BGPSession, now time.Time) []vip.BGPSession {
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(x, y vip.BGPSession) bool { return x.Peer == y.Peer && x.Up() == y.Up() }
	if slices.EqualFunc(b.last, sessions, same) && now.Sub(b.at) < coarse {
		return b.last
	}
	b.last, b.at = slices.Clone(sessions), now
	for i := range b.last {
		if x := &b.last[i]; !x.Up() {
			x.State = "down" // which of the states before it is up changes every second
		}
	}
	return b.last
}

// errNoSession is why a node is not ready with herald_bgp_ready.
var errNoSession = errors.New("no BGP session is established")

// routersReady says why not.
func (n *node) routersReady() error {
	if n.needsPeer && !slices.ContainsFunc(n.speaker.Sessions(), vip.BGPSession.Up) {
		return errNoSession
	}
	return nil
}
