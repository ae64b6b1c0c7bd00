package kube

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/heraldvip/herald/testing/check"
)

// TestInspect: the version is read, and of the permissions asked for those that are missing are returned.
func TestInspect(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	api.allow(t, "nobody", ns, `[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"resourceNames":["a"],"verbs":["get"]},
		{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]}]`)
	lease := authorizationv1.ResourceAttributes{Namespace: ns, Group: "coordination.k8s.io", Resource: "leases", Name: "a", Verb: "get"}
	status := authorizationv1.ResourceAttributes{Namespace: ns, Resource: "services", Subresource: "status", Verb: "patch"}
	elsewhere, service, other := status, status, lease
	elsewhere.Namespace, service.Subresource, other.Name = "", "", "b"
	missing := []string{"patch services/status", "patch services in " + ns, "get leases.coordination.k8s.io b in " + ns}
	var got Inspection
	check.Until(t, 10*time.Second, "the API server's authorizer has read the Role", func() (err error) {
		got, err = Inspect(t.Context(), api.as("nobody"), []authorizationv1.ResourceAttributes{lease, elsewhere, service, status, other})
		if diff := cmp.Diff(missing, got.Missing); err == nil && diff != "" {
			return errors.New(diff)
		}
		return err
	})
	if got.Minor < 30 || got.Version[:2] != "v1" {
		t.Errorf("version %q, minor %d", got.Version, got.Minor)
	}
}
