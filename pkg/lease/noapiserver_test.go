package lease

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// agents does for a few nodes what their agents do: n2 wants the Service a, and the
// others leave it to n2.
func agents(t *testing.T, d time.Duration, n2 *node, others ...*node) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(50 * time.Millisecond) {
		n2.want("a")
		for _, n := range others {
			n.world()
			n.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.Follow, ExpectedHolder: "n2"}})
		}
	}
}

// ownerDies is n2 and n3 when the API server has been away for a while, and n1, which
// has the Service a, has just died.
func ownerDies(t *testing.T, a *network, s *leasetest.Server) (n2, n3 *node) {
	n1, n2, n3 := three(t, a, s)
	cutFromAPI(n1, n2, n3)
	time.Sleep(time.Minute)
	n1.kill()
	a.setBetween(vip.Dead, "n1")
	return n2, n3
}

// moves is ownerDies, and n2 has taken over.
func moves(t *testing.T, a *network, s *leasetest.Server) (n2, n3 *node) {
	t.Helper()
	n2, n3 = ownerDies(t, a, s)
	agents(t, time.Second, n2, n3)
	if !n2.serves("a") || n3.serves("a") {
		t.Fatalf("n2 serves %v, n3 serves %v; want n2", n2.serves("a"), n3.serves("a"))
	}
	return n2, n3
}

// The API server goes away before the only other node has written what was handed over to it. The old owner, which stops, is needed until the other one has carried out what
// they agree on; it is not done when it alone has.
func TestTransfersPendingUntilMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		a.transfers = true
		n1, n2 := a.join(t, s, "n1"), a.join(t, s, "n2")
		time.Sleep(2 * time.Second)
		n1.want("a", "b")
		n2.follow("a", "b")
		time.Sleep(5 * time.Second)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "kubevip-" })
		n1.handOver("n2", "a", "b")
		time.Sleep(100 * time.Millisecond)
		n2.want("a", "b")
		if !n2.serves("a") {
			t.Fatalf("nothing was transferred\n%s", s)
		}
		cutFromAPI(n1, n2)
		a.hashes("n2", false)
		until := func(d time.Duration) (pending bool) {
			for range d / (50 * time.Millisecond) {
				time.Sleep(50 * time.Millisecond)
				n2.want("a", "b")
				w := vip.World{Now: time.Now(), Self: "n1", Stopping: true}
				n1.Observe(&w)
				pending = w.TransfersPending
				n1.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.Follow, ExpectedHolder: "n2"}, {Lease: lk("b"), Action: vip.Follow, ExpectedHolder: "n2"}})
			}
			return pending
		}
		if !until(7 * time.Second) {
			t.Error("the old owner is done, and the new one does not know of the agreement")
		}
		n1.mu.Lock()
		moved := len(n1.quorum.Moved)
		n1.mu.Unlock()
		if moved != 2 || n2.serves("a") {
			t.Errorf("%d VIPs were moved for n1, and n2 serves %v; want that only n1 has carried it out", moved, n2.serves("a"))
		}
		a.hashes("n2", true)
		if until(time.Second) || !n2.serves("a") || !n2.serves("b") {
			t.Error("the old owner is not done, or the new one does not serve what it was given")
		}
	})
}

// The API server is back for some nodes before it is for the owner, whose renewal
// hangs: nothing moves, unless it stays away from the owner.
func TestAPIServerBackForSome(t *testing.T) {
	for _, stays := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, s := newNetwork(), leasetest.NewServer()
			n1, n2, n3 := three(t, a, s)
			before := s.Lease(lk("a")).ResourceVersion
			cutFromAPI(n1, n2, n3)
			time.Sleep(time.Minute)
			reconnectAPI(n2, n3)
			for range 60 {
				time.Sleep(100 * time.Millisecond)
				if !n1.serves("a") {
					t.Fatalf("n1 gave up as soon as others had renewed\n%s", s)
				}
			}
			if stays {
				neverTwo(t, t.Context(), "a", newGroup(n1, n2, n3))
				waitServes(t, n2, "a", 15*time.Second)
				return
			}
			reconnectAPI(n1)
			time.Sleep(20 * time.Second)
			if got := s.Lease(lk("a")).ResourceVersion; got != before {
				t.Errorf("the VIP lease was written\n%s", s)
			}
		})
	}
}

// Of many nodes that see another yield, one fences it.
func TestOneNodeFences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, _ := three(t, a, s)
		for _, name := range []string{"n4", "n5", "n6", "n7", "n8"} {
			a.join(t, s, name)
		}
		time.Sleep(5 * time.Second)
		before := s.Conflicts()
		n1.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
		waitServes(t, n2, "a", time.Minute)
		time.Sleep(time.Second)
		if n := s.Conflicts() - before; n > 0 {
			t.Errorf("%d writes came too late", n)
		}
	})
}

// A VIP was moved without the API server, and the node that had it comes back before
// that is written: it begins a new epoch, and the VIP stays where it is.
func TestMoveOutlivesRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n2, n3 := moves(t, a, s)
		reconnectAPI(n2, n3)
		again := a.join(t, s, "n1")
		agents(t, 10*time.Second, n2, n3, again)
		if again.serves("a") || !n2.serves("a") {
			t.Errorf("n1 serves %v, n2 serves %v; want n2", again.serves("a"), n2.serves("a"))
		}
		if got := holder(s.Lease(lk("a"))); got != "n2" {
			t.Errorf("the lease names %q, want n2\n%s", got, s)
		}
	})
}

// What was moved without the API server and can't be written once it is back is given up.
func TestMoveNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n2, n3 := moves(t, a, s)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true }) // and so does not see what n1 becomes
		reconnectAPI(n2, n3)
		again := a.join(t, s, "n1")
		agents(t, deadline+6*time.Second, n2, n3, again)
		if n2.serves("a") {
			t.Errorf("n2 goes on without a claim\n%s", s)
		}
	})
}

// A node whose watch is stuck sees nobody renew. The others stay voters: of itself alone it
// would be the majority.
func TestStuckWatchKeepsVoters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, n3 := three(t, a, s)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		time.Sleep(2 * leaseDuration)
		cutFromAPI(n1, n2, n3)
		time.Sleep(10 * time.Second)
		n2.mu.Lock()
		defer n2.mu.Unlock()
		for _, node := range []string{"n1", "n2", "n3"} {
			if n2.quorum.Voters[node] == 0 {
				t.Errorf("%s is none of the group: %v", node, n2.quorum.Voters)
			}
		}
	})
}

// A node that reaches the others again hears them one by one, and fences none that
// it has not heard yet.
func TestRejoinsOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		three(t, a, s)
		a.join(t, s, "n4")
		a.join(t, s, "n0") // the first that may fence
		time.Sleep(5 * time.Second)
		for _, node := range []string{"n1", "n2", "n3", "n4"} {
			a.setLiveness("n0", node, vip.Dead)
		}
		time.Sleep(time.Second)
		epochs := func() (all []int64) {
			for _, node := range []string{"n1", "n2", "n3", "n4"} {
				all = append(all, transitions(s.Lease(vip.Key{Namespace: "kube-system", Name: NodePrefix + node})))
			}
			return all
		}
		before := epochs()
		for _, node := range []string{"n1", "n2", "n3", "n4"} {
			a.setLiveness("n0", node, vip.Alive)
			time.Sleep(400 * time.Millisecond)
		}
		if after := epochs(); !slices.Equal(after, before) {
			t.Errorf("the nodes were in epochs %v, and are in %v", before, after)
		}
	})
}

// A VIP was moved without the API server, and the node that had it comes back. The heir does not see what is written for a while: until it
// has written its claim nobody else acquires the VIP, neither the new process nor a node that knows of no move.
func TestMoveIsWrittenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n2, n3 := moves(t, a, s)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		reconnectAPI(n3)
		time.Sleep(time.Second) // n3 fences n1
		again := a.join(t, s, "n1")
		neverTwo(t, t.Context(), "a", newGroup(again, n2, n3))
		n2.way.SetFaults(func(f *leasetest.Faults) { f.Cut = false })
		for range 60 {
			again.want("a")
			n2.want("a")
			time.Sleep(50 * time.Millisecond)
		}
		if again.serves("a") || !n2.serves("a") {
			t.Errorf("n1 serves %v, n2 serves %v before n2 sees what is written; want n2\n%s", again.serves("a"), n2.serves("a"), s)
		}
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		agents(t, 5*time.Second, n2, n3)
		if got := holder(s.Lease(lk("a"))); got != "n2" || !n2.serves("a") {
			t.Errorf("the lease names %q, n2 serves %v; want n2\n%s", got, n2.serves("a"), s)
		}
	})
}

// A process that starts does not act on what an earlier one had until it has heard the other nodes, for a second at most.
func TestStartAwaitsHeartbeats(t *testing.T) {
	tests := []struct {
		name     string
		liveness vip.Liveness // of n2 for the new n1
		off      bool         // n2 exchanges no heartbeats
		from, to time.Duration
	}{
		{"all are heard", vip.Alive, false, 0, 300 * time.Millisecond},
		{"one is not", vip.Unknown, false, 900 * time.Millisecond, 1400 * time.Millisecond},
		{"one sends none", vip.Unknown, true, 0, 300 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, s := newNetwork(), leasetest.NewServer()
				a.livenessOff = tt.off
				n1, _, _ := three(t, a, s)
				n1.kill()
				again := a.join(t, s, "n1")
				a.setLiveness("n1", "n2", tt.liveness)
				again.want("a")
				if took := waitServes(t, again, "a", 5*time.Second); took < tt.from || took > tt.to {
					t.Errorf("serves after %v, want %v to %v", took, tt.from, tt.to)
				}
			})
		})
	}
}

// While another node acts on moves that this one does not know of, or may, since what it says is late, it acquires no VIP lease that exists: that may be what was moved.
func TestUnknownMovesAreNotAcquired(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, s := newNetwork(), leasetest.NewServer()
			n1, n2, n3 := three(t, a, s)
			n3.kill()
			a.announce("n3", vip.Heartbeat{Epoch: n3.world().Tenure.Epoch, APIReachable: true, TenureValid: true, MovesUnwritten: true})
			time.Sleep(time.Second)
			n1.kill()
			a.setLiveness("n2", "n1", vip.Dead)
			time.Sleep(2 * time.Second)
			if late {
				a.announce("n3", vip.Heartbeat{Epoch: n3.world().Tenure.Epoch, TenureValid: true})
				a.setOverdue("n2", "n3")
			}
			n2.want("a", "b")
			time.Sleep(time.Second)
			if n2.serves("a") || !n2.serves("b") {
				t.Errorf("late %v: n2 serves a %v, and b %v, which is new; want b only\n%s", late, n2.serves("a"), n2.serves("b"), s)
			}
			a.announce("n3", vip.Heartbeat{Epoch: n3.world().Tenure.Epoch, APIReachable: true, TenureValid: true})
			a.setLiveness("n2", "n3", vip.Alive)
			n2.want("a", "b")
			waitServes(t, n2, "a", time.Second)
		})
	}
}

// Nor does it release one that is in its own name, such as after it was stopped: another node may have what that says, and does not see the write.
func TestUnknownMovesAreNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, _, n3 := three(t, a, s)
		n3.kill()
		for _, moves := range []bool{true, false} {
			a.announce("n3", vip.Heartbeat{Epoch: n3.world().Tenure.Epoch, APIReachable: true, TenureValid: true, MovesUnwritten: moves})
			time.Sleep(time.Second)
			n1.world()
			n1.Put(nil)
			time.Sleep(time.Second)
			if x := s.Lease(lk("a")); (x != nil && holder(x) == "n1") != moves {
				t.Errorf("others act on unknown moves: %v, its lease is %v", moves, x)
			}
		}
	})
}

// The API server ceases to answer, and the owner dies with it, as where they are on one host. What the others agree on stays as it is, though no renewal has failed
// yet: those under way wait for their answers, and each node gives up its own at another time.
func TestMovesOutliveRenewalsWithoutAnswer(t *testing.T) {
	for phase := time.Duration(0); phase < period; phase += 100 * time.Millisecond {
		t.Run(phase.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, s := newNetwork(), leasetest.NewServer()
				n1, n2 := two(t, a, s)
				time.Sleep(phase)
				n3 := a.join(t, s, "n3")
				time.Sleep(time.Minute)
				cutFromAPI(n1, n2, n3)
				n1.kill()
				a.setBetween(vip.Dead, "n1")
				began, changes, serves := time.Now(), []string(nil), false
				for time.Since(began) < time.Minute {
					for _, plan := range []func(){
						func() { n2.want("a") },
						func() {
							n3.world()
							n3.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.Follow, ExpectedHolder: "n2"}})
						},
						func() {}, func() {},
					} {
						plan()
						time.Sleep(20 * time.Millisecond)
						if now := n2.serves("a"); now != serves {
							serves, changes = now, append(changes, time.Since(began).String())
						}
					}
				}
				if !serves || len(changes) != 1 {
					t.Errorf("n2 serves %v; changes after %v", serves, changes)
				}
			})
		})
	}
}

// A node that was given a VIP without the API server, and is to hand it over when that is back (it stops, or its link is down), writes its successor on
// the VIP lease, as soon as the claim that was moved is void.
func TestMovedIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n2, n3 := moves(t, a, s)
		n2.handOver("n3", "a")
		neverTwo(t, t.Context(), "a", newGroup(n2, n3))
		reconnectAPI(n2, n3)
		for began := time.Now(); time.Since(began) < 8*time.Second && !n3.serves("a"); time.Sleep(50 * time.Millisecond) {
			n2.handOver("n3", "a")
			n3.follow("a")
		}
		if h := n2.world().HandingOver[lk("a")]; !n3.serves("a") || h.Successor != "n3" {
			t.Errorf("n3 serves %v, n2 is handing over to %q\n%s", n3.serves("a"), h.Successor, s)
		}
		if c := n3.world().Claims[lk("a")]; c.PreviousHolder != "n2" || len(c.FormerHolders) != 2 || c.FormerHolders[0].Node != "n2" || c.FormerHolders[1].Node != "n1" {
			t.Errorf("%+v", c)
		}
	})
}

// A node that was given VIPs by a transfer, and is cut off from the others while the API server is away, does not learn that they have agreed on another owner.
// When the API server is back it acts on none of them until that owner has written it. If it is only not heard, it may reach the API server: nobody else gets
// what was transferred to it.
func TestTransferredAndMoved(t *testing.T) {
	for _, liveness := range []vip.Liveness{vip.Dead, vip.Suspect} {
		t.Run(liveness.String(), func(t *testing.T) { transferredAndMoved(t, liveness) })
	}
}

// transferredAndMoved is the test with n2 so for the others.
func transferredAndMoved(t *testing.T, liveness vip.Liveness) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		a.transfers = true
		n1, n2, n3 := a.join(t, s, "n1"), a.join(t, s, "n2"), a.join(t, s, "n3")
		time.Sleep(time.Second)
		n1.want("a", "b")
		n2.follow("a", "b")
		n3.follow("a", "b")
		time.Sleep(5 * time.Second)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "kubevip-" }) // its writes come too late
		n1.handOver("n2", "a", "b")
		time.Sleep(50 * time.Millisecond)
		if !n2.serves("a") {
			t.Fatalf("n2 does not serve\n%s", s)
		}
		cutFromAPI(n1, n2, n3)
		for _, node := range []string{"n1", "n3"} {
			a.setLiveness(node, "n2", liveness) // its heartbeats are lost on their way
		}
		agree := func(d time.Duration) {
			for began := time.Now(); time.Since(began) < d; time.Sleep(50 * time.Millisecond) {
				n3.want("a", "b")
				n1.world()
				n1.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.Follow, ExpectedHolder: "n3"}, {Lease: lk("b"), Action: vip.Follow, ExpectedHolder: "n3"}})
				n2.want("a", "b") // as far as it knows
			}
		}
		agree(7 * time.Second)
		if liveness == vip.Suspect {
			if n3.serves("a") || n2.serves("a") {
				t.Errorf("n3 serves %v, n2 %v; want none", n3.serves("a"), n2.serves("a"))
			}
			reconnectAPI(n2)
			agree(3 * time.Second)
			if n3.serves("a") || !n2.serves("a") {
				t.Errorf("n2 reaches the API server: n3 serves %v, n2 %v", n3.serves("a"), n2.serves("a"))
			}
			return
		}
		if !n3.serves("a") || n2.serves("a") {
			t.Fatalf("n3 serves %v, n2 %v; want n3", n3.serves("a"), n2.serves("a"))
		}
		neverTwo(t, t.Context(), "a", newGroup(n1, n2, n3))
		reconnectAPI(n1, n2, n3)
		agree(5 * time.Second)
		if got := holder(s.Lease(lk("a"))); got != "n3" || !n3.serves("a") || n2.serves("a") {
			t.Errorf("the lease names %s, n3 serves %v, n2 %v", got, n3.serves("a"), n2.serves("a"))
		}
	})
}

// A VIP that was moved without the API server is moved on when its new owner dies, too; that gives it up when it is heard again.
func TestMovedTwice(t *testing.T) {
	for _, comesBack := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, s := newNetwork(), leasetest.NewServer()
			n1, n2, n3 := three(t, a, s)
			n4, n5 := a.join(t, s, "n4"), a.join(t, s, "n5")
			time.Sleep(5 * time.Second)
			cutFromAPI(n1, n2, n3, n4, n5)
			time.Sleep(time.Minute)
			n1.kill()
			a.setBetween(vip.Dead, "n1")
			agents(t, time.Second, n2, n3, n4, n5)
			if !n2.serves("a") {
				t.Fatal("n2 does not serve")
			}
			leaveTo3 := func(d time.Duration) {
				for began := time.Now(); time.Since(began) < d; time.Sleep(50 * time.Millisecond) {
					n3.want("a")
					for _, n := range []*node{n4, n5} {
						n.world()
						n.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.Follow, ExpectedHolder: "n3"}})
					}
				}
			}
			a.setBetween(vip.Dead, "n2")
			if !comesBack {
				n2.kill()
			}
			leaveTo3(600 * time.Millisecond)
			if !n3.serves("a") {
				t.Fatalf("n3 has %+v", n3.world().Claims[lk("a")])
			}
			if comesBack { // before it has found out that it is the one that is cut off
				for _, other := range []string{"n3", "n4", "n5"} {
					a.setLiveness("n2", other, vip.Alive)
					a.setLiveness(other, "n2", vip.Alive)
				}
				leaveTo3(200 * time.Millisecond)
				if n2.serves("a") || !n3.serves("a") {
					t.Errorf("n2 serves %v, n3 %v", n2.serves("a"), n3.serves("a"))
				}
			}
			leaveTo3(5 * time.Second)
			reconnectAPI(n3, n4, n5)
			leaveTo3(5 * time.Second)
			if got := holder(s.Lease(lk("a"))); got != "n3" || !n3.serves("a") {
				t.Errorf("the lease names %s, n3 serves %v", got, n3.serves("a"))
			}
		})
	}
}

// A node that was given a VIP without the API server, and dies before it has written that, has it no more once it is fenced.
func TestMovedToNodeThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n2, n3 := moves(t, a, s)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.Cut, f.Hang = false, "kubevip-" })
		reconnectAPI(n3)
		time.Sleep(time.Second)
		n2.kill()
		a.setBetween(vip.Dead, "n2")
		a.setGatewayAlive("n3")
		time.Sleep(2 * time.Second)
		if c := n3.world().Claims[lk("a")]; c.Valid {
			t.Errorf("n3 has %+v\n%s", c, s)
		}
	})
}
