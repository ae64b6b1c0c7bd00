package kube

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
)

// TestInspect: the version is read, and of the permissions asked for those that are
// missing are returned.
func TestInspect(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	api.allow(t, "nobody", ns, `[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"resourceNames":["a"],"verbs":["get"]},
		{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]}]`)
	lease := Permission{Namespace: ns, Group: "coordination.k8s.io", Resource: "leases", Name: "a", Verb: "get"}
	status := Permission{Namespace: ns, Resource: "services", Subresource: "status", Verb: "patch"}
	elsewhere, service, other := status, status, lease
	elsewhere.Namespace, service.Subresource, other.Name = "", "", "b"
	missing := []Permission{elsewhere, service, other}
	var got Inspection
	check.Until(t, 10*time.Second, "the API server's authorizer has read the Role", func() (err error) {
		got, err = Inspect(t.Context(), api.as("nobody"), []Permission{lease, elsewhere, service, status, other})
		if diff := cmp.Diff(missing, got.Missing); err == nil && diff != "" {
			return errors.New(diff)
		}
		return err
	})
	if got.Minor < 30 || got.Version[:2] != "v1" {
		t.Errorf("version %q, minor %d", got.Version, got.Minor)
	}
}
