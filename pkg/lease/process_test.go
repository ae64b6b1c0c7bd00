package lease

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A hostProcess is a process of the name n1 that begins as a Herald does: it awaits its name.
type hostProcess struct {
	*node
	awaited chan error // what AwaitName returned
	ended   chan error // what Run returned
}

// startProcess starts the process with that ID on a host, which has links, if any are given.
func startProcess(t *testing.T, s *leasetest.Server, id, host string, links ...vip.Link) *hostProcess {
	p := &hostProcess{awaited: make(chan error, 1), ended: make(chan error, 1)}
	n, run := newNode(t, s, "n1", func(o *Options) {
		o.Process = vip.ProcessInfo{ID: id, Host: host, Name: "host " + host}
	})
	p.node = n
	n.info.Store(&vip.NodeInfo{Interface: "eth0", Links: links})
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go func() {
		err := n.AwaitName(ctx)
		if p.awaited <- err; err == nil {
			run(func(err error) { p.ended <- err })
			return
		}
		close(n.done) // as Run would
	}()
	return p
}

// linkAt returns the link of heartbeats with a MAC and an address.
func linkAt(mac, address string) vip.Link {
	return vip.Link{Name: "eth0", MAC: mac, Prefixes: []netip.Prefix{netip.MustParsePrefix(address)}}
}

// startFirst starts the first process on the host a, which plans the unit x for itself.
func startFirst(t *testing.T, s *leasetest.Server) *hostProcess {
	t.Helper()
	a := startProcess(t, s, "aaaaaaaaaa", "a", linkAt("aa", "10.0.0.1/24"))
	a.begins(t, time.Second)
	a.want("x")
	return a
}

// begins waits until the process is done with AwaitName, and returns how long that took.
func (p *hostProcess) begins(t *testing.T, within time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	select {
	case err := <-p.awaited:
		check.OK(t, err)
	case <-time.After(within):
		t.Fatalf("%s has not begun after %v", p.name, within)
	}
	return time.Since(began)
}

// Of two hosts with one name the first works and is not disturbed, however often the second is started. That ends, and
// says who the first is. When the first is gone for a lease duration the second begins. So it is with one address on both.
func TestClonedHost(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		a := startFirst(t, s)
		time.Sleep(5 * time.Second)
		other := start(t, s, "n2")
		for range 10 {
			b := startProcess(t, s, "bbbbbbbbbb", "b", linkAt("bb", "10.0.0.1/24"))
			for range 30 {
				time.Sleep(time.Second)
				if !a.serves("x") || a.summary().alive != 1 || other.summary().alive != 1 {
					t.Fatalf("the first one was disturbed after %s\n%s", time.Now(), s.Trace(10))
				}
			}
			b.endsNaming(t, "host a, process aaaaaaaa")
		}
		killed := time.Now()
		a.kill()
		b := startProcess(t, s, "bbbbbbbbbb", "b")
		b.begins(t, time.Minute)
		check.Between(t, time.Since(killed), leaseDuration-period-time.Second, leaseDuration+time.Second, "the second one began after")
	})
}

// endsNaming checks that the process has ended without its name, with words that say who has it, and where it is itself.
func (p *hostProcess) endsNaming(t *testing.T, who string) {
	t.Helper()
	select {
	case err := <-p.awaited:
		for _, want := range []string{who, p.o.Process.Name, "vip_nodename"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("it ends with %v, want %q", err, want)
			}
		}
		check.Equal(t, p.Tenure().Epoch, 0, "the epoch of the one that ended")
	default:
		t.Error("it still looks")
	}
}

// While the API server can't be reached nobody can renew: a process that looks for its name goes on, and takes that for
// no silence of the one that has it.
func TestNameWithoutAPIServer(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		a := startFirst(t, s)
		time.Sleep(5 * time.Second)
		b := startProcess(t, s, "bbbbbbbbbb", "b")
		time.Sleep(time.Second)
		a.fault(func(f *leasetest.Faults) { f.Cut = true })
		b.fault(func(f *leasetest.Faults) { f.Cut = true })
		time.Sleep(10 * time.Minute)
		check.Equal(t, len(b.awaited), 0, "it ended or began without the API server")
		b.fault(func(f *leasetest.Faults) { f.Cut = false })
		time.Sleep(deadline/2 + 2*askAgain) // it has looked, and the other has not renewed yet
		a.fault(func(f *leasetest.Faults) { f.Cut = false })
		time.Sleep(deadline)
		b.endsNaming(t, "host a, process aaaaaaaa")
	})
}

// summary is what the node reported last.
func (n *node) summary() summary {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reported
}

// A process that is started again on its host goes on at once with what it held. After a
// reboot it does so, too, if another node has fenced it meanwhile; or if the node lease has its MAC and address, as soon
// as it has these; or once its old process, whose
// renewals are older than a lease duration by the node's own clock, has been silent for a moment.
func TestStartedAgain(t *testing.T) {
	tests := []struct {
		name, host string
		away       time.Duration
		others     bool
		late       bool // the last renewal takes effect only when the next process looks
		link       vip.Link
		within     time.Duration
		adopts     bool
	}{
		{name: "same host", host: "a", away: time.Second, within: 10 * time.Millisecond, adopts: true},
		{name: "same host, beside others", host: "a", away: time.Second, others: true, within: 10 * time.Millisecond, adopts: true},
		{name: "reboot, fenced meanwhile", host: "a2", away: time.Minute, others: true, within: 10 * time.Millisecond},
		{name: "reboot, alone", host: "a2", away: time.Minute, within: deadline/2 + period + time.Second, adopts: true},
		{name: "reboot, fast and alone", host: "a2", away: time.Second, within: leaseDuration + time.Second, adopts: true},
		{name: "reboot at its address", host: "a2", away: time.Second, link: linkAt("aa", "10.0.0.1/24"), within: 10 * time.Millisecond, adopts: true},
		{name: "reboot at another address", host: "a2", away: time.Second, link: linkAt("aa", "10.0.0.2/24"), within: leaseDuration + time.Second, adopts: true},
		{name: "reboot, and a renewal comes late", host: "a2", late: true, within: 2 * leaseDuration, adopts: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withServer(t, func(t *testing.T, s *leasetest.Server) {
				a := startFirst(t, s)
				if tt.others {
					start(t, s, "n2")
				}
				time.Sleep(5 * time.Second)
				epoch := a.Tenure().Epoch
				if tt.late {
					a.fault(func(f *leasetest.Faults) { f.CommitDelay = deadline })
					a.info.Store(&vip.NodeInfo{Interface: "eth1"}) // which is written at once
					time.Sleep(shortTimeout - 10*time.Millisecond)
				}
				a.kill()
				time.Sleep(tt.away)
				again := startProcess(t, s, "cccccccccc", tt.host, tt.link)
				took := again.begins(t, tt.within)
				if tt.late && took < leaseDuration+3*time.Second {
					t.Errorf("it began %v after it had begun to look, though another process renewed meanwhile", took)
				} else if tt.within > leaseDuration && took < deadline {
					t.Errorf("it began after %v, though the other may live", took)
				}
				again.want("x")
				time.Sleep(800 * time.Millisecond)
				if adopted := again.Tenure().Epoch == epoch; adopted != tt.adopts || !again.serves("x") {
					t.Errorf("adopted: %v, serves: %v\n%s", adopted, again.serves("x"), s)
				}
			})
		})
	}
}

// A process that was cut off for so long that another host took its name gives up, and ends
// with words that say who that is, without releasing what the other holds.
func TestNameTaken(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		a := startFirst(t, s)
		time.Sleep(5 * time.Second)
		a.fault(func(f *leasetest.Faults) { f.Cut = true })
		b := startProcess(t, s, "bbbbbbbbbb", "b")
		neverTwo(t, "x", a.node, b.node)
		b.begins(t, time.Minute)
		b.want("x")
		time.Sleep(time.Second)
		a.fault(func(f *leasetest.Faults) { f.Cut = false })
		select {
		case err := <-a.ended:
			if err == nil || !strings.Contains(err.Error(), "host b, process bbbbbbbb") {
				t.Errorf("the first one ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the first one goes on")
		}
		time.Sleep(5 * time.Second)
		check.Equal(t, b.serves("x"), true, "the second one serves\n%s", s)
	})
}

// After a restore of etcd from a backup the node lease names the process from before a reboot in good order, which has ended:
// the present one keeps what it has, also where etcd takes no writes at first. Its watches begin again once.
func TestRebootedSinceTheBackup(t *testing.T) {
	for _, bump := range []uint64{0, 1e9} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC))) // each process has an epoch of its own
			var full atomic.Bool
			s := leasetest.NewServer()
			s.Refuse = func(x *coordinationv1.Lease) error {
				if old := s.LeaseLocked(keyOf(x)); full.Load() && old != nil && old.ResourceVersion == x.ResourceVersion {
					return apierrors.NewInternalError(errors.New("etcdserver: mvcc: database space exceeded"))
				}
				return nil
			}
			n2 := start(t, s, "n2")
			before := startProcess(t, s, "aaaaaaaaaa", "a")
			before.begins(t, time.Second)
			before.want("x")
			time.Sleep(5 * time.Second)
			restore := s.Snapshot()
			time.Sleep(5 * time.Second)
			before.stop()
			<-before.done
			p := startProcess(t, s, "bbbbbbbbbb", "b")
			p.begins(t, time.Second)
			p.want("x")
			waitServes(t, p.node, "x", 5*time.Second)
			n2.want("x")
			time.Sleep(10 * time.Second)
			full.Store(true)
			restore(bump)
			time.AfterFunc(5*time.Second, func() { full.Store(false) })
			for range 3000 {
				if time.Sleep(10 * time.Millisecond); !p.serves("x") || n2.serves("x") {
					t.Fatalf("bump %d: it serves %v, n2 %v\n%s", bump, p.serves("x"), n2.serves("x"), s.Trace(10))
				}
			}
			check.Equal(t, len(p.ended), 0, "it has ended")
			check.Equal(t, p.way.Begun(), 1, "how often the watches have begun again")
		})
	}
}

// A process that was killed while its first renewal was under way, which the next one of its host finds only after its own name was free, has ended: the next one works.
func TestKilledDuringTheFirstRenewal(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		first := startProcess(t, s, "p0p0p0p0", "a")
		first.begins(t, time.Second)
		first.want("x")
		time.Sleep(time.Second)
		first.kill()
		process := func(id string) (*node, func(func(error))) {
			n, run := newNode(t, s, "n1", func(o *Options) { o.Process = vip.ProcessInfo{ID: id, Host: "a", Name: id} })
			check.OK(t, n.AwaitName(t.Context())) // it reads the lease of the first process
			return n, run
		}
		killed, runKilled := process("p1p1p1p1")
		next, runNext := process("p2p2p2p2")
		runKilled(func(error) {}) // its write arrives
		time.Sleep(100 * time.Millisecond)
		killed.kill()
		ended := make(chan error, 1)
		runNext(func(err error) { ended <- err })
		time.Sleep(time.Second)
		next.want("x")
		select {
		case err := <-ended:
			t.Errorf("it ends: %v", err)
		default:
			check.Equal(t, next.serves("x"), true, "it has what the one before had\n%s", s.Trace(10))
		}
	})
}

// TestEpochAfterQuickRestart: a node that stops in good order and is started again at once begins a later epoch than it ever had, although nothing
// is left of the earlier one; else other nodes would take the new epoch for the one that is over. If it counted up meanwhile, that is so, too.
func TestEpochAfterQuickRestart(t *testing.T) {
	for _, fences := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)))
			s := leasetest.NewServer()
			k, last := nodeKey("n1"), int64(0)
			for range 3 {
				a := start(t, s, "n1")
				for range fences {
					time.Sleep(50 * time.Millisecond)
					annotateLease(t, s, k, FencedAnnotation, strconv.FormatInt(transitions(s.Lease(k)), 10))
				}
				time.Sleep(50 * time.Millisecond)
				began := a.Tenure().Epoch - int64(fences)
				if began <= last {
					t.Errorf("fenced %d times: epoch %d begins after epoch %d", fences, began, last)
				}
				last = a.Tenure().Epoch
				stopped := time.Now()
				a.end()
				if s.Lease(k) != nil || time.Since(stopped) > 3*time.Second {
					t.Errorf("after %v the node lease is %v", time.Since(stopped), s.Lease(k))
				}
			}
		})
	}
}
