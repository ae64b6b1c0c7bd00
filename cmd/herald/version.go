package main

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

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

// buildInfo is the metric that says which version runs.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "herald_build_info", Help: "1, with the version of this " +
		"Herald."}, []string{"version"})
	g.WithLabelValues(currentVersion()).Set(1)
	return g
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
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
