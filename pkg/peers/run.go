package peers

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
)

const (
	// checkInterval is the time between checks while a node is late or probed, else idleCheckInterval.
	checkInterval     = 25 * time.Millisecond
	idleCheckInterval = 100 * time.Millisecond
	// lostAfter is how long an address may be away while another takes its place: others take as long to find a node dead.
	lostAfter = 150 * time.Millisecond
	// pauseThreshold is how late check may be; later, the process did not run, and silence means nothing.
	pauseThreshold = 100 * time.Millisecond
	// probeMaxDelay is how late check may be during a probe: answers have probeTimeout to come.
	probeMaxDelay = 30 * time.Millisecond
	probeTimeout  = 75 * time.Millisecond
	// reloadInterval is how often Options are read at least, and reloadOffInterval without a socket, for others wait.
	reloadInterval    = 250 * time.Millisecond
	reloadOffInterval = minInterval
	minSendInterval   = 10 * time.Millisecond // the shortest time between two heartbeats
	offLogDelay       = 5 * time.Second       // how long there must be no socket before that is logged
)

// A socketState is the socket, and what belongs to it.
type socketState struct {
	socket    Socket // nil: there is none
	at        netip.AddrPort
	offSince  time.Time // when off last changed
	offLogged bool      // it has been logged since
}

// Run exchanges heartbeats, and reloads keys and addresses, until ctx ends, which it tells the others. It returns nil.
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
		if urgent || !now.Before(reloadAt) {
			p.reload(now)
			if reloadAt = now.Add(reloadInterval); p.socket == nil {
				reloadAt = now.Add(reloadOffInterval)
			}
		}
		newlySilent, nextCheck := p.check(ctx, now)
		if newlySilent || urgent || repeat || !now.Before(sendAt) {
			// With a jitter, so that not all nodes send at once (RFC 5880 section 6.8.7).
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

// reload reads keys and addresses, and opens or closes the socket as they say.
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
	if address.IsValid() {
		p.lostAt = time.Time{}
	} else if p.socket != nil {
		p.lostAt = now
	}
	p.mu.Unlock()
	at, off := netip.AddrPortFrom(address, p.o.Port), ""
	switch {
	case len(keys) == 0:
		off = "the key is not known yet"
	case !address.IsValid():
		off = "this node has no address on the link of VIPs (a permanent one of prefix length 32 or 128 counts as a VIP)"
	}
	if p.socket != nil && (off != "" || at != p.at) {
		p.closeSocket()
	}
	if off == "" && p.socket == nil {
		off = p.openSocket(at, now)
	}
	p.setOff(off, now)
}

// setOff stores what Off returns, and logs a reason once, after offLogDelay.
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

// openSocket opens the socket at an address and receives, or returns why not, for Off.
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

// closeSocket closes the open socket: all nodes are Unknown from the next check.
func (p *Peers) closeSocket() {
	_ = p.socket.Close()
	p.socket = nil
	p.mu.Lock()
	p.detector.listeningSince = time.Time{}
	p.mu.Unlock()
	p.metrics.on.Set(0)
}

// receive passes packets to handlePacket until the socket is closed, as fast as floodGuard allows.
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

// handlePacket decrypts and parses a packet for the detector, counts it, and publishes changes.
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
		reason := map[error]string{errKey: "key", errAuthentic: "forged"}[err]
		p.metrics.dropped.WithLabelValues(cmp.Or(reason, "format")).Inc()
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

// check evaluates all nodes and starts probes; it returns whether one fell silent, and when to check again.
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

// probe asks for to's address and connects to its port, both at once, within probeTimeout.
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

// send sends and counts a heartbeat to each node with an address, to those away each awayInterval; stopping, to all,
// that this process stops. Without socket or key it sends nothing. It returns the transmit interval.
func (p *Peers) send(now time.Time, stopping bool) (interval time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	interval = p.detector.interval
	if p.socket == nil || len(p.sealer.keys) == 0 {
		return interval
	}
	var nonce [4]byte // of the kernel's generator: math/rand would repeat itself after a snapshot
	_, _ = crand.Read(nonce[:])
	m := p.detector.newMessage(binary.BigEndian.Uint32(nonce[:]), stopping, now)
	toAway := !now.Before(p.toAwayAt)
	if toAway {
		p.toAwayAt = now.Add(awayInterval * 3 / 4) // with a next call in the last quarter
	}
	packets := make(map[time.Duration][]byte, 1) // by the interval that they name
	for _, o := range p.detector.peers {
		if !o.addr.IsValid() {
			continue
		}
		m.interval = interval
		if away := p.detector.away(o, now); away >= 0 && !o.rx.arriving(now) {
			if !toAway && !stopping && away >= awayNotice {
				continue
			}
			m.interval = max(interval, awayInterval)
		}
		if packets[m.interval] == nil {
			packets[m.interval] = p.sealer.seal(m.append(nil))
		}
		result := "ok"
		if err := p.socket.WriteTo(packets[m.interval], o.addr); err != nil {
			result = "error"
		}
		p.metrics.sent.WithLabelValues(result).Inc()
	}
	return interval
}

// stop sends two heartbeats that say so, and closes the socket.
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
