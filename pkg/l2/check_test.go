package l2

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/check"
)

// Nodes of the cluster: this one, and two more.
const nodes = "02:00:00:00:00:0a 02:00:00:00:00:11 02:00:00:00:00:12"

func probeCheck(link, addr string) vip.AddressCheck {
	return vip.AddressCheck{Addr: netip.MustParseAddr(addr), Link: link, Kind: vip.CheckProbe, AllowedMACs: nodes}
}

func defendCheck(addr string) vip.AddressCheck {
	return vip.AddressCheck{Addr: netip.MustParseAddr(addr), Link: "eth0", Kind: vip.CheckDefend, AllowedMACs: nodes}
}

func verifyCheck(addr string) vip.AddressCheck {
	return vip.AddressCheck{Addr: netip.MustParseAddr(addr), Link: "eth0", Kind: vip.CheckVerify, Owner: "n2", AllowedMACs: "02:00:00:00:00:11"}
}

// putChecks puts what is to be checked.
func (r *fixture) putChecks(t *testing.T, want ...vip.AddressCheck) {
	t.Helper()
	r.AddressChecks().Put(want)
	synctest.Wait()
}

// results is World.CheckResults as text.
func (r *fixture) results() string {
	synctest.Wait()
	var w vip.World
	r.Observe(&w)
	var out []string
	for _, f := range w.CheckResults {
		text := fmt.Sprintf("%s %s %.2fs ago:", f.Addr, f.Kind, time.Since(f.At).Seconds())
		if f.OK() {
			text += " OK"
		}
		if f.NoAnswer {
			text += " no answer"
		}
		for _, mac := range f.UnexpectedMACs {
			text += " " + mac
		}
		if f.StillAnsweredBy != "" {
			text += " still answered by " + f.StillAnsweredBy
		}
		if !f.ClearedAt.IsZero() {
			text += fmt.Sprintf(", cleared %.2fs ago", time.Since(f.ClearedAt).Seconds())
		}
		if f.NotSent != "" {
			text += ", not sent: " + f.NotSent
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// hasResult fails the test unless the results have a part, so many pokes came since the last look, and these are the problems.
func (r *fixture) hasResult(t *testing.T, what, part string, pokes int, problems string) {
	t.Helper()
	check.Contains(t, r.results(), part)
	check.Equal(t, r.poked(), pokes, "%s: pokes", what)
	check.Equal(t, r.problems(t), problems, "%s: problems", what)
}

func (r *fixture) checkResults(t *testing.T, what, want string) {
	t.Helper()
	check.Same(t, check.Lines(want), r.results(), "%s: results", what)
}

// problems is the gauge herald_vip_problems.
func (r *fixture) problems(t *testing.T) string {
	t.Helper()
	var out []string
	for _, what := range problems {
		if n := check.Metric(t, "", r.metrics.problems.WithLabelValues(what)); n > 0 {
			out = append(out, fmt.Sprintf("%s %v", what, n))
		}
	}
	return strings.Join(out, ", ")
}

func TestProbeOfFreeAddress(t *testing.T) {
	for _, tt := range []struct{ addr, probe string }{
		{"10.0.0.9", "arp who has 10.0.0.9 tell 0.0.0.0"},
		{"2001:db8::9", "ns who has 2001:db8::9 tell ::"},
	} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			r.lan.setHosts("eth0", tt.addr, 0x11) // another node of the cluster has it: no otherMAC
			r.putChecks(t, probeCheck("eth0", tt.addr))
			time.Sleep(119 * time.Millisecond)
			r.checkResults(t, "before the time is over", "")
			time.Sleep(5 * time.Millisecond) // the receiver had to be opened
			r.checkResults(t, "then", tt.addr+" probe 0.00s ago: OK")
			check.Equal(t, r.poked(), 1, "pokes")
			r.checkFrames(t, "probes", strings.ReplaceAll("0.0s eth0 P\n 0.0s eth0 P\n 0.1s eth0 P", "P", tt.probe))
			time.Sleep(time.Hour)
			r.checkFrames(t, "an hour later", "")
			r.putChecks(t)
			r.checkResults(t, "no longer wanted", "")
			check.Equal(t, r.poked(), 0, "pokes")
			time.Sleep(requestsRemembered + 2*time.Second)
			synctest.Wait()
			check.Equal(t, r.lan.openSockets(), 0, "open sockets")
		})
	}
}

// A probe that has found an address free says nothing of hosts that were allowed to answer, and no longer are: they are probed for.
func TestProbeAllowsFewer(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.lan.setHosts("eth0", "10.0.0.9", 0x11)
		x := probeCheck("eth0", "10.0.0.9")
		r.putChecks(t, x)
		time.Sleep(time.Second)
		r.checkResults(t, "it may", "10.0.0.9 probe 0.88s ago: OK")
		r.lan.takeFrames()
		r.poked()
		x.AllowedMACs = "02:00:00:00:00:11"
		r.putChecks(t, x)
		r.checkFrames(t, "one that was not heard", "")
		r.checkResults(t, "it may still", "10.0.0.9 probe 0.00s ago: OK")
		check.Equal(t, r.poked(), 1, "the plan is not told that others were not heard either")
		x.AllowedMACs = "02:00:00:00:00:22"
		r.putChecks(t, x)
		time.Sleep(10 * time.Millisecond)
		r.checkResults(t, "it may not", "10.0.0.9 probe 0.01s ago: 02:00:00:00:00:11")
	})
}

func TestProbeOfAddressInUse(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.lan.setHosts("eth0", "10.0.0.9", 0xff, 0x11, 0xfe)
		r.putChecks(t, probeCheck("eth0", "10.0.0.9"))
		time.Sleep(10 * time.Millisecond)
		r.checkResults(t, "at once", "10.0.0.9 probe 0.01s ago: 02:00:00:00:00:fe 02:00:00:00:00:ff")
		check.Between(t, r.poked(), 1, 2, "pokes")
		check.Equal(t, r.problems(t), "in_use 1", "herald_vip_problems")
		// It is asked again, less and less often, and known as soon as it is free.
		time.Sleep(5 * time.Minute)
		var rounds []string
		for line := range strings.Lines(r.lan.takeFrames()) {
			at, _, _ := strings.Cut(line, " ")
			rounds = append(rounds, at[:strings.Index(at, ".")])
		}
		check.Same(t, strings.Fields("0 1 3 7 15 31 63 123 184 244"), slices.Compact(rounds), "seconds at which it is asked")
		check.Equal(t, r.poked(), 0, "pokes though nothing changed")
		r.lan.setHosts("eth0", "10.0.0.9")
		time.Sleep(time.Minute)
		r.checkResults(t, "free", "10.0.0.9 probe 55.69s ago: OK, cleared 55.69s ago")
		check.Equal(t, r.poked(), 1, "pokes")
		check.Equal(t, r.problems(t), "", "problems")
		// Somebody takes it before it was used.
		r.lan.announce("eth0", "10.0.0.9", 0xfd)
		r.checkResults(t, "taken again", "10.0.0.9 probe 0.00s ago: 02:00:00:00:00:fd")
		time.Sleep(6 * time.Second)
		r.checkResults(t, "and left", "10.0.0.9 probe 4.88s ago: OK, cleared 4.88s ago")
	})
}

// TestProbeInAFlood: replies are dropped while a link is flooded. Nobody is taken for free on that account, but for a flood that does not end.
func TestProbeInAFlood(t *testing.T) {
	for _, tt := range []struct {
		ends time.Duration
		want string
	}{
		{2 * time.Second, ": 02:00:00:00:00:11"},
		{time.Hour, ": OK"},
	} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			began := time.Now()
			r.lan.setAnswer("eth0 10.0.0.9", func(m neighborMessage) {
				if time.Since(began) < tt.ends {
					r.heard.setFlooded("eth0", time.Now())
					return
				}
				r.lan.deliver("eth0", messageReply.by("10.0.0.9", 0x11))
			})
			x := probeCheck("eth0", "10.0.0.9")
			x.AllowedMACs = "02:00:00:00:00:22"
			r.putChecks(t, x)
			time.Sleep(time.Second)
			r.checkResults(t, "in the flood", "")
			time.Sleep(5 * time.Second)
			if got := r.results(); !strings.HasSuffix(got, tt.want) {
				t.Errorf("a flood of %v: %s, want %s", tt.ends, got, tt.want)
			}
			check.Equal(t, strings.Contains(r.log.Take(), "another host may have an address"), tt.ends == time.Hour, "a flood of %v: warned", tt.ends)
		})
	}
}

// A host that answers each probe with one of its own, as a switch does that tracks addresses, wants nothing: the address is free after some
// rounds, and not said to be in use before. A host that goes on to claim it has it.
func TestSimultaneousProbe(t *testing.T) {
	for _, tt := range []struct {
		mac     byte // eth0 has 0x0a
		claims  bool
		within  time.Duration
		want    string
		allowed bool
	}{
		{mac: 0x12, within: 250 * time.Millisecond, want: "10.0.0.9 probe 0.13s ago: OK", allowed: true},
		{mac: 0xff, within: 2 * time.Second, want: ""},
		{mac: 0xff, within: 5 * time.Second, want: "OK"},
		{mac: 0x05, within: 5 * time.Second, want: ""},
		{mac: 0x05, within: 13 * time.Second, want: "OK"},
		{mac: 0xff, claims: true, within: 5 * time.Second, want: "02:00:00:00:00:ff"},
	} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			asked := 0
			r.lan.setAnswer("eth0 10.0.0.9", func(m neighborMessage) {
				kind := messageProbe
				if asked++; tt.claims && asked > requests {
					kind = messageReply
				}
				r.lan.deliver("eth0", kind.by(m.addr.String(), tt.mac))
			})
			r.putChecks(t, probeCheck("eth0", "10.0.0.9"))
			time.Sleep(tt.within)
			if got := r.results(); (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%+v: results are %q", tt, got)
			}
		})
	}
}

// What can't be asked does not keep a VIP from being served.
func TestProbeThatCannotBeSent(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*fakeLAN)
		after time.Duration
		want  string
		log   bool
	}{
		{"no Ethernet", func(l *fakeLAN) { l.changeLink("eth0", func(i *net.Interface) { i.HardwareAddr = nil }) }, 0, errNoEthernet.Error(), false},
		{"gone", func(l *fakeLAN) { l.removeLink("eth0") }, sendWithin, "this node has no such link", true},
		{"no right", func(l *fakeLAN) { l.setFault("openReceiver eth0", unix.EPERM) }, sendWithin, errNotReceiving.Error(), true},
	} {
		synctest.Test(t, func(t *testing.T) {
			lan := newLAN("eth0")
			tt.spoil(lan)
			r := newFixture(t, lan)
			defer r.run(t)()
			r.putChecks(t, probeCheck("eth0", "10.0.0.9"))
			if tt.after > 0 {
				time.Sleep(tt.after - 10*time.Millisecond)
				r.checkResults(t, tt.name+", before", "")
			}
			time.Sleep(20 * time.Millisecond)
			got := r.results()
			if _, why, _ := strings.Cut(got, ", not sent: "); !strings.Contains(got, "OK") || why != tt.want || r.poked() != 1 {
				t.Errorf("%s: %s", tt.name, got)
			}
			time.Sleep(90 * time.Second)
			check.Equal(t, r.poked(), 0, "%s: pokes", tt.name)
			if got := strings.Count(r.log.Take(), "can't ask whether"); got == 1 != tt.log || got > 1 {
				t.Errorf("%s: logged %d times", tt.name, got)
			}
		})
	}
}

func TestDefend(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		time.Sleep(10 * time.Second)
		r.lan.takeFrames()
		r.poked()
		r.lan.setHosts("eth0", "10.0.0.9", 0xff)
		r.lan.announce("eth0", "10.0.0.9", 0xff)
		check.Equal(t, r.poked(), 1, "pokes by a claim")
		r.putChecks(t, defendCheck("10.0.0.9"))
		const defence = "eth0 arp request 10.0.0.9 02:00:00:00:00:0a"
		check.Contains(t, r.lan.takeFrames(), "10.0s "+defence)
		time.Sleep(10 * time.Millisecond)
		r.checkResults(t, "at once", "10.0.0.9 defend 0.01s ago: 02:00:00:00:00:ff")
		check.Equal(t, r.problems(t), "conflict 1", "herald_vip_problems")
		// The other host shouts. The usual repetition is each 3 s; on top of it not more than one frame in 10 s.
		r.lan.takeFrames()
		before := check.Metric(t, "", r.metrics.sent.WithLabelValues("ipv4"))
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			r.lan.announce("eth0", "10.0.0.9", 0xff)
		}
		check.Between(t, check.Metric(t, "", r.metrics.sent.WithLabelValues("ipv4"))-before, 20, 26, "announcements in a minute of conflict")
		check.Between(t, r.poked(), 0, 8, "pokes in a minute")
		// It goes. Three rounds of probes have to say so: a host may answer at times only.
		r.lan.setHosts("eth0", "10.0.0.9")
		time.Sleep(19 * time.Second)
		check.Lacks(t, r.results(), "OK")
		time.Sleep(15 * time.Second)
		r.hasResult(t, "gone", "OK, cleared", 1, "")
		r.lan.takeFrames()
		time.Sleep(time.Minute)
		check.Lacks(t, r.lan.takeFrames(), "who has")
		// It is back.
		r.lan.announce("eth0", "10.0.0.9", 0xff)
		r.checkResults(t, "back", "10.0.0.9 defend 0.00s ago: 02:00:00:00:00:ff")
		check.Contains(t, r.lan.takeFrames(), defence)
		// It turns out to be a node that has joined meanwhile.
		i := defendCheck("10.0.0.9")
		i.AllowedMACs += " 02:00:00:00:00:ff"
		r.poked()
		r.putChecks(t, i)
		r.checkResults(t, "a node", "10.0.0.9 defend 0.00s ago: OK, cleared 0.00s ago")
		check.Equal(t, r.poked(), 1, "pokes")
	})
}

// What another node has, and what is only listened for, is not defended.
func TestNoDefenceOfWhatIsNotAnnounced(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.set(t, "eth0 10.0.0.9 listen", "", listenOnly("eth0", "10.0.0.9"))
		r.putChecks(t, defendCheck("10.0.0.9"), defendCheck("10.0.0.8"))
		r.lan.announce("eth0", "10.0.0.9", 0xff)
		r.lan.announce("eth0", "10.0.0.8", 0xff)
		time.Sleep(30 * time.Second)
		check.Lacks(t, r.lan.takeFrames(), "request")
	})
}

// keepLinkAlive has a host announce an address that concerns nobody, each second: of a node nothing is said
// unless another host was heard since its first request without an answer.
func (r *fixture) keepLinkAlive(t *testing.T) func() {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Second):
				r.lan.mu.Lock()
				r.lan.deliver("eth0", messageAnnouncement.by("10.0.0.77", 0x77))
				r.lan.deliver("eth0", messageAnnouncement.by("2001:db8::77", 0x77))
				r.lan.mu.Unlock()
			}
		}
	}()
	return func() { close(done); synctest.Wait() }
}

func TestVerify(t *testing.T) {
	for _, addr := range []string{"10.0.0.9", "2001:db8::9"} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			defer r.keepLinkAlive(t)()
			r.lan.setHosts("eth0", addr, 0x11)
			r.putChecks(t, verifyCheck(addr))
			time.Sleep(verifyInterval - time.Millisecond)
			r.checkFrames(t, "it may just have moved", "")
			time.Sleep(time.Minute)
			r.checkResults(t, "answered", "")
			check.Between(t, strings.Count(r.lan.takeFrames(), "who has "+addr+" tell "+map[bool]string{true: "10.0.0.2", false: "2001:db8::2"}[addr == "10.0.0.9"]), 9, 13, "requests in a minute")
			check.Equal(t, r.poked(), 0, "pokes")
			r.lan.setHosts("eth0", addr)
			time.Sleep(3 * time.Second)
			r.checkResults(t, "not answered yet", "")
			time.Sleep(7 * time.Second)
			r.hasResult(t, "it does not answer", "no answer", 1, "unanswered 1")
			time.Sleep(time.Minute)
			r.lan.setHosts("eth0", addr, 0x11)
			time.Sleep(7 * time.Second)
			r.hasResult(t, "answered again", "OK, cleared", 1, "")
			// The owner's MAC, and another.
			r.lan.setHosts("eth0", addr, 0x11, 0xff)
			time.Sleep(9 * time.Second)
			r.hasResult(t, "two answer", " 02:00:00:00:00:ff", 1, "foreign_mac 1")
			check.Lacks(t, r.results(), ":11")
			r.lan.setHosts("eth0", addr, 0x11)
			time.Sleep(30 * time.Second)
			r.hasResult(t, "one answers", "OK, cleared", 1, "")
			// Another owner: the check begins from nothing.
			i := verifyCheck(addr)
			i.Owner, i.AllowedMACs, i.Transitions = "n3", "02:00:00:00:00:12", 7
			r.putChecks(t, i)
			r.checkResults(t, "moved", "")
			r.lan.setHosts("eth0", addr, 0x12)
			time.Sleep(time.Minute)
			r.checkResults(t, "moved, and answered", "")
			check.Equal(t, r.poked(), 0, "pokes")
		})
	}
}

// An owner that announces its VIP and replies to no request does not answer.
func TestVerifyOwnerAnnouncesButDoesNotReply(t *testing.T) {
	for _, addr := range []string{"10.0.0.9", "2001:db8::9"} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			r.putChecks(t, verifyCheck(addr))
			for range 70 {
				time.Sleep(200 * time.Millisecond)
				r.lan.announce("eth0", addr, 0x11)
			}
			check.Contains(t, r.results(), "no answer")
		})
	}
}

// A lost reply, a reply by another host, announcements by others, and a network in which no
// host at all is heard are not held against the owner.
func TestVerifyWithoutFalseAlarm(t *testing.T) {
	for name, f := range map[string]func(r *fixture, asked int){
		"two of three are lost": func(r *fixture, asked int) {
			if asked%3 == 0 {
				r.lan.deliver("eth0", messageReply.by("10.0.0.9", 0x11))
			}
		},
		"at times another replies": func(r *fixture, asked int) {
			r.lan.deliver("eth0", messageReply.by("10.0.0.9", 0x11))
			if asked%20 == 0 {
				r.lan.deliver("eth0", messageReply.by("10.0.0.9", 0xff))
			}
		},
	} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			defer r.keepLinkAlive(t)()
			asked := 0
			r.lan.setAnswer("eth0 10.0.0.9", func(neighborMessage) { asked++; f(r, asked) })
			r.putChecks(t, verifyCheck("10.0.0.9"))
			for range 200 {
				time.Sleep(time.Second)
				if got := r.results(); got != "" {
					t.Fatalf("%s: %s", name, got)
				}
			}
			r.lan.mu.Lock()
			defer r.lan.mu.Unlock()
			if asked < 30 {
				t.Errorf("%s: asked %d times", name, asked)
			}
		})
	}
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.putChecks(t, verifyCheck("10.0.0.9"))
		time.Sleep(time.Minute)
		r.checkResults(t, "nobody is heard", "")
		stop := r.keepLinkAlive(t)
		time.Sleep(15 * time.Second)
		check.Contains(t, r.results(), "no answer")
		stop()
		r.lan.setFault("send eth0", unix.ENETDOWN)
		before := r.results()
		time.Sleep(time.Minute)
		check.Equal(t, strings.Count(r.results(), "no answer"), strings.Count(before, "no answer"), "results, though nobody can be asked")
	})
	onLAN(t, "eth0", func(t *testing.T, r *fixture) { // an owner whose MACs are not known
		r.lan.setHosts("eth0", "10.0.0.9", 0xff)
		i := verifyCheck("10.0.0.9")
		i.AllowedMACs = ""
		r.putChecks(t, i)
		time.Sleep(time.Minute)
		r.checkResults(t, "anybody may answer", "")
	})
}

// However many VIPs there are, ten requests a second are sent, and each VIP is asked for.
func TestVerifyRateIsLimited(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		defer r.keepLinkAlive(t)()
		const n = 500
		var want []vip.AddressCheck
		for i := range n {
			a := fmt.Sprintf("10.0.%d.%d", 1+i/250, 1+i%250)
			if i%100 != 0 { // a hundredth is dead
				r.lan.setHosts("eth0", a, 0x11)
			}
			want = append(want, verifyCheck(a))
		}
		r.putChecks(t, want...)
		time.Sleep(100 * time.Second)
		counts := map[string]int{}
		for line := range strings.Lines(r.lan.takeFrames()) {
			counts[strings.TrimSpace(line[strings.Index(line, "eth0"):])]++
		}
		total := 0
		for _, c := range counts {
			total += c
		}
		check.Between(t, total, 900, 1001, "requests in 100 s")
		check.Equal(t, len(counts), n, "VIPs that were asked for")
		check.Equal(t, r.problems(t), "unanswered 5", "herald_vip_problems")
		for _, k := range slices.Sorted(maps.Keys(counts)) {
			check.Between(t, counts[k], 0, 12, "requests for %s", k)
		}
	})
}

// New addresses are probed for in parallel.
func TestManyProbesInParallel(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		var want []vip.AddressCheck
		for i := range 1000 {
			want = append(want, probeCheck("eth0", fmt.Sprintf("10.1.%d.%d", i>>8, i&255)))
		}
		r.putChecks(t, want...)
		time.Sleep(130 * time.Millisecond)
		var w vip.World
		r.Observe(&w)
		check.Equal(t, len(w.CheckResults), 1000, "checks with a result")
		check.Equal(t, check.Metric(t, "", r.metrics.requests.WithLabelValues("ipv4")), 3000, "requests")
		check.Between(t, r.poked(), 0, 5, "pokes")
	})
}

// The same again does nothing, and nothing is left behind.
func TestPutAddressChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, newLAN("eth0", "eth1"))
		stop := r.run(t)
		r.putChecks(t, probeCheck("eth0", "10.0.0.9"), probeCheck("eth1", "10.0.0.8"))
		r.putChecks(t, probeCheck("eth0", "10.0.0.9"), probeCheck("eth1", "10.0.0.8"))
		time.Sleep(time.Second)
		check.Equal(t, strings.Count(r.lan.takeFrames(), "who has"), 6, "requests")
		r.putChecks(t, defendCheck("10.0.0.9"), probeCheck("eth1", "10.0.0.8")) // another check of the same address
		time.Sleep(time.Second)
		check.Equal(t, strings.Count(r.lan.takeFrames(), "who has 10.0.0.9"), 3, "requests")
		r.putChecks(t)
		r.heard.mu.Lock()
		check.Equal(t, len(r.heard.checked), 0, "addresses still listened for")
		r.heard.mu.Unlock()
		check.Equal(t, len(*r.AddressChecks().checks.Load()), 0, "checks left")
		stop()
		check.Equal(t, r.lan.openSockets(), 0, "open sockets")
	})
}

// A result is not observed any more as soon as its check is not wanted, and what is checked instead has none yet.
func TestResultsAreOfWhatWasPutLast(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.putChecks(t, probeCheck("eth0", "10.0.0.9"))
		time.Sleep(200 * time.Millisecond)
		check.Contains(t, r.results(), "10.0.0.9 probe")
		for _, want := range [][]vip.AddressCheck{nil, {defendCheck("10.0.0.9")}} {
			r.AddressChecks().Put(want)
			var w vip.World
			r.Observe(&w) // Run has not seen it yet
			check.Equal(t, len(w.CheckResults), 0, "results after Put of %v", want)
		}
	})
}
