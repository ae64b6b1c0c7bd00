package lab

import "context"

// KillProxy ends a node's kube-proxy by SIGKILL. Its rules stay in the kernel.
func (l *Lab) KillProxy(node string) { l.proxy(node).Kill() }

// StartProxy starts a node's kube-proxy, unless it runs, and waits until it has written its
// rules once.
func (l *Lab) StartProxy(ctx context.Context, node string) error {
	if l.proxy(node).Running() {
		return nil
	}
	return l.startProxy(ctx, l.host(node))
}

// RemoveProxyRules removes all of kube-proxy's rules from a node's kernel. A kube-proxy that
// runs there writes them again in its own time.
func (l *Lab) RemoveProxyRules(ctx context.Context, node string) error {
	_, err := l.Run(ctx, node, l.programPath("kube-proxy"), "--cleanup")
	return err
}

func (l *Lab) proxy(node string) *Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proxies[node]
}
