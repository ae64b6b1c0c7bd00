package kube

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
)

// A cachedConfigMap is what is kept of the ConfigMap of pools.
type cachedConfigMap struct {
	uid  string
	data map[string]string
}

func (c *Cluster) watchPools(core *clients) {
	if c.o.Pools.IsZero() {
		return
	}
	changed := func() bool { c.worldPools, c.poolsChanged = nil, true; return true }
	c.configMaps = newReflectorStore(c.o, &c.mu, core.core, "configmaps", func(o *corev1.ConfigMap) *cachedConfigMap {
		return &cachedConfigMap{uid: string(o.UID), data: o.Data}
	})
	c.configMaps.namespace, c.configMaps.fields = c.o.Pools.Namespace, "metadata.name="+c.o.Pools.Name
	c.configMaps.onChange = func(_ vip.Key, _, now *cachedConfigMap) bool {
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

// poolsSynced reports whether pools and Namespaces are listed, refused, or unneeded.
func (c *Cluster) poolsSynced() bool {
	return c.o.Pools.IsZero() || c.configMaps.listedOrRefused() && c.namespaces.listedOrRefused()
}

// observePools returns the ConfigMap of pools, or its last state, or nil; c.mu is held.
func (c *Cluster) observePools() *vip.PoolSource {
	if !c.poolsChanged {
		return c.worldPools
	}
	c.poolsChanged = false
	m := c.lastPools
	if m == nil {
		return nil
	}
	c.worldPools = &vip.PoolSource{ConfigMap: c.o.Pools, UID: m.uid, Data: m.data,
		Gone: c.configMaps.values[c.o.Pools] == nil}
	c.worldPools.Namespaces = make(map[string]map[string]string, len(c.namespaces.values))
	for k, labels := range c.namespaces.values {
		c.worldPools.Namespaces[k.Name] = *labels
	}
	return c.worldPools
}

// TakePools reads the ConfigMap of pools, or nil, without labels of namespaces.
func TakePools(ctx context.Context, cfg *rest.Config, k vip.Key) (*vip.PoolSource, error) {
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return nil, err
	}
	var o corev1.ConfigMap
	err = c.core.Get().Namespace(k.Namespace).Resource("configmaps").Name(k.Name).Do(ctx).Into(&o)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("can't read the ConfigMap of pools: %w", err)
	}
	return &vip.PoolSource{ConfigMap: k, UID: string(o.UID), Data: o.Data}, nil
}
