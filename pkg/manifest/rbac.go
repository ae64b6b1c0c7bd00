package manifest

import (
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/config"
)

// A rule is one row of the table of permissions.
type rule struct {
	group, resource string
	names           []string // of the objects; none: all
	verbs           []string
	where           place
	when            func(config.Config) bool // only then; nil: always
	why             string
}

// A place is where a permission is needed when only one namespace is looked after.
type place string

const (
	withServices  place = "where the Services are"
	withAnnouncer place = "where the announcers are"
	onlyAnnouncer place = "where the announcers are, and nowhere else"
	everywhere    place = "in the whole cluster only" // what can't be had in a namespace is done without
)

var (
	watch   = []string{"list", "watch"}
	ownings = []string{"get", "list", "watch", "create", "update", "delete"}
)

// writes and keeps are conditions: Services are written to; Herald keeps its key in a Secret.
func writes(c config.Config) bool { return !c.Services.ReadOnly }
func keeps(c config.Config) bool  { return c.Peers.Port != 0 && c.Peers.KeyFile == "" }

// rules is the table of permissions.
var rules = []rule{
	{"", "services", nil, watch, withServices, nil, "The Services whose addresses are announced."},
	{"", "services/status", nil, []string{"patch"}, withServices, writes, "Write `status.loadBalancer` and the annotations that Herald writes. Not needed with `disable_service_updates`."},
	{"discovery.k8s.io", "endpointslices", nil, watch, withServices, nil, "Where a Service has ready endpoints."},
	{"coordination.k8s.io", "leases", nil, ownings, withServices, nil, "The VIP leases: who owns which VIP."},
	{"coordination.k8s.io", "leases", nil, ownings, withAnnouncer, nil, "The node leases: who is alive; and the one lease for all Services while `svc_election` is false."},
	{"", "events", nil, []string{"create"}, withServices, nil, "Tell a Service's user what happens to its VIPs."},
	{"", "secrets", []string{"herald-peers"}, []string{"get"}, onlyAnnouncer, keeps, "The key by which the nodes watch each other on the wire. Not needed with `herald_peers_key`, or `herald_peers_port` 0."},
	{"", "secrets", nil, []string{"create"}, onlyAnnouncer, keeps, "Make that key, once. Not needed if the Secret is made by hand."},
	{"", "nodes", nil, watch, everywhere, nil, "Which nodes must not carry VIPs or are drained (`herald drain`), whose addresses and pod ranges no Service may take, and BGP peers by annotation."},
	{"networking.k8s.io", "servicecidrs", nil, watch, everywhere, nil, "The cluster's own ranges, which no Service may take."},
}

// ofRBAC are the options that make a difference to the permissions.
var ofRBAC = []string{"cp_namespace", "svc_namespace", "svc_leasename", "disable_service_updates", "herald_peers_port", "herald_peers_key"}

// at is the part of the table that holds at any of places, each permission once.
func at(c config.Config, places ...place) []rbacv1.PolicyRule {
	var policy []rbacv1.PolicyRule
	for _, r := range rules {
		if !slices.Contains(places, r.where) || r.when != nil && !r.when(c) {
			continue
		}
		p := rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.resource}, ResourceNames: r.names, Verbs: r.verbs}
		if !slices.ContainsFunc(policy, func(o rbacv1.PolicyRule) bool { return o.String() == p.String() }) {
			policy = append(policy, p)
		}
	}
	return policy
}

// rbac is the ServiceAccount, and the roles bound to it.
func rbac(c config.Config) []any {
	home := c.Node.Namespace
	objects := []any{&corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: meta(home),
	}}
	if c.Services.Namespace == "" {
		objects = append(objects, bind("", home, at(c, withServices, withAnnouncer, everywhere))...)
		if policy := at(c, onlyAnnouncer); len(policy) > 0 {
			objects = append(objects, bind(home, home, policy)...)
		}
		return objects
	}
	places := map[string][]place{}
	places[c.Services.Namespace] = append(places[c.Services.Namespace], withServices)
	places[home] = append(places[home], withAnnouncer, onlyAnnouncer)
	order := []string{c.Services.Namespace, home}
	if lease := c.Services.Lease.Namespace; places[lease] == nil {
		places[lease] = []place{withAnnouncer}
		order = append(order, lease)
	}
	for _, namespace := range slices.Compact(order) {
		objects = append(objects, bind(namespace, home, at(c, places[namespace]...))...)
	}
	return objects
}

// bind is a role in a namespace, or in the whole cluster (""), and its
// binding to the ServiceAccount, which is at home.
func bind(namespace, home string, policy []rbacv1.PolicyRule) []any {
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: home}}
	kind := func(k string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: k}
	}
	ref := func(k string) rbacv1.RoleRef { return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: k, Name: name} }
	if namespace == "" {
		return []any{
			&rbacv1.ClusterRole{TypeMeta: kind("ClusterRole"), ObjectMeta: meta(""), Rules: policy},
			&rbacv1.ClusterRoleBinding{TypeMeta: kind("ClusterRoleBinding"), ObjectMeta: meta(""), RoleRef: ref("ClusterRole"), Subjects: subjects},
		}
	}
	return []any{
		&rbacv1.Role{TypeMeta: kind("Role"), ObjectMeta: meta(namespace), Rules: policy},
		&rbacv1.RoleBinding{TypeMeta: kind("RoleBinding"), ObjectMeta: meta(namespace), RoleRef: ref("Role"), Subjects: subjects},
	}
}

const rbacHead = `# RBAC

<!-- Written by "herald docs" from the table in pkg/manifest. Do not edit. -->

What Herald's ServiceAccount must be allowed. ` + "`herald manifest rbac`" + ` prints it as a
ClusterRole, and a Role where the announcers are; with ` + "`svc_namespace`" + ` as a Role where the Services are and a Role where the announcers
are, and without what exists in the whole cluster only: Herald then knows neither nodes nor Service ranges, so that
it can't refuse their addresses to a Service, and no label or taint keeps a node from VIPs.

| API group | resource | verbs | needed | for |
|---|---|---|---|---|
`

// Markdown writes the reference page of permissions.
func Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString(rbacHead)
	for _, r := range rules {
		group := r.group
		if group == "" {
			group = "(core)"
		}
		resource := r.resource
		if r.names != nil {
			resource += " `" + strings.Join(r.names, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", group, resource, strings.Join(r.verbs, ", "), r.where, r.why)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
