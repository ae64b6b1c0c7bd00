// Command herald gives Services of type LoadBalancer their virtual IPs on bare metal.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
)

// ends returns the signals to hand over and end at: SIGHUP, too, unless ignored (nohup).
func ends() []os.Signal {
	all := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	if signal.Ignored(syscall.SIGHUP) {
		return all[:2]
	}
	return all
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), ends()...)
	defer cancel()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "herald:", err)
		os.Exit(status(err))
	}
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "herald",
		Short: "Virtual IPs for Services of type LoadBalancer on bare metal",
		Long: "Herald runs on every node and gives Services of type LoadBalancer, and the API servers, their\n" +
			"virtual IPs (VIPs). The nodes agree on the one that carries a VIP, which announces it by ARP and\n" +
			"NDP; VIPs are announced to routers by BGP, or put into a routing table that another daemon exports.\n" +
			"Addresses come from Services, from pools or from DHCP; ports may be opened on home routers by UPnP.",
		SilenceErrors: true, // main prints them
		SilenceUsage:  true,
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return config.FlagError(c.Flags(), err) })
	c.AddCommand(managerCommand(), manifestCommand(), preflightCommand(), statusCommand(), explainCommand(),
		historyCommand(), poolsCommand(), drainCommand(), undrainCommand(), importCommand(), uninstallCommand(),
		versionCommand())
	if len(os.Args) > 0 && filepath.Base(os.Args[0]) == "kubectl-herald" { // a plugin of kubectl
		c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl herald"}
	}
	c.Version = currentVersion()
	c.SetVersionTemplate("herald {{.Version}}\n")
	checkArguments(c)
	return c
}

// checkArguments has wrong arguments, and mistyped commands, end with the status of wrong options.
func checkArguments(c *cobra.Command) {
	if !c.Runnable() {
		c.Args, c.RunE = noSuchCommand, func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return config.NewError(err)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		checkArguments(sub)
	}
}

// noSuchCommand refuses arguments of a mere group of commands, and names similar ones.
func noSuchCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], c.CommandPath())
	c.SuggestionsMinimumDistance = 2 // letters that differ
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}

// status returns the exit status: 2 for wrong options or arguments, 3 for faults (herald status --exit-status), else 1.
func status(err error) int {
	var wrong *config.Error
	switch {
	case errors.As(err, &wrong):
		return 2
	case errors.Is(err, errSomethingWrong):
		return 3
	}
	return 1
}
