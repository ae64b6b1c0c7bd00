package lease

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A node is Leases on a client, with an agent that plans as it is told to.
type node struct {
	*Leases
	way   *leasetest.Client
	name  string
	stop  context.CancelFunc
	done  chan struct{}
	pokes mailbox.Signal
	ended atomic.Bool // killed: it sends no heartbeats any more
	info  atomic.Pointer[vip.NodeInfo]

	pass  sync.Mutex        // one pass of the agent, or one look of the test, at a time
	plans map[string]string // by unit: the node that is to have it if nobody has it; the agent's mutex is pass
	gives map[string]string // by unit: the node to which this one is to give it away; "": to nobody
	hangs bool              // the agent carries nothing out
}

const (
	leaseDuration = 15 * time.Second
	deadline      = 10 * time.Second
	period        = 2 * time.Second
)

// start runs a node; its own earlier life, if any, must have ended.
func start(t *testing.T, s *leasetest.Server, name string) *node {
	t.Helper()
	n, run := newNode(t, s, name, func(*Options) {})
	run(func(err error) {
		if err != nil && !n.way.Faults().Cut {
			t.Errorf("%s: %v", name, err)
		}
	})
	return n
}

// newNode makes a node, with its Options after change. run runs it until it is stopped or the test ends, without
// blocking; returned gets what its Run returned.
func newNode(t *testing.T, s *leasetest.Server, name string, change func(*Options)) (n *node, run func(func(error))) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	n = &node{
		name: name, stop: stop, done: make(chan struct{}), pokes: mailbox.NewSignal(),
		plans: map[string]string{}, gives: map[string]string{},
	}
	n.info.Store(&vip.NodeInfo{Interface: "eth0"})
	n.way = leasetest.NewClient(s, func() { n.Wake() })
	o := Options{
		Node: name, Namespace: "kube-system",
		Timing: quorum.Timing{LeaseDuration: leaseDuration, RenewDeadline: deadline, RetryPeriod: period},
		Info:   func() vip.NodeInfo { return *n.info.Load() },
		Log:    slog.New(slog.DiscardHandler), Poke: func() { n.pokes.Send() },
	}
	change(&o)
	n.Leases = New(n.way, o)
	return n, func(returned func(error)) {
		var tasks sync.WaitGroup
		watch, ended := context.WithCancel(context.WithoutCancel(ctx)) // it outlives Run, which releases by it
		tasks.Go(func() { n.way.Watch(watch) })
		tasks.Go(func() { n.runAgent(ctx) })
		t.Cleanup(func() { stop(); <-n.done; ended(); tasks.Wait() })
		go func() {
			defer close(n.done)
			returned(n.Run(ctx))
		}()
	}
}

// runAgent plans when it is poked, and each quarter of a second.
func (n *node) runAgent(ctx context.Context) {
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.pokes:
		case <-ticker.C:
		}
		if ctx.Err() == nil {
			n.plan()
		}
	}
}

// plan makes a pass of the agent: what another has stays where it is, and what nobody has goes where it is told.
func (n *node) plan() {
	n.pass.Lock()
	defer n.pass.Unlock()
	if n.hangs {
		return
	}
	w := vip.World{Now: time.Now(), Self: n.name}
	n.Observe(&w)
	var owners []vip.Owner
	for unit, to := range n.plans {
		c, next := w.Claims[lk(unit)], vip.Owner{Unit: lk(unit), Node: to, Cause: "the test says so"}
		give, gives := n.gives[unit]
		switch {
		case c.Foreign && c.Valid:
			next.Node = ""
		case c.Valid && c.Holder == n.name && gives:
			next.Node = give
		case c.Valid:
			next.Node, next.Stays = c.Holder, c.Holder != n.name
		}
		owners = append(owners, next)
	}
	n.Put(owners)
}

// withServer runs a test with an API server, by a clock of its own.
func withServer(t *testing.T, test func(t *testing.T, s *leasetest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, leasetest.NewServer()) })
}

// withOne runs a test with one node, n1.
func withOne(t *testing.T, test func(t *testing.T, s *leasetest.Server, n1 *node)) {
	t.Helper()
	withServer(t, func(t *testing.T, s *leasetest.Server) { test(t, s, start(t, s, "n1")) })
}

// withPair runs a test with pair.
func withPair(t *testing.T, test func(t *testing.T, s *leasetest.Server, n1, n2 *node)) {
	t.Helper()
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		n1, n2 := pair(t, s)
		test(t, s, n1, n2)
	})
}

// kill ends the process without a word.
func (n *node) kill() {
	n.ended.Store(true)
	cutFromAPI(n)
	n.end()
}

// end stops the process, and waits until it has ended.
func (n *node) end() {
	n.stop()
	<-n.done
}

// want has the node plan these units, and no others: each for itself.
func (n *node) want(units ...string) { n.planFor(n.name, units...) }

// planFor has the node plan these units, and no others, for a node.
func (n *node) planFor(to string, units ...string) {
	n.pass.Lock()
	clear(n.plans)
	clear(n.gives)
	for _, u := range units {
		n.plans[u] = to
	}
	n.pass.Unlock()
	n.plan()
}

// give has the node give these units away to another; "": to nobody.
func (n *node) give(to string, units ...string) {
	n.pass.Lock()
	for _, u := range units {
		n.gives[u] = to
	}
	n.pass.Unlock()
	n.plan()
}

// setHangs has the agent carry nothing out, or go on.
func (n *node) setHangs(hangs bool) {
	n.pass.Lock()
	n.hangs = hangs
	n.pass.Unlock()
	n.pokes.Send()
}

// fault changes what is wrong with the node's way to the API server.
func (n *node) fault(change func(*leasetest.Faults)) { n.way.SetFaults(change) }

// mend has nothing be wrong with the node's way to the API server.
func (n *node) mend() { n.fault(func(f *leasetest.Faults) { *f = leasetest.NoFaults }) }

// cutFromAPI cuts nodes from the API server.
func cutFromAPI(nodes ...*node) {
	for _, n := range nodes {
		n.fault(func(f *leasetest.Faults) { f.Cut = true })
	}
}

// reconnectAPI ends that.
func reconnectAPI(nodes ...*node) {
	for _, n := range nodes {
		n.fault(func(f *leasetest.Faults) { f.Cut = false })
	}
}

// annotateLease has another program write an annotation on a Lease.
func annotateLease(t *testing.T, s *leasetest.Server, k vip.Key, key, value string) {
	t.Helper()
	x := s.Lease(k).DeepCopy()
	annotate(x, key, value)
	check.Value(s.Put(x))(t)
}

// lk is the name of a unit.
func lk(name string) vip.Key { return vip.Key{Namespace: "default", Name: "kubevip-" + name} }

func nodeKey(name string) vip.Key {
	return vip.Key{Namespace: "kube-system", Name: vip.NodeLeasePrefix + name}
}

var tableKey = vip.Key{Namespace: "kube-system", Name: TableName}

// tableOf returns the table that is written.
func tableOf(t *testing.T, s *leasetest.Server) *Table {
	t.Helper()
	x := s.Lease(tableKey)
	if x == nil {
		return newTable(0, nil)
	}
	return check.Value(parseTable(x))(t)
}

// ownerIn returns the owner of a unit in the table that is written.
func ownerIn(t *testing.T, s *leasetest.Server, unit string) string {
	t.Helper()
	return tableOf(t, s).Units[lk(unit)].Owner
}

func (n *node) world() vip.World {
	n.pass.Lock()
	defer n.pass.Unlock()
	w := vip.World{Now: time.Now(), Self: n.name}
	n.Observe(&w)
	return w
}

// claim returns what the node knows of a unit.
func (n *node) claim(unit string) vip.Claim { return n.world().Claims[lk(unit)] }

// member returns what the node knows of another.
func (n *node) member(name string) vip.Member {
	all := n.world().Members
	if i := slices.IndexFunc(all, func(m vip.Member) bool { return m.Name == name }); i >= 0 {
		return all[i]
	}
	return vip.Member{}
}

// serves reports whether the node may announce the unit at this moment.
func (n *node) serves(unit string) bool {
	w := n.world()
	c := w.Claims[lk(unit)]
	return c.Valid && c.Holder == n.name && w.Tenure.Holds(w.Now) && w.Tenure.Confirmed
}

// serving names those of the nodes that may announce the unit at this moment.
func serving(unit string, nodes ...*node) string {
	var who []string
	for _, n := range nodes {
		if n.serves(unit) {
			who = append(who, n.name)
		}
	}
	return strings.Join(who, " ")
}

// waitServes waits until the node serves, and returns how long that took.
func waitServes(t *testing.T, n *node, unit string, limit time.Duration) time.Duration {
	t.Helper()
	return check.True(t, limit, n.name+" serves "+unit, func() bool { return n.serves(unit) })
}

// pair is n1, which has the unit a, and n2, which takes it if n1 has it no more.
func pair(t *testing.T, s *leasetest.Server) (n1, n2 *node) {
	t.Helper()
	n1, n2 = start(t, s, "n1"), start(t, s, "n2")
	n1.want("a")
	time.Sleep(2 * time.Second)
	n2.want("a")
	time.Sleep(3 * time.Second)
	if !n1.serves("a") {
		t.Fatalf("n1 does not serve\n%s", s.Trace(10))
	}
	return n1, n2
}

// neverTwo fails the test if two of the nodes may announce the unit at once, at any time while it runs, for longer than
// a watch takes to show a table.
func neverTwo(t *testing.T, unit string, nodes ...*node) {
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for again := false; t.Context().Err() == nil; {
			who := serving(unit, nodes...)
			two := strings.Contains(who, " ")
			if two && !again { // one was asked before what it did at this very moment, maybe, and the other after
				again = true
				time.Sleep(2 * leasetest.NoFaults.Lag)
				continue
			}
			if again = false; two {
				t.Errorf("%s may be announced by %s at once at %s\n%s", unit, who, time.Now().Format("04:05.000"),
					nodes[0].way.Trace(12))
				return
			}
			time.Sleep(25 * time.Millisecond)
		}
	}()
}

// putLease writes a Lease as another program would.
func putLease(t *testing.T, s *leasetest.Server, k vip.Key, change func(*coordinationv1.Lease)) *coordinationv1.Lease {
	t.Helper()
	x := s.Lease(k)
	if x == nil {
		x = &coordinationv1.Lease{}
		x.Namespace, x.Name = k.Namespace, k.Name
	}
	x = x.DeepCopy()
	change(x)
	return check.Value(s.Put(x))(t)
}

var leasesResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func microTime(at time.Time) *metav1.MicroTime { return new(metav1.NewMicroTime(at)) }
