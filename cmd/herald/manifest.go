package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/manifest"
)

func manifestCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "manifest", Short: "Print the YAML that installs Herald", Args: cobra.NoArgs,
		Long: "Print the YAML that installs Herald. The options are Herald's own (herald manager --help), by\n" +
			"flag, file or environment; what differs from the default goes into the environment of the container.",
		RunE: func(*cobra.Command, []string) error { // its output goes to kubectl: no help there
			return config.NewError(errors.New(`name what to print: "herald manifest daemonset", "pod", "rbac" or "admission"`))
		},
	}
	daemonSet := manifestOf("daemonset", "Print a DaemonSet: Herald on every node", manifest.DaemonSet)
	daemonSet.Flags().Bool("taint", false, "Run on control-plane nodes only")
	daemonSet.Flags().Bool("workers", false, "Run on nodes that are no control planes, beside static Pods on these")
	daemonSet.MarkFlagsMutuallyExclusive("taint", "workers")
	rbac := manifestOf("rbac", "Print the ServiceAccount and the least it must be allowed", manifest.RBAC)
	for _, name := range []string{"role", "rolebinding"} { // kube-vip's; svc_namespace says it
		rbac.Flags().Bool(name, false, "")
		_ = rbac.Flags().MarkHidden(name) // it is there
	}
	c.AddCommand(daemonSet, rbac, manifestOf("pod", "Print a static Pod: Herald on one node", manifest.Pod),
		manifestOf("admission", "Print policies that limit what Services and Leases of tenants may ask for",
			manifest.Admission))
	return c
}

func manifestOf(kind, short string, write func(manifest.Request) ([]byte, error)) *cobra.Command {
	c := &cobra.Command{Use: kind, Short: short, Args: cobra.NoArgs}
	flags := c.Flags()
	config.AddFlags(flags)
	image := flags.String("image", manifest.Image(currentVersion()), "Image of the container")
	inCluster := flags.Bool("inCluster", false, "Authenticate with the ServiceAccount. A DaemonSet always does; a "+
		"static Pod can't")
	c.RunE = func(c *cobra.Command, _ []string) error {
		// Neither this host's name nor this pod's namespace is the manifest's.
		src := config.Sources{Flags: flags, Env: os.Environ(), ReadFile: os.ReadFile, Hostname: "localhost", Elsewhere: true}
		parsed, warnings, err := config.Parse(src)
		if err != nil {
			return err
		}
		given, err := config.Given(src)
		if err != nil {
			return err
		}
		if kind != "rbac" && kind != "admission" { // which are the same whatever is announced
			for _, w := range warnings {
				c.PrintErrln("warning: " + w)
			}
		}
		r := manifest.Request{Config: parsed, Given: given, Image: *image, InCluster: *inCluster}
		r.Taint, _ = flags.GetBool("taint") // the DaemonSet alone has these
		r.Workers, _ = flags.GetBool("workers")
		text, err := write(r)
		if err != nil {
			return fmt.Errorf("can't make the manifest: %w", err)
		}
		_, err = c.OutOrStdout().Write(text)
		return err
	}
	return c
}
