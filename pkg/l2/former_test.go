package l2

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"golang.org/x/sys/unix"
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
			if got := strings.Count(r.lan.takeFrames(), "who has "+addr); got < 150 || got > 210 {
				t.Errorf("asked %d times in two seconds", got)
			}
			r.poked()
			r.lan.setHosts("eth0", addr, 0xff) // a successor by other rights
			time.Sleep(maxFormerUnanswered*formerGap - time.Millisecond)
			r.checkResults(t, "not for long enough", "")
			time.Sleep(formerGap + time.Millisecond)
			if got := r.results(); !strings.Contains(got, "no answer") || r.poked() != 1 || r.problems(t) != "" {
				t.Errorf("it does not answer: %s; %s", got, r.problems(t))
			}
			r.lan.takeFrames()
			time.Sleep(time.Minute)
			r.checkFrames(t, "it is known", "")
		})
	}
}

// A kernel that goes on to answer, as that of a node may that holds on without the API server, is asked ten times a second after a while; when it
// ceases to, that is found as soon as with many requests.
func TestFormerOwnerForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 40
		r := newFixture(t, newLAN("eth0"))
		defer r.run(t)()
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
		if got := strings.Count(r.lan.takeFrames(), "who has"); got < 90 || got > 110 {
			t.Errorf("asked %d times in ten seconds", got)
		}
		for _, x := range want {
			r.lan.setHosts("eth0", x.Addr.String())
		}
		time.Sleep(slowGap + 100*time.Millisecond)
		if got := strings.Count(r.results(), "no answer"); got != count+1 {
			t.Errorf("%d of %d are known to be silent", got, count+1)
		}
	})
}

// A reply that is lost is not held against the node, nor is a request that can't be sent.
func TestFormerOwnerWithLoss(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		asked := 0
		r.lan.mu.Lock()
		r.lan.hosts["eth0 10.0.0.9"] = func(neighborMessage) {
			if asked++; asked%3 == 0 {
				r.lan.deliver("eth0", messageReply.by("10.0.0.9", 0x11))
			}
		}
		r.lan.mu.Unlock()
		r.putChecks(t, formerCheck("10.0.0.9"))
		time.Sleep(2 * time.Second)
		r.checkResults(t, "two of three are lost", "")
	})
}

// However many addresses there are, some are asked for at a time; once one is silent all are. What is found at once is told once.
func TestManyFormerOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 400
		r := newFixture(t, newLAN("eth0"))
		defer r.run(t)()
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
		if got := strings.Count(r.lan.takeFrames(), "who has"); got < 900 || got > 1100 {
			t.Errorf("asked %d times in a second", got)
		}
		for _, x := range want {
			r.lan.setHosts("eth0", x.Addr.String())
		}
		r.poked()
		time.Sleep(5*formerGap + time.Millisecond) // one round, and three of formerBurst
		check.Equal(t, strings.Count(r.results(), "no answer"), formerBurst, "known to be silent at first")
		time.Sleep(3 * formerGap)
		if got := strings.Count(r.results(), "no answer"); got != count {
			t.Errorf("%d of %d are known to be silent", got, count)
		}
		if got := r.poked(); got < 1 || got > 2 {
			t.Errorf("told %d times, want once or twice", got)
		}
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
			r.lan.mu.Lock()
			r.lan.hosts["eth0 10.0.0.9"] = func(neighborMessage) {
				if asked++; tt.replies && asked%100 == 0 {
					r.lan.deliver("eth0", messageReply.by("10.0.0.9", 0x11))
				}
			}
			r.lan.mu.Unlock()
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
				if got := r.results(); strings.Contains(got, "no answer") {
					t.Errorf("%s: got %q", tt.name, got)
				}
				return
			}
			flooded(tt.within - slowAfter + time.Second)
			if got := r.results(); strings.Count(got, "no answer") != 2 {
				t.Errorf("%s: got %q", tt.name, got)
			}
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
		r.log.clear()
		time.Sleep(100 * time.Millisecond)
		if got := r.results(); strings.Count(got, " still answered by 02:00:00:00:00:11") != 2 || r.poked() != 1 || r.problems(t) != "former_owner 2" {
			t.Errorf("it goes on to answer: %s; %s", got, r.problems(t))
		}
		time.Sleep(time.Minute)
		if got := r.log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "mac=02:00:00:00:00:11") || r.poked() != 0 {
			t.Errorf("logged:\n%s", got)
		}
		other := formerCheck("10.0.0.9")
		other.AllowedMACs = "02:00:00:00:00:12"
		r.putChecks(t, other, formerCheck("10.0.0.10"))
		if got := r.results(); strings.Count(got, " still answered by") != 1 {
			t.Errorf("for one of them that node counts no more: %s", got)
		}
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
		if got := r.results(); !strings.Contains(got, ", not sent: no buffer space available") || r.poked() != 1 || r.problems(t) != "former_owner 1" {
			t.Errorf("it can't be asked: %s; %s", got, r.problems(t))
		}
		r.lan.setFault("send eth0", nil)
		r.lan.setHosts("eth0", "10.0.0.9", 0x11)
		time.Sleep(time.Second)
		if got := r.results(); got != "" || r.problems(t) != "" {
			t.Errorf("it answers: %s; %s", got, r.problems(t))
		}
	})
}
