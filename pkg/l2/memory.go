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
	noises   map[string]time.Time // when another host was last heard on a link
}

// An expectation is an address that is listened for.
type expectation struct {
	listen bool                  // it is not announced by this node
	news   bool                  // the next sound is worth a poke
	poked  time.Time             // when one last was
	gone   time.Time             // since when it isn't wanted, or zero
	sound  vip.HeardAnnouncement // the last one, or zero
}

func (m *memory) init(count prometheus.Counter) {
	m.count = count
	m.expected = map[topic]*expectation{}
	m.noises = map[string]time.Time{}
}

// noise notes that another host was heard on a link.
func (m *memory) noise(link string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noises[link] = now
}

// quiet reports whether no other host was heard on a link for so long that it
// must be this node that is cut off.
func (m *memory) quiet(link string, now time.Time) bool {
	return now.Sub(m.noisy(link)) > quietLink
}

// noisy is when another host was last heard on a link.
func (m *memory) noisy(link string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.noises[link]
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
		if e.listen != s.want.ListenOnly {
			e.listen, e.news = s.want.ListenOnly, true
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
	// Who claims what this node announces is news whenever it is another one, or after
	// the time in which an address is not defended again anyway.
	since := now.Sub(e.poked)
	mac := net.HardwareAddr(w.mac[:]).String()
	e.news = e.news || since >= defendInterval || since >= time.Second && mac != e.sound.MAC
	e.sound = vip.HeardAnnouncement{MAC: mac, Link: link, At: now}
	if !e.gone.IsZero() {
		return false
	}
	news := e.news
	if e.news = false; news {
		e.poked = now
	}
	return news
}

// heard is the last sound of every wanted address that had one.
func (m *memory) heard() map[netip.Addr]vip.HeardAnnouncement {
	m.mu.Lock()
	defer m.mu.Unlock()
	heard := map[netip.Addr]vip.HeardAnnouncement{}
	for t, e := range m.expected {
		if e.gone.IsZero() && !e.sound.At.Before(heard[t.addr].At) && !e.sound.At.IsZero() {
			heard[t.addr] = e.sound
		}
	}
	return heard
}
