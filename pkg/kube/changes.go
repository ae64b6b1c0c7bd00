package kube

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// What follows is called by the feeds, with the lock held, for every object that
// arrives, changes or goes. Each returns whether the World differs for it: what
// makes no difference (a Node's heartbeat, a Service's label, the pods of a
// Service that is no LoadBalancer) must not wake the agent.

// A use is what an address is known to be used for.
type use struct {
	asked     int       // how many Services want it as a VIP
	clusterIP []vip.Key // the Service whose cluster IP it is; two while it passes on
	endpoints []*slice
}

// using is the use of an address, to be changed; followed by tidy.
func (c *Cluster) using(a netip.Addr) *use {
	u := c.uses[a]
	if u == nil {
		u = &use{}
		c.uses[a] = u
	}
	return u
}

// tidy forgets an address that is used for nothing.
func (c *Cluster) tidy(a netip.Addr) {
	if u := c.uses[a]; u != nil && u.asked == 0 && len(u.clusterIP) == 0 && len(u.endpoints) == 0 {
		delete(c.uses, a)
	}
}

func (c *Cluster) serviceChanged(k vip.Key, old, new *record) (matters bool) {
	if old != nil && new != nil && reflect.DeepEqual(&old.Service, &new.Service) && slices.Equal(old.clusterIPs, new.clusterIPs) {
		return false
	}
	for _, r := range []*record{old, new} {
		if r == nil {
			continue
		}
		if r.LoadBalancer {
			for _, a := range sought(&r.Service) {
				if r == new {
					c.using(a).asked++
				} else {
					c.using(a).asked--
					defer c.tidy(a)
				}
			}
		}
		for _, a := range r.clusterIPs {
			u := c.using(a)
			if r == new {
				u.clusterIP = append(u.clusterIP, k)
			} else {
				u.clusterIP = slices.DeleteFunc(u.clusterIP, func(x vip.Key) bool { return x == k })
				defer c.tidy(a)
			}
			matters = matters || u.asked > 0
		}
	}
	c.stale = c.stale || matters
	if old != nil && old.listed() || new != nil && new.listed() {
		c.dirty[k] = true
		matters = true
	}
	return matters
}

func (c *Cluster) sliceChanged(k vip.Key, old, new *slice) (matters bool) {
	if old != nil && new != nil && reflect.DeepEqual(old, new) {
		c.slices.values[k] = old // it is the one that is known elsewhere
		return false
	}
	for _, s := range []*slice{old, new} {
		if s == nil {
			continue
		}
		for _, a := range s.addrs {
			u := c.using(a)
			if s == old {
				u.endpoints = slices.DeleteFunc(u.endpoints, func(x *slice) bool { return x == s })
				defer c.tidy(a)
			} else {
				u.endpoints = append(u.endpoints, s)
			}
			if u.asked > 0 || s.service == apiService {
				c.stale, matters = true, true
			}
		}
	}
	if old != nil {
		delete(c.parts[old.service], k)
		if len(c.parts[old.service]) == 0 {
			delete(c.parts, old.service)
		}
		matters = c.endpointsChanged(old.service) || matters
	}
	if new != nil {
		if c.parts[new.service] == nil {
			c.parts[new.service] = make(map[vip.Key]*slice)
		}
		c.parts[new.service][k] = new
		matters = c.endpointsChanged(new.service) || matters
	}
	return matters
}

// endpointsChanged takes note that a Service has other endpoints.
func (c *Cluster) endpointsChanged(k vip.Key) (matters bool) {
	r := c.services.values[k]
	if r == nil || !r.listed() {
		return false
	}
	c.dirty[k] = true
	return true
}

func (c *Cluster) nodeChanged(_ vip.Key, old, new *vip.Node) (matters bool) {
	if reflect.DeepEqual(old, new) {
		return false
	}
	c.stale = true
	return true
}

func (c *Cluster) rangeChanged(_ vip.Key, old, new []netip.Prefix) (matters bool) {
	if slices.Equal(old, new) {
		return false
	}
	c.stale = true
	return true
}
