package manifest

import (
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/vip"
)

const peersSecret = "herald-peers"

type rule struct {
	Group, Resource string
	Names           []string // of the objects; none: all
	Verbs           []string
	Scope           scope
	when            func(config.Config) bool // only then; nil: always
	Reason          string
}

func (r rule) applies(c config.Config) bool { return r.when == nil || r.when(c) }

func (r rule) namesIn(c config.Config) []string {
	if slices.Contains(r.Names, poolsConfigMap) {
		return []string{c.Pools.Name}
	}
	return r.Names
}

// A scope is where a right is needed if svc_namespace limits Herald to a namespace.
type scope string

const (
	servicesNamespace  scope = "where the Services are"
	announcerNamespace scope = "where the announcers are"
	announcerOnly      scope = "where the announcers are, and nowhere else"
	clusterOnly        scope = "in the whole cluster only" // with svc_namespace Herald does without it
	apiServers         scope = "in the namespace default"  // the same
)

var (
	watchVerbs      = []string{"list", "watch"}
	leaseWriteVerbs = []string{"get", "create", "update", "delete"}
)

// hasServices reports whether Herald announces more than the control plane's VIP.
func hasServices(c config.Config) bool     { return !c.OnlyControlPlane() }
func withoutServices(c config.Config) bool { return c.OnlyControlPlane() }
func writesServices(c config.Config) bool  { return hasServices(c) && !c.Services.ReadOnly }
func limited(c config.Config) bool         { return c.Services.Namespace != "" }
func readsPools(c config.Config) bool {
	return writesServices(c) && c.Services.Namespace == "" && c.Pools.Name != ""
}
func hasEgress(c config.Config) bool   { return hasServices(c) && c.Egress.Enable }
func keepsSecret(c config.Config) bool { return c.Peers.Port != 0 && c.Peers.KeyFile == "" }

// poolsConfigMap in rule.Names stands for the name of the ConfigMap of pools.
const poolsConfigMap = "svc_pools"

// rules is the table of permissions.
var rules = []rule{
	{"", "services", nil, watchVerbs, servicesNamespace, hasServices, "The Services whose addresses are announced."},
	{"", "services/status", nil, []string{"patch"}, servicesNamespace, writesServices,
		"Write `status.loadBalancer`, conditions, the annotations that Herald writes, and the finalizer of load " +
			"balancers. Not needed with `disable_service_updates`, unless Services have that finalizer."},
	{"discovery.k8s.io", "endpointslices", nil, watchVerbs, servicesNamespace, hasServices,
		"On which nodes a Service has ready endpoints, and which addresses the API servers have."},
	{"", "services", []string{"kubernetes"}, watchVerbs, apiServers, withoutServices,
		"With `cp_enable` and `svc_enable=false`, in place of the rights on Services and EndpointSlices above: the " +
			"Service of the API servers."},
	{"discovery.k8s.io", "endpointslices", []string{"kubernetes"}, watchVerbs, apiServers, withoutServices,
		"The same: their addresses, to which Herald turns when the node's own API server is away. Without it the VIP " +
			"comes up all the same."},
	{"", "pods", nil, watchVerbs, servicesNamespace, hasEgress, "Which addresses the pods of Services with " +
		"`kube-vip.io/egress` have, and on which nodes they are. Not needed with `egress_enable=false`."},
	{"coordination.k8s.io", "leases", nil, watchVerbs, servicesNamespace, nil,
		"The Leases of Services that kube-vip renews: Herald leaves these Services to it."},
	{"coordination.k8s.io", "leases", nil, leaseWriteVerbs, announcerOnly, nil,
		"The node leases, which say who is alive, and the table of who owns what."},
	{"coordination.k8s.io", "leases", nil, watchVerbs, announcerNamespace, limited,
		"The same, with `svc_namespace`. Without it they are watched with all others."},
	{"", "events", nil, []string{"create"}, servicesNamespace, nil, "Events that tell a Service's user what happens " +
		"to its VIPs."},
	{"", "secrets", []string{peersSecret}, []string{"get", "update"}, announcerOnly, keepsSecret,
		"The key that encrypts the nodes' heartbeats: the first node writes it into this Secret, which comes with the " +
			"permissions and is empty. Not needed with `herald_peers_key`, or `herald_peers_port` 0."},
	{"", "nodes", nil, watchVerbs, clusterOnly, nil, "Which nodes must not carry VIPs or are drained (`herald " +
		"drain`), whose addresses and pod ranges no Service may take, and BGP peers by annotation."},
	{"", "configmaps", []string{poolsConfigMap}, watchVerbs, clusterOnly, readsPools,
		"The address pools. Not needed with `svc_pools=`."},
	{"", "namespaces", nil, watchVerbs, clusterOnly, readsPools, "The labels of namespaces, by which a pool may " +
		"choose those that it is for."},
	{"networking.k8s.io", "servicecidrs", nil, watchVerbs, clusterOnly, nil,
		"The cluster's own ranges, which no Service may take."},
}

// rbacOptions decide the rights, unless withoutServices: cp_enable needs others.
var rbacOptions = []string{"cp_namespace", "svc_namespace", "svc_leasename", "vip_leasename",
	"disable_service_updates", "herald_peers_port", "herald_peers_key", "svc_pools", "svc_pools_namespace",
	"egress_enable"}

// policyRules returns what the table grants in any of scopes, each permission once.
func policyRules(c config.Config, scopes ...scope) []rbacv1.PolicyRule {
	var policy []rbacv1.PolicyRule
	for _, r := range rules {
		if !slices.Contains(scopes, r.Scope) || !r.applies(c) {
			continue
		}
		p := rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, ResourceNames: r.namesIn(c),
			Verbs: r.Verbs}
		if !slices.ContainsFunc(policy, func(o rbacv1.PolicyRule) bool { return o.String() == p.String() }) {
			policy = append(policy, p)
		}
	}
	return policy
}

// rbacObjects returns the ServiceAccount, the Secret of the heartbeats' key if needed, outside kube-system its
// FlowSchemas, and the roles bound to it.
func rbacObjects(c config.Config) []any {
	home := c.Node.Namespace
	objects := []any{&corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: meta(home),
	}}
	if keepsSecret(c) {
		objects = append(objects, emptySecret(home))
	}
	objects = append(objects, flowSchemas(c)...)
	if c.Services.Namespace == "" {
		objects = append(objects,
			roleAndBinding(roleName(c), "", home, policyRules(c, servicesNamespace, announcerNamespace, clusterOnly))...)
		if policy := policyRules(c, apiServers); len(policy) > 0 {
			objects = append(objects, roleAndBinding(name+"-api-servers", metav1.NamespaceDefault, home, policy)...)
		}
		if policy := policyRules(c, announcerOnly); len(policy) > 0 {
			objects = append(objects, roleAndBinding(roleName(c), home, home, policy)...)
		}
		return objects
	}
	scopes := map[string][]scope{}
	scopes[c.Services.Namespace] = append(scopes[c.Services.Namespace], servicesNamespace)
	scopes[home] = append(scopes[home], announcerNamespace, announcerOnly)
	order := []string{c.Services.Namespace, home}
	for _, namespace := range namespacesOf(c, c.Services.Lease, c.ControlPlane.Lease) {
		if scopes[namespace] == nil {
			scopes[namespace] = []scope{announcerNamespace}
			order = append(order, namespace)
		}
	}
	for _, namespace := range slices.Compact(order) {
		objects = append(objects, roleAndBinding(roleName(c), namespace, home, policyRules(c, scopes[namespace]...))...)
	}
	return objects
}

// roleName returns the name of the Roles; nodes with cp_enable alone have another, to take nothing from others.
func roleName(c config.Config) string {
	if !hasServices(c) {
		return name + "-controlplane"
	}
	return name
}

// namespacesOf returns the namespaces of leases, each once, without the announcers'.
func namespacesOf(c config.Config, leases ...vip.Key) (namespaces []string) {
	for _, k := range leases {
		if k.Namespace != c.Node.Namespace && !slices.Contains(namespaces, k.Namespace) {
			namespaces = append(namespaces, k.Namespace)
		}
	}
	return namespaces
}

// emptySecret returns the Secret for Herald's key: nobody can be permitted to create this one alone, and who creates
// any can make tokens (docs/why.md, "The key of the heartbeats"). Without data, applying it again keeps the key.
func emptySecret(namespace string) *corev1.Secret {
	return &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: named(peersSecret, namespace, namespace), Type: corev1.SecretTypeOpaque}
}

// named returns the metadata of an object of Herald in home. Outside home it bears home, except for kube-system.
func named(name, namespace, home string) metav1.ObjectMeta {
	m := meta(namespace)
	if m.Name = name; namespace != home && home != metav1.NamespaceSystem {
		m.Name += "." + home // no namespace has a dot
	}
	return m
}

// roleAndBinding returns a role in a namespace, or in all (""), and its binding to the ServiceAccount in home.
func roleAndBinding(role, namespace, home string, policy []rbacv1.PolicyRule) []any {
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: home}}
	kind := func(k string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: k}
	}
	m := named(role, namespace, home)
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: m.Name}
	if namespace == "" {
		ref.Kind = "ClusterRole"
		return []any{
			&rbacv1.ClusterRole{TypeMeta: kind("ClusterRole"), ObjectMeta: m, Rules: policy},
			&rbacv1.ClusterRoleBinding{TypeMeta: kind("ClusterRoleBinding"), ObjectMeta: m, RoleRef: ref, Subjects: subjects},
		}
	}
	return []any{
		&rbacv1.Role{TypeMeta: kind("Role"), ObjectMeta: m, Rules: policy},
		&rbacv1.RoleBinding{TypeMeta: kind("RoleBinding"), ObjectMeta: m, RoleRef: ref, Subjects: subjects},
	}
}

// Permissions returns which rights these options need, and which are useful beside, each once; without a Namespace or
// Name for all. The control plane's VIP alone needs to read and write Leases; one it may not delete it leaves without a
// holder.
func Permissions(c config.Config) (needed, useful []authorizationv1.ResourceAttributes) {
	for _, p := range permissions(c) {
		if hasServices(c) || p.Resource == "leases" && p.Verb != "delete" {
			needed = append(needed, p)
		} else {
			useful = append(useful, p)
		}
	}
	return needed, useful
}

func permissions(c config.Config) []authorizationv1.ResourceAttributes {
	namespaces := map[scope]string{servicesNamespace: c.Services.Namespace, announcerNamespace: c.Node.Namespace,
		announcerOnly: c.Node.Namespace, apiServers: metav1.NamespaceDefault}
	all := permissionsOnNamedLeases(c)
	for _, r := range rules {
		if !r.applies(c) || (r.Scope == clusterOnly || r.Scope == apiServers) && c.Services.Namespace != "" {
			continue
		}
		resource, sub, _ := strings.Cut(r.Resource, "/")
		names := r.namesIn(c)
		if names == nil {
			names = []string{""}
		}
		for _, name := range names {
			for _, verb := range r.Verbs {
				p := authorizationv1.ResourceAttributes{Namespace: namespaces[r.Scope], Group: r.Group, Resource: resource,
					Subresource: sub, Name: name, Verb: verb}
				if !slices.Contains(all, p) {
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// permissionsOnNamedLeases returns the rights needed with svc_namespace on Leases of svc_leasename and vip_leasename in
// other namespaces: kube-vip may renew them.
func permissionsOnNamedLeases(c config.Config) (all []authorizationv1.ResourceAttributes) {
	if !limited(c) {
		return nil
	}
	var leases []vip.Key
	if !c.Services.Election {
		leases = append(leases, c.Services.Lease)
	}
	if c.ControlPlane.Enable {
		leases = append(leases, c.ControlPlane.Lease)
	}
	for _, namespace := range namespacesOf(c, leases...) {
		for _, verb := range watchVerbs {
			all = append(all, authorizationv1.ResourceAttributes{Namespace: namespace, Group: "coordination.k8s.io",
				Resource: "leases", Verb: verb})
		}
	}
	return all
}
