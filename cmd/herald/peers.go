package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/peers"
)

// peersCommand is "herald peers", about the heartbeats between the nodes.
func peersCommand() *cobra.Command {
	c := &cobra.Command{Use: "peers", Short: "Care for the heartbeats between the nodes", Args: cobra.NoArgs}
	c.AddCommand(rotateKeyCommand())
	return c
}

// rotateKeyCommand is "herald peers rotate-key": the heartbeats get another key.
func rotateKeyCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "rotate-key", Short: "Replace the key that encrypts the nodes' heartbeats", Args: cobra.NoArgs,
		Long: "Put a new key before the one in the Secret " + kube.PeersSecret + ", wait until all nodes have read it, which takes\n" +
			"half a minute, and then remove the old one. No heartbeat is lost. If it is interrupted nothing is\n" +
			"harmed; run it again to complete what it began.",
	}
	flags := addConnectFlags(c)
	namespace := c.Flags().StringP("namespace", "n", "kube-system", "Where the announcers are (cp_namespace)")
	timeout := c.Flags().Duration("timeout", 3*time.Minute, "How long to wait for the nodes")
	c.RunE = func(c *cobra.Command, _ []string) error {
		access, err := flags.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), *timeout)
		defer cancel()
		return (&keyRotation{
			printf: func(format string, args ...any) { fmt.Fprintf(c.OutOrStdout(), format+"\n", args...) },
			read: func(ctx context.Context) (kube.Snapshot, error) {
				return takeLeasesOf(ctx, access, *namespace)
			},
			update: func(ctx context.Context, change func([]byte) ([]byte, error)) error {
				return kube.UpdatePeersKeys(ctx, access, *namespace, change)
			},
		}).rotate(ctx)
	}
	return c
}

// takeLeasesOf is kube.TakeSnapshot of a namespace, with its Leases only: in another one any user can write a node lease.
func takeLeasesOf(ctx context.Context, cfg *rest.Config, namespace string) (kube.Snapshot, error) {
	s, err := kube.TakeSnapshot(ctx, cfg, namespace)
	kept := s.Leases[:0]
	for _, l := range s.Leases {
		if l.Namespace == namespace {
			kept = append(kept, l)
		}
	}
	s.Leases = kept
	return s, err
}

// A keyRotation replaces the key of the heartbeats. A node encrypts with the last of the keys, and decrypts with each, and with
// the one before. So no heartbeat is lost if the old key is removed when all nodes have the new one.
type keyRotation struct {
	printf func(format string, args ...any)
	read   func(context.Context) (kube.Snapshot, error)
	update func(ctx context.Context, change func(keys []byte) ([]byte, error)) error
}

func (r *keyRotation) rotate(ctx context.Context) error {
	newID, err := r.addKey(ctx)
	if err != nil {
		return err
	}
	err = r.wait(ctx, newID+" is still to be read by", func(has []string) bool { return slices.Contains(has, newID) })
	if err != nil {
		return fmt.Errorf("%w; both keys stay in the Secret, which does no harm: see why the node does not read it (herald status, its log), and run this again", err)
	}
	err = r.update(ctx, func(text []byte) ([]byte, error) {
		keys, err := peers.ParseKeys(text)
		switch {
		case err != nil:
			return nil, err
		case peers.KeyID(keys[0]) != newID:
			return nil, errors.New("somebody else has put another key into the Secret meanwhile; run this again")
		}
		return encodeKeys(keys[:1]), nil
	})
	if err != nil {
		return err
	}
	if err := r.wait(ctx, "the old key is still accepted by", func(has []string) bool { return slices.Equal(has, []string{newID}) }); err != nil {
		return fmt.Errorf("the old key is removed from the Secret, but %w", err)
	}
	r.printf("all nodes have the key %s and no other", newID)
	return nil
}

// addKey puts a new key before that in the Secret, and returns its ID. If there are several already, a
// rotation was not completed: it adds none, and returns the ID of the first. It is an error if a node
// has none of the keys in the Secret, since its keys come from elsewhere, or if there is no node.
func (r *keyRotation) addKey(ctx context.Context) (id string, err error) {
	nodes, err := r.heartbeatKeys(ctx)
	if err != nil {
		return "", err
	}
	if len(nodes) == 0 {
		return "", errors.New("no Herald in this namespace exchanges heartbeats (--namespace); herald status says why")
	}
	err = r.update(ctx, func(text []byte) ([]byte, error) {
		keys, err := peers.ParseKeys(text)
		if err != nil {
			return nil, err
		}
		for node, has := range nodes {
			if !slices.ContainsFunc(keys, func(k []byte) bool { return slices.Contains(has, peers.KeyID(k)) }) {
				return nil, fmt.Errorf("the node %s has no key of the Secret: is herald_peers_key set there? Then put the new key into that file, before the old one", node)
			}
		}
		if id = peers.KeyID(keys[0]); len(keys) > 1 {
			r.printf("the Secret has %d keys: what replaced the older ones by %s is completed", len(keys), id)
			return text, nil
		}
		added, err := peers.ParseKeys(peers.NewKey())
		if err != nil {
			return nil, err
		}
		id = peers.KeyID(added[0])
		r.printf("the key %s is in the Secret, before %s", id, peers.KeyID(keys[0]))
		return encodeKeys(append(added, keys...)), nil
	})
	return id, err
}

// wait polls until ok holds for the key IDs of each node that exchanges heartbeats, or ctx ends, which is an error. It prints what
// it waits for, and the nodes, when these change.
func (r *keyRotation) wait(ctx context.Context, what string, ok func(has []string) bool) error {
	printed := ""
	for poll := time.NewTicker(500 * time.Millisecond); ; {
		nodes, err := r.heartbeatKeys(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		var left []string
		for node, has := range nodes {
			if !ok(has) {
				left = append(left, node)
			}
		}
		if err == nil && len(left) == 0 {
			return nil
		}
		if now := what + " " + abbreviate(left); err == nil && now != printed {
			printed = now
			r.printf("%s", now)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s when the time was over (--timeout)", printed)
		case <-poll.C:
		}
	}
}

// heartbeatKeys returns the IDs of the keys of each node that exchanges heartbeats, by its node lease.
func (r *keyRotation) heartbeatKeys(ctx context.Context) (map[string][]string, error) {
	snapshot, err := r.read(ctx)
	if err != nil && len(snapshot.Leases) == 0 { // an error about anything but leases does not matter here
		return nil, err
	}
	nodes := make(map[string][]string)
	for _, l := range snapshot.Leases {
		if n, ok := lease.ParseNodeLease(l); ok && !n.Fenced && n.Info.LivenessOff == "" {
			nodes[n.Name] = n.Info.HeartbeatKeys
		}
	}
	return nodes, nil
}

// encodeKeys returns keys as text that peers.ParseKeys reads.
func encodeKeys(keys [][]byte) []byte {
	var b bytes.Buffer
	for _, k := range keys {
		b.WriteString(base64.StdEncoding.EncodeToString(k) + "\n")
	}
	return b.Bytes()
}
