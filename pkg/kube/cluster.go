package kube

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
)

// Options of a Cluster.
type Options struct {
	Namespace string   // watch the Services of this namespace only (svc_namespace); "" for all
	Announcer string   // the namespace of node leases
	Locks     []string // the namespaces of other leases: for all Services (svc_leasename), of the control plane (vip_leasename)
	Node      string   // this node's name, for Events
	NoUpdates bool     // write nothing to Services (disable_service_updates)
	// Annotations is the prefix of annotations of this node's own Node object that are
	// kept; "" keeps none (annotation).
	Annotations string

	Servers *Servers // to be told the addresses of the API servers, or nil

	Log        *slog.Logger
	Poke       func() // called when the World has changed; must not block
	PokeLeases func() // called when a Lease has changed; must not block
}

// A Cluster is what the API server knows: caches of it, and the parts that write
// to it. With Options.Namespace set it needs no permission outside the namespaces
// that Options names, and knows neither Nodes nor the Service ranges.
type Cluster struct {
	metrics  *metrics
	host     netip.Addr // the API server's address as configured, if it is one
	servers  *Servers   // or nil
	feeds    []task
	leases   *Leases
	statuses *Statuses
	notes    *Notes
	home     string         // the announcers' namespace
	secrets  rest.Interface // for one Secret in it

	mu       sync.RWMutex // guards the values of the feeds and all below
	services *feed[*record]
	slices   *feed[*slice]
	nodes    *feed[*vip.Node]      // nil if Nodes are not watched
	ranges   *feed[[]netip.Prefix] // nil if ServiceCIDRs are not watched

	parts map[vip.Key]map[vip.Key]*slice // by Service, its slices by name
	uses  map[netip.Addr]*use

	// What Observe hands out is made anew when something changed, never changed.
	dirty    map[vip.Key]bool // Services to be taken over into listed
	listed   []vip.Service    // sorted by Key
	stale    bool             // node list and reserved are to be made anew
	nodeList []vip.Node
	reserved []vip.ReservedRange
}

// A task is a long-lived goroutine.
type task interface {
	Run(ctx context.Context) error
	String() string
}

// New makes a Cluster of a way to the API server (see Connect). It connects to
// nothing yet.
func New(cfg *rest.Config, o Options) (*Cluster, error) {
	m := newMetrics()
	a, err := newAPI(cfg, m, o.Log)
	if err != nil {
		return nil, err
	}
	apart, err := newAPI(Separate(cfg), m, nil)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		metrics: m, servers: o.Servers,
		home:    o.Announcer,
		secrets: a.core,
		parts:   make(map[vip.Key]map[vip.Key]*slice),
		uses:    make(map[netip.Addr]*use),
		dirty:   make(map[vip.Key]bool),
	}
	if u, _, err := rest.DefaultServerUrlFor(cfg); err == nil {
		c.host, _ = netip.ParseAddr(u.Hostname())
		c.host = c.host.Unmap()
	}
	c.watch(a, o)
	c.leases = newLeases(apart, a, o)
	for _, f := range c.leases.feeds {
		c.feeds = append(c.feeds, f)
	}
	c.statuses = newStatuses(c, a, o)
	c.notes = newNotes(a, o, m)
	return c, nil
}

// watch sets up the feeds.
func (c *Cluster) watch(a *api, o Options) {
	from := func(client rest.Interface, resource string, object runtime.Object) source {
		return source{client: client, resource: resource, namespace: o.Namespace, object: object, log: o.Log}
	}
	c.services = &feed[*record]{
		source: from(a.core, "services", &corev1.Service{}), mu: &c.mu, values: make(map[vip.Key]*record),
		read:    func(o runtime.Object) (*record, bool) { return readService(o.(*corev1.Service)), true },
		changed: c.serviceChanged, poke: o.Poke,
	}
	c.slices = &feed[*slice]{
		source: from(a.discovery, "endpointslices", &discoveryv1.EndpointSlice{}), mu: &c.mu, values: make(map[vip.Key]*slice),
		read: func(o runtime.Object) (*slice, bool) {
			s := readSlice(o.(*discoveryv1.EndpointSlice))
			return s, s != nil
		},
		changed: c.sliceChanged, poke: o.Poke,
	}
	c.feeds = []task{c.services, c.slices}
	if o.Namespace != "" {
		return // Nodes and ServiceCIDRs have no namespace: a Role can't grant them
	}
	c.nodes = &feed[*vip.Node]{
		source: from(a.core, "nodes", &corev1.Node{}), mu: &c.mu, values: make(map[vip.Key]*vip.Node),
		read: func(x runtime.Object) (*vip.Node, bool) {
			n, prefix := x.(*corev1.Node), ""
			if n.Name == o.Node {
				prefix = o.Annotations
			}
			return readNode(n, prefix), true
		},
		changed: c.nodeChanged, poke: o.Poke,
	}
	c.ranges = &feed[[]netip.Prefix]{
		source: from(a.networking, "servicecidrs", &networkingv1.ServiceCIDR{}), mu: &c.mu, values: make(map[vip.Key][]netip.Prefix),
		read:    func(o runtime.Object) ([]netip.Prefix, bool) { return readRange(o.(*networkingv1.ServiceCIDR)), true },
		changed: c.rangeChanged, poke: o.Poke,
	}
	c.feeds = append(c.feeds, c.nodes, c.ranges)
}

// Annotations are those of a Node object below Options.Annotations.
func (c *Cluster) Annotations(name string) map[string]vip.Secret {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.nodes == nil {
		return nil
	}
	if n := c.nodes.values[vip.Key{Name: name}]; n != nil {
		return n.Annotations // replaced as a whole, never changed
	}
	return nil
}

// NodeUID is the UID of a Node, for owner references; "" if Nodes are not
// watched or it is not known.
func (c *Cluster) NodeUID(name string) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.nodes == nil || c.nodes.values[vip.Key{Name: name}] == nil {
		return ""
	}
	return c.nodes.values[vip.Key{Name: name}].UID
}

// String names the task.
func (c *Cluster) String() string { return "kube: caches" }

// Run keeps the caches until ctx ends.
func (c *Cluster) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range c.feeds {
		g.Go(func() error { return f.Run(ctx) })
	}
	return g.Wait()
}

// Synced reports whether all that the World needs has been read once. Nodes and
// Service ranges that the API server refuses to show are gone without.
func (c *Cluster) Synced() bool {
	if !c.services.synced() || !c.slices.synced() {
		return false
	}
	if c.nodes == nil {
		return true
	}
	return (c.nodes.synced() || c.nodes.refused()) && (c.ranges.synced() || c.ranges.refused())
}

// Leases is the Lease objects.
func (c *Cluster) Leases() *Leases { return c.leases }

// Statuses is the part that writes the status of Services.
func (c *Cluster) Statuses() *Statuses { return c.statuses }

// Notes is the part that writes Events.
func (c *Cluster) Notes() *Notes { return c.notes }

// Collectors is the metrics of the API server's side.
func (c *Cluster) Collectors() []prometheus.Collector { return c.metrics.collectors() }

// Observe fills in what the API server knows: Synced, Services (those of type
// LoadBalancer, and those that still carry a mark of having been), Nodes and
// Reserved. What it hands out is shared by all passes and must not be changed.
func (c *Cluster) Observe(w *vip.World) {
	w.Synced = c.Synced()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refresh()
	w.Services, w.Nodes, w.Reserved = c.listed, c.nodeList, c.reserved
}

// refresh brings up to date what Observe hands out. An unchanged cluster costs
// nothing, a changed one a copy.
func (c *Cluster) refresh() {
	if len(c.dirty) > 0 {
		c.listed = c.merge()
		clear(c.dirty)
		c.stale = true
	}
	if !c.stale {
		return
	}
	c.stale = false
	if c.servers != nil {
		c.servers.know(c.apiServers())
	}
	c.nodeList = nil
	if c.nodes != nil {
		for _, n := range c.nodes.values {
			c.nodeList = append(c.nodeList, *n)
		}
		slices.SortFunc(c.nodeList, func(a, b vip.Node) int { return cmp.Compare(a.Name, b.Name) })
	}
	c.reserved = c.reserve()
}

// apiServers is the addresses of all API servers.
func (c *Cluster) apiServers() []netip.Addr {
	var all []netip.Addr
	for _, s := range c.parts[apiService] {
		all = append(all, s.addrs...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// merge is listed with the dirty Services replaced, added or left out.
func (c *Cluster) merge() []vip.Service {
	fresh := make([]vip.Service, 0, len(c.dirty))
	for k := range c.dirty {
		if r := c.services.values[k]; r != nil && r.listed() {
			s := r.Service
			s.Endpoints = union(c.parts[k])
			fresh = append(fresh, s)
		}
	}
	slices.SortFunc(fresh, func(a, b vip.Service) int { return a.Key.Compare(b.Key) })
	out := make([]vip.Service, 0, len(c.listed)+len(fresh))
	for i := range c.listed {
		k := c.listed[i].Key
		for len(fresh) > 0 && fresh[0].Key.Compare(k) < 0 {
			out, fresh = append(out, fresh[0]), fresh[1:]
		}
		if !c.dirty[k] {
			out = append(out, c.listed[i])
		}
	}
	return append(out, fresh...)
}

// current is a Service as the cache has it, or nil.
func (c *Cluster) current(k vip.Key) *record {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.services.values[k]
}
