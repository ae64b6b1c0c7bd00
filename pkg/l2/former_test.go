package l2

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func formerCheck(addr string) vip.AddressCheck {
	return vip.AddressCheck{Addr: netip.MustParseAddr(addr), Link: "eth0", Kind: vip.CheckFormer, AllowedMACs: "02:00:00:00:00:11"}
}

// A node that has lost its claims is asked until its kernel no longer answers; other hosts' answers don't count.
func TestFormerOwner(t *testing.T) {
	for _, addr := range []string{"10.0.0.9", "2001:db8::9"} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			r.lan.setHosts("eth0", addr, 0x11)
			r.putChecks(t, formerCheck(addr))
			time.Sleep(2 * time.Second)
			r.checkResults(t, "it answers", "")
			check.Between(t, strings.Count(r.lan.takeFrames(), "who has "+addr), 150, 210, "requests in two seconds")
			r.poked()
			r.lan.setHosts("eth0", addr, 0xff) // a successor by other rights
			time.Sleep(2*maxFormerUnanswered*formerGap - time.Millisecond)
			r.checkResults(t, "not for long enough", "")
			time.Sleep(formerGap + time.Millisecond)
			r.hasResult(t, "it does not answer", "no answer", 1, "")
			r.lan.takeFrames()
			time.Sleep(time.Minute)
			r.checkFrames(t, "it is known", "")
		})
	}
}

// A kernel that goes on to answer, as that of a node may that holds on without the API server, is asked ten times a second after a while; when it
// ceases to, that is found as soon as with many requests.
func TestFormerOwnerForHours(t *testing.T) {
	const count = 40
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		var want []vip.AddressCheck
		for i := range count {
			addr := fmt.Sprintf("10.0.0.%d", 1+i)
			r.lan.setHosts("eth0", addr, 0x11)
			want = append(want, formerCheck(addr))
		}
		r.putChecks(t, append(want, formerCheck("10.0.1.1"))...) // nobody answers for that one, which makes no hurry for the others
		time.Sleep(10 * time.Second)
		r.lan.takeFrames()
		time.Sleep(10 * time.Second)
		check.Between(t, strings.Count(r.lan.takeFrames(), "who has"), 90, 110, "requests in ten seconds")
		for _, x := range want {
			r.lan.setHosts("eth0", x.Addr.String())
		}
		time.Sleep(slowGap + 10*formerGap + 30*time.Millisecond)
		check.Equal(t, strings.Count(r.results(), "no answer"), count+1, "known to be silent")
	})
}

// A reply that is lost is not held against the node, nor is a request that can't be sent.
func TestFormerOwnerWithLoss(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		asked := 0
		r.lan.setAnswer("eth0 10.0.0.9", func(neighborMessage) {
			if asked++; asked%6 == 1 {
				r.lan.deliver("eth0", messageReply.by("10.0.0.9", 0x11))
			}
		})
		r.putChecks(t, formerCheck("10.0.0.9"))
		time.Sleep(2 * time.Second)
		r.checkResults(t, "five of six are lost", "")
	})
}

// However many addresses there are, some are asked for at a time; once one is silent all are. What is found at once is told once.
func TestManyFormerOwners(t *testing.T) {
	const count = 400
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		var want []vip.AddressCheck
		for i := range count {
			addr := fmt.Sprintf("10.0.%d.%d", 1+i/200, 1+i%200)
			r.lan.setHosts("eth0", addr, 0x11)
			want = append(want, formerCheck(addr))
		}
		r.putChecks(t, want...)
		time.Sleep(time.Second)
		r.lan.takeFrames()
		time.Sleep(time.Second)
		check.Between(t, strings.Count(r.lan.takeFrames(), "who has"), 900, 1100, "requests in a second")
		for _, x := range want {
			r.lan.setHosts("eth0", x.Addr.String())
		}
		r.poked()
		time.Sleep(8*formerGap + time.Millisecond) // one round, and six of formerBurst
		check.Equal(t, strings.Count(r.results(), "no answer"), formerBurst, "known to be silent at first")
		time.Sleep(6 * formerGap)
		check.Equal(t, strings.Count(r.results(), "no answer"), count, "known to be silent")
		check.Between(t, r.poked(), 1, 2, "pokes")
	})
}

// The time that a burst of requests takes to be sent, more than a formerGap, does not count as a delay after which replies may be unread. It is real time:
// frames are sent under a lock.
func TestFormerOwnersAndASlowSender(t *testing.T) {
	const count = 250
	r := newFixture(t, newLAN("eth0"))
	r.lan.sendTime = 100 * time.Microsecond
	defer check.Run(t, r.Announcer)()
	var want []vip.AddressCheck
	for i := range count {
		want = append(want, formerCheck(fmt.Sprintf("10.0.%d.%d", 1+i/200, 1+i%200)))
	}
	r.AddressChecks().Put(want)
	check.Until(t, 10*time.Second, "all are known to be silent", func() error {
		var w vip.World
		r.Observe(&w)
		silent := 0
		for _, x := range w.CheckResults {
			if x.NoAnswer {
				silent++
			}
		}
		if silent != count {
			return fmt.Errorf("%d of %d are", silent, count)
		}
		return nil
	})
}

// While messages are dropped in a flood a round without a reply tells nothing. A kernel of which no reply was heard for longer than an address lives
// has ceased to answer all the same, or a flood would keep VIPs down for as long as it lasts; one of which a reply to any of the requests was read now and then has not.
func TestFormerOwnerInAFlood(t *testing.T) {
	for _, tt := range []struct {
		name    string
		replies bool
		within  time.Duration // NoAnswer; 0: not at all
	}{{"no reply is heard", false, 8 * time.Second}, {"one is heard now and then, for one of the addresses", true, 0}} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			asked := 0
			r.lan.setAnswer("eth0 10.0.0.9", func(neighborMessage) {
				if asked++; tt.replies && asked%100 == 0 {
					r.lan.deliver("eth0", messageReply.by("10.0.0.9", 0x11))
				}
			})
			flooded := func(d time.Duration) {
				for began := time.Now(); time.Since(began) < d; time.Sleep(100 * time.Millisecond) {
					r.heard.setFlooded("eth0", time.Now())
				}
			}
			r.putChecks(t, formerCheck("10.0.0.9"), formerCheck("10.0.0.10"))
			flooded(slowAfter - time.Second)
			r.checkResults(t, tt.name+", not for long enough", "")
			if tt.within == 0 {
				flooded(time.Minute)
				check.Lacks(t, r.results(), "no answer")
				return
			}
			flooded(tt.within - slowAfter + time.Second)
			check.Equal(t, strings.Count(r.results(), "no answer"), 2, "%s: known to be silent", tt.name)
		})
	}
}

// A kernel that goes on to answer for longer than an address lives is a result, with its MAC, and a warning, so that the VIP does not wait in silence.
func TestFormerOwnerGoesOn(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.lan.setHosts("eth0", "10.0.0.9", 0x11)
		r.lan.setHosts("eth0", "10.0.0.10", 0x11)
		r.putChecks(t, formerCheck("10.0.0.9"), formerCheck("10.0.0.10"))
		time.Sleep(slowAfter - 50*time.Millisecond)
		r.checkResults(t, "not for long enough", "")
		r.poked()
		r.log.Take()
		time.Sleep(100 * time.Millisecond)
		pokes := r.poked() // twice if one was first asked for a formerGap after the other
		if got := r.results(); strings.Count(got, " still answered by 02:00:00:00:00:11") != 2 || pokes < 1 || pokes > 2 || r.problems(t) != "former_owner 2" {
			t.Errorf("it goes on to answer: %s; %s; told %d times", got, r.problems(t), pokes)
		}
		time.Sleep(time.Minute)
		if got := r.log.Take(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "mac=02:00:00:00:00:11") || r.poked() != 0 {
			t.Errorf("logged:\n%s", got)
		}
		other := formerCheck("10.0.0.9")
		other.AllowedMACs = "02:00:00:00:00:12"
		r.putChecks(t, other, formerCheck("10.0.0.10"))
		check.Equal(t, strings.Count(r.results(), " still answered by"), 1, "results when that node counts no more for one of them")
		r.lan.setHosts("eth0", "10.0.0.10")
		time.Sleep(time.Second)
		if got := r.results(); strings.Count(got, " no answer") != 2 || strings.Contains(got, "still") || r.problems(t) != "" {
			t.Errorf("it has ceased to answer: %s; %s", got, r.problems(t))
		}
	})
}

// So is that the request can't be sent for as long.
func TestFormerOwnerThatCannotBeAsked(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		r.lan.setFault("send eth0", unix.ENOBUFS)
		r.putChecks(t, formerCheck("10.0.0.9"))
		time.Sleep(slowAfter - 50*time.Millisecond)
		r.checkResults(t, "not for long enough", "")
		time.Sleep(100 * time.Millisecond)
		r.hasResult(t, "it can't be asked", ", not sent: no buffer space available", 1, "former_owner 1")
		r.lan.setFault("send eth0", nil)
		r.lan.setHosts("eth0", "10.0.0.9", 0x11)
		time.Sleep(time.Second)
		check.Equal(t, r.results(), "", "results when it answers")
		check.Equal(t, r.problems(t), "", "problems")
	})
}

func neighborCheck(addr string) vip.AddressCheck {
	return vip.AddressCheck{Addr: netip.MustParseAddr(addr), Link: "eth0", Kind: vip.CheckNeighbor, Owner: "n2"}
}

// unanswered is the addresses of nodes that do not answer.
func (r *fixture) unanswered() string {
	synctest.Wait()
	return fmt.Sprint(r.AddressChecks().Unanswered())
}

// A node that stops to answer, while other hosts are heard, is reported within 5 s; one that answers again after half a minute.
func TestNeighbor(t *testing.T) {
	for _, addr := range []string{"10.0.0.9", "2001:db8::9"} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			defer r.keepLinkAlive(t)()
			unanswered := func(what string, want bool) {
				t.Helper()
				check.Equal(t, r.unanswered(), map[bool]string{true: "[" + addr + "]", false: "[]"}[want], "%s: unanswered", what)
			}
			r.lan.setHosts("eth0", addr, 0x11)
			r.putChecks(t, neighborCheck(addr))
			time.Sleep(time.Minute)
			unanswered("it answers", false)
			r.checkResults(t, "it answers", "")
			r.lan.setHosts("eth0", addr)
			time.Sleep(2 * time.Second)
			unanswered("a request or two are lost", false)
			time.Sleep(3 * time.Second)
			unanswered("it does not answer", true)
			check.Equal(t, r.problems(t), "node_unanswered 1", "problems")
			for range 10 { // a link that comes and goes is one fault
				r.lan.setHosts("eth0", addr, 0x11)
				time.Sleep(10 * time.Second)
				r.lan.setHosts("eth0", addr)
				time.Sleep(3 * time.Second)
				unanswered("it answers at times", true)
			}
			check.Equal(t, r.poked(), 1, "pokes")
			r.lan.setHosts("eth0", addr, 0x11)
			time.Sleep(25 * time.Second)
			unanswered("it answers again, not for long", true)
			time.Sleep(15 * time.Second)
			unanswered("it answers again", false)
		})
	}
}

// Of a link on which nobody is heard any more nothing is said: it is this node that is cut off, or all are.
func TestNeighborOnASilentLink(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		stop := r.keepLinkAlive(t)
		r.lan.setHosts("eth0", "10.0.0.9", 0x11)
		r.lan.setHosts("eth0", "10.0.0.8", 0x12)
		r.putChecks(t, neighborCheck("10.0.0.9"), neighborCheck("10.0.0.8"))
		time.Sleep(time.Minute)
		stop()
		r.lan.setHosts("eth0", "10.0.0.9")
		r.lan.setHosts("eth0", "10.0.0.8")
		for range 60 {
			time.Sleep(time.Second)
			check.Equal(t, r.unanswered(), "[]", "unanswered")
		}
		// One of them is back: then the other one is not.
		r.lan.setHosts("eth0", "10.0.0.8", 0x12)
		time.Sleep(5 * time.Second)
		check.Equal(t, r.unanswered(), "[10.0.0.9]", "unanswered")
	})
}

// A link that was cut for all is back: a request from before says nothing of a node.
func TestNeighborOnALinkThatIsBack(t *testing.T) {
	for _, cut := range []time.Duration{3 * time.Second, 15 * time.Second} {
		for phase := time.Duration(0); phase < 2*time.Second; phase += 100 * time.Millisecond {
			onLAN(t, "eth0", func(t *testing.T, r *fixture) {
				stop := r.keepLinkAlive(t)
				r.lan.setHosts("eth0", "10.0.0.9", 0x11)
				r.putChecks(t, neighborCheck("10.0.0.9"))
				time.Sleep(10*time.Second + phase)
				stop()
				r.lan.setHosts("eth0", "10.0.0.9")
				time.Sleep(cut)
				defer r.keepLinkAlive(t)()
				r.lan.setHosts("eth0", "10.0.0.9", 0x11)
				r.lan.mu.Lock()
				r.lan.deliver("eth0", messageAnnouncement.by("10.0.0.77", 0x77))
				r.lan.mu.Unlock()
				time.Sleep(2 * time.Second)
				check.Equal(t, r.unanswered(), "[]", "cut for %v, phase %v: unanswered", cut, phase)
			})
		}
	}
}

// While messages are dropped in a flood, none that is missing says anything.
func TestNeighborInAFlood(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		defer r.keepLinkAlive(t)()
		r.putChecks(t, neighborCheck("10.0.0.9"))
		for range 60 {
			r.heard.setFlooded("eth0", time.Now())
			time.Sleep(time.Second)
			check.Equal(t, r.unanswered(), "[]", "unanswered")
		}
	})
}

// A node is asked for in time, however many VIPs are verified.
func TestNeighborBesideManyVIPs(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		defer r.keepLinkAlive(t)()
		checks := []vip.AddressCheck{neighborCheck("10.0.0.9")}
		for i := range 500 {
			a := netip.AddrFrom4([4]byte{10, 0, 1 + byte(i>>8), byte(i)}).String()
			r.lan.setHosts("eth0", a, 0x11)
			checks = append(checks, verifyCheck(a))
		}
		r.lan.setHosts("eth0", "10.0.0.9", 0x11)
		r.putChecks(t, checks...)
		time.Sleep(time.Minute)
		r.lan.setHosts("eth0", "10.0.0.9")
		time.Sleep(6 * time.Second)
		check.Equal(t, r.unanswered(), "[10.0.0.9]", "unanswered")
	})
}
