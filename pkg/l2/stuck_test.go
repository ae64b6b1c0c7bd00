package l2

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A link that transmits nothing, or so slowly that its queue stays full, makes what is sent on other links wait for a moment, in each second
// at most: no pass, no probe and no announcement there waits for each of its VIPs.
func TestStuckLink(t *testing.T) {
	for name, slow := range map[string]time.Duration{"it transmits nothing": time.Hour, "it transmits a frame in 150 ms": 150 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			r := newFixture(t, newLAN("eth0", "eth1"))
			r.lan.slow["eth1"] = slow
			var want []vip.Announcement
			for i := range 100 {
				want = append(want, announce("eth1", fmt.Sprintf("10.0.1.%d", i)))
			}
			want = append(want, announce("eth0", "10.0.0.9"))
			blocked := time.Duration(0) // the mutex, for ten seconds
			took := func(what string, call func()) {
				t.Helper()
				began := time.Now()
				call()
				if d := time.Since(began); d > 500*time.Millisecond {
					t.Errorf("%s: %s took %v", name, what, d)
				} else {
					blocked += d
				}
			}
			took("Set", func() {
				have, err := r.Set(t.Context(), want)
				if !strings.Contains(r.lan.takeFrames(), "eth0 arp request 10.0.0.9") || len(have) == 0 || err == nil {
					t.Errorf("%s: announced %v, err %v", name, have, err)
				}
			})
			wait := time.Duration(0)
			for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(wait) {
				took("sendDue", func() { wait = r.sendDue(time.Now()) })
			}
			if blocked > 4*time.Second || slow == time.Hour && blocked > 500*time.Millisecond {
				t.Errorf("%s: what is sent on other links waited for %v of ten seconds", name, blocked)
			}
			delete(r.lan.slow, "eth1")
			time.Sleep(repeatGap)
			r.sendDue(time.Now())
			if have, err := r.Set(t.Context(), want); len(have) != len(want) || err != nil {
				t.Errorf("%s: it transmits again: announced %d, err %v", name, len(have), err)
			}
		})
	}
}
