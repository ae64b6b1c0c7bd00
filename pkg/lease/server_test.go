package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
)

// A server is an API server for Leases: objects with versions, compare-and-swap,
// and a log of all that happened, which each client's watch reads at its own pace.
type server struct {
	mu      sync.Mutex
	version uint64
	objects map[vip.Key]*coordinationv1.Lease
	log     []event
	writes  int
}

type event struct {
	key   vip.Key
	lease *coordinationv1.Lease // nil: deleted
	at    time.Time
}

// trace is the last n events that were no mere renewals.
func (s *server) trace(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	last := map[vip.Key]string{}
	for _, e := range s.log {
		text := "deleted"
		if e.lease != nil {
			text = fmt.Sprintf("%s %v epoch %d", holder(e.lease), e.lease.Annotations, transitions(e.lease))
		}
		if last[e.key] != text {
			lines = append(lines, fmt.Sprintf("%s %s %s", e.at.Format("04:05.000"), e.key.Name, text))
		}
		last[e.key] = text
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func newServer() *server { return &server{objects: make(map[vip.Key]*coordinationv1.Lease)} }

// put writes l if its resourceVersion is that of what is there ("" = nothing is).
func (s *server) put(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	k := keyOf(l)
	have := s.objects[k]
	switch {
	case have != nil && l.ResourceVersion == "":
		return nil, apierrors.NewAlreadyExists(leases, l.Name)
	case have == nil && l.ResourceVersion != "":
		return nil, apierrors.NewNotFound(leases, l.Name)
	case have != nil && have.ResourceVersion != l.ResourceVersion:
		return nil, apierrors.NewConflict(leases, l.Name, errors.New("the object has been modified"))
	}
	s.version++
	l = l.DeepCopy()
	l.ResourceVersion = strconv.FormatUint(s.version, 10)
	s.objects[k] = l
	s.log = append(s.log, event{k, l, time.Now()})
	return l, nil
}

func (s *server) remove(k vip.Key, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	have := s.objects[k]
	if have == nil {
		return apierrors.NewNotFound(leases, k.Name)
	}
	if version != "" && have.ResourceVersion != version {
		return apierrors.NewConflict(leases, k.Name, errors.New("the object has been modified"))
	}
	s.version++
	delete(s.objects, k)
	s.log = append(s.log, event{k, nil, time.Now()})
	return nil
}

// at is what is there; it must not be changed.
func (s *server) at(k vip.Key) *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[k]
}

// count is how many writes have been asked for.
func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// String is the leases as a person reads them.
func (s *server) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(s.objects), vip.Key.Compare) {
		x := s.objects[k]
		fmt.Fprintf(&b, "%s %s", k.Name, holder(x))
		if f := fencedAt(x); f != 0 && f == transitions(x) {
			b.WriteString(" fenced")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// A client is one node's way to the server. Its cache lags; its way can be cut.
type client struct {
	s     *server
	wake  func()
	mu    sync.Mutex
	cache map[vip.Key]*coordinationv1.Lease
	next  int           // the next event of the log to be shown
	lag   time.Duration // between an event and the cache showing it
	delay time.Duration // of a request
	cut   bool          // nothing goes through
	deaf  bool          // only the watch is cut
	lose  bool          // writes take effect, but their answers are lost
}

func newClient(s *server) *client {
	return &client{s: s, wake: func() {}, cache: map[vip.Key]*coordinationv1.Lease{}, lag: 5 * time.Millisecond, delay: 3 * time.Millisecond}
}

// watch shows the cache what has happened, a little later.
func (c *client) watch(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		lag, blind := c.lag, c.cut || c.deaf
		c.mu.Unlock()
		time.Sleep(lag)
		if blind {
			continue
		}
		c.s.mu.Lock()
		events := c.s.log[c.next:]
		c.s.mu.Unlock()
		c.mu.Lock()
		for _, e := range events {
			if e.lease == nil {
				delete(c.cache, e.key)
			} else {
				c.cache[e.key] = e.lease
			}
		}
		c.next += len(events)
		c.mu.Unlock()
		if len(events) > 0 {
			c.wake()
		}
	}
}

// reach waits as long as a request takes to arrive.
func (c *client) reach(ctx context.Context) error {
	c.mu.Lock()
	delay, cut := c.delay, c.cut
	c.mu.Unlock()
	if cut {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
		return nil
	}
}

func (c *client) answer(l *coordinationv1.Lease, err error) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lose {
		return nil, errors.New("the connection broke")
	}
	return l, err
}

func (c *client) Synced() bool { return true }

func (c *client) All() []*coordinationv1.Lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.cache))
}

func (c *client) Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if l := c.s.objects[vip.Key{Namespace: namespace, Name: name}]; l != nil {
		return l, nil
	}
	return nil, apierrors.NewNotFound(leases, name)
}

func (c *client) Create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return c.Update(ctx, l)
}

func (c *client) Update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if err := c.reach(ctx); err != nil {
		return nil, err
	}
	return c.answer(c.s.put(l))
}

func (c *client) Delete(ctx context.Context, namespace, name, version string) error {
	if err := c.reach(ctx); err != nil {
		return err
	}
	return c.s.remove(vip.Key{Namespace: namespace, Name: name}, version)
}

// A node is Leases on a client, wanting what it is told to.
type node struct {
	*Leases
	*client
	name string
	stop context.CancelFunc
	done chan struct{}
}

const (
	duration = 15 * time.Second
	deadline = 10 * time.Second
	period   = 2 * time.Second
)

// start runs a node; its own earlier life, if any, must have ended.
func start(t *testing.T, s *server, name string) *node {
	t.Helper()
	c := newClient(s)
	ctx, stop := context.WithCancel(t.Context())
	n := &node{client: c, name: name, stop: stop, done: make(chan struct{})}
	n.Leases = New(c, Options{
		Node: name, Namespace: "kube-system",
		Duration: duration, RenewDeadline: deadline, RetryPeriod: period,
		Info: func() vip.Info { return vip.Info{Interface: "eth0"} },
		Log:  slog.New(slog.DiscardHandler), Poke: func() {},
	})
	c.wake = n.Wake
	watching := make(chan struct{})
	go func() { defer close(watching); c.watch(ctx) }()
	t.Cleanup(func() { stop(); <-n.done; <-watching })
	go func() {
		defer close(n.done)
		if err := n.Run(ctx); err != nil && !c.cut {
			t.Errorf("%s: %v", name, err)
		}
	}()
	return n
}

// kill ends the process without a word.
func (n *node) kill() {
	n.set(func(c *client) { c.cut = true })
	n.stop()
	<-n.done
}

func (n *node) set(f func(*client)) {
	n.client.mu.Lock()
	defer n.client.mu.Unlock()
	f(n.client)
}

// want makes the node contend for the Services of these names.
func (n *node) want(names ...string) {
	var stakes []vip.Stake
	for _, name := range names {
		stakes = append(stakes, vip.Stake{Lease: lk(name), Service: vip.Key{Namespace: "default", Name: name}, Do: vip.Take})
	}
	n.Set(context.Background(), stakes)
}

func lk(name string) vip.Key { return vip.Key{Namespace: "default", Name: "kubevip-" + name} }

func (n *node) world() vip.World {
	w := vip.World{Now: time.Now(), Self: n.name}
	n.Observe(&w)
	return w
}

// serves reports whether the node may announce the Service at this moment.
func (n *node) serves(name string) bool {
	w := n.world()
	c := w.Claims[lk(name)]
	return c.Valid && c.Holder == n.name && w.Tenure.Holds(w.Now) && w.Tenure.Confirmed
}

// A crew is the nodes of a test, some of which are replaced while others look on.
type crew struct {
	mu    sync.Mutex
	nodes []*node
}

func newCrew(nodes ...*node) *crew { return &crew{nodes: nodes} }

func (c *crew) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

func (c *crew) replace(i int, n *node) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[i] = n
	return n
}

// never fails the test if two of the crew may announce the Service at once, at
// any time while it runs.
func never(t *testing.T, ctx context.Context, name string, c *crew) {
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
				t.Errorf("%s may be announced by %v at once at %s\n%s", name, who, time.Now().Format("04:05.000"), c.all()[0].s.trace(12))
				return
			}
			time.Sleep(25 * time.Millisecond)
		}
	}()
}
