package kube

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
)

// claimKey is lease.ClaimAnnotation.
const claimKey = "heraldvip.io/claim"

// Leases is a cache of Leases, written over a connection of its own: the Store of package lease.
type Leases struct {
	client    rest.Interface
	stores    []*reflectorStore[coordinationv1.Lease]
	namespace string // of the node leases
	poke      func()

	watchAgain func() // see WatchAgain

	mu sync.Mutex // guards the values of the stores and what follows
	// by how many Services and options; changes of these and of node leases are told
	named   map[vip.Key]int
	told    map[vip.Key]bool                  // Leases that TakeChanges has returned, or will, and that are not deleted
	changed map[vip.Key]*coordinationv1.Lease // since the last call of TakeChanges
	deleted []*coordinationv1.Lease
}

func newLeases(write, watch *clients, o Options) *Leases {
	l := &Leases{
		client: write.coordination, namespace: o.NodeLeaseNamespace, poke: o.PokeLeases,
		named: make(map[vip.Key]int), told: make(map[vip.Key]bool), changed: make(map[vip.Key]*coordinationv1.Lease),
	}
	namespaces := []string{o.Namespace, o.NodeLeaseNamespace}
	for _, k := range o.Leases {
		l.named[k]++
		namespaces = append(namespaces, k.Namespace)
	}
	if slices.Sort(namespaces); o.Namespace == "" {
		namespaces = []string{""}
	}
	o.Poke = o.PokeLeases
	for _, namespace := range slices.Compact(namespaces) {
		o.Namespace = namespace
		s := newReflectorStore(o, &l.mu, watch.coordination, "leases", l.withoutWhatIsLarge)
		s.onChange = l.leaseChanged
		if namespace == "" {
			s.fields = notKubeletLeases
		}
		l.stores = append(l.stores, s)
	}
	return l
}

// notKubeletLeases is a field selector: each kubelet renews a Lease there, each 10 s.
const notKubeletLeases = "metadata.namespace!=" + corev1.NamespaceNodeLease

// withoutManagedFields drops what is large, and not needed for writing.
func withoutManagedFields(o *coordinationv1.Lease) *coordinationv1.Lease {
	o.ManagedFields = nil
	return o
}

// maxLeaseBytes is how large a foreign Lease is kept whole: usual ones have some hundred, but 1.5 MB are possible.
const maxLeaseBytes = 8 << 10

// withoutWhatIsLarge keeps of a large foreign Lease only its holder.
func (l *Leases) withoutWhatIsLarge(o *coordinationv1.Lease) *coordinationv1.Lease {
	o = withoutManagedFields(o)
	if o.Size() <= maxLeaseBytes || o.Namespace == l.namespace {
		return o
	}
	small := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
		CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp,
	}}
	if claim := o.Annotations[claimKey]; len(claim) <= maxName+maxName {
		small.Annotations = map[string]string{claimKey: claim}
	}
	small.Spec = o.Spec
	small.Spec.Strategy, small.Spec.PreferredHolder = nil, nil
	if h := o.Spec.HolderIdentity; h != nil {
		small.Spec.HolderIdentity = new(vip.Truncate(*h, maxName+1))
	}
	return small
}

// leaseChanged tells of a change of a named Lease; mu is held.
func (l *Leases) leaseChanged(k vip.Key, old, new *coordinationv1.Lease) bool {
	isNodeLease := k.Namespace == l.namespace && strings.HasPrefix(k.Name, vip.NodeLeasePrefix)
	if !isNodeLease && l.named[k] == 0 && !l.told[k] {
		return false
	}
	l.tell(k, old, new)
	return true
}

// tell has TakeChanges return the Lease k, new or, deleted, as old; mu is held.
func (l *Leases) tell(k vip.Key, old, new *coordinationv1.Lease) {
	if new != nil {
		l.changed[k], l.told[k] = new, true
		return
	}
	delete(l.changed, k)
	delete(l.told, k)
	l.deleted = append(l.deleted, old)
}

// setNamed counts who names the Lease k, and first tells of it.
func (l *Leases) setNamed(k vip.Key, by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.named[k] += by; l.named[k] == 0 {
		delete(l.named, k)
	}
	if by < 0 || l.told[k] {
		return
	}
	for _, s := range l.stores {
		if x := s.values[k]; x != nil {
			l.tell(k, nil, x)
			l.poke()
		}
	}
}

// Synced reports whether all Leases have been listed once.
func (l *Leases) Synced() bool {
	return !slices.ContainsFunc(l.stores, func(s *reflectorStore[coordinationv1.Lease]) bool { return !s.synced.Load() })
}

// WatchAgain has all watches list again, on a new connection. It does not block.
func (l *Leases) WatchAgain() { l.watchAgain() }

// TakeChanges returns named Leases changed since the last call, for one caller.
func (l *Leases) TakeChanges() (changed, deleted []*coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed, deleted = slices.Collect(maps.Values(l.changed)), l.deleted
	clear(l.changed)
	l.deleted = nil
	return changed, deleted
}

// Get reads a Lease past the cache; errors, here and below, are of api/errors.
func (l *Leases) Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	return send(ctx, l.client.Get().Namespace(namespace).Resource("leases").Name(name))
}

// Write replaces a Lease, if it still has the resourceVersion of o; without one it creates it.
func (l *Leases) Write(ctx context.Context, o *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	r := l.client.Post()
	if o.ResourceVersion != "" {
		r = l.client.Put().Name(o.Name)
	}
	return send(ctx, r.Namespace(o.Namespace).Resource("leases").Body(o))
}

// Delete removes a Lease, if it still has that resourceVersion.
func (l *Leases) Delete(ctx context.Context, namespace, name, resourceVersion string) error {
	return l.client.Delete().Namespace(namespace).Resource("leases").Name(name).MaxRetries(0).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &resourceVersion}}).
		Do(ctx).Error()
}

// send sends a request once: the caller knows a claim's time.
func send(ctx context.Context, r *rest.Request) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	if err := r.MaxRetries(0).Do(ctx).Into(out); err != nil {
		return nil, err
	}
	return withoutManagedFields(out), nil
}
