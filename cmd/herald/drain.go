package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

func drainCommand() *cobra.Command {
	var force bool
	c := moveCommand("drain NODE", "Have a node hand its VIPs to the others, and carry none until undrained",
		"Mark a node so that it carries no VIP, and wait until the others have taken over what it had, make\n"+
			"before break. The mark stays, also over restarts, until herald undrain. Pods are not touched:\n"+
			"kubectl drain does that. If no other node may carry a VIP of it, nothing is done without --force.\n"+
			"Established connections go on, and still go by the node.", func(d *nodeDrain, ctx context.Context) error {
			d.force = force
			return d.drain(ctx)
		})
	c.Flags().BoolVar(&force, "force", false, "Also if VIPs go down by it, since no other node may carry them")
	return c
}

func undrainCommand() *cobra.Command {
	return moveCommand("undrain NODE", "Let a node carry VIPs again, and give back what it handed over",
		"Take the mark of herald drain away, and wait until the node has back what it gave away when it\n"+
			"was drained, make before break. What has moved on since then stays where it is.", (*nodeDrain).undrain)
}

func moveCommand(use, short, long string, move func(*nodeDrain, context.Context) error) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: oneArgument("NODE, as herald status lists them")}
	flags := addConnectFlags(c)
	c.ValidArgsFunction = completeNodes(flags)
	timeout := c.Flags().Duration("timeout", time.Minute, "How long to wait")
	c.RunE = func(c *cobra.Command, args []string) error {
		access, err := flags.connect()
		if err != nil {
			return err
		}
		return move(&nodeDrain{
			node: strings.ToLower(args[0]), timeout: *timeout,
			printf: func(format string, args ...any) { fmt.Fprintf(c.OutOrStdout(), format+"\n", args...) },
			read:   func(ctx context.Context) (kube.Snapshot, error) { return kube.TakeSnapshot(ctx, access, "") },
			readMore: func(ctx context.Context, s *kube.Snapshot) (*vip.PoolSource, error) {
				pools, err := kube.TakePools(ctx, access, publishedPools(*s))
				return pools, errors.Join(err, s.TakeEndpoints(ctx, access, ""))
			},
			mark:        func(ctx context.Context, node string) error { return kube.Drain(ctx, access, node, time.Now()) },
			unmark:      func(ctx context.Context, node string, t time.Time) error { return kube.Undrain(ctx, access, node, t) },
			clearReturn: func(ctx context.Context, node string) error { return kube.ClearReturn(ctx, access, node) },
		}, c.Context())
	}
	return c
}

// oneArgument requires one argument; what names it in upper case, then where to find it.
func oneArgument(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one %s; it was given %d arguments", c.CommandPath(), what, len(args))
		}
		return nil
	}
}

type nodeDrain struct {
	node    string // as it was given, until look makes it that of its node lease
	object  string // the name of its Node, as look finds it
	timeout time.Duration
	force   bool // drain it although VIPs go down by it
	printf  func(format string, args ...any)

	read              func(context.Context) (kube.Snapshot, error)
	readMore          func(context.Context, *kube.Snapshot) (*vip.PoolSource, error) // endpoints and pools
	mark, clearReturn func(ctx context.Context, object string) error
	unmark            func(ctx context.Context, object string, until time.Time) error
}

func (d *nodeDrain) drain(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	before, err := d.look(within)
	if err != nil {
		return err
	}
	if err := d.checkOthers(within, before.snapshot); err != nil {
		return err
	}
	if err := d.mark(within, d.object); err != nil {
		return err
	}
	now, err := d.await(within, func(now lookAt) bool { return len(now.held) == 0 })
	switch {
	case err != nil:
		return fmt.Errorf("%w; %[2]s stays marked: herald drain %[2]s goes on, herald undrain %[2]s ends that", err, d.node)
	case len(now.held) > 0:
		return fmt.Errorf("after %s the node %s still has %s; \"herald status\" shows what keeps the other nodes from them. "+
			"The node stays marked; herald undrain %s ends that", d.timeout, d.node, abbreviate(now.held), d.node)
	}
	d.printf("%s carries no VIP any more; herald undrain %s ends that", d.node, d.node)
	return nil
}

// checkOthers returns an error that names what only this node may carry, unless force is set.
func (d *nodeDrain) checkOthers(ctx context.Context, s kube.Snapshot) error {
	if d.force {
		return nil
	}
	pools, err := d.readMore(ctx, &s)
	if err != nil {
		return fmt.Errorf("whether other nodes may carry what %s has can't be found out (--force drains it all the "+
			"same): %w", d.node, err)
	}
	if only := onlyOn(s, pools, d.node); len(only) > 0 {
		return fmt.Errorf("nothing was done: no other node may carry %s. --force drains the node all the same, and takes "+
			"these VIPs down", firstFive(only, "; "))
	}
	return nil
}

// undrain takes the mark away, and waits for the node's units.
func (d *nodeDrain) undrain(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	before, err := d.look(within)
	if err != nil {
		return err
	}
	// it would get what others had from it for other reasons
	if slices.ContainsFunc(before.snapshot.Nodes, func(n vip.Node) bool {
		return n.Name == d.object && !n.Drained && !n.ReturnUntil.After(before.snapshot.At)
	}) {
		d.printf("%s is not drained; nothing was changed", d.node)
		return nil
	}
	// clearReturn ends it; the hour is for owners' clocks, and if this command is killed
	if err := d.unmark(within, d.object, before.snapshot.At.Add(d.timeout+time.Hour)); err != nil {
		return err
	}
	if len(before.staying) > 0 {
		d.printf("not moved back, but left where they are: %s", abbreviate(before.staying))
	}
	now, err := d.await(within, func(now lookAt) bool { return len(now.away) == 0 })
	if err != nil {
		return fmt.Errorf("%w; %[2]s still gets its VIPs back: herald undrain %[2]s goes on", err, d.node)
	}
	clearing, cleared := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cleared()
	if err := d.clearReturn(clearing, d.object); err != nil {
		return err
	}
	if len(now.away) > 0 {
		d.printf("%s may carry VIPs again; after %s these have stayed with the nodes that took them: %s", d.node, d.timeout,
			abbreviate(now.away))
	} else {
		d.printf("%s carries VIPs again", d.node)
	}
	return nil
}

// A lookAt is a node's units, and those that others have from it: to come back (away), or never (staying), since these
// are of no single Service: the control plane's, and all with svc_election=false.
type lookAt struct {
	held, away, staying []string
	vips                int           // of held: Services, and the control plane's
	state               string        // as herald status has it
	snapshot            kube.Snapshot // that they are of
}

// look reads the node's units. It is an error if no Herald has run there.
func (d *nodeDrain) look(ctx context.Context) (now lookAt, err error) {
	if now.snapshot, err = d.read(ctx); err != nil {
		return now, err
	}
	s := now.snapshot
	v := newStatusView(s, s.At)
	n, err := v.nodeNamed(d.node)
	d.node, d.object = n.Name, cmp.Or(n.node.Name, n.Name)
	for _, l := range s.Leases { // one of another namespace counts only without one inside: any user can write it
		if x, ok := lease.ParseNodeLease(l); ok && err != nil && x.Name == n.Name {
			n.NodeLease, err = x, nil
		}
	}
	if err != nil {
		return now, err
	}
	now.state, _ = n.state(s.At)
	for _, b := range n.Info.BGPSessions { // without an election the table does not have what it advertises
		if b.Prefixes > 0 && n.runs(s.At) {
			now.held = append(now.held, fmt.Sprintf("%d prefixes advertised to %s", b.Prefixes, b.Peer))
		}
	}
	shared, services := v.options().SharedLease, make(map[vip.Key]int) // by unit
	for i := range s.Services {
		for _, k := range append(s.Services[i].LeaseKeys(), shared) {
			services[k]++
		}
	}
	for k, c := range v.claims {
		switch {
		case c.Foreign || c.Holder == "" || k == vip.Key{Namespace: v.announcers, Name: poolsLeaseName}:
		case c.Holder == d.node:
			now.held, now.vips = append(now.held, k.String()), now.vips+max(1, services[k])
		case c.PreviousHolder == d.node && services[k] > 0 && k != shared:
			now.away = append(now.away, k.String())
		case c.PreviousHolder == d.node:
			now.staying = append(now.staying, k.String())
		}
	}
	return now, nil
}

// await looks at the node until done or ctx ends, and prints changes. It returns the last look, or an error if it is
// interrupted, or never could look, or not for ten seconds.
func (d *nodeDrain) await(ctx context.Context, done func(lookAt) bool) (last lookAt, err error) {
	printed, looked := "", time.Now()
	for poll := time.NewTicker(300 * time.Millisecond); ; {
		now, failed := d.look(ctx)
		if failed == nil {
			last, looked = now, time.Now()
			if row := fmt.Sprintf("%s: %d VIPs; %s", d.node, now.vips, now.state); row != printed {
				printed = row
				d.printf("%s", row)
			}
			if done(now) {
				return now, nil
			}
		} else if ctx.Err() == nil && time.Since(looked) > 10*time.Second {
			return last, failed
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				failed = errors.New("interrupted")
			} else if printed != "" {
				failed = nil
			}
			return last, failed
		case <-poll.C:
		}
	}
}

// abbreviate names the first five, and how many more there are.
func abbreviate(names []string) string { return firstFive(names, ", ") }

func firstFive(texts []string, separator string) string {
	slices.Sort(texts)
	if len(texts) <= 5 {
		return strings.Join(texts, separator)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:5], separator), len(texts)-5)
}
