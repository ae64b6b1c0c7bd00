package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/netif"
	"github.com/heraldvip/herald/pkg/nft"
	"github.com/heraldvip/herald/pkg/routes"
	"github.com/heraldvip/herald/pkg/vip"
)

func uninstallCommand() *cobra.Command {
	var namespace string
	var dryRun, keep bool
	c := &cobra.Command{
		Use: "uninstall", Short: "Remove all that Herald has written to the cluster, once it runs no more",
		Long: "Remove what Herald has written to the API server: of Services the status, the finalizer and Herald's\n" +
			"annotations, the table of who owns what, node leases, annotations of Nodes, and the Secret of the heartbeats.\n" +
			"It does nothing while a Herald runs: end that first, as it was installed. What came with the manifests\n" +
			"(RBAC, policies), and the ConfigMap of pools, is left to whom installed it.\n" +
			"Nodes on which Herald was killed: herald uninstall node.",
		Args: cobra.NoArgs,
	}
	user := addConnectFlags(c)
	c.Flags().StringVar(&namespace, "namespace", "kube-system", "The announcers' namespace, where the node leases are "+
		"(cp_namespace)")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "Only list what would be removed")
	c.Flags().BoolVar(&keep, "keep-addresses", false, "Leave the addresses that Services were given "+
		"(kube-vip.io/loadbalancerIPs), and the statuses of Heralds that were killed. One that ended in good order has "+
		"cleared its own")
	c.RunE = func(c *cobra.Command, _ []string) error {
		access, err := user.connect()
		if err != nil {
			return err
		}
		u := &uninstall{
			namespace: namespace, named: c.Flags().Changed("namespace"), dryRun: dryRun,
			printf: func(format string, args ...any) { fmt.Fprintf(c.OutOrStdout(), format+"\n", args...) },
			read:   func(ctx context.Context) (kube.Snapshot, error) { return kube.TakeSnapshot(ctx, access, namespace) },
			traces: func(ctx context.Context) ([]kube.Trace, error) { return kube.Traces(ctx, access, namespace, keep) },
		}
		return u.run(c.Context())
	}
	c.AddCommand(uninstallNodeCommand())
	return c
}

// An uninstall removes what a namespace's Heralds have written (docs/why.md, "Finalizer and uninstall").
type uninstall struct {
	namespace string
	named     bool // by --namespace
	dryRun    bool
	printf    func(format string, args ...any)

	read   func(context.Context) (kube.Snapshot, error)
	traces func(context.Context) ([]kube.Trace, error)
}

// run lists what there is and, unless dryRun, removes it. It is an error if a Herald runs, or something stays.
func (u *uninstall) run(ctx context.Context) error {
	running, err := u.runningNodes(ctx)
	if err != nil {
		return err
	}
	still := fmt.Sprintf("Herald still runs on %s, and would write all of this again: end it first (kubectl -n %s "+
		"delete daemonset herald --cascade=foreground, or take the static Pod's file away on each node)",
		abbreviate(running), u.namespace)
	if len(running) > 0 && !u.dryRun {
		return errors.New(still)
	}
	all, err := u.traces(ctx)
	if err != nil {
		return err
	}
	removed, errs := 0, []error(nil)
	for _, t := range all {
		if t.Left != "" {
			u.printf("left as it is: %s %s: %s", t.Kind, t.Object, t.Left)
		}
		if t.What == "" {
			continue
		}
		if !u.dryRun {
			if err := t.Remove(ctx); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		removed++
		u.printf("%s %s: %s", t.Kind, t.Object, t.What)
	}
	switch {
	case u.dryRun && len(running) > 0:
		u.printf("%d to be removed; but %s", removed, still)
	case u.dryRun:
		u.printf("%d to be removed", removed)
	default:
		u.printf("%d removed. On nodes whose Herald was killed: herald uninstall node", removed)
	}
	return errors.Join(errs...)
}

// runningNodes returns the nodes with leases neither over nor fenced, sorted, if any is renewed while they are good.
func (u *uninstall) runningNodes(ctx context.Context) ([]string, error) {
	first, last, err := u.nodeLeases(ctx)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	u.printf("looking for %v whether a Herald renews the node leases of %s", last,
		abbreviate(slices.Collect(maps.Keys(first))))
	deadline := time.NewTimer(last)
	defer deadline.Stop()
	for poll := time.NewTicker(500 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline.C:
			return nil, nil
		case <-poll.C:
		}
		now, _, err := u.nodeLeases(ctx)
		if err != nil {
			return nil, err
		}
		for node, version := range now {
			if first[node] != version {
				return slices.Sorted(maps.Keys(now)), nil
			}
		}
	}
}

// nodeLeases returns the versions of held, unfenced node leases by node, and the longest time they are good for; an
// error if only another namespace has some, and none was named.
func (u *uninstall) nodeLeases(ctx context.Context) (versions map[string]string, longest time.Duration, err error) {
	s, err := u.read(ctx)
	if err != nil {
		return nil, 0, err
	}
	versions = make(map[string]string)
	namespaces := make(map[string]bool)
	for _, l := range s.Leases {
		n, ok := lease.ParseNodeLease(l)
		if ok {
			namespaces[l.Namespace] = true
		}
		if h := l.Spec.HolderIdentity; !ok || n.Fenced || h == nil || *h == "" || l.Namespace != u.namespace {
			continue
		}
		versions[n.Name] = l.ResourceVersion
		longest = max(longest, n.Duration)
	}
	if others := slices.Sorted(maps.Keys(namespaces)); !u.named && len(others) > 0 && !namespaces[u.namespace] {
		return nil, 0, fmt.Errorf("nothing was removed, since it is not known where Herald ran: %[1]s has no node "+
			"leases, others have some (%[2]s), which their users may have written. If it ran in %[1]s: --namespace %[1]s. "+
			"If it ran in another: --namespace NAMESPACE", u.namespace, abbreviate(others))
	}
	return versions, longest, nil
}

func uninstallNodeCommand() *cobra.Command {
	table := routes.Options{Log: slog.New(slog.DiscardHandler), Link: func() string { return "" }}
	c := &cobra.Command{
		Use: "node", Short: "Remove what Herald has left on this node, once it runs there no more", Args: cobra.NoArgs,
		Long: "Remove from the node's network namespace what a Herald that was killed, or ended before others, has left: " +
			"VIPs,\n" +
			"nftables tables, links for VIPs leased by DHCP, and rules and routes of routing tables. It runs on the node " +
			"itself, with\n" +
			"CAP_NET_ADMIN, and does nothing while a Herald runs there.",
	}
	c.Flags().IntVar(&table.ID, "routing-table", 198, "The table of Herald's routes (vip_routingtableid)")
	c.Flags().IntVar(&table.Protocol, "routing-protocol", 248, "Protocol number of Herald's routes (vip_routingprotocol)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		// below are the kernel's and ip(8)'s: all their routes would go
		if table.Protocol < 5 || table.Protocol > math.MaxUint8 {
			return config.NewError(fmt.Errorf("--routing-protocol=%d must be a whole number from 5 to %d, as "+
				"vip_routingprotocol", table.Protocol, math.MaxUint8))
		}
		lock, mine := tryHostLock(hostSocket, table.Log)
		if !mine {
			return errors.New("a Herald runs on this node: end it first (kubectl delete the DaemonSet, or take the static " +
				"Pod's file away); it removes its VIPs by itself when it ends")
		}
		if lock != nil {
			defer lock.Close()
		}
		if err := raiseCapabilities(); err != nil {
			return err
		}
		if err := uninstallNode(c.Context(), c.OutOrStdout(), table); err != nil {
			return err
		}
		_, err := fmt.Fprintln(c.OutOrStdout(), "what Herald had left on this node was removed")
		return err
	}
	return c
}

// uninstallNode removes what Herald has in this network namespace, like a process that stops; table has its routes.
func uninstallNode(ctx context.Context, w io.Writer, table routes.Options) error {
	links, err := netif.New(netif.Options{
		Log: table.Log, Poke: func() {}, OnLinkChange: func() {},
		Tenure: func() vip.Tenure { return vip.Tenure{} }, AllowNotUp: true,
	})
	if err != nil {
		return err
	}
	_, err = links.Set(ctx, nil)
	errs := []error{err}
	for last := -1; ; { // a few at a time
		left, err := links.Macvlans().Set(ctx, nil)
		if len(left) == 0 || len(left) == last {
			errs = append(errs, err)
			break
		}
		last = len(left)
	}
	_, err = routes.NewTable(table).Set(ctx, nil)
	_, err2 := routes.NewEgress(vip.EgressMark).Set(ctx, nil)
	if err := nft.Check(); err != nil {
		fmt.Fprintln(w, "nftables has no tables of Herald's, or the permission is missing:", err)
	}
	t := nft.New(table.Log) // no Set of these returns an error
	_, _ = t.FormerOwners.Set(ctx, nil)
	_, _ = t.Translations.Set(ctx, nil)
	_, _ = t.OpenPorts.Set(ctx, nil)
	_, _ = t.Invalid.Set(ctx, nil)
	_, _ = t.Balanced.Set(ctx, nil)
	_, _ = t.Egress.Set(ctx, nil)
	return errors.Join(append(errs, err, err2)...)
}
