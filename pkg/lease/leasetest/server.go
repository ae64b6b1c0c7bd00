// Package leasetest has an API server for Leases, small and honest, on which the
// agreement of nodes can be tested with faults at the worst moment.
package leasetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Server is an API server for Leases: objects with versions, compare-and-swap,
// and a log of all that happened, which each client's watch reads at its own pace.
type Server struct {
	MissingNamespace string // a namespace that does not exist; not to be changed once the Server is in use

	mu         sync.Mutex
	version    uint64
	objects    map[vip.Key]*coordinationv1.Lease
	events     []event
	first      int           // events before this one are forgotten; events[0] is this one
	changed    chan struct{} // closed when there is another event
	writeCount int
	conflicts  int
	trace      []string
	lastTraced map[vip.Key]string // of each Lease in trace
}

// How much a Server remembers.
const (
	history    = 4096 // events; a watch that is further behind begins anew
	traceLines = 1024 // of the trace
)

type event struct {
	key   vip.Key
	lease *coordinationv1.Lease // nil: deleted
	at    time.Time
}

// Trace is the last n events that were no mere renewals.
func (s *Server) Trace(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.trace[max(0, len(s.trace)-n):], "\n")
}

// addTrace keeps e for the trace.
func (s *Server) addTrace(e event) {
	text := "deleted"
	if e.lease != nil {
		text = holder(e.lease) + " claim " + e.lease.Annotations["heraldvip.io/claim"] + ", fenced " + e.lease.Annotations["heraldvip.io/fenced"] +
			", changes " + strconv.Itoa(int(transitions(e.lease)))
	}
	if s.lastTraced[e.key] == text {
		return
	}
	s.lastTraced[e.key] = text
	if len(s.trace) >= 2*traceLines {
		s.trace = slices.Clone(s.trace[traceLines:])
	}
	s.trace = append(s.trace, e.at.Format("04:05.000 ")+e.key.Name+" "+text)
}

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// NewServer makes an empty one.
func NewServer() *Server {
	return &Server{objects: make(map[vip.Key]*coordinationv1.Lease), lastTraced: make(map[vip.Key]string), changed: make(chan struct{})}
}

// Put writes l if its resourceVersion is that of what is there ("" = nothing is).
func (s *Server) Put(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeCount++
	k := keyOf(l)
	have := s.objects[k]
	switch {
	case k.Namespace == s.MissingNamespace && s.MissingNamespace != "":
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, k.Namespace)
	case have != nil && l.ResourceVersion == "":
		return nil, apierrors.NewAlreadyExists(leases, l.Name)
	case have == nil && l.ResourceVersion != "":
		return nil, apierrors.NewNotFound(leases, l.Name)
	case have != nil && have.ResourceVersion != l.ResourceVersion:
		s.conflicts++
		return nil, apierrors.NewConflict(leases, l.Name, errors.New("the object has been modified"))
	}
	s.version++
	l = l.DeepCopy()
	l.ResourceVersion = strconv.FormatUint(s.version, 10)
	s.objects[k] = l
	s.addEvent(event{k, l, time.Now()})
	return l, nil
}

// Remove deletes a Lease; a version other than "" must be that of what is there.
func (s *Server) Remove(k vip.Key, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeCount++
	have := s.objects[k]
	if have == nil {
		return apierrors.NewNotFound(leases, k.Name)
	}
	if version != "" && have.ResourceVersion != version {
		return apierrors.NewConflict(leases, k.Name, errors.New("the object has been modified"))
	}
	s.version++
	delete(s.objects, k)
	s.addEvent(event{k, nil, time.Now()})
	return nil
}

func (s *Server) addEvent(e event) {
	s.addTrace(e)
	if len(s.events) >= 2*history {
		s.events, s.first = slices.Clone(s.events[history:]), s.first+history
	}
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Lease is what is there; it must not be changed.
func (s *Server) Lease(k vip.Key) *coordinationv1.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[k]
}

// Writes is how many writes have been asked for.
func (s *Server) Writes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writeCount
}

// Conflicts is how many writes another one came before.
func (s *Server) Conflicts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflicts
}

// String is the leases as a person reads them.
func (s *Server) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(s.objects), vip.Key.Compare) {
		x := s.objects[k]
		fmt.Fprintf(&b, "%s %s", k.Name, holder(x))
		if x.Annotations["heraldvip.io/fenced"] != "" {
			b.WriteString(" fenced")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Faults are what is wrong with a Client's way to the Server.
type Faults struct {
	Lag         time.Duration // between an event and the cache showing it
	Delay       time.Duration // of a request
	Cut         bool          // nothing goes through
	WatchCut    bool          // only the watch is cut
	LoseAnswers bool          // writes take effect, but their answers are lost
}

// Well is a way on which nothing is wrong.
var NoFaults = Faults{Lag: 5 * time.Millisecond, Delay: 3 * time.Millisecond}

// A Client is one node's way to the server. Its cache lags; its way can be cut.
type Client struct {
	server        *Server
	wake          func()
	mu            sync.Mutex
	cache         map[vip.Key]*coordinationv1.Lease
	changed       map[vip.Key]bool // what News has not told yet
	dropped       []*coordinationv1.Lease
	next          int // the next event to be shown
	faults        Faults
	faultsChanged chan struct{} // closed when fault changes
}

// NewClient makes a way to s on which nothing is wrong. wake is called when the
// cache has changed. Watch keeps the cache.
func NewClient(s *Server, wake func()) *Client {
	return &Client{
		server: s, wake: wake, cache: map[vip.Key]*coordinationv1.Lease{}, changed: map[vip.Key]bool{}, next: -1,
		faults: NoFaults, faultsChanged: make(chan struct{}),
	}
}

// Watch shows the cache what has happened, a little later, until ctx ends.
func (c *Client) Watch(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		lag, blind, other, next := c.faults.Lag, c.faults.Cut || c.faults.WatchCut, c.faultsChanged, c.next
		c.mu.Unlock()
		c.server.mu.Lock()
		behind, news := next < c.server.first+len(c.server.events), c.server.changed
		c.server.mu.Unlock()
		if !behind || blind {
			if blind {
				news = nil
			}
			select {
			case <-ctx.Done():
			case <-other:
			case <-news:
			}
			continue
		}
		time.Sleep(lag)
		c.mu.Lock()
		blind = c.faults.Cut || c.faults.WatchCut
		c.mu.Unlock()
		if !blind {
			c.applyEvents()
		}
	}
}

// applyEvents takes over what has happened.
func (c *Client) applyEvents() {
	c.server.mu.Lock()
	events, all := c.server.events, map[vip.Key]*coordinationv1.Lease(nil)
	end := c.server.first + len(events)
	c.mu.Lock()
	if c.next < c.server.first { // as a list does, of which a watch goes on
		all = maps.Clone(c.server.objects)
	} else {
		events = events[c.next-c.server.first:]
	}
	c.server.mu.Unlock()
	if all != nil {
		for k := range c.cache {
			if all[k] == nil {
				c.setCached(k, nil)
			}
		}
		for k, l := range all {
			c.setCached(k, l)
		}
	} else {
		for _, e := range events {
			c.setCached(e.key, e.lease)
		}
	}
	c.next = end
	c.mu.Unlock()
	c.wake()
}

// setCached puts a Lease into the cache; nil takes it out.
func (c *Client) setCached(k vip.Key, l *coordinationv1.Lease) {
	have := c.cache[k]
	switch {
	case have == l:
	case l != nil:
		c.cache[k], c.changed[k] = l, true
	default:
		delete(c.cache, k)
		delete(c.changed, k)
		c.dropped = append(c.dropped, have)
	}
}

// delayRequest waits as long as a request takes to arrive.
func (c *Client) delayRequest(ctx context.Context) error {
	c.mu.Lock()
	delay, cut := c.faults.Delay, c.faults.Cut
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

func (c *Client) loseAnswer(l *coordinationv1.Lease, err error) (*coordinationv1.Lease, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.faults.LoseAnswers {
		return nil, errors.New("the connection broke")
	}
	return l, err
}

// Synced is always true: an empty cache is one.
func (c *Client) Synced() bool { return true }

// TakeChanges is what is new or changed in the cache since the last call, and the last
// versions of what left it.
func (c *Client) TakeChanges() (changed, dropped []*coordinationv1.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.changed {
		changed = append(changed, c.cache[k])
	}
	clear(c.changed)
	dropped, c.dropped = c.dropped, nil
	return changed, dropped
}

// Get reads past the cache.
func (c *Client) Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	if err := c.delayRequest(ctx); err != nil {
		return nil, err
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if l := c.server.objects[vip.Key{Namespace: namespace, Name: name}]; l != nil {
		return l, nil
	}
	return nil, apierrors.NewNotFound(leases, name)
}

// Create writes a Lease that must not exist.
func (c *Client) Create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return c.Update(ctx, l)
}

// Update writes a Lease over the version it names.
func (c *Client) Update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if err := c.delayRequest(ctx); err != nil {
		return nil, err
	}
	return c.loseAnswer(c.server.Put(l))
}

// Delete removes a Lease of the version named.
func (c *Client) Delete(ctx context.Context, namespace, name, version string) error {
	if err := c.delayRequest(ctx); err != nil {
		return err
	}
	return c.server.Remove(vip.Key{Namespace: namespace, Name: name}, version)
}

// SetFaults changes what is wrong with the way.
func (c *Client) SetFaults(change func(*Faults)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.faults)
	close(c.faultsChanged)
	c.faultsChanged = make(chan struct{})
}

// Faults is what is wrong with the way.
func (c *Client) Faults() Faults {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.faults
}

func keyOf(l *coordinationv1.Lease) vip.Key {
	return vip.Key{Namespace: l.Namespace, Name: l.Name}
}

func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func transitions(l *coordinationv1.Lease) int32 {
	if l.Spec.LeaseTransitions == nil {
		return 0
	}
	return *l.Spec.LeaseTransitions
}

// Trace is what the Server has seen.
func (c *Client) Trace(n int) string { return c.server.Trace(n) }
