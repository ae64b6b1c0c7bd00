// Package peers notices within a fraction of a second that another node is gone
// from the wire the VIPs live on.
//
// Every node tells every other, some times a second, that it lives: one UDP
// packet that is sealed with the cluster's key, carries its Card, and says whom
// it hears. That is the asynchronous mode of BFD (RFC 5880), in a full mesh, with
// the cards of all on the same packets. A packet counts as a sign of life only if its
// sender hears this node too, so two nodes agree on whether they see each other.
//
// Silence alone is no verdict. A node that has been silent for two and a half
// periods is asked after in two other ways:
//
//	TCP to its port   refused: its kernel lives, and says that the process does not   Dead
//	ARP, NDP          nobody answers, and no node that is alive hears it              Dead
//	                  answered, and nothing else is                                   Mute
//
// Dead may be acted upon. Mute is a blocked port or a process that hangs: only
// its lease can tell. A process that was itself starved of CPU passes no verdict
// until it has listened again for a while.
package peers

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
)

// Options of Peers.
type Options struct {
	Node string // this node's name
	Port uint16 // UDP and TCP; 0: watch nobody
	Log  *slog.Logger
	Poke func() // called when a Sight has changed; must not block

	// Key is the keys of the cluster, see ParseKeys; none: not known yet, so nothing
	// is sent. What is sent to a node is sealed with the first that the node has too.
	Key func() [][]byte
	// Address is this node's own on the VIPs' link; zero: it has none, or not yet.
	// A link-local one needs its zone.
	Address func() netip.Addr
	// Nodes is where the other nodes are, as far as their node leases tell. The map
	// is Peers' own then.
	Nodes func() map[string]netip.AddrPort
	// Answers asks the VIPs' link who has an address (ARP, NDP), and reports whether
	// anybody answers. It takes 150 ms at most.
	Answers func(ctx context.Context, a netip.Addr) bool
	// Wire is how packets travel; nil: as the kernel does it.
	Wire Wire
}

// Peers is the other nodes, as this one sees them on the wire.
type Peers struct {
	o      Options
	log    *slog.Logger
	wire   Wire
	meters *meters
	told   chan struct{} // capacity 1: the card or somebody's silence is news for the others

	mu     sync.Mutex // guards all below
	table  *table
	seal   *sealer
	socket Socket // nil: nothing to send by
	where  netip.AddrPort
	until  context.CancelFunc // ends what belongs to the socket
	trying time.Time          // when a socket may be tried for again
	wrong  string             // why there is none
	since  time.Time          // since when that is so
	said   bool               // and the log has it
	round  int                // how many times something was sent

	tasks sync.WaitGroup // what Run waits for
}

// New makes Peers that do nothing before Run.
func New(o Options) *Peers {
	p := &Peers{
		o: o, log: o.Log, wire: o.Wire, meters: newMeters(),
		told: make(chan struct{}, 1), table: newTable(o.Node),
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.wire == nil {
		p.wire = kernelWire{}
	}
	var boot [bootLen]byte
	_, _ = rand.Read(boot[:]) // never fails
	p.seal = newSealer(boot)
	return p
}

// String names the task.
func (p *Peers) String() string { return "peers" }

// Tell is what the others shall know of this node. It does not block, and they
// know within milliseconds.
func (p *Peers) Tell(c vip.Heartbeat) {
	p.mu.Lock()
	changed := p.table.card != c
	p.table.card = c
	p.mu.Unlock()
	if changed {
		p.hurry()
	}
}

// Sights is how all other nodes look that are known from their leases, or were
// heard of late, by name. The map is the caller's.
func (p *Peers) Sights() map[string]vip.PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.sights(time.Now())
}

// Why is why another node looks as it does, in words for a person; "" if there
// is nothing to say.
func (p *Peers) Why(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.table.peers[node]; o != nil {
		return o.why
	}
	return ""
}

// NoPort is what Off says if nodes are not to watch each other.
const NoPort = "herald_peers_port is 0"

// Off is why this node watches nobody at the moment, in words; "" if it does.
func (p *Peers) Off() string {
	if p.o.Port == 0 {
		return NoPort
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket != nil {
		return ""
	}
	return cmp.Or(p.wrong, "it has not started yet")
}

// Collectors are the metrics of this package.
func (p *Peers) Collectors() []prometheus.Collector { return p.meters.collectors() }

// hurry has the loop send at once.
func (p *Peers) hurry() {
	select {
	case p.told <- struct{}{}:
	default:
	}
}
