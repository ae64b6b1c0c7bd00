package netif

import (
	"errors"
	"maps"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// What is counted is published when it has changed, and for a while after what is to be counted has.
func TestConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
		var changes, lists atomic.Int32
		var known atomic.Pointer[[]netip.Addr]
		var fault atomic.Pointer[error]
		logger, logged := log()
		c := NewConnections(logger, func() { changes.Add(1) })
		c.list = func(found func(netip.Addr)) error {
			lists.Add(1)
			for _, x := range *known.Load() {
				found(x)
			}
			return *fault.Load()
		}
		know := func(err error, all ...netip.Addr) { known.Store(&all); fault.Store(&err) }
		stop := check.Run(t, c)
		defer stop()
		time.Sleep(time.Minute)
		if lists.Load() > 0 || c.Count() != nil {
			t.Errorf("%d counts of nothing, result %v", lists.Load(), c.Count())
		}
		know(nil, a, a, b, netip.MustParseAddr("192.0.2.9"))
		began := time.Now()
		c.Put([]netip.Addr{a, b})
		time.Sleep(time.Second)
		if got := c.Count(); got == nil || !maps.Equal(got.VIPs, map[netip.Addr]int{a: 2, b: 1}) || got.At != began.UnixMilli() {
			t.Errorf("counted %+v", got)
		}
		time.Sleep(time.Minute)
		if changes.Load() != 4 || !c.Count().None(netip.MustParseAddr("192.0.2.7"), began.Add(-5*time.Second)) {
			t.Errorf("%d changes, want those of the first 20 s; last %+v", changes.Load(), c.Count())
		}
		know(nil)
		time.Sleep(5 * time.Second)
		if got := c.Count(); changes.Load() != 5 || len(got.VIPs) > 0 {
			t.Errorf("%d changes, last %+v", changes.Load(), got)
		}
		know(errors.New("not permitted"))
		time.Sleep(time.Minute)
		if got, text := c.Count(), logged.String(); got != nil || strings.Count(text, "not permitted") != 1 {
			t.Errorf("%+v after a fault, log\n%s", got, text)
		}
		know(nil)
		time.Sleep(5 * time.Second)
		if c.Count() == nil {
			t.Error("not counted after the fault")
		}
		c.Put(nil)
		time.Sleep(10 * time.Second)
		if c.Count() != nil {
			t.Errorf("%+v though nothing is to be counted", c.Count())
		}
	})
}
