package leasetest

import (
	"context"
	"errors"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/vip"
)

// Faults are what is wrong with a Client's way to the Server.
type Faults struct {
	Lag         time.Duration // between an event and the cache showing it
	Delay       time.Duration // of a request
	AnswerDelay time.Duration // of the answer to a write, which has taken effect by then, or to a read
	Cut         bool          // nothing goes through
	Broken      bool          // requests fail, and do not arrive
	WatchCut    bool          // only the watch is cut
	WatchStuck  bool          // the watch shows nothing until it begins again (WatchAgain)
	// after a restore of etcd the watch goes on from its last version, so it shows nothing before a later one
	WatchesOn   bool
	LoseAnswers bool          // writes take effect, but their answers are lost
	CommitDelay time.Duration // until a write takes effect, also if its sender no longer waits: etcd's disk is slow
	NoAnswers   bool          // writes take effect, and are never answered: whoever waits gives up by itself
	Hang        string        // writes of Leases whose names begin with this do not arrive, and are not answered
}

// NoFaults is a way on which nothing is wrong.
var NoFaults = Faults{Lag: 5 * time.Millisecond, Delay: 3 * time.Millisecond}

// A Client is one node's lagging way to the Server, which can be cut: a lease.Store.
type Client struct {
	*Server
	wake func()

	// Guarded by the Server's mutex:
	cache         map[vip.Key]*coordinationv1.Lease
	fresh         map[vip.Key]bool // of cache, what TakeChanges has not returned yet
	dropped       []*coordinationv1.Lease
	next          int    // the number of the next event to be shown; -1: the watch begins with a list
	shown         uint64 // the last version that the watch has shown
	begun         int    // calls of WatchAgain
	faults        Faults
	faultsChanged chan struct{} // closed when faults changes
}

// NewClient makes a way to s without faults; wake is called when the cache has changed. Watch keeps the cache.
func NewClient(s *Server, wake func()) *Client {
	return &Client{
		Server: s, wake: wake, cache: map[vip.Key]*coordinationv1.Lease{}, fresh: map[vip.Key]bool{}, next: -1,
		faults: NoFaults, faultsChanged: make(chan struct{}),
	}
}

// Watch applies what happens on the Server to the cache, Lag later, until ctx ends.
func (c *Client) Watch(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		lag, cut, faultsChanged, changed := c.faults.Lag, c.watchCut(), c.faultsChanged, c.changed
		behind := c.next < c.firstEvent+len(c.events)
		c.mu.Unlock()
		if behind && !cut {
			time.Sleep(lag)
			c.applyEvents()
			continue
		}
		if cut {
			changed = nil
		}
		select {
		case <-ctx.Done():
		case <-faultsChanged:
		case <-changed:
		}
	}
}

func (c *Client) watchCut() bool { return c.faults.Cut || c.faults.WatchCut || c.faults.WatchStuck }

// WatchAgain has the watch begin again with a list, once it is not cut.
func (c *Client) WatchAgain() {
	c.SetFaults(func(f *Faults) {
		f.WatchStuck, c.next = false, -1
		c.begun++
	})
}

// Begun is how often WatchAgain was called.
func (c *Client) Begun() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

// applyEvents brings the cache up to date, unless the watch is cut.
func (c *Client) applyEvents() {
	c.mu.Lock()
	if c.watchCut() {
		c.mu.Unlock()
		return
	}
	if c.faults.WatchesOn && c.next >= 0 {
		c.next = max(c.next, c.firstEvent)
	}
	if c.next >= c.firstEvent {
		for _, e := range c.events[c.next-c.firstEvent:] {
			if e.version > c.shown {
				c.setCached(e.key, e.lease)
				c.shown = e.version
			}
		}
	} else { // as a list does, after which a watch goes on
		for k := range c.cache {
			if c.objects[k] == nil {
				c.setCached(k, nil)
			}
		}
		for k, l := range c.objects {
			c.setCached(k, l)
		}
		c.shown = c.version
	}
	c.next = c.firstEvent + len(c.events)
	c.mu.Unlock()
	c.wake()
}

// setCached puts a Lease into the cache; nil removes it.
func (c *Client) setCached(k vip.Key, l *coordinationv1.Lease) {
	old := c.cache[k]
	switch {
	case old == l:
	case l != nil:
		c.cache[k], c.fresh[k] = l, true
	default:
		delete(c.cache, k)
		delete(c.fresh, k)
		c.dropped = append(c.dropped, old)
	}
}

// Synced is always true: an empty cache is one.
func (c *Client) Synced() bool { return true }

// TakeChanges is what is new or changed in the cache, and last versions of what left it.
func (c *Client) TakeChanges() (changed, dropped []*coordinationv1.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.fresh {
		changed = append(changed, c.cache[k])
	}
	clear(c.fresh)
	dropped, c.dropped = c.dropped, nil
	return changed, dropped
}

// delay waits as long as a request takes to arrive.
func (c *Client) delay(ctx context.Context) error {
	arrived := time.After(c.Faults().Delay)
	if c.Faults().Cut {
		arrived = nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-arrived:
		if c.Faults().Broken {
			return errBroken
		}
		return nil
	}
}

var errBroken = errors.New("the connection broke")

// Get reads past the cache.
func (c *Client) Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	if err := c.delay(ctx); err != nil {
		return nil, err
	}
	defer func() { time.Sleep(c.Faults().AnswerDelay) }()
	if l := c.Lease(vip.Key{Namespace: namespace, Name: name}); l != nil {
		return l, nil
	}
	return nil, apierrors.NewNotFound(leases, name)
}

// Write writes a Lease over the version it names, or creates it.
func (c *Client) Write(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if err := c.delay(ctx); err != nil {
		return nil, err
	}
	if hang := c.Faults().Hang; hang != "" && strings.HasPrefix(l.Name, hang) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if d := c.Faults().CommitDelay; d > 0 {
		var got *coordinationv1.Lease
		done := make(chan error, 1)
		go func() {
			time.Sleep(d)
			var err error
			got, err = c.Put(l)
			done <- err
		}()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case err := <-done:
			return got, err
		}
	}
	got, err := c.Put(l)
	time.Sleep(c.Faults().AnswerDelay)
	if c.Faults().NoAnswers {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if c.Faults().LoseAnswers {
		return nil, errBroken
	}
	return got, err
}

// Delete removes a Lease of the version named.
func (c *Client) Delete(ctx context.Context, namespace, name, version string) error {
	if err := c.delay(ctx); err != nil {
		return err
	}
	return c.Remove(vip.Key{Namespace: namespace, Name: name}, version)
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
