package kube

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestPoolsGone: what a ConfigMap of pools that is gone has said is in the World, with the labels that namespaces
// have now, until there is another; the log says so once. That it may not be read is known, too.
func TestPoolsGone(t *testing.T) {
	var log bytes.Buffer
	c, err := New(&rest.Config{Host: "https://192.0.2.1:6443"}, Options{
		Pools: vip.Key{Namespace: "kube-system", Name: "kubevip"}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Poke: func() {}, PokeLeases: func() {},
	})
	check.OK(t, err)
	pools := func(cidr string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubevip"},
			Data: map[string]string{"cidr-global": cidr}}
	}
	team := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"team": name}}}
	}
	expect := func(cidr, label string, gone bool) {
		t.Helper()
		var w vip.World
		c.Observe(&w)
		if w.Pools == nil || w.Pools.Data["cidr-global"] != cidr || w.Pools.Namespaces["web"]["team"] != label ||
			w.Pools.Gone != gone || w.PoolsRefused {
			t.Errorf("got %+v, want %s, %s, gone %v", w.Pools, cidr, label, gone)
		}
		if n := strings.Count(log.String(), "is gone"); n > 0 != gone || n > 1 {
			t.Errorf("the log says: %s", log.String())
		}
	}
	var w vip.World
	c.configMaps.refused.Store(true)
	c.configMaps.doneWithout.Store(true)
	c.configMaps.refused.Store(false) // the next answer was 503
	if c.Observe(&w); w.Pools != nil || !w.PoolsRefused {
		t.Errorf("it may not be read: %+v, refused %v", w.Pools, w.PoolsRefused)
	}
	check.OK(t, c.configMaps.Replace(nil, "1"))
	if c.Observe(&w); w.Pools != nil || w.PoolsRefused {
		t.Errorf("there is none yet: %+v, refused %v", w.Pools, w.PoolsRefused)
	}
	check.OK(t, c.namespaces.Update(team("blue")))
	check.OK(t, c.configMaps.Update(pools("10.0.0.0/24")))
	expect("10.0.0.0/24", "blue", false)
	check.OK(t, c.configMaps.Delete(pools("10.0.0.0/24")))
	expect("10.0.0.0/24", "blue", true)
	check.OK(t, c.namespaces.Update(team("red")))
	expect("10.0.0.0/24", "red", true)
	check.OK(t, c.namespaces.Update(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}))
	if c.Observe(&w); w.Pools.Namespaces["plain"] == nil {
		t.Error("the labels of a namespace that has none pass for unknown")
	}
	log.Reset()
	check.OK(t, c.configMaps.Replace([]any{pools("10.1.0.0/24")}, "9"))
	expect("10.1.0.0/24", "red", false)
}
