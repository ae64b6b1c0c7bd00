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

// drainCommand is "herald drain": a node hands its VIPs to others.
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

// undrainCommand is "herald undrain": the node gets them back.
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
		ctx := c.Context()
		return move(&nodeDrain{
			node: strings.ToLower(args[0]), timeout: *timeout,
			printf:        func(format string, args ...any) { fmt.Fprintf(c.OutOrStdout(), format+"\n", args...) },
			read:          func(ctx context.Context) (kube.Snapshot, error) { return kube.TakeSnapshot(ctx, access, "") },
			readEndpoints: func(ctx context.Context, s *kube.Snapshot) error { return s.TakeEndpoints(ctx, access, "") },
			mark:          func(ctx context.Context, node string) error { return kube.Drain(ctx, access, node, time.Now()) },
			unmark: func(ctx context.Context, node string) error {
				return kube.Undrain(ctx, access, node, time.Now().Add(*timeout+time.Minute))
			},
			clearReturn: func(ctx context.Context, node string) error { return kube.ClearReturn(ctx, access, node) },
		}, ctx)
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

	read                      func(context.Context) (kube.Snapshot, error)
	readEndpoints             func(context.Context, *kube.Snapshot) error
	mark, unmark, clearReturn func(ctx context.Context, object string) error
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
		return err
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
	if err := d.readEndpoints(ctx, &s); err != nil {
		return fmt.Errorf("whether other nodes may carry what %s has can't be found out (--force drains it all the "+
			"same): %w", d.node, err)
	}
	if only := onlyOn(s, d.node, s.At); len(only) > 0 {
		return fmt.Errorf("nothing was done: no other node may carry %s. --force drains the node all the same, and takes "+
			"these VIPs down", strings.Join(shorten(only), "; "))
	}
	return nil
}

func shorten(texts []string) []string {
	slices.Sort(texts)
	if len(texts) <= 5 {
		return texts
	}
	return append(texts[:5:5], fmt.Sprintf("and %d more", len(texts)-5))
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
	if err := d.unmark(within, d.object); err != nil {
		return err
	}
	if len(before.staying) > 0 {
		d.printf("not moved back, but left where they are: %s", abbreviate(before.staying))
	}
	now, err := d.await(within, func(now lookAt) bool { return len(now.away) == 0 })
	clearing, cleared := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cleared()
	if err := errors.Join(err, d.clearReturn(clearing, d.object)); err != nil {
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
	now.state = n.state(s.At)
	named := make(map[vip.Key]bool) // by Services
	for i := range s.Services {
		for _, k := range s.Services[i].LeaseKeys() {
			named[k] = true
		}
	}
	for k, c := range v.claims {
		switch {
		case c.Foreign || c.Holder == "":
		case c.Holder == d.node:
			now.held = append(now.held, k.String())
		case c.PreviousHolder == d.node && named[k]:
			now.away = append(now.away, k.String())
		case c.PreviousHolder == d.node:
			now.staying = append(now.staying, k.String())
		}
	}
	return now, nil
}

// await looks at the node until done or ctx ends, and prints changes. It returns the last look; an error only if it
// can't look, or, once ctx has ended, never could.
func (d *nodeDrain) await(ctx context.Context, done func(lookAt) bool) (last lookAt, err error) {
	printed := ""
	for poll := time.NewTicker(300 * time.Millisecond); ; {
		now, err := d.look(ctx)
		switch {
		case err != nil && ctx.Err() != nil && printed != "":
			return last, nil
		case err != nil:
			return last, err
		}
		last = now
		if row := fmt.Sprintf("%s: %d VIPs; %s", d.node, len(now.held), now.state); row != printed {
			printed = row
			d.printf("%s", row)
		}
		if done(now) {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, nil
		case <-poll.C:
		}
	}
}

// abbreviate names the first five, and how many more there are.
func abbreviate(names []string) string {
	slices.Sort(names)
	if len(names) <= 5 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
}
