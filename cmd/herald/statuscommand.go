package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
)

// snapshotTimeout is how long reading all objects may take.
const snapshotTimeout = 30 * time.Second

// errSomethingWrong is what status returns with --exit-status.
var errSomethingWrong = errors.New("something is wrong, see above")

type statusOptions struct {
	format     string // "", wide, json or yaml
	exitStatus bool
	color      bool
}

// statusCommand is "herald status": which node announces which VIP, and what is wrong.
func statusCommand() *cobra.Command {
	o := statusOptions{}
	c := &cobra.Command{
		Use:   "status [SERVICE]",
		Short: "Show which node announces which VIP, and what is wrong",
		Long: "Show every Service of type LoadBalancer with its VIPs, the node that owns them, since when, the\n" +
			"ipMode in its status (MODE), and what is wrong; or one, named as [NAMESPACE/]NAME. It reads Services,\n" +
			"Leases, Events and Nodes, and works from any machine with a kubeconfig. What the user may not read is\n" +
			"left out, and named.",
		Args: cobra.MaximumNArgs(1),
	}
	flags := addAccessFlags(c, "wide", "json", "yaml")
	c.Flags().BoolVar(&o.exitStatus, "exit-status", false, "End with status 3 if something is wrong")
	c.RunE = func(c *cobra.Command, args []string) error {
		of, err := flags.service(args)
		if err != nil {
			return err
		}
		cfg, err := flags.connect()
		if err != nil {
			return err
		}
		report, err := takeStatus(c.Context(), cfg, of)
		if err != nil {
			return err
		}
		o.format, o.color = flags.format, isTerminal(c.OutOrStdout())
		return o.write(c.OutOrStdout(), report)
	}
	return c
}

// takeStatus reads the status of a Service, or of all in a namespace, or of all.
func takeStatus(ctx context.Context, cfg *rest.Config, of vip.Key) (r statusReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	s, err := kube.TakeAllowedSnapshot(ctx, cfg, of.Namespace)
	if err == nil && of.Name != "" {
		err = checkExists(s.Services, of)
	}
	if err != nil {
		return r, err
	}
	return newStatusReport(s, of, s.At), nil
}

// checkExists returns an error, with equal names elsewhere, if k is missing.
func checkExists(all []vip.Service, k vip.Key) error {
	var others []string
	for i := range all {
		switch {
		case all[i].Key == k:
			return nil
		case all[i].Key.Name == k.Name:
			others = append(others, all[i].Key.String())
		}
	}
	if others == nil {
		return fmt.Errorf("there is no Service of type LoadBalancer %s", k)
	}
	return fmt.Errorf("there is no Service of type LoadBalancer %s, but %s", k, abbreviate(others))
}

// isOf reports whether k is the Service of, or, without a name, in that namespace, "" for all.
func isOf(k, of vip.Key) bool {
	return (of.Namespace == "" || k.Namespace == of.Namespace) && (of.Name == "" || k.Name == of.Name)
}

// write writes the report; with exitStatus it is an error if something is wrong.
func (o statusOptions) write(w io.Writer, r statusReport) (err error) {
	if o.format == "json" || o.format == "yaml" {
		err = encode(w, o.format, r)
	} else {
		r.color = o.color
		err = r.writeTables(w, o.format == "wide")
	}
	if err == nil && o.exitStatus && r.wrong() {
		err = errSomethingWrong
	}
	return err
}
