// Command herald gives Services of type LoadBalancer their virtual IPs on bare metal.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "herald:", err)
		os.Exit(status(err))
	}
}

// root makes the command line.
func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "herald",
		Short: "Virtual IPs for Services of type LoadBalancer on bare metal",
		Long: "Herald runs on every node and gives Services of type LoadBalancer, and the API servers, their\n" +
			"virtual IPs (VIPs). The nodes agree on the one that carries a VIP, which announces it by ARP and\n" +
			"NDP; VIPs are announced to routers by BGP. Addresses may come from DHCP, and ports be opened on home\n" +
			"routers by UPnP.",
		SilenceErrors: true, // main prints them
		SilenceUsage:  true,
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return config.FlagError(c.Flags(), err) })
	c.AddCommand(managerCommand(), manifestCommand(), preflightCommand(), statusCommand(), poolsCommand(), drainCommand(), undrainCommand(), peersCommand(), versionCommand())
	return c
}

// status returns the exit status for an error: 2 if options are wrong, else 1.
func status(err error) int {
	var wrong *config.Error
	if errors.As(err, &wrong) {
		return 2
	}
	return 1
}
