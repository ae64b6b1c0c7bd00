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
	access     *accessFlags
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
	o.access = addAccessFlags(c)
	c.Flags().StringVarP(&o.format, "output", "o", "", "Format: wide, json or yaml")
	c.Flags().BoolVar(&o.exitStatus, "exit-status", false, "End with status 3 if something is wrong")
	c.ValidArgsFunction = completeServices(o.access)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := checkFormat(o.format, "wide", "json", "yaml"); err != nil {
			return err
		}
		namespace, name, err := o.access.service(c, args)
		if err != nil {
			return err
		}
		cfg, err := o.access.connect()
		if err != nil {
			return err
		}
		o.color = isTerminal(c.OutOrStdout())
		return o.run(c.Context(), c.OutOrStdout(),
			func(ctx context.Context) (statusReport, error) { return takeStatus(ctx, cfg, namespace, name) })
	}
	return c
}

// takeStatus reads the status of a namespace, "" for all; or of a named Service.
func takeStatus(ctx context.Context, cfg *rest.Config, namespace, name string) (statusReport, error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	s, err := kube.TakeAllowedSnapshot(ctx, cfg, namespace)
	if err != nil {
		return statusReport{}, err
	}
	if name != "" {
		k := vip.Key{Namespace: namespace, Name: name}
		if err := checkExists(s.Services, k); err != nil {
			return statusReport{}, err
		}
		return newStatusReport(s, func(x vip.Key) bool { return x == k }, s.At), nil
	}
	return newStatusReport(s, inNamespace(namespace), s.At), nil
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

// inNamespace returns whether a Service is of a namespace, "" for all.
func inNamespace(namespace string) func(vip.Key) bool {
	return func(k vip.Key) bool { return namespace == "" || k.Namespace == namespace }
}

func (o *statusOptions) run(ctx context.Context, w io.Writer, take func(context.Context) (statusReport, error)) error {
	report, err := take(ctx)
	if err != nil {
		return err
	}
	text, err := o.render(report)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	if o.exitStatus && report.wrong() {
		return errSomethingWrong
	}
	return nil
}
