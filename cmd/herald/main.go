// Command herald gives Services of type LoadBalancer their virtual IPs on bare metal.
package main

import (
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
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
		Use: "herald", Short: "Virtual IPs for Services of type LoadBalancer on bare metal",
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
	if filepath.Base(os.Args[0]) == "kubectl-herald" { // a plugin of kubectl
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

func newLog(w io.Writer, c config.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Level}
	if c.Format != config.JSON {
		return slog.New(slog.NewTextHandler(w, o))
	}
	o.ReplaceAttr = forJSON
	return slog.New(slog.NewJSONHandler(w, o))
}

// warnOfOptions logs warnings at any level: the level may be the wrong option.
func warnOfOptions(w io.Writer, c config.Log, warnings []string) {
	log := newLog(w, config.Log{Format: c.Format})
	for _, text := range warnings {
		log.Warn(text)
	}
}

// forJSON writes durations as seconds, for encoding/json has nanoseconds, and what has only a text as that.
func forJSON(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error, json.Marshaler, encoding.TextMarshaler:
		case fmt.Stringer:
			a.Value = slog.StringValue(v.String())
		}
	}
	return a
}

// version is the release, set by the linker: -ldflags "-X main.version=v1.2.3".
var version string

// currentVersion returns the release, or the module's version, or "devel".
func currentVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func buildInfo() prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "herald_build_info", Help: "1, with the version of this " +
		"Herald."}, []string{"version"})
	g.WithLabelValues(currentVersion()).Set(1)
	return g
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			info, _ := debug.ReadBuildInfo() // nil if the binary has none
			_, err := fmt.Fprintln(c.OutOrStdout(), describe(currentVersion(), info))
			return err
		},
	}
}

// describe returns a version and its build, on one line.
func describe(version string, info *debug.BuildInfo) string {
	if info == nil {
		return "herald " + version
	}
	about := map[string]string{}
	for _, s := range info.Settings {
		about[s.Key] = s.Value
	}
	var parts []string
	if revision := about["vcs.revision"]; revision != "" {
		commit := "commit " + revision
		if about["vcs.modified"] == "true" {
			commit += " and changes"
		}
		parts = append(parts, commit)
	}
	if at := about["vcs.time"]; at != "" {
		parts = append(parts, "of "+at)
	}
	parts = append(parts, info.GoVersion, about["GOOS"]+"/"+about["GOARCH"])
	return fmt.Sprintf("herald %s (%s)", version, strings.Join(parts, ", "))
}
