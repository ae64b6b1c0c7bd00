// Package peers detects within a fraction of a second that another node has failed or can't be reached on the link of
// the VIPs.
//
// Every node sends every other a heartbeat several times a second: a UDP packet that is encrypted with the cluster's
// key, carries its vip.Heartbeat, and echoes a nonce from the last packet of each node that it hears. That is the
// asynchronous mode of BFD (RFC 5880) in a full mesh, with one packet for all sessions. A packet counts only if its
// sender hears this node too, so two nodes agree on whether they see each other. Why not memberlist: docs/why.md,
// "Heartbeats".
//
// Silence alone does not make a node Dead. A node that is silent for the detection time, 2.5 of its transmit intervals,
// is probed in two other ways:
//
//	TCP to its port   refused: its kernel runs, and its process does not       Dead
//	ARP, NDP          nobody answers, and no node that is heard hears it        Dead
//	                  answered, and TCP is not refused                          Suspect
//
// The VIPs of a Dead node may be taken over. Suspect is a blocked port or a process that hangs: only its node lease
// decides. A process that was itself paused judges no other node until it has listened again for a while.
package peers

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// Options of Peers. None but Transport may be nil.
type Options struct {
	Node    string        // this node's name
	Process vip.ProcessID // of this process, which the header of each packet has
	Port    uint16        // UDP and TCP; 0: no heartbeats
	Log     *slog.Logger
	Poke    func() // called when Statuses has changed; must not block

	// Keys is the cluster's keys, see ParseKeys; none: nothing is sent yet.
	Keys func() [][]byte
	// Address is this node's own on the link of VIPs, link-local with its zone; or zero.
	Address func() netip.Addr
	// Nodes is other nodes' addresses by name, from node leases, in a map of the caller's.
	Nodes func() map[string]netip.AddrPort
	// Answers asks the link by ARP or NDP whether anybody has an address, within 150 ms.
	Answers func(ctx context.Context, a netip.Addr) bool
	// Transport sends and receives packets; nil: the kernel's UDP and TCP.
	Transport Transport
}

// Peers exchanges heartbeats with other nodes, and decides which are alive.
type Peers struct {
	o Options
	*metrics
	sendNow     mailbox.Signal // a heartbeat is to be sent at once, and soon again
	tasks       sync.WaitGroup // what Run has started
	socketState                // belongs to Run

	mu       sync.Mutex // guards what follows
	detector *detector
	sealer   *sealer
	toAwayAt time.Time // when heartbeats are next sent to nodes that are away
	off      string    // what Off returns
	lostAt   time.Time // when the address of heartbeats went; zero: it is there, or never was
}

// New makes Peers that send and receive nothing before Run.
func New(o Options) *Peers {
	o.Transport = cmp.Or[Transport](o.Transport, kernelTransport{})
	o.Process = cmp.Or(o.Process, vip.NewProcessID())
	off := "it has not started yet"
	if o.Port == 0 {
		off = NoPort
	}
	return &Peers{
		o: o, metrics: newMetrics(), sendNow: mailbox.NewSignal(),
		detector: newDetector(o.Node), sealer: newSealer(o.Process), off: off,
	}
}

// SetHeartbeat sets what heartbeats contain. A change is sent at once, and again 25 ms later.
func (p *Peers) SetHeartbeat(h vip.Heartbeat) {
	p.mu.Lock()
	changed := p.detector.heartbeat != h
	p.detector.heartbeat = h
	p.mu.Unlock()
	if changed {
		p.sendNow.Send()
	}
}

// LinksChanged has addresses read, and a heartbeat sent from a new one, at once: the old one may have died by the next.
func (p *Peers) LinksChanged() { p.sendNow.Send() }

// Statuses returns the state of other nodes with a lease, or heard lately, by name, in a new map.
func (p *Peers) Statuses() map[string]vip.PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.detector.statuses(time.Now())
}

// KeyIDs returns the KeyID of each of Options.Keys, as last read by Run; nil without a socket.
func (p *Peers) KeyIDs() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.sealer.keys {
		if p.off == "" {
			ids = append(ids, p.sealer.ids[i].String())
		}
	}
	return ids
}

func (p *Peers) keyIDs() []keyID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sealer.ids)
}

// NoPort is what Off returns if no heartbeats are wanted.
const NoPort = "herald_peers_port is 0"

// AddressLost reports whether the address of heartbeats has gone, so long ago that other nodes take this one for dead.
func (p *Peers) AddressLost() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.lostAt.IsZero() && time.Since(p.lostAt) >= lostAfter
}

// Off returns why this node has no socket for heartbeats, for a person; or "".
func (p *Peers) Off() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.off
}
