package l2

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// An inquest is an Inquiry and how far it has come.
type inquest struct {
	want  vip.AddressCheck
	topic topic
	stop  func() // stops listening

	began  time.Time // when the round did, or zero
	next   time.Time // when to go on
	sent   int       // probes in this round
	asking bool      // a check was sent and its time isn't over
	right  bool      // whoever should has answered it
	blind  bool      // it was a probe by NDP, whose answer looks like an announcement
	missed int       // checks in a row that nobody answered
	pause  time.Duration
	defend bool // it is to be announced at once

	rivals  map[string]*rival // by MAC: who should not have it and says so
	finding vip.CheckResult   // At is zero as long as nothing is known
}

// A rival is one who answers and should not.
type rival struct {
	heard  int  // in how many rounds
	now    bool // in this one
	missed int  // rounds in a row since
}

// enough is in how many rounds a rival must be heard before it counts. The new
// owner of a VIP that moves may be heard before the claim is seen to change.
func (x *inquest) enough() int {
	if x.want.Kind == vip.CheckVerify {
		return 2
	}
	return 1
}

// forgotten is after how many rounds without a word a rival has gone: a host may
// answer only at times.
func (x *inquest) forgotten() int {
	if x.want.Kind == vip.CheckProbe {
		return 1
	}
	return 3
}

// allows reports whether mac may answer.
func (x *inquest) allows(mac string) bool {
	return x.want.Kind == vip.CheckVerify && x.want.AllowedMACs == "" || strings.Contains(x.want.AllowedMACs, mac)
}

// allow takes over who may answer w, which is the same question, and reports
// whether that is news.
func (x *inquest) allow(w vip.AddressCheck) bool {
	if x.want.AllowedMACs == w.AllowedMACs {
		return false
	}
	x.want = w
	for mac := range x.rivals {
		if x.allows(mac) {
			delete(x.rivals, mac)
		}
	}
	return !x.finding.At.IsZero() && x.conclude(x.finding.NoAnswer, time.Now())
}

// hear takes a word, and reports whether it is news.
func (x *inquest) hear(w word, now time.Time) bool {
	mac := net.HardwareAddr(w.mac[:]).String()
	switch {
	case w.probe && x.want.Kind != vip.CheckProbe: // the kernel answers it
		return false
	case x.want.Kind == vip.CheckVerify && !x.asking: // its owner hears it, too
		return false
	case x.allows(mac):
		x.right = x.right || w.answer || x.blind
		return false
	}
	r := x.rivals[mac]
	if r == nil {
		const most = 4
		if len(x.rivals) == most {
			return false
		}
		r = &rival{}
		x.rivals[mac] = r
	}
	if !r.now {
		r.now, r.missed = true, 0
		r.heard++
	}
	x.defend = x.want.Kind == vip.CheckDefend
	if x.want.Kind == vip.CheckVerify {
		return false // when the time for answers is over
	}
	if x.sent == 0 && x.next.Sub(now) > x.rest() { // all was well: now it is asked again
		x.next = now.Add(x.rest())
	}
	return x.conclude(false, now)
}

// rest is how long to wait before the next round about an address that somebody has.
func (x *inquest) rest() time.Duration {
	if x.want.Kind == vip.CheckDefend {
		return defendInterval
	}
	return max(x.pause, firstPause)
}

// conclude makes a Finding of what is known, and reports whether it is another.
func (x *inquest) conclude(silent bool, now time.Time) bool {
	before := x.finding
	f := vip.CheckResult{AddressCheck: x.want, At: now, NoAnswer: silent, ClearedAt: before.ClearedAt}
	for mac, r := range x.rivals {
		if r.heard >= x.enough() {
			f.UnexpectedMACs = append(f.UnexpectedMACs, mac)
		}
	}
	slices.Sort(f.UnexpectedMACs)
	switch {
	case !f.OK():
		f.ClearedAt = time.Time{}
	case !before.OK():
		f.ClearedAt = now
	}
	x.finding = f
	first := before.At.IsZero() && x.want.Kind != vip.CheckVerify
	return first || before.NoAnswer != f.NoAnswer || !slices.Equal(before.UnexpectedMACs, f.UnexpectedMACs) || before.NotSent != ""
}

// afresh begins a round: what was heard before it says nothing.
func (x *inquest) afresh() {
	x.right = false
	for _, r := range x.rivals {
		r.now = false
	}
}

// round ends a round: who was not heard in it is on the way to be forgotten.
func (x *inquest) round() {
	for mac, r := range x.rivals {
		if !r.now {
			r.missed++
		}
		if r.missed >= x.forgotten() {
			delete(x.rivals, mac)
		}
	}
}

// probe goes on with a round of probes, and reports whether there is news.
func (q *Inquiries) probe(x *inquest, now time.Time) bool {
	if x.began.IsZero() {
		x.began = now
	}
	if x.sent == probes {
		return x.finish(now)
	}
	err := q.question(x, now, vip.FamilyOf(x.topic.addr).Unspecified())
	switch {
	case err == nil:
		if x.sent++; x.sent == 1 {
			x.afresh()
		}
		x.next = now.Add(probeGap)
		return false
	case !errors.Is(err, errNoNeighbours) && now.Sub(x.began) < unaskable:
		x.next = now.Add(askAgain)
		return false
	}
	// To wait for what can't be known would keep the VIP from being served.
	news := x.finding.NotSent == ""
	if news && !errors.Is(err, errNoNeighbours) {
		q.a.log.Warn("can't ask whether another host has an address", "address", x.topic.addr, "link", x.topic.link, "err", err)
	}
	x.conclude(false, now)
	x.finding.NotSent = err.Error()
	x.sent, x.began, x.next = 0, time.Time{}, now.Add(lastPause)
	return news
}

// finish ends a round of probes, and reports whether there is news.
func (x *inquest) finish(now time.Time) bool {
	x.round()
	x.sent, x.began = 0, time.Time{}
	news := x.conclude(false, now)
	if x.finding.OK() {
		x.pause, x.next = 0, now.Add(never)
		return news
	}
	x.next = now.Add(x.rest())
	x.pause = min(2*x.rest(), lastPause)
	return news
}

// errDeaf: answers would not be heard yet.
var errDeaf = errors.New("nothing can be heard on the link")

// question asks about x, once answers can be heard.
func (q *Inquiries) question(x *inquest, now time.Time, from netip.Addr) error {
	open, _ := q.a.attends(x.topic, now)
	if !open {
		if err := q.a.reachable(x.topic.link, now); err != nil {
			return err
		}
		return errDeaf
	}
	return q.a.ask(x.topic, from)
}

// before reports whether x is to be checked before y: it has waited for longer, or,
// every other time, its last check raised a doubt.
func (q *Inquiries) before(x, y *inquest) bool {
	if q.odd {
		if dx := x.doubted(); dx != y.doubted() {
			return dx
		}
	}
	return x.next.Before(y.next)
}

// check asks for a VIP of another node.
func (q *Inquiries) check(x *inquest, now time.Time) {
	q.odd = !q.odd
	from := q.a.source(x.topic)
	if err := q.question(x, now, from); err != nil {
		x.next = now.Add(checkAgain) // this node's own trouble
		if errors.Is(err, errDeaf) {
			x.next = now.Add(checkGap)
		}
		return
	}
	q.turn = q.a.beat(now, now.Add(checkGap/2), checkGap) // the next beat, if this is one or comes just after it
	x.afresh()
	x.asking, x.next = true, now.Add(checkWait)
	x.blind = from.Is6() && from.IsUnspecified()
}

// doubted reports whether the last check was not as it should be, and it isn't sure yet.
func (x *inquest) doubted() bool {
	if x.missed > 0 && x.missed < misses {
		return true
	}
	for _, r := range x.rivals {
		if r.heard < x.enough() {
			return true
		}
	}
	return false
}

// judge ends a check, and reports whether there is news.
func (q *Inquiries) judge(x *inquest, now time.Time) bool {
	x.asking = false
	answered := x.right
	for _, r := range x.rivals {
		answered = answered || r.now
	}
	switch {
	case answered:
		x.missed = 0
	case q.a.ears.quiet(x.topic.link, now): // it is this node that is cut off
	default:
		x.missed = min(x.missed+1, misses)
	}
	x.round()
	news := x.conclude(x.missed == misses, now)
	x.next = now.Add(checkRest + rand.N(checkRest/5) - checkWait)
	if x.doubted() {
		x.next = now.Add(checkAgain - checkWait)
	}
	return news
}
