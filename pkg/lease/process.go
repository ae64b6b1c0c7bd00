package lease

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// WaitingAnnotation on a node lease is of a process that waits for the name (docs/why.md, "A second process").
const WaitingAnnotation = "heraldvip.io/waiting"

const (
	askAgain      = 250 * time.Millisecond // between two looks at a node lease that another process may hold
	failuresToLog = 20
	// looksForMissing is how often in a row a node lease must be missing: a live process writes it again.
	looksForMissing = 4
	tellWaiting     = 10 * time.Second // how often a process that waits says so on the node lease
	keepWaiting     = 30 * time.Second // how long the holder believes that
	maxWaiting      = 400              // bytes of it
	waitingStamp    = "; at "          // precedes the time of day in it
)

// processOf returns who wrote a node lease, with its addresses; zero for an earlier version, or unreadable.
func processOf(l *coordinationv1.Lease) (vip.ProcessInfo, string) {
	info := infoOf(l)
	return info.Process, strings.Trim(fmt.Sprint(info.OwnAddresses()), "[]")
}

// AwaitName blocks until no other living process has this node's name, or ctx ends, whose error
// it returns. It is called before Run, by a process that has the lock of its host, and blocks
// for one read as a rule. What the node lease says decides:
//
//	there is none; it was fenced or released       this process may begin; if one that renewed is gone, at the 4th look
//	written by a process of this host, as long as that has been up      it has ended, or it had the lock
//	by a process of another host, or before a reboot                    may begin once it is silent (silenceLimit)
//
// While that process renews, this one says so in the log, calls tell (a second time each hour), and writes on
// the node lease that it waits, each tellWaiting.
func (l *Leases) AwaitName(ctx context.Context, tell func(message string)) error {
	w := &nameWait{tell: tell}
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.own.waitsFor = ""
	}()
	for {
		request, cancel := context.WithTimeout(ctx, l.o.RenewDeadline/2)
		x, err := l.store.Get(request, l.o.Namespace, NodePrefix+l.o.Node)
		cancel()
		if !apierrors.IsNotFound(err) {
			w.missing = 0
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsNotFound(err):
			if w.missing++; !w.lives || w.missing == looksForMissing {
				return nil
			}
		case err != nil:
			w.silentSince = time.Time{} // nobody can renew, perhaps
			if w.failures++; w.failures == failuresToLog {
				l.o.Log.Warn("it can't be found out whether another process has the name of this node; trying on", "lease",
					l.o.Namespace+"/"+NodePrefix+l.o.Node, "err", err)
			}
		case l.mayTakeName(w, x, time.Now()):
			l.mu.Lock()
			l.own.predecessor = w.process.ID
			l.mu.Unlock()
			return nil
		default:
			l.tellWaiting(ctx, w, x)
		}
		if !mailbox.Sleep(ctx, askAgain) {
			return ctx.Err()
		}
	}
}

// A nameWait is what AwaitName remembers between looks.
type nameWait struct {
	tell        func(string)
	failures    int // reads of the node lease that failed
	missing     int // looks in a row at which there was none
	process     vip.ProcessInfo
	addresses   string
	renewed     time.Time // by its own clock, to be compared with itself
	silentSince time.Time // when its last renewal was seen, while the API server answered; zero: not yet
	lives       bool      // it was seen to renew
	said, wrote time.Time
}

// mayTakeName reports whether this process may write over the node lease x, and stores what that says in w.
func (l *Leases) mayTakeName(w *nameWait, x *coordinationv1.Lease, now time.Time) bool {
	before := w.process
	w.process, w.addresses = processOf(x)
	p := w.process
	if p.ID == "" || p.ID == l.o.Process.ID || p.Host == "" || p.Host == l.o.Process.Host || fenced(x) || holder(x) == "" {
		return true
	}
	renewed := renewTime(x)
	switch {
	case w.silentSince.IsZero() || p != before:
		w.silentSince = now
	case !renewed.Equal(w.renewed):
		w.silentSince, w.lives = now, true
	}
	w.renewed = renewed
	return now.Sub(w.silentSince) >= l.silenceLimit(w, now)
}

// silenceLimit returns how long a process of another host must be silent; less if that probably restarted.
func (l *Leases) silenceLimit(w *nameWait, now time.Time) time.Duration {
	if !w.lives && now.Sub(w.renewed) > l.o.LeaseDuration {
		return l.o.RenewDeadline/2 + l.o.RetryPeriod
	}
	return l.o.LeaseDuration
}

func renewTime(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

// tellWaiting tells that this process waits: in the log and by w.tell each hour, on the node lease x each tellWaiting.
func (l *Leases) tellWaiting(ctx context.Context, w *nameWait, x *coordinationv1.Lease) {
	now, who := time.Now(), fmt.Sprintf("%s, process %s, addresses %s", w.process.Name, shortID(w.process.ID), w.addresses)
	if !w.lives {
		if w.said.IsZero() {
			w.said = now.Add(-time.Hour)
			l.o.Log.Info("a process of another host, or from before a reboot, has the name of this node; it may begin when "+
				"that has been silent", "other", who, "for", l.silenceLimit(w, now))
		}
		return
	}
	if now.Sub(w.said) >= time.Hour {
		w.said = now
		l.mu.Lock()
		l.own.waitsFor = who
		l.mu.Unlock()
		l.o.Log.Error("another Herald has the name of this node, and lives on another host. This one stays out of the "+
			"way until that ends; give each host a name of its own (vip_nodename), or end one of them", "node", l.o.Node,
			"other", who)
		w.tell(fmt.Sprintf("Two hosts run Herald under this node's name: %s, which works; and %s, which waits until that "+
			"ends. Give each a name of its own (vip_nodename).", who, l.ownText()))
	}
	if now.Sub(w.wrote) < tellWaiting {
		return
	}
	w.wrote = now
	next := x.DeepCopy()
	text := l.ownText()
	annotate(next, WaitingAnnotation, text[:min(len(text), maxWaiting)]+waitingStamp+now.UTC().Format(time.TimeOnly))
	request, cancel := context.WithTimeout(ctx, l.o.RenewDeadline/2)
	defer cancel()
	if _, err := l.store.Update(request, next); err != nil {
		w.wrote = time.Time{} // the holder has renewed meanwhile: the next look has the new version
	}
}

// ownText says which process this is: cloned hosts differ only by addresses.
func (l *Leases) ownText() string {
	text, info := fmt.Sprintf("%s, process %s", l.o.Process.Name, shortID(l.o.Process.ID)), l.o.Info()
	if addresses := info.OwnAddresses(); len(addresses) > 0 {
		text += ", addresses " + strings.Trim(fmt.Sprint(addresses), "[]")
	}
	return text
}

func shortID(id string) string { return id[:min(len(id), 8)] }

// checkProcess ends the epoch, and Run, if another process took the name.
func (l *Leases) checkProcess(known *coordinationv1.Lease) error {
	p, addresses := processOf(known)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.o.Process.ID == "" || p.ID == "" || p.ID == l.o.Process.ID || p.ID == l.own.predecessor || p.Host != "" &&
		p.Host == l.o.Process.Host || fenced(known) || holder(known) == "" {
		return nil
	}
	l.own.taken = fmt.Errorf("another process works under the name of this node, %s: %s, process %s, addresses %s. "+
		"This one gives up its VIPs and ends", l.o.Node, p.Name, shortID(p.ID), addresses)
	l.endEpoch("another process has taken the name of this node")
	return l.own.taken
}

// taken returns the error of checkProcess, or nil.
func (l *Leases) taken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own.taken
}

// checkWaiting stores WaitingAnnotation of this node's lease, and logs a new process.
func (l *Leases) checkWaiting(x *coordinationv1.Lease, now time.Time) {
	o, text := &l.own, x.Annotations[WaitingAnnotation]
	if text == o.waiting {
		return
	}
	before, _, _ := strings.Cut(o.waiting, waitingStamp)
	name, _, _ := strings.Cut(text, waitingStamp)
	if o.waiting, o.waitingAt = text, now; name != "" && name != before {
		l.o.Log.Warn("another Herald has the name of this node and waits on another host until this one ends. Give each "+
			"host a name of its own (vip_nodename), or end one of them", "other", name)
	}
}
