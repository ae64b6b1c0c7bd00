package lease

import (
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// cut takes n's way to the API server away for d and returns how long it went on serving.
func cut(n *node, d time.Duration) (served time.Duration) {
	n.fault(func(c *leasetest.Faults) { c.Cut = true })
	began := time.Now()
	for time.Since(began) < d {
		if n.serves("a") {
			served = time.Since(began)
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.fault(func(c *leasetest.Faults) { c.Cut = false })
	return served
}

// TestCutFromAPIServer: a node that can't renew acts until its renew deadline; another takes over after it.
func TestCutFromAPIServer(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, a, b *node) {
		neverTwo(t, "a", a, b)
		time.Sleep(4 * time.Second)
		check.Between(t, cut(a, 40*time.Second), deadline-period-100*time.Millisecond, deadline, "served after the cut, until the renew deadline, for")
		check.Equal(t, serving("a", b), "n2", "who has taken over\n%s", s)
		time.Sleep(20 * time.Second)
		check.Equal(t, serving("a", a, b), "n2", "who serves later, as nothing moves back")
		// Short of the deadline nothing happens at all.
		check.Between(t, cut(b, 7*time.Second), 6900*time.Millisecond, 7*time.Second, "served in a short cut for")
		time.Sleep(20 * time.Second)
		check.Equal(t, serving("a", b), "n2", "who serves after a short cut")
	})
}

// A node that is fenced while it releases its leases begins no other epoch for that.
func TestFencedWhileStopping(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, a *node) {
		a.want("a")
		time.Sleep(period - 200*time.Millisecond) // it is about to renew
		a.fault(func(f *leasetest.Faults) { f.Delay = 300 * time.Millisecond })
		a.stop()
		time.Sleep(100 * time.Millisecond)
		annotateLease(t, s, nodeKey("n1"), FencedAnnotation, "1")
		<-a.done
		check.Lacks(t, s.Trace(20), "transitions 2")
		check.Equal(t, s.String(), TableName+" n1\n", "left after the end")
	})
}

// TestEditedByHand: whatever another program makes of its node lease, a node keeps what it has, and writes the lease again.
func TestEditedByHand(t *testing.T) {
	own := nodeKey("n1")
	tests := []struct {
		name   string
		meddle func(l *coordinationv1.Lease) // nil: it is deleted
	}{
		{"deleted", nil},
		{"blanked", func(l *coordinationv1.Lease) { l.Spec, l.Annotations = coordinationv1.LeaseSpec{}, nil }},
		{"touched", func(l *coordinationv1.Lease) { l.Labels = map[string]string{"a": "b"} }},
		{"taken by another program", func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("x") }},
		{"garbage in every annotation", func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{FencedAnnotation: "x", NodeAnnotation: "{"}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withPair(t, func(t *testing.T, s *leasetest.Server, a, b *node) {
				neverTwo(t, "a", a, b)
				time.Sleep(2 * leaseDuration) // whoever has renewed for so long may fence at once
				for _, n := range []*node{a, b} {
					n.fault(func(f *leasetest.Faults) { f.Delay = 200 * time.Millisecond }) // of each request
				}
				if tt.meddle == nil {
					check.OK(t, s.Remove(own, ""))
				} else {
					putLease(t, s, own, tt.meddle)
				}
				for range 600 {
					time.Sleep(100 * time.Millisecond)
					if !a.serves("a") {
						t.Errorf("n1 does not serve a at %s\n%s", time.Now().Format("05.000"), s)
						break
					}
				}
				// What the others see of it is whole again, too.
				for _, m := range b.world().Members {
					if m.Name == "n1" && (!m.Alive || m.Info.Excluded != "") {
						t.Errorf("n2 sees %+v", m)
					}
				}
			})
		})
	}
}

// A process that was stopped confirms its claims before it acts on them.
func TestPaused(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, a *node) {
		a.want("a")
		time.Sleep(500 * time.Millisecond)
		a.mu.Lock()
		a.lastStep = a.lastStep.Add(-3 * time.Second) // as after SIGSTOP
		a.mu.Unlock()
		check.Equal(t, a.Tenure().Confirmed, false, "acts on its claims before they are confirmed")
		time.Sleep(stepPeriod + 50*time.Millisecond)
		if tenure := a.Tenure(); !tenure.Confirmed || !tenure.Holds(time.Now()) {
			t.Errorf("tenure %+v, want it confirmed again", tenure)
		}
	})
}

// In a namespace that does not exist writes are tried again with pauses.
func TestNoNamespace(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		s.Refuse = func(l *coordinationv1.Lease) error {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, l.Namespace)
		}
		n := start(t, s, "n1")
		time.Sleep(10 * time.Second)
		check.Between(t, s.Writes(), 0, 40, "writes in 10 s")
		check.Equal(t, n.Ready() == nil, false, "ready without a node lease")
	})
}

// However tight the timing is, a node that renews never comes to the last second of its tenure, in which addresses are removed.
func TestRenewsBeforeTheLastSecond(t *testing.T) {
	for _, timing := range []quorum.Timing{
		{LeaseDuration: leaseDuration, RenewDeadline: deadline, RetryPeriod: period},
		{LeaseDuration: 5 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: time.Second},
		{LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, run := newNode(t, leasetest.NewServer(), "n1", func(o *Options) { o.Timing = timing })
			run(func(error) {})
			time.Sleep(time.Second)
			n.fault(func(f *leasetest.Faults) { f.Delay = 100 * time.Millisecond })
			for range 2000 {
				time.Sleep(5 * time.Millisecond)
				if left := time.Until(n.world().Tenure.Until); left < time.Second {
					t.Fatalf("%+v: its tenure ends in %v", timing, left)
				}
			}
		})
	}
}

// An epoch at the end of the 32 bits that it has on a node lease is left for one that can be counted from.
func TestNextEpoch(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first := now.Unix() - time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	at := func(epoch int32, fenced string) *coordinationv1.Lease {
		l := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseTransitions: &epoch}}
		annotate(l, FencedAnnotation, fenced)
		return l
	}
	for _, tt := range []struct {
		name  string
		known *coordinationv1.Lease
		own   int64
		over  bool
		now   time.Time
		want  int64
	}{
		{name: "the first", want: first},
		{name: "the first, with a clock far ahead", now: now.AddDate(200, 0, 0), want: lastEpoch / 2},
		{name: "the first, with a clock behind 2020", now: time.Unix(0, 0), want: 1},
		{name: "adopted", known: at(7, ""), want: 7},
		{name: "fenced", known: at(7, "7"), want: 8},
		{name: "without an epoch", known: at(0, ""), want: first},
		{name: "without an epoch, and fenced", known: at(0, "1"), want: first},
		{name: "its own is over", known: at(7, ""), own: 7, over: true, want: 8},
		{name: "at the end", known: at(math.MaxInt32, ""), want: first},
		{name: "fenced at the end", known: at(math.MaxInt32, "2147483647"), want: first},
		{name: "fenced beyond the end", known: at(7, "9223372036854775807"), want: first},
		{name: "at the end, beside a running process", known: at(math.MaxInt32, ""), own: first + 5, want: first + 6},
		{name: "own at the end", known: at(math.MaxInt32-1, ""), own: math.MaxInt32 - 1, want: first},
	} {
		if tt.now.IsZero() {
			tt.now = now
		}
		check.Equal(t, nextEpoch(tt.known, tt.own, tt.over, tt.now), tt.want, "%s: epoch", tt.name)
	}
}

// A node lease that is deleted by hand is put back in the same epoch, also if a renewal meets that before the watch shows it. A watch that shows it more than a second
// later is not waited for.
func TestRenewalMeetsADeletion(t *testing.T) {
	for _, tt := range []struct {
		lag   time.Duration
		loses bool
	}{{5 * time.Millisecond, false}, {300 * time.Millisecond, false}, {900 * time.Millisecond, false}, {1800 * time.Millisecond, true}} {
		withServer(t, func(t *testing.T, s *leasetest.Server) {
			var info atomic.Int32 // it has something new to say at each deletion
			n1, run := newNode(t, s, "n1", func(o *Options) {
				o.Info = func() vip.NodeInfo { return vip.NodeInfo{Interface: fmt.Sprint("eth", info.Load())} }
			})
			run(func(error) {})
			n1.want("a")
			time.Sleep(5 * time.Second)
			n1.fault(func(f *leasetest.Faults) { f.Lag = tt.lag })
			lost := 0
			for i := range 20 {
				time.Sleep(5*time.Second + time.Duration(i)*period/20)
				n1.want("a")
				before, writes := n1.Tenure(), s.Writes()
				check.OK(t, s.Remove(nodeKey("n1"), ""))
				info.Add(1)
				time.Sleep(5 * time.Second)
				after := n1.Tenure()
				if after.Epoch != before.Epoch {
					lost++
				}
				if n := s.Writes() - writes; s.Lease(nodeKey("n1")) == nil || !after.Holds(time.Now()) || n > 10 {
					t.Errorf("watch lag %v: it holds nothing, or only after %d writes", tt.lag, n)
				}
			}
			check.Equal(t, lost > 0, tt.loses, "watch lag %v: a new epoch began, as it did with %d of 20 deletions", tt.lag, lost)
		})
	}
}

// A node that was fenced begins a new epoch, though the tombstone is deleted before its watch shows that.
func TestFencedAndDeletedAtOnce(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		n1.want("a")
		time.Sleep(5 * time.Second)
		for range 20 {
			before := n1.Tenure().Epoch
			annotateLease(t, s, nodeKey("n1"), FencedAnnotation, strconv.FormatInt(before, 10))
			check.OK(t, s.Remove(nodeKey("n1"), ""))
			time.Sleep(2*time.Second + 50*time.Millisecond)
			if got := n1.Tenure().Epoch; got <= before {
				t.Fatalf("epoch %d goes on as %d", before, got)
			}
		}
	})
}

// A node lease that another program writes all the time is renewed five times a second at most.
func TestOwnLeaseWrittenByAnother(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		time.Sleep(5 * time.Second)
		renewals, last := 0, renewTime(s.Lease(nodeKey("n1")))
		for i := range 500 {
			time.Sleep(20 * time.Millisecond)
			if at := renewTime(s.Lease(nodeKey("n1"))); !at.Equal(last) {
				renewals, last = renewals+1, at
			}
			annotateLease(t, s, nodeKey("n1"), "another", fmt.Sprint(i))
		}
		check.Equal(t, n1.Tenure().Holds(time.Now()), true, "the tenure holds")
		check.Between(t, renewals, 0, 50, "renewals in ten seconds")
	})
}

// TestFencedUnplaced: what a node had that was fenced, and its node lease deleted since, stays void though no node could take it.
func TestFencedUnplaced(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		n1.want("a")
		n2.planFor("n1", "a")
		time.Sleep(10 * time.Second)
		n2.planFor("", "a")
		n1.kill()
		time.Sleep(time.Minute)
		n2.mu.Lock()
		n2.peers["n1"].Changed = time.Now().Add(-keepFenced)
		n2.mu.Unlock()
		time.Sleep(10 * time.Second)
		if c := n2.claim("a"); s.Lease(nodeKey("n1")) != nil || c.Valid || c.Holder != "n1" {
			t.Errorf("the claim is %+v\n%s", c, s.Trace(8))
		}
		time.Sleep(2 * leaseDuration)
		check.Equal(t, s.Lease(nodeKey("n1")), nil, "its node lease, as it is not fenced again\n%s", s.Trace(8))
		n2.want("a")
		time.Sleep(time.Second)
		n2.mu.Lock()
		defer n2.mu.Unlock()
		check.Equal(t, n2.peers["n1"] != nil, false, "it is not forgotten")
	})
}

// A node that could not renew for so long that it was fenced, and its node lease deleted since (after an hour, or with its Node), acts on no claim of that
// epoch when it is back, although its watch does not show yet who has what it had, and no node lease says that it was fenced.
func TestFencedAndForgotten(t *testing.T) {
	own := nodeKey("n1")
	tests := []struct {
		name   string
		forget func(s *leasetest.Server, n2 *node)
	}{
		{"after an hour", func(_ *leasetest.Server, n2 *node) {
			n2.mu.Lock()
			n2.peers["n1"].Changed = time.Now().Add(-keepFenced)
			n2.mu.Unlock()
			time.Sleep(leaseDuration)
		}},
		{"with its Node", func(s *leasetest.Server, _ *node) {
			if err := s.Remove(own, ""); err != nil {
				t.Error(err)
			}
			time.Sleep(leaseDuration)
		}},
	}
	for _, tt := range tests {
		for _, heartbeats := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with heartbeats: %v", tt.name, heartbeats), func(t *testing.T) {
				withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
					begin := func(name string) *node {
						if heartbeats {
							return a.join(t, s, name)
						}
						return start(t, s, name)
					}
					n1, n2 := begin("n1"), begin("n2")
					n1.want("a")
					time.Sleep(time.Second)
					n2.want("a")
					neverTwo(t, "a", n1, n2)
					time.Sleep(10 * time.Second)
					n1.fault(func(f *leasetest.Faults) { f.Cut = true })
					if heartbeats {
						a.setBetween(vip.Dead, "n1")
					}
					time.Sleep(time.Minute)
					if !n2.serves("a") {
						t.Fatalf("n2 does not serve\n%s", s)
					}
					tt.forget(s, n2)
					if s.Lease(own) != nil {
						t.Fatalf("the node lease is still there\n%s", s)
					}
					n1.fault(func(f *leasetest.Faults) { *f = leasetest.NoFaults; f.WatchCut = true })
					if heartbeats {
						a.setBetween(vip.Alive, "n1")
					}
					time.Sleep(8 * time.Second)
					n1.mend()
					time.Sleep(10 * time.Second)
					check.Equal(t, serving("a", n1, n2), "n2", "who serves\n%s", s.Trace(20))
				})
			})
		}
	}
}

// A node that is killed and started again says so on its node lease, for a while; one that is
// stopped in good order does not.
func TestRestarts(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		a, b := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(time.Second)
		expect := func(when string, want int) {
			t.Helper()
			for _, by := range []*node{a, b} {
				m := by.member("n1")
				check.Equal(t, m.Name, "n1", "%s: whom %s knows", when, by.name)
				check.Equal(t, len(m.Info.Restarts), want, "%s: restarts by the count of %s", when, by.name)
			}
		}
		expect("first start", 0)
		a.end()
		a = start(t, s, "n1")
		time.Sleep(time.Second)
		expect("stopped in good order", 0)
		for i := range 10 {
			a.kill()
			time.Sleep(time.Duration(i) * 3 * time.Second) // not fenced, and fenced
			a = start(t, s, "n1")
			time.Sleep(time.Second)
			expect("killed", min(i+1, maxRestarts))
		}
		time.Sleep(forgetAfter - 10*time.Second)
		expect("almost for long enough", maxRestarts)
		time.Sleep(12 * time.Second)
		expect("alive for long enough", 0)
		a.kill()
		time.Sleep(time.Minute)
		a = start(t, s, "n1")
		time.Sleep(time.Second)
		expect("killed once, long after", 1)
		time.Sleep(2*stableAfter - 2*time.Second)
		expect("killed once, almost for long enough", 1)
		time.Sleep(3 * time.Second)
		expect("killed once, alive for long enough", 0)
	})
}

// TestFlappingLink: a link that comes and goes 20 times a second costs a few writes of the node lease, and one that
// does so once is told at once.
func TestFlappingLink(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n *node) {
		time.Sleep(10*time.Second + 100*time.Millisecond)
		set := func(up bool) {
			n.info.Store(&vip.NodeInfo{Interface: "eth0", Links: []vip.Link{{Name: "eth0", Up: up}}})
			n.Wake()
		}
		published := func() bool {
			x, _ := ParseNodeLease(s.Lease(vip.Key{Namespace: "kube-system", Name: vip.NodeLeasePrefix + "n1"}))
			return len(x.Info.Links) > 0 && x.Info.Links[0].Up
		}
		set(true)
		time.Sleep(50 * time.Millisecond)
		check.Equal(t, published(), true, "a link that has come is told at once")
		before := s.Writes()
		for i := range 200 {
			set(i%2 == 0)
			time.Sleep(50 * time.Millisecond)
		}
		check.Between(t, s.Writes()-before, 0, 30, "writes in 10 s")
		set(true)
		time.Sleep(time.Second)
		check.Equal(t, published(), true, "the last state is told a second later")
	})
}

// TestReleasedIsEnough: who has released the node lease, and can't delete it any more, has stopped well.
func TestReleasedIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ended := leasetest.NewServer(), make(chan error, 1)
		n1, run := newNode(t, s, "n1", func(*Options) {})
		run(func(err error) { ended <- err })
		time.Sleep(time.Second)
		n1.fault(func(f *leasetest.Faults) { f.AnswerDelay = 100 * time.Millisecond })
		n1.stop()
		for holder(s.Lease(nodeKey("n1"))) != "" {
			time.Sleep(time.Millisecond)
		}
		n1.fault(func(f *leasetest.Faults) { f.Cut = true })
		if err := <-ended; err != nil || s.Lease(nodeKey("n1")) == nil {
			t.Errorf("it ended with %v; its node lease is %v", err, s.Lease(nodeKey("n1")))
		}
	})
}

// TestRenewalOverABrokenConnection: a renewal whose connection breaks is sent again at once, over the next one.
func TestRenewalOverABrokenConnection(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		time.Sleep(5 * time.Second)
		renewed := func() time.Time { return renewTime(s.Lease(nodeKey("n1"))) }
		last := renewed()
		check.True(t, period+time.Second, "the node lease is renewed", func() bool { return renewed().After(last) })
		n1.fault(func(f *leasetest.Faults) { f.Broken = true })
		last = renewed()
		time.Sleep(time.Until(last.Add(period)) + leasetest.NoFaults.Delay*3/2)
		n1.mend()
		check.Between(t, check.True(t, time.Second, "it is renewed again", func() bool { return renewed().After(last) }), 0, 300*time.Millisecond, "sent again after")
	})
}

// TestRenewalThatHangs: a renewal that gets no answer for three times as long as the last one is sent again: another API server may answer.
func TestRenewalThatHangs(t *testing.T) {
	for answer, within := range map[time.Duration]time.Duration{10 * time.Millisecond: time.Second, 400 * time.Millisecond: 2 * time.Second} {
		withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
			slow := func(f *leasetest.Faults) { f.Delay = answer }
			n1.fault(slow)
			time.Sleep(10 * time.Second)
			renewed := func() time.Time { return renewTime(s.Lease(nodeKey("n1"))) }
			last := renewed()
			check.True(t, period+time.Second, "the node lease is renewed", func() bool { return renewed().After(last) })
			time.Sleep(answer)
			n1.fault(func(f *leasetest.Faults) { f.Hang = vip.NodeLeasePrefix })
			last = renewed()
			time.Sleep(time.Until(last.Add(period)) + 2*answer)
			n1.mend()
			n1.fault(slow)
			check.True(t, within, fmt.Sprintf("with answers after %v it is renewed again", answer), func() bool { return renewed().After(last) })
		})
	}
}
