package lab

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KernelAnswers is how long a kernel may answer for a VIP that nobody renews (docs/wire.md).
const KernelAnswers = 6*time.Second + 200*time.Millisecond

// leaseDuration is how long a node not found dead by heartbeats is waited for, and room for a busy machine.
const leaseDuration = 17 * time.Second

// A Fault of a node that owns VIPs, or of the API server, is made and later undone. Limits last from before the fault
// until all is well, on a busy machine.
type Fault struct {
	Name   string
	Moves  bool          // other nodes take the VIPs while it lasts
	API    bool          // it takes the API server from all, or asks for it
	Silent time.Duration // how long a VIP may be unanswered
	Double time.Duration // how long two hosts may answer for a VIP
	Do     func(ctx context.Context, l *Lab, node string) error
	Undo   func(ctx context.Context, l *Lab, node string) error // nil: nothing is to be undone
}

// Faults is all faults, for tests, measurements and the demo.
var Faults = []Fault{
	{"Herald stopped by SIGTERM, and started", true, false, 2 * time.Second, KernelAnswers,
		func(ctx context.Context, l *Lab, node string) error {
			return errors.Join(l.Herald(node).Signal(syscall.SIGTERM), l.Herald(node).Wait(ctx))
		}, startHeraldAgain},
	{"Herald killed, and started", true, false, 2 * time.Second, KernelAnswers, killHerald, startHeraldAgain},
	{"Herald killed, and started after 2 s", false, false, 2 * time.Second, KernelAnswers,
		func(ctx context.Context, l *Lab, node string) error {
			return errors.Join(killHerald(ctx, l, node), pause(ctx, 2*time.Second), startHeraldAgain(ctx, l, node))
		}, nil},
	{"Herald suspended by SIGSTOP, and continued", true, false, leaseDuration, KernelAnswers,
		func(_ context.Context, l *Lab, node string) error { return l.Herald(node).Signal(syscall.SIGSTOP) },
		func(_ context.Context, l *Lab, node string) error { return l.Herald(node).Signal(syscall.SIGCONT) }},
	{"both networks cut, and repaired", true, false, 5 * time.Second, KernelAnswers,
		func(_ context.Context, l *Lab, node string) error { return errors.Join(l.Cut(node), l.CutAPI(node)) },
		func(_ context.Context, l *Lab, node string) error {
			return errors.Join(l.Reconnect(node), l.ConnectAPI(node))
		}},
	{"cut from the LAN, and repaired", true, false, 5 * time.Second, KernelAnswers, plainly((*Lab).Cut),
		plainly((*Lab).Reconnect)},
	{"link down, and up", true, false, 5 * time.Second, KernelAnswers, plainly((*Lab).Unplug), plainly((*Lab).Reconnect)},
	{"cut from the API server, and repaired", true, false, 5 * time.Second, KernelAnswers, plainly((*Lab).CutAPI),
		plainly((*Lab).ConnectAPI)},
	{"receives nothing from the LAN", true, false, 5 * time.Second, KernelAnswers, losing(100, 0), loseNothing},
	{"sends nothing on the LAN", true, false, 5 * time.Second, KernelAnswers, losing(0, 100), loseNothing},
	{"a fifth of its frames lost", false, false, 5 * time.Second, KernelAnswers, losing(20, 20), loseNothing},
	{"heartbeat port blocked, and opened", false, false, 2 * time.Second, KernelAnswers,
		func(ctx context.Context, l *Lab, node string) error { return l.BlockPort(ctx, node, 7947) },
		func(ctx context.Context, l *Lab, node string) error { return l.OpenPort(ctx, node) }},
	{"API server killed, and started", false, true, 2 * time.Second, KernelAnswers,
		func(_ context.Context, l *Lab, _ string) error { return l.StopAPI() },
		func(ctx context.Context, l *Lab, _ string) error { return l.StartAPI(ctx) }},
	{"API server suspended, and continued", false, true, 2 * time.Second, KernelAnswers,
		func(_ context.Context, l *Lab, _ string) error { return l.PauseAPI() },
		func(_ context.Context, l *Lab, _ string) error { return l.ResumeAPI() }},
	{"API server away, and Herald killed", true, true, leaseDuration, KernelAnswers,
		func(ctx context.Context, l *Lab, node string) error {
			// Longer than a node needs to detect it.
			return errors.Join(l.StopAPI(), pause(ctx, 10*time.Second), killHerald(ctx, l, node))
		}, func(ctx context.Context, l *Lab, node string) error {
			return errors.Join(l.StartAPI(ctx), startHeraldAgain(ctx, l, node))
		}},
	{"etcd killed, and started", false, true, 2 * time.Second, KernelAnswers,
		func(_ context.Context, l *Lab, _ string) error { l.etcd.Kill(); return nil },
		func(ctx context.Context, l *Lab, _ string) error { return errors.Join(l.spawnEtcd(), l.awaitAPI(ctx)) }},
	{"the table deleted", false, true, 100 * time.Millisecond, KernelAnswers, deleteLeases("herald-table"), nil},
	{"its node lease deleted", false, true, 100 * time.Millisecond, KernelAnswers,
		func(ctx context.Context, l *Lab, node string) error {
			return deleteLeases("herald-node-"+node)(ctx, l, node)
		}, nil},
}

// FaultsNamed returns the faults whose names contain text.
func FaultsNamed(text string) (found []Fault) {
	for _, f := range Faults {
		if strings.Contains(f.Name, text) {
			found = append(found, f)
		}
	}
	return found
}

func killHerald(_ context.Context, l *Lab, node string) error { l.Herald(node).Kill(); return nil }

func startHeraldAgain(ctx context.Context, l *Lab, node string) error {
	return l.StartHeraldAgain(ctx, node)
}

func plainly(fn func(*Lab, string) error) func(context.Context, *Lab, string) error {
	return func(_ context.Context, l *Lab, node string) error { return fn(l, node) }
}

// losing has the node lose so many of a hundred frames that come in and go out.
func losing(in, out int) func(context.Context, *Lab, string) error {
	return func(ctx context.Context, l *Lab, node string) error { return l.Lose(ctx, node, in, out) }
}

func loseNothing(ctx context.Context, l *Lab, node string) error { return l.LoseNothing(ctx, node) }

// deleteLeases deletes the leases whose names begin with prefix.
func deleteLeases(prefix string) func(context.Context, *Lab, string) error {
	return func(ctx context.Context, l *Lab, _ string) error {
		all, err := l.client.CoordinationV1().Leases("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, x := range all.Items {
			if strings.HasPrefix(x.Name, prefix) {
				gone := l.client.CoordinationV1().Leases(x.Namespace).Delete(ctx, x.Name, metav1.DeleteOptions{})
				if !apierrors.IsNotFound(gone) {
					err = errors.Join(err, gone)
				}
			}
		}
		return err
	}
}

// pause waits for d; an error if ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
