package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/check"
)

func whoHas(t *testing.T, l *Lab, every time.Duration, addrs ...netip.Addr) *WhoHas {
	t.Helper()
	w := check.Value(l.WhoHas(t.Context(), every, addrs...))(t)
	t.Cleanup(func() { w.Stop() })
	return w
}

// owners are the hosts of a timeline, in their order: "n1 - n1,n2 n2".
func owners(r AddrReport) string {
	var s []string
	for _, x := range r.Timeline {
		if who := strings.Join(x.Hosts, ","); who != "" {
			s = append(s, who)
		} else {
			s = append(s, "-")
		}
	}
	return strings.Join(s, " ")
}

// A process that reads late sees when a frame came, not when it was read. Frames that come just after a socket was the first to ask for times
// have none: the kernel turns them on a little later (net_enable_timestamp), and fills in when they are read (__sock_recv_timestamp).
func TestAnswerTimeIsKernelTime(t *testing.T) {
	l := sharedLab(t)
	n1, n1v6 := l.Addrs("n1")
	for etherType, addr := range map[uint16]netip.Addr{unix.ETH_P_ARP: n1, unix.ETH_P_IPV6: n1v6} {
		conn := check.Value(listenPackets("pr", etherType))(t)
		defer conn.Close()
		for tries := 1; ; tries++ {
			asked := time.Now()
			check.Value(conn.Write(check.Value(marshalRequest(l.host("pr"), addr))(t)))(t)
			time.Sleep(200 * time.Millisecond) // the lateness
			mac, late := answerTo(t, conn, l.host("pr"), addr, asked)
			if mac != l.MAC("n1") || late < -time.Millisecond || late > 100*time.Millisecond && tries == 5 {
				t.Errorf("%s: answered by %s after %v, want by n1 at once", addr, mac, late)
			}
			if late <= 100*time.Millisecond || tries == 5 {
				break
			}
		}
	}
}

// answerTo reads from conn until asker has the answer that concerns addr, and returns by which hardware address, and how long
// after asked.
func answerTo(t *testing.T, conn *socket.Conn, asker host, addr netip.Addr, asked time.Time) (mac string, late time.Duration) {
	t.Helper()
	for {
		frame, at, err := readFrame(conn, make([]byte, 2048), make([]byte, 256))
		check.OK(t, err)
		if got, mac, ok := parseAnswer(asker, frame); ok && got == addr {
			return mac, at.Sub(asked)
		}
	}
}

func TestWhoHasSeesChanges(t *testing.T) {
	l := sharedLab(t)
	for _, addr := range []netip.Addr{netip.MustParseAddr("10.77.0.65"), netip.MustParseAddr("fd77::1065")} {
		t.Run(addr.String(), func(t *testing.T) {
			unbind1 := bindAddress(t, l, "n1", addr)
			w := whoHas(t, l, 20*time.Millisecond, addr)
			var at time.Time
			for range 5 { // more rounds than a silence takes
				at = check.Value(w.AwaitAnswer(withTimeout(t), addr, "n1"))(t)
			}
			if since := time.Since(at); since < 0 || since > time.Second {
				t.Errorf("the first answer came %v ago", since)
			}
			if got := w.Owner(addr); got != "n1" {
				t.Errorf("owner is %q, want n1", got)
			}
			// Silence for a while.
			unbind1()
			gone := time.Now()
			last := check.Value(w.AwaitSilence(withTimeout(t), addr))(t)
			if d := gone.Sub(last); d < 0 || d > time.Second {
				t.Errorf("the last answer came %v before the address went", d)
			}
			if d := time.Since(last); d < 60*time.Millisecond {
				t.Errorf("%v are no three rounds of silence", d)
			}
			if got := w.Owner(addr); got != "" {
				t.Errorf("owner is %q, want nobody", got)
			}
			silent := time.Now()
			unbind2 := bindAddress(t, l, "n2", addr)
			check.Value(w.AwaitAnswer(withTimeout(t), addr, ""))(t)
			back := time.Since(silent)
			// Two at a time.
			bindAddress(t, l, "n1", addr)
			check.Value(w.AwaitAnswer(withTimeout(t), addr, "n1"))(t)
			double := time.Now()
			time.Sleep(200 * time.Millisecond) // the length of what is measured
			took := time.Since(double)
			unbind2()
			for range 3 { // the first may still be of a round that n2 answered, too
				check.Value(w.AwaitAnswer(withTimeout(t), addr, "n1"))(t)
			}
			r := w.Stop().Addr(addr)
			t.Log(r)
			// The answer to the first question may come late on a loaded machine.
			if got, want := strings.TrimPrefix(owners(r), "- "), "n1 - n2 n1,n2 n1"; got != want {
				t.Errorf("timeline: %s, want %s", got, want)
			}
			// Silence is measured from question to question, 20 ms apart.
			if min := silent.Sub(gone) - 20*time.Millisecond; r.LongestSilence < min || r.LongestSilence > min+back+120*time.Millisecond {
				t.Errorf("silence of %v, want %v and a little", r.LongestSilence, min)
			}
			if r.LongestDouble < took-50*time.Millisecond || r.LongestDouble > took+300*time.Millisecond {
				t.Errorf("double answers for %v, want about %v", r.LongestDouble, took)
			}
			if r.TotalDouble != r.LongestDouble || r.TotalSilence > r.LongestSilence+100*time.Millisecond {
				t.Errorf("one silence and one double: got totals %v, %v for %v, %v", r.TotalSilence, r.TotalDouble, r.LongestSilence, r.LongestDouble)
			}
		})
	}
}

func TestWhoHasNoAnswer(t *testing.T) {
	l := sharedLab(t)
	nobody, other := netip.MustParseAddr("10.77.0.66"), netip.MustParseAddr("10.77.0.67")
	w := whoHas(t, l, 5*time.Millisecond, nobody)
	if last := check.Value(w.AwaitSilence(withTimeout(t), nobody))(t); !last.IsZero() {
		t.Errorf("the last answer came at %v, want none", last)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := w.AwaitAnswer(ctx, nobody, "n1"); err == nil || !strings.Contains(err.Error(), "waiting for an answer by n1") {
		t.Errorf("got error %v", err)
	}
	if _, err := w.AwaitAnswer(ctx, other, ""); err == nil || !strings.Contains(err.Error(), "nobody asked") {
		t.Errorf("an address that is not asked for: got error %v", err)
	}
	r := w.Stop()
	if a := r.Addr(nobody); a.Unanswered != a.Rounds || a.LongestSilence < 50*time.Millisecond || owners(a) != "-" {
		t.Errorf("report: %v", r)
	}
	if _, err := l.WhoHas(t.Context(), time.Second, netip.Addr{}); err == nil {
		t.Error("no address: want an error")
	}
}

func TestConnectSeesOutage(t *testing.T) {
	l := sharedLab(t)
	vip := netip.MustParseAddr("10.77.0.69")
	bindAddress(t, l, "n1", vip)
	addPod(t, l, Pod{Name: "web", Node: "w1", Labels: map[string]string{"app": "web"}})
	createService(t, l, Service("default", "web"), vip)
	awaitAnswer(t, l, vip)
	c := check.Value(l.Connect(t.Context(), 10*time.Millisecond, vip.String()+":80"))(t)
	time.Sleep(200 * time.Millisecond) // the length of what is measured before the outage
	cut := time.Now()
	check.OK(t, l.Cut("n1"))
	defer l.Reconnect("n1")
	time.Sleep(500 * time.Millisecond) // the length of the outage
	// n2 takes over: address first, then the announcement that makes the client use it.
	bindAddress(t, l, "n2", vip)
	run(t, l, "n2", fmt.Sprintf("arping -q -U -c 1 -I eth0 %s", vip))
	outage := time.Since(cut)
	time.Sleep(500 * time.Millisecond) // the length of what is measured after it
	r := c.Stop()
	t.Log(r)
	if r.Outage+r.Stalled < 500*time.Millisecond || r.Outage > outage+500*time.Millisecond {
		t.Errorf("outage of %v, want about %v", r.Outage, outage)
	}
	// An attempt that falls into the outage waits for its retransmission, after a second.
	if r.Max < 500*time.Millisecond && len(r.Failures) == 0 {
		t.Errorf("no attempt noticed the outage: %v", r)
	}
	for _, f := range r.Failures {
		if f.Began.Add(f.Latency).Before(cut) {
			t.Errorf("failed %v before the cut: %v", cut.Sub(f.Began), f.Err)
		}
	}
	seen := slices.Sorted(func(yield func(string) bool) {
		for a := range r.Clients {
			if !yield(a.String()) {
				return
			}
		}
	})
	if want := []string{"10.77.0.11", "10.77.0.12"}; !slices.Equal(seen, want) {
		t.Errorf("seen as %v, want %v", seen, want)
	}
}

func TestConnectRefused(t *testing.T) {
	l := sharedLab(t)
	c := check.Value(l.Connect(t.Context(), 10*time.Millisecond, "10.77.0.1:80"))(t)
	time.Sleep(100 * time.Millisecond) // the length of what is measured
	r := c.Stop()
	if len(r.Failures) != r.Attempts || r.Attempts == 0 || !strings.Contains(r.Failures[0].Err.Error(), "connection refused") || r.Outage+r.Stalled < 90*time.Millisecond {
		t.Errorf("nobody listens: %v", r)
	}
	for _, to := range []string{"web:80", "https://10.77.0.1", "10.77.0.1:http", "::1"} {
		if _, err := l.Connect(t.Context(), time.Second, to); err == nil {
			t.Errorf("connect to %q: want an error", to)
		}
	}
}
