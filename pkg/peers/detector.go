package peers

import (
	"maps"
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// The transmit interval (RFC 5880 section 6.8.1) is longer where there are more nodes.
const (
	minInterval = 50 * time.Millisecond
	maxInterval = 2 * time.Second
)

// transmitInterval returns the interval for so many nodes: up to 10, some 100 packets a second each, else 400 at most.
func transmitInterval(nodes int) time.Duration {
	n := time.Duration(nodes)
	return min(max(minInterval, min(n*10*time.Millisecond, 100*time.Millisecond), n*2500*time.Microsecond), maxInterval)
}

const (
	// A Dead or Unknown node is away after awayAfter of silence; then packets go to it each awayInterval at most. For
	// awayNotice that is only said (as in RFC 5880 section 6.8.3): it may hear this node after all.
	awayAfter, awayInterval, awayNotice = 10 * time.Second, 500 * time.Millisecond, time.Second
	// forgetAfter is how long after its last heartbeat a node without a node lease is removed.
	forgetAfter = time.Minute
	// nonceMaxAge is how old a nonce may be for its echo to prove no replay.
	nonceMaxAge = 5 * time.Second
	// nonceLifetime is how long nonces are kept: while an echo may matter.
	nonceLifetime = 3 * maxInterval * 5 / 2
)

// detectionTime returns after what silence a sender is silent (RFC 5880 section 6.8.4).
func detectionTime(interval time.Duration) time.Duration { return interval * 5 / 2 }

// A detector decides from heartbeats and probes which nodes are alive. It does no I/O and reads no clock: callers pass
// the time, and hold Peers.mu.
type detector struct {
	self      string
	id        nodeID
	heartbeat vip.Heartbeat // of this node
	interval  time.Duration // the transmit interval of this node
	peers     map[string]*peer
	changes   []change // not yet returned by takeChanges

	listeningSince time.Time            // since when heartbeats are received without a pause; zero: they are not
	checkedAt      time.Time            // when check was called last
	nextCheck      time.Duration        // so long after checkedAt it is to be called again
	delayedAt      time.Time            // when check was last called more than probeMaxDelay too late
	diedAt         time.Time            // when a node last became Dead; zero: none did
	sent           map[uint32]time.Time // nonces in heartbeats of this node, and when they were sent
}

// A change is news about a node: that it is known, its state, its heartbeat, or one of the last two fields.
type change struct {
	node           string
	was, is        vip.Liveness
	why            string
	silent         time.Duration // since its last heartbeat; 0: there was none
	stopped        bool          // its last heartbeat said that it stops
	tcpUnreachable bool          // it is alive, but its TCP port can't be reached
	forgotten      bool          // it was removed
}

type peer struct {
	name      string
	id        nodeID
	firstSeen time.Time
	leaseAddr netip.AddrPort // its address as its node lease has it
	addr      netip.AddrPort // where heartbeats are sent: leaseAddr, or where a verified one came from since
	rx        received
	probe     probeState
	verdict
}

type received struct {
	packetID                // of the last one
	highest   uint64        // the highest sequence number of its process so far
	nonce     uint32        // in it
	at        time.Time     // when it came
	verified  bool          // its process has echoed a nonce of this one, so its packets are no replay
	echoOf    time.Time     // when the newest nonce that it echoed was sent
	interval  time.Duration // its transmit interval
	heartbeat vip.Heartbeat // of its last verified packet
	echoes    []echo        // which nodes it hears
	stopping  bool          // its process said that it stops
	failedAt  time.Time     // when a packet from its address last could not be opened
}

// arriving reports whether a verified, running process's last packet came within its detection time.
func (r *received) arriving(now time.Time) bool {
	return r.verified && !r.stopping && now.Sub(r.at) <= detectionTime(r.interval)
}

// probeState is what probes found: ARP or NDP for a node's address, and TCP to its port.
type probeState struct {
	running  bool
	next     time.Time // not before
	at       time.Time // when the last one ended; zero: none since the last verified heartbeat
	result   probeResult
	refusals int  // how many probes in a row its port has refused since the last verified heartbeat
	answered bool // its address was answered for while it was alive, so no answer means something
	open     bool // and its port took a TCP connection

	unanswered int       // how many probes in a row had no answer of any kind; maxUnanswered by a heartbeat
	answeredAt time.Time // when the last one began, if it had an answer of any kind; zero: it had none
}

// maxUnanswered probes in a row have no answer by chance; silence after a heartbeat counts as one.
const maxUnanswered = 1

// isUnanswered reports whether p is Suspect, and answers no more probes: what this node sends does not arrive.
func (p *peer) isUnanswered() bool {
	return p.state == vip.Suspect && p.probe.answered && p.probe.unanswered > maxUnanswered
}

// away returns for how long p is away; negative: it is not. Packets to a switched-off machine fill the send buffer.
func (d *detector) away(p *peer, now time.Time) time.Duration {
	if p.state != vip.Dead && p.state != vip.Unknown {
		return -1
	}
	return min(now.Sub(p.rx.at), now.Sub(p.firstSeen), now.Sub(d.listeningSince)) - awayAfter
}

type probeResult struct {
	answers   bool // somebody answers for the address
	connected bool // the port took a connection
	refused   bool // the node's kernel refused it
}

type verdict struct {
	state     vip.Liveness
	since     time.Time // when state last changed
	why       string    // in words for a person; "" if there is nothing to say
	wasAlive  bool      // it has been Alive since it is known
	askedAt   time.Time // when a probe was last started since its heartbeat was late
	announced bool      // it is silent, and a heartbeat has said so
	gone      bool      // it is Dead since nobody answers for its address
}

// late reports whether p is Alive, and its next packet is late: the first sign that it may be silent.
func (p *peer) late(now time.Time) bool {
	return p.state == vip.Alive && p.rx.verified && now.Sub(p.rx.at) > p.rx.interval*3/2
}

// detectable reports whether probes would detect the death of p.
func (p *peer) detectable() bool { return p.state == vip.Alive && p.probe.answered && p.probe.open }

func (p *peer) ended() bool { return p.state == vip.Dead && !p.gone && !p.rx.stopping }

// newDetector returns a detector of the node self, which does not listen.
func newDetector(self string) *detector {
	return &detector{
		self: self, id: idOf(self), peers: make(map[string]*peer), sent: make(map[uint32]time.Time),
		interval: minInterval, nextCheck: checkInterval,
	}
}

// setNodes takes other nodes' addresses from node leases; one without is forgotten a minute after its last packet.
func (d *detector) setNodes(nodes map[string]netip.AddrPort, now time.Time) {
	for name := range nodes {
		if name != d.self {
			d.getOrAdd(name, now)
		}
	}
	for name, p := range d.peers {
		addr, hasLease := nodes[name]
		switch {
		case hasLease && addr != p.leaseAddr:
			p.leaseAddr = addr
			if addr.IsValid() || p.rx.at.IsZero() {
				p.addr = addr
			}
		case !hasLease && min(now.Sub(p.rx.at), now.Sub(p.firstSeen)) > forgetAfter:
			delete(d.peers, name)
			d.changes = append(d.changes, change{node: name, was: p.state, forgotten: true})
		}
	}
	d.interval = transmitInterval(len(d.peers) + 1)
}

// getOrAdd returns the node with that name; a new one is Unknown, without an address.
func (d *detector) getOrAdd(name string, now time.Time) *peer {
	p := d.peers[name]
	if p == nil {
		p = &peer{name: name, id: idOf(name), firstSeen: now}
		p.since, p.rx.interval = now, d.interval
		d.peers[name] = p
		d.changes = append(d.changes, change{node: name})
	}
	return p
}

// newMessage returns a heartbeat of this node, and stores when its nonce was sent.
func (d *detector) newMessage(nonce uint32, stopping bool, now time.Time) *message {
	maps.DeleteFunc(d.sent, func(_ uint32, at time.Time) bool { return now.Sub(at) > nonceLifetime })
	d.sent[nonce] = now
	m := &message{from: d.self, nonce: nonce, interval: d.interval, stopping: stopping, heartbeat: d.heartbeat}
	for _, p := range d.peers {
		if !p.rx.at.IsZero() {
			// Just after a pause of this process, Alive nodes count as heard.
			hears := p.rx.arriving(now) || p.state == vip.Alive && now.Sub(d.listeningSince) < pauseThreshold
			m.echoes = append(m.echoes, echo{node: p.id, hears: hears, nonce: p.rx.nonce})
		}
	}
	return m
}

// receive stores a heartbeat from addr, and evaluates its sender; false, without a change, if it is this node's, or may
// be a replay. Until the process echoes a nonce its vip.Heartbeat and stopping are ignored.
func (d *detector) receive(m *message, id packetID, addr netip.AddrPort, now time.Time) bool {
	if m.from == d.self {
		return false
	}
	p := d.getOrAdd(m.from, now)
	rx := &p.rx
	echoOf := d.echoOf(m)
	fresh := now.Sub(echoOf) < nonceMaxAge
	if rx.isReplay(id, echoOf, now) {
		return false
	}
	if id.process != rx.process {
		rx.verified, rx.stopping, rx.echoOf, rx.highest = false, false, time.Time{}, 0
	}
	rx.packetID, rx.nonce, rx.at, rx.highest = id, m.nonce, now, max(rx.highest, id.sequence)
	if echoOf.After(rx.echoOf) {
		rx.echoOf = echoOf
	}
	if rx.verified = rx.verified || fresh; rx.verified {
		p.probe.at, p.probe.refusals, p.announced = time.Time{}, 0, false
		if p.state == vip.Alive {
			p.probe.unanswered = maxUnanswered
		}
	}
	rx.interval = min(max(m.interval, minInterval/2), 2*maxInterval)
	rx.echoes, rx.stopping = m.echoes, rx.verified && m.stopping
	if addr.IsValid() && (rx.verified || !p.addr.IsValid()) {
		p.addr = addr // without a node lease there is no other
	}
	if rx.heartbeat != m.heartbeat && rx.verified {
		rx.heartbeat = m.heartbeat
		d.changes = append(d.changes, change{node: p.name, was: p.state, is: p.state})
	}
	d.evaluate(p, now)
	for _, q := range d.peers { // p may have said that it does not hear them either
		if q != p && !q.probe.at.IsZero() && q.state != vip.Dead {
			d.evaluate(q, now)
		}
	}
	return true
}

// isReplay reports whether a packet, echoing a nonce of echoOf, may be an old recording.
func (r *received) isReplay(id packetID, echoOf, now time.Time) bool {
	fresh := now.Sub(echoOf) < nonceMaxAge
	if id.process != r.process {
		// A new process that has received nothing from here will echo the next one.
		return !fresh && r.verified && !r.stopping && now.Sub(r.at) < forgetAfter
	}
	// A process restored from a snapshot of its memory counts from an earlier number on.
	restored := fresh && (echoOf.After(r.echoOf) || echoOf.Equal(r.echoOf) && id.sequence > r.sequence)
	return id.sequence <= r.highest && !restored
}

// echoOf returns when the nonce that m echoes was sent, or zero.
func (d *detector) echoOf(m *message) time.Time {
	for _, e := range m.echoes {
		if e.node == d.id {
			return d.sent[e.nonce]
		}
	}
	return time.Time{}
}

func (d *detector) receiveFailed(addr netip.Addr, now time.Time) {
	for _, p := range d.peers {
		if p.addr.Addr() == addr {
			p.rx.failedAt = now
		}
	}
}

// statuses returns every known node's state, as last evaluated; SilentSince and Overdue are of now.
func (d *detector) statuses(now time.Time) map[string]vip.PeerStatus {
	all := make(map[string]vip.PeerStatus, len(d.peers))
	for name, p := range d.peers {
		all[name] = vip.PeerStatus{
			Liveness: p.state, Since: p.since, Heartbeat: p.rx.heartbeat,
			Stopping: p.state == vip.Dead && p.rx.stopping,
			Gone:     p.gone, ProcessEnded: p.ended(), SilentSince: d.silentSince(p, now),
			HeardAt:    p.rx.at,
			Unanswered: p.isUnanswered(), AnsweredAt: p.probe.answeredAt,
			Overdue:     p.state == vip.Alive && now.Sub(p.rx.at) > 2*p.rx.interval,
			EchoOverdue: d.mayNotHear(p, now),
		}
	}
	return all
}

// echoDue returns when p, should it have echoed nothing of this node by then, may not hear it.
func (d *detector) echoDue(p *peer) time.Time {
	return p.rx.echoOf.Add(detectionTime(p.rx.interval + d.interval))
}

// mayNotHear reports whether p is heard, and no echo or later answer of it shows that it hears this node.
func (d *detector) mayNotHear(p *peer, now time.Time) bool {
	return p.rx.arriving(now) && now.After(d.echoDue(p)) && !p.probe.answeredAt.After(d.echoDue(p))
}

// takeChanges returns, and removes, the changes, oldest first.
func (d *detector) takeChanges() (taken []change) {
	taken, d.changes = d.changes, nil
	return taken
}
