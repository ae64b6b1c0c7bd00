package peers

import (
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Periods. A node sends at most some 400 packets a second, however many nodes
// there are: with 40 nodes each 100 ms, with 100 each 250 ms.
const (
	minPeriod     = 100 * time.Millisecond
	maxPeriod     = 2 * time.Second
	periodPerNode = 2500 * time.Microsecond
)

// How long things last.
const (
	// muteAfter is how long a node is silent, though its address is answered,
	// before that is called Mute. Nothing waits for it.
	muteAfter = 3 * time.Second
	// meetTime is how long a node may take to be met before anybody asks why.
	meetTime = 3 * time.Second
	// giveUp is how long a silent node is held for alive that can't be asked after, and how
	// often somebody asks after one that was never met.
	giveUp = 10 * time.Second
	// forget is how long a node is remembered that no node lease names and nobody hears.
	forget = time.Minute
	// tokenTime is how old a token may be to prove that its echo is not replayed.
	tokenTime = 5 * time.Second
	// believe is how long the outcome of asking after a node may be acted on.
	believe = 500 * time.Millisecond
)

// A table is all that is known of the other nodes. It does no I/O and reads no
// clock: whoever calls says what the time is.
type table struct {
	self   string
	id     nodeID
	card   vip.Heartbeat
	peers  map[string]*peer
	period time.Duration // of this node
	began  time.Time     // since when this node has been listening without a break; zero: it is not
	looked time.Time     // when look was called last
	rest   time.Duration // so long after that it is to be called again
	hitch  time.Time     // when it came a little late last
	sent   [64]sending   // the last tokens, a ring
	next   int           // where in sent the next one goes
	news   []news        // what has changed and was not yet told
}

// A sending is a token, and when it was sent first.
type sending struct {
	token uint32
	at    time.Time
}

// news is a change of how a node looks.
type news struct {
	node      string
	was, is   vip.Liveness
	why       string
	silent    time.Duration // since it was last heard; 0: never
	left      bool          // it said so
	closed    bool          // it is alive, but its TCP port is not to be had
	forgotten bool
}

// A peer is another node.
type peer struct {
	name  string
	id    nodeID
	named bool           // by a node lease
	first time.Time      // known since
	lease netip.AddrPort // where its node lease says it is
	addr  netip.AddrPort // where it is: there, or where a good packet came from since

	boot    bootID // of the process last heard
	number  uint64 // of its newest packet
	token   uint32 // in it
	heard   time.Time
	proven  bool      // boot is no replay: it echoed a token of this process
	echoed  time.Time // when the newest of our tokens that it echoed was sent
	period  time.Duration
	keys    []keyID
	card    vip.Heartbeat
	echoes  []echo
	left    bool      // the process boot said that it ends
	foreign time.Time // when a packet came from its address that could not be opened

	silent   bool // it has fallen silent, and the others were told
	state    vip.Liveness
	since    time.Time
	why      string
	met      bool // it was alive once
	answered bool // its address was answered for while it was alive: so it can be asked
	open     bool // and its port took a TCP connection

	asking bool
	askAt  time.Time // when it may be asked after again
	told   time.Time // when the outcome came; zero: none since it was heard
	found  outcome
}

// An outcome is what was found by asking after a node.
type outcome struct {
	answers   bool // somebody answers for its address
	connected bool // its port takes connections
	refused   bool // its kernel says that nobody listens
}

func newTable(self string) *table {
	return &table{self: self, id: idOf(self), peers: make(map[string]*peer), period: minPeriod, rest: tick}
}

// know takes over where the others are, as their node leases say.
func (t *table) know(nodes map[string]netip.AddrPort, now time.Time) {
	for _, p := range t.peers {
		_, p.named = nodes[p.name]
	}
	for name, addr := range nodes {
		if name == t.self {
			continue
		}
		p := t.peer(name, now)
		p.named = true
		if addr != p.lease {
			p.lease = addr
			if addr.IsValid() || p.heard.IsZero() {
				p.addr = addr
			}
		}
	}
	for _, p := range t.peers {
		if !p.named && now.Sub(p.heard) > forget && now.Sub(p.first) > forget {
			delete(t.peers, p.name)
			t.news = append(t.news, news{node: p.name, was: p.state, forgotten: true})
		}
	}
	t.period = min(max(minPeriod, time.Duration(len(t.peers)+1)*periodPerNode), maxPeriod)
}

func (t *table) peer(name string, now time.Time) *peer {
	p := t.peers[name]
	if p == nil {
		p = &peer{name: name, id: idOf(name), first: now, since: now, period: t.period}
		t.peers[name] = p
		t.news = append(t.news, news{node: name})
	}
	return p
}

// hears reports whether p was heard within its time: two packets may be late or lost.
func (p *peer) hears(now time.Time) bool {
	return p.proven && !p.left && now.Sub(p.heard) <= p.period*5/2
}

// mutual reports whether p has lately said that it hears this node.
func (t *table) mutual(p *peer, now time.Time) bool {
	return now.Sub(p.echoed) <= (p.period+t.period)*5/2
}

// late is to be called when this node was not able to listen, or has begun to.
func (t *table) late(now time.Time) { t.began, t.looked, t.rest = now, now, tick }

// held reports whether this process has not run as it should until now.
func (t *table) held(now time.Time) bool { return now.Sub(t.looked) > t.rest+lapse }

// starved reports whether this node can't judge the silence of p: p may have sent
// nothing since this node listens again. What came meanwhile the kernel has kept,
// unless the whole machine stood still.
func (t *table) starved(p *peer, now time.Time) bool {
	return t.began.IsZero() || t.held(now) || now.Sub(t.began) < p.period*3/2
}

// unheard reports whether this node can't judge whether p hears it: p may not have
// heard anything since this node runs again.
func (t *table) unheard(p *peer, now time.Time) bool {
	return t.starved(p, now) || now.Sub(t.began) < (p.period+t.period)*5/2
}

// message is what this node has to say now, with a new token.
func (t *table) message(token uint32, leaving bool, now time.Time) *message {
	t.sent[t.next%len(t.sent)] = sending{token, now}
	t.next++
	m := &message{from: t.self, token: token, period: t.period, leaving: leaving, card: t.card}
	for _, p := range t.peers {
		if !p.heard.IsZero() {
			// Who has just been held up speaks for the others, not against them.
			hears := p.hears(now) || p.state == vip.Alive && now.Sub(t.began) < lapse
			m.echoes = append(m.echoes, echo{node: p.id, hears: hears, alive: p.state == vip.Alive, token: p.token})
		}
	}
	return m
}

// heard takes over a message that came from addr. It reports false for one that
// is old, or was recorded and sent again by somebody.
func (t *table) heard(m *message, boot bootID, number uint64, addr netip.AddrPort, now time.Time) bool {
	if m.from == t.self {
		return false
	}
	p := t.peer(m.from, now)
	echoed := t.echoIn(m, now)
	switch {
	case boot == p.boot && number <= p.number:
		return false
	case boot == p.boot:
	case now.Sub(echoed) < tokenTime:
	case p.proven && !p.left && now.Sub(p.heard) < forget:
		// A process that is new and has not heard of us yet; or a packet of one that is
		// gone. It proves itself by its next packet: we send to it anyway.
		return false
	}
	if boot != p.boot {
		p.boot, p.proven, p.left, p.echoed = boot, false, false, time.Time{}
	}
	p.number, p.token, p.heard = number, m.token, now
	if echoed.After(p.echoed) {
		p.echoed = echoed
	}
	if p.proven = p.proven || now.Sub(echoed) < tokenTime; p.proven {
		p.told, p.silent = time.Time{}, false
	}
	p.period = min(max(m.period, minPeriod/2), 2*maxPeriod)
	p.keys, p.echoes, p.left = m.keys, m.echoes, p.proven && m.leaving
	if addr.IsValid() && (p.proven || !p.addr.IsValid()) {
		p.addr = addr // of a node that no lease names it is all there is
	}
	if p.card != m.card && p.proven {
		p.card = m.card
		t.news = append(t.news, news{node: p.name, was: p.state, is: p.state})
	}
	t.judge(p, now)
	t.reconsider(p, now)
	return true
}

// echoIn is when the token that m echoes was sent; zero if it echoes none of ours.
func (t *table) echoIn(m *message, now time.Time) time.Time {
	for _, e := range m.echoes {
		if e.node != t.id {
			continue
		}
		for _, s := range t.sent {
			if s.token == e.token && !s.at.IsZero() && !s.at.After(now) {
				return s.at
			}
		}
	}
	return time.Time{}
}

// unreadable notes that a packet from addr could not be opened.
func (t *table) unreadable(addr netip.Addr, now time.Time) {
	for _, p := range t.peers {
		if p.addr.Addr() == addr {
			p.foreign = now
		}
	}
}

// sights is how all others look.
func (t *table) sights(now time.Time) map[string]vip.PeerStatus {
	all := make(map[string]vip.PeerStatus, len(t.peers))
	for name, p := range t.peers {
		all[name] = vip.PeerStatus{Liveness: p.state, Since: p.since, Heartbeat: p.card, Overdue: p.state == vip.Alive && now.Sub(p.heard) > 2*p.period}
	}
	return all
}
