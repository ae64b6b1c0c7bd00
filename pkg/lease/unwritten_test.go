package lease

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// startTransferring is start for a node that has every fence give all VIPs to the node successor.
func startTransferring(t *testing.T, s *leasetest.Server, name, successor string) *node {
	t.Helper()
	n, run := newNode(t, s, name, func(o *Options) {
		o.Successors = func(fill func(*vip.World)) map[vip.Key]vip.Successor {
			var w vip.World
			fill(&w)
			all := make(map[vip.Key]vip.Successor)
			for k, c := range w.Claims {
				if !c.Valid {
					all[k] = vip.Successor{Node: successor, Cause: "n1: it is dead"}
				}
			}
			return all
		}
	})
	run(func(error) {})
	return n
}

// follow has the node know of Services that are another's to acquire.
func (n *node) follow(names ...string) {
	n.world()
	var intents []vip.LeaseIntent
	for _, name := range names {
		intents = append(intents, vip.LeaseIntent{Lease: lk(name), Action: vip.Follow})
	}
	n.Put(intents)
}

// death is n1, with the VIPs a and b, killed among n1 to n3, whose fences give all to n2; it returns once it is fenced.
func death(t *testing.T, s *leasetest.Server) (n2, n3 *node) {
	t.Helper()
	n2, n3 = deathOf(t, s, []vip.Key{lk("a"), lk("b")}, func(*leasetest.Faults) {})
	time.Sleep(50 * time.Millisecond)
	return n2, n3
}

// deathOf is n1, with these VIP leases, killed among n1 to n3, whose fences give all to n2, which has that fault by then; it returns as soon as n1 is fenced.
func deathOf(t *testing.T, s *leasetest.Server, leases []vip.Key, fault func(*leasetest.Faults)) (n2, n3 *node) {
	t.Helper()
	n1 := startTransferring(t, s, "n1", "n2")
	n1.intend(vip.Acquire, leases...)
	time.Sleep(time.Second)
	n2, n3 = startTransferring(t, s, "n2", "n2"), startTransferring(t, s, "n3", "n2")
	n2.intend(vip.Follow, leases...)
	n3.intend(vip.Follow, leases...)
	time.Sleep(5 * time.Second)
	n2.way.SetFaults(fault)
	n1.kill()
	for s.Lease(nodeKey("n1")).Annotations[FencedAnnotation] == "" {
		time.Sleep(10 * time.Millisecond)
	}
	return n2, n3
}

func nodeKey(node string) vip.Key { return vip.Key{Namespace: "kube-system", Name: NodePrefix + node} }

// A VIP that a fence gives to a node is its own at once, for all; what it then writes says the same.
func TestTransferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n2, n3 := death(t, s)
		for _, n := range []*node{n2, n3} {
			c := n.world().Claims[lk("a")]
			if c.Holder != "n2" || !c.Valid || c.PreviousHolder != "n1" || c.Cause != "n1: it is dead" || len(c.FormerHolders) != 1 || c.FormerHolders[0].Node != "n1" || c.Until.IsZero() != (n == n3) {
				t.Errorf("%s: %+v", n.name, c)
			}
		}
		if got := holder(s.Lease(lk("a"))); got != "n1" {
			t.Fatalf("it is written already: %s", got)
		}
		read := ByService([]*coordinationv1.Lease{s.Lease(lk("a")), s.Lease(nodeKey("n1")), s.Lease(nodeKey("n2"))}, "kube-system")
		if node, _, _ := parseClaim(read[0]); holder(read[0]) != "n2" || node != "n2" || read[0].Annotations[FromAnnotation] != "n1" || holder(s.Lease(lk("a"))) != "n1" {
			t.Errorf("as commands read it: %v", read[0])
		}
		before := n2.world().Claims[lk("a")]
		n2.want("a", "b")
		time.Sleep(time.Second)
		after := n2.world().Claims[lk("a")]
		before.Until, before.FormerHolders[0].Until = time.Time{}, after.FormerHolders[0].Until
		if holder(s.Lease(lk("a"))) != "n2" || after.Transitions != before.Transitions || after.PreviousHolder != "n1" || after.Cause != before.Cause ||
			!after.AcquiredAt.Equal(before.AcquiredAt) || !after.Until.IsZero() || len(after.FormerHolders) != 1 {
			t.Errorf("written: %+v, before %+v", after, before)
		}
	})
}

// A VIP lease that was written after the fence, whoever wrote it, does not go by the transfer any more.
func TestTransferEndsWithTheVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n2, n3 := death(t, s)
		if !n2.serves("a") {
			t.Fatal("n2 does not serve")
		}
		annotateLease(t, s, lk("a"), "tenant", "x")
		time.Sleep(50 * time.Millisecond)
		if n2.serves("a") || n3.world().Claims[lk("a")].Valid || !n2.serves("b") {
			t.Errorf("a: %+v, b: %+v", n2.world().Claims[lk("a")], n2.world().Claims[lk("b")])
		}
	})
}

// A node that does not write down what it was given is passed over; it does not go on for long, though its watch does not show that.
func TestPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n2, n3 := death(t, s)
		neverTwo(t, t.Context(), "b", newGroup(n2, n3))
		n2.want("b")
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut, f.Hang = true, "kubevip-" })
		n3.want("a")
		time.Sleep(stalledAfter - 300*time.Millisecond)
		if n3.serves("a") {
			t.Error("n3 does not wait for n2")
		}
		time.Sleep(time.Second)
		if !n3.serves("a") {
			t.Errorf("n3 does not serve: %+v", n3.world().Claims[lk("a")])
		}
		if until := n3.member("n2").AnswersUntil; time.Until(until) < 4*time.Second || time.Until(until) > 6*time.Second {
			t.Errorf("n2 may answer for what it was given until %v, by what n3 knows", until)
		}
		time.Sleep(2500 * time.Millisecond)
		if n2.serves("a") || n2.serves("b") {
			t.Error("n2 serves on, though it can't know what was written")
		}
		n2.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		time.Sleep(5 * time.Second)
		if n2.serves("a") || !n2.serves("b") || !n3.serves("a") {
			t.Errorf("n2 has %v, n3 %v", n2.world().Claims, n3.world().Claims)
		}
	})
}

// While one node that lives does not understand transfers none are written.
func TestEarlierVersionWithoutTransfers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		start(t, s, "n4")
		death(t, s)
		if text := s.Lease(nodeKey("n1")).Annotations[TransfersAnnotation]; text != "" {
			t.Errorf("n1's node lease has %s", text)
		}
	})
}

// The transfers stay on a node lease, in a new epoch and after its node has stopped, for as long as the owner of a VIP lease follows from them.
func TestTransfersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n2, _ := death(t, s)
		n1 := startTransferring(t, s, "n1", "n2")
		n1.follow("a", "b")
		time.Sleep(10 * time.Second)
		if s.Lease(nodeKey("n1")).Annotations[TransfersAnnotation] == "" || !n2.serves("a") || n1.serves("a") {
			t.Fatalf("n1 in a new epoch: %v", s.Lease(nodeKey("n1")).Annotations)
		}
		n1.stop()
		<-n1.done
		time.Sleep(time.Second)
		if !n2.serves("a") {
			t.Fatal("n1 has stopped, and n2 does not serve any more")
		}
		n2.want("a", "b")
		time.Sleep(time.Second)
		n1 = startTransferring(t, s, "n1", "n2")
		n1.follow("a", "b")
		time.Sleep(5 * time.Second)
		if text := s.Lease(nodeKey("n1")).Annotations[TransfersAnnotation]; text != "" || !n2.serves("a") {
			t.Errorf("all is written, and n1's node lease has %q", text)
		}
	})
}

// A node whose fence gives a VIP to itself knows from the answer on, before its next step, that the kernel of the fenced node may answer for it:
// any plan that is made by then would bind it.
func TestFenceKnowsWhoMayAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := startTransferring(t, s, "n1", "n2")
		n1.want("a")
		time.Sleep(time.Second)
		n2, _ := newNode(t, s, "n2", func(o *Options) {
			o.Successors = func(func(*vip.World)) map[vip.Key]vip.Successor {
				return map[vip.Key]vip.Successor{lk("a"): {Node: "n2", Cause: "n1: it is dead"}}
			}
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go n2.way.Watch(ctx)
		step := func() vip.World {
			n2.step(ctx)
			time.Sleep(100 * time.Millisecond) // all answers have come
			return n2.world()
		}
		for range 50 {
			step()
		}
		n1.kill()
		w := step()
		for began := time.Now(); w.Claims[lk("a")].Holder != "n2" && time.Since(began) < 2*leaseDuration; {
			w = step()
		}
		if !w.Claims[lk("a")].Valid || len(w.Members) != 2 || w.Members[0].AnswersUntil.IsZero() {
			t.Errorf("claim %+v, members %+v", w.Claims[lk("a")], w.Members)
		}
	})
}

// A node was last heard when it renewed its node lease, not when another fenced it: outages are measured from then.
func TestFenceIsNoSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n2, n3 := death(t, s)
		for _, n := range []*node{n2, n3} {
			if ago := time.Since(n.member("n1").HeardAt); ago < leaseDuration {
				t.Errorf("%s heard n1 %v ago", n.name, ago)
			}
		}
	})
}

// member is what the node knows of another one.
func (n *node) member(name string) vip.Member {
	for _, m := range n.world().Members {
		if m.Name == name {
			return m
		}
	}
	return vip.Member{}
}

// However long a plan takes, a fence with the transfers that follow from it is written.
func TestFenceAfterSlowPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := startTransferring(t, s, "n1", "n2")
		n1.want("a")
		time.Sleep(time.Second)
		_, run := newNode(t, s, "n2", func(o *Options) {
			o.Successors = func(func(*vip.World)) map[vip.Key]vip.Successor {
				time.Sleep(2 * time.Second)
				return map[vip.Key]vip.Successor{lk("a"): {Node: "n2"}}
			}
		})
		run(func(error) {})
		time.Sleep(5 * time.Second)
		n1.kill()
		time.Sleep(leaseDuration + 3*time.Second)
		if s.Lease(nodeKey("n1")).Annotations[FencedAnnotation] == "" {
			t.Error("n1 is not fenced")
		}
	})
}

// While the kernel of a node answers whose process has ended, clients are served: no outage is counted from its last heartbeat on.
func TestHeardWhileItsKernelAnswers(t *testing.T) {
	n := New(leasetest.NewClient(leasetest.NewServer(), func() {}), Options{Node: "n1", Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	n.peer("n2", now)
	for _, ended := range []bool{false, true} {
		n.evaluate(map[string]vip.PeerStatus{"n2": {Liveness: vip.Dead, ProcessEnded: ended, HeardAt: now.Add(-4 * time.Second)}}, &vip.NodeInfo{}, now)
		if ago := now.Sub(n.peers["n2"].lastHeard()); (ago == 0) != ended {
			t.Errorf("ended %v: heard %v ago", ended, ago)
		}
	}
}

// A node that is cut off the VIPs' link, and goes on to renew its node lease, answers no client: it was heard when its last heartbeat came.
func TestNotHeardByItsLease(t *testing.T) {
	now := time.Now()
	p := peer{heardAt: now.Add(-4 * time.Second), renewAt: now}
	if got := p.lastHeard(); !got.Equal(now) {
		t.Errorf("of a node whose heartbeats are blocked, and that lives: heard %v ago", now.Sub(got))
	}
	p.Over = true
	if got := p.lastHeard(); !got.Equal(now) {
		t.Errorf("of one whose heartbeats were blocked before, and that another node has fenced: heard %v ago", now.Sub(got))
	}
	cut := peer{heardAt: now.Add(-400 * time.Millisecond), renewAt: now}
	cut.Over = true
	if got := cut.lastHeard(); !got.Equal(cut.heardAt) {
		t.Errorf("of one that another node has found cut off, and fenced, before this one: heard %v ago", now.Sub(got))
	}
	p.gone = true
	if got := p.lastHeard(); !got.Equal(p.heardAt) {
		t.Errorf("of a node that nobody hears on the link: heard %v ago", now.Sub(got))
	}
	p.heardAt = time.Time{}
	if got := p.lastHeard(); !got.Equal(now) {
		t.Errorf("of one of which no heartbeat ever came: heard %v ago", now.Sub(got))
	}
}

// What is shown of a node says that a renewal is late from when that is so, and no longer than that: the agent is told of both.
func TestLateRenewalIsTold(t *testing.T) {
	pokes := 0
	n := New(leasetest.NewClient(leasetest.NewServer(), func() {}), Options{Node: "n1", Log: slog.New(slog.DiscardHandler), Poke: func() { pokes++ },
		Timing: quorum.Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}})
	now := time.Now()
	n.own.Epoch, n.own.Renewed, n.own.RenewingSince = 1, now, now
	n.report(now)
	for _, tt := range []struct {
		what           string
		at, renewed    time.Duration
		late, isPoking bool
	}{{"in time", time.Second, 0, false, false}, {"late", 4 * time.Second, 0, true, true}, {"still late", 5 * time.Second, 0, true, false}, {"renewed", 6 * time.Second, 6 * time.Second, false, true}} {
		pokes, n.own.Renewed = 0, now.Add(tt.renewed)
		n.report(now.Add(tt.at))
		if late := !n.tenure(now.Add(tt.at)).RenewalLateSince.IsZero(); late != tt.late || pokes > 0 != tt.isPoking {
			t.Errorf("%s: late %v, poked %d times; want %v, %v", tt.what, late, pokes, tt.late, tt.isPoking)
		}
	}
}

// While this node writes more than the watch, which lags, can show, it goes on to learn up to when it knows all.
func TestAsOfInABurst(t *testing.T) {
	n, _ := newNode(t, leasetest.NewServer(), "n1", func(*Options) {})
	began := time.Now()
	for i := 1; i <= 3*maxSent; i++ {
		x := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(i)}}
		n.unwritten.addSent(x, began.Add(time.Duration(i)*time.Millisecond))
		n.cache.shown = uint64(max(0, i-2*maxSent))
		n.updateUnwritten()
	}
	if got := n.unwritten.asOf.Sub(began); got < maxSent/2*time.Millisecond {
		t.Errorf("knows all that was written until %v after the first write, of %d", got, 3*maxSent)
	}
}
