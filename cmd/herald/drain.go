package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
)

// drainCommand is "herald drain": a node gives its VIPs to the others.
func drainCommand() *cobra.Command {
	return moveCommand("drain NODE", "Have a node hand its VIPs to the others, and carry none until undrained",
		"Mark a node so that it carries no VIP, and wait until the others have taken over what it had, make\n"+
			"before break. The mark stays, also over restarts, until herald undrain. Pods are not touched:\n"+
			"kubectl drain does that.", (*mover).drain)
}

// undrainCommand is "herald undrain": it gets them back.
func undrainCommand() *cobra.Command {
	return moveCommand("undrain NODE", "Let a node carry VIPs again, and give back what it handed over",
		"Take the mark of herald drain away, and wait until the node has back what it gave away when it\n"+
			"was drained, make before break. What has moved on since then stays where it is.", (*mover).undrain)
}

func moveCommand(use, short, long string, do func(*mover, context.Context) error) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: cobra.ExactArgs(1)}
	file := c.Flags().String("kubeconfig", "", "Kubeconfig to use; without it the usual places, KUBECONFIG among them")
	timeout := c.Flags().Duration("timeout", time.Minute, "How long to wait")
	c.RunE = func(c *cobra.Command, args []string) error {
		access, err := kube.ConnectUser(*file, currentVersion())
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), *timeout)
		defer cancel()
		node := strings.ToLower(args[0])
		return do(&mover{
			node: node, timeout: *timeout, say: func(text string) { fmt.Fprintln(c.OutOrStdout(), text) },
			read: func(ctx context.Context) (kube.Snapshot, error) { return kube.TakeSnapshot(ctx, access, "") },
			mark: func(ctx context.Context) error { return kube.Drain(ctx, access, node, time.Now()) },
			unmark: func(ctx context.Context) error {
				return kube.Undrain(ctx, access, node, time.Now().Add(*timeout+time.Minute))
			},
			returned: func(ctx context.Context) error { return kube.ClearReturn(ctx, access, node) },
		}, ctx)
	}
	return c
}

// A mover drains and undrains a node.
type mover struct {
	node    string
	timeout time.Duration
	say     func(string)

	read                   func(context.Context) (kube.Snapshot, error)
	mark, unmark, returned func(context.Context) error
}

func (m *mover) drain(ctx context.Context) error {
	if _, err := m.look(ctx); err != nil {
		return err
	}
	if err := m.mark(ctx); err != nil {
		return err
	}
	began := time.Now()
	return m.wait(ctx, "VIPs left on "+m.node, func(s state) []string { return s.held }, func(left []string, err error) error {
		switch {
		case err != nil:
			return err
		case len(left) == 0:
			m.say(fmt.Sprintf("%s carries no VIP any more (%s); herald undrain %s ends that", m.node, time.Since(began).Round(100*time.Millisecond), m.node))
			return nil
		}
		return fmt.Errorf("after %s the node %s still has %s; \"herald status\" says what keeps the other nodes from them. The node stays marked; herald undrain %s ends that",
			m.timeout, m.node, few(left), m.node)
	})
}

func (m *mover) undrain(ctx context.Context) error {
	if _, err := m.look(ctx); err != nil {
		return err
	}
	if err := m.unmark(ctx); err != nil {
		return err
	}
	began := time.Now()
	return m.wait(ctx, "VIPs to be given back to "+m.node, func(s state) []string { return s.given }, func(left []string, err error) error {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, m.returned(end))
		switch {
		case err != nil:
			return err
		case len(left) == 0:
			m.say(fmt.Sprintf("%s carries VIPs again (%s)", m.node, time.Since(began).Round(100*time.Millisecond)))
			return nil
		}
		m.say(fmt.Sprintf("%s may carry VIPs again; after %s these have stayed with the nodes that took them: %s", m.node, m.timeout, few(left)))
		return nil
	})
}

// state is what a node has, and what others have from it.
type state struct{ held, given []string }

// look reads the leases. It is an error if no Herald runs, or ran, on the node.
func (m *mover) look(ctx context.Context) (s state, err error) {
	snapshot, err := m.read(ctx)
	if err != nil {
		return s, err
	}
	known := false
	for _, l := range snapshot.Leases {
		if n, ok := lease.ParseNodeLease(l); ok {
			known = known || n.Name == m.node
			continue
		}
		if l.Annotations[lease.ClaimAnnotation] == "" || l.Spec.HolderIdentity == nil {
			continue
		}
		switch name := l.Namespace + "/" + l.Name; {
		case *l.Spec.HolderIdentity == m.node:
			s.held = append(s.held, name)
		case l.Annotations[lease.FromAnnotation] == m.node && *l.Spec.HolderIdentity != "":
			s.given = append(s.given, name)
		}
	}
	if !known {
		return s, fmt.Errorf("no Herald runs on a node %q; herald status lists the nodes on which it does", m.node)
	}
	return s, nil
}

// wait looks again and again until nothing of what is left, and tells how many
// there are when that changes.
func (m *mover) wait(ctx context.Context, what string, of func(state) []string, end func(left []string, err error) error) error {
	said := -1
	var left []string
	for again := time.NewTicker(300 * time.Millisecond); ; {
		s, err := m.look(ctx)
		switch {
		case ctx.Err() != nil:
			return end(left, nil)
		case err != nil:
			return end(nil, err)
		}
		if left = of(s); len(left) == 0 {
			return end(nil, nil)
		}
		if len(left) != said {
			said = len(left)
			m.say(fmt.Sprintf("%s: %d", what, said))
		}
		select {
		case <-ctx.Done():
			return end(left, nil)
		case <-again.C:
		}
	}
}

// few names some of many leases.
func few(names []string) string {
	const most = 5
	slices.Sort(names)
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ") + more
}
