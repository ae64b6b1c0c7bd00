package l2

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// tries questions, apart from each other, are sent by Answers.
	tries = 3
	apart = 40 * time.Millisecond
	// attention is how long a link is listened to after the last question.
	attention = time.Minute
)

// Answers asks the neighbours on a link who has addr, by ARP requests or neighbor
// solicitations, and returns the link-layer address of the first that says so, in
// the form 02:00:00:00:00:0a. ok is false if nobody did within 120 ms or before ctx
// ended, if the link can't be asked, or while Run does not run. This node itself
// does not answer. Many calls may be under way at once.
func (a *Announcer) Answers(ctx context.Context, link string, addr netip.Addr) (mac string, ok bool) {
	t := topic{addr.Unmap().WithZone(""), link}
	ctx, cancel := context.WithTimeout(ctx, tries*apart)
	defer cancel()
	answers := make(chan [6]byte, 1)
	defer a.questions.listen(t, func(w word) {
		if w.probe {
			return
		}
		select {
		case answers <- w.mac:
		default:
		}
	})()
	if !a.attentive(ctx, t) {
		return "", false
	}
	again := time.NewTicker(apart)
	defer again.Stop()
	for sent := 0; ; sent++ {
		if sent == tries {
			again.Stop()
		} else if err := a.ask(t, a.source(t)); err != nil {
			a.log.Debug("a neighbour can't be asked", "address", t.addr, "link", link, "err", err)
		}
		select {
		case m := <-answers:
			return net.HardwareAddr(m[:]).String(), true
		case <-ctx.Done():
			return "", false
		case <-again.C:
		}
	}
}

// attentive waits until the answers to questions about t are heard.
func (a *Announcer) attentive(ctx context.Context, t topic) bool {
	for {
		open, news := a.attends(t, time.Now())
		if open {
			return true
		}
		select {
		case <-news:
		case <-ctx.Done():
			return false
		}
	}
}

// attends sees to it that answers to questions about t are heard for a while, and
// reports whether they are already. If not, news is closed when that may have changed.
func (a *Announcer) attends(t topic, now time.Time) (open bool, news <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := sense{t.link, vip.FamilyOf(t.addr)}
	a.asked[k] = now
	if open = a.listened(k); !open {
		a.rouse()
	}
	return open, a.opened
}

// source is the address to ask from: one of this node's own in the same network.
// It is never a VIP: neighbours learn from a question where its sender is (RFC 826).
// Without one, the question is a probe (RFC 5227 section 2.1.1; RFC 4862 section
// 5.4.2), which nobody learns from and everybody answers.
func (a *Announcer) source(t topic) netip.Addr {
	for _, l := range a.opts.Links() {
		if l.Name != t.link {
			continue
		}
		for _, p := range l.Prefixes {
			if p.Contains(t.addr) && p.Addr() != t.addr {
				return p.Addr()
			}
		}
	}
	return vip.FamilyOf(t.addr).Unspecified()
}

// ask sends one question about t.
func (a *Announcer) ask(t topic, from netip.Addr) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	st, err := a.reach(t.link, time.Now())
	if err != nil {
		return err
	}
	frame, err := question(t.addr, from, st.ifi.HardwareAddr)
	if err != nil {
		return err
	}
	if err := st.mouth.send(frame); err != nil {
		a.links.failed(t.link, err)
		return err
	}
	a.meters.asked.WithLabelValues(family(t.addr)).Inc()
	return nil
}

// A sense is what is listened to: the words of one family on one link.
type sense struct {
	link   string
	family vip.Family
}

// listened reports whether an ear is open for k. a.mu is held.
func (a *Announcer) listened(k sense) bool {
	for l := range a.listeners {
		if l.link == k.link && l.family == k.family {
			return true
		}
	}
	return false
}

// opens notes that l's ear is open, and returns what notes that it is no more.
func (a *Announcer) opens(l *listener) (closes func()) {
	note := func(change func()) {
		a.mu.Lock()
		defer a.mu.Unlock()
		change()
		close(a.opened)
		a.opened = make(chan struct{})
	}
	note(func() { a.listeners[l] = true })
	return func() { note(func() { delete(a.listeners, l) }) }
}

// questions is who waits for answers. It has a lock of its own, so that hearing
// never waits for sending.
type questions struct {
	mu      sync.Mutex
	last    int
	waiting map[topic]map[int]func(word)
}

// listen calls heard, which must not block, with every word about t, until the
// returned function is called.
func (q *questions) listen(t topic, heard func(word)) (stop func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last++
	id := q.last
	if q.waiting == nil {
		q.waiting = map[topic]map[int]func(word){}
	}
	if q.waiting[t] == nil {
		q.waiting[t] = map[int]func(word){}
	}
	q.waiting[t][id] = heard
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.waiting[t], id)
		if len(q.waiting[t]) == 0 {
			delete(q.waiting, t)
		}
	}
}

// hear tells a word to who waits for it.
func (q *questions) hear(link string, w word) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, heard := range q.waiting[topic{w.addr, link}] {
		heard(w)
	}
}
