package lease

import (
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// Without the API server nothing moves, nor when it is back.
func TestHoldsOn(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		before := a.api.Lease(tableKey).ResourceVersion
		check.Equal(t, a.gatewayAsked, 0, "how often the gateway was asked while all is well")
		cutFromAPI(n1, n2, n3)
		for range 5 {
			time.Sleep(time.Minute)
			if !n1.serves("a") {
				t.Fatal("n1 gave up")
			}
		}
		reconnectAPI(n1, n2, n3)
		for range 400 {
			time.Sleep(100 * time.Millisecond)
			if !n1.serves("a") {
				t.Fatalf("n1 gave up when the API server came back\n%s", a.api)
			}
		}
		check.Equal(t, a.api.Lease(tableKey).ResourceVersion, before, "the version of the table\n%s", a.api)
	})
}

// A minority without the API server gives up, and moves nothing.
func TestMinority(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		cutFromAPI(n1, n2, n3)
		time.Sleep(time.Minute)
		a.setBetween(vip.Dead, "n1", "n3")
		a.setLiveness("n1", "n3", vip.Dead)
		a.setLiveness("n3", "n1", vip.Dead)
		time.Sleep(3 * time.Second)
		check.Equal(t, serving("a", n1, n2, n3), "", "who serves alone")
		reconnectAPI(n1, n2, n3)
		a.setBetween(vip.Alive, "n1")
		a.setBetween(vip.Alive, "n2")
		a.setBetween(vip.Alive, "n3")
		neverTwo(t, "a", n1, n2, n3)
		time.Sleep(time.Minute)
		check.Equal(t, serving("a", n1, n2) != "", true, "somebody serves when all is well again\n%s", a.api)
	})
}

// The owner dies while the API server is away: the others agree on who has its
// VIP, and write it down when the API server is back.
func TestMovesWithoutTheAPIServer(t *testing.T) {
	withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
		n2, n3 := moves(t, a, s)
		check.Equal(t, n3.claim("a").Holder, "n2", "whom n3 takes for the owner")
		reconnectAPI(n2, n3)
		for range 10 {
			time.Sleep(time.Second)
			if !n2.serves("a") || n3.serves("a") {
				t.Fatalf("n2 serves %v, n3 serves %v when the API server is back; want n2\n%s", n2.serves("a"), n3.serves("a"), s)
			}
		}
		check.Equal(t, ownerIn(t, s, "a"), "n2", "the owner in the table\n%s", s)
	})
}

// The API server is back for some nodes before it is for the owner, whose renewal
// hangs: nothing moves, unless it stays away from the owner.
func TestAPIServerBackForSome(t *testing.T) {
	for _, stays := range []bool{false, true} {
		withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
			before := a.api.Lease(tableKey).ResourceVersion
			cutFromAPI(n1, n2, n3)
			time.Sleep(time.Minute)
			reconnectAPI(n2, n3)
			for range 60 {
				time.Sleep(100 * time.Millisecond)
				if !n1.serves("a") {
					t.Fatalf("n1 gave up as soon as others had renewed\n%s", a.api)
				}
			}
			if stays {
				neverTwo(t, "a", n1, n2, n3)
				waitServes(t, n2, "a", 15*time.Second)
				return
			}
			reconnectAPI(n1)
			time.Sleep(20 * time.Second)
			check.Equal(t, a.api.Lease(tableKey).ResourceVersion, before, "the version of the table\n%s", a.api)
		})
	}
}

// A VIP was moved without the API server, and the node that had it comes back. The heir does not see what is written for a while: until it
// has written its claim nobody else acquires the VIP, neither the new process nor a node that knows of no move.
func TestMoveIsWrittenLate(t *testing.T) {
	withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
		n2, n3 := moves(t, a, s)
		n2.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		reconnectAPI(n3)
		time.Sleep(time.Second) // n3 fences n1
		again := a.join(t, s, "n1")
		neverTwo(t, "a", again, n2, n3)
		n2.fault(func(f *leasetest.Faults) { f.Cut = false })
		again.want("a")
		time.Sleep(3 * time.Second)
		check.Equal(t, serving("a", again, n2), "n2", "who serves before n2 sees what is written\n%s", s)
		n2.fault(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(5 * time.Second)
		check.Equal(t, ownerIn(t, s, "a"), "n2", "the owner in the table\n%s", s)
		check.Equal(t, serving("a", n2), "n2", "who serves")
	})
}

// A process that starts does not act on what an earlier one had until it has heard the other nodes, for a second at most.
func TestStartAwaitsHeartbeats(t *testing.T) {
	tests := []struct {
		name     string
		liveness vip.Liveness  // of n2 for the new n1
		off      bool          // n2 exchanges no heartbeats
		socket   time.Duration // so long the new n1 has no socket
		from, to time.Duration
	}{
		{"all are heard", vip.Alive, false, 0, 0, 300 * time.Millisecond},
		{"one is not", vip.Unknown, false, 0, 900 * time.Millisecond, 1400 * time.Millisecond},
		{"one sends none", vip.Unknown, true, 0, 0, 300 * time.Millisecond},
		{"all are heard, once it has the key", vip.Alive, false, 2 * time.Second, 2 * time.Second, 2300 * time.Millisecond},
		{"one is not, once it has the key", vip.Unknown, false, 2 * time.Second, 2900 * time.Millisecond, 3400 * time.Millisecond},
		{"one is not, and it has the key late", vip.Unknown, false, 2500 * time.Millisecond, 3 * time.Second, 3400 * time.Millisecond},
		{"it has no key, and gets none", vip.Alive, false, time.Hour, 3 * time.Second, 3500 * time.Millisecond},
		{"nobody has a key", vip.Alive, true, time.Hour, 0, 300 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
				a.livenessOff = tt.off
				n1, _, _ := three(t, a, s)
				n1.kill()
				a.mu.Lock()
				a.offUntil["n1"] = time.Now().Add(tt.socket)
				a.mu.Unlock()
				again := a.join(t, s, "n1")
				a.setLiveness("n1", "n2", tt.liveness)
				again.want("a")
				check.Between(t, waitServes(t, again, "a", 10*time.Second), tt.from, tt.to, "serves after")
			})
		})
	}
}

// The API server ceases to answer, and the owner dies with it, as where they are on one host. What the others agree on stays as it is, though no renewal has failed
// yet: those under way wait for their answers, and each node gives up its own at another time.
func TestMovesOutliveRenewalsWithoutAnswer(t *testing.T) {
	for phase := time.Duration(0); phase < period; phase += 400 * time.Millisecond {
		t.Run(phase.String(), func(t *testing.T) {
			withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
				n1, n2 := two(t, a, s)
				time.Sleep(phase)
				n3 := a.join(t, s, "n3")
				n3.planFor("n2", "a")
				time.Sleep(10 * time.Second)
				cutFromAPI(n1, n2, n3)
				n1.kill()
				a.setBetween(vip.Dead, "n1")
				began, changes, serves := time.Now(), []string(nil), false
				for time.Since(began) < 40*time.Second {
					time.Sleep(40 * time.Millisecond)
					if now := n2.serves("a"); now != serves {
						serves, changes = now, append(changes, time.Since(began).String())
					}
				}
				if !serves || len(changes) != 1 {
					t.Errorf("n2 serves %v; changes after %v", serves, changes)
				}
			})
		})
	}
}

// A node that was given a VIP without the API server, and is to hand it over when that is back (it stops, or its link is down), writes its successor in
// the table, as soon as the claim that was moved is void.
func TestMovedIsHandedOver(t *testing.T) {
	withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
		n2, n3 := moves(t, a, s)
		n2.give("n3", "a")
		neverTwo(t, "a", n2, n3)
		reconnectAPI(n2, n3)
		waitServes(t, n3, "a", 8*time.Second)
		check.Equal(t, n2.world().HandingOver[lk("a")].Successor, "n3", "to whom n2 hands over\n%s", s)
		if c := n3.world().Claims[lk("a")]; c.PreviousHolder != "n2" || len(c.FormerHolders) != 2 || c.FormerHolders[0].Node != "n2" || c.FormerHolders[1].Node != "n1" {
			t.Errorf("%+v", c)
		}
	})
}

// Whose API server is ready is known in an outage, too: else nodes don't agree on who has the control plane's VIP, and so on nothing.
func TestAPIServerReadyInAnOutage(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		n2.info.Store(&vip.NodeInfo{Interface: "eth0", APIServerReady: true})
		time.Sleep(5 * time.Second)
		cutFromAPI(n1, n2, n3)
		for _, ready := range []bool{true, false, true} {
			n2.info.Store(&vip.NodeInfo{Interface: "eth0", APIServerReady: ready})
			time.Sleep(10 * time.Second)
			if n1.member("n2").Info.APIServerReady != ready || n2.member("n2").Info.APIServerReady != ready {
				t.Errorf("n2's is ready: %v; n1 knows that it is: %v", ready, !ready)
			}
		}
	})
}

// The API server is back for some nodes, and the heir dies before it has written what it was given: that is free, as all else that it had.
func TestHeirDiesUnwritten(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		n4, n5 := a.join(t, a.api, "n4"), a.join(t, a.api, "n5")
		n4.planFor("n2", "a")
		n5.planFor("n2", "a")
		time.Sleep(5 * time.Second)
		cutFromAPI(n1, n2, n3, n4, n5)
		time.Sleep(time.Minute)
		n1.kill()
		a.setBetween(vip.Dead, "n1")
		time.Sleep(time.Second)
		check.Equal(t, serving("a", n2), "n2", "who serves")
		reconnectAPI(n3, n4)
		time.Sleep(time.Second)
		a.setBetween(vip.Dead, "n2")
		go n2.kill() // which waits for its requests
		n3.want("a")
		n4.planFor("n3", "a")
		n5.planFor("n3", "a")
		check.Between(t, waitServes(t, n3, "a", 20*time.Second), 0, 6*time.Second, "n3 serves after\n%s", a.api.Trace(12))
	})
}

// A VIP that was moved without the API server is moved on when its new owner dies, too; that gives it up when it is heard again.
func TestMovedTwice(t *testing.T) {
	for _, comesBack := range []bool{false, true} {
		withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
			n4, n5 := a.join(t, a.api, "n4"), a.join(t, a.api, "n5")
			n4.planFor("n2", "a")
			n5.planFor("n2", "a")
			time.Sleep(5 * time.Second)
			cutFromAPI(n1, n2, n3, n4, n5)
			time.Sleep(time.Minute)
			n1.kill()
			a.setBetween(vip.Dead, "n1")
			time.Sleep(time.Second)
			check.Equal(t, serving("a", n2), "n2", "who serves")
			leaveTo3 := func(d time.Duration) {
				for _, n := range []*node{n3, n4, n5} {
					n.planFor("n3", "a")
				}
				time.Sleep(d)
			}
			a.setBetween(vip.Dead, "n2")
			if !comesBack {
				n2.kill()
			}
			leaveTo3(600 * time.Millisecond)
			check.Equal(t, serving("a", n3), "n3", "who serves, by %+v", n3.world().Claims[lk("a")])
			if comesBack { // before it has found out that it is the one that is cut off
				for _, other := range []string{"n3", "n4", "n5"} {
					a.setLiveness("n2", other, vip.Alive)
					a.setLiveness(other, "n2", vip.Alive)
				}
				leaveTo3(200 * time.Millisecond)
				check.Equal(t, serving("a", n2, n3), "n3", "who serves once n2 is heard")
			}
			leaveTo3(5 * time.Second)
			reconnectAPI(n3, n4, n5)
			leaveTo3(5 * time.Second)
			check.Equal(t, ownerIn(t, a.api, "a"), "n3", "the owner in the table")
			check.Equal(t, serving("a", n3), "n3", "who serves")
		})
	}
}

// The owner is cut off, and gives its VIP away by the API server that it alone reaches, while the others agree on another
// heir. Whom the table names is the first to see it, and leaves the VIP to who acts by agreement until that sees it, too.
func TestGivenAwayBesideAMove(t *testing.T) {
	for _, returns := range []time.Duration{0, 100, 200, 300, 600, 800, 3000} {
		t.Run((returns * time.Millisecond).String(), func(t *testing.T) {
			withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
				n4 := a.join(t, a.api, "n4")
				n4.planFor("n2", "a")
				time.Sleep(5 * time.Second)
				cutFromAPI(n2, n3, n4)
				time.Sleep(2 * time.Second)
				n1.give("n3", "a")
				time.Sleep(10 * time.Millisecond)
				a.setBetween(vip.Dead, "n1")
				neverTwo(t, "a", n2, n3, n4)
				check.True(t, 5*time.Second, "they propose", func() bool {
					n3.mu.Lock()
					defer n3.mu.Unlock()
					return n3.quorum.Moving()
				})
				time.Sleep(returns * time.Millisecond)
				check.Equal(t, ownerIn(t, a.api, "a"), "n3", "the owner in the table")
				reconnectAPI(n3)
				time.Sleep(2 * time.Second)
				check.Equal(t, serving("a", n2, n3) != "", true, "somebody serves")
				reconnectAPI(n2, n4)
				time.Sleep(2 * time.Second)
				check.Equal(t, serving("a", n2, n3), "n3", "who serves at last\n%s", a.api)
			})
		})
	}
}
