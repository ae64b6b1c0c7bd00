package lease

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// handOver has the node want that all those VIPs go to another.
func (n *node) handOver(to string, names ...string) {
	n.world()
	var intents []vip.LeaseIntent
	for _, name := range names {
		intents = append(intents, vip.LeaseIntent{Lease: lk(name), Action: vip.HandOver, Successor: to, Cause: n.name + ": it is drained"})
	}
	n.Put(intents)
}

// owners are n1, with the VIPs a, b and c, and n2, which follows them.
func owners(t *testing.T, s *leasetest.Server) (n1, n2 *node) {
	t.Helper()
	n1, n2 = startTransferring(t, s, "n1", ""), startTransferring(t, s, "n2", "")
	n1.acquire(n2, "a", "b", "c")
	return n1, n2
}

// writtenTo returns how many VIP leases name the node as their holder, as they are written.
func writtenTo(s *leasetest.Server, node string, names ...string) (n int) {
	for _, name := range names {
		if holder(s.Lease(lk(name))) == node {
			n++
		}
	}
	return n
}

// Several VIPs are handed over by one write of the owner's node lease; it goes on answering for them until it hears the successor. The transfers are gone
// once all is written.
func TestHandOverIsOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := owners(t, s)
		n1.handOver("n2", "a", "b", "c")
		time.Sleep(50 * time.Millisecond)
		for _, name := range []string{"a", "b", "c"} {
			c := n2.world().Claims[lk(name)]
			if !n2.serves(name) || c.PreviousHolder != "n1" || c.Cause != "n1: it is drained" || c.Until.IsZero() {
				t.Errorf("%s at n2: %+v", name, c)
			}
			if h := n1.world().HandingOver[lk(name)]; n1.serves(name) || h.Successor != "n2" || time.Until(h.Until) < 2*time.Second {
				t.Errorf("%s at n1: %+v, handing over %+v", name, n1.world().Claims[lk(name)], h)
			}
		}
		if n := writtenTo(s, "n2", "a", "b", "c"); n > 0 {
			t.Errorf("%d VIP leases are written already", n)
		}
		n2.want("a", "b", "c")
		time.Sleep(5 * time.Second)
		if n := writtenTo(s, "n2", "a", "b", "c"); n != 3 || !n2.serves("a") {
			t.Errorf("%d VIP leases are written", n)
		}
		if text := s.Lease(nodeKey("n1")).Annotations[TransfersAnnotation]; text != "" {
			t.Errorf("n1's node lease still has %s", text)
		}
	})
}

// What does not fit into a transfer is a write on each VIP lease, as before.
func TestHandOverByWrites(t *testing.T) {
	tests := map[string]struct {
		names   []string
		earlier bool
		fails   bool // the write of the node lease is refused
	}{
		"a node has an earlier version":                   {names: []string{"a", "b", "c"}, earlier: true},
		"the API server refuses transfers on node leases": {names: []string{"a", "b", "c"}, fails: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := leasetest.NewServer()
				s.Refuse = func(l *coordinationv1.Lease) error {
					if tt.fails && l.Annotations[TransfersAnnotation] != "" {
						return forbidden(l.Name)
					}
					return nil
				}
				if tt.earlier {
					start(t, s, "n4")
				}
				n1, n2 := owners(t, s)
				n1.handOver("n2", tt.names...)
				time.Sleep(time.Second)
				if n := writtenTo(s, "n2", tt.names...); n != len(tt.names) || !n2.serves("a") {
					t.Errorf("%d VIP leases of %d are n2's", n, len(tt.names))
				}
				if !tt.fails && strings.Contains(fmt.Sprint(s.Lease(nodeKey("n1")).Annotations), TransfersAnnotation) {
					t.Error("n1's node lease has transfers")
				}
				if !n1.world().Tenure.Holds(time.Now()) {
					t.Error("n1 has lost its tenure")
				}
			})
		})
	}
}

// While it is not known whether VIPs were transferred, their owner writes none of their leases: that would end the transfer, and the successor
// may not see it. Here it was, but the answer is lost and the watch stuck.
func TestTransferWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := owners(t, s)
		time.Sleep(period / 4) // no renewal is under way, whose answer would be lost before the transfer is sent
		before := s.Lease(lk("a")).ResourceVersion
		n1.way.SetFaults(func(f *leasetest.Faults) { f.LoseAnswers, f.WatchCut = true, true })
		n1.handOver("n2", "a", "b", "c")
		time.Sleep(50 * time.Millisecond)
		if !n2.serves("a") {
			t.Fatalf("n2 does not serve\n%s", s.Trace(12))
		}
		n1.Put(nil) // as if the Services were gone
		time.Sleep(time.Second)
		if n1.serves("a") {
			t.Error("n1 serves, though it has read its node lease since")
		}
		n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		time.Sleep(time.Second)
		if got := s.Lease(lk("a")); got == nil || got.ResourceVersion != before || !n2.serves("a") || n1.serves("a") {
			t.Errorf("n1 has written %v", got)
		}
	})
}

// A transfer that did not arrive is tried again: its VIPs are the old owner's until then.
func TestTransferIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := owners(t, s)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "herald-node-n1" })
		n1.handOver("n2", "a", "b", "c")
		time.Sleep(time.Second)
		if !n1.serves("a") || n2.serves("a") {
			t.Fatalf("n1 serves %v, n2 %v, and nothing was written", n1.serves("a"), n2.serves("a"))
		}
		n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		time.Sleep(3 * time.Second)
		if n1.serves("a") || !n2.serves("a") || !n2.serves("c") {
			t.Errorf("n1 serves %v, n2 %v", n1.serves("a"), n2.serves("a"))
		}
	})
}

// What a node was given by a transfer, and has not written, it transfers on; but not to one that had it before.
func TestTransferredOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := owners(t, s)
		n3 := startTransferring(t, s, "n3", "")
		n3.follow("a", "b", "c")
		time.Sleep(time.Second)
		n1.handOver("n2", "a", "b", "c")
		time.Sleep(50 * time.Millisecond)
		n2.handOver("n3", "a", "b", "c")
		time.Sleep(50 * time.Millisecond)
		if n := writtenTo(s, "n1", "a", "b", "c"); n != 3 || !n3.serves("a") || n2.serves("a") || n1.serves("a") {
			t.Fatalf("%d VIP leases name n1, n3 has %+v", n, n3.world().Claims[lk("a")])
		}
		n1.follow("a", "b", "c")
		n2.follow("a", "b", "c")
		n3.handOver("n1", "a", "b", "c")
		time.Sleep(100 * time.Millisecond)
		if v := s.Lease(lk("a")); holder(v) != "n1" || !n1.serves("a") || n3.serves("a") || v.Annotations[FromAnnotation] != "n3" {
			t.Errorf("back at n1: %+v", n1.world().Claims[lk("a")])
		}
	})
}

// A VIP lease that was transferred, and is deleted by hand before its new owner has written it, is that node's to write again: the one that it named has no right to
// it any more, and waits for nobody.
func TestTransferredLeaseDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := owners(t, s)
		n3 := startTransferring(t, s, "n3", "")
		time.Sleep(time.Second)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "kubevip-" })
		n1.handOver("n2", "a", "b", "c")
		time.Sleep(50 * time.Millisecond)
		if !n2.serves("a") {
			t.Fatal("n2 does not serve")
		}
		if err := s.Remove(lk("a"), s.Lease(lk("a")).ResourceVersion); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if c := n3.world().Claims[lk("a")]; c.Holder != "n2" || !c.Valid {
			t.Errorf("n3 takes it for %+v", c)
		}
		n2.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		n1.follow("a", "b", "c")
		n2.want("a", "b", "c")
		time.Sleep(500 * time.Millisecond)
		if !n2.serves("a") {
			t.Errorf("n2 has %+v", n2.world().Claims[lk("a")])
		}
	})
}

// VIP leases whose first write had no answer are transferred like others, once the watch has shown that it was carried out: it can't arrive any more.
func TestTransferAfterWriteWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := startTransferring(t, s, "n1", ""), startTransferring(t, s, "n2", "")
		time.Sleep(1500 * time.Millisecond)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.LoseAnswers = true })
		n1.want("a", "b", "c")
		time.Sleep(100 * time.Millisecond)
		n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		n2.follow("a", "b", "c")
		time.Sleep(10 * time.Second)
		if !n1.serves("a") {
			t.Fatal("n1 does not serve")
		}
		n1.handOver("n2", "a", "b", "c")
		time.Sleep(50 * time.Millisecond)
		if n := writtenTo(s, "n2", "a", "b", "c"); n > 0 || !n2.serves("a") {
			t.Errorf("%d VIP leases are written for the hand-over", n)
		}
	})
}

// A process that does not know of all Services (yet) does not know of all VIP leases either: what was transferred before it began stays on its node
// lease, and on that of a node that it fences.
func TestTransfersBeforeTheFirstPlan(t *testing.T) {
	l := New(leasetest.NewClient(leasetest.NewServer(), func() {}), Options{Node: "n1", Namespace: "kube-system", Log: slog.New(slog.DiscardHandler)})
	known := false // as while the API server refuses to list Services
	l.o.VIPLeasesKnown = func() bool { return known }
	text := transfersText([]transferred{{7, "n2@1", 1, ""}})
	own := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: NodePrefix + "n1", ResourceVersion: "5", Annotations: map[string]string{TransfersAnnotation: text}}}
	l.cache.update([]*coordinationv1.Lease{own}, nil)
	for i := range 3 {
		if i == 1 {
			l.writes.setIntents(nil)
		}
		known = i == 2
		planned := i == 2
		if got := l.ownTransfers(own, nil); (got == text) == planned {
			t.Errorf("planned %v: its node lease has %q", planned, got)
		}
		if kept := l.keptTransfers("n1"); (len(kept) == 1) == planned {
			t.Errorf("planned %v: a fence keeps %v", planned, kept)
		}
	}
}

// The tombstone of a node that was fenced long ago goes once no owner of a VIP lease follows from its transfers, as far as all VIP leases are known.
func TestTombstoneWithTransfers(t *testing.T) {
	for _, tt := range []struct {
		name                       string
		transfers, planned, exists bool // exists: the VIP lease, in the version that was transferred
		known, told                bool // whether all VIP leases are known, and this one is
		want                       bool // that it goes
	}{
		{"no transfers", false, false, true, false, false, true},
		{"the VIP lease is not known, nor all", true, true, true, false, false, false},
		{"not known before the first plan", true, false, true, true, false, false},
		{"the VIP lease follows from it", true, true, true, true, true, false},
		{"the VIP lease was written or deleted since", true, true, false, true, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := New(leasetest.NewClient(leasetest.NewServer(), func() {}), Options{
					Node: "n1", Namespace: "kube-system", Log: slog.New(slog.DiscardHandler), Poke: func() {}, VIPLeasesKnown: func() bool { return tt.known },
				})
				l.own.RenewingSince, l.writes.planned = time.Now(), tt.planned
				x := vipLease("7", "n2@1")
				tombstone := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: NodePrefix + "n2", ResourceVersion: "8", Annotations: map[string]string{FencedAnnotation: "1"}}}
				tombstone.Spec.HolderIdentity, tombstone.Spec.LeaseTransitions = new("n2"), new(int32(1))
				if tt.transfers {
					annotate(tombstone, TransfersAnnotation, transfersText([]transferred{{x.digest, "n3@1", 1, ""}}))
				}
				shown := []*coordinationv1.Lease{tombstone}
				if tt.exists && tt.told {
					shown = append(shown, x.Lease)
				}
				l.cache.update(shown, nil)
				l.peer("n2", time.Now()).update(tombstone, time.Now())
				l.mu.Lock()
				l.fence(t.Context(), time.Now().Add(keepFenced+time.Second))
				got := l.writes.nodeLeases[l.nodeLeaseKey("n2")]
				l.mu.Unlock()
				if got != tt.want {
					t.Errorf("it is deleted: %v, want %v", got, tt.want)
				}
				synctest.Wait()
			})
		})
	}
}
