package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/netif"
	"github.com/heraldvip/herald/pkg/nft"
	"github.com/heraldvip/herald/pkg/routes"
	"github.com/heraldvip/herald/pkg/vip"
)

// uninstallNodeCommand is "herald uninstall node": it removes what Herald left on this node.
func uninstallNodeCommand() *cobra.Command {
	table := routes.Options{Log: slog.New(slog.DiscardHandler), Link: func() string { return "" }}
	c := &cobra.Command{
		Use:   "node",
		Short: "Remove what Herald has left on this node, once it runs there no more",
		Long: "Remove from the node's network namespace what a Herald that was killed, or ended before others, has left: " +
			"VIPs,\n" +
			"nftables tables, links for VIPs leased by DHCP, and rules and routes of routing tables. It runs on the node " +
			"itself, with\n" +
			"CAP_NET_ADMIN, and does nothing while a Herald runs there.",
		Args: cobra.NoArgs,
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
	_, err2 := routes.NewEgress(nft.EgressMark).Set(ctx, nil)
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
