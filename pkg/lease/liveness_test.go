package lease

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

func TestDead(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, _ *node) {
		n1.kill()
		before := a.api.Writes()
		a.setBetween(vip.Dead, "n1")
		if took := waitServes(t, n2, "a", time.Minute); took > 100*time.Millisecond {
			t.Errorf("taken over after %v, want two writes", took)
		}
		if writes := a.api.Writes() - before; writes > 2+3 { // a fence, a claim, and maybe a renewal of each node
			t.Errorf("%d writes for one VIP", writes)
		}
	})
}

// A node that is cut off from the LAN sees the others die one by one. It fences none of
// them: the heartbeats of those that are still alive are overdue.
func TestCutOffFromLAN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
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
		if after := epochs(); !slices.Equal(after, before) {
			t.Errorf("epochs, and those that are over, were %v, and are %v", before, after)
		}
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
		if n1.serves("a") {
			t.Errorf("n1 serves in its next epoch\n%s", a.api.Trace(10))
		}
		a.setEchoOverdue("n1", "n2")
		a.setEchoOverdue("n1", "n3")
		waitServes(t, n2, "a", 2*time.Second)
		if n1.serves("a") {
			t.Errorf("n1 serves, too\n%s", a.api.Trace(10))
		}
	})
}

// Of two nodes the one that is left waits until the gateway has answered, and no longer.
func TestDeadOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2 := two(t, a, s)
		n1.kill()
		a.setBetween(vip.Dead, "n1")
		time.Sleep(200 * time.Millisecond)
		if n2.serves("a") {
			t.Error("taken over before the gateway has answered")
		}
		a.setGatewayAlive("n2")
		n2.Wake()
		if took := waitServes(t, n2, "a", time.Minute); took > 100*time.Millisecond {
			t.Errorf("taken over %v after the gateway has answered, want two writes", took)
		}
	})
}

// Two nodes that no longer hear each other, and both reach the gateway and the API server, fence each other, once: then
// one of them has all VIPs.
func TestSplitOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
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
			for _, n := range []*node{n2, n3} {
				n.fault(func(f *leasetest.Faults) { f.Cut = true })
			}
			time.Sleep(400 * time.Millisecond) // until it is found dead
			a.setBetween(vip.Dead, "n1")
			time.Sleep(election - 400*time.Millisecond)
			for _, n := range []*node{n2, n3} {
				n.fault(func(f *leasetest.Faults) { f.Cut = false })
			}
			if took := waitServes(t, n2, "a", time.Minute); took > time.Second {
				t.Errorf("%v into a period: taken over %v after the election, want a second at most", phase, took)
			}
		})
	}
}

func TestSuspect(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		a.setBetween(vip.Suspect, "n1")
		neverTwo(t, "a", n1, n2, n3)
		time.Sleep(time.Minute)
		if !n1.serves("a") {
			t.Errorf("a node whose port is blocked lost its VIP\n%s", a.api)
		}
		if m := n2.NodeInfos()["n3"].Suspects; len(m) != 1 || m[0] != "n1" {
			t.Errorf("n3 suspects %v, want n1", m)
		}
	})
}

// A node that can't renew while others do yields: they take over, and never do two serve.
func TestYields(t *testing.T) {
	withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
		neverTwo(t, "a", n1, n2, n3)
		n1.fault(func(f *leasetest.Faults) { f.Cut = true })
		if took := waitServes(t, n2, "a", time.Minute); took > deadline-time.Second {
			t.Errorf("taken over after %v, want less than the renew deadline", took)
		}
		n1.fault(func(f *leasetest.Faults) { f.Cut = false })
		time.Sleep(20 * time.Second)
		if n1.serves("a") || !n2.serves("a") {
			t.Errorf("n1 serves %v, n2 serves %v; want n2\n%s", n1.serves("a"), n2.serves("a"), a.api)
		}
	})
}

// What the log says holds: of a link that is down, a node that is cut off, and VIPs that are kept without the API server.
func TestLogSaysWhatHolds(t *testing.T) {
	info := vip.NodeInfo{Interface: "eth0", Links: []vip.Link{{Name: "eth0", Up: true}}}
	if text := isolatedText(&info); !strings.Contains(text, "though its link is up") {
		t.Error(text)
	}
	info.Links[0].Up = false
	if text := isolatedText(&info); !strings.HasPrefix(text, "the VIPs' link eth0 of this node is down") {
		t.Error(text)
	}
	logOf := func(act func(a *network, n1, n2, n3 *node)) (text string) {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			a, s := newNetwork(), leasetest.NewServer()
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
	if strings.Contains(isolated, "could not be renewed in time") || !strings.Contains(isolated, "the node lease is lost") {
		t.Errorf("a node that is cut off from the LAN, and fenced:\n%s", isolated)
	}
	holding := logOf(func(a *network, n1, n2, n3 *node) { cutFromAPI(n1, n2, n3) })
	if strings.Count(holding, "VIPs stay where they are") != 3 || strings.Contains(holding, "gives up its VIPs") {
		t.Errorf("without the API server:\n%s", holding)
	}
}
