package nft

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/nftables"
)

// HostPorts describes rules of the CNI plugin portmap beside kube-proxy's nftables mode, or is "". Both translate at
// priority -100 what comes for a local address, and the kernel asks whose chain is newer first.
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
			return "pods with a hostPort run here (CNI plugin portmap), and kube-proxy is in its nftables mode: at a VIP " +
				"whose port is also a hostPort, such a pod may answer in place of " +
				"the Service's pods, on each node that has one. Take another hostPort, or give it a hostIP that is no VIP, or " +
				"use kube-proxy's iptables mode", nil
		}
	}
	return "", nil
}

// WarnOfHostPorts logs what HostPorts says.
func WarnOfHostPorts(log *slog.Logger) {
	switch found, err := HostPorts(); {
	case err != nil:
		log.Debug("nftables can't be asked for rules of hostPorts", "err", err)
	case found != "":
		log.Warn(found)
	}
}
