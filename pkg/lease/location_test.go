package lease

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// startIn runs a node whose option says whether VIP leases are to be in the announcers' namespace.
func startIn(t *testing.T, s *leasetest.Server, name string, announcers bool) *node {
	t.Helper()
	n, run := newNode(t, s, name, func(o *Options) { o.Announcers = announcers })
	run(func(error) {})
	return n
}

// inHome returns the VIP lease of a Service in the announcers' namespace.
func inHome(name string) vip.Key { return vip.VIPLeaseIn("kube-system", lk(name)) }

// location returns what the record says; "" if there is none.
func locationIn(s *leasetest.Server) string {
	x := s.Lease(vip.Key{Namespace: "kube-system", Name: RecordName})
	if x == nil {
		return ""
	}
	return x.Annotations[LocationAnnotation]
}

// forbidden is what the API server answers to a write that RBAC does not allow.
func forbidden(name string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, name, errors.New("User cannot create resource"))
}

// TestNewInstallation: where all nodes have it so from the beginning no VIP lease is ever written outside the announcers' namespace, and
// no refusal is told of.
func TestNewInstallation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		var refused atomic.Int32
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Namespace == "kube-system" {
				return nil
			}
			refused.Add(1)
			return forbidden(l.Name)
		}
		a, b := startIn(t, s, "n1", true), startIn(t, s, "n2", true)
		neverTwo(t, t.Context(), "a", newGroup(a, b))
		again(t, func() { a.want("a"); b.want("a") })
		time.Sleep(time.Second)
		if a.serves("a") == b.serves("a") || s.Lease(inHome("a")) == nil || locationIn(s) != "announcers" {
			t.Fatalf("n1 serves %v, n2 serves %v, leases are in %q\n%s", a.serves("a"), b.serves("a"), locationIn(s), s)
		}
		c := startIn(t, s, "n3", true)
		again(t, func() { c.want("c") })
		time.Sleep(time.Second)
		if !c.serves("c") {
			t.Error("n3 does not serve")
		}
		if n := refused.Load(); n > 0 || len(a.world().LeaseRefusals)+len(b.world().LeaseRefusals) > 0 {
			t.Errorf("%d writes outside the announcers' namespace", n)
		}
		if x := s.Lease(inHome("a")); x.Annotations[ServiceLeaseAnnotation] != "default/kubevip-a" || len(x.OwnerReferences) > 0 {
			t.Errorf("the lease has annotations %v and owners %v", x.Annotations, x.OwnerReferences)
		}
	})
}

// alwaysServed fails the test if none of the nodes may announce a Service, at any time until the end of the test.
func alwaysServed(t *testing.T, c *group, names ...string) {
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for t.Context().Err() == nil {
			for _, name := range names {
				served := false
				for _, n := range c.all() {
					served = served || n.serves(name)
				}
				if !served && t.Context().Err() == nil { // else they are stopping
					t.Errorf("nobody may announce %s at %s\n%s", name, time.Now().Format("04:05.000"), c.all()[0].way.Trace(30))
					return
				}
			}
			time.Sleep(time.Millisecond)
		}
	}()
}

// again plans each 50 ms, as an agent does when it is poked, until the end of the test.
func again(t *testing.T, plan func()) {
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for t.Context().Err() == nil {
			plan()
			time.Sleep(50 * time.Millisecond)
		}
	}()
}

// TestLeasesMove: as soon as one node is started with the option, and back once none has it, all VIP leases move, with all that they say; each
// VIP stays where it is and is announced by one node at any time.
func TestLeasesMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		all := newGroup(startIn(t, s, "n1", false), startIn(t, s, "n2", false), startIn(t, s, "n3", false))
		plan := func() {
			for i, names := range [][]string{{"a", "b"}, {"c"}, {}} {
				all.all()[i].want(names...)
			}
		}
		time.Sleep(100 * time.Millisecond)
		plan()
		time.Sleep(100 * time.Millisecond)
		before := s.Lease(lk("a"))
		annotateLease(t, s, lk("a"), FormerAnnotation, "n9@1790000000")
		time.Sleep(100 * time.Millisecond)
		for _, name := range []string{"a", "b", "c"} {
			neverTwo(t, t.Context(), name, all)
		}
		alwaysServed(t, all, "a", "b", "c")
		again(t, plan)
		for _, announcers := range []bool{true, false} {
			all.all()[2].stop()
			<-all.all()[2].done
			all.replace(2, startIn(t, s, "n3", announcers))
			time.Sleep(time.Minute)
			from, to := lk, inHome
			if !announcers {
				from, to = inHome, lk
			}
			for _, name := range []string{"a", "b", "c"} {
				if s.Lease(from(name)) != nil || s.Lease(to(name)) == nil {
					t.Errorf("%s is not, or not only, where it should be\n%s", name, s)
				}
			}
			if got := s.Lease(to("a")); got.Annotations[FormerAnnotation] != "n9@1790000000" || transitions(got) != transitions(before) || !got.Spec.AcquireTime.Equal(before.Spec.AcquireTime) {
				t.Errorf("the lease of a was %v %v, is %v %v", before.Annotations, before.Spec, got.Annotations, got.Spec)
			}
		}
	})
}

// anEarlierVersion writes the node lease of a node whose Herald knows nothing of the location, and renews it.
func anEarlierVersion(t *testing.T, s *leasetest.Server, name string) (end func()) {
	t.Helper()
	put := func(from *coordinationv1.Lease, change func(*coordinationv1.Lease)) {
		l := &coordinationv1.Lease{}
		if from != nil {
			l = from.DeepCopy()
		}
		l.Namespace, l.Name = "kube-system", NodePrefix+name
		now := metav1.NewMicroTime(time.Now())
		l.Spec.HolderIdentity, l.Spec.LeaseTransitions, l.Spec.RenewTime = &name, new(int32(1)), &now
		annotate(l, NodeAnnotation, `{"interface":"eth0"}`)
		change(l)
		if _, err := s.Put(l); err != nil {
			t.Error(err)
		}
	}
	k := vip.Key{Namespace: "kube-system", Name: NodePrefix + name}
	over := make(chan struct{})
	put(nil, func(*coordinationv1.Lease) {})
	go func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(2 * time.Second):
				put(s.Lease(k), func(*coordinationv1.Lease) {})
			}
		}
	}()
	return func() {
		close(over)
		synctest.Wait()
		put(s.Lease(k), func(l *coordinationv1.Lease) { // it is stopped
			annotate(l, FencedAnnotation, "1")
			l.Spec.HolderIdentity = new("")
		})
	}
}

// TestEarlierVersion: VIP leases stay in the Services' namespaces as long as there is a node with an earlier version of Herald, and go back
// there, with the same owner, when one comes.
func TestEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		end := anEarlierVersion(t, s, "n2")
		a := startIn(t, s, "n1", true)
		all := newGroup(a)
		time.Sleep(time.Second)
		a.want("a")
		time.Sleep(time.Second)
		if s.Lease(lk("a")) == nil || locationIn(s) != "" {
			t.Errorf("the leases are in %q\n%s", locationIn(s), s)
		}
		alwaysServed(t, all, "a")
		again(t, func() { a.want("a") })
		end()
		time.Sleep(time.Second)
		if s.Lease(inHome("a")) == nil || locationIn(s) != "announcers" {
			t.Errorf("n2 is gone, and the leases are in %q\n%s", locationIn(s), s)
		}
		end = anEarlierVersion(t, s, "n3")
		time.Sleep(200 * time.Millisecond)
		if x := s.Lease(lk("a")); locationIn(s) != "services" || x == nil || holder(x) != "n1" {
			t.Errorf("n3 has come, and the leases are in %q\n%s", locationIn(s), s)
		}
		end()
	})
}

// TestRightsTakenTooEarly: if Herald may write in its own namespace only, and VIP leases can't move there yet, the log says what to do.
func TestRightsTakenTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Namespace == "kube-system" {
				return nil
			}
			return forbidden(l.Name)
		}
		end := anEarlierVersion(t, s, "n2")
		var log strings.Builder
		a, run := newNode(t, s, "n1", func(o *Options) { o.Announcers, o.Log = true, slog.New(slog.NewTextHandler(&log, nil)) })
		run(func(error) {})
		time.Sleep(time.Second)
		again(t, func() { a.want("a") })
		time.Sleep(time.Second)
		synctest.Wait()
		if want := "keep what herald manifest rbac --servicesLeaseNamespace=services permits, and update Herald on n2"; !strings.Contains(log.String(), want) {
			t.Errorf("no %q in\n%s", want, &log)
		}
		end()
		time.Sleep(time.Second)
		if !a.serves("a") || s.Lease(inHome("a")) == nil {
			t.Errorf("n2 is gone, and n1 serves %v\n%s", a.serves("a"), s)
		}
	})
}

// TestMoveRefused: if copies are refused nothing changes, but for a moment, and the log says why.
func TestMoveRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Namespace == "kube-system" && strings.HasPrefix(l.Name, "kubevip-") {
				return forbidden(l.Name)
			}
			return nil
		}
		a := startIn(t, s, "n1", false)
		time.Sleep(100 * time.Millisecond)
		a.want("a")
		time.Sleep(100 * time.Millisecond)
		alwaysServed(t, newGroup(a), "a")
		startIn(t, s, "n2", true)
		time.Sleep(200 * time.Millisecond)
		if got := locationIn(s); got != "services" {
			t.Errorf("the leases are in %q", got)
		}
		a.want("a", "b")
		time.Sleep(200 * time.Millisecond)
		if !a.serves("b") {
			t.Error("a new Service is not served")
		}
		if got := a.world().LeaseRefusals; len(got) > 0 {
			t.Errorf("refusals are told of: %v", got)
		}
	})
}

// TestMoveWithAWatchStuck: while the watch of a node is stuck, VIP leases do not move, and what the others do waits no longer than
// copyTimeout; a claim that is written meanwhile, as by a request that arrives late, is not acted on.
func TestMoveWithAWatchStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := startIn(t, s, "n1", false), startIn(t, s, "n2", false)
		all := newGroup(a, b)
		for _, name := range []string{"a", "late", "new"} {
			neverTwo(t, t.Context(), name, all)
		}
		time.Sleep(time.Second)
		a.want("a", "late")
		b.want("b")
		time.Sleep(time.Second)
		late := s.Lease(lk("late"))
		if err := s.Remove(lk("late"), ""); err != nil { // by a release of n1
			t.Fatal(err)
		}
		a.want("a")
		time.Sleep(20 * time.Second)
		b.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		c := startIn(t, s, "n3", true)
		time.Sleep(time.Second)
		if got := locationIn(s); got != "services to announcers" {
			t.Fatalf("the leases are in %q", got)
		}
		late = late.DeepCopy()
		late.ResourceVersion = ""
		if _, err := s.Put(late); err != nil {
			t.Fatal(err)
		}
		again(t, func() { c.want("new") })
		time.Sleep(time.Second)
		if a.serves("late") {
			t.Error("n1 acts on a claim that it has not copied")
		}
		if !a.serves("a") || !b.serves("b") || c.serves("new") {
			t.Errorf("served: a %v, b %v, new %v; want a and b", a.serves("a"), b.serves("b"), c.serves("new"))
		}
		time.Sleep(copyTimeout)
		if got := locationIn(s); got != "services" || !c.serves("new") {
			t.Errorf("the leases are in %q, n3 serves %v", got, c.serves("new"))
		}
		b.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(moveAgain + time.Second)
		if got := locationIn(s); got != "announcers" || s.Lease(inHome("b")) == nil {
			t.Errorf("the watch works again, and the leases are in %q\n%s", got, s)
		}
	})
}

// TestStartWithOldCache: a node that starts acts on no VIP lease before its cache is as new as its node lease: it
// could take the old location for that of now.
func TestStartWithOldCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := startIn(t, s, "n1", true)
		time.Sleep(time.Second)
		b, run := newNode(t, s, "n2", func(*Options) {})
		b.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		neverTwo(t, t.Context(), "a", newGroup(a, b))
		run(func(error) {})
		time.Sleep(time.Second)
		b.want("a")
		time.Sleep(time.Second)
		a.want("a")
		time.Sleep(time.Second)
		if !a.serves("a") || s.Lease(lk("a")) != nil {
			t.Errorf("n1 serves %v\n%s", a.serves("a"), s)
		}
		b.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(100 * time.Millisecond)
		b.want("b")
		time.Sleep(100 * time.Millisecond)
		if !b.serves("b") || s.Lease(inHome("b")) == nil {
			t.Errorf("n2 serves %v, though its option is not set it follows the record\n%s", b.serves("b"), s)
		}
	})
}

// TestRecordDeleted: a record that is deleted by hand is written again, and meanwhile counts as it was: also to a
// process that starts, which waits until it is there.
func TestRecordDeleted(t *testing.T) {
	testLostRecord(t, func(s *leasetest.Server) {
		if err := s.Remove(vip.Key{Namespace: "kube-system", Name: RecordName}, ""); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRecordUnreadable: so is a record that can't be read.
func TestRecordUnreadable(t *testing.T) {
	testLostRecord(t, func(s *leasetest.Server) { spoilRecord(t, s) })
}

// testLostRecord has the record lost while one node acts by it and another starts: that waits until the record is written again, and no
// VIP has two owners or none.
func testLostRecord(t *testing.T, lose func(*leasetest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := startIn(t, s, "n1", true)
		time.Sleep(time.Second)
		a.want("a")
		time.Sleep(time.Second)
		a.way.SetFaults(func(f *leasetest.Faults) { f.Lag = 3 * time.Second })
		b := startIn(t, s, "n2", true)
		neverTwo(t, t.Context(), "a", newGroup(a, b))
		alwaysServed(t, newGroup(a), "a")
		lose(s)
		time.Sleep(time.Second)
		again(t, func() { b.want("a", "b") })
		time.Sleep(time.Second)
		if got := s.Lease(lk("b")); got != nil {
			t.Errorf("n2 acts without a record:\n%s", s)
		}
		time.Sleep(10 * time.Second)
		if got := locationIn(s); got != "announcers" || !b.serves("b") || s.Lease(inHome("b")) == nil {
			t.Errorf("the leases are in %q, n2 serves %v\n%s", got, b.serves("b"), s)
		}
	})
}

// spoilRecord writes a record that says nothing that a node can read.
func spoilRecord(t *testing.T, s *leasetest.Server) {
	t.Helper()
	x := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: RecordName}}
	if got := s.Lease(vip.Key{Namespace: "kube-system", Name: RecordName}); got != nil {
		x = got.DeepCopy()
	}
	annotate(x, LocationAnnotation, "x")
	if _, err := s.Put(x); err != nil {
		t.Fatal(err)
	}
}

// TestOnlyRecordUnreadable: nodes that start when there is no other record than one that can't be read write it again, and then agree on
// where VIP leases are as in a new installation. A node that acted by an earlier one, and has lost its epoch since, goes by that no more.
func TestOnlyRecordUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		spoilRecord(t, s)
		var refuse atomic.Bool
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Name == RecordName && l.Annotations[LocationAnnotation] != "x" && refuse.Load() {
				return forbidden(l.Name)
			}
			return nil
		}
		a := startIn(t, s, "n1", false)
		time.Sleep(time.Second)
		a.want("a")
		time.Sleep(time.Second)
		if got := locationIn(s); got != "services" || !a.serves("a") {
			t.Errorf("the leases are in %q, n1 serves %v\n%s", got, a.serves("a"), s)
		}
		b := startIn(t, s, "n2", true)
		time.Sleep(time.Second)
		if got := locationIn(s); got != "announcers" || !a.serves("a") {
			t.Errorf("the leases are in %q, n1 serves %v\n%s", got, a.serves("a"), s)
		}
		a.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
		b.stop()
		<-b.done
		time.Sleep(20 * time.Second)
		refuse.Store(true)
		spoilRecord(t, s)
		c := startIn(t, s, "n3", false)
		neverTwo(t, t.Context(), "b", newGroup(a, c))
		again(t, func() { a.want("b"); c.want("b") })
		time.Sleep(20 * time.Second)
		a.way.SetFaults(func(f *leasetest.Faults) { f.Cut = false })
		time.Sleep(10 * time.Second)
		if !c.serves("b") {
			t.Errorf("n3 does not serve\n%s", s)
		}
		refuse.Store(false)
		time.Sleep(time.Minute)
		if got := locationIn(s); got != "services" || a.serves("b") == c.serves("b") {
			t.Errorf("the leases are in %q, n1 serves %v, n3 serves %v\n%s", got, a.serves("b"), c.serves("b"), s)
		}
	})
}

// TestCleanupRefused: where RBAC does not allow it to delete VIP leases that no longer count, Herald tries that less and less often, and says so once.
func TestCleanupRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		var refuse atomic.Bool
		var refused atomic.Int32
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Namespace == "kube-system" || !refuse.Load() {
				return nil
			}
			refused.Add(1)
			return forbidden(l.Name)
		}
		var log strings.Builder
		a, run := newNode(t, s, "n1", func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		run(func(error) {})
		time.Sleep(time.Second)
		a.want("a", "b", "c")
		time.Sleep(time.Second)
		refuse.Store(true)
		startIn(t, s, "n2", true)
		time.Sleep(time.Second)
		if got := refused.Load(); got != 3 || locationIn(s) != "announcers" {
			t.Fatalf("%d writes were refused, the leases are in %q\n%s", got, locationIn(s), s)
		}
		a.want("a", "b", "c")
		time.Sleep(75 * time.Minute)
		synctest.Wait()
		if got := refused.Load(); got != 12 {
			t.Errorf("%d writes on 3 leases were refused; want each to be tried 4 times, at once and after 10, 30 and 70 minutes", got)
		}
		if got := strings.Count(log.String(), "can't be deleted"); got != 1 {
			t.Errorf("the log says so %d times", got)
		}
		refuse.Store(false)
		time.Sleep(80 * time.Minute)
		if got := s.Lease(lk("a")); got != nil {
			t.Errorf("it is allowed now, and not done:\n%s", s)
		}
	})
}

// TestCleanupPause: what is refused on and on is tried eight times on the first day, then once a day.
func TestCleanupPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := newNode(t, leasetest.NewServer(), "n1", func(*Options) {})
		began, tries := time.Now(), map[time.Duration]int{}
		for day := time.Duration(0); day < 10; day = time.Since(began) / (24 * time.Hour) {
			tries[day]++
			for range maxCleanup {
				n.refuseCleanup(lk("a"), "forbidden")
			}
			time.Sleep(time.Until(n.location.nextCleanup))
		}
		for day := range time.Duration(10) {
			if want := map[bool]int{true: 8, false: 1}[day == 0]; tries[day] != want {
				t.Errorf("day %d: %d tries, want %d", day, tries[day], want)
			}
		}
	})
}

// TestMoveEndedByRestart: a change that ends because the only node that wants it is restarted begins again when it is back.
func TestMoveEndedByRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		startIn(t, s, "n1", false)
		b := startIn(t, s, "n2", false)
		time.Sleep(time.Second)
		b.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		c := startIn(t, s, "n3", true)
		time.Sleep(time.Second)
		if got := locationIn(s); got != "services to announcers" {
			t.Fatalf("the leases are in %q", got)
		}
		c.stop()
		<-c.done
		time.Sleep(time.Second)
		if got := locationIn(s); got != "services" {
			t.Fatalf("n3 has stopped, and the leases are in %q", got)
		}
		b.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		startIn(t, s, "n3", true)
		time.Sleep(2 * time.Second)
		if got := locationIn(s); got != "announcers" {
			t.Errorf("n3 is back, and the leases are in %q", got)
		}
	})
}

// TestForeignLeaseOfService: with VIP leases in the announcers' namespace, the lease of another program in the Service's namespace is respected
// as long as it is renewed.
func TestForeignLeaseOfService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := startIn(t, s, "n1", true)
		time.Sleep(time.Second)
		renew := func() {
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevip-a"}}
			if x := s.Lease(lk("a")); x != nil {
				l = x.DeepCopy()
			}
			now := metav1.NewMicroTime(time.Now())
			l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = new("n7"), new(int32(5)), &now
			if _, err := s.Put(l); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			renew()
			a.want("a")
			time.Sleep(2 * time.Second)
			if c := a.world().Claims[lk("a")]; a.serves("a") || !c.Foreign || !c.Valid {
				t.Errorf("n1 serves %v, the claim is %+v", a.serves("a"), c)
			}
		}
		time.Sleep(4 * time.Second)
		if !a.serves("a") || s.Lease(inHome("a")) == nil {
			t.Errorf("it has ended, and n1 serves %v\n%s", a.serves("a"), s)
		}
		renew()
		time.Sleep(time.Second)
		if a.serves("a") {
			t.Error("n1 serves what another program has taken")
		}
	})
}

// TestFixedLeases: VIP leases that options name, and those of Services in the announcers' namespace, are where they are.
func TestFixedLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		one, own := vip.Key{Namespace: "locks", Name: "plndr-svcs-lock"}, vip.Key{Namespace: "kube-system", Name: "kubevip-dns"}
		n, run := newNode(t, s, "n1", func(o *Options) { o.Announcers, o.Fixed = true, map[vip.Key]bool{one: true} })
		run(func(error) {})
		time.Sleep(time.Second)
		n.world()
		n.Put([]vip.LeaseIntent{{Lease: one, Action: vip.Acquire}, {Lease: own, Action: vip.Acquire}})
		time.Sleep(time.Second)
		if w := n.world(); !w.Claims[one].Valid || !w.Claims[own].Valid || s.Lease(one) == nil || s.Lease(own) == nil {
			t.Errorf("claims %v\n%s", w.Claims, s)
		}
	})
}

// TestByService: commands see VIP leases by the keys of those in the Services' namespaces, wherever they are.
func TestByService(t *testing.T) {
	named := func(k vip.Key, holder string, annotations ...string) *coordinationv1.Lease {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}}
		l.Spec.HolderIdentity = &holder
		for i := 0; i < len(annotations); i += 2 {
			annotate(l, annotations[i], annotations[i+1])
		}
		return l
	}
	evil := named(vip.Key{Namespace: "evil", Name: inHome("a").Name}, "n9", ServiceLeaseAnnotation, "default/kubevip-a")
	other := named(vip.Key{Namespace: "kube-system", Name: "kubevip-a.evil"}, "n9", ServiceLeaseAnnotation, "default/kubevip-a")
	for _, tt := range []struct{ record, want string }{
		{"", "a n1, b n1, kubevip-a.default n9, kubevip-a.evil n9, "},
		{"services to announcers", "a n1, b n1, herald-vip-leases , kubevip-a.default n9, kubevip-a.evil n9, "},
		{"announcers", "a n2, b n1, herald-vip-leases , kubevip-a.default n9, kubevip-a.evil n9, "},
	} {
		all := []*coordinationv1.Lease{named(lk("a"), "n1"), named(lk("b"), "n1"), named(inHome("a"), "n2", ServiceLeaseAnnotation, "default/kubevip-a"), evil, other}
		if tt.record != "" {
			all = append(all, named(vip.Key{Namespace: "kube-system", Name: RecordName}, "", LocationAnnotation, tt.record))
		}
		var got []string
		for _, l := range ByService(all, "kube-system") {
			name := l.Name
			if l.Namespace == "default" {
				name = strings.TrimPrefix(name, "kubevip-")
			}
			got = append(got, name+" "+holder(l)+", ")
		}
		slices.Sort(got)
		if text := strings.Join(got, ""); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.record, text, tt.want)
		}
	}
}

// TestVIPLeaseInfo: what a node says of where VIP leases are can be read by others; that of an earlier version is none.
func TestVIPLeaseInfo(t *testing.T) {
	for text, want := range map[string]bool{`{"interface":"eth0"}`: false, `{"interface":"eth0","vipLeases":{}}`: true} {
		var info vip.NodeInfo
		if err := json.Unmarshal([]byte(text), &info); err != nil || (info.VIPLeases != nil) != want {
			t.Errorf("%s: %v, %v", text, info.VIPLeases, err)
		}
	}
	for _, text := range []string{"services", "announcers", "services to announcers", "announcers to services"} {
		if p, ok := parsePhase(text); !ok || p.String() != text {
			t.Errorf("%s: %v %v", text, p, ok)
		}
	}
	for _, text := range []string{"", "services to ", "all", "services to announcers to services"} {
		if p, ok := parsePhase(text); ok {
			t.Errorf("%q: %v", text, p)
		}
	}
}
