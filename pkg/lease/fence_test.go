package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A node whose watch is stuck tries to fence each of the others, which renew: the API server refuses that, since the node lease
// has another version by then, which it reads. So it tries each lease duration at most, and fences nobody that lives.
func TestFenceRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := leasetest.NewServer(), &bytes.Buffer{}
		n1 := start(t, s, "n1")
		start(t, s, "n3")
		n1.want("a")
		n2, run := newNode(t, s, "n2", logTo(log))
		run(func(error) {})
		time.Sleep(5 * time.Second)
		n2.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		check.Between(t, s.Conflicts(), 2, 2*int(5*time.Minute/leaseDuration), "fences refused, one for each node and lease duration")
		check.Lacks(t, log.String(), "voided")
		n2.fault(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(5 * time.Second)
		n1.kill()
		time.Sleep(leaseDuration + 2*time.Second)
		check.Equal(t, s.Lease(nodeKey("n1")).Annotations[FencedAnnotation] != "", true, "n1 is fenced")
	})
}

// A fence that was refused for another reason than the version, as by a webhook, is sent again, though the version is the same.
func TestFenceRefusedByAWebhook(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		var refuses atomic.Bool
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Annotations[FencedAnnotation] != "" && refuses.Load() {
				return apierrors.NewConflict(leasesResource, l.Name, errors.New("a webhook is busy"))
			}
			return nil
		}
		n1 := start(t, s, "n1")
		start(t, s, "n2")
		refuses.Store(true)
		time.Sleep(5 * time.Second)
		n1.kill()
		time.Sleep(2 * leaseDuration)
		refuses.Store(false)
		time.Sleep(10 * time.Second)
		check.Equal(t, s.Lease(nodeKey("n1")).Annotations[FencedAnnotation] != "", true, "n1 is fenced")
	})
}

// A fence that the API server does not answer, or does not permit, is in the log, once a minute: until it is written nobody has the VIPs of the node.
func TestFenceThatCannotBeWrittenIsLogged(t *testing.T) {
	for name, refuse := range map[string]func(*coordinationv1.Lease) error{
		"hangs": nil,
		"is forbidden": func(l *coordinationv1.Lease) error {
			if l.Annotations[FencedAnnotation] != "" {
				return apierrors.NewForbidden(leasesResource, l.Name, errors.New("a policy"))
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log := leasetest.NewServer(), &bytes.Buffer{}
				s.Refuse = refuse
				n1 := start(t, s, "n1")
				n1.want("a")
				n2, run := newNode(t, s, "n2", logTo(log))
				if refuse == nil {
					n2.fault(func(f *leasetest.Faults) { f.Hang = nodeKey("n1").Name })
				}
				run(func(error) {})
				time.Sleep(5 * time.Second)
				n1.kill()
				time.Sleep(leaseDuration + 10*time.Minute)
				synctest.Wait()
				const line = `level=WARN msg="a node can't be fenced`
				check.Between(t, strings.Count(log.String(), line), 1, 11, "lines in ten minutes:\n%s\nthese", log)
				check.Contains(t, log.String(), "node=n1")
			})
		})
	}
}

// logTo has a node write its log to w.
func logTo(w io.Writer) func(*Options) {
	return func(o *Options) { o.Log = slog.New(slog.NewTextHandler(w, nil)) }
}

// A lostFences is a Store whose fences take effect, with no answer.
type lostFences struct {
	*leasetest.Client
	answerDelay time.Duration
}

func (s *lostFences) Write(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	got, err := s.Client.Write(ctx, l)
	if err == nil && l.Annotations[FencedAnnotation] != "" {
		time.Sleep(s.answerDelay)
		return nil, errors.New("the connection broke")
	}
	return got, err
}

// A fence whose answer is lost, as where the API server dies with the node, is logged and counted once when the watch shows it: before that is known, after it,
// or after another try was refused.
func TestFenceWithoutAnswer(t *testing.T) {
	for name, tt := range map[string]struct{ lag, answerDelay time.Duration }{
		"shown later":           {50 * time.Millisecond, 0},
		"shown before":          {5 * time.Millisecond, 500 * time.Millisecond},
		"shown after a refusal": {time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, log := leasetest.NewServer(), &bytes.Buffer{}
				n1 := start(t, s, "n1")
				n2, run := newNode(t, s, "n2", logTo(log))
				n2.store = &lostFences{n2.way, tt.answerDelay}
				n2.fault(func(f *leasetest.Faults) { f.Lag = tt.lag })
				run(func(error) {})
				time.Sleep(5 * time.Second)
				n1.kill()
				time.Sleep(leaseDuration + 10*time.Second)
				start(t, s, "n1")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				check.Equal(t, check.Metric(t, "", n2.metrics.fenced), 1, "counted")
				check.Equal(t, strings.Count(log.String(), `msg="the claims of a node are voided" node=n1`), 1, "lines of\n%s", log)
			})
		})
	}
}

// A fence without an answer that was not written, since the node had renewed, is not taken for a later one of another node.
func TestFenceWithoutAnswerOrEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n2, _ := newNode(t, leasetest.NewServer(), "n2", func(*Options) {})
		p := n2.peer("n1", time.Now())
		show := func(version, fenced string) {
			x := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("n1"), LeaseTransitions: new(int32(7))}}
			x.ResourceVersion = version
			annotate(x, FencedAnnotation, fenced)
			p.update(x, time.Now())
			n2.logFenced("n1", p)
		}
		show("1", "")
		p.fence = &sentFence{epoch: 7}
		show("2", "")
		show("3", "7")
		check.Equal(t, check.Metric(t, "", n2.metrics.fenced), 0, "counted")
	})
}

// A node lease without leaseTransitions, as one that was made by hand, is fenced once, and does not keep nodes from stopping. Its node begins with an epoch
// that it never had, as if there were none.
func TestNodeLeaseWithoutEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))) // first epochs are counted from 2020
		s := leasetest.NewServer()
		n1 := start(t, s, "n1")
		time.Sleep(time.Second)
		check.Value(s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: vip.NodeLeasePrefix + "n9"}}))(t)
		time.Sleep(leaseDuration + 5*time.Second)
		before := s.Writes()
		time.Sleep(10 * time.Second)
		check.Between(t, s.Writes()-before, 0, 6, "writes in 10 s, of which 5 are renewals")
		began := time.Now()
		n1.end()
		check.Between(t, time.Since(began), 0, 5*time.Second, "how long n1 took to stop")
		start(t, s, "n9")
		time.Sleep(time.Second)
		if e := transitions(s.Lease(nodeKey("n9"))); e < 1e6 {
			t.Errorf("n9 begins epoch %d, which it may have had before", e)
		}
	})
}

// A node that is neither heard nor known to be dead may answer for VIPs for as long as its node lease says that it was fenced (docs/why.md, "Nobody answers beside a silent node"). Where
// something else answers in its place, a switch that suppresses ARP, somebody who knows that it is off deletes its node lease: then nobody waits for it.
func TestDeletedNodeLeaseIsWaitedForNoMore(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 5 * time.Minute} { // the fence; the entry of a node that was silent for long is removed
		withServer(t, func(t *testing.T, s *leasetest.Server) {
			n2, n3 := death(t, s)
			time.Sleep(after)
			for _, n := range []*node{n2, n3} {
				if until := n.member("n1").AnswersUntil; time.Until(until) < 5*time.Second {
					t.Errorf("%v after the fence n1 may answer until %v from now on, by what %s knows", after, time.Until(until), n.name)
				}
			}
			check.OK(t, s.Remove(nodeKey("n1"), ""))
			time.Sleep(deadline + vip.AddressRemovalDelay)
			for _, n := range []*node{n2, n3} {
				if until := n.member("n1").AnswersUntil; time.Until(until) > 0 {
					t.Errorf("its node lease is deleted %v after the fence, and n1 may answer until %v from now on, by what %s knows", after, time.Until(until), n.name)
				}
			}
			if !n2.serves("a") || n3.claim("a").Holder != "n2" {
				t.Errorf("n2 has %v", n2.world().Claims)
			}
		})
	}
}

// A node lease that a process finds at its start proves nothing of that node, until it is renewed.
func TestUnproven(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		dead := start(t, s, "n3")
		time.Sleep(5 * time.Second)
		dead.kill()
		start(t, s, "n2")
		time.Sleep(period / 2)
		n1 := start(t, s, "n1")
		unproven := func() (all string) {
			for _, m := range n1.world().Members {
				if m.Unproven {
					all += m.Name + " "
				}
			}
			return all
		}
		time.Sleep(period / 4)
		check.Equal(t, unproven(), "n2 n3 ", "unproven at the start")
		time.Sleep(2 * period)
		check.Equal(t, unproven(), "n3 ", "unproven after two renewals")
	})
}

// A process whose predecessor was isolated, and has ended in whatever way, says so of itself from its first write on, until it has reached the others for 3 s.
func TestRestartedWhileIsolated(t *testing.T) {
	for name, end := range map[string]func(n *node){"killed": (*node).kill, "stopped": (*node).end} {
		t.Run(name, func(t *testing.T) {
			withThree(t, func(t *testing.T, a *network, n1, _, _ *node) {
				a.setBetween(vip.Dead, "n1")
				time.Sleep(5 * time.Second)
				end(n1)
				time.Sleep(time.Second)
				if x := a.api.Lease(nodeKey("n1")); x == nil || !infoOf(x).Isolated {
					t.Fatalf("its node lease is gone, or does not say that it is isolated: %v", x)
				}
				a.join(t, a.api, "n1")
				for began := time.Now(); time.Since(began) < quorum.RejoinTime; time.Sleep(50 * time.Millisecond) {
					if !infoOf(a.api.Lease(nodeKey("n1"))).Isolated {
						t.Fatalf("it does not say that it is isolated, %v after it began", time.Since(began))
					}
				}
				time.Sleep(2*stepPeriod + time.Second)
				check.Equal(t, infoOf(a.api.Lease(nodeKey("n1"))).Isolated, false, "it still says that it is isolated")
			})
		})
	}
}

// A node reaches another by heartbeats in a network that it has on its link of heartbeats.
func TestHasNetworkOf(t *testing.T) {
	info := vip.NodeInfo{Interface: "eth0", Links: []vip.Link{
		{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
		{Name: "eth1", Prefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")}},
	}}
	for a, want := range map[string]bool{"192.0.2.7": true, "2001:db8::7": true, "198.51.100.7": false, "203.0.113.1": false} {
		check.Equal(t, hasNetworkOf(&info, netip.MustParseAddr(a)), want, "%s is in a network of it", a)
	}
	check.Equal(t, hasNetworkOf(&info, netip.Addr{}), false, "a node without an address is in its network")
}

// death is n2 and n3, which has what n1 had, which was killed among them and has just been fenced.
func death(t *testing.T, s *leasetest.Server) (n2, n3 *node) {
	t.Helper()
	n1, n2 := pair(t, s)
	n3 = start(t, s, "n3")
	n3.planFor("n2", "a")
	time.Sleep(5 * time.Second)
	n1.kill()
	waitServes(t, n2, "a", time.Minute)
	return n2, n3
}

// A node was last heard when it renewed its node lease, not when another fenced it: outages are measured from then.
func TestFenceIsNoSignOfLife(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		n2, n3 := death(t, s)
		for _, n := range []*node{n2, n3} {
			if ago := time.Since(n.member("n1").HeardAt); ago < leaseDuration {
				t.Errorf("%s heard n1 %v ago", n.name, ago)
			}
		}
	})
}

// While the kernel of a node answers whose process has ended, clients are served: no outage is counted from its last heartbeat on.
func TestHeardWhileItsKernelAnswers(t *testing.T) {
	n := New(leasetest.NewClient(leasetest.NewServer(), func() {}), Options{Node: "n1", Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	n.peer("n2", now)
	for _, ended := range []bool{false, true} {
		n.evaluate(map[string]vip.PeerStatus{"n2": {Liveness: vip.Dead, ProcessEnded: ended, HeardAt: now.Add(-4 * time.Second)}}, &vip.NodeInfo{}, now)
		check.Equal(t, n.peers["n2"].lastHeard().Equal(now), ended, "ended %v: heard just now", ended)
	}
}

// A node that is cut off the VIPs' link, and goes on to renew its node lease, answers no client: it was heard when its last heartbeat came.
func TestNotHeardByItsLease(t *testing.T) {
	now := time.Now()
	long, short := now.Add(-4*time.Second), now.Add(-400*time.Millisecond)
	for _, tt := range []struct {
		name       string
		heard      time.Time // its last heartbeat
		over, gone bool
		want       time.Time
	}{
		{"its heartbeats are blocked, and it lives", long, false, false, now},
		{"its heartbeats were blocked before, and another node has fenced it", long, true, false, now},
		{"another node has found it cut off, and fenced it, before this one", short, true, false, short},
		{"nobody hears it on the link", long, true, true, long},
		{"no heartbeat ever came", time.Time{}, true, true, now},
	} {
		p := peer{heardAt: tt.heard, renewAt: now, gone: tt.gone}
		p.Over = tt.over
		check.Equal(t, now.Sub(p.lastHeard()), now.Sub(tt.want), "%s: heard so long ago", tt.name)
	}
}

// What is shown of a node says that a renewal is late from when that is so, and no longer than that: the agent is told of both.
func TestLateRenewalIsTold(t *testing.T) {
	pokes := 0
	n := New(leasetest.NewClient(leasetest.NewServer(), func() {}), Options{Node: "n1", Log: slog.New(slog.DiscardHandler), Poke: func() { pokes++ },
		Timing: quorum.Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}})
	now := time.Now()
	n.own.Epoch, n.own.Renewed, n.own.RenewingSince = 1, now, now
	n.report(now)
	for _, tt := range []struct {
		what           string
		at, renewed    time.Duration
		late, isPoking bool
	}{{"in time", time.Second, 0, false, false}, {"late", 4 * time.Second, 0, true, true}, {"still late", 5 * time.Second, 0, true, false}, {"renewed", 6 * time.Second, 6 * time.Second, false, true}} {
		pokes, n.own.Renewed = 0, now.Add(tt.renewed)
		n.report(now.Add(tt.at))
		if late := !n.tenure(now.Add(tt.at)).RenewalLateSince.IsZero(); late != tt.late || pokes > 0 != tt.isPoking {
			t.Errorf("%s: late %v, poked %d times; want %v, %v", tt.what, late, pokes, tt.late, tt.isPoking)
		}
	}
}

func TestStable(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &peer{}
	p.setAlive(true, now)
	check.Equal(t, p.stable(now.Add(stableAfter-time.Second)), false, "stable at once")
	check.Equal(t, p.stable(now.Add(stableAfter)), true, "stable after a while")
	for range 3 {
		now = now.Add(time.Minute)
		p.setAlive(false, now)
		p.setAlive(true, now)
	}
	if p.stable(now.Add(7*stableAfter)) || !p.stable(now.Add(8*stableAfter)) {
		t.Error("three breaks do not make it wait eight times as long")
	}
	p.setAlive(true, now.Add(forgetAfter+time.Second))
	check.Equal(t, p.breaks, 0, "breaks that are not forgotten")
}

// A renewal of another node's lease is no news, nor is the number of the table alone, which changes with each write; all else is.
func TestNewsOfAPeer(t *testing.T) {
	l, p, now := nodeLeaseOf(vip.NodeInfo{Interface: "eth0", Table: 1}, 7), peer{}, time.Now()
	for i, tt := range []struct {
		lease *coordinationv1.Lease
		news  bool
	}{
		{l, true}, {l, false},
		{nodeLeaseOf(vip.NodeInfo{Interface: "eth0", Table: 2}, 7), false},
		{nodeLeaseOf(vip.NodeInfo{Interface: "eth1", Table: 2}, 7), true},
		{nodeLeaseOf(vip.NodeInfo{Interface: "eth1", Table: 2}, 8), true},
	} {
		check.Equal(t, p.update(tt.lease, now), tt.news, "of version %d", i)
	}
	check.Equal(t, p.info.Table, 2, "the number")
}

func nodeLeaseOf(info vip.NodeInfo, epoch int32) *coordinationv1.Lease {
	text, _ := json.Marshal(info)
	l := &coordinationv1.Lease{}
	annotate(l, NodeAnnotation, string(text))
	l.Spec.HolderIdentity, l.Spec.LeaseTransitions = new("n2"), &epoch
	return l
}

// Restarts of more than ten minutes ago, or of a clock that was ahead, are forgotten by the next one.
func TestRestartsAreForgotten(t *testing.T) {
	now := time.Unix(10000, 0)
	known := nodeLeaseOf(vip.NodeInfo{Restarts: []int64{9000, 9900, 10001}}, 7)
	check.Equal(t, fmt.Sprint(restartsAfter(known, now)), "[9900 10000]", "after it was killed")
	known.Spec.HolderIdentity = new("")
	check.Equal(t, fmt.Sprint(restartsAfter(known, now)), "[]", "after it stopped in order")
}

// TestAddressLost: others take a node without its own address on the VIPs' link for dead at once, and don't ask what its
// kernel answers for; so it gives its VIPs up, also without the API server. With it the node begins one other epoch.
func TestAddressLost(t *testing.T) {
	for _, api := range []bool{false, true} {
		withThree(t, func(t *testing.T, a *network, n1, _, _ *node) {
			epoch := n1.member("n1").Epoch
			if !api {
				cutFromAPI(n1)
			}
			a.mu.Lock()
			a.lost["n1"] = true
			a.mu.Unlock()
			time.Sleep(2 * stepPeriod)
			if !api && n1.serves("a") {
				t.Error("it still serves")
			}
			time.Sleep(20 * time.Second)
			if now := n1.member("n1").Epoch; api && now != epoch+1 {
				t.Errorf("epoch %d followed %d", now, epoch)
			}
		})
	}
}
