package peers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// tick is how often the silence of others is judged, and calm how often at least
	// while there is none.
	tick = 25 * time.Millisecond
	calm = minPeriod
	// lapse is how late a tick may be. If it is later the process did not run, and
	// what it did not hear proves nothing.
	lapse = 100 * time.Millisecond
	// hitch is how late a tick may be while others are asked after: answers have 120 ms to come.
	hitch = 50 * time.Millisecond
	// reread is how often addresses and keys are looked at.
	reread = 250 * time.Millisecond
	// askTime is how long asking after a node may take.
	askTime = 150 * time.Millisecond
	// rush is the shortest time between two rounds of packets.
	rush = 10 * time.Millisecond
	// settle is how long nothing is said of why nobody is watched: at the start that passes.
	settle = 5 * time.Second
	// rebind is how long to wait before a socket that could not be had is tried for again.
	rebind = time.Second
)

// Run watches the other nodes until ctx ends, and tells them then that this
// process leaves.
func (p *Peers) Run(ctx context.Context) error {
	if p.o.Port == 0 {
		p.log.Info("nodes don't watch each other: " + NoPort + "; the failover of a dead node takes the lease duration")
		<-ctx.Done()
		return nil
	}
	timer := time.NewTimer(tick)
	defer timer.Stop()
	defer p.tasks.Wait()
	defer p.leave()
	var read, due, last time.Time
	rest := tick   // the next look is due so long after the last
	again := false // what is urgent is sent twice: one packet may be lost
	for {
		urgent := false
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-p.told:
			urgent = true
		}
		now := time.Now()
		if !last.IsZero() && now.Sub(last) > rest+lapse {
			p.meters.lapses.Inc()
			p.log.Debug("this process was held up; no verdict on other nodes for a while", "for", now.Sub(last).Round(time.Millisecond))
		}
		last = now
		if now.Sub(read) >= reread {
			p.read(ctx, now)
			read = now
		}
		var silence bool
		if silence, rest = p.watch(ctx, now); silence || urgent || again || !now.Before(due) {
			// The others send at random times within the last quarter, lest all do at once (RFC 5880, 6.8.7).
			period := p.send(now, false)
			due = now.Add(period*3/4 + rand.N(period/4))
			again = urgent
			if urgent {
				p.pause(ctx, rush)
			}
		}
		wait := min(rest, time.Until(due))
		if again {
			wait = tick
		}
		timer.Reset(wait)
	}
}

// pause waits for d, or until ctx ends.
func (p *Peers) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// read takes over keys, addresses and nodes, and sees to the socket.
func (p *Peers) read(ctx context.Context, now time.Time) {
	nodes, address, keys := p.o.Nodes(), p.o.Address(), p.o.Key()
	for name, at := range nodes {
		if a := at.Addr(); a.Is6() && a.IsLinkLocalUnicast() { // by which link it is reached, no lease can tell
			nodes[name] = netip.AddrPortFrom(a.WithZone(address.Zone()), at.Port())
		}
	}
	p.seal.use(keys)
	p.mu.Lock()
	p.table.know(nodes, now)
	where := netip.AddrPortFrom(address, p.o.Port)
	wrong := ""
	switch {
	case len(keys) == 0:
		wrong = "the key is not known yet"
	case !address.IsValid():
		wrong = "this node has no address on the link of VIPs"
	}
	if p.socket != nil && (wrong != "" || where != p.where) {
		p.close()
	}
	if wrong == "" && p.socket == nil && !now.Before(p.trying) {
		wrong = p.listen(ctx, where, now)
	}
	if p.socket == nil {
		p.table.began = time.Time{}
	}
	if wrong != p.wrong && (wrong != "" || p.socket != nil) {
		p.wrong, p.since, p.said = wrong, now, false
	}
	wrong = p.wrong
	say := wrong != "" && !p.said && now.Sub(p.since) >= settle
	p.said = p.said || say
	p.mu.Unlock()
	if say {
		p.log.Info("nodes are not watched on the wire for now; the failover of a dead node takes the lease duration", "why", wrong)
	}
}

// close ends the socket and what belongs to it. p.mu is held.
func (p *Peers) close() {
	p.until()
	_ = p.socket.Close()
	p.socket = nil
	p.meters.on.Set(0)
}

// listen opens the socket. It returns what is wrong, in words. p.mu is held.
func (p *Peers) listen(ctx context.Context, at netip.AddrPort, now time.Time) string {
	socket, err := p.wire.Listen(at)
	if err != nil {
		p.trying = now.Add(rebind)
		return "can't listen on " + at.String() + ": " + err.Error()
	}
	ctx, cancel := context.WithCancel(ctx)
	p.socket, p.where, p.until = socket, at, cancel
	p.table.late(now)
	p.meters.on.Set(1)
	p.log.Info("nodes watch each other on the wire", "at", at)
	p.tasks.Go(func() { p.receive(ctx, socket) })
	return ""
}

// receive hears what the others say until socket is closed.
func (p *Peers) receive(ctx context.Context, socket Socket) {
	b := make([]byte, maxPacket)
	for {
		n, from, err := socket.ReadFrom(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			p.pause(ctx, tick)
			continue
		}
		p.hear(b[:n], from)
	}
}

// hear takes over a packet.
func (p *Peers) hear(packet []byte, from netip.AddrPort) {
	boot, number, text, err := p.seal.open(packet)
	var m *message
	if err == nil {
		m, err = parseMessage(text)
	}
	now := time.Now()
	if err != nil {
		reason := "foreign"
		switch {
		case errors.Is(err, errKey):
			reason = "key"
		case errors.Is(err, errForged):
			reason = "forged"
		}
		p.meters.dropped.WithLabelValues(reason).Inc()
		p.mu.Lock()
		p.table.unreadable(from.Addr(), now)
		p.mu.Unlock()
		return
	}
	p.mu.Lock()
	good := p.table.heard(m, boot, number, from, now)
	changed := p.table.take()
	p.mu.Unlock()
	if good {
		p.meters.heard.Inc()
	} else {
		p.meters.dropped.WithLabelValues("old").Inc()
	}
	p.tell(changed)
}

// watch judges the others, and has those asked after who are silent. It reports
// whether the others should hear of something at once, and how soon to watch again.
func (p *Peers) watch(ctx context.Context, now time.Time) (silence bool, rest time.Duration) {
	p.mu.Lock()
	ask, silence := p.table.look(now)
	rest = p.table.rest
	changed := p.table.take()
	here := p.where.Addr()
	for _, o := range ask {
		addr, alive := o.addr, o.hears(now)
		p.tasks.Go(func() {
			found := p.ask(ctx, here, addr)
			p.mu.Lock()
			p.table.asked(o, found, now, time.Now())
			p.meters.guard(o.name, o.state == vip.Alive && o.answered && o.open)
			changed := p.table.take()
			p.mu.Unlock()
			if !alive {
				p.meters.asked.Inc()
				p.log.Debug("asked after a silent node", "node", o.name, "address", addr, "found", found)
			}
			p.tell(changed)
		})
	}
	p.mu.Unlock()
	p.tell(changed)
	return silence, rest
}

// ask finds out whether anybody is at an address, and whether the port is open.
func (p *Peers) ask(ctx context.Context, from netip.Addr, to netip.AddrPort) (found outcome) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	answers := make(chan bool, 1)
	p.tasks.Go(func() { answers <- p.o.Answers != nil && p.o.Answers(ctx, to.Addr()) })
	err := p.wire.Dial(ctx, from, to)
	found.connected, found.refused = err == nil, errors.Is(err, syscall.ECONNREFUSED)
	found.answers = <-answers
	return found
}

// send tells everybody that this node lives, or leaves. It returns the time
// within which to do so again.
func (p *Peers) send(now time.Time, leaving bool) time.Duration {
	ours := p.seal.known()
	p.mu.Lock()
	defer p.mu.Unlock()
	period := p.table.period
	if p.socket == nil || len(ours) == 0 {
		return period
	}
	m := p.table.message(rand.Uint32(), leaving, now)
	m.keys = ours
	text := m.append(nil)
	sealed := make([][]byte, len(ours))
	p.round++
	for _, o := range p.table.peers {
		if !o.addr.IsValid() {
			continue
		}
		which := p.round % len(ours) // of who is not heard nobody knows which keys it has
		if o.hears(now) {
			which = max(0, slices.IndexFunc(ours, func(k keyID) bool { return slices.Contains(o.keys, k) }))
		}
		if sealed[which] == nil {
			sealed[which] = p.seal.seal(text, which)
		}
		result := "ok"
		if err := p.socket.WriteTo(sealed[which], o.addr); err != nil {
			result = "error"
		}
		p.meters.sent.WithLabelValues(result).Inc()
	}
	return period
}

// leave tells the others that this process ends, and closes the socket.
func (p *Peers) leave() {
	for range 2 {
		p.send(time.Now(), true)
		time.Sleep(rush)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket != nil {
		p.close()
	}
}

// take is the news since it was called last.
func (t *table) take() []news {
	taken := t.news
	t.news = nil
	return taken
}

// tell says what has changed to who wants to know.
func (p *Peers) tell(changed []news) {
	if len(changed) == 0 {
		return
	}
	for _, n := range changed {
		if n.forgotten {
			p.meters.forget(n.node)
			continue
		}
		p.meters.show(n.node, n.is)
		if n.was != n.is {
			p.meters.guard(n.node, false)
		}
		if n.was != n.is || n.closed {
			p.say(n)
		}
	}
	if p.o.Poke != nil {
		p.o.Poke()
	}
}

// say logs how a node looks now.
func (p *Peers) say(n news) {
	log := p.log.With("node", n.node)
	if n.why != "" {
		log = log.With("why", n.why)
	}
	silent := n.silent.Round(time.Millisecond)
	switch {
	case n.closed:
		log.Warn("another node is seen on the wire by UDP only; open the port between the nodes for TCP as well", "port", p.o.Port)
	case n.is == vip.Alive:
		log.Info("another node is seen on the wire", "was", n.was)
	case n.is == vip.Suspect:
		log.Warn("another node can't be watched on the wire: should it die, its VIPs move only after the lease duration; open the port between the nodes, UDP and TCP",
			"port", p.o.Port, "silent", silent)
	case n.is == vip.Dead && n.left:
		log.Info("another node has left the wire")
	case n.is == vip.Dead:
		log.Warn("another node is gone from the wire", "silent", silent)
	default:
		log.Info("another node is not watched on the wire", "was", n.was)
	}
}
