package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/vip"
)

func poolsCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "pools", Short: "Show the address pools, what is free, who has what, and who waits", Args: cobra.NoArgs,
		Long: "Show each pool with the addresses that it has, how many are used and free, the Services that have\n" +
			"one or wait for one, and what is wrong with the ConfigMap.",
	}
	flags, named := addConnectFlags(c), vip.Key{}
	c.Flags().StringVar(&named.Name, "pools", "", "The ConfigMap of pools (svc_pools); without it that of the nodes, "+
		"or kubevip")
	c.Flags().StringVar(&named.Namespace, "pools-namespace", "", "Its namespace (svc_pools_namespace); without it "+
		"that of the nodes, or kube-system")
	c.RunE = func(c *cobra.Command, _ []string) error {
		access, err := flags.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), 30*time.Second)
		defer cancel()
		s, err := kube.TakeSnapshot(ctx, access, "")
		if err != nil {
			return err
		}
		k, option := publishedPools(s), "svc_pools"
		if k.IsZero() || named != (vip.Key{}) {
			k, option = vip.Key{Namespace: cmp.Or(named.Namespace, "kube-system"), Name: cmp.Or(named.Name, "kubevip")},
				"--pools, --pools-namespace"
		}
		source, err := kube.TakePools(ctx, access, k)
		if err != nil {
			return err
		}
		if source == nil {
			_, err := fmt.Fprintf(c.OutOrStdout(), "There is no ConfigMap %s (%s): Services that name no address are given "+
				"none.\n", k, option)
			return err
		}
		return writePools(c.OutOrStdout(), source, s)
	}
	c.AddCommand(poolsCheckCommand())
	return c
}

func poolsCheckCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "check FILE", Short: "Check a ConfigMap of pools before it is applied",
		Long: "Read a ConfigMap from a file (YAML or JSON; - is standard input) as Herald would, and show its pools and\n" +
			"what is wrong. It ends with status 1 if a key can't be read.",
		Args: oneArgument("FILE, a ConfigMap in YAML or - for standard input"),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		text, err := readInput(args[0], c.InOrStdin())
		if err != nil {
			return err
		}
		data, err := config.ConfigMapData(text)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		return checkPools(c.OutOrStdout(), data)
	}
	return c
}

// checkPools writes a ConfigMap's pools and problems; unreadable keys are an error.
func checkPools(w io.Writer, data map[string]string) error {
	pools, problems := pool.Parse(nil, data)
	var rows []string
	for _, p := range pools.All() {
		for _, f := range familiesOf(p) {
			rows = append(rows, row(append([]string{p.Name, f.String(), sizeOf(p, f)}, whereCells(pools, p)...)...))
		}
	}
	if len(rows) == 0 && len(problems) == 0 {
		rows = append(rows, "(no pool: the ConfigMap has no key that names addresses)")
	}
	if err := writeTable(w, "POOL\tFAMILY\tADDRESSES\t"+whereHeader, rows); err != nil {
		return err
	}
	if pools.KeepsOut() {
		fmt.Fprintln(w, "\nA pool names namespaces: Services of others may not ask for its addresses. What a status "+
			"shows stays.")
	}
	return writeProblems(w, problems)
}

// writePools writes tables of pools and their Services, and the problems.
func writePools(w io.Writer, source *vip.PoolSource, s kube.Snapshot) error {
	pools, problems := pool.Parse(nil, source.Data)
	c := observe(s, source, s.At)
	usage := usageOf(c.rules, &c.world)
	var rows, services []string
	for _, p := range pools.All() {
		for _, f := range familiesOf(p) {
			n, free := usage(p, f)
			rows = append(rows,
				row(append([]string{p.Name, f.String(), sizeOf(p, f), strconv.Itoa(n), fmt.Sprintf("%.0f", free)},
					whereCells(pools, p)...)...))
		}
	}
	for i := range s.Services {
		services = append(services, poolServiceRows(&s.Services[i], pools, c.view)...)
	}
	if err := errors.Join(writeTable(w, "POOL\tFAMILY\tADDRESSES\tUSED\tFREE\t"+whereHeader, rows),
		writeTable(w, "\nSERVICE\tADDRESS\tPOOL\tBY", services)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "\n%s\n", whatMayBeAskedFor(s)); err != nil {
		return err
	}
	// what is wrong is told, and is no failure of this command
	_ = writeProblems(w, problems)
	return nil
}

const whereHeader = "FOR\tNODES\tINTERFACE\tBY"

// whereCells returns a pool's namespaces, nodes, link and methods, as cells.
func whereCells(pools *pool.Pools, p *pool.Pool) []string {
	nodes := "all"
	if p.Nodes != nil {
		nodes = p.Nodes.String()
	}
	var prefer, by []string
	for _, x := range p.Prefer {
		prefer = append(prefer, fmt.Sprintf("%s (%d)", x.Nodes, x.Weight))
	}
	if prefer != nil {
		nodes += ", rather " + strings.Join(prefer, ", ")
	}
	for _, m := range p.Announce {
		by = append(by, string(m))
	}
	return []string{p.Namespaces.String(), nodes, dash(pools.InterfaceOf(p)), dash(strings.Join(by, ","))}
}

// whatMayBeAskedFor says which addresses Services may name, by the nodes' svc_addresses.
func whatMayBeAskedFor(s kube.Snapshot) string {
	var values, nodes []string
	for _, n := range nodeLeases(s) {
		if !n.Fenced && n.Info.AnnouncesServices() && !slices.Contains(values, n.Info.ServiceAddresses) {
			values = append(values, n.Info.ServiceAddresses)
			nodes = append(nodes, n.Name+" has "+n.Info.ServiceAddresses)
		}
	}
	switch {
	case len(values) > 1:
		return "The nodes differ in svc_addresses: " + strings.Join(nodes, ", ") + ". Set one value on all."
	case slices.Contains(values, "pools"):
		return "Services may ask only for addresses of pools that are offered to their namespace (svc_addresses=pools)."
	}
	return "Services may ask for any address that is not reserved, and of no pool for other namespaces " +
		"(svc_addresses=any)."
}

// poolServiceRows returns a row for each address, or for the wait, of a Service; what is not Herald's waits for none.
func poolServiceRows(s *vip.Service, pools *pool.Pools, v statusView) (rows []string) {
	for _, a := range addressesOf(s) {
		var names []string
		for _, p := range pools.All() {
			if p.Contains(a) {
				names = append(names, p.Name)
			}
		}
		by := "its user"
		if s.IsGiven(a) {
			by = "Herald"
			if len(names) == 0 {
				by = "Herald, of " + s.Allocated + ", which has it no more"
			}
		}
		rows = append(rows, row(s.Key.String(), a.String(), dash(strings.Join(names, ",")), by))
	}
	if _, note := v.notOurs(s); len(rows) > 0 || note != "" {
		return rows
	}
	why := "waits for an address"
	if e, ok := v.newest(s, vip.NoPoolAddress, vip.NoAddress); ok {
		why = e.Message
	}
	// a condition stays, an Event does not
	return []string{row(s.Key.String(), "-", "-", plan.AnswerAbout(s, vip.VIPElsewhere, why).Message)}
}

// usageOf returns a function that says how many addresses of a pool Services have, and how many are free.
func usageOf(r plan.Rules, w *vip.World) func(*pool.Pool, vip.Family) (used int, free float64) {
	used, taken := make(map[netip.Addr]bool), plan.Reserved(r, w)
	for i := range w.Services {
		for _, a := range addressesOf(&w.Services[i]) {
			used[a] = true
			taken = append(taken, vip.ReservedRange{Prefix: netip.PrefixFrom(a, a.BitLen())})
		}
	}
	return func(p *pool.Pool, f vip.Family) (n int, free float64) {
		for a := range used {
			if vip.FamilyOf(a) == f && p.Contains(a) {
				n++
			}
		}
		return n, p.Free(f, taken)
	}
}

func addressesOf(s *vip.Service) []netip.Addr {
	return vip.AppendUnique(slices.Clone(s.Addresses), s.StatusVIPs()...)
}

// familiesOf returns the families that a pool has, or leases.
func familiesOf(p *pool.Pool) (families []vip.Family) {
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		if p.Size(f) > 0 || slices.Contains(p.DHCP, f) {
			families = append(families, f)
		}
	}
	return families
}

func sizeOf(p *pool.Pool, f vip.Family) string {
	if slices.Contains(p.DHCP, f) {
		return "by DHCP"
	}
	return fmt.Sprintf("%.0f", p.Size(f))
}

// writeProblems writes faults of a ConfigMap, unreadable keys first, which are an error.
func writeProblems(w io.Writer, problems []vip.PoolProblem) (err error) {
	if len(problems) > 0 {
		fmt.Fprintln(w)
	}
	for _, p := range problems {
		if !p.Warning {
			fmt.Fprintf(w, "error: %s\n", p)
			err = errors.New("the ConfigMap has keys that can't be read")
		}
	}
	for _, p := range problems {
		if p.Warning {
			fmt.Fprintf(w, "warning: %s\n", p)
		}
	}
	return err
}

// addressRest is how long a released address rests: clients and name servers may know it.
const addressRest = 5 * time.Minute

// providerLease elects a leader of kube-vip's cloud provider.
var providerLease = vip.Key{Namespace: "kube-system", Name: "kube-vip-cloud-controller"}

// poolsLeaseName is the lease whose holder gives addresses to Services.
const poolsLeaseName = "herald-pools"

func poolsLease(cfg config.Config) vip.Key {
	return vip.Key{Namespace: cfg.Node.Namespace, Name: poolsLeaseName}
}
