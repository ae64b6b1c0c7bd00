package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// drainCommand is "herald drain": a node hands its VIPs to the others.
func drainCommand() *cobra.Command {
	var connections time.Duration
	var force bool
	c := moveCommand("drain NODE", "Have a node hand its VIPs to the others, and carry none until undrained",
		"Mark a node so that it carries no VIP, and wait until the others have taken over what it had, make\n"+
			"before break. The mark stays, also over restarts, until herald undrain. Pods are not touched:\n"+
			"kubectl drain does that. If no other node may carry a VIP of it, nothing is done without --force.\n"+
			"Established connections go on, and still go by the node: with --connections it waits until they\n"+
			"have ended.", func(d *nodeDrain, ctx context.Context) error {
			d.force = force
			return d.drain(ctx, connections)
		})
	c.Flags().BoolVar(&force, "force", false, "Also if VIPs go down by it, since no other node may carry them")
	c.Flags().DurationVar(&connections, "connections", 0, "How long to wait, after that, for the connections that "+
		"still go by the node")
	return c
}

// undrainCommand is "herald undrain": the node gets back what it handed over.
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
		node := strings.ToLower(args[0])
		return move(&nodeDrain{
			node: node, timeout: *timeout, began: time.Now(),
			printf:        func(format string, args ...any) { fmt.Fprintf(c.OutOrStdout(), format+"\n", args...) },
			read:          func(ctx context.Context) (kube.Snapshot, error) { return kube.TakeSnapshot(ctx, access, "") },
			readEndpoints: func(ctx context.Context, s *kube.Snapshot) error { return s.TakeEndpoints(ctx, access, "") },
			mark:          func(ctx context.Context) error { return kube.Drain(ctx, access, node, time.Now()) },
			unmark: func(ctx context.Context) error {
				return kube.Undrain(ctx, access, node, time.Now().Add(*timeout+time.Minute))
			},
			clearReturn: func(ctx context.Context) error { return kube.ClearReturn(ctx, access, node) },
		}, ctx)
	}
	return c
}

// oneArgument refuses more and fewer arguments than one, and names it: what is in upper case, and then where to find
// it.
func oneArgument(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one %s; it was given %d arguments", c.CommandPath(), what, len(args))
		}
		return nil
	}
}

// A nodeDrain drains or undrains a node.
type nodeDrain struct {
	node    string
	timeout time.Duration
	force   bool // drain it although VIPs go down by it
	began   time.Time
	// count is the node's last count of connections to VIPs of others, as readLeases found it; nil if there is none, or
	// the node is fenced. countedBefore is when the last one began that may be without the connections of VIPs that the
	// node had when the drain began; 0: any count has all of them.
	count         *vip.ConnectionCount
	countedBefore int64
	printf        func(format string, args ...any)

	read                      func(context.Context) (kube.Snapshot, error)
	readEndpoints             func(context.Context, *kube.Snapshot) error
	mark, unmark, clearReturn func(context.Context) error
}

// drain drains the node within the timeout, and then waits for its connections.
func (d *nodeDrain) drain(ctx context.Context, connections time.Duration) error {
	before, err := d.handOver(ctx)
	if err != nil {
		return err
	}
	d.printf("%s carries no VIP any more (%s); herald undrain %s ends that", d.node, d.elapsed(), d.node)
	if before.holdsCounted {
		return d.waitForConnections(ctx, connections)
	}
	d.countedBefore = 0 // no VIP with connections has moved since the last count
	again := slices.ContainsFunc(before.snapshot.Nodes, func(n vip.Node) bool { return n.Name == d.node && n.Drained })
	switch {
	case d.count != nil, again && connections > 0 && before.gaveCounted:
		return d.waitForConnections(ctx, connections)
	case again && connections > 0:
		d.printf("%s", d.uncounted())
	}
	return nil
}

// handOver marks the node, and waits until it has no VIP. It returns what it had before.
func (d *nodeDrain) handOver(ctx context.Context) (before leasesOfNode, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	before, err = d.readLeases(ctx)
	if err != nil {
		return before, err
	}
	if err := d.checkOthers(ctx, before.snapshot); err != nil {
		return before, err
	}
	if err := d.mark(ctx); err != nil {
		return before, err
	}
	left, err := d.wait(ctx, "VIPs left on "+d.node, func() ([]string, error) {
		now, err := d.readLeases(ctx)
		if d.count != nil { // it may have begun before the last VIP moved, also if that is read together with it
			d.countedBefore = d.count.At
		}
		return now.held, err
	})
	switch {
	case err != nil:
		return before, err
	case len(left) > 0:
		return before, fmt.Errorf("after %s the node %s still has %s; \"herald status\" shows what keeps the other nodes "+
			"from them. The node stays marked; herald undrain %s ends that",
			d.timeout, d.node, abbreviate(left), d.node)
	}
	return before, nil
}

// checkOthers returns an error that names what the node carries and no other node may (onlyOn), unless force is set.
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

// shorten returns the first five of texts, in order, and how many more there are.
func shorten(texts []string) []string {
	slices.Sort(texts)
	if len(texts) <= 5 {
		return texts
	}
	return append(texts[:5:5], fmt.Sprintf("and %d more", len(texts)-5))
}

// notDrained reports whether the Node of that name is known, is not drained, and gets nothing back at now.
func notDrained(s kube.Snapshot, node string, now time.Time) bool {
	return slices.ContainsFunc(s.Nodes,
		func(n vip.Node) bool { return n.Name == node && !n.Drained && !n.ReturnUntil.After(now) })
}

// countTime is how long a node may take to publish how many connections it still knows: it counts each 5 s, and
// publishes the counts of the first 20 s after a move. One that runs with herald_keep_connections=0, or an older
// Herald, never does.
const countTime = 10 * time.Second

// waitForConnections prints how many connections to VIPs of others the node knows, and waits for at most the time
// given until there are none; for countTime only, if the node has no count at all by then. It is an error if there
// still are some then, or, with a time given, if the node has not said how many.
func (d *nodeDrain) waitForConnections(ctx context.Context, atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, max(atMost, countTime))
	defer cancel()
	printed, late := -1, time.After(countTime)
	giveUp := func() error {
		if atMost > 0 {
			return errors.New(d.uncounted())
		}
		d.printf("%s", d.uncounted())
		return nil
	}
	for poll := time.NewTicker(300 * time.Millisecond); ; {
		_, err := d.readLeases(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case d.count != nil && d.count.At > d.countedBefore && d.count.Sum() != printed:
			printed = d.count.Sum()
			d.printf("connections that began before and still go by %s: %d", d.node, printed)
		}
		if printed == 0 || printed > 0 && atMost == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			if printed > 0 {
				return fmt.Errorf("after %s there still are %d connections by way of %s; they end with the node", atMost, printed,
					d.node)
			}
			return giveUp()
		case <-late:
			if d.count == nil && printed < 0 {
				return giveUp()
			}
		case <-poll.C:
		}
	}
}

// uncounted says that the node has counted no connections since its last VIP moved, and why that may be.
func (d *nodeDrain) uncounted() string {
	if d.count != nil {
		return fmt.Sprintf("how many connections still go by %s is not known: its Herald has not counted them since its "+
			"last VIP moved; before that there were %d", d.node, d.count.Sum())
	}
	return fmt.Sprintf("how many connections still go by %s is not known, since its Herald has counted none: with "+
		"herald_keep_connections=0, or without nftables, the move has reset them; of more than 2000 VIPs with "+
		"connections, and by an older Herald, none are counted; nor are any once herald_keep_connections has passed "+
		"since the move", d.node)
}

func (d *nodeDrain) undrain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	before, err := d.readLeases(ctx)
	if err != nil {
		return err
	}
	// it would be given what others have had from it for other reasons
	if notDrained(before.snapshot, d.node, before.snapshot.At) {
		d.printf("%s is not drained; nothing was changed", d.node)
		return nil
	}
	if err := d.unmark(ctx); err != nil {
		return err
	}
	if len(before.staying) > 0 {
		d.printf("not moved back, but left where they are: %s", abbreviate(before.staying))
	}
	left, err := d.wait(ctx, "VIPs to be given back to "+d.node, func() ([]string, error) {
		now, err := d.readLeases(ctx)
		return now.away, err
	})
	clearing, cleared := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cleared()
	if err := errors.Join(err, d.clearReturn(clearing)); err != nil {
		return err
	}
	if len(left) > 0 {
		d.printf("%s may carry VIPs again; after %s these have stayed with the nodes that took them: %s", d.node, d.timeout,
			abbreviate(left))
	} else {
		d.printf("%s carries VIPs again (%s)", d.node, d.elapsed())
	}
	return nil
}

func (d *nodeDrain) elapsed() time.Duration { return time.Since(d.began).Round(100 * time.Millisecond) }

// A leasesOfNode is the units that a node has, and those that others have from it: those that it gets back (away), and
// those that never move back (staying), which are of no single Service: the control plane's VIP, and all Services with
// svc_election=false.
type leasesOfNode struct {
	held, away, staying []string
	// holdsCounted: of one of held the node counts the connections once it has moved (countsConnections). gaveCounted:
	// the same of away and staying.
	holdsCounted, gaveCounted bool
	snapshot                  kube.Snapshot // that they are of
}

// readLeases returns the units of the node. It is an error if the node has no node lease: no Herald has run there. A
// node lease of another namespace than the announcers' counts only if the node has none there: any user can write
// one.
func (d *nodeDrain) readLeases(ctx context.Context) (all leasesOfNode, err error) {
	snapshot, err := d.read(ctx)
	if err != nil {
		return all, err
	}
	all.snapshot = snapshot
	announcers, known, own := announcersNamespace(snapshot.Leases), false, false
	named := make(map[vip.Key]bool) // by Services; true if a node counts connections to one of them
	for i := range snapshot.Services {
		s := &snapshot.Services[i]
		for _, k := range s.LeaseKeys() {
			named[k] = named[k] || countsConnections(s)
		}
	}
	for _, l := range snapshot.Leases {
		if n, ok := lease.ParseNodeLease(l); ok && n.Name == d.node && !own {
			known, own, d.count = true, l.Namespace == announcers, n.Info.Connections
			if n.Fenced {
				d.count = nil // what it knew has ended with it
			}
		}
	}
	for k, c := range lease.Claims(snapshot.Leases, announcers, snapshot.At) {
		if c.Foreign || c.Holder == "" {
			continue
		}
		counts, isNamed := named[k]
		counts = counts || !isNamed && k.Name != poolsLeaseName // that of the control plane's VIP, or of all Services
		switch d.node {
		case c.Holder:
			all.held = append(all.held, k.String())
			all.holdsCounted = all.holdsCounted || counts
		case c.PreviousHolder:
			all.gaveCounted = all.gaveCounted || counts
			if isNamed {
				all.away = append(all.away, k.String())
			} else {
				all.staying = append(all.staying, k.String())
			}
		}
	}
	if !known {
		return all, fmt.Errorf("no Herald runs on a node %q; herald status lists the nodes on which it does", d.node)
	}
	return all, nil
}

// countsConnections reports whether a node that had the VIPs of s counts connections to one of them: all but those
// that are leased by DHCP, whose MAC address moves with them.
func countsConnections(s *vip.Service) bool {
	return len(s.Addresses) == 0 || slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return !a.IsUnspecified() })
}

// wait polls until read returns nothing or an error, or ctx ends, and prints how many names there are when that
// changes. If ctx ends it returns what was read last, and no error unless nothing could be read.
func (d *nodeDrain) wait(ctx context.Context, what string, read func() ([]string, error)) (left []string, err error) {
	printed := -1
	for poll := time.NewTicker(300 * time.Millisecond); ; {
		names, err := read()
		switch {
		case err != nil && ctx.Err() != nil && printed >= 0:
			return left, nil
		case err != nil || len(names) == 0:
			return nil, err
		}
		if left = names; len(left) != printed {
			printed = len(left)
			d.printf("%s: %d", what, printed)
		}
		select {
		case <-ctx.Done():
			return left, nil
		case <-poll.C:
		}
	}
}

// abbreviate names the first five of names, in order, and how many more there are.
func abbreviate(names []string) string {
	slices.Sort(names)
	if len(names) <= 5 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
}
