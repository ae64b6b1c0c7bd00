package lab

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

// StartHerald runs `herald manager` on a node as the ServiceAccount kube-system/herald, with the rights of
// Options.RBAC. env is added to vip_nodename and k8s_config_file, and wins. The log is logs/herald-<node>.log,
// continued at each start.
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

// A heraldProcess is the last Herald of a node, and its options.
type heraldProcess struct {
	*Process
	env map[string]string
}

// Herald returns the node's last process by StartHerald, or nil.
func (l *Lab) Herald(node string) *Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heralds[node].Process
}

// StartHeraldAgain starts Herald with the options that it had, and waits until it is ready.
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

// StartSecondHerald runs `herald manager` beside another one: on any node or worker, under any node's name. The log is
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

// PeersDetectable is nil once all nodes' Heralds would detect each other's death: herald_peers_detectable is 1 for
// each. It does not wait.
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
