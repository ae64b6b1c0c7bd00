package lease

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	askAgain      = 250 * time.Millisecond // between two looks at a node lease that another process may hold
	failuresToLog = 20
	// looksAlive is after how many renewals a process lives: one may have been under way when it was killed.
	looksAlive = 2
)

// AwaitName blocks until no other living process has this node's name (docs/why.md, "A second process"), or ctx ends,
// whose error it returns. It is called before Run, by a process that has the lock of its host, and blocks for one read
// as a rule. What the node lease says decides:
//
//	there is none; it was fenced or released                        this process may begin
//	written by a process of this host, as long as that has been up  it has ended, or it had the lock
//	with the MAC and the address of this host                       it has ended, before a reboot
//	by a process of another host, or before a reboot                may begin once that is silent
//
// If that process renews, the error says who it is and what to do.
func (l *Leases) AwaitName(ctx context.Context) error {
	var w nameWait
	for {
		request, cancel := context.WithTimeout(ctx, l.o.RenewDeadline/2)
		x, err := l.store.Get(request, l.o.Namespace, vip.NodeLeasePrefix+l.o.Node)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			w.silentSince = time.Time{} // nobody can renew, perhaps
			if w.failures++; w.failures == failuresToLog {
				l.o.Log.Warn("it can't be found out whether another process has the name of this node; trying on", "lease",
					l.o.Namespace+"/"+vip.NodeLeasePrefix+l.o.Node, "err", err)
			}
		case l.mayTakeName(&w, x, time.Now()):
			l.mu.Lock()
			l.own.predecessor = w.process.ID
			l.mu.Unlock()
			return nil
		case w.renewals == looksAlive:
			return fmt.Errorf("another Herald has the name of this node, %s, and lives on another host: %s. This one ends, "+
				"and may be started again: %s. Give each host a name of its own (vip_nodename), or end one of them", l.o.Node,
				processText(w.process, infoOf(x)), processText(l.o.Process, l.o.Info()))
		}
		if !mailbox.Sleep(ctx, askAgain) {
			return ctx.Err()
		}
	}
}

// A nameWait is what AwaitName remembers between looks.
type nameWait struct {
	failures    int // reads of the node lease that failed
	process     vip.ProcessInfo
	renewed     time.Time // by its own clock, to be compared with itself
	renewals    int       // that were seen, at most looksAlive
	silentSince time.Time // when its last renewal was seen, while the API server answered; zero: not yet
}

// mayTakeName reports whether this process may write over the node lease x, and stores what that says in w.
func (l *Leases) mayTakeName(w *nameWait, x *coordinationv1.Lease, now time.Time) bool {
	before, info, own := w.process, infoOf(x), l.o.Info()
	w.process = info.Process
	p := w.process
	if p.ID == "" || p.ID == l.o.Process.ID || p.Host == "" || p.Host == l.o.Process.Host || fenced(x) ||
		holder(x) == "" || sameLink(&info, &own) {
		return true
	}
	renewed := renewTime(x)
	limit := l.o.LeaseDuration
	if w.renewals == 0 && now.Sub(renewed) > l.o.LeaseDuration { // it has probably ended
		limit = l.o.RenewDeadline/2 + l.o.RetryPeriod
	}
	switch {
	case w.silentSince.IsZero() || p != before:
		w.silentSince, w.renewals = now, 0
		l.o.Log.Info("a process of another host, or from before a reboot, has the name of this node; it may begin when "+
			"that has been silent", "other", processText(p, info), "for", limit)
	case !renewed.Equal(w.renewed):
		w.silentSince, w.renewals = now, w.renewals+1
	}
	w.renewed = renewed
	return now.Sub(w.silentSince) >= limit
}

// sameLink reports whether two processes have one MAC and address on the link of heartbeats: not two hosts that live.
func sameLink(a, b *vip.NodeInfo) bool {
	return a.HeartbeatAddress().IsValid() && a.HeartbeatAddress() == b.HeartbeatAddress() &&
		slices.ContainsFunc(a.Links, func(x vip.Link) bool {
			return x.Name == a.HeartbeatLink() && x.MAC != "" && slices.ContainsFunc(b.Links, func(y vip.Link) bool {
				return y.Name == b.HeartbeatLink() && y.MAC == x.MAC
			})
		})
}

// processText says which process that is, of a node with that info: cloned hosts differ only by addresses.
func processText(p vip.ProcessInfo, info vip.NodeInfo) string {
	text := fmt.Sprintf("%s, process %s", p.Name, p.ID[:min(len(p.ID), 8)])
	if addresses := info.OwnAddresses(); len(addresses) > 0 {
		text += ", addresses " + strings.Trim(fmt.Sprint(addresses), "[]")
	}
	return text
}

// checkProcess ends the epoch, and Run, if another process took the name: it wrote known, later than this one its last.
func (l *Leases) checkProcess(known *coordinationv1.Lease) error {
	p := infoOf(known).Process
	l.mu.Lock()
	defer l.mu.Unlock()
	if version(known) <= l.own.written {
		l.checkRestored(known, l.own.written)
		l.own.written = version(known)
		return nil
	}
	if l.o.Process.ID == "" || p.ID == "" || p.ID == l.o.Process.ID || p.ID == l.own.predecessor || p.Host != "" &&
		p.Host == l.o.Process.Host || fenced(known) || holder(known) == "" {
		return nil
	}
	l.own.taken = fmt.Errorf("another process works under the name of this node, %s: %s. This one gives up its VIPs and "+
		"ends", l.o.Node, processText(p, infoOf(known)))
	l.endEpoch("another process has taken the name of this node")
	return l.own.taken
}

// taken returns the error of checkProcess, or nil.
func (l *Leases) taken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own.taken
}
