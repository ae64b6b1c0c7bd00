package kube

import (
	"context"
	"maps"
	"slices"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
)

// Leases is the Lease objects of the API server: a cache to read, and a way to
// write that has a connection of its own. It is the Store of package lease.
type Leases struct {
	client rest.Interface
	feeds  []*feed[*coordinationv1.Lease]

	mu    sync.RWMutex                      // guards the values of the feeds and all
	fresh map[vip.Key]*coordinationv1.Lease // what News has not told yet
	gone  []*coordinationv1.Lease
}

// newLeases watches by the api watch and writes by the api write.
func newLeases(write, watch *api, o Options) *Leases {
	l := &Leases{client: write.coordination, fresh: make(map[vip.Key]*coordinationv1.Lease)}
	from := func(namespace, fields string) {
		l.feeds = append(l.feeds, &feed[*coordinationv1.Lease]{
			source: source{client: watch.coordination, resource: "leases", namespace: namespace, fields: fields, object: &coordinationv1.Lease{}, log: o.Log},
			mu:     &l.mu, values: make(map[vip.Key]*coordinationv1.Lease),
			read: readLease, changed: l.changed, poke: o.PokeLeases,
		})
	}
	if o.Namespace == "" {
		// Each kubelet renews a Lease there, each ten seconds.
		from("", "metadata.namespace!="+nodeHeartbeats)
		return l
	}
	spaces := append([]string{o.Namespace, o.Announcer}, o.Locks...)
	slices.Sort(spaces)
	for _, namespace := range slices.Compact(spaces) {
		from(namespace, "")
	}
	return l
}

// nodeHeartbeats is the namespace of the kubelets' leases.
const nodeHeartbeats = "kube-node-lease"

func readLease(o runtime.Object) (*coordinationv1.Lease, bool) {
	l := o.(*coordinationv1.Lease)
	l.ManagedFields = nil // large, and not needed to write it back
	return l, true
}

func (l *Leases) changed(k vip.Key, old, now *coordinationv1.Lease) (matters bool) {
	if now != nil {
		l.fresh[k] = now
		return true
	}
	delete(l.fresh, k)
	if old != nil {
		l.gone = append(l.gone, old)
	}
	return true
}

// Synced reports whether the cache has been filled at least once.
func (l *Leases) Synced() bool {
	for _, f := range l.feeds {
		if !f.synced() {
			return false
		}
	}
	return true
}

// TakeChanges is the Leases that are new or changed since the last call, and the last
// version of each that has left the cache since: of all namespaces (of those that
// matter, if Services of one namespace only are watched) but those of the kubelets.
// They must not be changed. It is for one caller.
func (l *Leases) TakeChanges() (changed, dropped []*coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed, dropped = slices.Collect(maps.Values(l.fresh)), l.gone
	clear(l.fresh)
	l.gone = nil
	return changed, dropped
}

// Get reads a Lease past the cache. Errors are those of apimachinery's
// api/errors, here and below.
func (l *Leases) Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	return l.do(ctx, l.client.Get().Namespace(namespace).Resource("leases").Name(name))
}

// Create writes a new Lease.
func (l *Leases) Create(ctx context.Context, o *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.do(ctx, l.client.Post().Namespace(o.Namespace).Resource("leases").Body(o))
}

// Update replaces a Lease, if it still has the resourceVersion of o.
func (l *Leases) Update(ctx context.Context, o *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.do(ctx, l.client.Put().Namespace(o.Namespace).Resource("leases").Name(o.Name).Body(o))
}

// Delete removes a Lease, if it still has that resourceVersion.
func (l *Leases) Delete(ctx context.Context, namespace, name, resourceVersion string) error {
	return l.client.Delete().Namespace(namespace).Resource("leases").Name(name).MaxRetries(0).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &resourceVersion}}).
		Do(ctx).Error()
}

// do sends a request once: when to try again is for the caller to say, who knows
// how long a claim may last.
func (l *Leases) do(ctx context.Context, r *rest.Request) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	if err := r.MaxRetries(0).Do(ctx).Into(out); err != nil {
		return nil, err
	}
	out.ManagedFields = nil
	return out, nil
}
