package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/netif"
	"github.com/heraldvip/herald/pkg/nft"
	"github.com/heraldvip/herald/pkg/routes"
	"github.com/heraldvip/herald/pkg/vip"
)

// uninstallNodeCommand is "herald uninstall node": it removes what Herald has left on this node.
func uninstallNodeCommand() *cobra.Command {
	var dryRun bool
	var protocol int
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
	c.Flags().BoolVar(&dryRun, "dry-run", false, "Only list what would be removed")
	c.Flags().IntVar(&protocol, "routing-protocol", 248, "Protocol number of Herald's routes (vip_routingprotocol)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		// those below are the kernel's and ip(8)'s: all their routes would be removed
		if protocol < 5 || protocol > math.MaxUint8 {
			return config.NewError(fmt.Errorf("--routing-protocol=%d must be a whole number from 5 to %d, as "+
				"vip_routingprotocol", protocol, math.MaxUint8))
		}
		lock, mine := tryHostLock(hostSocket, slog.New(slog.DiscardHandler))
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
		return uninstallNode(c.Context(), c.OutOrStdout(), dryRun, protocol)
	}
	return c
}

// uninstallNode lists what Herald has left in this network namespace and, unless dryRun, removes it.
func uninstallNode(ctx context.Context, w io.Writer, dryRun bool, protocol int) error {
	links, err := netif.New(netif.Options{
		Log: slog.New(slog.DiscardHandler), Poke: func() {}, OnLinkChange: func() {},
		Tenure: func() vip.Tenure { return vip.Tenure{} }, AllowNotUp: true,
	})
	if err != nil {
		return err
	}
	found := links.Traces()
	inTables, err := routes.Traces(protocol)
	if err != nil {
		return err
	}
	tables, err := nft.Traces()
	found = slices.Concat(found, inTables, tables)
	for _, x := range found {
		fmt.Fprintln(w, x)
	}
	if err != nil {
		fmt.Fprintln(w, "nftables can't be asked, so it has no tables of Herald's, or the permission is missing:", err)
	}
	if dryRun {
		fmt.Fprintf(w, "%d to be removed\n", len(found))
		return nil
	}
	err = errors.Join(links.RemoveTraces(ctx), routes.RemoveTraces(protocol))
	if len(tables) > 0 {
		err = errors.Join(err, nft.RemoveTraces())
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%d removed\n", len(found))
	return nil
}
