package peers_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These tests run real processes in namespaces: the packets, ARP, NDP and
// connection refusals are the kernel's.

const four, six, local = "10.11.0.0", "fd00::10:0", "fe80::10:0"

// slow is more than anything takes while other tests have the cores: the figures are
// those of the benchmarks.
const slow = 2 * time.Second

func TestKernelCut(t *testing.T) {
	for name, base := range map[string]string{"IPv4": four, "IPv6": six, "link-local": local} {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, 3, base)
			began := time.Now()
			l.cut(l.nodes[1], true)
			took := l.await(1, "dead").Sub(began)
			t.Logf("dead after %v", took)
			if took > slow {
				t.Error("too slow")
			}
			if why := l.nodes[0].sight("n1").Why; !strings.Contains(why, "nobody answers") {
				t.Errorf("got %q", why)
			}
			l.await(0, "dead", 2)
			l.await(2, "dead", 0)
			l.cut(l.nodes[1], false)
			for i := range l.nodes {
				l.await(i, "alive")
			}
		})
	}
}

// TestKernelKilled: the kernel of a killed process refuses, which is as good as an
// answer. Its successor is met at once, and a process that ends in order says so.
func TestKernelKilled(t *testing.T) {
	l := newLAN(t, 3, four)
	began := time.Now()
	must(t, l.nodes[1].cmd.Process.Kill())
	took := l.await(1, "dead").Sub(began)
	t.Logf("dead after %v", took)
	if took > slow {
		t.Error("too slow")
	}
	if why := l.nodes[0].sight("n1").Why; !strings.Contains(why, "nothing listens") {
		t.Errorf("got %q", why)
	}
	<-l.nodes[1].ended
	l.start(l.nodes[1])
	l.settle()
	began = time.Now()
	must(t, l.nodes[1].cmd.Process.Signal(syscall.SIGTERM))
	if took := l.await(1, "dead").Sub(began); took > slow/2 {
		t.Errorf("it left, and that took %v", took)
	}
	if why := l.nodes[0].sight("n1").Why; why != "it has stopped" {
		t.Errorf("got %q", why)
	}
}

// TestKernelBlocked: a firewall in front of the port, in both directions or in one.
func TestKernelBlocked(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	const table = "table inet block"
	rules := map[string]string{
		"in":     "chain in { type filter hook input priority 0; udp dport 7947 drop; tcp dport 7947 drop; }",
		"in UDP": "chain in { type filter hook input priority 0; udp dport 7947 drop; }",
		"out":    "chain out { type filter hook output priority 0; udp dport 7947 drop; tcp dport 7947 drop; tcp sport 7947 drop; }",
		"both":   "chain in { type filter hook input priority 0; udp dport 7947 drop; tcp dport 7947 drop; }\nchain out { type filter hook output priority 0; udp dport 7947 drop; tcp sport 7947 drop; tcp dport 7947 drop; }",
	}
	l := newLAN(t, 3, four)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			l.t = t
			l.nft(l.nodes[1], table+" {\n"+rule+"\n}")
			l.await(1, "suspect")
			l.await(0, "suspect", 2)
			time.Sleep(2 * time.Second)
			for _, b := range l.nodes {
				for _, said := range b.telling() {
					if said.State == "dead" {
						t.Errorf("%s saw %s dead: %s", b.name, said.Node, said.Why)
					}
				}
			}
			l.nft(l.nodes[1], "delete "+table)
			l.settle()
		})
	}
}

// TestKernelStopped: a process that is stopped is suspect, not dead, and does not
// take the others for dead when it goes on.
func TestKernelStopped(t *testing.T) {
	l := newLAN(t, 3, four)
	must(t, l.nodes[1].cmd.Process.Signal(syscall.SIGSTOP))
	l.await(1, "suspect")
	time.Sleep(time.Second)
	must(t, l.nodes[1].cmd.Process.Signal(syscall.SIGCONT))
	l.await(1, "alive")
	time.Sleep(time.Second)
	for _, b := range l.nodes {
		for _, said := range b.telling() {
			if said.State == "dead" || b == l.nodes[1] {
				t.Errorf("%s saw %s %s (%s)", b.name, said.Node, said.State, said.Why)
			}
		}
	}
}

func TestKernelKeys(t *testing.T) {
	l := newLAN(t, 3, four)
	for _, keys := range [][][]byte{{keyB, keyA}, {keyB}} {
		for _, b := range l.nodes {
			l.keys(b, keys...)
			time.Sleep(700 * time.Millisecond)
		}
	}
	l.calm("rotation")
	l.keys(l.nodes[1], keyA)
	l.await(1, "suspect")
	if why := l.nodes[0].sight("n1").Why; !strings.Contains(why, "another key") {
		t.Errorf("got %q", why)
	}
}

// TestKernelBusy: all cores are busy with something else, and nobody is declared dead.
// HERALD_BUSY=60s does it for so long.
func TestKernelBusy(t *testing.T) {
	for name, n := range map[string]int{"3": 3, "10": 10} {
		t.Run(name, func(t *testing.T) {
			l := newLAN(t, n, four)
			l.busy()
			time.Sleep(busyTime(t))
			for _, b := range l.nodes {
				for _, said := range b.telling() {
					t.Logf("%s saw %s %s (%s)", b.name, said.Node, said.State, said.Why)
					if said.State == "dead" {
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
		return 5 * time.Second
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// BenchmarkCut is how long it takes until all others see a node dead that was cut
// off. Among as many as it says; -benchtime=25x does it 25 times.
func BenchmarkCut(b *testing.B) {
	each(b, func(b *testing.B, l *lan, i int) time.Duration {
		n := l.nodes[i]
		began := time.Now()
		l.cut(n, true)
		took := l.await(i, "dead").Sub(began)
		l.explain(i, began)
		l.cut(n, false)
		return took
	})
}

// BenchmarkKilled is the same of a process that is killed.
func BenchmarkKilled(b *testing.B) {
	each(b, func(b *testing.B, l *lan, i int) time.Duration {
		n := l.nodes[i]
		began := time.Now()
		must(b, n.cmd.Process.Kill())
		took := l.await(i, "dead").Sub(began)
		<-n.ended
		l.start(n)
		return took
	})
}

// each does it to one node after the other, among 3 and among 10.
func each(b *testing.B, do func(b *testing.B, l *lan, i int) time.Duration) {
	for name, n := range map[string]int{"3": 3, "10": 10} {
		b.Run(name, func(b *testing.B) {
			l := newLAN(b, n, four)
			var took []time.Duration
			for b.Loop() {
				took = append(took, do(b, l, len(took)%n))
				l.settle()
				time.Sleep(time.Duration(len(took)) * 7 * time.Millisecond) // at another moment of the period
			}
			report(b, took)
		})
	}
}

// explain shows what those did who took long to see a node dead.
func (l *lan) explain(of int, began time.Time) {
	for i, b := range l.nodes {
		if took := b.sight(l.nodes[of].name).At.Sub(began); i != of && took > time.Second {
			lines := strings.Split(b.log.text(), "\n")
			l.t.Logf("%s took %v:\n%s", b.name, took, strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	}
}

// report gives median and worst.
func report(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(0, "ns/op") // with what comes between, it means nothing
	b.ReportMetric(took[len(took)/2].Seconds(), "s-median")
	b.ReportMetric(took[len(took)-1].Seconds(), "s-worst")
}
