package lease

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Store is the Leases of the API server: a cache to read and a way to write.
// Every write is conditional on the resourceVersion of what it replaces, so that
// of two writers one is refused (an error for which apierrors.IsConflict,
// IsAlreadyExists or IsNotFound holds).
type Store interface {
	// Synced reports whether the cache has been filled at least once.
	Synced() bool
	// News is what has happened to the cache since the last call: the Leases in it that
	// are new or other than they were, and the last versions of those that left it, in
	// that order (one that came back is in both). They must not be changed.
	TakeChanges() (changed, dropped []*coordinationv1.Lease)
	// Get reads past the cache.
	Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	Create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	Update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	Delete(ctx context.Context, namespace, name, resourceVersion string) error
}

// A shelf is the newest version known of every Lease: what the cache shows, and
// what this node's own writes returned before the cache shows it.
type shelf struct {
	node  string
	known map[vip.Key]*paper
	mine  map[vip.Key]bool                  // of those, the ones that name this node as their holder
	cache map[vip.Key]*coordinationv1.Lease // what the cache shows
	wrote map[vip.Key]bool                  // known is what our write returned, and the cache has not shown it
	gone  map[vip.Key]uint64                // the last version of what we deleted, until the cache has dropped it
	final map[vip.Key]*coordinationv1.Lease // what left the cache, until that is told
	other map[vip.Key]bool                  // to be looked at: the cache, or what is known, is another
}

func newShelf(node string) shelf {
	return shelf{
		node:  node,
		known: make(map[vip.Key]*paper),
		mine:  make(map[vip.Key]bool),
		cache: make(map[vip.Key]*coordinationv1.Lease),
		wrote: make(map[vip.Key]bool),
		gone:  make(map[vip.Key]uint64),
		final: make(map[vip.Key]*coordinationv1.Lease),
		other: make(map[vip.Key]bool),
	}
}

// at is the version known of a Lease, 0 if there is none.
func (s *shelf) at(k vip.Key) uint64 {
	if x := s.known[k]; x != nil {
		return x.version
	}
	return 0
}

// learn makes l what is known; nil: there is none.
func (s *shelf) learn(k vip.Key, l *coordinationv1.Lease) {
	delete(s.known, k)
	delete(s.mine, k)
	s.other[k] = true
	if l == nil {
		return
	}
	x := peruse(l)
	s.known[k] = x
	if x.holder == s.node {
		s.mine[k] = true
	}
}

// put notes what a write returned.
func (s *shelf) put(l *coordinationv1.Lease) {
	k := keyOf(l)
	s.learn(k, l)
	s.wrote[k] = true
	delete(s.gone, k)
}

// drop notes a delete of our own.
func (s *shelf) drop(l *coordinationv1.Lease) {
	k := keyOf(l)
	s.learn(k, nil)
	s.gone[k] = version(l)
	delete(s.wrote, k)
}

// forget takes back what a write returned: the API server has shown to know
// better (the Lease has been deleted by someone else meanwhile).
func (s *shelf) forget(k vip.Key) {
	s.learn(k, nil)
	delete(s.wrote, k)
}

// read takes over what has happened to the cache. It returns the Leases that are
// new or changed, and the last version of those that are gone.
func (s *shelf) read(news, dropped []*coordinationv1.Lease) (changed, gone []*coordinationv1.Lease) {
	for _, l := range dropped {
		k := keyOf(l)
		delete(s.cache, k)
		s.final[k], s.other[k] = l, true
	}
	for _, l := range news {
		k := keyOf(l)
		s.cache[k], s.other[k] = l, true
	}
	for k := range s.other {
		if l := s.cache[k]; l == nil {
			gone = s.miss(k, gone)
		} else if s.show(k, l) {
			changed = append(changed, l)
		}
		if l := s.final[k]; l != nil && (s.known[k] == nil || s.known[k].version > version(l)) {
			delete(s.final, k)
		}
	}
	clear(s.other)
	return changed, gone
}

// show takes over what the cache shows of a Lease. It reports whether that is news.
func (s *shelf) show(k vip.Key, l *coordinationv1.Lease) bool {
	v := version(l)
	if old, ok := s.gone[k]; ok {
		if v <= old {
			return false // deleted; the cache is behind
		}
		delete(s.gone, k)
	}
	have := s.known[k]
	if have != nil && have.version > v {
		return false // our own write; the cache is behind
	}
	delete(s.wrote, k)
	if have != nil && have.version == v {
		return false
	}
	s.learn(k, l)
	return true
}

// miss takes over that the cache has no such Lease; if it was known it is added to gone.
func (s *shelf) miss(k vip.Key, gone []*coordinationv1.Lease) []*coordinationv1.Lease {
	delete(s.gone, k)
	x := s.known[k]
	if x == nil || s.wrote[k] {
		return gone
	}
	s.learn(k, nil)
	if last := s.final[k]; last != nil && version(last) > x.version {
		return append(gone, last) // it said more before it went
	}
	return append(gone, x.Lease)
}
