package pool

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// Services of one sharing key with a thousand ports each are compared without a map of ports for each pair: addresses for all others waited
// seconds for that.
func TestManyPortsOfASharingKey(t *testing.T) {
	w := newWorld(t, 0, "cidr-ns=10.0.0.0/24")
	ports := func(i int) (all []vip.Port) {
		for p := range 1000 {
			all = append(all, vip.Port{Protocol: []string{"TCP", "UDP"}[i%2], Port: uint16(i/2*1000 + p + 1)})
		}
		return all
	}
	for i := range 100 {
		w.set(fmt.Sprint("s", i), func(r *vip.AddressRequest) { r.SharingKey, r.Ports = "k", ports(i) })
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.decide()
	for i := range 10 {
		w.set(fmt.Sprint("t", i), func(r *vip.AddressRequest) { r.SharingKey, r.Ports = "k", ports(99) })
		w.decide()
	}
	runtime.ReadMemStats(&after)
	if got := w.has("s57"); got != "10.0.0.1 of cidr-ns" {
		t.Errorf("s57 has %q", got)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
		t.Errorf("it takes %d MiB", n>>20)
	}
}
