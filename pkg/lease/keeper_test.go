package lease

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestPlacedInTurn: what nobody has is placed by the first node by name that can; each further one waits 0.15 s longer.
func TestPlacedInTurn(t *testing.T) {
	for _, tt := range []struct {
		name     string
		fails    func(nodes []*node)
		from, to time.Duration
	}{
		{"all can", func([]*node) {}, 0, 50 * time.Millisecond},
		{"the first has no way to the API server", func(n []*node) { cutFromAPI(n[0]) }, keeperDelay, keeperDelay + 50*time.Millisecond},
		{"the first two have none", func(n []*node) { cutFromAPI(n[:2]...) }, 2 * keeperDelay, 2*keeperDelay + 50*time.Millisecond},
		{"the agent of the first hangs", func(n []*node) { n[0].setHangs(true) }, keeperDelay, keeperDelay + 50*time.Millisecond},
		{"the first is excluded", func(n []*node) { n[0].info.Store(&vip.NodeInfo{Excluded: "x"}) }, 0, 50 * time.Millisecond},
		{"the first announces no Services", func(n []*node) {
			n[0].info.Store(&vip.NodeInfo{Options: &vip.NodeOptions{}})
		}, 0, 50 * time.Millisecond},
	} {
		withServer(t, func(t *testing.T, s *leasetest.Server) {
			nodes := []*node{start(t, s, "n1"), start(t, s, "n2"), start(t, s, "n3")}
			if strings.Contains(tt.name, "excluded") || strings.Contains(tt.name, "Services") {
				tt.fails(nodes)
			}
			time.Sleep(10 * time.Second)
			tt.fails(nodes)
			for _, n := range nodes {
				if n != nodes[0] || !strings.Contains(tt.name, "Services") {
					n.planFor("n3", "a")
				}
			}
			check.Between(t, waitServes(t, nodes[2], "a", 5*time.Second), tt.from, tt.to, "%s: placed after", tt.name)
			time.Sleep(5 * time.Second)
			check.Equal(t, tableOf(t, s).Number, 1, "%s: writes", tt.name)
		})
	}
}

// TestStoppingPlacesNothing: what a stopping node can give to nobody it does not place on one of which only its node
// lease is known.
func TestStoppingPlacesNothing(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(5 * time.Second)
		n1.info.Store(&vip.NodeInfo{Interface: "eth0", Excluded: "its Herald is stopping"})
		n1.planFor("n2", "a")
		time.Sleep(5 * time.Second)
		check.Equal(t, ownerIn(t, s, "a"), "", "on whom it has placed it")
		n2.want("a")
		waitServes(t, n2, "a", time.Second)
	})
}

// TestStopIsToldAtOnce: after many news, too.
func TestStopIsToldAtOnce(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		var pokes atomic.Int64
		n1, run := newNode(t, s, "n1", func(o *Options) { o.Poke = func() { pokes.Add(1) } })
		run(func(error) {})
		time.Sleep(5 * time.Second)
		for i := range 3 * infoBurst {
			n1.info.Store(&vip.NodeInfo{Interface: fmt.Sprint("eth", i)})
			n1.Wake()
			time.Sleep(20 * time.Millisecond)
		}
		n1.info.Store(&vip.NodeInfo{Interface: "eth0", Excluded: "its Herald is stopping"})
		check.Equal(t, n1.world().StopTold, false, "it counts as told before it was written")
		pokes.Store(0)
		n1.Wake()
		time.Sleep(20 * time.Millisecond)
		check.Equal(t, pokes.Load() > 0, true, "the agent is told that it was told")
		if !n1.world().StopTold || infoOf(s.Lease(nodeKey("n1"))).Excluded == "" {
			t.Error("the others are not told that it stops")
		}
	})
}

// TestManyAtOnce: units that come one after the other are placed in few writes; what one node gives away is one.
func TestManyAtOnce(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(5 * time.Second)
		var all []string
		for i := range 200 {
			all = append(all, fmt.Sprintf("u%03d", i))
			n1.want(all...)
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		if n := tableOf(t, s); len(n.units("n1", n1.Tenure().Epoch)) != 200 || n.Number > 8 {
			t.Errorf("%d units, in %d writes", len(n.Units), n.Number)
		}
		before := tableOf(t, s).Number
		n2.want(all...)
		n1.give("n2", all...)
		waitServes(t, n2, "u199", time.Second)
		if n := tableOf(t, s); n.Number != before+1 || len(n.units("n2", n2.Tenure().Epoch)) != 200 {
			t.Errorf("%d writes for a hand-over", n.Number-before)
		}
		before = tableOf(t, s).Number
		time.Sleep(time.Minute)
		check.Equal(t, tableOf(t, s).Number, before, "the number of the table, though nothing happens")
	})
}

// TestFullTable: units of one namespace that fill half of an object are left out; what is there moves as ever.
func TestFullTable(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(5 * time.Second)
		all := []string{"a"}
		for i := range 2000 {
			all = append(all, fmt.Sprintf("b%04d", i)+strings.Repeat("-long", 40))
		}
		n1.want(all...)
		time.Sleep(3 * time.Second)
		x := tableOf(t, s)
		if text := len(x.text()); text > maxNew*6/10 || text < maxNew*4/10 || x.Units[lk("a")].Owner != "n1" {
			t.Errorf("%d bytes for %d units", text, len(x.Units))
		}
		n2.want("a")
		n1.give("n2", "a")
		waitServes(t, n2, "a", time.Second)
	})
}

// TestHandOver: a unit goes to another node, and this one answers until it hears that, for a while.
func TestHandOver(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		n1.give("n2", "a")
		time.Sleep(50 * time.Millisecond)
		c := n2.claim("a")
		if !c.Valid || c.Holder != "n2" || c.PreviousHolder != "n1" || c.Transitions != 1 || c.Cause != "the test says so" {
			t.Errorf("claim %+v, want it valid with n2, from n1", c)
		}
		if h := n1.world().HandingOver[lk("a")]; h.Successor != "n2" || h.InDoubt || time.Since(h.Since) > 100*time.Millisecond {
			t.Errorf("hands over %+v, want to n2", h)
		}
		time.Sleep(overlap + stepPeriod)
		check.Equal(t, len(n1.world().HandingOver), 0, "units for which the old owner waits for ever")
	})
}

// TestGivenToOneThatDoesNotKnow: a unit is given away, and the API server goes away before the heir has seen that. The
// old owner hears that in its heartbeats, and answers for as long as that takes.
func TestGivenToOneThatDoesNotKnow(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		n2.fault(func(f *leasetest.Faults) { f.Lag = time.Minute })
		n1.give("n2", "a")
		time.Sleep(50 * time.Millisecond)
		cutFromAPI(n1, n2, n3)
		for range 60 {
			time.Sleep(time.Second)
			if h := n1.world().HandingOver[lk("a")]; n2.serves("a") || time.Until(h.Until) <= 0 {
				t.Fatalf("n2 serves %v, n1 hands over %+v; want that it does until n2 knows\n%s", n2.serves("a"), h, a.api.Trace(10))
			}
		}
		n2.mend()
		reconnectAPI(n1, n3)
		waitServes(t, n2, "a", 5*time.Second)
		time.Sleep(overlap + stepPeriod)
		check.Equal(t, len(n1.world().HandingOver), 0, "units for which the old owner waits for ever")
	})
}

// TestGivenWhileMovesAreUnknown: a plan made before the node knew of all moves has what the table gave it meanwhile where it
// was; the node does not give that back.
func TestGivenWhileMovesAreUnknown(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, _ *node) {
		n1.want("a")
		waitServes(t, n1, "a", time.Second)
		n1.mu.Lock()
		defer n1.mu.Unlock()
		now, given := time.Now(), n1.table.known.Units[lk("a")].Number
		n1.table.sure, n1.table.carried = given-1, given
		n1.table.wanted[lk("a")] = vip.Owner{Unit: lk("a"), Node: "n2"}
		n1.updateActs(now)
		if all := n1.listChanges(now); len(all) > 0 {
			t.Errorf("it writes %+v", all)
		}
	})
}

// TestGivenAway: what a node gives away, and when it does not.
func TestGivenAway(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(n1, n2 *node)
		want string // the owner in the table
	}{
		{"to a node that has no node lease", func(n1, _ *node) { n1.give("n9", "a") }, "n1"},
		{"to a node that is dead", func(n1, n2 *node) { n2.kill(); time.Sleep(30 * time.Second); n1.give("n2", "a") }, "n1"},
		{"to nobody", func(n1, n2 *node) { n2.want(); n1.give("", "a") }, ""},
		{"no Service has it any more", func(n1, n2 *node) { n2.want(); n1.want() }, ""},
		{"no Service has it for a moment", func(n1, n2 *node) {
			n2.want()
			n1.want()
			time.Sleep(unknownTime - 500*time.Millisecond)
			n1.want("a")
		}, "n1"},
		{"its agent hangs since before it was given", func(n1, n2 *node) {
			n2.setHangs(true)
			n1.give("n2", "a")
			time.Sleep(time.Second)
			n2.Put([]vip.Owner{{Unit: lk("a"), Node: "n1"}}) // of a plan from before
		}, "n2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
				tt.do(n1, n2)
				time.Sleep(unknownTime + time.Second)
				check.Equal(t, ownerIn(t, s, "a"), tt.want, "the owner\n%s", s.Trace(5))
			})
		})
	}
}

// TestForgotten: what nobody has, and no plan knows, goes from the table after a minute.
func TestForgotten(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		n1.want("a", "b")
		time.Sleep(time.Second)
		n2.want("b")
		n1.kill()
		time.Sleep(leaseDuration + forgetTime/2)
		if table := tableOf(t, s); len(table.Units) != 2 || table.Units[lk("b")].Owner != "n2" {
			t.Errorf("half a minute after it was fenced: %v", table.Units)
		}
		time.Sleep(forgetTime)
		check.Equal(t, len(tableOf(t, s).Units), 1, "units a minute after")
	})
}

// TestDoubt: a node gives a unit away, and has no answer. It acts on it no more, goes on to answer, and writes again until it
// knows that nothing of that can be carried out any more.
func TestDoubt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fault  func(*leasetest.Faults)
		then   func(t *testing.T, a *network, n1 *node)
		writes int64  // of the table, at least
		owner  string // in the end
	}{
		{"it is carried out, and the watch shows that", func(f *leasetest.Faults) { f.LoseAnswers = true }, nil, 1, "n2"},
		{"it is carried out, and nothing but heartbeats shows that", func(f *leasetest.Faults) { f.NoAnswers, f.WatchCut = true, true },
			func(_ *testing.T, _ *network, n1 *node) { cutFromAPI(n1) }, 1, "n2"},
		{"it is carried out late", func(f *leasetest.Faults) { f.CommitDelay = 6 * time.Second }, nil, 1, "n2"},
		{"it does not arrive", func(f *leasetest.Faults) { f.Hang = TableName }, func(_ *testing.T, _ *network, n1 *node) {
			time.Sleep(time.Second)
			n1.mend()
		}, 1, "n2"},
		{"it does not arrive, and another writes", func(f *leasetest.Faults) { f.Hang = TableName },
			func(t *testing.T, a *network, n1 *node) {
				time.Sleep(200 * time.Millisecond)
				n1.pass.Lock()
				delete(n1.gives, "a") // and its plan is another by then
				n1.pass.Unlock()
				putLease(t, a.api, tableKey, func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = new(*l.Spec.LeaseTransitions + 1) })
				time.Sleep(100 * time.Millisecond)
				n1.mend()
			}, 1, "n1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
				neverTwo(t, "a", n1, n2, n3)
				before := tableOf(t, a.api).Number
				n1.fault(tt.fault)
				n1.give("n2", "a")
				time.Sleep(15 * time.Millisecond)
				w, shown := n1.world(), strings.Contains(tt.name, "shows that")
				if h := w.HandingOver[lk("a")]; n1.serves("a") || h.Successor != "n2" || h.InDoubt == shown || w.Claims[lk("a")].Holder != "n2" {
					t.Errorf("in doubt: n1 has %+v, hands over %+v", w.Claims[lk("a")], h)
				}
				if tt.then != nil {
					tt.then(t, a, n1)
				}
				if tt.owner == "n1" {
					n1.plan()
				}
				time.Sleep(20 * time.Second)
				n1.mend()
				time.Sleep(20 * time.Second)
				if table := tableOf(t, a.api); table.Units[lk("a")].Owner != tt.owner || table.Number-before < tt.writes || table.Number-before > tt.writes+6 {
					t.Errorf("it is %s's after %d writes, want %s's after %d or a few more\n%s", table.Units[lk("a")].Owner, table.Number-before, tt.owner, tt.writes, a.api.Trace(10))
				}
				if !map[string]*node{"n1": n1, "n2": n2}[tt.owner].serves("a") {
					t.Errorf("%s does not serve", tt.owner)
				}
				n1.mu.Lock()
				defer n1.mu.Unlock()
				if n1.table.doubt != nil || len(n1.table.handingOver) > 0 {
					t.Errorf("n1 is in doubt for ever: %+v", n1.table.doubt)
				}
			})
		})
	}
}

// TestWrittenOverAnother: a node whose watch is stuck gives away: the write is refused, it reads, and writes over what
// the other has written.
func TestWrittenOverAnother(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		n1.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		n2.want("a", "b")
		waitServes(t, n2, "b", 5*time.Second)
		n1.give("n2", "a")
		waitServes(t, n2, "a", 200*time.Millisecond)
		if !n2.serves("b") || s.Conflicts() != 1 {
			t.Errorf("n2 serves b: %v; %d conflicts", n2.serves("b"), s.Conflicts())
		}
	})
}

// TestBehind: a node that hears of a newer table than its watch shows reads it after 0.1 s, and places nothing until then.
func TestBehind(t *testing.T) {
	for _, answers := range []bool{true, false} {
		withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
			n1.fault(func(f *leasetest.Faults) { f.WatchCut = true })
			n2.want("a", "b")
			took := check.True(t, 5*time.Second, "n1 knows who has b", func() bool { return n1.claim("b").Holder == "n2" })
			check.Between(t, took, keeperDelay+behindTime, keeperDelay+behindTime+100*time.Millisecond, "n1 knows after")
			if !answers { // nor by its own reads: then it writes nothing
				n1.fault(func(f *leasetest.Faults) { f.Delay = time.Minute })
			}
			before := tableOf(t, a.api).Number
			n2.want("a", "b", "c")
			waitServes(t, n2, "c", 5*time.Second)
			n1.want("a", "d")
			n2.planFor("n1", "d")
			n3.planFor("n1", "d")
			time.Sleep(time.Second)
			if got := ownerIn(t, a.api, "d"); got != "n1" || tableOf(t, a.api).Number != before+2 {
				t.Errorf("it is %q's, want n1's, after %d writes", got, tableOf(t, a.api).Number-before)
			}
		})
	}
}

// TestFollow: an agent that carries out no table is fenced once it was given something, and named to others; one that was
// given nothing, or follows late, is left alone.
func TestFollow(t *testing.T) {
	for _, tt := range []struct {
		name       string
		heartbeats bool
		given      bool
		hangs      time.Duration
		stalled    time.Duration // about when it is named so; 0: never
		fenced     bool
	}{
		{"given a unit", true, true, time.Hour, followTime, true},
		{"given a unit, and hangs for a second", true, true, time.Second, 0, false},
		{"given nothing", true, false, time.Hour, followTime, false},
		{"given a unit, without heartbeats", false, true, time.Hour, followTime + 2*period, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
				var n1, n2 *node
				if tt.heartbeats {
					n1, n2, _ = three(t, a, s)
				} else {
					n1, n2 = pair(t, s)
				}
				epoch := n2.Tenure().Epoch
				n2.setHangs(true)
				if tt.given {
					n1.give("n2", "a")
				} else {
					n1.want("a", "b")
				}
				began := time.Now()
				var stalled time.Duration
				forgotten := false
				for time.Since(began) < 20*time.Second {
					time.Sleep(50 * time.Millisecond)
					if time.Since(began) >= tt.hangs {
						n2.setHangs(false)
					}
					if m := n1.member("n2"); stalled == 0 && (m.Stalled || m.Epoch > epoch) {
						stalled = time.Since(began)
					}
					forgotten = forgotten || stalled != 0 && tt.heartbeats && !n1.member("n2").Stalled
				}
				check.Equal(t, forgotten, false, "once fenced it may be given all that again")
				check.Between(t, stalled, tt.stalled, tt.stalled+period/2+300*time.Millisecond, "stalled after")
				check.Equal(t, n2.Tenure().Epoch > epoch, tt.fenced, "fenced\n%s", s.Trace(8))
			})
		})
	}
}

// TestEndsBeforeItFollows: a process that has ended before it took up what it was given is not waited for as one that may
// be started again: no kernel answers for that.
func TestEndsBeforeItFollows(t *testing.T) {
	for _, given := range []bool{true, false} {
		t.Run(fmt.Sprintf("given %t", given), func(t *testing.T) {
			withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
				n2.setHangs(true)
				if given {
					n1.give("n2", "a")
				} else {
					n1.want("a", "b")
				}
				time.Sleep(20 * time.Millisecond)
				began := time.Now()
				go n2.kill() // which waits for its requests
				time.Sleep(500 * time.Millisecond)
				for _, from := range []string{"n1", "n3"} {
					a.change(from, "n2", func(s *vip.PeerStatus) { s.ProcessEnded, s.HeardAt = true, began })
					a.setLiveness(from, "n2", vip.Dead)
				}
				for a.api.Lease(nodeKey("n2")).Annotations[FencedAnnotation] == "" {
					time.Sleep(10 * time.Millisecond)
				}
				check.Equal(t, time.Since(began) < time.Second, given, "fenced within a second\n%s", a.api.Trace(8))
			})
		})
	}
}

// TestFollowFromTheBeginning: the agent of a node that has just begun, or lists Services for long, has as long for what it is given as any other.
func TestFollowFromTheBeginning(t *testing.T) {
	for _, lists := range []time.Duration{50 * time.Millisecond, 3 * time.Second} {
		withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
			n1, _ := two(t, a, s)
			n1.want("a", "b")
			time.Sleep(10 * time.Second)
			n3 := a.join(t, s, "n3")
			n3.setHangs(true)
			for n3.Tenure().Epoch == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			epoch := n3.Tenure().Epoch
			time.Sleep(lists)
			check.Equal(t, n1.member("n3").Stalled, true, "one that has carried out nothing yet comes after others")
			n1.give("n3", "a")
			time.Sleep(followTime - 100*time.Millisecond)
			n3.setHangs(false)
			time.Sleep(2 * time.Second)
			if n3.Tenure().Epoch != epoch || !n3.serves("a") {
				t.Errorf("lists for %v: serves %v, fenced %v\n%s", lists, n3.serves("a"), n3.Tenure().Epoch != epoch, s.Trace(8))
			}
		})
	}
}

// TestAllBegin: where all nodes begin again, none comes before another that has not carried out anything yet.
func TestAllBegin(t *testing.T) {
	withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
		n1, n2 := two(t, a, s)
		n1.want("a", "b")
		time.Sleep(10 * time.Second)
		n1.kill()
		n2.kill()
		n1, n2 = a.join(t, s, "n1"), a.join(t, s, "n2")
		n2.setHangs(true)
		time.Sleep(beginTime + 2*keeperDelay)
		if m := n1.member("n2"); m.Stalled || !m.Alive {
			t.Errorf("%+v", m)
		}
	})
}

// TestFollowsUnheard: a node whose heartbeats nobody has ever received says what it has carried out with its renewals.
func TestFollowsUnheard(t *testing.T) {
	for phase := time.Duration(0); phase < period; phase += period / 8 {
		withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
			for _, pair := range [][2]string{{"n1", "n3"}, {"n2", "n3"}, {"n3", "n1"}, {"n3", "n2"}} {
				a.setLiveness(pair[0], pair[1], vip.Unknown)
			}
			time.Sleep(2*period + phase)
			epoch := n3.Tenure().Epoch
			n1.give("n3", "a")
			time.Sleep(3 * period)
			if n3.Tenure().Epoch != epoch || !n3.serves("a") {
				t.Errorf("phase %v: serves %v, fenced %v\n%s", phase, n3.serves("a"), n3.Tenure().Epoch != epoch, a.api.Trace(8))
			}
		})
	}
}

// TestRestartIsSlow: a process that begins again, and lists Services for seconds, keeps what its kernel answers for, and
// no longer.
func TestRestartIsSlow(t *testing.T) {
	for _, tt := range []struct {
		away, lists time.Duration
		all, keeps  bool // all begin again
	}{{300 * time.Millisecond, 3 * time.Second, false, true}, {0, 3 * time.Second, true, true}, {2 * time.Second, 2 * time.Second, false, false}} {
		withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
			n1, n2 := two(t, a, s)
			n3 := a.join(t, s, "n3")
			time.Sleep(10 * time.Second)
			n1.give("n3", "a")
			waitServes(t, n3, "a", time.Second)
			time.Sleep(time.Second)
			epoch := n3.Tenure().Epoch
			var killed sync.WaitGroup // which takes seconds here
			killed.Go(n3.kill)
			if tt.all {
				killed.Go(n1.kill)
				killed.Go(n2.kill)
			}
			killed.Wait()
			for _, from := range []string{"n1", "n2"} {
				a.change(from, "n3", func(s *vip.PeerStatus) { s.HeardAt = time.Now() })
			}
			time.Sleep(tt.away)
			n3 = a.join(t, s, "n3")
			n3.setHangs(true)
			n3.want("a")
			if tt.all {
				time.Sleep(time.Second) // they see this process's node lease first
				a.join(t, s, "n1")
				a.join(t, s, "n2")
			}
			time.Sleep(tt.lists)
			n3.setHangs(false)
			time.Sleep(5 * time.Second)
			if kept := n3.Tenure().Epoch == epoch && n3.serves("a"); kept != tt.keeps {
				t.Errorf("%+v: serves %v, fenced %v\n%s", tt, n3.serves("a"), n3.Tenure().Epoch != epoch, s.Trace(8))
			}
		})
	}
}

func deleteTable(t *testing.T, s *leasetest.Server) { check.OK(t, s.Remove(tableKey, "")) }

// garbleTable makes the table one that can't be read.
func garbleTable(t *testing.T, s *leasetest.Server) {
	putLease(t, s, tableKey, func(l *coordinationv1.Lease) { annotate(l, OwnersAnnotation, "{}") })
}

// TestSpoilt: whatever becomes of the table, it is soon as it was, and nobody loses anything. A process that has never seen
// it, though it is the first by name, does not put another one in its place.
func TestSpoilt(t *testing.T) {
	edit := func(change func(*coordinationv1.Lease)) func(*testing.T, *leasetest.Server) {
		return func(t *testing.T, s *leasetest.Server) { putLease(t, s, tableKey, change) }
	}
	for name, spoil := range map[string]func(*testing.T, *leasetest.Server){
		"deleted": deleteTable,
		"garbage": garbleTable,
		"emptied": edit(func(l *coordinationv1.Lease) { annotate(l, OwnersAnnotation, "") }),
		"blanked": edit(func(l *coordinationv1.Lease) { l.Annotations, l.Spec = nil, coordinationv1.LeaseSpec{} }),
		"restored": edit(func(l *coordinationv1.Lease) {
			l.Spec.LeaseTransitions, l.Annotations[OwnersAnnotation] = new(int32(1)), "n2@1 number=1\n  default/kubevip-a\n"
		}),
		"edited": edit(func(l *coordinationv1.Lease) {
			annotate(l, OwnersAnnotation, strings.ReplaceAll(l.Annotations[OwnersAnnotation], "n1@", "n2@"))
		}),
		"beyond the last number": edit(func(l *coordinationv1.Lease) { l.Spec.LeaseTransitions = new(int32(math.MaxInt32)) }),
		"too large":              edit(func(l *coordinationv1.Lease) { annotate(l, OwnersAnnotation, strings.Repeat("n1@1\n", 40000)+"x\n") }),
	} {
		for _, begins := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", another begins: ", begins), func(t *testing.T) {
				withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
					n1.want("a", "b")
					n2.want("a", "b")
					time.Sleep(5 * time.Second)
					before := tableOf(t, s)
					if begins {
						cutFromAPI(n1, n2) // they are late
					}
					spoil(t, s)
					if begins {
						n0 := start(t, s, "n0")
						n0.want("a", "b")
						time.Sleep(3 * time.Second)
						reconnectAPI(n1, n2)
					}
					for range 300 {
						time.Sleep(10 * time.Millisecond)
						if !n1.serves("a") || !n1.serves("b") || n2.serves("a") {
							t.Fatalf("n1 serves a %v, b %v\n%s", n1.serves("a"), n1.serves("b"), s.Trace(5))
						}
					}
					if got := tableOf(t, s); got.digest != before.digest || got.Number < before.Number {
						t.Errorf("the table has number %d after %d\n%s", got.Number, before.Number, s.Trace(5))
					}
					time.Sleep(deadline / 2) // until renewals that were under way have ended
					n1.give("n2", "a")
					waitServes(t, n2, "a", time.Second)
				})
			})
		}
	}
}

// TestSpoiltBeforeTheAnswer: a table that is spoilt after a write of it has taken effect, and before the answer to that
// write is there, is written again, too.
func TestSpoiltBeforeTheAnswer(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *leasetest.Server){"deleted": deleteTable, "garbage": garbleTable} {
		t.Run(name, func(t *testing.T) {
			withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
				n1.want("a")
				time.Sleep(5 * time.Second)
				before := tableOf(t, s)
				n1.fault(func(f *leasetest.Faults) { f.AnswerDelay = 300 * time.Millisecond })
				check.OK(t, s.Remove(tableKey, ""))
				for s.Lease(tableKey) == nil {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(50 * time.Millisecond) // the watch has shown it, and nothing has answered
				spoil(t, s)
				time.Sleep(3 * time.Second)
				if x := s.Lease(tableKey); x == nil || x.Annotations[OwnersAnnotation] == "{}" {
					t.Fatalf("it is not written again\n%s", s.Trace(8))
				}
				if got := tableOf(t, s); got.digest != before.digest || got.Number <= before.Number {
					t.Errorf("the table has number %d after %d\n%s", got.Number, before.Number, s.Trace(8))
				}
			})
		})
	}
}

// TestSpoiltAndUnknown: a table that can't be read is replaced by a process that has never seen it, once nobody who has can
// act on it any more. So is one that was deleted.
func TestSpoiltAndUnknown(t *testing.T) {
	for name, spoil := range map[string]func(*testing.T, *leasetest.Server){"garbage": garbleTable, "deleted": deleteTable} {
		t.Run(name, func(t *testing.T) {
			withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
				cutFromAPI(n1, n2)
				spoil(t, s)
				n0 := start(t, s, "n0")
				n0.want("a")
				neverTwo(t, "a", n0, n1, n2)
				check.Between(t, waitServes(t, n0, "a", time.Minute), leaseDuration-period, time.Minute, "replaced, as nodes that have seen it may act, after")
			})
			withServer(t, func(t *testing.T, s *leasetest.Server) {
				garbleTable(t, s)
				spoil(t, s)
				n1 := start(t, s, "n1")
				n1.want("a")
				check.Between(t, waitServes(t, n1, "a", time.Minute), 0, time.Second, "where there is no other node, replaced after")
			})
		})
	}
}

// TestUnprovenClaim: a claim in an epoch that the node has not reached, or of a node that has no node lease, counts for the
// lease duration; then it is fenced, and another has the unit.
func TestUnprovenClaim(t *testing.T) {
	for owner, after := range map[string]time.Duration{"n2": 0, "ghost": leaseDuration} { // n2 says at once that it is not so
		withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
			n1.planFor("n1", "a", "b")
			n2.planFor("n1", "a", "b")
			time.Sleep(time.Second)
			putLease(t, s, tableKey, func(l *coordinationv1.Lease) {
				annotate(l, OwnersAnnotation, l.Annotations[OwnersAnnotation]+owner+"@2000000000 number=5\n  default/kubevip-c\n")
				l.Spec.LeaseTransitions = new(*l.Spec.LeaseTransitions + 1)
			})
			n1.want("a", "b", "c")
			n2.planFor("n1", "a", "b", "c")
			check.Between(t, waitServes(t, n1, "c", time.Minute), after, after+time.Second, "%s: taken over after", owner)
			if !n1.serves("a") || n2.Tenure().Epoch <= 0 || !n2.Tenure().Holds(time.Now()) {
				t.Errorf("%s: n1 serves a: %v; n2 %+v", owner, n1.serves("a"), n2.Tenure())
			}
			time.Sleep(time.Minute)
			if !n1.serves("c") || !n2.Tenure().Holds(time.Now()) {
				t.Errorf("%s: a minute later n1 serves c: %v; n2 %+v", owner, n1.serves("c"), n2.Tenure())
			}
		})
	}
}

// TestOtherAnnouncer: a program of another kind that renews the Lease of a Service has it; once it has not for as long as it
// says there, Herald takes over.
func TestOtherAnnouncer(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		renew := func() {
			putLease(t, s, lk("a"), func(l *coordinationv1.Lease) {
				l.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("kube-vip-1"), LeaseDurationSeconds: new(int32(5)), RenewTime: microTime(time.Now())}
			})
		}
		renew()
		n1 := start(t, s, "n1")
		n1.want("a")
		for range 10 { // renewed: respected
			time.Sleep(4 * time.Second)
			if c := n1.claim("a"); !c.Valid || !c.Foreign || n1.serves("a") || c.Holder != "kube-vip-1" {
				t.Fatalf("another program's claim was not respected: %+v", c)
			}
			renew()
		}
		check.Between(t, waitServes(t, n1, "a", time.Minute), 5*time.Second, 6*time.Second, "taken over, after the other program's own 5 s, after")
		renew() // beside Herald: it is respected at once, and in the table, too
		time.Sleep(50 * time.Millisecond)
		check.Equal(t, serving("a", n1), "", "who serves what another program took")
		time.Sleep(time.Second)
		check.Equal(t, ownerIn(t, s, "a"), "", "the owner in the table")
		check.OK(t, s.Remove(lk("a"), ""))
		waitServes(t, n1, "a", time.Second)
	})
}

// TestNoOtherAnnouncer: Leases that name this node, or nobody, or that Herald has written, are nobody's.
func TestNoOtherAnnouncer(t *testing.T) {
	for name, change := range map[string]func(*coordinationv1.Lease){
		"an earlier program on this node": func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("n1") },
		"nobody":                          func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") },
		"another Herald":                  func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("n2"); annotate(l, ClaimAnnotation, "n2@1") },
	} {
		withServer(t, func(t *testing.T, s *leasetest.Server) {
			putLease(t, s, lk("a"), func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(3600)); change(l) })
			n1 := start(t, s, "n1")
			n1.want("a")
			time.Sleep(time.Second)
			check.Equal(t, serving("a", n1), "n1", "%s: who serves; it is %+v", name, n1.claim("a"))
		})
	}
}

// TestTableRefused: where the API server refuses to have the table written, it is tried again with pauses, and what nodes
// have they keep.
func TestTableRefused(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		var refuses atomic.Bool
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Name == TableName && refuses.Load() {
				return apierrors.NewForbidden(leasesResource, l.Name, errors.New("a policy"))
			}
			return nil
		}
		n1, n2 := pair(t, s)
		refuses.Store(true)
		before := s.Writes()
		n1.give("n2", "a")
		n2.want("a", "b")
		time.Sleep(time.Minute)
		check.Between(t, s.Writes()-before, 0, 60+2*60, "writes in a minute")
		if n1.serves("a") || n2.serves("a") || n1.world().HandingOver[lk("a")].Successor != "n2" {
			t.Errorf("n1 serves a %v, n2 %v; n1 hands over %+v, as long as it is in doubt", n1.serves("a"), n2.serves("a"), n1.world().HandingOver)
		}
		refuses.Store(false)
		waitServes(t, n2, "a", 5*time.Second)
		waitServes(t, n2, "b", 5*time.Second)
	})
}

// TestTableRefusedIsLogged: once, and when it is over; and no try that changes nothing has the agent pass.
func TestTableRefusedIsLogged(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		var refuses atomic.Bool
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Name == TableName && refuses.Load() {
				return apierrors.NewForbidden(leasesResource, l.Name, errors.New("a policy"))
			}
			return nil
		}
		var log check.Buffer
		var pokes atomic.Int64
		n1, run := newNode(t, s, "n1", func(o *Options) {
			logTo(&log)(o)
			poke := o.Poke
			o.Poke = func() { pokes.Add(1); poke() }
		})
		run(func(err error) { check.OK(t, err) })
		n1.want("a")
		waitServes(t, n1, "a", 5*time.Second)
		time.Sleep(5 * time.Second)
		for _, ends := range []func(){
			func() { refuses.Store(false); waitServes(t, n1, "b", 5*time.Second) },
			func() { n1.want("a") }, // and there is nothing to write
			func() { refuses.Store(false); waitServes(t, n1, "b", 5*time.Second) },
		} {
			n1.want("a")
			time.Sleep(2 * unknownTime)
			refuses.Store(true)
			n1.want("a", "b")
			time.Sleep(time.Second)
			pokes.Store(0)
			time.Sleep(time.Minute)
			check.Between(t, pokes.Load(), 0, 2, "passes in a minute")
			ends()
			time.Sleep(time.Second)
		}
		check.Equal(t, strings.Count(log.String(), "can't be written"), 3, "lines that it can't be written, in three minutes, one for each")
		check.Equal(t, strings.Count(log.String(), "is written again"), 2, "lines that it was")
	})
}

// TestStop: a node that stops gives back at once what it has, and leaves nothing but the table.
func TestStop(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		n1.stop()
		check.Between(t, waitServes(t, n2, "a", time.Minute), 0, 300*time.Millisecond, "taken over, as the node had said that it stops, after")
		<-n1.done
		n2.end()
		check.Equal(t, s.String(), TableName+" n2\n", "left after the end")
		check.Equal(t, ownerIn(t, s, "a"), "", "who has it after the end")
	})
}
