package e2e

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// TestRotateKey: the key of the heartbeats is replaced, and not one heartbeat is dropped for it.
func TestRotateKey(t *testing.T) {
	f := start(t, env())
	heard := func() error {
		for _, n := range cluster.Nodes() {
			page, err := cluster.Get(t.Context(), n, "http://127.0.0.1:2112/metrics")
			if err != nil {
				return err
			}
			if alive := strings.Count(page, `state="alive"} 1`); alive != len(cluster.Nodes())-1 {
				return fmt.Errorf("%s hears %d other nodes", n, alive)
			}
		}
		return nil
	}
	check.Until(t, 20*time.Second, "the nodes hear each other", heard)
	before := heartbeatKeys(t, "n1")
	secrets := cluster.Client().CoreV1().Secrets("kube-system")
	secret := check.Value(secrets.Get(t.Context(), "herald-peers", metav1.GetOptions{}))(t)
	oldKey, newKey := secret.Data["keys"], []byte(base64.StdEncoding.EncodeToString([]byte("another key of thirty-two bytes."))+"\n")
	for i, keys := range []string{string(newKey) + string(oldKey), string(newKey)} {
		secret.Data["keys"] = []byte(keys)
		secret = check.Value(secrets.Update(t.Context(), secret, metav1.UpdateOptions{}))(t)
		check.Until(t, time.Minute, "all nodes have read the keys", func() error {
			for _, n := range cluster.Nodes() {
				if got := len(heartbeatKeys(t, n)); got != 2-i || slices.Equal(heartbeatKeys(t, n), before) {
					return fmt.Errorf("%s has %d keys", n, got)
				}
			}
			return nil
		})
	}
	check.OK(t, heard())
	for _, n := range cluster.Nodes() {
		page := check.Value(cluster.Get(t.Context(), n, "http://127.0.0.1:2112/metrics"))(t)
		for line := range strings.Lines(page) {
			if strings.HasPrefix(line, "herald_peers_packets_dropped_total") && strings.Contains(line, `"key"`) && !strings.HasSuffix(line, " 0\n") {
				t.Errorf("%s: %s", n, line)
			}
		}
		if log := f.node[n].Log(); strings.Contains(log, "another node is suspect") || strings.Contains(log, "another node does not answer") {
			t.Errorf("%s:\n%s", n, tail(log, 20))
		}
	}
}

// serviceAccount is the user that Herald is to the API server.
const serviceAccount = "system:serviceaccount:kube-system:herald"

// rbacManifest returns what "herald manifest rbac" prints.
func rbacManifest(t *testing.T, args ...string) string {
	t.Helper()
	return string(check.Value(exec.Command(herald, append([]string{"manifest", "rbac"}, args...)...).Output())(t))
}

// granted returns what "herald manifest rbac" permits, as "group/resource name verb" with a dash for any name, each for its namespace
// if it has one.
func granted(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for doc := range strings.SplitSeq(rbacManifest(t), "---\n") {
		var role rbacv1.Role // a ClusterRole has the same fields, and no namespace
		check.OK(t, yaml.Unmarshal([]byte(doc), &role))
		for _, r := range role.Rules {
			names := r.ResourceNames
			if len(names) == 0 {
				names = []string{"-"}
			}
			for _, name := range names {
				for _, verb := range r.Verbs {
					if verb == "list" && slices.Contains(r.Verbs, "watch") {
						continue // API servers that send what there is at the start of a watch are asked for no list
					}
					all[fmt.Sprintf("%s %s/%s %s %s", cmp.Or(role.Namespace, "-"), r.APIGroups[0], r.Resources[0], name, verb)] = true
				}
			}
		}
	}
	return all
}

// TestLeastRights: in a short life of three Heralds, no request is refused for want of permission, and each permission that
// "herald manifest rbac" grants is used: one that is used by nothing should not be granted.
func TestLeastRights(t *testing.T) {
	audit := filepath.Join(cluster.Dir(), "logs", "audit.log")
	before := len(check.Value(os.ReadFile(audit))(t))
	// As in a new cluster: the Secret is there, without a key.
	check.Value(cluster.Client().CoreV1().Secrets("kube-system").Patch(t.Context(), "herald-peers", types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{}))(t)
	f := start(t, env())
	createService(t, webService("a", "10.77.0.50", lab.Annotated("kube-vip.io/egress", "true")))
	node := awaitOwner(t, "a")
	awaitStatus(t, "a", "10.77.0.50(VIP)", 10*time.Second)
	f.node[node].Signal(syscall.SIGTERM) // hands over
	check.OK(t, f.node[node].Wait(withTimeout(t, 30*time.Second)))
	check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))

	unused := granted(t)
	if len(unused) < 12 {
		t.Fatalf("only %d permissions: %q", len(unused), slices.Sorted(maps.Keys(unused)))
	}
	check.Until(t, 20*time.Second, "each permission is used", func() error {
		for line := range strings.Lines(string(check.Value(os.ReadFile(audit))(t)[before:])) {
			var e struct {
				Verb      string
				User      struct{ Username string }
				ObjectRef struct{ Resource, Subresource, Namespace, Name, APIGroup string }
				Status    struct{ Code int } `json:"responseStatus"`
			}
			if json.Unmarshal([]byte(line), &e) != nil { // the last one is not written to its end yet
				continue
			}
			if e.User.Username != serviceAccount {
				t.Fatalf("a request of %q", e.User.Username)
			}
			if e.Status.Code == 403 {
				t.Fatalf("refused: %s", line)
			}
			resource := e.ObjectRef.Resource
			if e.ObjectRef.Subresource != "" {
				resource += "/" + e.ObjectRef.Subresource
			}
			for _, namespace := range []string{"-", e.ObjectRef.Namespace} {
				for _, name := range []string{"-", e.ObjectRef.Name} {
					delete(unused, fmt.Sprintf("%s %s/%s %s %s", namespace, e.ObjectRef.APIGroup, resource, name, e.Verb))
				}
			}
		}
		if len(unused) > 0 {
			return fmt.Errorf("nobody uses %q", slices.Sorted(maps.Keys(unused)))
		}
		return nil
	})
}
