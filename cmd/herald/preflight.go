package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/manifest"
	"github.com/heraldvip/herald/pkg/netif"
	"github.com/heraldvip/herald/pkg/preflight"
)

// errUnfit is why herald preflight ends with status 1.
var errUnfit = errors.New("this node is not fit for Herald as its options are")

// preflightCommand is "herald preflight": what a node lacks, before it carries VIPs.
func preflightCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "preflight",
		Short: "Tell what is missing on this node",
		Long: "Tell whether Herald can work on this node with the given options, which are those of the manager: the\n" +
			"rights of the process, the link of VIPs, settings of the kernel, ports, the other nodes' ports, the\n" +
			"API server and what it permits. It changes nothing. The exit status is 1 if something is missing.",
		Args: cobra.NoArgs, SilenceUsage: true,
	}
	config.AddFlags(c.Flags())
	wait := c.Flags().Duration("wait", 0, "Look again until nothing is missing, for so long; for an init container")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, warnings, err := config.Parse(config.ProcessSources(c.Flags()))
		if err != nil {
			return err
		}
		for _, w := range warnings {
			c.PrintErrln("warning: " + w)
		}
		deadline := time.Now().Add(*wait)
		for {
			fit := report(c.OutOrStdout(), look(c.Context(), cfg))
			if fit {
				return nil
			}
			if time.Now().After(deadline) {
				return errUnfit
			}
			select {
			case <-c.Context().Done():
				return errUnfit
			case <-time.After(2 * time.Second):
			}
			fmt.Fprintln(c.OutOrStdout())
		}
	}
	return c
}

// oneLine makes one line of an error that has several.
var oneLine = strings.NewReplacer(":\n", ": ", "\n", "; ")

// report writes the findings, and reports whether none is a fault.
func report(w io.Writer, all []preflight.Result) (fit bool) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fit = true
	for _, f := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Severity, f.Subject, oneLine.Replace(f.Message))
		fit = fit && f.Severity != preflight.Error
	}
	t.Flush()
	return fit
}

// look looks at everything once.
func look(ctx context.Context, cfg config.Config) []preflight.Result {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	files := os.DirFS("/")
	all := []preflight.Result{preflight.Capabilities(files)}
	links, found := lookAtLinks(cfg)
	all = append(all, found)
	if links != nil {
		link := links.Info().DefaultInterface
		all = append(all, preflight.StrictARP(files, link), preflight.ReversePath(files, link))
	}
	all = append(all, lookAtPorts(cfg)...)
	return append(all, lookAtAPI(ctx, cfg)...)
}

// lookAtLinks finds the link of VIPs, as the manager would.
func lookAtLinks(cfg config.Config) (*netif.Interfaces, preflight.Result) {
	n, err := netif.New(netif.Options{
		Log: slog.New(slog.DiscardHandler), Interface: cfg.Link.Interface, ServicesInterface: cfg.Link.Services, AllowNotUp: cfg.Link.AllowDown,
	})
	if err != nil {
		return nil, preflight.Result{Subject: "link of VIPs", Severity: preflight.Error, Message: err.Error()}
	}
	i := n.Info()
	return n, preflight.Result{Subject: "link of VIPs", Severity: preflight.OK, Message: i.Interface + " (vip_interface, vip_servicesinterface)"}
}

// lookAtPorts looks whether the ports that Herald listens on are free. Another Herald
// on this node is the usual reason why they aren't.
func lookAtPorts(cfg config.Config) []preflight.Result {
	type listener struct {
		what, address string
		grade         preflight.Severity // if it is taken
	}
	var want []listener
	if cfg.Serve.Metrics != "" {
		want = append(want, listener{"prometheus_server", cfg.Serve.Metrics, preflight.Warning})
	}
	if cfg.Serve.HealthPort != 0 {
		want = append(want, listener{"health_check_port", ":" + strconv.Itoa(int(cfg.Serve.HealthPort)), preflight.Warning})
	}
	if cfg.Peers.Port != 0 {
		want = append(want, listener{"herald_peers_port", ":" + strconv.Itoa(int(cfg.Peers.Port)), preflight.Warning})
	}
	var all []preflight.Result
	for _, l := range want {
		f := preflight.Result{Subject: l.what, Severity: preflight.OK, Message: l.address + " is free"}
		if c, err := net.Listen("tcp", l.address); err != nil {
			f.Severity, f.Message = l.grade, fmt.Sprintf("%s can't be listened on: %v; if that is another Herald on this node, end it first", l.address, err)
		} else {
			c.Close()
		}
		all = append(all, f)
	}
	return all
}

// lookAtAPI asks the API server, and the other nodes that it knows.
func lookAtAPI(ctx context.Context, cfg config.Config) []preflight.Result {
	fault := func(err error) []preflight.Result {
		return []preflight.Result{{Subject: "API server", Severity: preflight.Error, Message: err.Error()}}
	}
	a := kube.Access{File: cfg.Kube.ConfigFile, Server: cfg.Kube.Server, Version: currentVersion()}
	if cfg.ControlPlane.Enable {
		a.Servers = kube.NewServers(cfg.ControlPlane.Port, func() []netip.Addr { return nil })
	}
	access, where, err := kube.Connect(a)
	if err != nil {
		return fault(err)
	}
	var want []kube.Permission
	for _, p := range manifest.Permissions(cfg) {
		want = append(want, kube.Permission(p))
	}
	i, err := kube.Inspect(ctx, access, want)
	if err != nil {
		return fault(err)
	}
	all := []preflight.Result{{Subject: "API server", Severity: preflight.OK, Message: i.Version + ", by " + where}, modes(i)}
	if len(i.Missing) > 0 {
		var list []string
		for _, p := range i.Missing {
			list = append(list, p.String())
		}
		return append(all, preflight.Result{Subject: "permissions", Severity: preflight.Error, Message: "not permitted: " + strings.Join(list, ", ") + "; herald manifest rbac prints what is needed"})
	}
	all = append(all, preflight.Result{Subject: "permissions", Severity: preflight.OK, Message: fmt.Sprintf("all %d", len(want))})
	s, err := kube.TakeSnapshot(ctx, access, cfg.Node.Namespace)
	return append(all, lookAtPeers(ctx, cfg, s, err)...)
}

// oldest is the first minor version with ipMode in a Service's status (KEP-1860, alpha).
const oldest = 29

func modes(i kube.Inspection) preflight.Result {
	f := preflight.Result{Subject: "ipMode", Severity: preflight.OK, Message: "the API server knows it"}
	switch {
	case i.Minor == 0:
		f.Severity, f.Message = preflight.Warning, "can't be told from version "+i.Version
	case i.Minor < oldest:
		f.Severity, f.Message = preflight.Warning, "the API server is older than 1.29 and drops it: kube-proxy takes every VIP as its own"
	}
	return f
}

// lookAtPeers knocks at the port by which the other nodes watch each other. err is what
// could not be read of s, which may be what is of no matter here.
func lookAtPeers(ctx context.Context, cfg config.Config, s kube.Snapshot, err error) []preflight.Result {
	if cfg.Peers.Port == 0 {
		return nil
	}
	const subject = "other nodes"
	if err != nil && len(s.Leases) == 0 {
		return []preflight.Result{{Subject: subject, Severity: preflight.Warning, Message: "can't be told: " + err.Error()}}
	}
	var deaf []string
	reached := 0
	for _, l := range s.Leases {
		n, ok := lease.ParseNodeLease(l)
		if !ok || n.Name == cfg.Node.Name || n.Fenced || time.Since(n.RenewedAt) > n.Duration {
			continue
		}
		if knock(ctx, n, cfg.Peers.Port) {
			reached++
		} else {
			deaf = append(deaf, n.Name)
		}
	}
	if len(deaf) > 0 {
		return []preflight.Result{{Subject: subject, Severity: preflight.Warning, Message: fmt.Sprintf("port %d (TCP) of %s can't be reached: is it blocked? "+
			"Without it the death of a node is noticed only when its lease has run out", cfg.Peers.Port, strings.Join(deaf, ", "))}}
	}
	return []preflight.Result{{Subject: subject, Severity: preflight.OK, Message: fmt.Sprintf("%d reached at port %d", reached, cfg.Peers.Port)}}
}

// knock reports whether any address of a node takes a connection.
func knock(ctx context.Context, n lease.NodeLease, port uint16) bool {
	d := net.Dialer{Timeout: time.Second}
	for _, a := range n.Info.OwnAddresses() {
		if c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String()); err == nil {
			c.Close()
			return true
		}
	}
	return false
}
