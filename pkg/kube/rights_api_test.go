package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// manifests is the directory of the repository's manifests; this room may not import what writes them.
const manifests = "../../manifests/"

// serviceAccount is the user that a Pod of Herald is to the API server.
const serviceAccount = "system:serviceaccount:kube-system:herald"

// collections is where the API server has the objects of a kind, with the namespace still to be put in.
var collections = map[string]string{
	"ServiceAccount":                   "/api/v1/namespaces/%s/serviceaccounts",
	"Secret":                           "/api/v1/namespaces/%s/secrets",
	"ClusterRole":                      "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	"ClusterRoleBinding":               "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
	"Role":                             "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles",
	"RoleBinding":                      "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings",
	"FlowSchema":                       "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
	"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}

// apply creates the objects of a file of manifests, and deletes them when the test ends.
func (s *apiServer) apply(t *testing.T, file string) {
	t.Helper()
	text := string(check.Value(os.ReadFile(manifests + file))(t))
	for doc := range strings.SplitSeq(text, "---\n") {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		check.OK(t, yaml.Unmarshal([]byte(doc), &o))
		if o.Kind == "" || o.Kind == "DaemonSet" || o.Kind == "Kustomization" {
			continue
		}
		path := collections[o.Kind]
		if path == "" {
			t.Fatalf("%s has a %s, which this test does not know", file, o.Kind)
		}
		if strings.Contains(path, "%s") {
			path = fmt.Sprintf(path, o.Metadata.Namespace)
		}
		s.do("DELETE", path+"/"+o.Metadata.Name, "")
		s.must(t, "POST", path, string(check.Value(yaml.YAMLToJSON([]byte(doc)))(t)))
		t.Cleanup(func() { s.do("DELETE", path+"/"+o.Metadata.Name, "") })
	}
}

// doAs is send, which has to be answered.
func (s *apiServer) doAs(t *testing.T, user, method, path, body string) (*http.Response, string) {
	t.Helper()
	resp, answer, err := s.send(user, method, path, body)
	check.OK(t, err)
	return resp, answer
}

// rightsOf is all that RBAC lets a user do in a namespace, one rule per line, sorted, as the API server's own review says.
func (s *apiServer) rightsOf(t *testing.T, user, namespace string) string {
	t.Helper()
	_, answer := s.doAs(t, user, "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", `{"spec":{"namespace":"`+namespace+`"}}`)
	var review authorizationv1.SelfSubjectRulesReview
	check.OK(t, json.Unmarshal([]byte(answer), &review))
	var lines []string
	for _, r := range review.Status.ResourceRules {
		line := fmt.Sprintf("%s %s %s: %s", strings.Join(r.APIGroups, ","), strings.Join(r.Resources, ","),
			strings.Join(r.ResourceNames, ","), strings.Join(r.Verbs, " "))
		// What each user may: ask who and what they are.
		if !strings.Contains(line, "selfsubject") {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

// TestStolenToken: what whoever has the token of Herald's ServiceAccount can do is testdata/rights.txt and no more:
// mint no token, and give nobody rights.
func TestStolenToken(t *testing.T) {
	api := startAPI(t)
	api.apply(t, "rbac.yaml")
	tenant := api.namespace(t)
	secrets := "/api/v1/namespaces/kube-system/secrets"
	api.must(t, "POST", secrets, `{"metadata":{"name":"other"}}`)
	t.Cleanup(func() {
		for _, name := range []string{"other", "bootstrap-token-abcdef", "minted"} {
			api.do("DELETE", secrets+"/"+name, "")
		}
	})
	check.Until(t, 20*time.Second, "the authorizer knows the Role", func() error {
		if resp, answer := api.doAs(t, serviceAccount, "GET", secrets+"/"+PeersSecret, ""); resp.StatusCode == http.StatusForbidden {
			return fmt.Errorf("%s", answer)
		}
		return nil
	})

	rights := "in kube-system:\n" + api.rightsOf(t, serviceAccount, "kube-system") + "\nin a namespace of tenants:\n" +
		api.rightsOf(t, serviceAccount, tenant)
	check.Golden(t, "testdata/rights.txt", rights)

	for _, tt := range []struct {
		what, method, path, body string
		want                     int
	}{
		{"make a bootstrap token, with which a machine joins as any node", "POST", secrets,
			`{"metadata":{"name":"bootstrap-token-abcdef"},"type":"bootstrap.kubernetes.io/token","data":{"token-id":"YWJjZGVm","token-secret":"MDEyMzQ1Njc4OWFiY2RlZg==","usage-bootstrap-authentication":"dHJ1ZQ=="}}`, http.StatusForbidden},
		{"make a token of another ServiceAccount", "POST", secrets,
			`{"metadata":{"name":"minted","annotations":{"kubernetes.io/service-account.name":"clusterrole-aggregation-controller"}},"type":"kubernetes.io/service-account-token"}`, http.StatusForbidden},
		{"turn the Secret of the heartbeats' key into such a token", "PUT", secrets + "/" + PeersSecret,
			`{"metadata":{"name":"herald-peers","annotations":{"kubernetes.io/service-account.name":"clusterrole-aggregation-controller"}},"type":"kubernetes.io/service-account-token"}`, http.StatusUnprocessableEntity},
		{"ask for a token of another ServiceAccount", "POST", "/api/v1/namespaces/kube-system/serviceaccounts/herald/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["x"]}}`, http.StatusForbidden},
		{"delete the Secret, to make another", "DELETE", secrets + "/" + PeersSecret, "", http.StatusForbidden},
		{"read another Secret", "GET", secrets + "/other", "", http.StatusForbidden},
		{"list Secrets", "GET", secrets, "", http.StatusForbidden},
		{"drain a node", "PATCH", "/api/v1/nodes/n1", `{"metadata":{"annotations":{"heraldvip.io/drain":"x"}}}`, http.StatusForbidden},
		{"change a Service's spec", "PATCH", "/api/v1/namespaces/default/services/kubernetes", `{"spec":{"type":"NodePort"}}`,
			http.StatusForbidden},
	} {
		if resp, answer := api.doAs(t, serviceAccount, tt.method, tt.path, tt.body); resp.StatusCode != tt.want {
			t.Errorf("%s: %s %s is answered by %d, want %d: %.200s", tt.what, tt.method, tt.path, resp.StatusCode, tt.want, answer)
		}
	}
}

// TestCommandsInThePod: commands that read, run in a Pod of Herald, have the rights that they need, but for Events; and who may get the ConfigMap of pools needs not be able to list it.
func TestCommandsInThePod(t *testing.T) {
	api := startAPI(t)
	api.apply(t, "rbac.yaml")
	pools := vip.Key{Namespace: "kube-system", Name: "kubevip"}
	configMaps := "/api/v1/namespaces/kube-system/configmaps"
	api.must(t, "POST", configMaps, `{"metadata":{"name":"kubevip"},"data":{"cidr-global":"192.0.2.0/24"}}`)
	t.Cleanup(func() { api.do("DELETE", configMaps+"/kubevip", "") })
	api.allow(t, "nobody", "kube-system", `[{"apiGroups":[""],"resources":["configmaps"],"resourceNames":["kubevip","none"],"verbs":["get"]}]`)
	pod := api.as("admin")
	pod.Impersonate = rest.ImpersonationConfig{UserName: serviceAccount, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	check.Until(t, 20*time.Second, "Herald's Pod reads what herald status and explain read", func() error {
		s, err := TakeAllowedSnapshot(t.Context(), pod, "")
		if err == nil {
			err = s.TakeEndpoints(t.Context(), pod, "")
		}
		if err == nil && (len(s.Missing) != 1 || !strings.HasPrefix(s.Missing[0], "Events")) {
			err = fmt.Errorf("missing %q", s.Missing)
		}
		return err
	})
	for user, cfg := range map[string]*rest.Config{"the Pod": pod, "nobody": api.as("nobody"), "admin": api.as("admin")} {
		check.Until(t, 10*time.Second, user+" reads the pools", func() error {
			p, err := TakePools(t.Context(), cfg, pools)
			if err == nil && (p == nil || p.Data["cidr-global"] == "" || p.UID == "" || (user == "nobody") != (p.Namespaces == nil)) {
				err = fmt.Errorf("got %+v", p)
			}
			return err
		})
	}
	for _, user := range []string{"nobody", "admin"} {
		p, err := TakePools(t.Context(), api.as(user), vip.Key{Namespace: "kube-system", Name: "none"})
		if p != nil || err != nil {
			t.Errorf("%s gets %+v, %v of one that is not there", user, p, err)
		}
	}
}

// TestFlowSchema: what Herald sends does not wait in the queues of all tenants' ServiceAccounts, in kube-system by
// what the API server has itself, elsewhere by what the manifests bring.
func TestFlowSchema(t *testing.T) {
	api := startAPI(t)
	api.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"herald"}}`)
	level := func(user, method, path string) string {
		t.Helper()
		resp, _ := api.doAs(t, user, method, path, "{}")
		uid := resp.Header.Get("X-Kubernetes-PF-FlowSchema-UID")
		var all struct {
			Items []struct {
				Metadata struct{ Name, UID string }
				Spec     struct {
					PriorityLevelConfiguration struct{ Name string }
				}
			}
		}
		check.OK(t, json.Unmarshal([]byte(api.must(t, "GET", collections["FlowSchema"], "")), &all))
		for _, s := range all.Items {
			if s.Metadata.UID == uid {
				return s.Spec.PriorityLevelConfiguration.Name
			}
		}
		return "none: " + uid
	}
	renewal := "/apis/coordination.k8s.io/v1/namespaces/%s/leases/herald-node-n1"
	own := "system:serviceaccount:herald:herald"
	check.Equal(t, level(own, "PUT", fmt.Sprintf(renewal, "herald")), "workload-low", "without the manifests a renewal is served at")
	api.apply(t, "rbac-own-namespace.yaml")
	check.Until(t, 20*time.Second, "the API server sorts by the new FlowSchemas", func() error {
		if got := level(own, "PUT", fmt.Sprintf(renewal, "herald")); got != "leader-election" {
			return fmt.Errorf("a renewal is served at %s", got)
		}
		return nil
	})
	for _, tt := range []struct{ user, method, path, want string }{
		{own, "GET", "/api/v1/services", "workload-high"},
		{own, "PATCH", "/api/v1/namespaces/default/services/kubernetes/status", "workload-high"},
		{"system:serviceaccount:herald:default", "PUT", fmt.Sprintf(renewal, "herald"), "workload-low"},
		{"system:serviceaccount:tenant:herald", "PUT", fmt.Sprintf(renewal, "tenant"), "workload-low"},
		{serviceAccount, "PUT", fmt.Sprintf(renewal, "kube-system"), "leader-election"},
		{serviceAccount, "GET", "/api/v1/services", "workload-high"},
	} {
		check.Equal(t, level(tt.user, tt.method, tt.path), tt.want, "%s: %s %s is served at", tt.user, tt.method, tt.path)
	}
}

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
				t.Errorf("%s: %s %s %.300s is answered by %d %.600s, want %q", r.user, r.method, r.path, r.body, resp.StatusCode, answer, r.refused)
			}
		}
	}
	dry := "?dryRun=All"
	stored := func(path string) string { return api.must(t, "GET", path, "") }
	annotated := func(annotation string) string { return `{"metadata":{"annotations":{` + annotation + `}}}` }
	old, status, kept := services+"/old"+dry, services+"/old/status"+dry, services+"/kept/status"+dry
	const labelled, others = "managed-by=herald", "no labels, owners or finalizers"
	const hwaddr, cleanup = `"kube-vip.io/hwaddr":"02:00:00:00:00:02"`, `"service.kubernetes.io/load-balancer-cleanup"`
	expect([]request{
		{tenant, "POST", services + dry, service("a", ""), ""},
		{tenant, "POST", services + dry, service("a", `"kube-vip.io/forwardUPNP":"true"`),
			"may not set kube-vip.io/forwardUPNP on a Service: its annotation heraldvip.io/allowed-annotations"},
		{tenant, "POST", services + dry, service("a", `"kube-vip.io/loadbalancerHostname":"wpad"`),
			"may not set kube-vip.io/loadbalancerHostname on a Service"},
		{tenant, "POST", services + dry, service("a", `"heraldvip.io/dhcp-lease":"[]"`), "may not set heraldvip.io/dhcp-lease on a Service"},
		// What is there may be changed in other respects.
		{tenant, "PATCH", old, `{"metadata":{"labels":{"a":"b"}}}`, ""},
		{tenant, "PATCH", old, annotated(hwaddr), "may not set kube-vip.io/hwaddr"},
		{tenant, "PATCH", old, annotated(`"kube-vip.io/hwaddr":null`), ""},
		{serviceAccount, "PATCH", status,
			annotated(`"kube-vip.io/vipHost":"n1","kube-vip.io/requestedIP":"10.77.0.9","heraldvip.io/dhcp-lease":"[]"`), ""},
		// Herald's token.
		{serviceAccount, "POST", leases + dry, strings.Replace(own, "own", "mine", 1), ""},
		{serviceAccount, "PUT", leases + "/own" + dry, stored(leases + "/own"), ""},
		{serviceAccount, "DELETE", leases + "/own" + dry, "", ""},
		{serviceAccount, "POST", leases + dry, lease("mine", claim), labelled},
		{serviceAccount, "DELETE", election, "", labelled},
		{serviceAccount, "PUT", election, strings.Replace(stored(election), `"n1"`, `"thief"`, 1), labelled},
		{serviceAccount, "PUT", election, strings.Replace(stored(election), `"name"`,
			`"labels":{"app.kubernetes.io/managed-by":"herald"},"name"`, 1), labelled},
		{serviceAccount, "PATCH", status, `{"status":{"loadBalancer":{"ingress":[{"ip":"10.9.9.9"}]}}}`, ""},
		{serviceAccount, "PATCH", status, annotated(hwaddr), "only its own annotations"},
		{serviceAccount, "PATCH", status, annotated(`"kube-vip.io/hwaddr":null`), "only its own annotations"},
		{serviceAccount, "PATCH", status, annotated(`"example.com/other":"x"`), "only its own annotations"},
		{serviceAccount, "PATCH", status, `{"metadata":{"labels":{"app":"other"}}}`, others},
		{serviceAccount, "PATCH", status, `{"metadata":{"finalizers":["example.com/stuck"]}}`, others},
		{serviceAccount, "PATCH", status, `{"metadata":{"finalizers":[` + cleanup + `]}}`, ""},
		{serviceAccount, "PATCH", status, `{"metadata":{"finalizers":[` + cleanup + `,"example.com/stuck"]}}`, others},
		{serviceAccount, "PATCH", kept, `{"metadata":{"finalizers":["example.com/stuck"]}}`, ""},
		{serviceAccount, "PATCH", kept, `{"metadata":{"finalizers":[` + cleanup + `]}}`, others},
	}...)

	for _, tt := range []struct{ allowed, annotation, refused string }{
		{"kube-vip.io/forwardUPNP", `"kube-vip.io/forwardUPNP":"true"`, "may not set kube-vip.io/hwaddr"}, {"*", hwaddr, ""},
	} {
		api.must(t, "PATCH", "/api/v1/namespaces/"+ns, annotated(`"heraldvip.io/allowed-annotations":"`+tt.allowed+`"`))
		check.Until(t, 20*time.Second, "the namespace may have "+tt.allowed, func() error {
			if resp, answer := api.doAs(t, tenant, "POST", services+dry, service("a", tt.annotation)); resp.StatusCode != http.StatusCreated {
				return fmt.Errorf("%d %s", resp.StatusCode, answer)
			}
			return nil
		})
		expect(request{tenant, "POST", services + dry, service("a", hwaddr), tt.refused})
	}
}

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
