package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/testing/check"
)

// A keyTest is a Secret with keys, and nodes that read it a while after it has changed.
type keyTest struct {
	secret  []byte
	written time.Time
	nodes   map[string][]string // the IDs of the keys that each has
	others  []*coordinationv1.Lease
	reads   map[string]time.Duration // how long after it was written each reads the Secret; without one it never does
	log     strings.Builder
}

func keyIDs(t *testing.T, text []byte) (ids []string) {
	t.Helper()
	for _, k := range check.Value(peers.ParseKeys(text))(t) {
		ids = append(ids, peers.KeyID(k))
	}
	return ids
}

// rotation is a keyRotation of the Secret.
func (k *keyTest) rotation(t *testing.T) *keyRotation {
	return &keyRotation{
		printf: func(format string, args ...any) { fmt.Fprintf(&k.log, format+"\n", args...) },
		read: func(ctx context.Context) (kube.Snapshot, error) {
			s := kube.Snapshot{Leases: k.others}
			for n, ids := range k.nodes {
				if after, ok := k.reads[n]; ok && !k.written.IsZero() && time.Since(k.written) >= after {
					ids = keyIDs(t, k.secret)
					k.nodes[n] = ids
				}
				s.Leases = append(s.Leases, nodeLease(n, 0, `{"heartbeatKeys":["`+strings.Join(ids, `","`)+`"]}`))
			}
			return s, ctx.Err()
		},
		update: func(_ context.Context, change func([]byte) ([]byte, error)) error {
			text, err := change(k.secret)
			if err != nil {
				return err
			}
			k.secret, k.written = text, time.Now()
			return nil
		},
	}
}

// TestRotateKey: the old key is removed only when all nodes have the new one, and a rotation that
// can't be completed leaves both.
func TestRotateKey(t *testing.T) {
	old, unfinished := peers.NewKey(), peers.NewKey()
	tests := []struct {
		name      string
		secret    []byte
		nodes     map[string][]string
		others    []*coordinationv1.Lease
		reads     map[string]time.Duration
		want      string // part of the error
		keys      int    // in the Secret at the end
		firstIsIt []byte // the first key at the end, if it is to be a certain one
	}{
		{"all nodes read it", old, map[string][]string{"n1": keyIDs(t, old), "n2": keyIDs(t, old)},
			[]*coordinationv1.Lease{nodeLease("off", 0, `{"livenessOff":"herald_peers_port is 0"}`)},
			map[string]time.Duration{"n1": time.Second, "n2": 25 * time.Second}, "", 1, nil},
		{"one that was begun is completed", append(unfinished, old...), map[string][]string{"n1": keyIDs(t, old)}, nil,
			map[string]time.Duration{"n1": 5 * time.Second}, "", 1, unfinished},
		{"a node does not read it", old, map[string][]string{"n1": keyIDs(t, old), "n2": keyIDs(t, old)}, nil,
			map[string]time.Duration{"n1": time.Second}, "is still to be read by n2 when the time was over (--timeout); both keys stay in the Secret, which does no harm", 2, nil},
		{"a node has its key from a file", old, map[string][]string{"n1": keyIDs(t, old), "n2": keyIDs(t, peers.NewKey())}, nil,
			map[string]time.Duration{"n1": time.Second}, "the node n2 has no key of the Secret: is herald_peers_key set there?", 1, old},
		{"nobody exchanges heartbeats", old, nil, nil, nil, "no Herald in this namespace exchanges heartbeats", 1, old},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &keyTest{secret: tt.secret, nodes: tt.nodes, others: tt.others, reads: tt.reads}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				before := keyIDs(t, tt.secret)
				err := k.rotation(t).rotate(ctx)
				if (err == nil) != (tt.want == "") || !strings.Contains(text(err), tt.want) {
					t.Errorf("got %v, want %q; it printed\n%s", err, tt.want, &k.log)
				}
				after := keyIDs(t, k.secret)
				if len(after) != tt.keys || tt.firstIsIt != nil && after[0] != keyIDs(t, tt.firstIsIt)[0] {
					t.Errorf("the keys were %q, and are %q", before, after)
				}
				if tt.want == "" && after[0] == before[len(before)-1] {
					t.Error("the old key is still there")
				}
				if strings.Contains(k.log.String(), strings.TrimSpace(string(k.secret))) {
					t.Error("it prints a key")
				}
			})
		})
	}
}

// TestRotateKeyTwice: of two that rotate at once the later one is told, and removes nothing.
func TestRotateKeyTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := peers.NewKey()
		k := &keyTest{secret: old, nodes: map[string][]string{"n1": keyIDs(t, old)}, reads: map[string]time.Duration{"n1": time.Second}}
		r := k.rotation(t)
		update, calls := r.update, 0
		r.update = func(ctx context.Context, change func([]byte) ([]byte, error)) error {
			if calls++; calls == 2 {
				k.secret = append(peers.NewKey(), k.secret...)
			}
			return update(ctx, change)
		}
		if err := r.rotate(t.Context()); err == nil || !strings.Contains(err.Error(), "somebody else has put another key") || len(keyIDs(t, k.secret)) != 3 {
			t.Errorf("got %v, %d keys", err, len(keyIDs(t, k.secret)))
		}
		failed := errors.New("no API server")
		r.read = func(context.Context) (kube.Snapshot, error) { return kube.Snapshot{}, failed }
		if err := r.rotate(t.Context()); !errors.Is(err, failed) {
			t.Errorf("got %v, want %v", err, failed)
		}
	})
}
