package nft

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// What egress of kube-vip is made of (its pkg/vip/egress.go and pkg/nftables).
const (
	kubeVIPChain   = "KUBE-VIP-EGRESS"       // of iptables, in the table mangle
	kubeVIPComment = "a3ViZS12aXAK=kube-vip" // each rule of iptables has a comment that begins so
)

// kubeVIPTables are the tables of nftables in which kube-vip does egress with kube-vip.io/egress-internal, by the name of their family.
var kubeVIPTables = map[string]string{"ip": "kube_vip_v4", "ip6": "kube_vip_v6"}

// KubeVIPEgress says that there are rules of kube-vip's egress in this network namespace, which outlive its process, and by which shell
// commands they are removed; "" if there are none. What iptables-legacy has made nftables does not show.
func KubeVIPEgress() (left string, err error) {
	c, err := nftables.New()
	if err != nil {
		return "", err
	}
	var commands []string
	for _, f := range families {
		chains, err := c.ListChainsOfTableFamily(f.id)
		if err != nil {
			return "", fmt.Errorf("nftables chains of the family %s: %w", f.name, err)
		}
		if slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Name == kubeVIPChain }) {
			commands = append(commands, fmt.Sprintf("%[1]stables-nft-save | sed -n '/^[*C]/p; /%[2]s/s/^-A/-D/p' | %[1]stables-nft-restore --noflush; %[1]stables-nft -t mangle -X %[3]s",
				f.name, kubeVIPComment, kubeVIPChain))
		}
		if table := kubeVIPTables[f.name]; slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == table }) {
			commands = append(commands, "nft delete table "+f.name+" "+table)
		}
	}
	if len(commands) == 0 {
		return "", nil
	}
	return "kube-vip's egress has rules on this node, which outlive it: what pods send has a VIP as its source, wherever that is by now. Once kube-vip has ended, remove them: " +
		strings.Join(commands, "; "), nil
}

// HostPorts says that there are rules of the CNI plugin portmap beside those of kube-proxy in its nftables mode; "" if there are not.
// Both translate what comes for a local address at the priority -100, and the kernel asks first who made its chain last.
func HostPorts() (found string, err error) {
	c, err := nftables.New()
	if err != nil {
		return "", err
	}
	for _, f := range families {
		chains, err := c.ListChainsOfTableFamily(f.id)
		if err != nil {
			return "", fmt.Errorf("nftables chains of the family %s: %w", f.name, err)
		}
		has := func(names ...string) bool {
			return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
				return slices.Contains(names, c.Name) || slices.Contains(names, c.Table.Name)
			})
		}
		if has("kube-proxy") && has("CNI-HOSTPORT-DNAT", "cni_hostport") {
			return "pods with a hostPort run here (CNI plugin portmap), and kube-proxy is in its nftables mode: at a VIP whose port is also a hostPort, such a pod may answer in place of " +
				"the Service's pods, on each node that has one. Take another hostPort, or give it a hostIP that is no VIP, or use kube-proxy's iptables mode", nil
		}
	}
	return "", nil
}

// WarnOfOthers logs what KubeVIPEgress and HostPorts say. It leaves the rules alone: who made them may still run.
func WarnOfOthers(log *slog.Logger) {
	switch found, err := HostPorts(); {
	case err != nil:
		log.Debug("nftables can't be asked for rules of hostPorts", "err", err)
	case found != "":
		log.Warn(found)
	}
	warnOfKubeVIP(log)
}

func warnOfKubeVIP(log *slog.Logger) {
	switch left, err := KubeVIPEgress(); {
	case err != nil:
		log.Debug("nftables can't be asked for rules of kube-vip's egress", "err", err)
	case left != "":
		log.Warn(left)
	}
}
