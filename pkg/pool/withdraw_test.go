package pool

import (
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// What a Service is to be given and does not have yet (the API server takes no writes, say) it is not given any more once that is not
// offered to it: what it names then no pool would offer it, and it would be refused for ever.
func TestWithdrawnOffers(t *testing.T) {
	blue := map[string]map[string]string{"ns": {"team": "blue"}}
	for _, tt := range []struct {
		name   string
		before []string
		change func(w *world)
		want   string
	}{
		{"the pool is for other namespaces now", []string{"pool-a=10.0.0.1", "pool-a.namespaces=ns"}, func(w *world) { w.edit("pool-a=10.0.0.1", "pool-a.namespaces=other", "pool-b=10.0.0.9") }, "s: 10.0.0.9 of b"},
		{"the namespace has other labels", []string{"pool-a=10.0.0.1", "pool-a.namespaces=team=blue", "pool-b=10.0.0.9", "pool-b.priority=-1"}, func(w *world) { w.labels = nil }, "s: 10.0.0.9 of b"},
		{"the pool gives on request only", []string{"pool-a=10.0.0.1"}, func(w *world) { w.edit("pool-a=10.0.0.1", "pool-a.auto=false", "pool-b=10.0.0.9") }, "s: 10.0.0.9 of b"},
		{"the pool is for other Services", []string{"pool-a=10.0.0.1"}, func(w *world) { w.edit("pool-a=10.0.0.1", "pool-a.services=tier=gold", "pool-b=10.0.0.9") }, "s: 10.0.0.9 of b"},
		{"another comes first now", []string{"pool-a=10.0.0.1"}, func(w *world) { w.edit("pool-a=10.0.0.1", "pool-b=10.0.0.9", "pool-b.priority=1") }, "s: 10.0.0.1 of a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 0, tt.before...)
			w.labels = blue
			w.set("s", nil)
			if got := w.pass(); len(got) != 1 || got[0].Pool != "a" {
				t.Fatalf("decided %v, want an address of pool a", got)
			}
			tt.change(w)
			w.decide()
			w.expect(tt.want)
			if n, _ := w.last.usage(w.pools.byName["a"], vip.IPv4); n != map[bool]int{true: 1, false: 0}[tt.want == "s: 10.0.0.1 of a"] {
				t.Error("pool a has an address in use that no Service has")
			}
		})
	}
}
