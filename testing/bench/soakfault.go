package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/lab"
)

// A soakFault is a fault of a node, or of the API server, of the soak, that lasts for a while and is repaired. Limits are for
// the whole round, in which its VIPs are asked for from before the fault until all is well.
type soakFault struct {
	name   string
	silent time.Duration // how long a VIP may be unanswered
	double time.Duration // how long two hosts may answer for a VIP
	do     func(b *bench, ctx context.Context, node string, lasts time.Duration) error
}

// lifetime is how long a kernel may go on to answer for a VIP that nobody renews.
const lifetime = 4500 * time.Millisecond

// leaseDuration is how long a node that is not found dead by heartbeats is waited for, and as much as a busy machine adds.
const leaseDuration = 17 * time.Second

var soakFaults = []soakFault{
	{"killed and started", 2 * time.Second, lifetime, func(b *bench, ctx context.Context, node string, lasts time.Duration) error {
		b.heralds[node].Kill()
		sleep(ctx, lasts)
		return b.startHerald(ctx, node)
	}},
	{"stopped by SIGTERM and started", 2 * time.Second, lifetime, func(b *bench, ctx context.Context, node string, lasts time.Duration) error {
		err := b.heralds[node].Signal(syscall.SIGTERM)
		if err == nil {
			err = b.heralds[node].Wait(ctx)
		}
		sleep(ctx, lasts)
		return errors.Join(err, b.startHerald(ctx, node))
	}},
	{"suspended by SIGSTOP", leaseDuration, lifetime, func(b *bench, ctx context.Context, node string, lasts time.Duration) error {
		err := b.heralds[node].Signal(syscall.SIGSTOP)
		sleep(ctx, lasts)
		return errors.Join(err, b.heralds[node].Signal(syscall.SIGCONT))
	}},
	{"both networks cut", 5 * time.Second, lifetime, undone(func(b *bench, _ context.Context, node string) error {
		return errors.Join(b.lab.Cut(node), b.lab.CutAPI(node))
	}, func(b *bench, _ context.Context, node string) error {
		return errors.Join(b.lab.Reconnect(node), b.lab.ConnectAPI(node))
	})},
	{"cut from the LAN", 5 * time.Second, lifetime, undone(
		func(b *bench, _ context.Context, node string) error { return b.lab.Cut(node) },
		func(b *bench, _ context.Context, node string) error { return b.lab.Reconnect(node) })},
	{"link down", 5 * time.Second, lifetime, undone(
		func(b *bench, _ context.Context, node string) error { return b.lab.Unplug(node) },
		func(b *bench, _ context.Context, node string) error { return b.lab.Reconnect(node) })},
	{"cut from the API server", 5 * time.Second, lifetime, undone(
		func(b *bench, _ context.Context, node string) error { return b.lab.CutAPI(node) },
		func(b *bench, _ context.Context, node string) error { return b.lab.ConnectAPI(node) })},
	{"receives nothing from the LAN", 5 * time.Second, lifetime, losing(100, 0)},
	{"sends nothing on the LAN", 5 * time.Second, lifetime, losing(0, 100)},
	{"a fifth of its frames lost", 5 * time.Second, lifetime, losing(20, 20)},
	{"heartbeat port blocked", 2 * time.Second, lifetime, undone(
		func(b *bench, ctx context.Context, node string) error { return b.lab.BlockPort(ctx, node, 7947) },
		func(b *bench, ctx context.Context, node string) error { return b.lab.OpenPort(ctx, node) })},
	{"API server killed and started", 2 * time.Second, lifetime, undone(
		func(b *bench, _ context.Context, _ string) error { return b.lab.StopAPI() },
		func(b *bench, ctx context.Context, _ string) error { return b.lab.StartAPI(ctx) })},
	{"API server suspended", 2 * time.Second, lifetime, undone(
		func(b *bench, _ context.Context, _ string) error { return b.lab.PauseAPI() },
		func(b *bench, _ context.Context, _ string) error { return b.lab.ResumeAPI() })},
	{"etcd killed and started", 2 * time.Second, lifetime, func(b *bench, ctx context.Context, _ string, lasts time.Duration) error {
		return b.lab.RestartEtcd(ctx, lasts)
	}},
	{"all leases of VIPs deleted", 100 * time.Millisecond, lifetime, func(b *bench, ctx context.Context, _ string, _ time.Duration) error {
		leases := b.lab.Client().CoordinationV1()
		all, err := leases.Leases("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, l := range all.Items {
			if strings.HasPrefix(l.Name, "kubevip-") {
				err = errors.Join(err, ignoreNotFound(leases.Leases(l.Namespace).Delete(ctx, l.Name, metav1.DeleteOptions{})))
			}
		}
		return err
	}},
	{"its node lease deleted", 2 * time.Second, lifetime, func(b *bench, ctx context.Context, node string, _ time.Duration) error {
		return b.lab.Client().CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, "herald-node-"+node, metav1.DeleteOptions{})
	}},
}

// ignoreNotFound returns nil if err says that there is no such object, else err.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// undone makes a fault, waits, and repairs it.
func undone(do, undo func(b *bench, ctx context.Context, node string) error) func(*bench, context.Context, string, time.Duration) error {
	return func(b *bench, ctx context.Context, node string, lasts time.Duration) error {
		err := do(b, ctx, node)
		sleep(ctx, lasts)
		return errors.Join(err, undo(b, ctx, node))
	}
}

// losing has the node lose so many of a hundred frames on the LAN that come in and go out.
func losing(in, out int) func(*bench, context.Context, string, time.Duration) error {
	return undone(func(b *bench, ctx context.Context, node string) error { return b.lab.Lose(ctx, node, in, out) },
		func(b *bench, ctx context.Context, node string) error { return b.lab.LoseNothing(ctx, node) })
}

// A soakRound is what the watchers saw of one fault.
type soakRound struct {
	fault   soakFault
	node    string
	lasted  time.Duration
	silent  time.Duration // the longest of any VIP
	double  time.Duration
	report  lab.WhoHasReport
	connect lab.ConnectReport
}

// randomFault chooses a fault, for how long it lasts (half of them for 3 s or less, and up to 20 s), and a node: of
// four times three that with the most VIPs (owner).
func randomFault(r *rand.Rand, faults []soakFault, nodes []string, owner string) soakRound {
	lasts := time.Duration(r.Int64N(int64(3 * time.Second)))
	if r.IntN(2) == 0 {
		lasts = time.Duration(r.Int64N(int64(20 * time.Second)))
	}
	node := nodes[r.IntN(len(nodes))]
	if r.IntN(4) > 0 {
		node = owner
	}
	return soakRound{fault: faults[r.IntN(len(faults))], node: node, lasted: lasts}
}
