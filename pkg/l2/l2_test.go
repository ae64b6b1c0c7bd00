package l2

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

const firstFrames = `
	0.0s eth0 arp request 10.0.0.9 02:00:00:00:00:0a
	0.0s eth0 arp reply 10.0.0.9 02:00:00:00:00:0a`

func TestSetAnnouncesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, newLAN("eth0", "eth1")) // Run isn't needed for that
		r.set(t, "eth0 10.0.0.9\n eth1 2001:db8::9", "", announce("eth0", "10.0.0.9"), announce("eth1", "2001:db8::9"))
		check.Contains(t, check.Lines(r.lan.takeFrames()), check.Lines(firstFrames),
			"0.0s eth1 na ff02::1 2001:db8::9 02:00:00:00:00:0b\n0.0s eth1 na ff02::2 2001:db8::9 02:00:00:00:00:0b")
		r.set(t, "eth0 10.0.0.9\n eth1 2001:db8::9", "", announce("eth0", "10.0.0.9"), announce("eth1", "2001:db8::9"))
		r.checkFrames(t, "the same again", "")
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		r.checkFrames(t, "one less", "")
		check.Equal(t, r.poked(), 0, "pokes by Set")
		r.set(t, "", "")
		check.Equal(t, r.lan.openSockets(), 0, "open sockets with nothing wanted")
	})
}

// At first quickly and in both forms, then slowly for ever in one.
func TestRepetitions(t *testing.T) {
	for _, tt := range []struct{ addr, first, second string }{
		{"10.0.0.9", "arp request 10.0.0.9 02:00:00:00:00:0a", "arp reply 10.0.0.9 02:00:00:00:00:0a"},
		{"2001:db8::9", "na ff02::1 2001:db8::9 02:00:00:00:00:0a", "na ff02::2 2001:db8::9 02:00:00:00:00:0a"},
	} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			r.set(t, "eth0 "+tt.addr, "", announce("eth0", tt.addr))
			time.Sleep(4 * time.Second)
			r.checkFrames(t, "the first seconds", strings.NewReplacer("FIRST", "eth0 "+tt.first, "SECOND", "eth0 "+tt.second).Replace(`
				0.0s FIRST
				0.0s SECOND
				1.2s FIRST
				1.2s SECOND
				2.4s FIRST
				2.4s SECOND`))
			time.Sleep(300 * time.Second)
			var last, total float64
			last = 2.4
			gaps := map[string]bool{}
			for line := range strings.Lines(r.lan.takeFrames()) {
				at, what, _ := strings.Cut(strings.TrimSpace(line), "s ")
				if what != "eth0 "+tt.first {
					t.Fatalf("a late repetition is %q, want only %q", what, tt.first)
				}
				var now float64
				fmt.Sscan(at, &now)
				check.Between(t, now-last, 2.6, 3.4, "seconds between two repetitions")
				gaps[fmt.Sprintf("%.1f", now-last)] = true
				last = now
				total++
			}
			check.Between(t, total, 95, 105, "repetitions in 300 s")
			if len(gaps) < 3 {
				t.Errorf("no jitter: gaps are %v", gaps)
			}
			check.Equal(t, r.poked(), 0, "pokes by repetitions")
			r.set(t, "", "")
			r.lan.takeFrames()
			time.Sleep(10 * time.Second)
			r.checkFrames(t, "no longer wanted", "")
			check.Equal(t, r.log.Take(), "", "log")
		})
	}
}

func TestNothingIsSentWithoutTenure(t *testing.T) {
	for _, tt := range []struct {
		name       string
		take, give func(*vip.Tenure)
	}{
		{"unconfirmed", func(t *vip.Tenure) { t.Confirmed = false }, func(t *vip.Tenure) { t.Confirmed = true }},
		{"ended", func(t *vip.Tenure) { t.Until = time.Now() }, func(t *vip.Tenure) { t.Until = time.Now().Add(time.Hour) }},
	} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
			time.Sleep(10 * time.Second)
			r.lan.takeFrames()
			r.changeTenure(tt.take)
			r.set(t, "eth0 10.0.0.9", "10.0.0.8 is not announced on eth0, since this node's right to hold it is not certain",
				announce("eth0", "10.0.0.9"), announce("eth0", "10.0.0.8"))
			time.Sleep(30 * time.Second)
			r.checkFrames(t, tt.name, "")
			check.Equal(t, r.poked(), 0, "%s: pokes", tt.name)
			r.changeTenure(tt.give)
			time.Sleep(repeatGap + tick)
			frames := r.lan.takeFrames()
			for want, n := range map[string]int{"arp request 10.0.0.9": 1, "arp reply 10.0.0.9": 0, "arp request 10.0.0.8": 1, "arp reply 10.0.0.8": 1} {
				if got := strings.Count(frames, want); got != n && !(got == 2*n && want == "arp request 10.0.0.8") {
					t.Errorf("%s, then certain again: %d times %q, want %d, in\n%s", tt.name, got, want, n, frames)
				}
			}
			check.Equal(t, r.poked(), 1, "%s, then certain again: pokes", tt.name)
			r.set(t, "eth0 10.0.0.8\n eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"), announce("eth0", "10.0.0.8"))
		})
	}
}

func TestLinksThatCannotBeUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newLAN("eth0", "down0", "ppp0", "lo", "ib0", "bad0")
		lan.changeLink("down0", func(i *net.Interface) { i.Flags = net.FlagBroadcast })
		lan.changeLink("ppp0", func(i *net.Interface) { i.Flags |= net.FlagPointToPoint; i.HardwareAddr = nil })
		lan.changeLink("lo", func(i *net.Interface) { i.Flags |= net.FlagLoopback })
		lan.changeLink("ib0", func(i *net.Interface) { i.HardwareAddr = make(net.HardwareAddr, 20) })
		lan.setFault("openSender bad0", unix.EPERM)
		r := newFixture(t, lan)
		var want []vip.Announcement
		for _, l := range []string{"eth7", "down0", "ppp0", "lo", "ib0", "bad0", "eth0"} {
			want = append(want, announce(l, "10.0.0.9"))
		}
		r.set(t, "eth0 10.0.0.9", `
			10.0.0.9 can't be announced on bad0: operation not permitted
			10.0.0.9 can't be announced on down0: the link is down
			10.0.0.9 can't be announced on eth7: this node has no such link
			10.0.0.9 can't be announced on ib0: the link has no Ethernet neighbours (it is a loopback, a tunnel or point-to-point)
			10.0.0.9 can't be announced on lo: the link has no Ethernet neighbours (it is a loopback, a tunnel or point-to-point)
			10.0.0.9 can't be announced on ppp0: the link has no Ethernet neighbours (it is a loopback, a tunnel or point-to-point)`, want...)
		r.checkFrames(t, "the one that works", firstFrames)
	})
}

// Of many VIPs that can't be announced the error names ten, as do those of addresses and routes: the agent logs it whenever it reads otherwise.
func TestManyCannotBeAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, newLAN("eth0"))
		want := []vip.Announcement{announce("eth0", "10.0.0.9")}
		for i := range 1000 {
			want = append(want, announce("eth7", fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)))
		}
		have, err := r.Set(t.Context(), want)
		if len(have) != 1 || err == nil {
			t.Fatalf("%d announced, error %v", len(have), err)
		}
		if all := strings.Split(err.Error(), "\n"); len(all) != 11 || !strings.HasPrefix(all[0], "10.1.0.1 can't be") || all[10] != "and 990 more" {
			t.Errorf("%d lines, the last: %s", len(all), all[len(all)-1])
		}
	})
}

// A link that was made a moment ago is used at once, although the links were looked at just before that.
func TestNewLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newLAN("eth0", "eth1")
		lan.removeLink("eth1")
		r := newFixture(t, lan)
		defer r.run(t)()
		r.set(t, "eth0 10.0.0.1", "", announce("eth0", "10.0.0.1"))
		time.Sleep(100 * time.Millisecond)
		lan.setLink(net.Interface{Index: 12, Name: "eth1", Flags: net.FlagUp | net.FlagRunning, HardwareAddr: mac})
		r.set(t, "eth0 10.0.0.1\n eth1 10.0.0.9", "", announce("eth0", "10.0.0.1"), announce("eth1", "10.0.0.9"))
	})
}

// What happens to a link is logged once, not once for each of its VIPs.
func TestLinkOfManyVIPsGoesDown(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		lan := r.lan
		var want []vip.Announcement
		for i := range 20 {
			want = append(want, announce("eth0", fmt.Sprintf("10.0.0.%d", 10+i)))
		}
		for _, step := range []struct {
			flags net.Flags
			have  int
			log   string
		}{
			{net.FlagUp | net.FlagRunning, len(want), ""},
			{0, 0, "level=WARN msg="},
			{net.FlagUp | net.FlagRunning, len(want), "level=INFO msg="},
			{0, 0, "level=WARN msg="},
		} {
			lan.changeLink("eth0", func(i *net.Interface) { i.Flags = step.flags })
			time.Sleep(5 * time.Second)
			if have, err := r.Set(t.Context(), want); len(have) != step.have || err == nil != (step.have > 0) {
				t.Errorf("%v: have %v, error %v", step.flags, have, err)
			}
			if got := r.log.Take(); !strings.HasPrefix(got, step.log) || strings.Count(got, "\n") != min(len(step.log), 1) {
				t.Errorf("%v: logged\n%s, want one line with %q", step.flags, got, step.log)
			}
			r.log.Take()
		}
		// What has happened to VIPs that have left the link says nothing about the next one, though the link is still listened on.
		other := listenOnly("eth0", "10.0.0.99")
		for _, flags := range []net.Flags{0, net.FlagUp | net.FlagRunning} {
			check.Value(r.Set(t.Context(), []vip.Announcement{other}))(t)
			lan.changeLink("eth0", func(i *net.Interface) { i.Flags = flags })
			time.Sleep(5 * time.Second)
			r.log.Take()
		}
		check.Value(r.Set(t.Context(), append(want[:1:1], other)))(t)
		lan.changeLink("eth0", func(i *net.Interface) { i.Flags = 0 })
		time.Sleep(5 * time.Second)
		check.Equal(t, strings.Count(r.log.Take(), "WARN msg="), 1, "warnings")
	})
}

// A link comes late, goes down, comes back, is replaced, gets another hardware address, and loses its carrier for a while. Each time the
// VIP is announced from the beginning, within a second or two.
func TestLinkChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newLAN("eth0", "eth1")
		lan.removeLink("eth0")
		r := newFixture(t, lan)
		defer r.run(t)()
		eth0 := net.Interface{Index: 12, Name: "eth0", Flags: net.FlagUp | net.FlagRunning, HardwareAddr: mac}
		other := announce("eth1", "10.0.0.1")
		want := announce("eth0", "10.0.0.9")
		r.set(t, "eth1 10.0.0.1", "10.0.0.9 can't be announced on eth0: this node has no such link", want, other)
		for _, step := range []struct {
			name   string
			change func()
			works  bool
			mac    string
			pokes  int
			log    string
		}{
			{"it comes", func() { lan.setLink(eth0) }, true, "02:00:00:00:00:0a", 1, `INFO msg="VIPs can be announced again"`},
			{"it goes down", func() { lan.changeLink("eth0", func(i *net.Interface) { i.Flags = 0 }) }, false, "", 1, `WARN msg="VIPs can no longer be announced"`},
			{"it comes up", func() { lan.setLink(eth0) }, true, "02:00:00:00:00:0a", 1, `INFO msg="VIPs can be announced again"`},
			{"another hardware address", func() {
				lan.changeLink("eth0", func(i *net.Interface) { i.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 0xaa} })
			}, true, "02:00:00:00:00:aa", 0, ""},
			{"no carrier", func() { lan.changeLink("eth0", func(i *net.Interface) { i.Flags &^= net.FlagRunning }) }, true, "02:00:00:00:00:aa", 0, ""},
			{"a carrier", func() { lan.changeLink("eth0", func(i *net.Interface) { i.Flags |= net.FlagRunning }) }, true, "02:00:00:00:00:aa", 0, ""},
			{"it is deleted", func() { lan.removeLink("eth0") }, false, "", 1, `WARN msg="VIPs can no longer be announced"`},
			{"it is made again", func() { eth0.Index = 13; lan.setLink(eth0) }, true, "02:00:00:00:00:0a", 1, `INFO msg="VIPs can be announced again"`},
			{"it is replaced", func() { eth0.Index = 14; lan.setLink(eth0) }, true, "02:00:00:00:00:0a", -1, ""},
			{"it can't send", func() { lan.setFault("send eth0", unix.ENOBUFS) }, false, "", 1, `WARN msg="VIPs can no longer be announced"`},
			{"it can send", func() { lan.setFault("send eth0", nil) }, true, "02:00:00:00:00:0a", 1, `INFO msg="VIPs can be announced again"`},
		} {
			time.Sleep(20 * time.Second) // the announcements are slow again
			r.lan.takeFrames()
			r.log.Take()
			step.change()
			if step.name == "it can't send" {
				time.Sleep(2 * time.Second) // that shows at the next repetition
			}
			time.Sleep(2300 * time.Millisecond)
			frames := r.lan.takeFrames()
			check.Equal(t, strings.Contains(frames, "arp reply 10.0.0.9 "+step.mac), step.works, "%s: announced from the beginning, in\n%s", step.name, frames)
			check.Lacks(t, frames, "reply 10.0.0.1")
			if got := r.poked(); got != step.pokes && step.pokes >= 0 {
				t.Errorf("%s: poked %d times, want %d", step.name, got, step.pokes)
			}
			if step.works {
				r.set(t, "eth0 10.0.0.9\n eth1 10.0.0.1", "", want, other)
			} else if have, err := r.Set(t.Context(), []vip.Announcement{want, other}); len(have) != 1 || err == nil {
				t.Errorf("%s: have %v, error %v", step.name, have, err)
			}
			got := r.log.Take()
			if step.pokes < 0 { // a repetition may have come before the look at the links, and failed
				continue
			}
			if n := strings.Count(got, "\n"); step.log == "" && n > 0 || step.log != "" && n != 1 || !strings.Contains(got, step.log) {
				t.Errorf("%s: logged %q, want one line with %q", step.name, got, step.log)
			}
		}
	})
}

// What one address learns of its link holds for the others there, too.
func TestLinkChangeConcernsAllItsAddresses(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		lan := r.lan
		a, b := announce("eth0", "10.0.0.9"), announce("eth0", "2001:db8::9")
		r.set(t, "eth0 10.0.0.9", "", a)
		time.Sleep(1500 * time.Millisecond) // so that they are due at different times
		r.set(t, "eth0 10.0.0.9\n eth0 2001:db8::9", "", a, b)
		for range 10 {
			time.Sleep(20 * time.Second)
			lan.takeFrames()
			lan.changeLink("eth0", func(i *net.Interface) { i.Flags &^= net.FlagUp })
			time.Sleep(300 * time.Millisecond)
			_, _ = r.Set(t.Context(), []vip.Announcement{a, b, announce("eth0", "10.0.0.77")}) // which looks, too
			lan.changeLink("eth0", func(i *net.Interface) { i.Flags |= net.FlagUp })
			time.Sleep(1700 * time.Millisecond)
			check.Contains(t, lan.takeFrames(), "arp reply 10.0.0.9", "na ff02::2 2001:db8::9")
			r.set(t, "eth0 10.0.0.9\n eth0 2001:db8::9", "", a, b)
		}
	})
}

func TestHeardAnnouncements(t *testing.T) {
	onLAN(t, "eth0 eth1", func(t *testing.T, r *fixture) {
		want := []vip.Announcement{listenOnly("eth0", "::ffff:10.0.0.9"), announce("eth0", "10.0.0.8"), listenOnly("eth0", "2001:db8::9"), listenOnly("eth1", "10.0.0.6")}
		r.set(t, "eth0 10.0.0.8\n eth0 2001:db8::9 listen\n eth0 ::ffff:10.0.0.9 listen\n eth1 10.0.0.6 listen", "", want...)
		synctest.Wait()
		for _, step := range []struct {
			link, addr string
			mac        byte
			pokes      int
			want       string
		}{
			{"eth0", "10.0.0.7", 0xff, 0, ""}, // nobody asked
			{"eth1", "10.0.0.9", 0xff, 0, ""}, // on another link
			{"eth0", "10.0.0.9", 0x0a, 0, ""}, // ourselves
			{"eth0", "10.0.0.9", 0x0b, 0, ""}, // ourselves, by another link into the same LAN
			{"eth0", "10.0.0.9", 0xff, 1, "10.0.0.9 eth0 02:00:00:00:00:ff 0.0s ago"},
			{"eth0", "10.0.0.9", 0xff, 0, "10.0.0.9 eth0 02:00:00:00:00:ff 0.0s ago"},
			{"eth0", "10.0.0.9", 0xfe, 0, "10.0.0.9 eth0 02:00:00:00:00:fe 0.0s ago"},
			{"eth0", "10.0.0.8", 0xff, 1, "10.0.0.8 eth0 02:00:00:00:00:ff 0.0s ago\n 10.0.0.9 eth0 02:00:00:00:00:fe 0.0s ago"},
			{"eth0", "2001:db8::9", 0xff, 1, "10.0.0.8 eth0 02:00:00:00:00:ff 0.0s ago\n 10.0.0.9 eth0 02:00:00:00:00:fe 0.0s ago\n 2001:db8::9 eth0 02:00:00:00:00:ff 0.0s ago"},
		} {
			r.lan.announce(step.link, step.addr, step.mac)
			check.Equal(t, r.poked(), step.pokes, "%s on %s: pokes", step.addr, step.link)
			check.Same(t, check.Lines(step.want), r.heardText(), "%s on %s: Heard", step.addr, step.link)
		}
		// Another link of this node gets another hardware address.
		r.lan.changeLink("eth1", func(i *net.Interface) { i.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 0x0c} })
		time.Sleep(1100 * time.Millisecond)
		r.lan.announce("eth0", "10.0.0.9", 0x0c)
		check.Lacks(t, r.heardText(), ":0c")
		check.Lacks(t, r.lan.takeFrames(), "10.0.0.9")
		check.Equal(t, check.Metric(t, "", r.metrics.heard), 5, "herald_announcements_heard_total")
	})
}

// The successor may be heard before this node is asked to listen for it.
func TestHandOver(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		synctest.Wait()
		time.Sleep(time.Minute)
		r.lan.announce("eth0", "10.0.0.9", 0xff)
		check.Equal(t, r.poked(), 1, "pokes")
		time.Sleep(100 * time.Millisecond)
		r.set(t, "", "") // the agent takes it away and adds it again in one pass
		r.lan.takeFrames()
		r.set(t, "eth0 10.0.0.9 listen", "", listenOnly("eth0", "10.0.0.9"))
		r.checkFrames(t, "listening", "")
		check.Same(t, "10.0.0.9 eth0 02:00:00:00:00:ff 0.1s ago", r.heardText(), "Heard")
		time.Sleep(time.Second)
		r.lan.announce("eth0", "10.0.0.9", 0xff)
		check.Equal(t, r.poked(), 1, "pokes for the first announcement in the new role")
		check.Same(t, "10.0.0.9 eth0 02:00:00:00:00:ff 0.0s ago", r.heardText(), "Heard")
		// Long after, everything is new.
		r.set(t, "", "")
		r.lan.announce("eth0", "10.0.0.9", 0xff)
		check.Equal(t, r.heardText(), "", "Heard of what isn't wanted")
		check.Equal(t, r.poked(), 0, "pokes")
		time.Sleep(3 * time.Second)
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		check.Equal(t, r.heardText(), "", "Heard of long ago")
		r.checkFrames(t, "announced again", strings.ReplaceAll(firstFrames, "0.0s", "64.1s"))
	})
}

// What is no longer wanted is heard for a moment more, but without a poke.
func TestNoLongerWantedIsHeardForAMoment(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		keep, drop := listenOnly("eth0", "10.0.0.8"), listenOnly("eth0", "10.0.0.9")
		r.set(t, "eth0 10.0.0.8 listen\n eth0 10.0.0.9 listen", "", keep, drop)
		synctest.Wait()
		r.set(t, "eth0 10.0.0.8 listen", "", keep)
		r.lan.announce("eth0", "10.0.0.9", 0xff)
		check.Equal(t, r.poked(), 0, "pokes")
		check.Equal(t, r.heardText(), "", "Heard")
		r.set(t, "eth0 10.0.0.8 listen\n eth0 10.0.0.9 listen", "", keep, drop)
		check.Same(t, "10.0.0.9 eth0 02:00:00:00:00:ff 0.0s ago", r.heardText(), "Heard")
		r.lan.announce("eth0", "10.0.0.9", 0xff)
		check.Equal(t, r.poked(), 1, "pokes")
	})
}

// Listening needs no link that can send.
func TestListenAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newLAN("eth0")
		lan.setFault("openSender eth0", unix.EPERM)
		r := newFixture(t, lan)
		r.set(t, "", "10.0.0.9 can't be announced on eth0: operation not permitted", announce("eth0", "10.0.0.9"))
		r.set(t, "eth0 10.0.0.9 listen", "", listenOnly("eth0", "10.0.0.9"))
	})
}

// An address may be wanted twice, by Services of which one is handed over.
func TestWantedTwice(t *testing.T) {
	for _, want := range [][]vip.Announcement{
		{announce("eth0", "10.0.0.9"), listenOnly("eth0", "10.0.0.9")},
		{listenOnly("eth0", "10.0.0.9"), announce("eth0", "10.0.0.9")},
		{announce("eth0", "10.0.0.9"), announce("eth0", "10.0.0.9")},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newFixture(t, newLAN("eth0"))
			r.set(t, "eth0 10.0.0.9", "", want...)
			r.checkFrames(t, "wanted twice", firstFrames)
		})
	}
}

// Who listened and now announces does so at once.
func TestListenedForThenAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, newLAN("eth0"))
		r.set(t, "eth0 10.0.0.9 listen", "", listenOnly("eth0", "10.0.0.9"))
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		r.checkFrames(t, "announced", firstFrames)
	})
}

func TestReceiversFollowTheLinks(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		lan := r.lan
		r.set(t, "eth0 10.0.0.9 listen\n eth0 2001:db8::9 listen", "", listenOnly("eth0", "10.0.0.9"), listenOnly("eth0", "2001:db8::9"))
		synctest.Wait()
		lan.removeLink("eth0")
		time.Sleep(5 * time.Second)
		r.log.Take()
		lan.setLink(net.Interface{Index: 99, Name: "eth0", Flags: net.FlagUp, HardwareAddr: mac})
		time.Sleep(2500 * time.Millisecond)
		lan.announce("eth0", "10.0.0.9", 0xff)
		lan.announce("eth0", "2001:db8::9", 0xff)
		check.Same(t, "10.0.0.9 eth0 02:00:00:00:00:ff 0.0s ago\n2001:db8::9 eth0 02:00:00:00:00:ff 0.0s ago", r.heardText(), "Heard on the new link")
		check.Equal(t, lan.openSockets(), 2, "open sockets")
		r.set(t, "eth0 10.0.0.9 listen", "", listenOnly("eth0", "10.0.0.9"))
		synctest.Wait()
		check.Equal(t, lan.openSockets(), 1, "open sockets for one family")
	})
}

func TestReceiversThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newLAN("eth0")
		lan.setFault("openReceiver eth0", unix.EPERM)
		r := newFixture(t, lan)
		defer r.run(t)()
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		time.Sleep(10 * time.Second)
		want := regexp.MustCompile(`^level=WARN msg="can't receive the announcements of other hosts, trying again every second" link=eth0 family=IPv4 err="operation not permitted"\n$`)
		if got := r.log.Take(); !want.MatchString(got) {
			t.Errorf("logged %q, want one warning", got)
		}
		lan.setFault("openReceiver eth0", nil)
		time.Sleep(1100 * time.Millisecond)
		lan.announce("eth0", "10.0.0.9", 0xff)
		check.Equal(t, r.heardText() != "", true, "something is heard")
	})
}

func TestSetWithEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, newLAN("eth0"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		have, err := r.Set(ctx, []vip.Announcement{announce("eth0", "10.0.0.9")})
		if len(have) > 0 || err == nil {
			t.Errorf("have %v, error %v", have, err)
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newLAN("eth0")
		r := newFixture(t, lan)
		_, _ = r.Set(t.Context(), []vip.Announcement{announce("eth0", "10.0.0.9"), announce("eth0", "2001:db8::9"), announce("eth0", "2001:db8::8"), announce("eth7", "10.0.0.8")})
		for _, c := range []struct {
			name string
			m    prometheus.Collector
			want float64
		}{
			{"sent ipv4", r.metrics.sent.WithLabelValues("ipv4"), 2},
			{"sent ipv6", r.metrics.sent.WithLabelValues("ipv6"), 4},
			{"errors ipv4", r.metrics.errors.WithLabelValues("ipv4"), 1},
			{"errors ipv6", r.metrics.errors.WithLabelValues("ipv6"), 0},
		} {
			check.Equal(t, check.Metric(t, "", c.m), c.want, "%s", c.name)
		}
		reg := prometheus.NewPedanticRegistry()
		for _, c := range r.Collectors() {
			check.OK(t, reg.Register(c))
		}
		families, err := reg.Gather()
		if err != nil || len(families) != 5 {
			t.Errorf("gathered %d metrics, error %v", len(families), err)
		}
	})
}

// Where sysctls keep the kernel from answering, this node answers for what it announces, and only while it may hold it.
func TestAnswers(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.set(t, "eth0 10.0.0.8 listen\neth0 10.0.0.9", "", announce("eth0", "10.0.0.9"), listenOnly("eth0", "10.0.0.8"))
		time.Sleep(tick / 2) // repetitions are sent at whole ticks
		answers := func(what string, want string, m neighborMessage) {
			t.Helper()
			time.Sleep(10 * time.Second) // the announcements of the beginning are over
			r.lan.takeFrames()
			r.lan.mu.Lock()
			r.lan.deliver("eth0", m)
			r.lan.mu.Unlock()
			synctest.Wait()
			if got := r.lan.takeFrames(); (want == "") != (got == "") || !strings.HasSuffix(strings.TrimSpace(got), want) {
				t.Errorf("%s: frames are %q, want %q", what, got, want)
			}
		}
		request, probe := messageRequest.by("10.0.0.77", 7), messageProbe.by("10.0.0.9", 7)
		answers("the kernel answers", "", request.asking("10.0.0.9"))
		for _, name := range []string{"all arp_ignore", "eth0 arp_ignore", "all arp_filter", "eth0 arp_filter"} {
			r.sysctls[name] = 2
			answers(name, "eth0 arp reply 10.0.0.9 02:00:00:00:00:0a to 10.0.0.77", request.asking("10.0.0.9"))
			clear(r.sysctls)
		}
		r.sysctls["all arp_ignore"] = 8
		answers("a probe", "eth0 arp reply 10.0.0.9 02:00:00:00:00:0a to 0.0.0.0", probe.asking("10.0.0.9"))
		answers("what is only listened for", "", request.asking("10.0.0.8"))
		r.set(t, "eth0 10.0.0.8 listen\neth0 10.0.0.9 listen", "", listenOnly("eth0", "10.0.0.9"), listenOnly("eth0", "10.0.0.8"))
		answers("what is handed over", "eth0 arp reply 10.0.0.9 02:00:00:00:00:0a to 10.0.0.77", request.asking("10.0.0.9"))
		answers("another address", "", request.asking("10.0.0.7"))
		r.changeTenure(func(t *vip.Tenure) { t.Confirmed = false })
		answers("without tenure", "", request.asking("10.0.0.9"))
	})
}
