package l2

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// countFrames is how many frames are sent in d.
func (r *fixture) countFrames(d time.Duration) int {
	r.lan.takeFrames()
	time.Sleep(d)
	return strings.Count(r.lan.takeFrames()+"\n", "\n")
}

// For a while after they are bound, many VIPs are each announced every 3 s. After that all of the
// node together are announced ten times a second, none less often than each 2 minutes, and all in turn.
func TestBudget(t *testing.T) {
	for _, tt := range []struct {
		vips, least, most int           // frames in 10 s of the steady state
		period            time.Duration // between two frames of one VIP, at most
	}{
		{20, 55, 78, 3400 * time.Millisecond}, // one each 3 s needs less than the budget
		{30, 80, 110, 4 * time.Second},
		{333, 95, 105, 35 * time.Second},
		{1000, 95, 105, 102 * time.Second},
		{2400, 190, 210, 122 * time.Second},
	} {
		t.Run(fmt.Sprint(tt.vips), func(t *testing.T) {
			onLAN(t, "eth0", func(t *testing.T, r *fixture) {
				check.Value(r.Set(t.Context(), manyAnnouncements(tt.vips, "eth0")))(t)
				time.Sleep(4 * time.Second)
				check.Between(t, r.countFrames(24*time.Second), 8*tt.vips*9/10, 8*tt.vips*11/10, "frames in the seconds 4 to 28")
				time.Sleep(time.Minute)
				r.lan.takeFrames()
				last := map[string]time.Duration{}
				for range 15 {
					time.Sleep(10 * time.Second)
					frames := r.lan.takeFrames()
					n := 0
					for line := range strings.Lines(frames) {
						n++
						at, what, _ := strings.Cut(strings.TrimSpace(line), "s ")
						now := check.Value(time.ParseDuration(at + "s"))(t)
						if gap := now - last[what]; last[what] > 0 && gap > tt.period {
							t.Fatalf("%v between two of %s, want %v at most", gap, what, tt.period)
						}
						last[what] = now
					}
					check.Between(t, n, tt.least, tt.most, "frames in 10 s")
				}
				check.Equal(t, len(last), tt.vips, "VIPs that were announced")
			})
		})
	}
}

// A longer vip_arpRate is the period of few VIPs, and of many.
func TestLongRateWithinBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, newLAN("eth0"))
		r.opts.Rate = 200 * time.Second
		defer r.run(t)()
		check.Value(r.Set(t.Context(), manyAnnouncements(100, "eth0")))(t)
		time.Sleep(5 * time.Minute)
		check.Between(t, r.countFrames(1000*time.Second), 450, 550, "frames in 1000 s")
	})
}

// Beside many VIPs that have not changed for long, one that is new, or claimed by another host, and all on a link that
// was down are announced at once, and each 3 s for a while.
func TestFullRateAfterAChange(t *testing.T) {
	onLAN(t, "eth0 eth1", func(t *testing.T, r *fixture) {
		lan := r.lan
		want := append(manyAnnouncements(333, "eth0"), announce("eth1", "10.2.0.1"), announce("eth1", "10.2.0.2"))
		set := func() {
			check.Value(r.Set(t.Context(), want))(t)
		}
		set()
		r.putChecks(t, defendCheck("10.1.0.0"))
		time.Sleep(2 * time.Minute)
		for _, step := range []struct {
			name   string
			change func()
			addrs  []string
		}{
			{"bound", func() { want = append(want, announce("eth0", "10.3.0.1")); set() }, []string{"10.3.0.1"}},
			{"claimed", func() { lan.announce("eth0", "10.1.0.0", 0xff) }, []string{"10.1.0.0"}},
			{"link up", func() {
				lan.changeLink("eth1", func(i *net.Interface) { i.Flags &^= net.FlagUp })
				time.Sleep(5 * time.Second)
				lan.takeFrames()
				lan.changeLink("eth1", func(i *net.Interface) { i.Flags |= net.FlagUp })
			}, []string{"10.2.0.1", "10.2.0.2"}},
		} {
			lan.takeFrames()
			step.change()
			time.Sleep(tick)
			frames := lan.takeFrames()
			for _, a := range step.addrs {
				check.Contains(t, frames, "request "+a+" ")
			}
			time.Sleep(4 * time.Second)
			lan.takeFrames()
			time.Sleep(20 * time.Second)
			frames = lan.takeFrames()
			for _, a := range step.addrs {
				check.Between(t, strings.Count(frames, "request "+a+" "), 6, 8, "%s: announcements of %s in 20 s", step.name, a)
			}
			time.Sleep(time.Minute)
			check.Between(t, r.countFrames(10*time.Second), 90, 110, "%s: frames in 10 s a minute later", step.name)
		}
	})
}

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

// A junkNetwork is one on which a host sends, a million times a second, what is no message.
type junkNetwork struct {
	network
	read  int
	once  sync.Once
	ended chan struct{}
}

func (n *junkNetwork) openReceiver(vip.Link, vip.Family) (messageReceiver, error) { return n, nil }
func (n *junkNetwork) Close() error                                               { n.once.Do(func() { close(n.ended) }); return nil }

func (n *junkNetwork) receive() (m neighborMessage, ok bool, err error) {
	select {
	case <-n.ended:
		return m, false, net.ErrClosed
	case <-time.After(time.Microsecond):
		n.read++
		return m, false, nil
	}
}

// TestFloodOfJunk: what can't be read counts for what is read in a second.
func TestFloodOfJunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &junkNetwork{ended: make(chan struct{})}
		a := newAnnouncer(Options{Log: slog.New(slog.DiscardHandler), Poke: func() {}, PokeNow: func() {}}, n)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.receive(ctx, &receiver{}, vip.Link{Name: "eth0"}, vip.IPv4) }()
		began := time.Now()
		time.Sleep(10 * time.Second)
		stop()
		<-done
		check.Between(t, n.read, 9*readsPerSecond, 11*readsPerSecond, "read in ten seconds")
		check.Equal(t, a.heard.floodedSince("eth0", began), true, "flooded")
	})
}

// manyAnnouncements is n announcements, IPv4 and IPv6 by turns.
func manyAnnouncements(n int, link string) []vip.Announcement {
	list := make([]vip.Announcement, n)
	for i := range list {
		list[i] = announce(link, fmt.Sprintf("10.1.%d.%d", i>>8, i&255))
		if i%2 == 1 {
			list[i].Addr = netip.MustParseAddr(fmt.Sprintf("2001:db8::1:%x", i))
		}
	}
	return list
}
