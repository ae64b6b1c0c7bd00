package peers

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
)

const (
	// checkInterval is the time between two calls of detector.check while a node is late or
	// probed, idleCheckInterval at other times.
	checkInterval     = 25 * time.Millisecond
	idleCheckInterval = 100 * time.Millisecond
	// pauseThreshold is how late check may be. If it is later the process did not run, and
	// that it received nothing means nothing.
	pauseThreshold = 100 * time.Millisecond
	// probeMaxDelay is how late check may be during a probe: answers have 120 ms to come.
	probeMaxDelay = 50 * time.Millisecond
	probeTimeout  = 150 * time.Millisecond
	// reloadInterval is how often Options.Keys, Address and Nodes are called, and reloadOffInterval while there is no socket: the
	// other nodes wait for the heartbeats of a process that is started again.
	reloadInterval    = 250 * time.Millisecond
	reloadOffInterval = minInterval
	// minSendInterval is the shortest time between two heartbeats.
	minSendInterval = 10 * time.Millisecond
	// offLogDelay is how long there must have been no socket before that is logged.
	offLogDelay = 5 * time.Second
)

// A socketState is the socket, and what belongs to it.
type socketState struct {
	socket    Socket // nil: there is none
	at        netip.AddrPort
	offSince  time.Time // when off last changed
	offLogged bool      // it has been logged since
}

// Run sends heartbeats to the other nodes, receives and evaluates theirs, and reloads keys and
// addresses, until ctx ends. At its end it sends them two that say that this process stops,
// closes the socket, and waits for its goroutines. With port 0 it only logs that, and waits
// for ctx. It returns nil.
func (p *Peers) Run(ctx context.Context) error {
	if p.o.Port == 0 {
		p.o.Log.Info("nodes exchange no heartbeats: " + NoPort + "; the failover of a dead node takes the lease duration")
		<-ctx.Done()
		return nil
	}
	timer := time.NewTimer(checkInterval)
	defer timer.Stop()
	defer p.tasks.Wait()
	defer p.stop()
	var reloadAt, sendAt time.Time
	repeat := false // an urgent heartbeat is sent twice: one packet may be lost
	for {
		urgent := false
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-p.sendNow:
			urgent = true
		}
		now := time.Now()
		if !now.Before(reloadAt) {
			p.reload(now)
			if reloadAt = now.Add(reloadInterval); p.socket == nil {
				reloadAt = now.Add(reloadOffInterval)
			}
		}
		newlySilent, nextCheck := p.check(ctx, now)
		if newlySilent || urgent || repeat || !now.Before(sendAt) {
			// With a jitter of up to a quarter, so that not all nodes send at the same time (RFC 5880 section 6.8.7).
			interval := p.send(now, false)
			sendAt = now.Add(interval*3/4 + rand.N(interval/4))
			repeat = urgent
			if urgent {
				time.Sleep(minSendInterval)
			}
		}
		wait := min(nextCheck, time.Until(sendAt))
		if repeat {
			wait = checkInterval
		}
		timer.Reset(wait)
	}
}

// reload reads and stores the keys, this node's address, and the addresses of the other nodes,
// link-local ones with this node's zone. It closes the socket if there are no keys, or this node's
// address has gone or changed, and opens one if there is none and both are known. It stores why
// there is none (setOff), or "".
func (p *Peers) reload(now time.Time) {
	nodes, address, keys := p.o.Nodes(), p.o.Address(), p.o.Keys()
	for name, at := range nodes {
		if a := at.Addr(); a.Is6() && a.IsLinkLocalUnicast() { // a zone means nothing to other nodes, so leases have none
			nodes[name] = netip.AddrPortFrom(a.WithZone(address.Zone()), at.Port())
		}
	}
	p.mu.Lock()
	p.sealer.setKeys(keys)
	p.detector.setNodes(nodes, now)
	p.mu.Unlock()
	at, off := netip.AddrPortFrom(address, p.o.Port), ""
	switch {
	case len(keys) == 0:
		off = "the key is not known yet"
	case !address.IsValid():
		off = "this node has no address on the link of VIPs"
	}
	if p.socket != nil && (off != "" || at != p.at) {
		p.closeSocket()
	}
	if off == "" && p.socket == nil {
		off = p.openSocket(at, now)
	}
	p.setOff(off, now)
}

// setOff stores what Off returns: why there is no socket, or "". A reason is logged once,
// after it has been the same for offLogDelay.
func (p *Peers) setOff(off string, now time.Time) {
	p.mu.Lock()
	if off != p.off {
		p.offSince, p.offLogged = now, false
	}
	p.off = off
	p.mu.Unlock()
	if off != "" && !p.offLogged && now.Sub(p.offSince) >= offLogDelay {
		p.offLogged = true
		p.o.Log.Info("no heartbeats are exchanged for now; the failover of a dead node takes the lease duration", "why", off)
	}
}

// openSocket opens the socket at an address and stores it, starts to receive from it, has the
// detector listen (startListening), sets the metric "on" to 1, and logs that. If it can't, it
// stores and logs nothing, and returns why, in words for Off; else "".
func (p *Peers) openSocket(at netip.AddrPort, now time.Time) (off string) {
	socket, err := p.o.Transport.Listen(at)
	if err != nil {
		return "can't listen on " + at.String() + ": " + err.Error()
	}
	p.socket, p.at = socket, at
	p.mu.Lock()
	p.detector.startListening(now)
	p.mu.Unlock()
	p.metrics.on.Set(1)
	p.o.Log.Info("heartbeats are exchanged with the other nodes", "at", at)
	p.tasks.Go(func() { p.receive(socket) })
	return ""
}

// closeSocket closes the socket, which must be open, sets the metric "on" to 0, and has the
// detector listen no more: all nodes are Unknown from the next check on.
func (p *Peers) closeSocket() {
	_ = p.socket.Close()
	p.socket = nil
	p.mu.Lock()
	p.detector.listeningSince = time.Time{}
	p.mu.Unlock()
	p.metrics.on.Set(0)
}

// receive passes each packet on socket to handlePacket until the socket is closed, but not more than
// a floodGuard lets it read. After another error it sleeps for checkInterval, and goes on.
func (p *Peers) receive(socket Socket) {
	b, guard := make([]byte, maxPacket), floodGuard{limit: mailbox.Limit{PerSecond: readsPerSecond}}
	for {
		n, from, err := socket.ReadFrom(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(checkInterval)
		default:
			p.handlePacket(b[:n], from)
			guard.packetRead(socket, p.keyIDs)
		}
	}
}

// handlePacket decrypts and parses a packet, has the detector take its message over, counts it
// as received, and publishes the changes that follow. A packet that can't be opened or parsed
// is counted by reason and its sender's address reported to the detector (receiveFailed); one
// that the detector ignores (from this node, or perhaps a replay) is counted as "replay". It
// locks p.mu.
func (p *Peers) handlePacket(packet []byte, from netip.AddrPort) {
	now := time.Now()
	p.mu.Lock()
	id, text, err := p.sealer.open(packet)
	var m *message
	if err == nil {
		m, err = parseMessage(text)
	}
	if err != nil {
		p.detector.receiveFailed(from.Addr(), now)
		p.mu.Unlock()
		p.metrics.countDropped(err)
		return
	}
	accepted := p.detector.receive(m, id, from, now)
	changes := p.detector.takeChanges()
	p.mu.Unlock()
	if accepted {
		p.metrics.received.Inc()
	} else {
		p.metrics.dropped.WithLabelValues("replay").Inc()
	}
	p.publish(changes)
}

// check has the detector evaluate all nodes, publishes the changes, and starts a goroutine for
// each node that is to be probed, which passes the result to the detector, sets the metric
// "detectable", and publishes what changes. It does not wait for probes. Those of silent nodes
// are counted and logged (debug), and so is a pause of this process. It returns whether a node
// has just fallen silent, and after what time to check again. It locks p.mu.
func (p *Peers) check(ctx context.Context, now time.Time) (newlySilent bool, next time.Duration) {
	p.mu.Lock()
	probe, newlySilent, pause := p.detector.check(now)
	next = p.detector.nextCheck
	changes := p.detector.takeChanges()
	for _, o := range probe {
		from, to, alive := p.at.Addr(), o.addr, o.rx.arriving(now)
		p.tasks.Go(func() {
			result := p.probe(ctx, from, to)
			p.mu.Lock()
			p.detector.probeEnded(o, result, now, time.Now())
			p.metrics.detectable.WithLabelValues(o.name).Set(oneIf(o.detectable()))
			changes := p.detector.takeChanges()
			p.mu.Unlock()
			if !alive {
				p.metrics.probes.Inc()
				p.o.Log.Debug("probed a silent node", "node", o.name, "address", to, "result", result)
			}
			p.publish(changes)
		})
	}
	p.mu.Unlock()
	if pause > 0 {
		p.metrics.pauses.Inc()
		p.o.Log.Debug("this process was paused; no other node is judged for a while", "for", pause.Round(time.Millisecond))
	}
	p.publish(changes)
	return newlySilent, next
}

// probe asks who has to's address (Options.Answers) and opens a TCP connection to its port,
// both at once, and returns what came of both; a connection that fails other than by a refusal
// is neither connected nor refused. It blocks for probeTimeout at most, and stores nothing.
func (p *Peers) probe(ctx context.Context, from netip.Addr, to netip.AddrPort) (result probeResult) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answers := make(chan bool, 1)
	p.tasks.Go(func() { answers <- p.o.Answers(ctx, to.Addr()) })
	err := p.o.Transport.Dial(ctx, from, to)
	result.connected, result.refused = err == nil, errors.Is(err, syscall.ECONNREFUSED)
	result.answers = <-answers
	return result
}

// send sends one heartbeat to each node whose address is known, but to those that are away only once in
// awayInterval, and counts each by result. It is encrypted with the first key that the node has too (or
// the first of all if it has none of them), and to a node that is not arriving with a random one. stopping
// says in it that this process stops, to all. Without a socket or a key it sends nothing. It returns this
// node's transmit interval. It holds p.mu meanwhile.
func (p *Peers) send(now time.Time, stopping bool) (interval time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	interval, keys := p.detector.interval, p.sealer.ids
	if p.socket == nil || len(keys) == 0 {
		return interval
	}
	var nonce [4]byte // of the kernel's generator: math/rand would repeat itself after a snapshot
	_, _ = crand.Read(nonce[:])
	m := p.detector.newMessage(binary.BigEndian.Uint32(nonce[:]), stopping, now)
	m.keys = keys
	toAway := !now.Before(p.toAwayAt)
	if toAway {
		p.toAwayAt = now.Add(awayInterval * 3 / 4) // with a next call in the last quarter
	}
	anyKey := rand.IntN(len(keys))
	type kind struct {
		interval time.Duration
		key      int
	}
	packets := make(map[kind][]byte, 1)
	for _, o := range p.detector.peers {
		if !o.addr.IsValid() {
			continue
		}
		k, away := kind{interval, anyKey}, p.detector.away(o, now)
		switch {
		case o.rx.arriving(now):
			k.key = max(0, slices.IndexFunc(keys, func(k keyID) bool { return slices.Contains(o.rx.keys, k) }))
		case away >= 0:
			if !toAway && !stopping && away >= awayNotice {
				continue
			}
			k.interval = max(interval, awayInterval)
		}
		if packets[k] == nil {
			m.interval = k.interval
			packets[k] = p.sealer.seal(m.append(nil), k.key)
		}
		result := "ok"
		if err := p.socket.WriteTo(packets[k], o.addr); err != nil {
			result = "error"
		}
		p.metrics.sent.WithLabelValues(result).Inc()
	}
	return interval
}

// stop sends two heartbeats that say that this process stops, minSendInterval apart, and
// closes the socket. Without a socket it does nothing.
func (p *Peers) stop() {
	if p.socket == nil {
		return
	}
	for range 2 {
		p.send(time.Now(), true)
		time.Sleep(minSendInterval)
	}
	p.closeSocket()
	p.setOff("it has stopped", time.Now())
}
