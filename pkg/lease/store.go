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
	// All is the cache. The Leases must not be changed.
	All() []*coordinationv1.Lease
	// Dropped is the last version of each Lease that has left the cache since the last call.
	Dropped() []*coordinationv1.Lease
	// Get reads past the cache.
	Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	Create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	Update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	Delete(ctx context.Context, namespace, name, resourceVersion string) error
}

// A shelf is the newest version known of every Lease: what the cache shows, and
// what this node's own writes returned before the cache shows it.
type shelf struct {
	known map[vip.Key]*coordinationv1.Lease
	wrote map[vip.Key]uint64                // versions that our writes returned and the cache has not shown
	gone  map[vip.Key]uint64                // the last version of what we deleted, until the cache has dropped it
	final map[vip.Key]*coordinationv1.Lease // what left the cache, until that is told
}

func newShelf() shelf {
	return shelf{
		known: make(map[vip.Key]*coordinationv1.Lease),
		wrote: make(map[vip.Key]uint64),
		gone:  make(map[vip.Key]uint64),
		final: make(map[vip.Key]*coordinationv1.Lease),
	}
}

// at is the version known of a Lease, 0 if there is none.
func (s *shelf) at(k vip.Key) uint64 {
	if x := s.known[k]; x != nil {
		return version(x)
	}
	return 0
}

// put notes what a write returned.
func (s *shelf) put(l *coordinationv1.Lease) {
	k := keyOf(l)
	s.known[k], s.wrote[k] = l, version(l)
	delete(s.gone, k)
}

// drop notes a delete of our own.
func (s *shelf) drop(l *coordinationv1.Lease) {
	k := keyOf(l)
	s.gone[k] = version(l)
	delete(s.known, k)
	delete(s.wrote, k)
}

// forget takes back what a write returned: the API server has shown to know
// better (the Lease has been deleted by someone else meanwhile).
func (s *shelf) forget(k vip.Key) {
	delete(s.known, k)
	delete(s.wrote, k)
}

// read takes over what the cache shows now, and what left it. It returns the
// Leases that are new or changed, and the last version of those that are gone.
func (s *shelf) read(all, dropped []*coordinationv1.Lease) (changed, gone []*coordinationv1.Lease) {
	seen := make(map[vip.Key]bool, len(all))
	for _, l := range dropped {
		s.final[keyOf(l)] = l
	}
	for _, l := range all {
		k := keyOf(l)
		v := version(l)
		seen[k] = true
		if old, ok := s.gone[k]; ok {
			if v <= old {
				continue // deleted; the cache is behind
			}
			delete(s.gone, k)
		}
		have := s.known[k]
		if have != nil && version(have) > v {
			continue // our own write; the cache is behind
		}
		delete(s.wrote, k)
		if have == nil || version(have) != v {
			s.known[k] = l
			changed = append(changed, l)
		}
	}
	for k, x := range s.known {
		if _, mine := s.wrote[k]; !seen[k] && !mine {
			delete(s.known, k)
			if last := s.final[k]; last != nil && version(last) > version(x) {
				x = last // it said more before it went
			}
			gone = append(gone, x)
		}
	}
	for k := range s.final {
		if s.known[k] == nil || version(s.known[k]) > version(s.final[k]) {
			delete(s.final, k)
		}
	}
	for k := range s.gone {
		if !seen[k] {
			delete(s.gone, k)
		}
	}
	return changed, gone
}
