package kube

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// secretPermissions are all that it needs for the key of the peers, in the announcer's namespace.
const secretPermissions = `[
	{"apiGroups":[""],"resources":["secrets"],"resourceNames":["herald-peers"],"verbs":["get","update"]}]`

// mayCreate is what a kubeconfig of an administrator has besides.
const mayCreate = `[{"apiGroups":[""],"resources":["secrets"],"verbs":["create"]}]`

// permittedKeys is PeersKeys as soon as the API server's authorizer, which reads Roles by a watch, knows the Role.
func permittedKeys(t *testing.T, r *clusterTest, mine string) string {
	var keys []byte
	check.Until(t, 10*time.Second, "the key", func() (err error) {
		keys, err = r.PeersKeys(t.Context(), func() []byte { return []byte(mine) })
		return err
	})
	return string(keys)
}

// sameKeys has several nodes ask for the key at once, and returns the one that all of them get.
func sameKeys(t *testing.T, r *clusterTest) string {
	t.Helper()
	var group sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		group.Go(func() { got[i] = permittedKeys(t, r, strings.Repeat("x", i+1)) })
	}
	group.Wait()
	for _, g := range got {
		if g == "" || g != got[0] {
			t.Fatalf("not all have the same key: %q", got)
		}
	}
	return got[0]
}

// TestPeersKeys: of several nodes that find an empty Secret one writes the key, and all have it; where there is no
// Secret they say what to do about it, and nothing is created unless that is permitted.
func TestPeersKeys(t *testing.T) {
	api := startAPI(t)
	home := api.namespace(t)
	secrets := "/api/v1/namespaces/" + home + "/secrets"
	r := newClusterTest(t, "narrow", Options{NodeLeaseNamespace: home})

	_, err := r.PeersKeys(t.Context(), func() []byte { return []byte("none") })
	if err == nil || !strings.Contains(err.Error(), "herald manifest rbac") || !strings.Contains(err.Error(), home) {
		t.Fatalf("without permission: got %v", err)
	}
	api.allow(t, "narrow", home, secretPermissions)
	check.Until(t, 10*time.Second, "without a Secret it says so", func() error {
		_, err := r.PeersKeys(t.Context(), func() []byte { return []byte("none") })
		if want := "there is no Secret herald-peers in the namespace " + home; err == nil ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "herald manifest rbac") {
			return fmt.Errorf("got %v, want %q", err, want)
		}
		return nil
	})

	api.must(t, "POST", secrets, `{"metadata":{"name":"herald-peers","labels":{"a":"b"}},"type":"Opaque"}`)
	key := sameKeys(t, r)
	if again := permittedKeys(t, r, "another"); again != key {
		t.Errorf("the key was %q, and is %q", key, again)
	}
	if text := api.must(t, "GET", secrets+"/herald-peers", ""); !strings.Contains(text, `"a":"b"`) {
		t.Errorf("labels are lost: %s", text)
	}
	// Somebody rotates it.
	api.must(t, "PATCH", secrets+"/herald-peers", `{"stringData":{"keys":"new"}}`)
	if keys, err := r.PeersKeys(t.Context(), nil); err != nil || string(keys) != "new" {
		t.Errorf("after a rotation: got %q, %v", keys, err)
	}
	api.must(t, "PATCH", secrets+"/herald-peers", `{"data":{"keys":null,"key":"eHg="}}`)
	if _, err := r.PeersKeys(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `no entry "keys"`) {
		t.Errorf("without the entry: got %v", err)
	}

	// A static Pod may have the kubeconfig of an administrator, and no manifest of permissions.
	api.must(t, "DELETE", secrets+"/herald-peers", "")
	api.allow(t, "narrow", home, mayCreate)
	sameKeys(t, r)
}
