package kube

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// Bounds of what egress costs each node and the API server.
const (
	maxEgressServices = 64  // whose pods are watched, shared among namespaces
	maxEgressPods     = 500 // of one Service, the first by name
	maxPodAddresses   = 2   // of one Pod: one of each family, as Kubernetes has it
)

// pods watches Pods of Services with egress: tenants may write EndpointSlices (docs/why.md, "Egress").
type pods struct {
	cluster *Cluster
	client  rest.Interface
	wake    mailbox.Signal

	watches map[vip.Key]*podWatch // by Service; guarded by Cluster.mu
	listed  bool                  // pending has been false; guarded by Cluster.mu
	since   time.Time             // when pending was called first; guarded by Cluster.mu

	run func(context.Context, *reflectorStore[vip.Pod]) // lists and watches until the context ends; tests replace it
}

// Reasons why pods are not known, beside vip.PodsBeingListed.
const (
	tooManyWithEgress = "64 Services of a cluster have egress, shared equally among the namespaces that ask for it, " +
		"and the share of this namespace is taken by older Services of it"
	podsRefused = "its pods are not known: the API server does not let Herald list and watch pods (herald " +
		"manifest rbac prints what is needed)"
)

// betweenBegins is the least time between beginnings: a changing selector must not have every node list pods.
const betweenBegins = time.Second

func newPods(c *Cluster, client rest.Interface) *pods {
	return &pods{
		cluster: c, client: client, wake: mailbox.NewSignal(), watches: make(map[vip.Key]*podWatch),
		run: func(ctx context.Context, s *reflectorStore[vip.Pod]) { _ = s.Run(ctx) },
	}
}

type podWatch struct {
	*reflectorStore[vip.Pod]
	end context.CancelFunc
}

// Run keeps one watch for each Service with egress, until ctx ends.
func (p *pods) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		fresh := p.begin(ctx)
		for _, watch := range fresh {
			running.Go(watch)
		}
		if len(fresh) > 0 {
			p.cluster.o.Poke()
			mailbox.Sleep(ctx, betweenBegins)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
	}
}

// begin ends unwanted watches, and returns those to be run.
func (p *pods) begin(ctx context.Context) (fresh []func()) {
	c := p.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted := p.wanted()
	for k, w := range p.watches {
		if s := wanted[k]; s == nil || s.Egress.Selector != w.labels {
			w.end()
			delete(p.watches, k)
			c.changed[k] = true
		}
	}
	for k, s := range wanted {
		if p.watches[k] != nil {
			continue
		}
		o := c.o
		o.Namespace = k.Namespace
		o.Poke = func() { // the list is complete, or refused, or a pod has changed
			c.mu.Lock()
			c.changed[k] = true
			c.mu.Unlock()
			c.o.Poke()
		}
		store := newReflectorStore(o, &c.mu, p.client, "pods", readPod)
		store.labels = s.Egress.Selector
		store.onChange = func(vip.Key, *vip.Pod, *vip.Pod) bool { return true }
		watching, end := context.WithCancel(ctx)
		p.watches[k] = &podWatch{store, end}
		fresh = append(fresh, func() { p.run(watching, store) })
	}
	for k, s := range c.services.values {
		if s.Egress != nil && wanted[k] == nil {
			c.changed[k] = true // it may be one too many since now
		}
	}
	return fresh
}

// maxPending is how long pending is true at most: nftables forgets an earlier process's pods soon after (pkg/nft).
const maxPending = 15 * time.Second

// pending reports whether pods are first listed; Cluster.mu is held.
func (p *pods) pending() bool {
	if p.listed || !p.cluster.o.Egress {
		return false
	}
	if p.since.IsZero() {
		p.since = time.Now()
	}
	p.listed = true
	for k := range p.wanted() {
		if w := p.watches[k]; w == nil || !w.synced.Load() && !w.refused.Load() {
			p.listed = time.Since(p.since) >= maxPending
		}
	}
	return !p.listed
}

// wanted returns the Services whose pods are watched, namespaces in turns (docs/why.md, "Egress").
func (p *pods) wanted() map[vip.Key]*cachedService {
	var all []*cachedService
	for _, s := range p.cluster.services.values {
		if p.cluster.o.Egress && s.LoadBalancer && !s.Ignore && s.Egress != nil {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *cachedService) int { return vip.CompareAge(&a.Service, &b.Service) })
	all = vip.TakeTurns(all, func(s *cachedService) string { return s.Key.Namespace })
	wanted := make(map[vip.Key]*cachedService)
	for _, s := range all[:min(len(all), maxEgressServices)] {
		wanted[s.Key] = s
	}
	return wanted
}

// fill sets the pods of a Service with egress; Cluster.mu is held.
func (p *pods) fill(s *vip.Service) {
	if s.Egress == nil {
		return
	}
	switch w := p.watches[s.Key]; {
	case w == nil && len(p.watches) == maxEgressServices:
		s.PodsUnknown = tooManyWithEgress
	case w != nil && w.refused.Load():
		s.PodsUnknown = podsRefused
	case w == nil || !w.synced.Load():
		s.PodsUnknown = vip.PodsBeingListed
	default:
		for _, pod := range w.values {
			s.Pods = append(s.Pods, *pod)
		}
		slices.SortFunc(s.Pods, func(a, b vip.Pod) int { return cmp.Compare(a.Name, b.Name) })
		s.Pods = s.Pods[:min(len(s.Pods), maxEgressPods)]
	}
}

// readPod returns what is kept of a Pod with its own address.
func readPod(o *corev1.Pod) *vip.Pod {
	if o.Spec.HostNetwork || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil
	}
	p := &vip.Pod{Name: o.Name, Node: o.Spec.NodeName}
	for _, x := range o.Status.PodIPs[:min(len(o.Status.PodIPs), maxPodAddresses)] {
		p.Addresses = append(p.Addresses, parseAddrs([]string{x.IP})...)
	}
	if len(p.Addresses) == 0 {
		return nil
	}
	return p
}
