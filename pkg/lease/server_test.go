package lease

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A node is Leases on a client, wanting what it is told to.
type node struct {
	*Leases
	way  *leasetest.Client
	name string
	stop context.CancelFunc
	done chan struct{}
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

// newNode makes a node, with its Options after change. run runs it until it is stopped or
// the test ends, without blocking; returned gets what its Run returned.
func newNode(t *testing.T, s *leasetest.Server, name string, change func(*Options)) (n *node, run func(ended func(error))) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	n = &node{name: name, stop: stop, done: make(chan struct{})}
	n.way = leasetest.NewClient(s, func() { n.Wake() })
	o := Options{
		Node: name, Namespace: "kube-system",
		Timing: quorum.Timing{LeaseDuration: leaseDuration, RenewDeadline: deadline, RetryPeriod: period},
		Info:   func() vip.NodeInfo { return vip.NodeInfo{Interface: "eth0"} },
		Log:    slog.New(slog.DiscardHandler), Poke: func() {},
	}
	change(&o)
	n.Leases = New(n.way, o)
	return n, func(returned func(error)) {
		watching := make(chan struct{})
		watch, ended := context.WithCancel(context.WithoutCancel(ctx)) // it outlives Run, which releases by it
		go func() { defer close(watching); n.way.Watch(watch) }()
		t.Cleanup(func() { stop(); <-n.done; ended(); <-watching })
		go func() {
			defer close(n.done)
			returned(n.Run(ctx))
		}()
	}
}

// kill ends the process without a word.
func (n *node) kill() {
	n.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
	n.stop()
	<-n.done
}

// want makes the node contend for the Services of these names.
func (n *node) want(names ...string) {
	var intents []vip.LeaseIntent
	for _, name := range names {
		intents = append(intents, vip.LeaseIntent{Lease: lk(name), Service: vip.Key{Namespace: "default", Name: name}, Action: vip.Acquire})
	}
	n.world() // as the agent does: it plans with what it has observed
	n.Put(intents)
}

// acquire has the node acquire VIPs that another follows, and returns once all know.
func (n *node) acquire(follower *node, names ...string) {
	n.want(names...)
	time.Sleep(time.Second)
	follower.follow(names...)
	time.Sleep(5 * time.Second)
}

// annotateLease has another program write an annotation on a Lease.
func annotateLease(t *testing.T, s *leasetest.Server, k vip.Key, key, value string) {
	t.Helper()
	x := s.Lease(k).DeepCopy()
	annotate(x, key, value)
	check.Value(s.Put(x))(t)
}

func lk(name string) vip.Key { return vip.Key{Namespace: "default", Name: "kubevip-" + name} }

func (n *node) world() vip.World {
	w := vip.World{Now: time.Now(), Self: n.name}
	n.Observe(&w)
	return w
}

// held is the number of VIP leases that the node holds.
func (n *node) held() (held int) {
	for _, c := range n.world().Claims {
		if c.Valid && c.Holder == n.name {
			held++
		}
	}
	return held
}

// serves reports whether the node may announce the Service at this moment.
func (n *node) serves(name string) bool {
	w := n.world()
	c := w.Claims[lk(name)]
	return c.Valid && c.Holder == n.name && w.Tenure.Holds(w.Now) && w.Tenure.Confirmed
}

// A group is the nodes of a test, some of which are replaced while they are watched.
type group struct {
	mu    sync.Mutex
	nodes []*node
}

func newGroup(nodes ...*node) *group { return &group{nodes: nodes} }

func (c *group) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

func (c *group) replace(i int, n *node) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[i] = n
	return n
}

// neverTwo fails the test if two of the group may announce the Service at once, at
// any time while it runs.
func neverTwo(t *testing.T, ctx context.Context, name string, c *group) {
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var who []string
			for _, n := range c.all() {
				if n.serves(name) {
					who = append(who, n.name)
				}
			}
			if len(who) > 1 {
				t.Errorf("%s may be announced by %v at once at %s\n%s", name, who, time.Now().Format("04:05.000"), c.all()[0].way.Trace(12))
				return
			}
			time.Sleep(25 * time.Millisecond)
		}
	}()
}
