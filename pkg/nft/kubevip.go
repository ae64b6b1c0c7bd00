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

// WarnOfKubeVIP logs what KubeVIPEgress says. It leaves the rules alone: kube-vip may still run.
func WarnOfKubeVIP(log *slog.Logger) {
	switch left, err := KubeVIPEgress(); {
	case err != nil:
		log.Debug("nftables can't be asked for rules of kube-vip's egress", "err", err)
	case left != "":
		log.Warn(left)
	}
}
