// Package kube is Herald's only way to the Kubernetes API server, but for what Leases mean. It watches Services,
// EndpointSlices, Nodes, ServiceCIDRs and Leases, and converts each object to the values of package vip once, when it
// arrives, so that a pass of the agent only collects them. It writes the status of Services and Events.
//
//	API server -> Reflector (list, watch) -> reflectorStore -> Cluster.Observe -> World
//	Plan -> Statuses.Put, Events.Put -> their Run -> API server
//
// Leases are handed on as they are: package lease knows what they mean. They are written over a connection of their
// own, so that a renewal never waits behind anything else.
package kube

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/heraldvip/herald/pkg/vip"
)

// Options of a Cluster.
type Options struct {
	Namespace          string    // watch the Services of this namespace only (svc_namespace); "" for all
	NodeLeaseNamespace string    // the namespace of node leases
	Leases             []vip.Key // other leases: for all Services (svc_leasename), of the control plane (vip_leasename)
	Node               string    // this node's name, for Events
	Egress             bool      // watch the pods of Services with kube-vip.io/egress
	NoUpdates          bool      // write nothing to Services (disable_service_updates)
	// NoServices: nothing needs Services (svc_enable=false). Without Namespace default/kubernetes is watched, if
	// permitted.
	NoServices bool
	// Annotations is the prefix of annotations of this node's Node that are kept; "" keeps none.
	Annotations string

	Pools vip.Key // the ConfigMap of pools; zero for none, as it must be with Namespace

	Servers *Servers // is given the addresses of the API servers; may be nil

	Log        *slog.Logger
	Poke       func() // called when the World has changed; must not block
	PokeLeases func() // called when a Lease has changed; must not block

	relists *atomic.Int64 // set by New
}

// A Cluster is what the API server knows, and Mailboxes for writes. With Options.Namespace it needs no rights
// elsewhere, and knows neither Nodes nor ServiceCIDRs.
type Cluster struct {
	o Options
	*metrics
	host    netip.Addr                        // the API server's address as configured, if it is one
	watches []func(ctx context.Context) error // Run of all stores
	secrets rest.Interface                    // for Secrets in Options.NodeLeaseNamespace

	Leases   *Leases   // the cache of Lease objects
	Statuses *Statuses // the Mailbox for the status of Services
	Events   *Events   // the Mailbox for Events
	// Assignments is the Mailbox for addresses of Services.
	Assignments Assignments

	// mu guards the stores' values and what follows; it is never held while waiting.
	mu       sync.RWMutex
	services *reflectorStore[cachedService]
	slices   *reflectorStore[cachedSlice]
	pods     *pods
	nodes    *reflectorStore[vip.Node]       // stays empty with Options.Namespace
	cidrs    *reflectorStore[[]netip.Prefix] // ServiceCIDRs; stays empty with Options.Namespace

	configMaps *reflectorStore[vip.PoolSource]    // of pools, the one; nil without Options.Pools
	namespaces *reflectorStore[map[string]string] // labels; nil without Options.Pools

	slicesOf  map[vip.Key]map[vip.Key]*cachedSlice // by Service, its slices by name
	requested map[netip.Addr]int                   // how many Services of type LoadBalancer request the address

	// What Observe hands out is replaced by changes, never modified.
	changed                   map[vip.Key]bool // Services for which worldServices is out of date
	worldServices             []vip.Service    // sorted by Key
	outdated                  bool             // worldNodes and worldReserved are out of date
	nameChecked, emptyChecked bool             // whether warnOfNames has looked
	worldNodes                []vip.Node       // sorted by name
	worldReserved             []vip.ReservedRange
	lastPools                 *vip.PoolSource // the last that there was
	worldPools                *vip.PoolSource // nil: none, or out of date
}

// New makes a Cluster of Connect's configuration, which connects in Run.
func New(cfg *rest.Config, o Options) (*Cluster, error) {
	m := newMetrics()
	o.relists = &atomic.Int64{}
	watching := rest.CopyConfig(cfg)
	if watching.Dial == nil {
		watching.Dial = dial
	}
	connections := connrotation.NewDialer(watching.Dial)
	watching.Dial = connections.DialContext
	main, err := newClients(watching, m, o.Log)
	if err != nil {
		return nil, err
	}
	separate, err := newClients(leaseConfig(cfg, o.Servers), m, nil)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		o: o, metrics: m, secrets: main.core,
		slicesOf:  make(map[vip.Key]map[vip.Key]*cachedSlice),
		requested: make(map[netip.Addr]int),
		changed:   make(map[vip.Key]bool),
	}
	if u, _, err := rest.DefaultServerUrlFor(cfg); err == nil {
		c.host, _ = netip.ParseAddr(u.Hostname())
		c.host = c.host.Unmap()
	}
	c.makeStores(main)
	c.Leases = newLeases(separate, main, o)
	c.Leases.watchAgain = func() {
		o.relists.Add(1)
		connections.CloseAll()
	}
	for _, s := range c.Leases.stores {
		c.watches = append(c.watches, s.Run)
	}
	c.Statuses = newStatuses(o, c.service, m)
	c.Statuses.patch = func(ctx context.Context, k vip.Key, body []byte) (*corev1.Service, error) {
		out := &corev1.Service{}
		r := main.core.Patch(types.StrategicMergePatchType).Namespace(k.Namespace).Resource("services").Name(k.Name)
		return out, r.SubResource("status").Body(body).MaxRetries(0).Do(ctx).Into(out)
	}
	c.Assignments = Assignments{c.Statuses}
	c.Events = newEvents(main, o, m)
	return c, nil
}

// makeStores makes the stores of all but Leases, with their watches.
func (c *Cluster) makeStores(main *clients) {
	o := c.o
	c.services = newReflectorStore(o, &c.mu, main.core, "services", func(object *corev1.Service) *cachedService {
		s := readService(object)
		if !o.Pools.IsZero() {
			s.Labels = firstLabels(object.Labels)
		}
		return s
	})
	c.slices = newReflectorStore(o, &c.mu, main.discovery, "endpointslices", readSlice)
	c.nodes = newReflectorStore(o, &c.mu, main.core, "nodes", func(n *corev1.Node) *vip.Node {
		prefix := ""
		if n.Name == o.Node {
			prefix = o.Annotations
		}
		node := readNode(n, prefix)
		if !o.Pools.IsZero() {
			node.Labels = n.Labels
		}
		return node
	})
	if o.NoServices {
		for _, r := range []*watchedResource{&c.services.watchedResource, &c.slices.watchedResource} {
			r.optional, r.namespace, r.fields = true, kubernetesService.Namespace, "metadata.name="+kubernetesService.Name
		}
		c.nodes.doWithoutAfter = 1 // an address whose owner was killed ends before three refusals are in
	}
	c.cidrs = newReflectorStore(o, &c.mu, main.networking, "servicecidrs",
		func(x *networkingv1.ServiceCIDR) *[]netip.Prefix { return new(parsePrefixes(x.Spec.CIDRs)) })
	c.services.onChange, c.slices.onChange = c.serviceChanged, c.sliceChanged
	c.nodes.onChange = func(vip.Key, *vip.Node, *vip.Node) bool { c.outdated = true; return true }
	c.cidrs.onChange = func(vip.Key, *[]netip.Prefix, *[]netip.Prefix) bool { c.outdated = true; return true }
	c.pods = newPods(c, main.core)
	if !o.NoServices || o.Namespace == "" {
		c.watches = append(c.watches, c.services.Run, c.slices.Run, c.pods.Run)
	}
	if o.Namespace == "" { // Nodes and ServiceCIDRs have no namespace: a Role can't grant them
		c.watches = append(c.watches, c.nodes.Run, c.cidrs.Run)
	}
	c.watchPools(main)
}

// newReflectorStore makes a store in o.Namespace; its onChange is still to be set.
func newReflectorStore[O runtime.Object, V any](o Options, mu sync.Locker, client rest.Interface, resource string,
	convert func(O) *V) *reflectorStore[V] {
	var object O // nil, but of the type that is watched
	return &reflectorStore[V]{
		watchedResource: watchedResource{client: client, resource: resource, namespace: o.Namespace, object: object,
			log: o.Log, poke: o.Poke, relists: o.relists, doWithoutAfter: failuresBeforeReport},
		mu:      mu,
		values:  make(map[vip.Key]*V),
		convert: func(x runtime.Object) *V { return convert(x.(O)) },
	}
}

// Run keeps the caches until ctx ends.
func (c *Cluster) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, watch := range c.watches {
		g.Go(func() error { return watch(ctx) })
	}
	return g.Wait()
}

// Synced reports whether what the World needs was listed, or can be done without.
func (c *Cluster) Synced() bool {
	everywhere := c.o.Namespace == ""
	services := c.o.NoServices || c.services.synced.Load() && c.slices.synced.Load() &&
		(!everywhere || c.cidrs.listedOrRefused())
	pools := c.o.Pools.IsZero() || c.configMaps.listedOrRefused() && c.namespaces.listedOrRefused()
	return services && pools && (!everywhere || c.nodes.listedOrRefused())
}

// Node returns a cached Node, or a zero one; Annotations only of this node.
func (c *Cluster) Node(name string) vip.Node {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if n := c.nodes.values[vip.Key{Name: name}]; n != nil {
		return *n
	}
	return vip.Node{}
}

// service is a cached Service, or nil, not to be changed.
func (c *Cluster) service(k vip.Key) *cachedService {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.services.values[k]
}
