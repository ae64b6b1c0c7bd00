package lease

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A node whose watch is stuck tries once to fence each of the others, which renew: the API server refuses that, and would refuse it again, since it
// is on the condition that the node lease has the version that this node knows. Once it knows another one it may fence that.
func TestFenceRefusedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, plans, log := leasetest.NewServer(), atomic.Int32{}, &bytes.Buffer{}
		n1 := startTransferring(t, s, "n1", "n1")
		startTransferring(t, s, "n3", "n1")
		n1.want("a")
		n2, run := newNode(t, s, "n2", func(o *Options) {
			o.Log = slog.New(slog.NewTextHandler(log, nil))
			o.Successors = func(func(*vip.World)) map[vip.Key]vip.Successor { plans.Add(1); return nil }
		})
		run(func(error) {})
		time.Sleep(5 * time.Second)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if c, p, l := s.Conflicts(), plans.Load(), strings.Count(log.String(), "voided"); c != 2 || p != 2 || l != 0 {
			t.Errorf("%d fences refused, %d plans for them, %d lines in the log; want 2, 2, 0", c, p, l)
		}
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(5 * time.Second)
		n1.kill()
		time.Sleep(leaseDuration + 2*time.Second)
		if x := s.Lease(nodeKey("n1")); x.Annotations[FencedAnnotation] == "" {
			t.Error("n1 is not fenced")
		}
		if s.Conflicts() > 4 {
			t.Errorf("%d conflicts", s.Conflicts())
		}
	})
}

// A fence that was refused for another reason than the version, as by a webhook, is sent again, though the version is the same.
func TestFenceRefusedByAWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		var refuses atomic.Bool
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Annotations[FencedAnnotation] != "" && refuses.Load() {
				return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, l.Name, errors.New("a webhook is busy"))
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
		if s.Lease(nodeKey("n1")).Annotations[FencedAnnotation] == "" {
			t.Error("n1 is not fenced")
		}
	})
}

// A node that knows of no node lease of another, though there is one, tries once, too.
func TestFenceRefusedByALeaseThatExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		n1.want("a")
		time.Sleep(5 * time.Second)
		// n2 sees that the node lease goes, and not that n1 writes it again.
		if err := s.Remove(nodeKey("n1"), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Millisecond)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		time.Sleep(leaseDuration)
		before := s.Writes()
		time.Sleep(10 * time.Second)
		if n := s.Writes() - before; n > 12 {
			t.Errorf("%d writes in ten seconds, want 10 renewals", n)
		}
	})
}

// A fence that the API server does not answer, or does not permit, is in the log, once a minute: until it is written nobody has the VIPs of the node.
func TestFenceThatCannotBeWrittenIsLogged(t *testing.T) {
	for name, refuse := range map[string]func(*coordinationv1.Lease) error{
		"hangs": nil,
		"is forbidden": func(l *coordinationv1.Lease) error {
			if l.Annotations[FencedAnnotation] != "" {
				return forbidden(l.Name)
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
				n2, run := newNode(t, s, "n2", func(o *Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
				if refuse == nil {
					n2.way.SetFaults(func(f *leasetest.Faults) { f.Hang = nodeKey("n1").Name })
				}
				run(func(error) {})
				time.Sleep(5 * time.Second)
				n1.kill()
				time.Sleep(leaseDuration + 10*time.Minute)
				synctest.Wait()
				const line = `level=WARN msg="a node can't be fenced`
				if n := strings.Count(log.String(), line); n < 1 || n > 11 || !strings.Contains(log.String(), "node=n1") {
					t.Errorf("%d lines in ten minutes, want 1 to 11:\n%s", n, log)
				}
			})
		})
	}
}

// A lostFences is a Store whose fences take effect, with no answer.
type lostFences struct {
	*leasetest.Client
	answerDelay time.Duration
}

func (s *lostFences) Update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	got, err := s.Client.Update(ctx, l)
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
				n2, run := newNode(t, s, "n2", func(o *Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
				n2.store = &lostFences{n2.way, tt.answerDelay}
				n2.way.SetFaults(func(f *leasetest.Faults) { f.Lag = tt.lag })
				run(func(error) {})
				time.Sleep(5 * time.Second)
				n1.kill()
				time.Sleep(leaseDuration + 10*time.Second)
				start(t, s, "n1")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				var fenced dto.Metric
				check.OK(t, n2.metrics.fenced.Write(&fenced))
				const line = `msg="the claims of a node are voided" node=n1`
				if n, got := strings.Count(log.String(), line), fenced.Counter.GetValue(); n != 1 || got != 1 {
					t.Errorf("%d lines, %v counted, want 1 and 1:\n%s", n, got, log)
				}
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
		var fenced dto.Metric
		check.OK(t, n2.metrics.fenced.Write(&fenced))
		if n := fenced.Counter.GetValue(); n != 0 {
			t.Errorf("%v counted", n)
		}
	})
}

// A fence that the API server refuses for what it transfers, as a policy that limits annotations does, or a proxy that limits bodies, is sent without
// that: then the VIPs of the dead node are free.
func TestFenceWithTransfersRefused(t *testing.T) {
	for name, err := range map[string]error{"refused": forbidden("n1"), "no answer": errors.New("the connection was reset")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := leasetest.NewServer()
				s.Refuse = func(l *coordinationv1.Lease) error {
					if l.Annotations[TransfersAnnotation] != "" {
						return err
					}
					return nil
				}
				n1, n2 := startTransferring(t, s, "n1", ""), startTransferring(t, s, "n2", "n2")
				n1.acquire(n2, "a", "b", "c")
				n1.kill()
				time.Sleep(leaseDuration + 10*time.Second)
				n2.want("a", "b", "c")
				time.Sleep(time.Second)
				if !n2.serves("a") || !n2.serves("b") || !n2.serves("c") {
					t.Errorf("n2 does not serve what n1 had\n%s", s)
				}
			})
		})
	}
}

// A node whose fences the API server refused for a while, until another node's was written, fences with transfers when the same node, which was alive since, dies again.
func TestFenceTransfersAgainAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		var refuses atomic.Bool
		var refused atomic.Int32
		s.Refuse = func(l *coordinationv1.Lease) error {
			if refuses.Load() && l.Name == NodePrefix+"n1" && l.Annotations[FencedAnnotation] != "" && !strings.Contains(l.Annotations[TransfersAnnotation], "n3") { // n2's
				refused.Add(1)
				return forbidden(l.Name)
			}
			return nil
		}
		n1, n2, n3 := startTransferring(t, s, "n1", ""), startTransferring(t, s, "n2", "n2"), startTransferring(t, s, "n3", "n3")
		n1.acquire(n2, "a", "b")
		refuses.Store(true)
		n1.kill()
		time.Sleep(leaseDuration + 10*time.Second)
		n3.want("a", "b")
		time.Sleep(time.Second)
		if refused.Load() < 2 || !n3.serves("a") || !n3.serves("b") {
			t.Fatalf("%d fences of n2 were refused, want 2 or more, and n3's written\n%s", refused.Load(), s)
		}
		refuses.Store(false)
		n1 = startTransferring(t, s, "n1", "")
		time.Sleep(5 * time.Second)
		n1.acquire(n2, "c", "d")
		n1.kill()
		time.Sleep(leaseDuration + 10*time.Second)
		if x := s.Lease(nodeKey("n1")); x.Annotations[FencedAnnotation] == "" || !strings.Contains(x.Annotations[TransfersAnnotation], "n2") {
			t.Errorf("fenced %q, transfers %q; want those to n2", x.Annotations[FencedAnnotation], x.Annotations[TransfersAnnotation])
		}
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
		if _, err := s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: NodePrefix + "n9"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(leaseDuration + 5*time.Second)
		before := s.Writes()
		time.Sleep(10 * time.Second)
		if n := s.Writes() - before; n > 6 {
			t.Errorf("%d writes in 10 s, want 5 renewals", n)
		}
		began := time.Now()
		n1.stop()
		<-n1.done
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("n1 took %v to stop", took)
		}
		start(t, s, "n9")
		time.Sleep(time.Second)
		if e := transitions(s.Lease(nodeKey("n9"))); e < 1e6 {
			t.Errorf("n9 begins epoch %d, which it may have had before", e)
		}
	})
}
