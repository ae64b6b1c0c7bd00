package lab

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

// StartHerald runs `herald manager` on a node, as the ServiceAccount
// kube-system/herald, which has the rights that Options.RBAC gave it. env is
// added to vip_nodename and k8s_config_file, and wins over them. The log is
// logs/herald-<node>.log; a Herald that is started again appends to it.
func (l *Lab) StartHerald(node string, env map[string]string) (*Process, error) {
	if !slices.Contains(l.Nodes(), node) {
		return nil, fmt.Errorf("start herald: there is no node %q for it", node)
	}
	p, err := l.startHerald(node, node, "herald-"+node, env)
	if err == nil {
		l.mu.Lock()
		l.heralds[node] = heraldProcess{p, env}
		l.mu.Unlock()
	}
	return p, err
}

// A heraldProcess is the last Herald that was started on a node, and its options.
type heraldProcess struct {
	*Process
	env map[string]string
}

// Herald returns the last process that StartHerald started on a node, nil if there was none.
func (l *Lab) Herald(node string) *Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heralds[node].Process
}

// StartHeraldAgain starts Herald on a node with the options that it had before, and waits until it is ready, or ctx
// ends.
func (l *Lab) StartHeraldAgain(ctx context.Context, node string) error {
	l.mu.Lock()
	env := l.heralds[node].env
	l.mu.Unlock()
	p, err := l.StartHerald(node, env)
	if err != nil {
		return err
	}
	return l.await(ctx, p, func() error {
		_, err := l.Get(ctx, node, "http://127.0.0.1:2112/readyz")
		return err
	})
}

// StartSecondHerald runs `herald manager` as StartHerald does, beside another one: on any host of
// the lab that is a node or a worker, under the name of any node. The log is
// logs/herald-second-<host>.log.
func (l *Lab) StartSecondHerald(host, node string, env map[string]string) (*Process, error) {
	return l.startHerald(host, node, "herald-second-"+host, env)
}

func (l *Lab) startHerald(host, node, name string, env map[string]string) (*Process, error) {
	if _, err := exec.LookPath(l.opts.Herald); err != nil {
		return nil, fmt.Errorf("start herald: %w", err)
	}
	all := map[string]string{"vip_nodename": node, "k8s_config_file": l.kubeconfig("herald")}
	maps.Copy(all, env)
	var list []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		list = append(list, k+"="+all[k])
	}
	return l.Start(host, name, []string{l.opts.Herald, "manager"}, list...)
}

// PeersDetectable is nil once each node's Herald exchanges heartbeats with every other's, so that
// it would detect their death: herald_peers_detectable is 1 for each. It does not wait.
func (l *Lab) PeersDetectable(ctx context.Context) error {
	for _, n := range l.Nodes() {
		metrics, err := l.Get(ctx, n, "http://127.0.0.1:2112/metrics")
		if err != nil {
			return err
		}
		for _, o := range l.Nodes() {
			if o != n && !strings.Contains(metrics, fmt.Sprintf("herald_peers_detectable{node=%q} 1\n", o)) {
				return fmt.Errorf("%s would not detect the death of %s yet", n, o)
			}
		}
	}
	return nil
}
