package simulation

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// A faultKind is a fault that a node, or the cluster, has for a while.
type faultKind string

// The faults of a node; the last six are of the cluster.
const (
	cut               faultKind = "cut from the API"
	watchStuck        faultKind = "its watch is stuck"
	slow              faultKind = "the API is slow"
	loseAnswers       faultKind = "answers are lost"
	cantWrite         faultKind = "its writes of the table hang"
	noAnswers         faultKind = "its requests are not answered" // those under way are not when it ends, either
	lateWatch         faultKind = "its watch is late"
	bindHangs         faultKind = "its agent hangs in netif"
	drained           faultKind = "its Node is drained"
	noAnswersToWrites faultKind = "its writes take effect, and are not answered"
	unplug            faultKind = "its cable is out"
	unheard           faultKind = "nothing arrives that it transmits"
	unreached         faultKind = "nothing arrives for it"
	otherSide         faultKind = "on the other side of the LAN"
	blocked           faultKind = "its heartbeat port is blocked"
	hung              faultKind = "its process hangs"
	excluded          faultKind = "it is excluded"
	apiAway           faultKind = "the API server is away for all"
	split             faultKind = "the LAN is in two parts"
	slowWrites        faultKind = "writes take long for all" // c.delay
	tableDeleted      faultKind = "the table is deleted"
	tableSpoilt       faultKind = "the table is spoilt by hand"
	tableRestored     faultKind = "the table is restored from an old version"
)

// toggle gives n the fault what, or ends it if n has it, and reports whether n has it now.
func (n *node) toggle(what faultKind) (wrong bool) {
	c := n.c
	c.checkKnown(what)
	c.mu.Lock()
	state := "ends"
	if wrong = n.faults[what] == 0; wrong {
		n.faultCount++
		n.faults[what], state = n.faultCount, "begins"
	} else {
		delete(n.faults, what)
	}
	c.recordLocked(n, netip.Addr{}, "%s: %s", what, state)
	n.applyFaults()
	c.resumed.Broadcast()
	c.mu.Unlock()
	c.wire.peersChanged(n)
	n.poke()
	return wrong
}

// checkKnown fails if no test shows that a fault has an effect.
func (c *cluster) checkKnown(what faultKind) {
	if _, ok := effects[what]; !ok {
		c.t.Errorf("nothing shows that the fault %q has an effect", what)
	}
}

// applyFaults sets n's cable, side, port and client as n's faults and the cluster's require, and
// checks the owners of n's addresses if one of the first two changed. The cluster's mutex must be held.
func (n *node) applyFaults() {
	c := n.c
	n.changed = time.Now()
	side := 0
	if n.has(otherSide) != n.has(split) {
		side = 1
	}
	cable, transmits, receives := !n.has(unplug), !n.has(unplug) && !n.has(unheard), !n.has(unplug) && !n.has(unreached)
	if cable != n.cable || transmits != n.transmits || receives != n.receives || side != n.side {
		n.cable, n.transmits, n.receives, n.side = cable, transmits, receives, side
		for a := range n.kernel {
			c.checkOwners(a)
		}
	}
	n.portBlocked = n.has(blocked)
	if n.proc == nil {
		return
	}
	n.client.SetFaults(func(f *leasetest.Faults) {
		*f = leasetest.NoFaults
		if n.has(slow) {
			f.Lag, f.Delay, f.CommitDelay = n.slow.Lag, n.slow.Delay, n.slow.CommitDelay
		}
		f.Cut, f.WatchCut, f.LoseAnswers = n.has(cut) || n.has(hung) || !c.apiAwaySince.IsZero(), n.has(watchStuck) || n.has(lateWatch) || n.has(hung), n.has(loseAnswers)
		f.NoAnswers, f.CommitDelay = n.has(noAnswersToWrites), max(f.CommitDelay, c.delay)
		if n.has(noAnswers) {
			f.Delay = time.Hour
		}
		if n.has(cantWrite) {
			f.Hang = lease.TableName
		}
	})
	if n.client.Faults() != leasetest.NoFaults {
		n.renews = time.Time{}
	} else if n.renews.IsZero() {
		n.renews = n.changed
	}
}

// anyFault begins or ends a random fault of n, restarts it, or changes a random Service.
func (c *cluster) anyFault(r *rand.Rand, n *node) {
	switch r.IntN(12) {
	case 0, 1:
		c.toggle(r, n, cut)
	case 2:
		c.toggle(r, n, watchStuck)
	case 10:
		c.spoilTable(r)
	case 11:
		c.toggle(r, n, noAnswersToWrites)
	case 3:
		c.mu.Lock()
		n.slow.Delay, n.slow.Lag = time.Duration(r.IntN(3000))*time.Millisecond, time.Duration(1+r.IntN(2000))*time.Millisecond
		n.slow.CommitDelay = []time.Duration{0, 1600 * time.Millisecond, 2500 * time.Millisecond}[r.IntN(3)]
		c.mu.Unlock()
		c.toggle(r, n, slow)
	case 4:
		c.toggle(r, n, loseAnswers)
	case 5:
		c.restart(r, n, "killed and started", func() { n.kill(false) })
	case 6:
		c.restart(r, n, "stopped by SIGTERM and started", n.stop)
	case 7:
		c.toggle(r, n, unplug)
	case 8:
		i := r.IntN(len(c.services))
		c.record(nil, netip.Addr{}, "%s: the annotation ignore is toggled", c.services[i].Key)
		c.change(i, func(s *vip.Service) { s.Ignore = !s.Ignore })
	case 9:
		i := r.IntN(len(c.services))
		c.record(nil, netip.Addr{}, "%s: sharing an address is toggled", c.services[i].Key)
		c.change(i, func(s *vip.Service) {
			if i > 0 && s.Addresses[0] != c.services[i-1].Addresses[0] {
				s.Addresses = c.services[i-1].Addresses
				s.Ports = []vip.Port{{Protocol: "TCP", Port: uint16(1000 + i)}}
			} else {
				s.Addresses = []netip.Addr{s.Addresses[0].Next()} // cached lists share the old slice
			}
		})
	}
}

// wireFault is, half of the time, a fault of what the nodes see of each other, else an anyFault.
func (c *cluster) wireFault(r *rand.Rand, n *node) {
	o := c.nodes[r.IntN(len(c.nodes))]
	switch r.IntN(18) {
	default:
		c.anyFault(r, n)
	case 11:
		c.toggle(r, n, bindHangs)
	case 12:
		c.toggleForAll(r, slowWrites)
	case 9:
		c.toggle(r, n, unheard)
	case 10:
		c.toggle(r, n, unreached)
	case 7:
		c.toggle(r, n, noAnswers)
	case 8:
		if !c.large() {
			c.onlyOneReaches(r, n)
		}
	case 0, 1:
		c.toggle(r, n, otherSide)
	case 2:
		c.toggle(r, n, blocked)
	case 3:
		if n != o {
			c.record(n, netip.Addr{}, "takes %s for dead", o.name)
			c.wire.takeForDead(n, o)
		}
	case 4:
		if c.large() {
			c.toggle(r, n, cut)
		} else {
			c.toggleForAll(r, apiAway)
		}
	case 6:
		c.toggle(r, n, hung)
	case 5:
		c.restart(r, n, "the power fails", func() { n.kill(true) })
	}
}

// onlyOneReaches cuts all nodes but n from the API server, while n's heartbeat port is blocked, for up to 40 s.
func (c *cluster) onlyOneReaches(r *rand.Rand, n *node) {
	var changed []func()
	set := func(n *node, what faultKind) {
		c.mu.Lock()
		has := n.has(what)
		c.mu.Unlock()
		if !has {
			n.toggle(what)
			changed = append(changed, func() { n.end(what) })
		}
	}
	set(n, blocked)
	for _, o := range c.nodes {
		if o != n {
			set(o, cut)
		}
	}
	time.Sleep(time.Duration(r.IntN(40000)) * time.Millisecond)
	for _, end := range changed {
		end()
	}
}

// largeFault is a wireFault, or in one of a hundred a fault of the whole cluster.
func (c *cluster) largeFault(r *rand.Rand, n *node) {
	switch r.IntN(500) {
	case 0:
		c.toggleForAll(r, apiAway)
	case 1, 2, 3, 4:
		c.toggleForAll(r, split)
	default:
		c.wireFault(r, n)
	}
}

// toggle begins or ends a fault of n. In a large cluster it ends by itself after a while.
func (c *cluster) toggle(r *rand.Rand, n *node, what faultKind) {
	if !n.toggle(what) || !c.large() {
		return
	}
	c.mu.Lock()
	fell := n.faults[what]
	c.mu.Unlock()
	time.AfterFunc(faultDuration(r), func() {
		c.mu.Lock()
		same := n.faults[what] == fell
		c.mu.Unlock()
		if same {
			n.toggle(what)
		}
	})
}

// large reports whether the cluster is so large that faults overlap and end by themselves.
func (c *cluster) large() bool { return c.gap > 0 }

// faultDuration is a random duration of a fault in a large cluster: most are short, some are longer
// than every deadline.
func faultDuration(r *rand.Rand) time.Duration {
	if r.IntN(12) == 0 {
		return time.Duration(r.IntN(25000)) * time.Millisecond
	}
	return time.Duration(r.IntN(3000)) * time.Millisecond
}

// restart ends the process of n by end, and starts another after a while; nothing if n is being
// restarted already. In a large cluster it does not wait for that.
func (c *cluster) restart(r *rand.Rand, n *node, what string, end func()) {
	pause := time.Duration(r.IntN(20000)) * time.Millisecond
	if c.large() {
		pause = faultDuration(r)
	}
	c.mu.Lock()
	busy := n.down
	n.down = true
	c.mu.Unlock()
	if busy {
		return
	}
	c.record(n, netip.Addr{}, "%s", what)
	again := func() {
		end()
		time.Sleep(pause)
		c.record(n, netip.Addr{}, "a Herald starts")
		n.start()
		c.mu.Lock()
		n.down = false
		c.mu.Unlock()
	}
	if !c.large() {
		again()
		return
	}
	c.restarts.Go(again)
}

// toggleForAll begins or ends a fault of the whole cluster. In a large cluster it ends by itself.
func (c *cluster) toggleForAll(r *rand.Rand, what faultKind) {
	c.checkKnown(what)
	c.mu.Lock()
	c.clusterFaults[what] = 1 - c.clusterFaults[what]
	wrong := c.clusterFaults[what] == 1
	c.recordLocked(nil, netip.Addr{}, "%s: %v", what, wrong)
	voters := map[*node]bool{}
	for _, n := range c.nodes {
		if n.proc != nil && time.Since(n.changed) > 30*time.Second && len(n.faults) == 0 {
			voters[n] = true
		}
	}
	switch {
	case what == slowWrites:
		c.delay = 0
		if wrong {
			c.delay = []time.Duration{1600 * time.Millisecond, 2500 * time.Millisecond}[r.IntN(2)]
		}
	case what == split:
		otherSide := 0 // about how many nodes
		if wrong {
			otherSide = r.IntN(len(c.nodes))
		}
		for _, n := range c.nodes {
			delete(n.faults, split)
			if otherSide > 0 && r.IntN(len(c.nodes)) < otherSide {
				n.faultCount++
				n.faults[split] = n.faultCount
			}
		}
	case wrong:
		c.apiAwaySince, c.voters = time.Now(), voters
	default:
		c.apiAwaySince = time.Time{}
	}
	late := what == apiAway && !wrong && c.lateWatches
	for _, n := range c.nodes {
		if late && !n.has(lateWatch) {
			n.faults[lateWatch] = 1
			time.AfterFunc(time.Duration(r.IntN(10000))*time.Millisecond, func() { n.end(lateWatch) })
		}
		changed, side := n.changed, n.side
		n.applyFaults()
		if what != split || side == n.side {
			n.changed = changed
		}
	}
	c.mu.Unlock()
	if what == split {
		for _, n := range c.nodes {
			c.wire.peersChanged(n)
		}
	}
	if wrong && c.large() {
		lasts := faultDuration(r)
		if what == apiAway { // time for nodes to die meanwhile, and to be replaced
			lasts += time.Duration(r.IntN(20000)) * time.Millisecond
		}
		own := rand.New(rand.NewPCG(r.Uint64(), 9)) // r is for the goroutine that makes the faults
		time.AfterFunc(lasts, func() {
			c.mu.Lock()
			same := c.clusterFaults[what] == 1
			c.mu.Unlock()
			if same {
				c.toggleForAll(own, what)
			}
		})
	}
}

// spoilTable deletes the table, spoils it, writes other owners in it, or puts an earlier version in its place.
func (c *cluster) spoilTable(r *rand.Rand) { c.spoilTableAs(r.IntN(4)) }

// spoilTableAs does one of these.
func (c *cluster) spoilTableAs(how int) {
	k := vip.Key{Namespace: "kube-system", Name: lease.TableName}
	now := c.api.Lease(k)
	if now == nil {
		return
	}
	what, next := tableDeleted, now.DeepCopy()
	switch how {
	case 0:
		c.api.Remove(k, "")
	case 1:
		what, next.Annotations[lease.OwnersAnnotation] = tableSpoilt, "spoilt"
	case 2:
		what, next.Annotations[lease.OwnersAnnotation] = tableSpoilt, strings.ReplaceAll(next.Annotations[lease.OwnersAnnotation], "n1@", "n2@")
	case 3:
		what = tableRestored
		c.mu.Lock()
		next.Annotations, next.Spec = c.backup.Annotations, c.backup.Spec
		c.mu.Unlock()
	}
	c.record(nil, netip.Addr{}, "%s", what)
	if what != tableDeleted {
		if _, err := c.api.Put(next); err != nil {
			c.t.Error(err)
		}
	}
}

// end ends the fault what of n, if it has that.
func (n *node) end(what faultKind) {
	n.c.mu.Lock()
	has := n.has(what)
	n.c.mu.Unlock()
	if has {
		n.toggle(what)
	}
}

func (n *node) has(what faultKind) bool { return n.faults[what] != 0 }

// clearFaults waits for restarts to end, and ends all faults.
func (c *cluster) clearFaults() {
	c.record(nil, netip.Addr{}, "all faults end")
	c.restarts.Wait()
	c.mu.Lock()
	c.apiAwaySince, c.delay = time.Time{}, 0
	clear(c.clusterFaults)
	for _, n := range c.nodes {
		clear(n.faults)
		n.applyFaults()
	}
	c.resumed.Broadcast()
	for i := range c.services {
		c.services[i].Ignore = false
	}
	c.list = nil
	c.mu.Unlock()
	for _, n := range c.nodes {
		c.wire.peersChanged(n)
		n.poke()
	}
}

// counts is how often the main events have happened, for the log.
func (c *cluster) counts() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d binds, %d fences, %d tenures lost, %d votes to move without the API server", c.eventCount["binds"], c.eventCount["the claims of a node are voided"],
		c.eventCount["the node lease is lost: this node gives up its VIPs and begins a new epoch"], c.eventCount["agreements"])
}
