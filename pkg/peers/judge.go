package peers

import (
	"fmt"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// look judges all nodes. It returns those that are to be asked after now, and
// reports whether somebody has just fallen silent.
func (t *table) look(now time.Time) (ask []*peer, silence bool) {
	if t.held(now) && !t.began.IsZero() {
		t.late(now)
	}
	if t.hitched(now) {
		t.hitch = now
	}
	t.looked, t.rest = now, calm
	for _, p := range t.peers {
		t.judge(p, now)
		if p.proven && !p.silent && !p.hears(now) && !t.starved(p, now) {
			p.silent, silence, p.askAt = true, true, now
		}
		if t.wantsAsking(p, now) {
			p.asking = true
			ask = append(ask, p)
		}
		if p.asking || p.state == vip.Alive && now.Sub(p.heard) > p.period {
			t.rest = tick
		}
	}
	return ask, silence
}

// hitched reports whether the next look is a little late.
func (t *table) hitched(now time.Time) bool { return now.Sub(t.looked) > t.rest+hitch }

// wantsAsking reports whether somebody is to go and ask after p.
func (t *table) wantsAsking(p *peer, now time.Time) bool {
	if p.asking || !p.addr.IsValid() || now.Before(p.askAt) {
		return false
	}
	if p.hears(now) {
		return p.state == vip.Alive && !(p.answered && p.open)
	}
	if p.state == vip.Dead || t.starved(p, now) {
		return false
	}
	return p.met || now.Sub(p.first) >= meetTime && now.Sub(t.began) >= meetTime
}

// asked takes over what was found by asking after p since began.
func (t *table) asked(p *peer, found outcome, began, now time.Time) {
	p.asking = false
	switch {
	case p.hears(now):
		t.askedAlive(p, found, now)
		return
	case p.heard.After(began) || t.began.After(began) || t.hitch.After(began) || t.hitched(now):
		return // it was heard meanwhile, or nobody may have listened to the answers
	}
	p.found, p.told = found, now
	switch {
	case p.state == vip.Suspect:
		p.askAt = now.Add(muteAfter)
	case !p.met:
		p.askAt = now.Add(giveUp)
	default:
		p.askAt = now.Add(50 * time.Millisecond)
	}
	t.judge(p, now)
}

// askedAlive takes over what was found by asking after p, which is well: whether that will
// tell anything once it is not.
func (t *table) askedAlive(p *peer, found outcome, now time.Time) {
	p.answered, p.open = p.answered || found.answers, p.open || found.connected
	p.askAt = now.Add(forget)
	if now.Sub(p.since) < forget/2 {
		p.askAt = now.Add(meetTime) // it may not have been ready
	}
	switch {
	case p.state != vip.Alive || t.starved(p, now):
	case p.open:
		p.why = ""
	case p.why == "":
		p.why = "its TCP port can't be reached: should its process die, that is noticed only by its lease"
		t.news = append(t.news, news{node: p.name, was: p.state, is: p.state, why: p.why, closed: true})
	}
}

// judge says how p looks.
func (t *table) judge(p *peer, now time.Time) {
	switch {
	case t.began.IsZero():
		t.set(p, vip.Unknown, "this node does not listen", now)
	case p.left:
		t.set(p, vip.Dead, "it has stopped", now)
	case p.hears(now):
		switch {
		case t.mutual(p, now):
			if p.state != vip.Alive {
				t.set(p, vip.Alive, "", now)
			}
		case !t.unheard(p, now) && now.Sub(latest(p.echoed, p.first, t.began)) >= t.patience(p):
			t.set(p, vip.Suspect, "it is heard, but does not hear this node", now)
		}
	case p.state == vip.Dead || t.starved(p, now):
	default:
		t.judgeSilent(p, now)
	}
}

// judgeSilent says how p looks, which is not heard and was asked after.
func (t *table) judgeSilent(p *peer, now time.Time) {
	found := p.found
	known := !p.told.IsZero() && (now.Sub(p.told) < believe || p.state != vip.Alive)
	switch {
	case !known && p.state == vip.Alive && now.Sub(latest(p.heard, t.began)) >= giveUp:
		t.set(p, vip.Suspect, "it is silent, and this node does not get to ask after it", now)
	case !known:
	case p.met && found.refused && !t.heardByOthers(p, now):
		t.set(p, vip.Dead, "its node says that nothing listens on its port", now)
	case p.met && p.answered && !found.answers && !found.connected && !t.heardByOthers(p, now):
		t.set(p, vip.Dead, "nobody answers for its address", now)
	case now.Sub(latest(p.heard, p.first, t.began)) < t.patience(p):
	case now.Sub(p.foreign) < forget:
		t.set(p, vip.Suspect, "its packets can't be opened: it has another key, or another version", now)
	case found.refused && !p.met:
		t.set(p, vip.Unknown, "nothing listens on its port: its Herald has no herald_peers_port, or another", now)
	case found.connected:
		t.set(p, vip.Suspect, "it takes TCP connections but sends nothing: its UDP port is blocked, or its process hangs", now)
	case found.answers:
		t.set(p, vip.Suspect, "its address is answered for, but its port is not: it is blocked", now)
	case p.met:
		t.set(p, vip.Suspect, "it is silent, and its address can't be asked for or other nodes hear it", now)
	default:
		t.set(p, vip.Unknown, "nobody answers for its address, and it was never met", now)
	}
}

// patience is how long p may be silent before it is anything but Dead.
func (t *table) patience(p *peer) time.Duration {
	if !p.met {
		return meetTime
	}
	return max(muteAfter, 2*(p.period+t.period)*5/2)
}

// heardByOthers reports whether a node that is alive says that it hears p: then
// only the way between p and this node is broken.
func (t *table) heardByOthers(p *peer, now time.Time) bool {
	for _, q := range t.peers {
		if q == p || q.state != vip.Alive || !q.hears(now) {
			continue
		}
		for _, e := range q.echoes {
			if e.node == p.id && e.hears {
				return true
			}
		}
	}
	return false
}

// reconsider judges again those that are silent, since q may have said that it
// does not hear them either.
func (t *table) reconsider(q *peer, now time.Time) {
	for _, p := range t.peers {
		if p != q && !p.told.IsZero() && p.state != vip.Dead {
			t.judge(p, now)
		}
	}
}

// set notes how p looks.
func (t *table) set(p *peer, state vip.Liveness, why string, now time.Time) {
	if p.state == state {
		p.why = why
		return
	}
	n := news{node: p.name, was: p.state, is: state, why: why, left: p.left}
	if !p.heard.IsZero() {
		n.silent = now.Sub(p.heard)
	}
	t.news = append(t.news, n)
	p.state, p.since, p.why = state, now, why
	switch state {
	case vip.Alive:
		// Not all at once: everybody has just met everybody.
		p.met, p.askAt = true, now.Add(time.Duration(p.id[0]^t.id[0])*t.period/40)
	case vip.Unknown, vip.Dead, vip.Suspect:
		// What comes back may be on another link, or behind another switch.
		p.answered, p.open = p.answered && state != vip.Unknown, false
	}
}

// latest is the latest of times.
func latest(times ...time.Time) time.Time {
	var last time.Time
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// String is the outcome in words, for the log.
func (o outcome) String() string {
	return fmt.Sprintf("address answered %t, port open %t, port refused %t", o.answers, o.connected, o.refused)
}
