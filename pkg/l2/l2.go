// Package l2 tells the neighbours on a link where a VIP is, and hears who else
// does: gratuitous ARP (RFC 826, RFC 5227) and unsolicited neighbor
// advertisements (RFC 4861, RFC 9131).
//
// It answers nothing: the kernel answers for the addresses that are bound. It
// speaks so that caches and switches which knew another owner learn of the new
// one, and go on knowing it. And it asks: whether others answer as they should.
package l2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/prometheus/client_golang/prometheus"
)

// Options is what an Announcer needs to know. All fields are required.
type Options struct {
	Log *slog.Logger
	// Poke is called when the next World will differ. It must not block.
	Poke func()
	// Tenure is this node's right to hold VIPs at the moment of the call.
	Tenure func() vip.Tenure
	// Rate is the time between two announcements of a VIP once it is known (vip_arpRate).
	Rate time.Duration
	// Links is the node's links with its own addresses: those to ask from.
	Links func() []vip.Link
}

// An Announcer is the part of the node that announces VIPs.
type Announcer struct {
	opts   Options
	log    *slog.Logger
	lan    lan
	meters meters
	ears   memory
	born   time.Time
	wake   chan struct{} // capacity 1: what is wanted has changed

	questions questions
	inquiries *Inquiries

	mu     sync.Mutex // guards what follows
	speech map[topic]*speech
	links  links
	known  time.Time           // the look at the links that the last round knew
	asked  map[sense]time.Time // where questions are asked, and when last
	opened chan struct{}       // closed, and replaced, when listeners has changed

	listeners map[*listener]bool
	heeded    map[topic]int // besides what is in speech, of what every word matters
	changed   time.Time     // when the last of that was new, or gone
}

// A topic is what one announcement is about.
type topic struct {
	addr netip.Addr
	link string
}

// A speech is an announcement and how far it has come.
type speech struct {
	want vip.Announcement
	said int       // how often since it, or its link, was new
	next time.Time // when to say it again
	ok   bool      // the last try worked
	err  error     // why it didn't
}

// New makes an Announcer. It touches the network only once something is wanted.
func New(o Options) *Announcer { return newAnnouncer(o, sockets{}) }

func newAnnouncer(o Options, l lan) *Announcer {
	a := &Announcer{
		opts:   o,
		log:    o.Log,
		lan:    l,
		born:   time.Now(),
		meters: newMeters(),
		wake:   make(chan struct{}, 1),
		speech: map[topic]*speech{},
		asked:  map[sense]time.Time{},
		opened: make(chan struct{}),

		listeners: map[*listener]bool{},
		heeded:    map[topic]int{},
		links:     links{lan: l, open: map[string]*station{}, seen: map[string]net.Interface{}, changed: map[string]bool{}},
	}
	a.ears.init(a.meters.heard)
	a.inquiries = newInquiries(a)
	return a
}

// String names the task.
func (a *Announcer) String() string { return "layer 2 announcements" }

// Collectors are the room's metrics.
func (a *Announcer) Collectors() []prometheus.Collector { return a.meters.collectors() }

// Observe fills in Heard: for each wanted address who else was heard announcing
// it on its link, and when last; and Findings.
func (a *Announcer) Observe(w *vip.World) {
	w.Heard = a.ears.heard()
	a.inquiries.Observe(w)
}

// Set announces at once what is newly wanted, and falls silent at once about
// what isn't wanted any more. What it returns was announced without an error, or
// is listened for. What could not be announced is tried again by Run, and Poke
// follows when that works.
func (a *Announcer) Set(ctx context.Context, want []vip.Announcement) ([]vip.Announcement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	wanted := map[topic]bool{}
	var fresh []*speech
	for _, w := range want {
		t := topic{w.Addr.Unmap().WithZone(""), w.Link}
		if wanted[t] && w.ListenOnly { // who announces listens, too
			continue
		}
		wanted[t] = true
		s := a.speech[t]
		if s == nil || s.want.ListenOnly && !w.ListenOnly {
			s = &speech{next: now}
			a.speech[t] = s
			fresh = append(fresh, s)
		}
		if s.want = w; w.ListenOnly {
			s.err = nil
		}
	}
	before := len(a.speech)
	maps.DeleteFunc(a.speech, func(t topic, _ *speech) bool { return !wanted[t] })
	if len(fresh) > 0 || len(a.speech) < before {
		a.unsettle(now)
	}
	a.links.keep(a.used())
	a.ears.expect(a.speech, now)
	for _, s := range fresh {
		if ctx.Err() == nil && !s.want.ListenOnly {
			a.say(s, now)
		}
	}
	a.rouse()
	return a.state()
}

// used is the names of links in use.
func (a *Announcer) used() map[string]bool {
	used := map[string]bool{}
	for t := range a.speech {
		used[t.link] = true
	}
	for k := range a.asked {
		used[k.link] = true
	}
	return used
}

// state is what holds, and what is wrong with the rest, in order.
func (a *Announcer) state() ([]vip.Announcement, error) {
	var have []vip.Announcement
	var errs []error
	for _, t := range a.topics() {
		s := a.speech[t]
		switch {
		case s.err != nil:
			errs = append(errs, fmt.Errorf("%s can't be announced on %s: %w", t.addr, t.link, s.err))
		case s.want.ListenOnly || s.ok:
			have = append(have, s.want)
		default:
			errs = append(errs, fmt.Errorf("%s is not announced on %s, since this node's right to hold it is not certain", t.addr, t.link))
		}
	}
	return have, errors.Join(errs...)
}

// topics is all topics in order.
func (a *Announcer) topics() []topic {
	topics := make([]topic, 0, len(a.speech))
	for t := range a.speech {
		topics = append(topics, t)
	}
	slices.SortFunc(topics, func(x, y topic) int { return cmp.Or(cmp.Compare(x.link, y.link), x.addr.Compare(y.addr)) })
	return topics
}

// rouse wakes Run.
func (a *Announcer) rouse() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}
