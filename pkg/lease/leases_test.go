package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

func TestRenewsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n := start(t, s, "n1")
		n.want("a", "b", "c")
		time.Sleep(time.Second)
		before := s.Writes()
		time.Sleep(60 * time.Second)
		// One write each period, whatever is held.
		if got := s.Writes() - before; got < 28 || got > 31 {
			t.Errorf("%d writes in a minute, want 30: one each %v", got, period)
		}
		if !n.serves("a") || n.held() != 3 {
			t.Errorf("holds %d, want 3", n.held())
		}
		n.stop()
		<-n.done
		if got := s.String(); got != "" {
			t.Errorf("left after the end:\n%s", got)
		}
	})
}

func TestOneNodeAcquires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		nodes := []*node{start(t, s, "n1"), start(t, s, "n2"), start(t, s, "n3")}
		neverTwo(t, t.Context(), "a", newGroup(nodes...))
		time.Sleep(time.Second)
		for _, n := range nodes {
			n.want("a")
		}
		time.Sleep(time.Second)
		winners := 0
		for _, n := range nodes {
			if n.serves("a") {
				winners++
			}
		}
		if winners != 1 {
			t.Errorf("%d nodes serve, want 1\n%s", winners, s)
		}
	})
}

func TestKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		a.want("a")
		time.Sleep(time.Second)
		b.want("a")
		both := newGroup(a, b)
		neverTwo(t, t.Context(), "a", both)
		time.Sleep(10 * time.Second)
		if !a.serves("a") {
			t.Fatalf("n1 does not serve\n%s", s)
		}
		killed := time.Now()
		a.kill()
		for !b.serves("a") && time.Since(killed) < time.Minute {
			time.Sleep(50 * time.Millisecond)
		}
		if took := time.Since(killed); took < leaseDuration-period-time.Second || took > leaseDuration+time.Second {
			t.Errorf("taken over after %v, want about %v", took, leaseDuration)
		}
		// Back again: another epoch, nothing is taken back.
		a = both.replace(0, start(t, s, "n1"))
		a.want("a")
		time.Sleep(10 * time.Second)
		if a.serves("a") || !b.serves("a") {
			t.Errorf("n1 serves %v, n2 serves %v after n1 came back; want n2\n%s", a.serves("a"), b.serves("a"), s)
		}
	})
}

func TestRestartedQuickly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		a.want("a")
		time.Sleep(time.Second)
		b.want("a")
		time.Sleep(5 * time.Second)
		a.kill()
		time.Sleep(time.Second)
		before := s.Writes()
		a = start(t, s, "n1")
		a.want("a")
		time.Sleep(100 * time.Millisecond)
		if !a.serves("a") {
			t.Errorf("the restarted process does not serve what it held\n%s", s)
		}
		if got := s.Writes() - before; got > 2 {
			t.Errorf("%d writes; the claim should not have been written again", got)
		}
		time.Sleep(time.Minute)
		if !a.serves("a") || b.serves("a") {
			t.Error("something moved")
		}
	})
}

// cut takes n's way to the API server away for d and returns how long it went on serving.
func cut(n *node, d time.Duration) (served time.Duration) {
	n.way.SetFaults(func(c *leasetest.Faults) { c.Cut = true })
	began := time.Now()
	for time.Since(began) < d {
		if n.serves("a") {
			served = time.Since(began)
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.way.SetFaults(func(c *leasetest.Faults) { c.Cut = false })
	return served
}

func TestCutFromAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		a.want("a")
		time.Sleep(time.Second)
		b.want("a")
		both := newGroup(a, b)
		neverTwo(t, t.Context(), "a", both)
		time.Sleep(4 * time.Second)
		if served := cut(a, 40*time.Second); served > deadline || served < deadline-period-100*time.Millisecond {
			t.Errorf("served for %v after the cut, want until the renew deadline (%v)", served, deadline)
		}
		if !b.serves("a") {
			t.Errorf("n2 has not taken over\n%s", s)
		}
		time.Sleep(20 * time.Second)
		if a.serves("a") || !b.serves("a") {
			t.Error("it moved back")
		}
		// Short of the deadline nothing happens at all.
		if served := cut(b, 7*time.Second); served < 6900*time.Millisecond {
			t.Errorf("a short cut made the owner give up after %v", served)
		}
		time.Sleep(20 * time.Second)
		if !b.serves("a") {
			t.Error("it moved after a short cut")
		}
	})
}

// A node whose watch is stuck sees another's lease grow old although it is
// renewed. It must not take anything: the fence is refused.
func TestStaleWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		a.want("a")
		time.Sleep(time.Second)
		b.want("a")
		both := newGroup(a, b)
		neverTwo(t, t.Context(), "a", both)
		time.Sleep(5 * time.Second)
		b.way.SetFaults(func(c *leasetest.Faults) { c.WatchCut = true })
		time.Sleep(2 * time.Minute)
		if !a.serves("a") || b.serves("a") {
			t.Errorf("n1 serves %v, n2 serves %v; want n1\n%s", a.serves("a"), b.serves("a"), s)
		}
	})
}

// A write whose answer was lost has happened all the same.
func TestLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := start(t, s, "n1")
		a.want("a")
		time.Sleep(time.Second)
		a.way.SetFaults(func(c *leasetest.Faults) { c.LoseAnswers = true })
		time.Sleep(5 * time.Second)
		a.want("a", "b")
		time.Sleep(time.Second)
		a.way.SetFaults(func(c *leasetest.Faults) { c.LoseAnswers = false })
		time.Sleep(5 * time.Second)
		if !a.serves("a") || !a.serves("b") || a.world().Tenure.Epoch != transitions(s.Lease(vip.Key{Namespace: "kube-system", Name: NodePrefix + "n1"})) {
			t.Errorf("serves a %v, b %v\n%s", a.serves("a"), a.serves("b"), s)
		}
	})
}

func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		a.want("a")
		time.Sleep(time.Second)
		a.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.HandOver, Successor: "n2"}})
		time.Sleep(50 * time.Millisecond)
		w := b.world()
		if c := w.Claims[lk("a")]; !c.Valid || c.Holder != "n2" || c.PreviousHolder != "n1" || c.Transitions != 1 {
			t.Errorf("claim %+v, want it valid with n2, from n1", c)
		}
		if l, ok := a.world().HandingOver[lk("a")]; !ok || l.Successor != "n2" {
			t.Errorf("leaving %+v, want the successor n2", a.world().HandingOver)
		}
		time.Sleep(overlap + stepPeriod)
		if len(a.world().HandingOver) != 0 {
			t.Error("the old owner waits for ever")
		}
	})
}

// What is handed to a node stays with it until its plan has been made with it.
func TestHandedOverBeforePlanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		a.want("a")
		b.want("b")
		time.Sleep(time.Second)
		a.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.HandOver, Successor: "n2"}})
		time.Sleep(time.Second)
		if got := s.String(); !strings.Contains(got, "kubevip-a n2\n") {
			t.Errorf("n2 released what it was handed:\n%s", got)
		}
		b.world() // now it knows
		b.want("b")
		time.Sleep(time.Second)
		if got := s.String(); strings.Contains(got, "kubevip-a") {
			t.Errorf("n2 keeps what it does not want:\n%s", got)
		}
	})
}

// Nothing is handed to a node that has no node lease.
func TestHandOverToUnknownNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := start(t, s, "n1")
		a.want("a")
		time.Sleep(time.Second)
		a.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.HandOver, Successor: "n9"}})
		time.Sleep(time.Second)
		if !a.serves("a") {
			t.Error("given to a node without a lease")
		}
	})
}

// A node that stops releases at once; what no other acquired is free.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		a.want("a", "b")
		time.Sleep(time.Second)
		b.want("a", "b")
		a.want("b") // a is released, b is not
		time.Sleep(time.Second)
		if !b.serves("a") {
			t.Errorf("what was released was not acquired\n%s", s)
		}
		a.stop()
		<-a.done
		stopped := time.Now()
		for !b.serves("b") && time.Since(stopped) < time.Minute {
			time.Sleep(5 * time.Millisecond)
		}
		if took := time.Since(stopped); took > 200*time.Millisecond {
			t.Errorf("taken over after %v, want at once: the node had said that it stops", took)
		}
	})
}

// A node that is fenced while it releases its leases begins no other epoch for that.
func TestFencedWhileStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := start(t, s, "n1")
		a.want("a")
		time.Sleep(period - 200*time.Millisecond) // it is about to renew
		a.way.SetFaults(func(f *leasetest.Faults) { f.Delay = 300 * time.Millisecond })
		a.stop()
		time.Sleep(100 * time.Millisecond)
		annotateLease(t, s, nodeKey("n1"), FencedAnnotation, "1")
		<-a.done
		if trace := s.Trace(20); strings.Contains(trace, "transitions 2") {
			t.Errorf("another epoch was begun:\n%s", trace)
		}
		if got := s.String(); got != "" {
			t.Errorf("left after the end:\n%s", got)
		}
	})
}

func TestOtherAnnouncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		other, seconds := "kube-vip-1", int32(5)
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevip-a"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &other, LeaseDurationSeconds: &seconds}}
		l, _ = s.Put(l)
		a := start(t, s, "n1")
		a.want("a")
		for range 10 { // renewed: respected
			time.Sleep(4 * time.Second)
			if c := a.world().Claims[lk("a")]; !c.Valid || !c.Foreign || a.serves("a") {
				t.Fatalf("another program's claim was not respected: %+v", c)
			}
			l, _ = s.Put(l)
		}
		stopped := time.Now()
		for !a.serves("a") && time.Since(stopped) < time.Minute {
			time.Sleep(50 * time.Millisecond)
		}
		if took := time.Since(stopped); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("taken over after %v, want after the other program's own 5 s", took)
		}
		// The other program writes its name over ours: it is respected at once.
		x := s.Lease(lk("a")).DeepCopy()
		x.Spec.HolderIdentity = &other
		if _, err := s.Put(x); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if a.serves("a") {
			t.Error("still serves what another program took")
		}
	})
}

// An earlier program on this very node is gone, since we are here.
func TestEarlierProgramOnThisNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		self, seconds := "n1", int32(3600)
		s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevip-a"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &self, LeaseDurationSeconds: &seconds}})
		a := start(t, s, "n1")
		a.want("a")
		time.Sleep(time.Second)
		if !a.serves("a") {
			t.Errorf("not adopted\n%s", s)
		}
	})
}

func TestEditedByHand(t *testing.T) {
	own := vip.Key{Namespace: "kube-system", Name: NodePrefix + "n1"}
	tests := []struct {
		name   string
		meddle func(s *leasetest.Server)
	}{
		{"VIP lease deleted", func(s *leasetest.Server) { s.Remove(lk("a"), "") }},
		{"VIP lease blanked", func(s *leasetest.Server) {
			x := s.Lease(lk("a")).DeepCopy()
			x.Spec = coordinationv1.LeaseSpec{}
			s.Put(x)
		}},
		{"node lease deleted", func(s *leasetest.Server) { s.Remove(own, "") }},
		{"node lease blanked", func(s *leasetest.Server) {
			x := s.Lease(own).DeepCopy()
			x.Spec = coordinationv1.LeaseSpec{}
			x.Annotations = nil
			s.Put(x)
		}},
		{"node lease touched", func(s *leasetest.Server) {
			x := s.Lease(own).DeepCopy()
			x.Labels = map[string]string{"a": "b"}
			s.Put(x)
		}},
		{"node lease taken by another program", func(s *leasetest.Server) {
			x, who := s.Lease(own).DeepCopy(), "x"
			x.Spec.HolderIdentity = &who
			s.Put(x)
		}},
		{"garbage in every annotation", func(s *leasetest.Server) {
			x := s.Lease(own).DeepCopy()
			x.Annotations = map[string]string{FencedAnnotation: "x", NodeAnnotation: "{"}
			s.Put(x)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := leasetest.NewServer()
				a, b := start(t, s, "n1"), start(t, s, "n2")
				a.want("a", "b")
				time.Sleep(time.Second)
				b.want("b")
				both := newGroup(a, b)
				neverTwo(t, t.Context(), "a", both)
				for _, n := range both.all() {
					n.way.SetFaults(func(f *leasetest.Faults) { f.Delay = 200 * time.Millisecond }) // of each request
				}
				tt.meddle(s)
				for range 600 {
					time.Sleep(100 * time.Millisecond)
					if !a.serves("a") {
						t.Errorf("n1 does not serve a at %s\n%s", time.Now().Format("05.000"), s)
						break
					}
				}
				if !a.serves("a") || !a.serves("b") || !a.world().Tenure.Holds(time.Now()) {
					t.Errorf("serves a %v, b %v a minute later\n%s", a.serves("a"), a.serves("b"), s)
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

// The holder of a VIP lease that another program has deleted gives the VIP up if it can't write the lease again: a process that has begun since
// takes it for free.
func TestDeletedAndNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := start(t, s, "n1")
		a.want("a")
		time.Sleep(time.Second)
		a.way.SetFaults(func(f *leasetest.Faults) { f.Delay = time.Minute })
		if err := s.Remove(lk("a"), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(a.actTime() - 100*time.Millisecond)
		if !a.serves("a") || a.world().Claims[lk("a")].Until.IsZero() {
			t.Errorf("it serves a: %v; its claim: %+v", a.serves("a"), a.world().Claims[lk("a")])
		}
		time.Sleep(200 * time.Millisecond)
		if a.serves("a") || !a.world().Tenure.Holds(time.Now()) {
			t.Errorf("it serves a, which is written nowhere: %v", a.serves("a"))
		}
		a.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		time.Sleep(20 * time.Second)
		if !a.serves("a") {
			t.Error("it does not serve a again")
		}
	})
}

// A VIP lease that another program deletes before the answer to the write that made it has
// arrived is written again: the answer does not bring it back into the cache.
func TestDeletedBeforeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n := start(t, s, "n1")
		time.Sleep(time.Second)
		n.way.SetFaults(func(f *leasetest.Faults) { f.AnswerDelay = time.Second })
		n.want("a")
		time.Sleep(500 * time.Millisecond)
		if err := s.Remove(lk("a"), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		n.way.SetFaults(func(f *leasetest.Faults) { f.AnswerDelay = 0 })
		time.Sleep(time.Minute)
		if s.Lease(lk("a")) == nil || !n.serves("a") {
			t.Errorf("the lease exists: %v; n1 serves: %v; want true, true\n%s", s.Lease(lk("a")) != nil, n.serves("a"), s)
		}
	})
}

// A process that was stopped confirms its claims before it acts on them.
func TestPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := start(t, s, "n1")
		a.want("a")
		time.Sleep(500 * time.Millisecond)
		a.mu.Lock()
		a.lastStep = a.lastStep.Add(-3 * time.Second) // as after SIGSTOP
		a.mu.Unlock()
		if tenure := a.Tenure(); tenure.Confirmed {
			t.Error("acts on its claims before they are confirmed")
		}
		time.Sleep(stepPeriod + 50*time.Millisecond)
		if tenure := a.Tenure(); !tenure.Confirmed || !tenure.Holds(time.Now()) {
			t.Errorf("tenure %+v, want it confirmed again", tenure)
		}
	})
}

func TestStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(time.Second)
		a.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.Follow, ExpectedHolder: "n2"}})
		stalled := func() bool {
			for _, m := range a.world().Members {
				if m.Name == "n2" {
					return m.Stalled
				}
			}
			t.Fatal("n2 is no member")
			return false
		}
		time.Sleep(stalledAfter - stepPeriod)
		if stalled() {
			t.Error("stalled too early")
		}
		time.Sleep(3 * stepPeriod)
		if !stalled() {
			t.Error("never stalled")
		}
		b.want("b") // it claims something: it is back
		time.Sleep(time.Second)
		if stalled() {
			t.Error("still stalled although it claims")
		}
	})
}

// Random faults on three nodes that all want the same VIP: never two at once, and
// in the end exactly one.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { randomFaults(t, rand.New(rand.NewPCG(seed, 3))) })
		})
	}
}

func randomFaults(t *testing.T, r *rand.Rand) {
	s := leasetest.NewServer()
	nodes := make([]*node, 3)
	for i := range nodes {
		nodes[i] = start(t, s, fmt.Sprintf("n%d", i+1))
		nodes[i].want("a")
	}
	all := newGroup(nodes...)
	nodes = all.all() // this goroutine's own
	blind := func() bool {
		return slices.ContainsFunc(nodes, func(n *node) bool { return n.way.Faults().WatchCut || n.way.Faults().Cut })
	}
	ctx, cancel := context.WithCancel(t.Context())
	neverTwo(t, ctx, "a", all)
	var deleted time.Time
	for range 30 {
		n, fault := nodes[r.IntN(3)], r.IntN(8)
		t.Log(time.Now().Format("04:05.000"), n.name, "fault", fault)
		switch fault {
		case 0, 1:
			n.way.SetFaults(func(c *leasetest.Faults) { c.Cut = !c.Cut && time.Since(deleted) > leaseDuration })
		case 2:
			n.way.SetFaults(func(c *leasetest.Faults) { c.WatchCut = !c.WatchCut && time.Since(deleted) > leaseDuration })
		case 3:
			n.way.SetFaults(func(c *leasetest.Faults) { c.LoseAnswers = !c.LoseAnswers })
		case 4:
			n.way.SetFaults(func(c *leasetest.Faults) { c.Delay = time.Duration(r.IntN(4000)) * time.Millisecond })
		case 5:
			n.way.SetFaults(func(c *leasetest.Faults) { c.Lag = time.Duration(1+r.IntN(3000)) * time.Millisecond })
		case 6:
			// A process that starts can't know of a lease that was deleted by hand under a
			// holder who has not heard of it: the one case in which two may meet, for as
			// long as the holder's watch lags.
			i := r.IntN(3)
			if time.Since(deleted) < leaseDuration {
				continue
			}
			nodes[i].kill()
			time.Sleep(time.Duration(r.IntN(20)) * time.Second)
			nodes[i] = all.replace(i, start(t, s, nodes[i].name))
			nodes[i].want("a")
		case 7:
			// The watch of whoever holds it must be quicker than the lease duration.
			if k := lk("a"); !blind() && r.IntN(2) == 0 {
				s.Remove(k, "")
				deleted = time.Now()
			}
		}
		time.Sleep(time.Duration(r.IntN(12000)) * time.Millisecond)
	}
	for _, n := range nodes { // all well again
		n.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
	}
	time.Sleep(time.Minute)
	served := 0
	for _, n := range nodes {
		if n.serves("a") {
			served++
		}
	}
	if served != 1 {
		t.Errorf("%d nodes serve in the end, want 1\n%s", served, s)
	}
	cancel()
}

// In a namespace that does not exist writes are tried again with pauses.
func TestNoNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		s.MissingNamespace = "kube-system"
		n := start(t, s, "n1")
		time.Sleep(10 * time.Second)
		if got := s.Writes(); got > 40 {
			t.Errorf("%d writes in 10 s", got)
		}
		if n.Ready() == nil {
			t.Error("ready without a node lease")
		}
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
			n.way.SetFaults(func(f *leasetest.Faults) { f.Delay = 100 * time.Millisecond })
			for range 2000 {
				time.Sleep(5 * time.Millisecond)
				if left := time.Until(n.world().Tenure.Until); left < time.Second {
					t.Fatalf("%+v: its tenure ends in %v", timing, left)
				}
			}
		})
	}
}
