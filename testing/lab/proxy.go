package lab

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"syscall"
)

// KillProxy ends a node's kube-proxy by SIGKILL. Its rules stay in the kernel.
func (l *Lab) KillProxy(node string) { l.proxy(node).Kill() }

// PauseProxy has a node's kube-proxy hang, and ResumeProxy go on.
func (l *Lab) PauseProxy(node string) error  { return l.proxy(node).Signal(syscall.SIGSTOP) }
func (l *Lab) ResumeProxy(node string) error { return l.proxy(node).Signal(syscall.SIGCONT) }

// ReplaceProxy ends a node's kube-proxy that follows the API server no more, starts another, and returns what it said
// last, and where the goroutines in kube-proxy's own code stood.
func (l *Lab) ReplaceProxy(ctx context.Context, node string) (said string, err error) {
	p := l.proxy(node)
	_ = p.Signal(syscall.SIGQUIT) // fails only if it has ended
	_ = p.Wait(ctx)               // its status says nothing
	log, stacks, _ := strings.Cut(p.Log(), "\nSIGQUIT: quit")
	said = log[max(0, len(log)-4000):]
	for s := range strings.SplitSeq(stacks, "\n\n") {
		if strings.Contains(s, "k8s.io/kubernetes/pkg/proxy") {
			said += "\n\n" + regexp.MustCompile(`\n\t.*|\((?:0x|\{|\.\.\.).*`).ReplaceAllString(s, "")
		}
	}
	return said, l.StartProxy(ctx, node)
}

// StartProxy starts a node's kube-proxy, unless it runs, and waits until it has written its rules once.
func (l *Lab) StartProxy(ctx context.Context, node string) error {
	if l.proxy(node).Running() {
		return nil
	}
	return l.startProxy(ctx, l.host(node))
}

// RestartClients kills controller and kube-proxies (SIGKILL), starts them again, and waits until they are ready: after
// an outage of the API server client-go's back-off is up to a minute.
func (l *Lab) RestartClients(ctx context.Context) error {
	l.controller.Kill()
	if err := l.startController(ctx); err != nil {
		return err
	}
	for _, n := range l.Nodes() {
		if p := l.proxy(n); p != nil && p.Running() {
			p.Kill()
			if err := l.StartProxy(ctx, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveProxyRules removes kube-proxy's rules from a node's kernel; a running kube-proxy writes them again in its own
// time.
func (l *Lab) RemoveProxyRules(ctx context.Context, node string) error {
	_, err := l.Run(ctx, node, l.programPath("kube-proxy"), "--cleanup")
	return err
}

func (l *Lab) proxy(node string) *Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proxies[node]
}

// RulesFor is what kube-proxy's rules, of nftables or iptables, have of a VIP: the rest of the line, or of a map's
// element.
func RulesFor(rules, vip string) []string {
	return regexp.MustCompile(`(?m)(?:^|[^0-9a-f:.])`+regexp.QuoteMeta(vip)+
		`(?:[^0-9a-f:.,\n][^,\n]*)?(?:[,\n]|$)`).FindAllString(rules, -1)
}

// RulesServe returns nil if kube-proxy's rules forward connections to a VIP; without endpoints one rejects them.
func RulesServe(rules, vip string) error {
	have := RulesFor(rules, vip)
	for _, r := range have {
		if strings.Contains(strings.ToLower(r), "reject") {
			return fmt.Errorf("it rejects connections: %s", r)
		}
	}
	if len(have) == 0 {
		return fmt.Errorf("it has no rules for %s", vip)
	}
	return nil
}
