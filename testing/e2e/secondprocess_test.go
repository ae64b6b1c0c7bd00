package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// startSecond runs a second Herald on a host under the name n1, until the test ends.
func startSecond(t *testing.T, host string, env map[string]string) *lab.Process {
	t.Helper()
	p := check.Value(cluster.StartSecondHerald(host, "n1", env))(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("--- the second Herald on %s\n%s", host, tail(p.Log(), 30))
		}
		if p.Running() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			p.Signal(syscall.SIGTERM)
			check.OK(t, p.Wait(ctx))
		}
	})
	return p
}

// awaitNodeEvent waits for an Event on a Node that is not older than that.
func awaitNodeEvent(t *testing.T, node, reason string, since time.Time) {
	t.Helper()
	until(t, 10*time.Second, "an Event "+reason+" on the Node "+node, func(ctx context.Context) error {
		list, err := cluster.Client().CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node + ",reason=" + reason})
		if err == nil && !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.LastTimestamp.After(since) }) {
			err = errors.New("there is none")
		}
		return err
	})
}

// A second Herald of the name n1 (on the host of the first with the same options, of another installation there, and on a cloned host) says
// so in its log and by an Event, and stays out of the way. A cloned host's ends, as often as it is started. Nothing moves, nothing is unanswered or
// answered twice, no connection is lost. Once the first is killed, one that waits on the same host adopts its VIPs.
func TestSecondProcess(t *testing.T) {
	options := env("vip_leaseduration", "7", "vip_renewdeadline", "6", "vip_retryperiod", "1", "vip_interface", "eth0") // a VIP is bound for 5 s, or until the deadline
	f := start(t, options)
	var addrs []string
	for i := range 6 {
		addrs = append(addrs, fmt.Sprintf("10.77.0.%d", 60+i))
		createService(t, webService(fmt.Sprintf("second-%d", i), addrs[i]))
	}
	w := whoHas(t, 20*time.Millisecond, addrs...)
	for i, a := range addrs {
		awaitAnswer(t, w, a, 20*time.Second)
		awaitReachable(t, "http://"+addrs[i])
	}
	check.Until(t, 20*time.Second, "n1 would be missed", func() error { return cluster.PeersDetectable(t.Context()) })
	time.Sleep(4 * time.Second) // old neighbor entries and hand-overs of the beginning
	w.Stop()
	for _, second := range []struct {
		name, host string
		options    map[string]string
	}{
		{"a second one by mistake", "n1", options},
		{"another installation", "n1", env("vip_interface", "eth0", "cp_namespace", "default")},
		{"a cloned host", "w1", options},
	} {
		t.Run(second.name, func(t *testing.T) {
			w, c := whoHas(t, 20*time.Millisecond, addrs...), connect(t, addrs[0]+":80")
			for began := time.Now(); time.Since(began) < 8*time.Second; { // more than a lease duration
				p := startSecond(t, second.host, second.options)
				started := time.Now().Truncate(time.Second) // as Events have it
				err := p.WaitLog(withTimeout(t, 15*time.Second), "another Herald has the name of this node")
				if err != nil || !strings.Contains(p.Log(), "host") {
					t.Errorf("the second one does not say who is the first: %v", err)
				}
				awaitNodeEvent(t, "n1", "NodeNameInUse", started.Add(-time.Second))
				if second.host == "w1" {
					if err := p.Wait(withTimeout(t, 15*time.Second)); err == nil {
						t.Error("the one on another host ends without an error")
					}
					continue
				}
				time.Sleep(8*time.Second - min(8*time.Second, time.Since(began)))
				if !p.Running() {
					t.Error("the second one ended")
				}
				p.Signal(syscall.SIGTERM)
				check.OK(t, p.Wait(withTimeout(t, 30*time.Second)))
			}
			for _, r := range w.Stop().Addrs {
				if !r.Stayed(100 * time.Millisecond) {
					t.Errorf("%s: unanswered for %v, by two for %v; %d changes", r.Addr, r.TotalSilence, r.TotalDouble, len(r.Timeline)-1)
				}
			}
			if r := c.Stop(); len(r.Failures) > 0 {
				t.Errorf("%d connections failed, the first: %v", len(r.Failures), r.Failures[0])
			}
		})
	}
	t.Run("takes over", func(t *testing.T) {
		w = whoHas(t, 20*time.Millisecond, addrs...)
		p := startSecond(t, "n1", options)
		check.OK(t, p.WaitLog(withTimeout(t, 15*time.Second), "another Herald has the name of this node"))
		f.node["n1"].Kill()
		killed := time.Now()
		check.OK(t, p.WaitLog(withTimeout(t, 10*time.Second), "the node lease is held"))
		f.node["n1"] = p
		if took := time.Since(killed); took > 3500*time.Millisecond {
			t.Skipf("on this machine it has taken over after %v, and the others wait for 3.75 s", took)
		}
		time.Sleep(lab.KernelAnswers) // longer than the kernel keeps an address that nobody renews
		for _, r := range w.Stop().Addrs {
			if !r.Stayed(100 * time.Millisecond) {
				t.Errorf("%s: unanswered for %v, by two for %v; %d changes", r.Addr, r.TotalSilence, r.TotalDouble, len(r.Timeline)-1)
			}
		}
	})
}
