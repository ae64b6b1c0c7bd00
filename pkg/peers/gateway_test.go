package peers_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// Whether the gateway answers is asked only when somebody wants to know and the last
// answer is older than 0.5 s; after 2 s that answer is no longer good.
func TestGatewayLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		address, answers, asked, poked := netip.MustParseAddr("10.0.0.1"), true, 0, 0
		g := peers.NewGateway(peers.GatewayOptions{
			Address: func() netip.Addr { return address },
			Answers: func(_ context.Context, a netip.Addr) bool {
				if a != address {
					t.Errorf("%v is asked for", a)
				}
				asked++
				time.Sleep(120 * time.Millisecond)
				return answers
			},
			Poke: func() { poked++ },
		})
		check.Run(t, g)
		var since time.Time
		expect := func(after time.Duration, want vip.Liveness, wantAsked int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			gotAsked := asked
			if got := g.Liveness(since); got != want || gotAsked != wantAsked {
				t.Fatalf("%v, asked %d times; want %v, %d", got, gotAsked, want, wantAsked)
			}
		}
		expect(time.Hour, vip.Unknown, 0) // nobody wanted to know
		expect(200*time.Millisecond, vip.Alive, 1)
		expect(300*time.Millisecond, vip.Alive, 1)    // 0.38 s old
		expect(200*time.Millisecond, vip.Alive, 1)    // 0.58 s: asked again,
		expect(200*time.Millisecond, vip.Alive, 2)    // and nothing has changed
		expect(1800*time.Millisecond, vip.Alive, 2)   // 1.88 s
		expect(2200*time.Millisecond, vip.Unknown, 3) // nobody asked meanwhile
		expect(200*time.Millisecond, vip.Alive, 4)

		answers = false
		expect(600*time.Millisecond, vip.Alive, 4)
		expect(200*time.Millisecond, vip.Dead, 5)

		since = time.Now()
		expect(0, vip.Unknown, 5) // it was asked before
		expect(200*time.Millisecond, vip.Dead, 6)

		address = netip.Addr{}
		expect(600*time.Millisecond, vip.Dead, 6)
		expect(200*time.Millisecond, vip.Unknown, 6)
		check.Equal(t, poked, 7, "pokes")
	})
}
