package manifest

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/config"
)

// allowedAnnotations, on a Namespace, permits its tenants annotations of restricted, with commas between, or *.
const allowedAnnotations = "heraldvip.io/allowed-annotations"

// restricted are annotations that concern more than their Service: the link, switch, gateway, routers, or names in the
// DNS.
var restricted = []string{
	"kube-vip.io/serviceInterface", "kube-vip.io/serviceVLAN", "kube-vip.io/hwaddr", "kube-vip.io/macvlanName",
	"kube-vip.io/rp_filter", "kube-vip.io/requestedIP", "heraldvip.io/dhcp-lease", "kube-vip.io/loadbalancerHostname",
	"kube-vip.io/ignore-service-security",
	"kube-vip.io/forwardUPNP", "kube-vip.io/upnp-lease-duration", "heraldvip.io/upnp-external-port",
	"heraldvip.io/announce", "heraldvip.io/bgp-communities", "heraldvip.io/bgp-local-pref", "heraldvip.io/bgp-med",
	"heraldvip.io/bgp-prepend", "heraldvip.io/bgp-peers",
}

var written = []string{
	"kube-vip.io/vipHost", "heraldvip.io/announcer", "heraldvip.io/dhcp-lease", "kube-vip.io/requestedIP",
	"kube-vip.io/loadbalancerIPs", "heraldvip.io/allocated", "heraldvip.io/allocated-addresses",
}

// cleanupFinalizer is Herald's to add and remove (docs/why.md, "Finalizer and uninstall").
const cleanupFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// Parts of the policies' CEL, with Kubernetes' optional fields and authorization library.
const (
	// annotationsOf is the annotations of the object for %, null for the old one of a new object.
	annotationsOf = `(% == null ? {} : %.metadata.?annotations.orValue({}))`
	// othersFinalizers is the finalizers of a Service % except Herald's.
	othersFinalizers = `%.metadata.?finalizers.orValue([]).filter(f, f != '` + cleanupFinalizer + `')`
)

// expression returns format with operand for each %.
func expression(format, operand string) string { return strings.ReplaceAll(format, "%", operand) }

func listOf(words []string) string { return "['" + strings.Join(words, "', '") + "']" }

// admissionObjects returns policies for what RBAC can't express, with bindings.
func admissionObjects(c config.Config) []any {
	return append(tenantPolicies(), tokenPolicies(c)...)
}

func tenantPolicies() []any {
	return policyAndBinding("annotations", priorityNamespace, annotationsPolicy())
}

// tokenPolicies limit what Herald's ServiceAccount may write (docs/why.md, "What tenants can write").
func tokenPolicies(c config.Config) []any {
	account := []admissionv1.MatchCondition{{
		Name: "by-herald", Expression: "request.userInfo.username == 'system:serviceaccount:" + c.Node.Namespace + ":" +
			name + "'",
	}}
	return slices.Concat(policyAndBinding("token-leases", c.Node.Namespace, tokenLeasesPolicy(account)),
		policyAndBinding("token-services", c.Node.Namespace, tokenServicesPolicy(account)))
}

// annotationsPolicy refuses restricted annotations that the namespace may not set, but may keep and remove.
func annotationsPolicy() admissionv1.ValidatingAdmissionPolicySpec {
	return admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: resourceRule("", "services", admissionv1.Create, admissionv1.Update),
		MatchConditions: []admissionv1.MatchCondition{{ // of who, unlike administrators, may not update every Service
			Name: "by-a-tenant", Expression: "!authorizer.group('').resource('services').check('update').allowed()"}},
		Variables: []admissionv1.Variable{
			{Name: "now", Expression: expression(annotationsOf, "object")},
			{Name: "before", Expression: expression(annotationsOf, "oldObject")},
			{Name: "allowed", Expression: `namespaceObject.metadata.?annotations[?'` + allowedAnnotations +
				`'].orValue('').split(',').map(a, a.trim())`},
			{Name: "refused", Expression: listOf(restricted) + ".filter(k, k in variables.now && variables.now[?k] != " +
				"variables.before[?k] && !(k in variables.allowed) && !('*' in variables.allowed))"},
		},
		Validations: []admissionv1.Validation{{
			Expression: "size(variables.refused) == 0",
			MessageExpression: `'the namespace may not set ' + variables.refused.join(', ') + ' on a Service: its annotation ` +
				allowedAnnotations + ` does not list it'`,
		}},
	}
}

// tokenLeasesPolicy limits Herald's token to Leases that Herald has created: kube-system has the controllers', too.
func tokenLeasesPolicy(account []admissionv1.MatchCondition) admissionv1.ValidatingAdmissionPolicySpec {
	const labeled = `(% == null || %.metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('') == 'herald')`
	return admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: resourceRule("coordination.k8s.io", "leases", admissionv1.Create, admissionv1.Update,
			admissionv1.Delete),
		MatchConditions: account,
		Validations: []admissionv1.Validation{{
			Expression: expression(labeled, "object") + " && " + expression(labeled, "oldObject"),
			Message:    "Herald writes only Leases with the label app.kubernetes.io/managed-by=herald",
		}},
	}
}

// tokenServicesPolicy limits Herald's token to Services' status and Herald's annotations: who may write a status may
// change the metadata.
func tokenServicesPolicy(account []admissionv1.MatchCondition) admissionv1.ValidatingAdmissionPolicySpec {
	return admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: resourceRule("", "services/status", admissionv1.Update),
		MatchConditions:  account,
		Variables: []admissionv1.Variable{
			{Name: "now", Expression: expression(annotationsOf, "object")},
			{Name: "before", Expression: expression(annotationsOf, "oldObject")},
		},
		Validations: []admissionv1.Validation{{
			Expression: "(variables.now.map(k, k) + variables.before.map(k, k)).all(k, k in " + listOf(written) +
				" || variables.now[?k] == variables.before[?k])",
			Message: "Herald writes only its own annotations on Services",
		}, {
			Expression: "object.metadata.?labels == oldObject.metadata.?labels && " + expression(othersFinalizers, "object") +
				" == " + expression(othersFinalizers, "oldObject") +
				" && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences",
			Message: "Herald writes no labels, owners or finalizers of Services but " + cleanupFinalizer,
		}},
	}
}

// resourceRule returns the constraint to operations on one kind in namespaces, without subresources.
func resourceRule(group, resource string, on ...admissionv1.OperationType) *admissionv1.MatchResources {
	type rule = admissionv1.NamedRuleWithOperations
	return &admissionv1.MatchResources{ResourceRules: []rule{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: on,
		Rule: admissionv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource},
			Scope: new(admissionv1.NamespacedScope),
		},
	}}}}
}

// policyAndBinding returns the policy herald-suffix of Herald in home, which refuses what it finds, for all namespaces.
func policyAndBinding(suffix, home string, spec admissionv1.ValidatingAdmissionPolicySpec) []any {
	// an expression that can't be evaluated, maybe too costly, refuses
	spec.FailurePolicy = new(admissionv1.Fail)
	m := named(name+"-"+suffix, "", home)
	kind := func(k string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: k}
	}
	return []any{
		&admissionv1.ValidatingAdmissionPolicy{TypeMeta: kind("ValidatingAdmissionPolicy"), ObjectMeta: m, Spec: spec},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: kind("ValidatingAdmissionPolicyBinding"), ObjectMeta: m,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: m.Name,
				ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
		},
	}
}
