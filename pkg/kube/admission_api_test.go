package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// TestAdmission: with the policies of the manifests a tenant, who has the role edit in a namespace, may ask for what
// an annotation of the namespace lists; Herald and an administrator may go on. Herald's token is good for Leases of Herald, and for the status and the annotations of Services that
// Herald writes, and for no others.
func TestAdmission(t *testing.T) {
	const tenant = "ann"
	api := startAPI(t)
	api.apply(t, "rbac.yaml")
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	// As beside kube-vip Herald has the right to write the tenant's Leases, which the policies narrow.
	api.must(t, "POST", rbac+"clusterroles", `{"metadata":{"name":"leases"},"rules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["*"]}]}`)
	api.must(t, "POST", rbac+"clusterrolebindings", `{"metadata":{"name":"leases"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"leases"},"subjects":[{"kind":"ServiceAccount","name":"herald","namespace":"kube-system"}]}`)
	t.Cleanup(func() { api.do("DELETE", rbac+"clusterrolebindings/leases", "") })
	ns := api.namespace(t)
	api.must(t, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/rolebindings",
		`{"metadata":{"name":"ann"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:aggregate-to-edit"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"ann"}]}`)
	services, leases := "/api/v1/namespaces/"+ns+"/services", "/apis/coordination.k8s.io/v1/namespaces/"+ns+"/leases"
	service := func(name, annotations string) string {
		return `{"metadata":{"name":"` + name + `","annotations":{` + annotations +
			`}},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`
	}
	lease := func(name, annotations string) string {
		return `{"metadata":{"name":"` + name + `","annotations":{` + annotations +
			`}},"spec":{"holderIdentity":"n1","leaseDurationSeconds":15}}`
	}
	const claim = `"heraldvip.io/claim":"n1@7"`

	// What was there before the policies, and stays.
	check.Until(t, 20*time.Second, "the tenant has the role", func() error {
		if resp, answer := api.doAs(t, tenant, "POST", services, service("old",
			`"kube-vip.io/loadbalancerIPs":"10.9.9.9","kube-vip.io/hwaddr":"02:00:00:00:00:01"`)); resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("%s", answer)
		}
		return nil
	})
	api.must(t, "POST", services, strings.Replace(service("kept", ""), `{"name"`,
		`{"finalizers":["example.com/stuck","service.kubernetes.io/load-balancer-cleanup"],"name"`, 1))
	t.Cleanup(func() { api.do("PATCH", services+"/kept", `{"metadata":{"finalizers":null}}`) })
	own := strings.Replace(lease("own", claim), `{"name"`, `{"labels":{"app.kubernetes.io/managed-by":"herald"},"name"`, 1)
	api.must(t, "POST", leases, own)
	const election = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/some-controller"
	api.must(t, "POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease("some-controller", ""))
	t.Cleanup(func() { api.do("DELETE", election, "") })
	api.apply(t, "admission.yaml")
	check.Until(t, 20*time.Second, "the policies are in force", func() error {
		for _, probe := range []struct{ user, method, path, body string }{ // one of each policy
			{tenant, "POST", services, service("probe", `"kube-vip.io/hwaddr":"02:00:00:00:00:01"`)},
			{serviceAccount, "POST", leases, lease("probe", claim)},
			{serviceAccount, "PATCH", services + "/old/status", `{"metadata":{"annotations":{"example.com/other":"x"}}}`},
		} {
			if resp, answer := api.doAs(t, probe.user, probe.method, probe.path+"?dryRun=All",
				probe.body); resp.StatusCode != http.StatusUnprocessableEntity && resp.StatusCode != http.StatusForbidden {
				return fmt.Errorf("%s: %d %s", probe.path, resp.StatusCode, answer)
			}
		}
		return nil
	})

	type request struct{ user, method, path, body, refused string } // refused: words of the answer; none: permitted
	expect := func(requests ...request) {
		t.Helper()
		for _, r := range requests {
			resp, answer := api.doAs(t, r.user, r.method, r.path, r.body)
			if ok := resp.StatusCode < 300; ok != (r.refused == "") || !strings.Contains(answer, r.refused) {
				t.Errorf("%s: %s %s %.300s is answered by %d %.600s, want %q", r.user, r.method, r.path, r.body, resp.StatusCode,
					answer, r.refused)
			}
		}
	}
	dry := "?dryRun=All"
	stored := func(path string) string { return api.must(t, "GET", path, "") }
	expect(
		request{tenant, "POST", services + dry, service("a", ""), ""},
		request{tenant, "POST", services + dry, service("a", `"kube-vip.io/forwardUPNP":"true"`),
			"may not set kube-vip.io/forwardUPNP on a Service: its annotation heraldvip.io/allowed-annotations"},
		request{tenant, "POST", services + dry, service("a", `"kube-vip.io/loadbalancerHostname":"wpad"`),
			"may not set kube-vip.io/loadbalancerHostname on a Service"},
		request{tenant, "POST", services + dry, service("a", `"heraldvip.io/dhcp-lease":"[]"`),
			"may not set heraldvip.io/dhcp-lease on a Service"},
		// What is there may be changed in other respects.
		request{tenant, "PATCH", services + "/old" + dry, `{"metadata":{"labels":{"a":"b"}}}`, ""},
		request{tenant, "PATCH", services + "/old" + dry,
			`{"metadata":{"annotations":{"kube-vip.io/hwaddr":"02:00:00:00:00:02"}}}`, "may not set kube-vip.io/hwaddr"},
		request{tenant, "PATCH", services + "/old" + dry, `{"metadata":{"annotations":{"kube-vip.io/hwaddr":null}}}`, ""},
		request{serviceAccount, "PATCH", services + "/old/status" + dry,
			`{"metadata":{"annotations":{"kube-vip.io/vipHost":"n1","kube-vip.io/requestedIP":"10.77.0.9","heraldvip.io/dhcp-lease":"[]"}}}`, ""},
		// Herald's token.
		request{serviceAccount, "POST", leases + dry, strings.Replace(own, "own", "mine", 1), ""},
		request{serviceAccount, "PUT", leases + "/own" + dry, stored(leases + "/own"), ""},
		request{serviceAccount, "DELETE", leases + "/own" + dry, "", ""},
		request{serviceAccount, "POST", leases + dry, lease("mine", claim), "managed-by=herald"},
		request{serviceAccount, "DELETE", election, "", "managed-by=herald"},
		request{serviceAccount, "PUT", election, strings.Replace(stored(election), `"n1"`, `"thief"`, 1), "managed-by=herald"},
		request{serviceAccount, "PUT", election, strings.Replace(stored(election), `"name"`,
			`"labels":{"app.kubernetes.io/managed-by":"herald"},"name"`, 1), "managed-by=herald"},
		request{serviceAccount, "PATCH", services + "/old/status" + dry, `{"status":{"loadBalancer":{"ingress":[{"ip":"10.9.9.9"}]}}}`, ""},
		request{serviceAccount, "PATCH", services + "/old/status" + dry,
			`{"metadata":{"annotations":{"kube-vip.io/hwaddr":"02:00:00:00:00:02"}}}`, "only its own annotations"},
		request{serviceAccount, "PATCH", services + "/old/status" + dry,
			`{"metadata":{"annotations":{"kube-vip.io/hwaddr":null}}}`, "only its own annotations"},
		request{serviceAccount, "PATCH", services + "/old/status" + dry,
			`{"metadata":{"annotations":{"example.com/other":"x"}}}`, "only its own annotations"},
		request{serviceAccount, "PATCH", services + "/old/status" + dry, `{"metadata":{"labels":{"app":"other"}}}`,
			"no labels, owners or finalizers"},
		request{serviceAccount, "PATCH", services + "/old/status" + dry, `{"metadata":{"finalizers":["example.com/stuck"]}}`,
			"no labels, owners or finalizers"},
		request{serviceAccount, "PATCH", services + "/old/status" + dry,
			`{"metadata":{"finalizers":["service.kubernetes.io/load-balancer-cleanup"]}}`, ""},
		request{serviceAccount, "PATCH", services + "/old/status" + dry,
			`{"metadata":{"finalizers":["service.kubernetes.io/load-balancer-cleanup","example.com/stuck"]}}`,
			"no labels, owners or finalizers"},
		request{serviceAccount, "PATCH", services + "/kept/status" + dry, `{"metadata":{"finalizers":["example.com/stuck"]}}`, ""},
		request{serviceAccount, "PATCH", services + "/kept/status" + dry,
			`{"metadata":{"finalizers":["service.kubernetes.io/load-balancer-cleanup"]}}`, "no labels, owners or finalizers"},
	)

	api.must(t, "PATCH", "/api/v1/namespaces/"+ns,
		`{"metadata":{"annotations":{"heraldvip.io/allowed-annotations":"kube-vip.io/forwardUPNP"}}}`)
	check.Until(t, 20*time.Second, "the namespace may have what its annotations list", func() error {
		if resp, answer := api.doAs(t, tenant, "POST", services+dry, service("a",
			`"kube-vip.io/forwardUPNP":"true"`)); resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("%d %s", resp.StatusCode, answer)
		}
		return nil
	})
	expect(
		request{tenant, "POST", services + dry, service("a", `"kube-vip.io/hwaddr":"02:00:00:00:00:01"`), "may not set kube-vip.io/hwaddr"},
	)
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns, `{"metadata":{"annotations":{"heraldvip.io/allowed-annotations":"*"}}}`)
	check.Until(t, 20*time.Second, "the namespace may set every annotation", func() error {
		if resp, answer := api.doAs(t, tenant, "POST", services+dry, service("a",
			`"kube-vip.io/hwaddr":"02:00:00:00:00:01"`)); resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("%d %s", resp.StatusCode, answer)
		}
		return nil
	})
}
