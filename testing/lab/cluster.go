package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// programs are the names of the one program testing/lab/parts.
var programs = []string{"etcd", "kube-apiserver", "endpointslices", "kube-proxy", "kubectl"}

func (l *Lab) programPath(name string) string { return filepath.Join(l.opts.Parts, name) }

func (l *Lab) apiAddr() string { return net.JoinHostPort(l.host("cp").mgmtAddr().String(), "6443") }

// startAPI starts etcd and the API server, without waiting.
func (l *Lab) startAPI() error {
	if err := l.spawnEtcd(); err != nil {
		return err
	}
	return l.spawnAPI()
}

func (l *Lab) spawnEtcd() error {
	cmd := exec.Command(l.programPath("etcd"), "--name=lab", "--data-dir="+filepath.Join(l.dir, "etcd"),
		"--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379,"+l.etcdURL(), "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=lab=http://127.0.0.1:2380", "--log-level=warn",
		"--heartbeat-interval=10", "--election-timeout=100") // the only member elects itself sooner
	cmd.Env = l.environment()
	etcd, err := l.spawn("cp", "etcd", cmd)
	l.etcd = etcd
	return err
}

func (l *Lab) etcdURL() string {
	return "http://" + net.JoinHostPort(l.host("cp").mgmtAddr().String(), "2379")
}

func (l *Lab) spawnAPI() error {
	var audit []string
	if l.opts.Audited != "" {
		policy := fmt.Sprintf("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- "+
			"{level: Metadata, users: [%q]}\n- {level: None}\n", l.opts.Audited)
		if err := os.WriteFile(l.conf("audit.yaml"), []byte(policy), 0o600); err != nil {
			return err
		}
		audit = []string{"--audit-policy-file=" + l.conf("audit.yaml"),
			"--audit-log-path=" + filepath.Join(l.dir, "logs", "audit.log")}
	}
	api, err := l.Start("cp", "kube-apiserver", append(l.apiArgs("cp", "http://127.0.0.1:2379"), audit...))
	if err != nil {
		return err
	}
	l.api = api
	return nil
}

func (l *Lab) apiArgs(host, etcd string) []string {
	return []string{l.programPath("kube-apiserver"),
		"--etcd-servers=" + etcd, "--bind-address=::", "--advertise-address=" + l.host(host).mgmtAddr().String(),
		"--secure-port=6443",
		"--tls-cert-file=" + l.pki(host+".crt"), "--tls-private-key-file=" + l.pki("apiserver.key"),
		"--token-auth-file=" + l.pki("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-key-file=" + l.pki("sa.key"), "--service-account-signing-key-file=" + l.pki("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-cluster-ip-range=" + l.ofFamilies(ServiceCIDRs),
		// No controller makes the default ServiceAccounts for Pods, or takes new Nodes' taint away.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		"--v=1"}
}

// startController starts the one controller that the lab needs, and waits until it knows all objects.
func (l *Lab) startController(ctx context.Context) error {
	p, err := l.Start("cp", "endpointslices",
		[]string{l.programPath("endpointslices"), "--kubeconfig=" + l.kubeconfig("controller")})
	if err != nil {
		return err
	}
	l.controller = p
	return p.WaitLog(ctx, "EndpointSlices are made")
}

func (l *Lab) writeNode(ctx context.Context, h host) error {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: h.name,
			Labels: map[string]string{corev1.LabelHostname: h.name, corev1.LabelOSStable: "linux"}},
	}
	for _, p := range h.hasPrefixes(h.pods4(), h.pods6()) {
		n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, p.String())
	}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	n, err := l.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create node %s: %w", h.name, err)
	}
	now := metav1.Now()
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: h.name}}
	for _, a := range h.has(h.lan4(), h.lan6()) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Lab",
		LastHeartbeatTime: now, LastTransitionTime: now}}
	n.Status.NodeInfo.KubeletVersion = "v1.36.3"
	if _, err := l.client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write status of node %s: %w", h.name, err)
	}
	return nil
}

func (l *Lab) spawnProxy(node, kubeconfig string) (*Process, error) {
	conf := l.conf("kube-proxy-" + node + ".yaml")
	// The sync periods: the default of a second would dominate what is measured.
	err := os.WriteFile(conf, fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s, qps: 1000, burst: 1000}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
oomScoreAdj: 0
healthzBindAddress: "[::]:10256"
metricsBindAddress: 127.0.0.1:10249
iptables: {minSyncPeriod: 100ms}
nftables: {minSyncPeriod: 100ms}
`, l.opts.ProxyMode, node, l.ofFamilies(PodCIDRs), kubeconfig), 0o644)
	if err != nil {
		return nil, err
	}
	return l.Start(node, "kube-proxy-"+node, []string{l.programPath("kube-proxy"), "--config=" + conf, "--v=1"})
}

// startProxy starts the node's kube-proxy and waits until it has written its rules once.
func (l *Lab) startProxy(ctx context.Context, h host) error {
	p, err := l.spawnProxy(h.name, l.kubeconfig("kube-proxy"))
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.proxies[h.name] = p
	l.mu.Unlock()
	return l.await(ctx, p, func() error {
		_, err := l.Get(ctx, h.name, "http://127.0.0.1:10256/healthz")
		return err
	})
}

// forwardAPIServer has the cluster IP of default/kubernetes lead to the API server, like a kube-proxy: else Herald
// finds the node's data plane faulty.
func (l *Lab) forwardAPIServer(ctx context.Context, h host) error {
	cidr, _, _ := strings.Cut(ServiceCIDRs, ",")
	clusterIP := netip.MustParsePrefix(cidr).Addr().Next() // the API server takes the first of the range
	return l.nft(ctx, h.name,
		"add table ip lab_api",
		"add chain ip lab_api out { type nat hook output priority -100; }",
		fmt.Sprintf("add rule ip lab_api out ip daddr %s tcp dport 443 dnat to %s", clusterIP, l.apiAddr()),
		"add chain ip lab_api post { type nat hook postrouting priority 100; }", // the API server has no route to the LAN
		"add rule ip lab_api post ct status dnat masquerade")
}

// await calls fn every 20 ms until it returns nil. If p or ctx ends before, the error has fn's last one, and the end of
// p's log.
func (l *Lab) await(ctx context.Context, p *Process, fn func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %w:\n%s", p.Name, errors.Join(p.err, err), p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w", p.Name, err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
