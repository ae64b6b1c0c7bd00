package nodes

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// An apiWatch asks an API server at an address again and again, each time on a new
// connection from the client's host, whether it is ready.
type apiWatch struct {
	stop context.CancelFunc
	done sync.WaitGroup
	mu   sync.Mutex
	good []time.Time // when a good answer came
	bad  []string

	stalls []lab.Stall
}

const askInterval = 50 * time.Millisecond

// watchAPI begins to ask https://addr:6443/readyz from the host ns.
func watchAPI(ctx context.Context, ns string, addr netip.Addr) *apiWatch {
	ctx, stop := context.WithCancel(ctx)
	w := &apiWatch{stop: stop}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DialContext: cluster.DialFrom(ns), DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	url := "https://" + netip.AddrPortFrom(addr, 6443).String() + "/readyz"
	w.done.Go(func() {
		tick := time.NewTicker(askInterval)
		defer tick.Stop()
		for {
			w.done.Go(func() { w.ask(client, url) })
			began := time.Now()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if time.Since(began) > 2*askInterval {
				w.stalls = append(w.stalls, lab.Stall{From: began.Add(askInterval), To: time.Now()})
			}
		}
	})
	return w
}

func (w *apiWatch) ask(client *http.Client, url string) {
	began := time.Now()
	answer, err := client.Get(url)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.bad = append(w.bad, fmt.Sprintf("%s: %v", began.Format("05.000"), err))
	case answer.StatusCode != http.StatusOK:
		w.bad = append(w.bad, fmt.Sprintf("%s: %s", began.Format("05.000"), answer.Status))
	default:
		w.good = append(w.good, time.Now())
	}
	if err == nil {
		answer.Body.Close()
	}
}

// first is when the first good answer came, or zero.
func (w *apiWatch) first() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.good) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(w.good, time.Time.Compare)
}

// awaitGoodAfter waits for a good answer that came after at.
func (w *apiWatch) awaitGoodAfter(t *testing.T, at time.Time) {
	t.Helper()
	await(t, time.Minute, "the VIP answers again", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !slices.ContainsFunc(w.good, func(g time.Time) bool { return g.After(at) }) {
			return fmt.Errorf("no good answer since %v; the last bad ones: %v", at, w.bad[max(0, len(w.bad)-3):])
		}
		return nil
	})
}

// end stops asking. It returns the longest time without a good answer, but for stalls, and how many were bad.
func (w *apiWatch) end() (outage time.Duration, bad int) {
	w.stop()
	w.done.Wait()
	slices.SortFunc(w.good, time.Time.Compare)
	for i := 1; i < len(w.good); i++ {
		before, now := w.good[i-1], w.good[i]
		outage = max(outage, now.Sub(before)-lab.Overlap(w.stalls, before, now))
	}
	return outage, len(w.bad)
}

// await is check.Until, but calls look every 100 ms only: it asks API servers and runs programs.
func await(t *testing.T, within time.Duration, what string, look func() error) {
	t.Helper()
	check.Until(t, within, what, func() error {
		err := look()
		if err != nil {
			time.Sleep(95 * time.Millisecond)
		}
		return err
	})
}

// cpOwner is the node that holds the VIP of the control plane.
func cpOwner(t *testing.T) string {
	t.Helper()
	var node string
	await(t, time.Minute, "the control plane's VIP has an owner", func() (err error) {
		node, err = cluster.Owner(t.Context(), "kube-system", "plndr-cp-lock")
		return err
	})
	return node
}

// awaitNodesReady waits until every node is Ready, every API server answers, and every
// Herald says that its own is.
func awaitNodesReady(t *testing.T) {
	t.Helper()
	await(t, 3*time.Minute, "all nodes are ready", func() error {
		list, err := cluster.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != len(cluster.Nodes()) {
			return fmt.Errorf("%d nodes", len(list.Items))
		}
		for _, n := range list.Items {
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					return fmt.Errorf("%s is not Ready: %s", n.Name, c.Message)
				}
			}
			l, err := cluster.Client().CoordinationV1().Leases("kube-system").Get(t.Context(), "herald-node-"+n.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !strings.Contains(l.Annotations["heraldvip.io/node"], `"apiServerReady":true`) || l.Annotations["heraldvip.io/fenced"] != "" {
				return fmt.Errorf("%s: %v", l.Name, l.Annotations)
			}
			if age := time.Since(l.Spec.RenewTime.Time); age > 5*time.Second {
				return fmt.Errorf("%s was renewed %v ago", l.Name, age)
			}
		}
		return nil
	})
}
