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
		expect := func(after time.Duration, want vip.Liveness, wantAsked, wantPoked int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			gotAsked, gotPoked := asked, poked
			if got := g.Liveness(); got != want || gotAsked != wantAsked || gotPoked != wantPoked {
				t.Fatalf("%v, asked %d times, poked %d times; want %v, %d, %d", got, gotAsked, gotPoked, want, wantAsked, wantPoked)
			}
		}
		expect(time.Hour, vip.Unknown, 0, 0) // nobody wanted to know
		expect(200*time.Millisecond, vip.Alive, 1, 1)
		expect(300*time.Millisecond, vip.Alive, 1, 1)    // 0.38 s old
		expect(200*time.Millisecond, vip.Alive, 1, 1)    // 0.58 s: asked again,
		expect(200*time.Millisecond, vip.Alive, 2, 1)    // and nothing has changed
		expect(1800*time.Millisecond, vip.Alive, 2, 1)   // 1.88 s
		expect(2200*time.Millisecond, vip.Unknown, 3, 1) // nobody asked meanwhile
		expect(200*time.Millisecond, vip.Alive, 4, 2)    // the same as the last answer, but not as Unknown

		answers = false
		expect(600*time.Millisecond, vip.Alive, 4, 2)
		expect(200*time.Millisecond, vip.Dead, 5, 3)

		address = netip.Addr{}
		expect(600*time.Millisecond, vip.Dead, 5, 3)
		expect(200*time.Millisecond, vip.Unknown, 5, 4)
	})
}
