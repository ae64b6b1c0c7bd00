// Package peers detects within a fraction of a second that another node has failed or
// can't be reached on the link of the VIPs.
//
// Every node sends every other a heartbeat several times a second: a UDP packet that is
// encrypted with the cluster's key, carries its vip.Heartbeat, and echoes a nonce from the last packet
// of each node that it hears. That is the asynchronous mode of BFD (RFC 5880) in a full mesh, with one
// packet for all sessions. A packet counts only if its sender hears this node too, so
// two nodes agree on whether they see each other. Why not memberlist: docs/why.md, "Heartbeats".
//
// Silence alone does not make a node Dead. A node that is silent for the detection time, 2.5 of its
// transmit intervals, is probed in two other ways:
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

	// Keys is the keys of the cluster, see ParseKeys; none: not known yet, so nothing is sent.
	Keys func() [][]byte
	// Address is this node's own on the link of VIPs; zero: it has none, or not yet. A link-local one needs its zone.
	Address func() netip.Addr
	// Nodes is the addresses of the other nodes by name, as their node leases have them. The caller may change the map.
	Nodes func() map[string]netip.AddrPort
	// Answers asks the link of VIPs who has an address (ARP, NDP), and reports whether
	// anybody answers. It takes 150 ms at most.
	Answers func(ctx context.Context, a netip.Addr) bool
	// Transport sends and receives packets; nil: the kernel's UDP and TCP.
	Transport Transport
}

// Peers exchanges heartbeats with the other nodes, and decides which of them are alive.
type Peers struct {
	o           Options
	metrics     *metrics
	sendNow     mailbox.Signal // a heartbeat is to be sent at once, and soon again
	tasks       sync.WaitGroup // what Run has started
	socketState                // belongs to Run

	mu       sync.Mutex // guards what follows
	detector *detector
	sealer   *sealer
	toAwayAt time.Time // when heartbeats are next sent to nodes that are away
	off      string    // what Off returns
}

// New makes Peers that send and receive nothing before Run.
func New(o Options) *Peers {
	o.Transport = cmp.Or[Transport](o.Transport, kernelTransport{})
	if o.Process == (vip.ProcessID{}) {
		o.Process = vip.NewProcessID()
	}
	off := "it has not started yet"
	if o.Port == 0 {
		off = NoPort
	}
	return &Peers{
		o: o, metrics: newMetrics(), sendNow: mailbox.NewSignal(),
		detector: newDetector(o.Node), sealer: newSealer(o.Process), off: off,
	}
}

// String names the task.
func (p *Peers) String() string { return "peers" }

// SetHeartbeat sets what the heartbeats of this node contain. If h differs from before, it is sent to all nodes at
// once, and again some 25 ms later.
func (p *Peers) SetHeartbeat(h vip.Heartbeat) {
	p.mu.Lock()
	changed := p.detector.heartbeat != h
	p.detector.heartbeat = h
	p.mu.Unlock()
	if changed {
		p.sendNow.Send()
	}
}

// Statuses returns the state of every other node that has a node lease or was heard lately, by name. The caller may
// change the map.
func (p *Peers) Statuses() map[string]vip.PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.detector.statuses(time.Now())
}

// KeyIDs returns the KeyID of each of Options.Keys, as last read by Run; nil while there is no socket for heartbeats.
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

// keyIDs returns the IDs of the keys that packets are decrypted with.
func (p *Peers) keyIDs() []keyID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sealer.ids)
}

// NoPort is what Off returns if no heartbeats are to be exchanged.
const NoPort = "herald_peers_port is 0"

// Off returns why this node has no socket for heartbeats, in words for a person; "" while heartbeats are exchanged.
func (p *Peers) Off() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.off
}
