package lease

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func TestDead(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, _ *node) {
		n1.kill()
		before := a.api.Writes()
		a.setBetween(vip.Dead, "n1")
		check.Between(t, waitServes(t, n2, "a", time.Minute), 0, 100*time.Millisecond, "taken over, which is two writes, after")
		if writes := a.api.Writes() - before; writes > 2+3 { // a fence, a claim, and maybe a renewal of each node
			t.Errorf("%d writes for one VIP", writes)
		}
	})
}

// Where heartbeats are exchanged only a node is asked for that they do not show to be alive: another hears nothing of it, or it hears nothing.
func TestHeard(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, _, _ *node) {
		for _, l := range []vip.Liveness{vip.Alive, vip.Suspect, vip.Unknown, vip.Alive} {
			a.setLiveness("n1", "n2", l)
			time.Sleep(time.Second)
			if heard := n1.member("n2").Heard; heard != (l == vip.Alive) {
				t.Errorf("n2 is %v to n1, and heard %v", l, heard)
			}
		}
	})
}

// A node that is cut off from the LAN sees the others die one by one. It fences none of
// them: the heartbeats of those that are still alive are overdue.
func TestCutOffFromLAN(t *testing.T) {
	withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
		three(t, a, s)
		a.join(t, s, "n0")                               // the first that may fence
		time.Sleep(5*time.Second + 300*time.Millisecond) // not when they renew
		epochs := func() (all []int64) {
			for _, node := range []string{"n1", "n2", "n3"} {
				x := s.Lease(vip.Key{Namespace: "kube-system", Name: vip.NodeLeasePrefix + node})
				all = append(all, transitions(x), fencedEpoch(x))
			}
			return all
		}
		before := epochs()
		others := []string{"n1", "n2", "n3"}
		for _, node := range others {
			a.setOverdue("n0", node)
		}
		for _, node := range others {
			a.setLiveness("n0", node, vip.Dead)
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		check.Same(t, before, epochs(), "epochs, and those that are over")
	})
}

// A node whose heartbeats do not arrive is fenced, and learns that at once. It takes nothing back in its next epoch, of
// which the others would not hear, though they are slow to write who has its VIPs now.
func TestUnheardTakesNothingBack(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		for _, n := range []*node{n2, n3} {
			n.fault(func(f *leasetest.Faults) { f.Delay = 300 * time.Millisecond })
			a.setLiveness(n.name, "n1", vip.Dead)
		}
		time.Sleep(350 * time.Millisecond) // the fence is written; an echo is overdue later than a heartbeat
		check.Equal(t, serving("a", n1), "", "who serves in its next epoch\n%s", a.api.Trace(10))
		a.setEchoOverdue("n1", "n2")
		a.setEchoOverdue("n1", "n3")
		waitServes(t, n2, "a", 2*time.Second)
		check.Equal(t, serving("a", n1, n2), "n2", "who serves\n%s", a.api.Trace(10))
	})
}

// Of two nodes the one that is left waits until the gateway has answered, and no longer.
func TestDeadOfTwo(t *testing.T) {
	withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
		n1, n2 := two(t, a, s)
		n1.kill()
		a.setBetween(vip.Dead, "n1")
		time.Sleep(200 * time.Millisecond)
		check.Equal(t, serving("a", n2), "", "who has taken over before the gateway has answered")
		a.setGatewayAlive("n2")
		n2.Wake()
		check.Between(t, waitServes(t, n2, "a", time.Minute), 0, 100*time.Millisecond, "taken over, which is two writes, after")
	})
}

// Two nodes that no longer hear each other, and both reach the gateway and the API server, fence each other, once: then
// one of them has all VIPs.
func TestSplitOfTwo(t *testing.T) {
	withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
		n1, n2 := two(t, a, s)
		n2.want("a", "b") // of which it gets what nobody has
		time.Sleep(time.Second)
		n1.want("a", "b")
		a.setGatewayAlive("n1")
		a.setGatewayAlive("n2")
		a.setBetween(vip.Dead, "n1")
		time.Sleep(2 * time.Second)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if !n1.serves("a") || !n1.serves("b") || n2.serves("a") || n2.serves("b") {
				t.Fatalf("n1 serves a: %v, b: %v; n2 serves a: %v, b: %v\n%s", n1.serves("a"), n1.serves("b"), n2.serves("a"),
					n2.serves("b"), s.Trace(30))
			}
		}
	})
}

// The leader of etcd dies with the node: no request is answered until there is another.
func TestDeadWithEtcdLeader(t *testing.T) {
	const election = 1500 * time.Millisecond
	for phase := time.Duration(0); phase < period; phase += 200 * time.Millisecond { // of the renewal period
		withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
			time.Sleep(phase)
			n1.kill()
			cutFromAPI(n2, n3)
			time.Sleep(400 * time.Millisecond) // until it is found dead
			a.setBetween(vip.Dead, "n1")
			time.Sleep(election - 400*time.Millisecond)
			reconnectAPI(n2, n3)
			check.Between(t, waitServes(t, n2, "a", time.Minute), 0, time.Second, "%v into a period: taken over after the election after", phase)
		})
	}
}

func TestSuspect(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		a.setBetween(vip.Suspect, "n1")
		neverTwo(t, "a", n1, n2, n3)
		time.Sleep(time.Minute)
		check.Equal(t, serving("a", n1, n2, n3), "n1", "who serves, though its port is blocked\n%s", a.api)
		check.Same(t, []string{"n1"}, n2.NodeInfos()["n3"].Suspects, "whom n3 suspects")
	})
}

// A node that can't renew while others do yields: they take over, and never do two serve.
func TestYields(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		neverTwo(t, "a", n1, n2, n3)
		n1.fault(func(f *leasetest.Faults) { f.Cut = true })
		check.Between(t, waitServes(t, n2, "a", time.Minute), 0, deadline-time.Second, "taken over, before the renew deadline, after")
		n1.fault(func(f *leasetest.Faults) { f.Cut = false })
		time.Sleep(20 * time.Second)
		check.Equal(t, serving("a", n1, n2), "n2", "who serves\n%s", a.api)
	})
}

// What the log says holds: of a link that is down, a node that is cut off, and VIPs that are kept without the API server.
func TestLogSaysWhatHolds(t *testing.T) {
	info := vip.NodeInfo{Interface: "eth0", Links: []vip.Link{{Name: "eth0", Up: true}}}
	check.Contains(t, isolatedText(&info), "though its link is up")
	info.Links[0].Up = false
	if text := isolatedText(&info); !strings.HasPrefix(text, "the VIPs' link eth0 of this node is down") {
		t.Error(text)
	}
	logOf := func(act func(a *network, n1, n2, n3 *node)) (text string) {
		withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
			var b bytes.Buffer
			a.log = slog.New(slog.NewTextHandler(&b, nil)) // nodes write one after the other
			n1, n2, n3 := three(t, a, s)
			act(a, n1, n2, n3)
			time.Sleep(time.Minute)
			synctest.Wait()
			text = b.String()
		})
		return text
	}
	isolated := logOf(func(a *network, n1, n2, n3 *node) { a.setBetween(vip.Dead, "n1") })
	check.Lacks(t, isolated, "could not be renewed in time")
	check.Contains(t, isolated, "the node lease is lost")
	holding := logOf(func(a *network, n1, n2, n3 *node) { cutFromAPI(n1, n2, n3) })
	if strings.Count(holding, "VIPs stay where they are") != 3 || strings.Contains(holding, "gives up its VIPs") {
		t.Errorf("without the API server:\n%s", holding)
	}
}
