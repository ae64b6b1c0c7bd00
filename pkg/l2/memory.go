package l2

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/prometheus/client_golang/prometheus"
)

// afterglow is how long an address that is no longer wanted is still listened
// for: it may be wanted again in a moment, in another role.
const afterglow = 2 * time.Second

// memory is who was heard announcing what is wanted. It has a lock of its own,
// so that hearing never waits for sending.
type memory struct {
	count prometheus.Counter

	mu       sync.Mutex
	own      map[[6]byte]bool // the hardware addresses of this node
	expected map[topic]*expectation
}

// An expectation is an address that is listened for.
type expectation struct {
	listen bool      // it is not announced by this node
	news   bool      // the next sound is worth a poke
	gone   time.Time // since when it isn't wanted, or zero
	sound  vip.Sound // the last one, or zero
}

func (m *memory) init(count prometheus.Counter) {
	m.count = count
	m.expected = map[topic]*expectation{}
}

// expect listens for what is in wanted.
func (m *memory) expect(wanted map[topic]*speech, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, s := range wanted {
		e := m.expected[t]
		if e == nil || !e.gone.IsZero() && now.Sub(e.gone) > afterglow {
			e = &expectation{news: true}
			m.expected[t] = e
		}
		if e.listen != s.want.Listen {
			e.listen, e.news = s.want.Listen, true
		}
		e.gone = time.Time{}
	}
	for t, e := range m.expected {
		switch {
		case wanted[t] != nil:
		case e.gone.IsZero():
			e.gone = now
		case now.Sub(e.gone) > afterglow:
			delete(m.expected, t)
		}
	}
}

// know notes the node's own hardware addresses: what they send is no sound.
func (m *memory) know(own map[[6]byte]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own = own
}

// isOwn reports whether a hardware address is this node's.
func (m *memory) isOwn(mac [6]byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own[mac]
}

// hear notes a word of another host heard on a link and reports whether it is worth a poke.
func (m *memory) hear(link string, w word, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.expected[topic{w.addr, link}]
	if e == nil {
		return false
	}
	m.count.Inc()
	e.sound = vip.Sound{MAC: net.HardwareAddr(w.mac[:]).String(), Link: link, At: now}
	if !e.gone.IsZero() {
		return false
	}
	news := e.news
	e.news = false
	return news
}

// heard is the last sound of every wanted address that had one.
func (m *memory) heard() map[netip.Addr]vip.Sound {
	m.mu.Lock()
	defer m.mu.Unlock()
	heard := map[netip.Addr]vip.Sound{}
	for t, e := range m.expected {
		if e.gone.IsZero() && !e.sound.At.Before(heard[t.addr].At) && !e.sound.At.IsZero() {
			heard[t.addr] = e.sound
		}
	}
	return heard
}
