package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/testing/check"
)

// TestControlPlaneRights: with cp_enable alone Herald reads of Services and EndpointSlices those of the API servers, and writes on none. Its ClusterRole has a name of its
// own.
func TestControlPlaneRights(t *testing.T) {
	const alone = "--arp --controlplane --address 192.0.2.10"
	for _, tt := range []struct{ args, ofServices, role string }{
		{"", "/services list watch, /services/status patch, discovery.k8s.io/endpointslices list watch, /pods list watch, /configmaps list watch, /namespaces list watch", "herald"},
		{alone + " --services", "/services list watch, /services/status patch, discovery.k8s.io/endpointslices list watch, /pods list watch, /configmaps list watch, /namespaces list watch", "herald"},
		{alone, "default/services kubernetes list watch, default discovery.k8s.io/endpointslices kubernetes list watch", "herald-controlplane"},
		{alone + " --serviceNamespace web", "", ""},
	} {
		c := request(t, strings.Fields(tt.args)...).Config
		var all []string
		for _, p := range permissions(c) {
			what := strings.TrimSpace(p.Namespace + " " + p.Group)
			if p.Namespace == "" || p.Group == "" {
				what = p.Namespace + p.Group
			}
			what += "/" + p.Resource
			if p.Subresource != "" {
				what += "/" + p.Subresource
			}
			if p.Resource == "services" || p.Resource == "endpointslices" {
				what = strings.TrimSpace(what + " " + p.Name)
			}
			if !slices.Contains([]string{"services", "endpointslices", "pods", "configmaps", "namespaces"}, p.Resource) {
				continue
			}
			if n := len(all); n > 0 && strings.HasPrefix(all[n-1], what+" ") {
				all[n-1] += " " + p.Verb
				continue
			}
			all = append(all, what+" "+p.Verb)
		}
		check.Equal(t, strings.Join(all, ", "), tt.ofServices, "%s: Permissions", tt.args)
		granted := 0
		for _, o := range rbacObjects(c) {
			switch r := o.(type) {
			case *rbacv1.ClusterRole:
				check.Equal(t, r.Name, tt.role, "%s: ClusterRole", tt.args)
				granted += ofServices(r.Rules)
			case *rbacv1.Role:
				granted += ofServices(r.Rules)
				if r.Namespace == "default" && r.Name != "herald-api-servers" {
					t.Errorf("%s: Role %s in default", tt.args, r.Name)
				}
			}
		}
		if want := len(strings.Split(tt.ofServices, ", ")); tt.ofServices != "" && granted != want || tt.ofServices == "" && granted > 0 {
			t.Errorf("%s: the roles have %d rules of Services, want %d", tt.args, granted, want)
		}
	}
	// The command that the manifest names is one that works.
	text := string(check.Value(DaemonSet(request(t, strings.Fields(alone)...)))(t))
	if want := "herald manifest rbac --arp --controlplane --address=192.0.2.10 | kubectl apply"; !strings.Contains(text, want) {
		t.Errorf("no %q in\n%.600s", want, text)
	}
}

// TestTwoInstallations: outside its namespace each has objects of its own: who applies one takes no right from another.
func TestTwoInstallations(t *testing.T) {
	of := map[string]string{}
	for _, home := range []string{"kube-system", "a", "b"} {
		c := request(t, "--arp", "--controlplane", "--address=192.0.2.10", "--services", "--namespace="+home).Config
		for _, o := range slices.Concat(rbacObjects(c), tokenPolicies(c)) {
			m := o.(interface{ GetObjectMeta() metav1.Object }).GetObjectMeta()
			named := fmt.Sprintf("%T %s/%s", o, m.GetNamespace(), m.GetName())
			if other := of[named]; other != "" {
				t.Errorf("%s is of %s and of %s", named, other, home)
			}
			of[named] = home
		}
	}
}

// TestRightsBesideServices: where some nodes have cp_enable alone, and others Services, what is applied for the one takes no right from the other, in whatever order.
func TestRightsBesideServices(t *testing.T) {
	type object struct{ kind, namespace, name string }
	all := []string{"", "--serviceNamespace web", "--serviceNamespace kube-system", "--serviceNamespace web --leaseName web/cp"}
	for i := range 2 * len(all) * len(all) {
		args := []string{"--arp --services --servicesElection " + all[i/2%len(all)], "--arp --controlplane --address 192.0.2.10 " + all[i/2/len(all)]}
		if i%2 == 1 {
			slices.Reverse(args)
		}
		rights := make(map[object][]rbacv1.PolicyRule)
		var first config.Config
		for j, a := range args {
			c := request(t, strings.Fields(a)...).Config
			if j == 0 {
				first = c
			}
			for _, o := range rbacObjects(c) {
				switch r := o.(type) {
				case *rbacv1.ClusterRole:
					rights[object{r.Kind, "", r.Name}] = r.Rules
				case *rbacv1.Role:
					rights[object{r.Kind, r.Namespace, r.Name}] = r.Rules
				}
			}
		}
		for _, p := range permissions(first) {
			allowed := false
			for o, rules := range rights {
				allowed = allowed || (o.namespace == "" || o.namespace == p.Namespace) && slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
					resource := strings.TrimSuffix(p.Resource+"/"+p.Subresource, "/")
					return slices.Contains(r.APIGroups, p.Group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, p.Verb) &&
						(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, p.Name))
				})
			}
			if !allowed {
				t.Errorf("%s, and then %s: no right to %s %s/%s in %q any more", args[0], args[1], p.Verb, p.Resource, p.Subresource, p.Namespace)
				break
			}
		}
	}
}

// ofServices returns how many rules are of Services, and what belongs to them.
func ofServices(rules []rbacv1.PolicyRule) (n int) {
	for _, r := range rules {
		switch r.Resources[0] {
		case "services", "services/status", "endpointslices", "pods", "configmaps", "namespaces":
			n++
		}
	}
	return n
}

// TestPermissionsOfControlPlane: the role of kube-vip is enough for the VIP of the control plane, and for no Services.
func TestPermissionsOfControlPlane(t *testing.T) {
	kubeVIP := map[string]string{ // its resources and verbs, for all namespaces
		"services": "list get watch update", "services/status": "update", "nodes": "list get watch update patch", "leases": "list get watch update create",
		"endpoints": "list get watch", "endpointslices": "list get watch", "pods": "list",
	}
	for _, tt := range []struct {
		args   string
		enough bool
	}{
		{"--arp --controlplane --address 192.0.2.10", true},
		{"--arp --controlplane --address 192.0.2.10 --leaseName=locks/cp", true},
		{"--arp --controlplane --address 192.0.2.10 --services", false},
		{"--arp --services", false},
	} {
		c := request(t, strings.Fields(tt.args)...).Config
		needed, useful := Permissions(c)
		var missing []string
		for _, p := range needed {
			if !slices.Contains(strings.Fields(kubeVIP[strings.TrimSuffix(p.Resource+"/"+p.Subresource, "/")]), p.Verb) {
				missing = append(missing, p.Verb+" "+p.Resource)
			}
		}
		if (len(missing) == 0) != tt.enough || (len(useful) > 0) != tt.enough || len(needed)+len(useful) != len(permissions(c)) {
			t.Errorf("%s: missing %q; %d of use beside", tt.args, missing, len(useful))
		}
	}
}
