package kube

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// secretRules are all that it needs for the key of the peers, in the announcer's namespace.
const secretPermissions = `[
	{"apiGroups":[""],"resources":["secrets"],"resourceNames":["herald-peers"],"verbs":["get"]},
	{"apiGroups":[""],"resources":["secrets"],"verbs":["create"]}]`

// TestPeersKeys: of several that come at once one makes the key, and all have it.
func TestPeersKeys(t *testing.T) {
	api := startAPI(t)
	home := api.namespace(t)
	r := newClusterTest(t, "narrow", Options{NodeLeaseNamespace: home})

	_, err := r.PeersKeys(t.Context(), func() []byte { return []byte("none") })
	if err == nil || !strings.Contains(err.Error(), "herald manifest rbac") || !strings.Contains(err.Error(), home) {
		t.Fatalf("without permission: got %v", err)
	}

	api.allow(t, "narrow", home, secretPermissions)
	var group sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		group.Go(func() {
			mine := strings.Repeat("x", i+1)
			keys, err := r.PeersKeys(t.Context(), func() []byte { return []byte(mine) })
			for end := time.Now().Add(10 * time.Second); err != nil && strings.Contains(err.Error(), "must be allowed") && time.Now().Before(end); {
				time.Sleep(20 * time.Millisecond) // the API server's authorizer reads the Role by a watch
				keys, err = r.PeersKeys(t.Context(), func() []byte { return []byte(mine) })
			}
			if err != nil {
				t.Error(err)
			}
			got[i] = string(keys)
		})
	}
	group.Wait()
	for _, g := range got {
		if g == "" || g != got[0] {
			t.Fatalf("not all have the same key: %q", got)
		}
	}

	// Somebody rotates it.
	api.must(t, "PATCH", "/api/v1/namespaces/"+home+"/secrets/herald-peers", `{"stringData":{"keys":"new"}}`)
	if keys, err := r.PeersKeys(t.Context(), nil); err != nil || string(keys) != "new" {
		t.Errorf("after a rotation: got %q, %v", keys, err)
	}
	api.must(t, "PATCH", "/api/v1/namespaces/"+home+"/secrets/herald-peers", `{"data":{"keys":null}}`)
	if _, err := r.PeersKeys(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `no entry "keys"`) {
		t.Errorf("without the entry: got %v", err)
	}
}
