package nodes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// startup is what was seen while the cluster came up.
var startup struct {
	api, vip time.Time // the first good answer of the first API server, and by way of the VIP
}

// How long the VIP of the control plane may be away.
const (
	takeoverTime  = 1500 * time.Millisecond // after what is noticed at once
	notReadyAfter = 5 * time.Second         // until an API server that died counts as not ready: 3 s, or beside another lab 4 s
)

// TestControlPlaneFromNothing: Herald's static Pod was there before any API server.
func TestControlPlaneFromNothing(t *testing.T) {
	t.Logf("kubeadm: nodes with containerd after %v, init after %v, all joined after %v", startupTimes["nodes with containerd"], startupTimes["kubeadm init"], startupTimes["kubeadm join on the others"])
	late := startup.vip.Sub(startup.api)
	t.Logf("the VIP answered %v after the first API server was ready", late.Round(time.Millisecond))
	if late > 3*time.Second {
		t.Errorf("the VIP answered %v after the first API server was ready, want 3s at most", late)
	}
	// kubeadm's own kubeconfig names the VIP. Herald goes by it, and not by way of it.
	text := check.Value(os.ReadFile(cluster.File("n1", "etc/kubernetes/admin.conf")))(t)
	if want := "https://" + netip.AddrPortFrom(cpVIP, 6443).String(); !strings.Contains(string(text), want) {
		t.Errorf("admin.conf does not name %s", want)
	}
}

// A fault is something that happens to the owner of the VIP.
type fault struct {
	name      string
	do        func(t *testing.T, node string)
	undo      func(t *testing.T, node string)
	moves     bool          // or it may do either
	maxOutage time.Duration // that the VIP may be away
}

var faults = []fault{
	{
		name: "its link dies", moves: true, maxOutage: takeoverTime,
		do:   func(t *testing.T, node string) { check.OK(t, cluster.Unplug(node)) },
		undo: func(t *testing.T, node string) { check.OK(t, cluster.Reconnect(node)) },
	},
	{
		name: "its API server dies", moves: true, maxOutage: notReadyAfter + takeoverTime,
		do: func(t *testing.T, node string) {
			check.OK(t, os.Rename(cluster.File(node, apiManifest), cluster.File(node, "etc/kubernetes/kube-apiserver.yaml")))
			runOn(t, node, "pkill", "-KILL", "-x", "kube-apiserver")
		},
		undo: func(t *testing.T, node string) {
			check.OK(t, os.Rename(cluster.File(node, "etc/kubernetes/kube-apiserver.yaml"), cluster.File(node, apiManifest)))
		},
	},
	{
		name: "its API server hangs", moves: true, maxOutage: 12 * time.Second, // three questions without an answer, and the requests under way
		do: func(t *testing.T, node string) {
			cluster.AvoidAPIServer(node)
			runOn(t, node, "pkill", "-STOP", "-x", "kube-apiserver")
		},
		undo: func(t *testing.T, node string) { runOn(t, node, "pkill", "-CONT", "-x", "kube-apiserver") },
	},
	{
		// The other nodes see at once that its process is gone, and may be faster than kubelet.
		name: "its Herald is killed", moves: false, maxOutage: takeoverTime,
		do:   func(t *testing.T, node string) { runOn(t, node, "pkill", "-KILL", "-x", "herald") },
		undo: func(*testing.T, string) {},
	},
}

const apiManifest = "etc/kubernetes/manifests/kube-apiserver.yaml"

// TestControlPlaneFailover: whatever happens to the owner, the VIP is away for no
// longer than it must, is answered by one node at a time, and does not move back.
func TestControlPlaneFailover(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			awaitNodesReady(t)
			was := cpOwner(t)
			asking := check.Value(cluster.WhoHas(t.Context(), 20*time.Millisecond, cpVIP))(t)
			w := watchAPI(t.Context(), "cl", cpVIP)
			w.awaitGoodAfter(t, time.Now())
			happened := time.Now()
			f.do(t, was)
			if f.moves {
				await(t, time.Minute, "the VIP has another owner", func() error {
					if now := cpOwner(t); now == was {
						return fmt.Errorf("still %s", now)
					}
					return nil
				})
			} else {
				time.Sleep(8 * time.Second) // what is not to happen has had its time
			}
			w.awaitGoodAfter(t, time.Now())
			now := cpOwner(t)
			if now != was {
				t.Logf("what Herald on %s says:\n%s", now, runOn(t, now, "sh", "-c", "tail -n 12 /var/log/pods/kube-system_herald-*/herald/*.log"))
			}
			f.undo(t, was)
			awaitNodesReady(t)
			outage, bad := w.end()
			report := asking.Stop()
			t.Logf("%s: from %s to %s, %d failed, away for %v (%v since it happened)", f.name, was, now, bad, outage.Round(time.Millisecond), time.Since(happened).Round(time.Second))
			if outage > f.maxOutage {
				t.Errorf("away for %v, want %v at most", outage, f.maxOutage)
			}
			if f.moves && was == now {
				t.Errorf("it is still on %s", was)
			}
			// A node that starts again takes so much of a small machine that another's API server
			// may miss its turn, and the VIP goes on to the third: that is as it should be.
			switch back := cpOwner(t); {
			case f.moves && back == was, !f.moves && back != now:
				t.Errorf("it went to %s when %s was well again", back, was)
			case back != now:
				t.Logf("it went on from %s to %s when %s was well again", now, back, was)
			}
			if d := report.Addrs[0].LongestDouble; d > handOver {
				t.Errorf("two nodes answered for %v, want %v at most:\n%s", d, handOver, report)
			}
		})
	}
}

// TestWatchOutlivesMoves: a watch by way of the VIP goes on, on the same connection, while the VIP moves: Herald on its owner is
// stopped and started, and the owner is drained and undrained.
func TestWatchOutlivesMoves(t *testing.T) {
	awaitNodesReady(t)
	w := watchByVIP(t)
	w.expectEvent(t, "nothing")
	move := func(what string, do func(was string)) {
		t.Helper()
		was := cpOwner(t)
		do(was)
		await(t, 30*time.Second, "the VIP leaves "+was, func() error {
			if cpOwner(t) == was {
				return errors.New("it is still there")
			}
			return nil
		})
		w.expectEvent(t, fmt.Sprintf("%s, from %s to %s", what, was, cpOwner(t)))
	}
	for range 2 {
		var stopped string
		var pod []byte
		move("SIGTERM", func(was string) {
			stopped, pod = was, check.Value(os.ReadFile(cluster.File(was, "etc/kubernetes/manifests/herald.yaml")))(t)
			check.OK(t, cluster.StaticPod(was, "herald", ""))
		})
		await(t, time.Minute, "Herald on "+stopped+" has ended", func() error {
			if out, err := cluster.RunOnNode(t.Context(), stopped, "pgrep", "-x", "herald"); err == nil {
				return fmt.Errorf("process %s", out)
			}
			return nil
		})
		w.expectEvent(t, "the end of Herald on "+stopped)
		check.OK(t, cluster.StaticPod(stopped, "herald", string(pod)))
		awaitNodesReady(t)
		w.expectEvent(t, "the start of Herald on "+stopped)
	}
	drained := cpOwner(t)
	move("drain", func(was string) { kubectl(t, "annotate", "node", was, "heraldvip.io/drain=test") })
	kubectl(t, "annotate", "node", drained, "heraldvip.io/drain-")
	w.expectEvent(t, "the end of the drain")
}

// A heldWatch is a watch of ConfigMaps, and the log of a pod that is followed as "kubectl logs -f" does, by way of the control
// plane's VIP, from the client's host.
type heldWatch struct {
	watch.Interface
	lines  chan string // of the log
	pod    string      // its address
	dials  *atomic.Int32
	number int
}

// watchByVIP begins a watch of a ConfigMap, and to follow the log of a pod, on a connection of its own.
func watchByVIP(t *testing.T) *heldWatch {
	t.Helper()
	w := &heldWatch{dials: new(atomic.Int32)}
	c := cluster.Config()
	c.Host = "https://" + netip.AddrPortFrom(cpVIP, 6443).String()
	dial := cluster.DialFrom("cl")
	c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		w.dials.Add(1)
		return dial(ctx, network, addr)
	}
	client := check.Value(kubernetes.NewForConfig(c))(t)
	t.Cleanup(func() { cluster.Kubectl(context.Background(), "delete", "configmap", "watched", "--ignore-not-found") })
	kubectl(t, "create", "configmap", "watched", "--from-literal=number=0")
	w.Interface = check.Value(client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: "watched"})))(t)
	t.Cleanup(w.Stop)

	t.Cleanup(func() {
		cluster.Kubectl(context.Background(), "delete", "pod", "followed", "--ignore-not-found", "--now")
	})
	kubectl(t, "run", "followed", "--image="+lab.ToolImage, "--image-pull-policy=Never", "--", "web")
	kubectl(t, "wait", "pod", "followed", "--for=condition=Ready", "--timeout=1m")
	w.pod = kubectl(t, "get", "pod", "followed", "-o", "jsonpath={.status.podIP}")
	log := check.Value(client.CoreV1().Pods("default").GetLogs("followed", &corev1.PodLogOptions{Follow: true}).Stream(t.Context()))(t)
	t.Cleanup(func() { log.Close() })
	w.lines = make(chan string, 1)
	go func() {
		defer close(w.lines)
		for s := bufio.NewScanner(log); s.Scan(); {
			w.lines <- s.Text()
		}
	}()
	return w
}

// expectEvent fails the test unless a change of the ConfigMap comes by the watch, and a line by the log, which still have their first connection.
func (w *heldWatch) expectEvent(t *testing.T, after string) {
	t.Helper()
	w.number++
	want := strconv.Itoa(w.number)
	began := time.Now()
	kubectl(t, "patch", "configmap", "watched", "-p", `{"data":{"number":"`+want+`"}}`)
	check.Value(cluster.Get(t.Context(), cluster.Nodes()[0], "http://"+w.pod+":8080/log/"+want))(t)
	select {
	case line := <-w.lines:
		if line != "/log/"+want {
			t.Fatalf("after %s: the log that is followed has the line %q", after, line)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("after %s: no line of the log", after)
	}
	for timeout := time.After(10 * time.Second); ; {
		select {
		case e, ok := <-w.ResultChan():
			m, is := e.Object.(*corev1.ConfigMap)
			switch {
			case !ok || !is:
				t.Fatalf("after %s: the watch has ended (%v)", after, e)
			case m.Data["number"] == want:
				t.Logf("after %s: the event took %v", after, time.Since(began).Round(time.Millisecond))
				if n := w.dials.Load(); n != 1 {
					t.Fatalf("after %s: %d connections, want 1", after, n)
				}
				return
			}
		case <-timeout:
			t.Fatalf("after %s: no event", after)
		}
	}
}

// handOver is how long both nodes may answer in a hand-over (docs/ownership.md).
const handOver = 3200 * time.Millisecond

// runOn runs a program on a node.
func runOn(t *testing.T, node string, argv ...string) string {
	t.Helper()
	out := check.Value(cluster.RunOnNode(t.Context(), node, argv...))(t)
	return out
}

// watchStartup records when the first API server, and the VIP, first answer.
func watchStartup(ctx context.Context) func() {
	ctx, cancel := context.WithCancel(ctx)
	api := watchAPI(ctx, "cp", netip.AddrFrom4([4]byte{10, 78, 0, 11}))
	vip := watchAPI(ctx, "cl", cpVIP)
	return func() {
		cancel()
		api.end()
		vip.end()
		startup.api, startup.vip = api.first(), vip.first()
	}
}
