package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
)

// Observe fills in what the API server knows, not to be changed; a copy only after changes.
func (c *Cluster) Observe(w *vip.World) {
	w.Synced = c.Synced()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.changed) > 0 {
		c.worldServices = c.mergeServices()
		clear(c.changed)
	}
	if c.outdated {
		c.outdated = false
		if c.o.Servers != nil {
			c.o.Servers.setOthers(c.apiServers())
		}
		c.worldNodes = nil
		for _, n := range c.nodes.values {
			c.worldNodes = append(c.worldNodes, *n)
		}
		slices.SortFunc(c.worldNodes, func(a, b vip.Node) int { return cmp.Compare(a.Name, b.Name) })
		c.worldReserved = c.reservedRanges()
	}
	c.warnOfNames(w.Synced)
	w.Services, w.Nodes, w.Reserved = c.worldServices, c.worldNodes, c.worldReserved
	w.EgressPodsPending = w.Synced && c.pods.pending()
	if c.o.NoServices {
		w.Services = nil // default/kubernetes is not for us
	}
	w.Pools = c.observePools()
	w.PoolsRefused = !c.o.Pools.IsZero() && c.configMaps.doneWithout.Load() && !c.configMaps.synced.Load()
}

// warnOfNames logs, once each, that no Node has this node's name, and that svc_namespace has no Service.
func (c *Cluster) warnOfNames(synced bool) {
	if !c.nameChecked && len(c.worldNodes) > 0 && c.nodes.synced.Load() {
		if c.nameChecked = true; c.nodes.values[vip.Key{Name: c.o.Node}] == nil {
			c.o.Log.Warn("Kubernetes has no Node of this name. One that has this host's addresses counts instead, if there is "+
				"one; else Services with "+
				"externalTrafficPolicy Local, drains, and the labels of nodes have no effect here. Set vip_nodename to the name "+
				"of the Node", "name", c.o.Node)
		}
	}
	if synced && !c.emptyChecked {
		if c.emptyChecked = true; c.o.Namespace != "" && !c.o.NoServices && len(c.services.values) == 0 {
			c.o.Log.Warn("there is no Service in the only namespace that is looked at. Is the name of svc_namespace right?",
				"namespace", c.o.Namespace)
		}
	}
}

// mergeServices is worldServices with those in changed replaced, added or left out.
func (c *Cluster) mergeServices() []vip.Service {
	fresh := make([]vip.Service, 0, len(c.changed))
	for k := range c.changed {
		if s := c.services.values[k]; s.inWorld() {
			service := s.Service
			service.Endpoints = mergeEndpoints(maps.Values(c.slicesOf[k]), &service)
			c.pods.fill(&service)
			fresh = append(fresh, service)
		}
	}
	slices.SortFunc(fresh, func(a, b vip.Service) int { return a.Key.Compare(b.Key) })
	out := make([]vip.Service, 0, len(c.worldServices)+len(fresh))
	for i := range c.worldServices {
		k := c.worldServices[i].Key
		for len(fresh) > 0 && fresh[0].Key.Compare(k) < 0 {
			out, fresh = append(out, fresh[0]), fresh[1:]
		}
		if !c.changed[k] {
			out = append(out, c.worldServices[i])
		}
	}
	return append(out, fresh...)
}

// apiServers are the endpoints of the Service default/kubernetes, sorted.
func (c *Cluster) apiServers() []netip.Addr {
	var all []netip.Addr
	for _, s := range c.slicesOf[kubernetesService] {
		all = append(all, s.addrs...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// APIService returns the API servers' first cluster IP and port, and addresses.
func (c *Cluster) APIService() (service netip.AddrPort, servers []netip.AddrPort) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.services.values[kubernetesService]
	if s == nil || len(s.clusterIPs) == 0 || len(s.Ports) == 0 {
		return netip.AddrPort{}, nil
	}
	for _, x := range c.slicesOf[kubernetesService] {
		for _, a := range x.addrs {
			servers = append(servers, netip.AddrPortFrom(a, x.port))
		}
	}
	return netip.AddrPortFrom(s.clusterIPs[0], s.Ports[0].Port), servers
}

// serviceChanged takes account of a changed Service, and returns whether the World changes; mu is held.
func (c *Cluster) serviceChanged(k vip.Key, old, new *cachedService) (worldChanged bool) {
	if old != nil && new != nil && reflect.DeepEqual(&old.Service, &new.Service) &&
		slices.Equal(old.clusterIPs, new.clusterIPs) {
		c.Statuses.queue.Add(k) // a write of the former version is refused
		return false
	}
	if old != nil && old.Egress != nil || new != nil && new.Egress != nil {
		c.pods.wake.Send()
	}
	if before, after := old.leaseKeys(), new.leaseKeys(); !slices.Equal(before, after) {
		for _, k := range after {
			c.Leases.setNamed(k, 1)
		}
		for _, k := range before {
			c.Leases.setNamed(k, -1)
		}
	}
	if before, after := old.requestedAddrs(), new.requestedAddrs(); !slices.Equal(before, after) {
		for _, a := range after {
			c.requested[a]++
		}
		for _, a := range before {
			if c.requested[a]--; c.requested[a] == 0 {
				delete(c.requested, a)
			}
		}
		c.outdated = true // which cluster IPs and pods' addresses are reserved depends on it
	}
	for _, s := range []*cachedService{old, new} {
		if s != nil && slices.ContainsFunc(s.clusterIPs, c.isRequested) {
			c.outdated, worldChanged = true, true
		}
	}
	if old.inWorld() || new.inWorld() {
		c.changed[k], worldChanged = true, true
	}
	return worldChanged
}

func (c *Cluster) sliceChanged(k vip.Key, old, new *cachedSlice) (worldChanged bool) {
	for _, s := range []*cachedSlice{old, new} {
		if s == nil {
			continue
		}
		if s.service == kubernetesService || slices.ContainsFunc(s.addrs, c.isRequested) {
			c.outdated, worldChanged = true, true
		}
		if c.services.values[s.service].inWorld() {
			c.changed[s.service], worldChanged = true, true
		}
	}
	if old != nil {
		delete(c.slicesOf[old.service], k)
		if len(c.slicesOf[old.service]) == 0 {
			delete(c.slicesOf, old.service)
		}
	}
	if new != nil {
		if c.slicesOf[new.service] == nil {
			c.slicesOf[new.service] = make(map[vip.Key]*cachedSlice)
		}
		c.slicesOf[new.service][k] = new
	}
	return worldChanged
}

func (c *Cluster) isRequested(a netip.Addr) bool { return c.requested[a] > 0 }

// reservedRanges returns ServiceCIDRs, API servers, and requested cluster IPs and pods; sorted.
func (c *Cluster) reservedRanges() []vip.ReservedRange {
	single := make(map[netip.Addr]vip.ReservedRange)
	add := func(addrs []netip.Addr, x vip.ReservedRange) { // over a pod, which come first, or the same of a later Service
		for _, a := range addrs {
			known, ok := single[a]
			if c.isRequested(a) && (!ok || known.FromSlice != x.FromSlice || x.Service.Compare(known.Service) < 0) {
				single[a] = x
			}
		}
	}
	for _, s := range c.slices.values {
		add(s.addrs, vip.ReservedRange{Description: "the address of a pod", Service: s.service, FromSlice: true})
	}
	for k, s := range c.services.values {
		add(s.clusterIPs, vip.ReservedRange{Description: "the cluster IP", Service: k})
	}
	if c.host.IsValid() {
		single[c.host] = vip.ReservedRange{Description: "the address of the API server"}
	}
	for _, a := range c.apiServers() {
		single[a] = vip.ReservedRange{Description: "the address of an API server"}
	}
	var out []vip.ReservedRange
	for _, prefixes := range c.cidrs.values {
		for _, p := range *prefixes {
			out = append(out, vip.ReservedRange{Prefix: p, Description: "the cluster's Service range"})
		}
	}
	for a, x := range single {
		x.Prefix = netip.PrefixFrom(a, a.BitLen())
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b vip.ReservedRange) int { return a.Prefix.Compare(b.Prefix) })
	return out
}

func readConfigMap(o *corev1.ConfigMap) *vip.PoolSource {
	k := vip.Key{Namespace: o.Namespace, Name: o.Name}
	return &vip.PoolSource{ConfigMap: k, UID: string(o.UID), Data: o.Data}
}

func (c *Cluster) watchPools(core *clients) {
	if c.o.Pools.IsZero() {
		return
	}
	changed := func() bool { c.worldPools = nil; return true }
	c.configMaps = newReflectorStore(c.o, &c.mu, core.core, "configmaps", readConfigMap)
	c.configMaps.namespace, c.configMaps.fields = c.o.Pools.Namespace, "metadata.name="+c.o.Pools.Name
	c.configMaps.onChange = func(_ vip.Key, _, now *vip.PoolSource) bool {
		if c.lastPools = cmp.Or(now, c.lastPools); now == nil {
			c.o.Log.Warn("the ConfigMap of pools is gone: no addresses are given; which ones Services may have by it stays "+
				"as it was until it is back, or Herald has been restarted on all nodes", "configmap", c.o.Pools.String())
		}
		return changed()
	}
	c.watches = append(c.watches, c.configMaps.Run)
	c.namespaces = newReflectorStore(c.o, &c.mu, core.core, "namespaces", func(o *corev1.Namespace) *map[string]string {
		labels := o.Labels // without the rest of the object
		if labels == nil {
			labels = map[string]string{} // nil: not known
		}
		return &labels
	})
	c.namespaces.onChange = func(vip.Key, *map[string]string, *map[string]string) bool { return changed() }
	c.watches = append(c.watches, c.namespaces.Run)
}

// observePools returns the ConfigMap of pools, or its last state, or nil; c.mu is held.
func (c *Cluster) observePools() *vip.PoolSource {
	if c.worldPools != nil || c.lastPools == nil {
		return c.worldPools
	}
	p := *c.lastPools
	p.Gone = c.configMaps.values[c.o.Pools] == nil
	p.Namespaces = make(map[string]map[string]string, len(c.namespaces.values))
	for k, labels := range c.namespaces.values {
		p.Namespaces[k.Name] = *labels
	}
	c.worldPools = &p
	return &p
}

// TakePools reads the ConfigMap of pools, or nil, as without a name, and the labels of namespaces, if that is allowed.
func TakePools(ctx context.Context, cfg *rest.Config, k vip.Key) (*vip.PoolSource, error) {
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil || k.IsZero() {
		return nil, err
	}
	var p *vip.PoolSource
	r := &watchedResource{client: c.core, resource: "configmaps", namespace: k.Namespace}
	r.fields = "metadata.name=" + k.Name
	err = list(ctx, r, func(o *corev1.ConfigMap) { p = readConfigMap(o) })
	if apierrors.IsForbidden(err) { // Herald's Pods may only list it, others maybe only get it
		var o corev1.ConfigMap
		if err = r.client.Get().Namespace(k.Namespace).Resource(r.resource).Name(k.Name).Do(ctx).Into(&o); err == nil {
			p = readConfigMap(&o)
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("can't read the ConfigMap of pools: %w", err)
	}
	namespaces, r := make(map[string]map[string]string), &watchedResource{client: c.core, resource: "namespaces"}
	if p != nil && list(ctx, r, func(o *corev1.Namespace) { namespaces[o.Name] = o.Labels }) == nil {
		p.Namespaces = namespaces
	}
	return p, nil
}
