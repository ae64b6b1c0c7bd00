package peers_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// These tests run real processes in namespaces: the packets, ARP, NDP and connection refusals are the kernel's.

const ipv4, ipv6, linkLocal = "10.11.0.0", "fd00::10:0", "fe80::10:0"

// tooSlow is more than anything takes while other tests have the cores: the figures are those of the benchmarks.
const tooSlow = 2 * time.Second

func TestKernelCut(t *testing.T) {
	for name, base := range map[string]string{"IPv4": ipv4, "IPv6": ipv6, "link-local": linkLocal} {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, 3, base)
			began := time.Now()
			l.cut(l.nodes[1], true)
			took := l.await(1, "dead").Sub(began)
			t.Logf("dead after %v", took)
			check.Between(t, took, 0, tooSlow, "it took")
			check.Contains(t, l.nodes[0].state("n1").Why, "nobody answers")
			l.await(0, "dead", 2)
			l.await(2, "dead", 0)
			l.cut(l.nodes[1], false)
			for i := range l.nodes {
				l.await(i, "alive")
			}
		})
	}
}

// TestKernelKilled: a node whose process is killed refuses connections, so it is dead. Its next process is
// alive at once, and one that is stopped says so.
func TestKernelKilled(t *testing.T) {
	l := newLAN(t, 3, ipv4)
	began := time.Now()
	check.OK(t, l.nodes[1].cmd.Process.Kill())
	took := l.await(1, "dead").Sub(began)
	t.Logf("dead after %v", took)
	check.Between(t, took, 0, tooSlow, "it took")
	check.Contains(t, l.nodes[0].state("n1").Why, "nothing listens")
	<-l.nodes[1].ended
	l.start(l.nodes[1])
	l.awaitAllAlive()
	began = time.Now()
	check.OK(t, l.nodes[1].cmd.Process.Signal(syscall.SIGTERM))
	check.Between(t, l.await(1, "dead").Sub(began), 0, tooSlow/2, "that it left took")
	check.Equal(t, l.nodes[0].state("n1").Why, "it has stopped", "why")
}

// TestKernelBlocked: a firewall drops packets to the port, from it, or both.
func TestKernelBlocked(t *testing.T) {
	check.Program(t, "nft")
	const table = "table inet block"
	rules := map[string]string{
		"in":     "chain in { type filter hook input priority 0; udp dport 7947 drop; tcp dport 7947 drop; }",
		"in UDP": "chain in { type filter hook input priority 0; udp dport 7947 drop; }",
		"out":    "chain out { type filter hook output priority 0; udp dport 7947 drop; tcp dport 7947 drop; tcp sport 7947 drop; }",
		"both":   "chain in { type filter hook input priority 0; udp dport 7947 drop; tcp dport 7947 drop; }\nchain out { type filter hook output priority 0; udp dport 7947 drop; tcp sport 7947 drop; tcp dport 7947 drop; }",
	}
	l := newLAN(t, 3, ipv4)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			l.t = t
			l.nft(l.nodes[1], table+" {\n"+rule+"\n}")
			l.await(1, "suspect")
			l.await(0, "suspect", 2)
			time.Sleep(2 * time.Second)
			for _, b := range l.nodes {
				for _, seen := range b.recentChanges() {
					if seen.State == "dead" {
						t.Errorf("%s saw %s dead: %s", b.name, seen.Node, seen.Why)
					}
				}
			}
			l.nft(l.nodes[1], "delete "+table)
			l.awaitAllAlive()
		})
	}
}

// TestKernelStopped: a process that is stopped is suspect, not dead, and does not take the others for dead when it goes on.
func TestKernelStopped(t *testing.T) {
	l := newLAN(t, 3, ipv4)
	check.OK(t, l.nodes[1].cmd.Process.Signal(syscall.SIGSTOP))
	l.await(1, "suspect")
	time.Sleep(time.Second)
	check.OK(t, l.nodes[1].cmd.Process.Signal(syscall.SIGCONT))
	l.await(1, "alive")
	time.Sleep(time.Second)
	for _, b := range l.nodes {
		for _, seen := range b.recentChanges() {
			if seen.State == "dead" || b == l.nodes[1] {
				t.Errorf("%s saw %s %s (%s)", b.name, seen.Node, seen.State, seen.Why)
			}
		}
	}
}

// TestKernelBusy: all cores are busy with something else, also while a fifth of all frames is lost, and nobody is declared dead.
// HERALD_BUSY=60s does it for so long.
func TestKernelBusy(t *testing.T) {
	tests := []struct {
		name  string
		nodes int
		loss  int // of a hundred frames
	}{
		{"10", 10, 0},
		{"3, with loss", 3, 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLAN(t, tt.nodes, ipv4)
			for _, b := range l.nodes {
				if tt.loss > 0 {
					l.nft(b, fmt.Sprintf("add table netdev loss; add chain netdev loss in { type filter hook ingress device eth0 priority 0; }; add rule netdev loss in numgen random mod 100 < %d drop", tt.loss))
				}
			}
			l.keepCoresBusy()
			time.Sleep(busyTime(t))
			for _, b := range l.nodes {
				for _, seen := range b.recentChanges() {
					t.Logf("%s saw %s %s (%s)", b.name, seen.Node, seen.State, seen.Why)
					if seen.State == "dead" {
						t.Error("nobody was")
					}
				}
			}
		})
	}
}

func busyTime(t *testing.T) time.Duration {
	text := os.Getenv("HERALD_BUSY")
	if text == "" {
		return 2 * time.Second
	}
	return check.Value(time.ParseDuration(text))(t)
}

// BenchmarkCut is how long it takes until all others see a node dead that was cut
// off. Among as many as it says; -benchtime=25x does it 25 times.
func BenchmarkCut(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, l *lan, i int) time.Duration {
		n := l.nodes[i]
		began := time.Now()
		l.cut(n, true)
		took := l.await(i, "dead").Sub(began)
		l.logLateDetections(i, began)
		l.cut(n, false)
		return took
	})
}

// BenchmarkKilled is the same of a process that is killed.
func BenchmarkKilled(b *testing.B) {
	benchmarkEach(b, func(b *testing.B, l *lan, i int) time.Duration {
		n := l.nodes[i]
		began := time.Now()
		check.OK(b, n.cmd.Process.Kill())
		took := l.await(i, "dead").Sub(began)
		<-n.ended
		l.start(n)
		return took
	})
}

// benchmarkEach runs do for one node after the other, with 3 nodes and with 10.
func benchmarkEach(b *testing.B, do func(b *testing.B, l *lan, i int) time.Duration) {
	for name, n := range map[string]int{"3": 3, "10": 10} {
		b.Run(name, func(b *testing.B) {
			l := newLAN(b, n, ipv4)
			var took []time.Duration
			for b.Loop() {
				took = append(took, do(b, l, len(took)%n))
				l.awaitAllAlive()
				time.Sleep(time.Duration(len(took)) * 7 * time.Millisecond) // at another moment of the transmit interval
			}
			reportTimes(b, took)
		})
	}
}

// logLateDetections logs the end of the log of each node that took more than a second.
func (l *lan) logLateDetections(of int, began time.Time) {
	for i, b := range l.nodes {
		if took := b.state(l.nodes[of].name).At.Sub(began); i != of && took > time.Second {
			lines := strings.Split(b.log.String(), "\n")
			l.t.Logf("%s took %v:\n%s", b.name, took, strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	}
}

// reportTimes reports the median and the longest time.
func reportTimes(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(0, "ns/op") // with what comes between, it means nothing
	b.ReportMetric(took[len(took)/2].Seconds(), "s-median")
	b.ReportMetric(took[len(took)-1].Seconds(), "s-worst")
}
