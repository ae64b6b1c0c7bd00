// Package leasetest is an API server for Leases, to test nodes' agreement with faults at the worst moment.
package leasetest

import (
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
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Server is an API server for Leases: versions, compare-and-swap, and a log that each Client's watch reads at its
// pace.
type Server struct {
	// Refuse, if not nil, returns admission's error for a write of l. Not to be changed once the Server is in use.
	Refuse func(l *coordinationv1.Lease) error

	mu         sync.Mutex // guards all below, and all fields of all Clients that change
	version    uint64
	objects    map[vip.Key]*coordinationv1.Lease
	events     []event
	firstEvent int           // how many events were forgotten: events[0] has this number
	changed    chan struct{} // closed when there is another event
	writeCount int
	conflicts  int
	trace      []string
}

// How much a Server remembers.
const (
	maxEvents = 4096 // a watch that is further behind begins again
	maxTrace  = 1024 // lines
)

type event struct {
	key     vip.Key
	lease   *coordinationv1.Lease // nil: deleted
	version uint64
}

var (
	leases     = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	errChanged = errors.New("the object has been modified")
	errUID     = errors.New("precondition failed: UID in precondition")
)

// NewServer makes an empty one.
func NewServer() *Server {
	return &Server{objects: make(map[vip.Key]*coordinationv1.Lease), changed: make(chan struct{})}
}

// Put writes l if its resourceVersion ("": none) and its UID, if any, are those of what is there. Over a deleted Lease
// it is a conflict with a UID, as at the API server, and not found without.
func (s *Server) Put(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeCount++
	k := keyOf(l)
	old := s.objects[k]
	if s.Refuse != nil {
		if err := s.Refuse(l); err != nil {
			return nil, err
		}
	}
	switch {
	case old != nil && l.ResourceVersion == "":
		return nil, apierrors.NewAlreadyExists(leases, l.Name)
	case l.ResourceVersion != "" && l.UID != "" && (old == nil || l.UID != old.UID):
		s.conflicts++
		return nil, apierrors.NewConflict(leases, l.Name, errUID)
	case old == nil && l.ResourceVersion != "":
		return nil, apierrors.NewNotFound(leases, l.Name)
	case old != nil && old.ResourceVersion != l.ResourceVersion:
		s.conflicts++
		return nil, apierrors.NewConflict(leases, l.Name, errChanged)
	}
	size := 0
	for key, value := range l.Annotations {
		size += len(key) + len(value)
	}
	if size > 256<<10 { // ValidateAnnotationsSize of k8s.io/apimachinery
		return nil, apierrors.NewInvalid(coordinationv1.SchemeGroupVersion.WithKind("Lease").GroupKind(), l.Name, nil)
	}
	l = l.DeepCopy()
	l.ResourceVersion = strconv.FormatUint(s.version+1, 10)
	if l.UID = types.UID("uid-" + l.ResourceVersion); old != nil {
		l.UID = old.UID
	}
	s.change(k, l)
	return l, nil
}

// Remove deletes a Lease; a version other than "" must be that of what is there.
func (s *Server) Remove(k vip.Key, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeCount++
	old := s.objects[k]
	if old == nil {
		return apierrors.NewNotFound(leases, k.Name)
	}
	if version != "" && old.ResourceVersion != version {
		return apierrors.NewConflict(leases, k.Name, errChanged)
	}
	s.change(k, nil)
	return nil
}

// change stores l (nil: deleted) and wakes the watches. mu is held.
func (s *Server) change(k vip.Key, l *coordinationv1.Lease) {
	if text := traceText(l); text != traceText(s.objects[k]) {
		s.trace = append(dropHalf(s.trace, maxTrace), time.Now().Format("04:05.000 ")+k.Name+" "+text)
	}
	s.version++
	if s.objects[k] = l; l == nil {
		delete(s.objects, k)
	}
	kept := dropHalf(s.events, maxEvents)
	s.firstEvent += len(s.events) - len(kept)
	s.events = append(kept, event{k, l, s.version})
	close(s.changed)
	s.changed = make(chan struct{})
}

// dropHalf is all, without its first n once there are 2n.
func dropHalf[T any](all []T, n int) []T {
	if len(all) < 2*n {
		return all
	}
	return slices.Clone(all[n:])
}

// traceText is what of a Lease a trace shows: all but mere renewals.
func traceText(l *coordinationv1.Lease) string {
	if l == nil {
		return "deleted"
	}
	if owners := l.Annotations["heraldvip.io/owners"]; owners != "" {
		return fmt.Sprintf("%d by %s: %s", deref(l.Spec.LeaseTransitions), deref(l.Spec.HolderIdentity),
			strings.Join(strings.Fields(owners), " "))
	}
	return fmt.Sprintf("%s claim %s, fenced %s, transitions %d",
		deref(l.Spec.HolderIdentity), l.Annotations["heraldvip.io/claim"], l.Annotations["heraldvip.io/fenced"],
		deref(l.Spec.LeaseTransitions))
}

// Trace is the last n changes that were no mere renewals, one a line.
func (s *Server) Trace(n int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.trace[max(0, len(s.trace)-n):], "\n")
}

// Lease is the Lease that is there, or nil. It must not be changed.
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

// Conflicts is how many writes were refused because another writer was faster.
func (s *Server) Conflicts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conflicts
}

// String is name and holder of each Lease, one a line.
func (s *Server) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(s.objects), vip.Key.Compare) {
		x := s.objects[k]
		b.WriteString(k.Name + " " + deref(x.Spec.HolderIdentity))
		if x.Annotations["heraldvip.io/fenced"] != "" {
			b.WriteString(" fenced")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func keyOf(l *coordinationv1.Lease) vip.Key {
	return vip.Key{Namespace: l.Namespace, Name: l.Name}
}

// deref is *p, or the zero value.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Snapshot returns a function that restores all as it is now, as etcd does: Leases have the versions that they had, and
// further versions go on from the last one, and bump. Watches begin again with a list, except with WatchesOn.
func (s *Server) Snapshot() (restore func(bump uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects, version := maps.Clone(s.objects), s.version
	return func(bump uint64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.objects, s.version = maps.Clone(objects), version+bump
		s.firstEvent, s.events = s.firstEvent+len(s.events)+1, nil
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

// LeaseLocked is Lease for Refuse.
func (s *Server) LeaseLocked(k vip.Key) *coordinationv1.Lease { return s.objects[k] }
