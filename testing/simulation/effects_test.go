package simulation

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// effects is for each fault of the random tests what makes it felt: what is done to a node that has VIPs, and that has the
// fault, or gets VIPs from the other. A fault that is not here fails the tests that have it happen.
var effects = map[faultKind]effect{
	cut: {}, noAnswers: {}, unplug: {}, unheard: {}, unreached: {}, otherSide: {}, drained: {}, excluded: {}, hung: {},
	loseAnswers: {}, noAnswersToWrites: {},
	watchStuck: {gets: true}, lateWatch: {gets: true}, bindHangs: {gets: true}, slow: {gets: true}, cantWrite: {keeps: true},
	blocked: {dies: true}, apiAway: {dies: true, all: true}, slowWrites: {gets: true, all: true}, split: {all: true},
	tableDeleted: {table: 0}, tableSpoilt: {table: 1}, tableRestored: {table: 3},
}

// An effect says how a fault is felt.
type effect struct {
	gets  bool // another node, which is drained, gives its VIPs to the one with the fault
	keeps bool // likewise, and the one with the fault is the first by name, which places what nobody has
	dies  bool // the node with the fault is killed
	all   bool // it is a fault of the cluster
	table int
}

// TestFaultsHaveEffects: each fault changes who answers for a VIP, or for how long nobody does, or has the table written.
func TestFaultsHaveEffects(t *testing.T) {
	for what, e := range effects {
		with, without := e.run(t, what), e.run(t, "")
		if d := with.differs(without); d == "" {
			t.Errorf("%q changes nothing", what)
		} else {
			t.Logf("%s: %s", what, d)
		}
	}
}

// A course is what became of VIPs and the table.
type course struct {
	answered map[netip.Addr][4]time.Duration // by how many nodes: none, n1, n2, n3
	writes   int32
}

// differs describes a difference that is no chance; "" if there is none.
func (a course) differs(b course) string {
	for addr, x := range a.answered {
		for i, d := range x {
			if more := d - b.answered[addr][i]; more.Abs() > 50*time.Millisecond {
				return fmt.Sprintf("%s is answered by %s for %v longer", addr, []string{"nobody", "n1", "n2", "n3"}[i], more)
			}
		}
	}
	if a.writes != b.writes {
		return fmt.Sprintf("%d writes of the table in place of %d", a.writes, b.writes)
	}
	return ""
}

// run has the fault happen in a cluster, or nothing, and what makes it felt.
func (e effect) run(t *testing.T, what faultKind) (found course) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, size{nodes: 3, services: 6})
		c.broken = true
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 31)))
		for _, n := range c.nodes {
			n.start()
		}
		c.create()
		time.Sleep(10 * time.Second)
		c.backup = c.api.Lease(vip.Key{Namespace: "kube-system", Name: lease.TableName})
		n, other := c.nodes[1], c.nodes[2]
		c.change(0, func(s *vip.Service) { s.Ignore = true })
		time.Sleep(10 * time.Second)
		c.change(0, func(s *vip.Service) { s.Ignore = false })
		time.Sleep(10*time.Second + 500*time.Millisecond)
		if e.keeps {
			n = c.nodes[0]
		}
		r := rand.New(rand.NewPCG(2, uint64(e.table)))
		switch {
		case what == "":
		case what == tableDeleted || what == tableSpoilt || what == tableRestored:
			c.spoilTableAs(e.table)
		case what == slow:
			n.slow.Lag, n.slow.Delay = time.Second, 2*time.Second
			n.toggle(slow)
		case e.all:
			c.toggleForAll(r, what)
		default:
			n.toggle(what)
		}
		time.Sleep(100 * time.Millisecond)
		switch {
		case e.gets:
			other.toggle(drained)
		case e.keeps:
			other.kill(true)
		case e.dies:
			n.kill(false)
		}
		c.pokeAll()
		found.answered = map[netip.Addr][4]time.Duration{}
		for range 2000 {
			time.Sleep(10 * time.Millisecond)
			c.mu.Lock()
			for _, s := range c.services {
				a := s.Addresses[0]
				x, who := found.answered[a], c.answers(a, 0)
				if len(who) == 0 {
					x[0] += 10 * time.Millisecond
				}
				for i, n := range c.nodes {
					if slices.Contains(who, n) {
						x[i+1] += 10 * time.Millisecond
					}
				}
				found.answered[a] = x
			}
			c.mu.Unlock()
		}
		found.writes = *c.api.Lease(vip.Key{Namespace: "kube-system", Name: lease.TableName}).Spec.LeaseTransitions
		c.clearFaults()
		time.Sleep(10 * time.Second)
		for _, n := range c.nodes {
			n.stop()
		}
	})
	return found
}
