package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// TestRotateKey: the key of the heartbeats is replaced, and not one heartbeat is dropped for it.
func TestRotateKey(t *testing.T) {
	f := start(t, env())
	heard := func() error {
		for _, n := range cluster.Nodes() {
			page, err := cluster.Get(t.Context(), n, "http://127.0.0.1:2112/metrics")
			if err != nil {
				return err
			}
			if alive := strings.Count(page, `state="alive"} 1`); alive != len(cluster.Nodes())-1 {
				return fmt.Errorf("%s hears %d other nodes", n, alive)
			}
		}
		return nil
	}
	check.Until(t, 20*time.Second, "the nodes hear each other", heard)
	kubeconfig := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	began := time.Now()
	out, err := cluster.Run(withTimeout(t, 2*time.Minute), "cp", herald, "peers", "rotate-key", "--kubeconfig", kubeconfig)
	t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), out)
	check.OK(t, err)
	check.OK(t, heard())
	for _, n := range cluster.Nodes() {
		page := check.Value(cluster.Get(t.Context(), n, "http://127.0.0.1:2112/metrics"))(t)
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "herald_peers_packets_dropped_total") && strings.Contains(line, `"key"`) && !strings.HasSuffix(line, " 0\n") {
				t.Errorf("%s: %s", n, line)
			}
		}
		if log := f.node[n].Log(); strings.Contains(log, "suspect") || strings.Contains(log, "dead") {
			t.Errorf("%s:\n%s", n, tail(log, 20))
		}
	}
}
