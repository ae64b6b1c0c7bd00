package kube

import (
	"context"
	"maps"
	"slices"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
)

// Leases is a cache of Lease objects, and a way to write them that has a connection of
// its own. It is the Store of package lease.
type Leases struct {
	client rest.Interface
	stores []*reflectorStore[coordinationv1.Lease]

	mu      sync.Mutex                        // guards the values of the stores, changed and deleted
	changed map[vip.Key]*coordinationv1.Lease // since the last call of TakeChanges
	deleted []*coordinationv1.Lease
}

// newLeases makes Leases that are watched by one connection and written by another.
func newLeases(write, watch *clients, o Options) *Leases {
	l := &Leases{client: write.coordination, changed: make(map[vip.Key]*coordinationv1.Lease)}
	namespaces := []string{""}
	if o.Namespace != "" {
		namespaces = append([]string{o.Namespace, o.NodeLeaseNamespace}, o.LeaseNamespaces...)
		slices.Sort(namespaces)
	}
	o.Poke = o.PokeLeases
	for _, namespace := range slices.Compact(namespaces) {
		o.Namespace = namespace
		s := newReflectorStore(o, &l.mu, watch.coordination, "leases", withoutManagedFields)
		s.onChange = l.leaseChanged
		if namespace == "" {
			s.fields = notKubeletLeases
		}
		l.stores = append(l.stores, s)
	}
	return l
}

// notKubeletLeases is a field selector: each kubelet renews a Lease there, each ten seconds.
const notKubeletLeases = "metadata.namespace!=" + corev1.NamespaceNodeLease

// withoutManagedFields drops what is large, and not needed to write the Lease back.
func withoutManagedFields(o *coordinationv1.Lease) *coordinationv1.Lease {
	o.ManagedFields = nil
	return o
}

// leaseChanged is called by the stores with mu held.
func (l *Leases) leaseChanged(k vip.Key, old, new *coordinationv1.Lease) bool {
	if new != nil {
		l.changed[k] = new
	} else {
		delete(l.changed, k)
		l.deleted = append(l.deleted, old)
	}
	return true
}

// Synced reports whether all Leases have been listed once.
func (l *Leases) Synced() bool {
	return !slices.ContainsFunc(l.stores, func(s *reflectorStore[coordinationv1.Lease]) bool { return !s.synced.Load() })
}

// TakeChanges is the Leases that are new or changed since the last call, and the last version
// of each that was deleted since: of all namespaces but that of the kubelets, or, with
// Options.Namespace, of those that Options names. They must not be changed. It is for
// one caller.
func (l *Leases) TakeChanges() (changed, deleted []*coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed, deleted = slices.Collect(maps.Values(l.changed)), l.deleted
	clear(l.changed)
	l.deleted = nil
	return changed, deleted
}

// Get reads a Lease past the cache. Errors are those of apimachinery's
// api/errors, here and below.
func (l *Leases) Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	return send(ctx, l.client.Get().Namespace(namespace).Resource("leases").Name(name))
}

// Create writes a new Lease.
func (l *Leases) Create(ctx context.Context, o *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return send(ctx, l.client.Post().Namespace(o.Namespace).Resource("leases").Body(o))
}

// Update replaces a Lease, if it still has the resourceVersion of o.
func (l *Leases) Update(ctx context.Context, o *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return send(ctx, l.client.Put().Namespace(o.Namespace).Resource("leases").Name(o.Name).Body(o))
}

// Delete removes a Lease, if it still has that resourceVersion.
func (l *Leases) Delete(ctx context.Context, namespace, name, resourceVersion string) error {
	return l.client.Delete().Namespace(namespace).Resource("leases").Name(name).MaxRetries(0).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &resourceVersion}}).
		Do(ctx).Error()
}

// send sends a request once: whether to try again the caller decides, who knows how
// long a claim may last.
func send(ctx context.Context, r *rest.Request) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	if err := r.MaxRetries(0).Do(ctx).Into(out); err != nil {
		return nil, err
	}
	return withoutManagedFields(out), nil
}
