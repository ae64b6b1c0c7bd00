package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/manifest"
	"github.com/heraldvip/herald/pkg/netif"
	"github.com/heraldvip/herald/pkg/nft"
	"github.com/heraldvip/herald/pkg/vip"
)

// errUnfit makes herald preflight end with status 1.
var errUnfit = errors.New("this node is not fit for Herald with these options; the lines above that begin with " +
	"error say why")

func preflightCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "preflight", Short: "Check what is missing on this node", Args: cobra.NoArgs,
		Long: "Check whether Herald can work on this node with the given options (herald manager --help): the\n" +
			"rights of the process, the link of VIPs, settings of the kernel, ports, the other nodes' ports, the\n" +
			"API server and what it permits. It changes nothing. The exit status is 1 if something is missing.",
	}
	config.AddFlags(c.Flags())
	wait := c.Flags().Duration("wait", 0, "Check again until nothing is missing, for so long; for an init container")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, warnings, err := config.Parse(config.ProcessSources(c.Flags()))
		if err != nil {
			return err
		}
		for _, w := range warnings {
			c.PrintErrln("warning: " + w)
		}
		if err := raiseCapabilities(); err != nil {
			return err
		}
		deadline := time.Now().Add(*wait)
		for !writeResults(c.OutOrStdout(), checkNode(c.Context(), cfg)) {
			if time.Now().After(deadline) || !mailbox.Sleep(c.Context(), 2*time.Second) {
				return errUnfit
			}
			fmt.Fprintln(c.OutOrStdout())
		}
		return nil
	}
	return c
}

// oneLine makes one line of an error that has several.
var oneLine = strings.NewReplacer(":\n", ": ", "\n", "; ")

// writeResults writes a table, and reports whether none is an error.
func writeResults(w io.Writer, all []checkResult) (fit bool) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fit = true
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\n", r.Severity, r.Subject, oneLine.Replace(r.Message))
		fit = fit && r.Severity != unfit
	}
	t.Flush()
	return fit
}

// checkNode makes all checks once, in at most 30 seconds.
func checkNode(ctx context.Context, cfg config.Config) []checkResult {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	files := os.DirFS("/")
	all := []checkResult{checkCapabilities(files)}
	info, result := checkLink(cfg)
	all = append(all, result)
	if result.Severity == fine {
		all = append(all, checkLinkSettings(cfg, files, info.DefaultInterface)...)
	}
	all = append(all, checkPorts(cfg)...)
	all = append(all, checkNftables(cfg, nft.Check())...)
	if found, err := nft.HostPorts(); err == nil && found != "" { // an error is what the check before says
		all = append(all, checkResult{Subject: "hostPorts", Severity: doubtful, Message: found})
	}
	return append(all, checkAPIServer(ctx, cfg, info)...)
}

// checkLink looks for the link of VIPs like the manager, and returns what that knows of links.
func checkLink(cfg config.Config) (info vip.NodeInfo, r checkResult) {
	r.Subject = "link of VIPs"
	n, err := netif.New(netif.Options{Log: slog.New(slog.DiscardHandler), Interface: cfg.Link.Interface,
		ServicesInterface: cfg.Link.Services, AllowNotUp: cfg.Link.AllowDown})
	if err == nil && !cfg.Link.AllowDown {
		_, err = n.WhyNotUp() // for which the manager waits
	}
	if err != nil {
		r.Severity, r.Message = unfit, err.Error()
		return info, r
	}
	info = n.Info()
	r.Severity, r.Message = fine, info.Interface+" (vip_interface, vip_servicesinterface)"
	return info, r
}

// checkLinkSettings checks the kernel's settings of the link; files is the root. Only ARP needs strict ARP.
func checkLinkSettings(cfg config.Config, files fs.FS, link string) (all []checkResult) {
	if cfg.ARP.Enable {
		all = append(all, checkStrictARP(files, link), checkARPAnswers(files, link))
	}
	return append(all, checkReversePath(files, link))
}

// checkNftables says whether the kernel takes Herald's tables, if any are needed.
func checkNftables(cfg config.Config, why error) []checkResult {
	r := checkResult{Subject: "nftables", Severity: fine, Message: "the kernel takes Herald's tables"}
	switch {
	case !cfg.Services.Enable && !cfg.ControlPlane.Enable:
		return nil
	case why != nil && cfg.Services.LimitPorts:
		r.Severity, r.Message = unfit, fmt.Sprintf("%v: with enable_service_security this node carries no VIP whose "+
			"ports it can't limit", why)
	case why != nil:
		r.Severity, r.Message = doubtful, fmt.Sprintf("%v: this node does without; a move of a VIP may reset its "+
			"connections, for one", why)
	}
	return []checkResult{r}
}

// checkPorts checks whether Herald's ports are free; usually another Herald has them.
func checkPorts(cfg config.Config) (all []checkResult) {
	check := func(option, address string) {
		r := checkResult{Subject: option, Severity: fine, Message: address + " is free"}
		if l, err := net.Listen("tcp", address); err != nil {
			r.Severity, r.Message = doubtful, fmt.Sprintf("%s can't be listened on: %v; if another Herald or kube-vip on this "+
				"node has it, end that first", address, err)
		} else {
			l.Close()
		}
		all = append(all, r)
	}
	if cfg.Serve.Metrics != "" {
		check("prometheus_server", cfg.Serve.Metrics)
	}
	if cfg.Serve.HealthPort != 0 {
		check("health_check_port", fmt.Sprintf(":%d", cfg.Serve.HealthPort))
	}
	if cfg.Peers.Port != 0 {
		check("herald_peers_port", fmt.Sprintf(":%d", cfg.Peers.Port))
	}
	return all
}

// checkAPIServer checks whether the API server and the nodes it knows can be reached, and its version and permissions.
func checkAPIServer(ctx context.Context, cfg config.Config, info vip.NodeInfo) []checkResult {
	failed := func(err error) []checkResult {
		return []checkResult{{Subject: "API server", Severity: unfit, Message: err.Error()}}
	}
	a := kube.Access{File: cfg.Kube.ConfigFile, Server: cfg.Kube.Server, Version: currentVersion()}
	if cfg.ControlPlane.Enable {
		a.Servers = kube.NewServers(cfg.ControlPlane.Port, func() []netip.Addr { return info.OwnAddresses() })
	}
	access, where, err := kube.Connect(a)
	if err != nil {
		return failed(err)
	}
	needed, useful := manifest.Permissions(cfg)
	i, err := kube.Inspect(ctx, access, needed)
	if err != nil {
		return failed(err)
	}
	without, err := kube.Inspect(ctx, access, useful)
	if err != nil {
		return failed(err)
	}
	all := []checkResult{{Subject: "API server", Severity: fine, Message: i.Version + ", by " + where.Text},
		checkIPMode(i)}
	if a.Servers != nil {
		all = append(all, checkOwnAPIServer(ctx, cfg.ControlPlane, a.Servers))
	}
	r := checkPermissions(cfg, len(needed)+len(useful), i.Missing, without.Missing)
	if all = append(all, r); r.Severity == unfit || cfg.Peers.Port == 0 {
		return all
	}
	s, err := kube.TakeSnapshot(ctx, access, cfg.Node.Namespace)
	inNamespace := func(l *coordinationv1.Lease) bool { return l.Namespace == cfg.Node.Namespace }
	if err != nil && !slices.ContainsFunc(s.Leases, inNamespace) {
		return append(all, checkResult{Subject: otherNodes, Severity: doubtful, Message: "can't be checked: " + err.Error()})
	}
	return append(all, checkPeers(ctx, cfg, s)) // an error about anything but leases does not matter here
}

// checkOwnAPIServer asks once whether the node's own API server is ready.
func checkOwnAPIServer(ctx context.Context, c config.ControlPlane, servers *kube.Servers) checkResult {
	ctx, cancel := context.WithTimeout(ctx, c.CheckTimeout)
	defer cancel()
	ask, err := servers.ReadinessCheck(c.CheckURL, c.CheckCA, slog.New(slog.DiscardHandler))
	if err == nil {
		err = ask(ctx)
	}
	if err != nil {
		return checkResult{"own API server", doubtful, fmt.Sprintf("%v: without one that is ready at port (%d), or at "+
			"control_plane_health_check_address, this node takes no VIP of the control plane", err, c.Port)}
	}
	return checkResult{"own API server", fine, "ready"}
}

// checkPermissions says what follows from n rights: missing, and dispensable ones.
func checkPermissions(cfg config.Config, n int, missing, without []string) checkResult {
	r := checkResult{Subject: "permissions", Severity: fine, Message: fmt.Sprintf("all %d", n)}
	command := "herald manifest rbac"
	if cfg.OnlyControlPlane() {
		command += " --controlplane, with the options that go with it,"
	}
	switch {
	case len(missing) > 0:
		r.Severity, r.Message = unfit, "not permitted: "+strings.Join(missing, ", ")+"; "+command+" prints what is needed"
	case len(without) > 0:
		r.Severity, r.Message = doubtful, "the VIP of the control plane needs no more, but what is of use is not "+
			"permitted: "+strings.Join(without, ", ")+"; "+command+" prints all of it"
	}
	return r
}

// firstWithIPMode is the first minor version with ipMode in statuses (KEP-1860, alpha).
const firstWithIPMode = 29

func checkIPMode(i kube.Inspection) checkResult {
	r := checkResult{Subject: "ipMode", Severity: fine, Message: "the API server knows it"}
	switch {
	case i.Minor == 0:
		r.Severity, r.Message = doubtful, "can't be known from version "+i.Version
	case i.Minor < firstWithIPMode:
		r.Severity, r.Message = doubtful, "the API server is older than 1.29 and drops it: kube-proxy takes every VIP as "+
			"its own"
	}
	return r
}

const otherNodes = "other nodes"

// checkPeers connects to herald_peers_port of other live nodes.
func checkPeers(ctx context.Context, cfg config.Config, s kube.Snapshot) checkResult {
	var unreachable []string
	reached := 0
	for _, l := range s.Leases {
		n, ok := lease.ParseNodeLease(l)
		ok = ok && l.Namespace == cfg.Node.Namespace // elsewhere any user can write node leases
		if !ok || n.Name == cfg.Node.Name || n.Fenced || s.At.Sub(n.RenewedAt) > n.Duration {
			continue
		}
		if reachable(ctx, n, cfg.Peers.Port) {
			reached++
		} else {
			unreachable = append(unreachable, n.Name)
		}
	}
	if len(unreachable) > 0 {
		return checkResult{Subject: otherNodes, Severity: doubtful, Message: fmt.Sprintf("port %d (TCP) of %s can't be "+
			"reached: is it blocked? "+
			"Without it the death of a node is noticed only when its lease has run out", cfg.Peers.Port,
			strings.Join(unreachable, ", "))}
	}
	return checkResult{Subject: otherNodes, Severity: fine,
		Message: fmt.Sprintf("%d reached at port %d", reached, cfg.Peers.Port)}
}

// reachable reports whether a node's address accepts a connection within a second.
func reachable(ctx context.Context, n lease.NodeLease, port uint16) bool {
	d := net.Dialer{Timeout: time.Second}
	for _, a := range n.Info.OwnAddresses() {
		if c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String()); err == nil {
			c.Close()
			return true
		}
	}
	return false
}
