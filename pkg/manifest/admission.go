package manifest

import (
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/config"
)

// Annotations of a Namespace, by which its tenants are permitted what the policies refuse.
const (
	allowedAddresses   = "heraldvip.io/allowed-addresses"   // IP addresses and CIDRs with commas between; 0.0.0.0 and ::, which DHCP is asked for, too
	allowedAnnotations = "heraldvip.io/allowed-annotations" // of restricted, with commas between, or *
)

// maxAddresses is how many a Service may ask for.
const maxAddresses = 16

// restricted are the annotations that concern more than the Service they are on: the link, the
// switch, the gateway or the routers.
var restricted = []string{
	"kube-vip.io/serviceInterface", "kube-vip.io/hwaddr", "kube-vip.io/macvlanName", "kube-vip.io/rp_filter", "kube-vip.io/requestedIP",
	"kube-vip.io/forwardUPNP", "kube-vip.io/upnp-lease-duration", "heraldvip.io/upnp-external-port",
	"heraldvip.io/announce", "heraldvip.io/bgp-communities", "heraldvip.io/bgp-local-pref", "heraldvip.io/bgp-med", "heraldvip.io/bgp-prepend", "heraldvip.io/bgp-peers",
}

// Parts of the policies' expressions, which are CEL as Kubernetes has it: optional fields, its libraries for IP
// addresses and for authorization.
const (
	// annotationsOf is the annotations of an object that is put in for %, which is null for the old one of a new object.
	annotationsOf = `(% == null ? {} : %.metadata.?annotations.orValue({}))`
	// requestedBy is the addresses that a Service % asks for.
	requestedBy = `(% == null || %.spec.?type.orValue('') != 'LoadBalancer' ? [] : ` +
		`(%.metadata.?annotations[?'kube-vip.io/loadbalancerIPs'].orValue('') + ',' + %.spec.?loadBalancerIP.orValue(''))` +
		`.split(',').map(a, a.trim()).filter(a, a != ''))`
	// listedIn is the list, with commas between, that an annotation % of the Namespace holds.
	listedIn = `namespaceObject.metadata.?annotations[?'%'].orValue('').split(',').map(a, a.trim()).filter(a, a != '')`
	// limited excludes requests of those who may update every Service anyhow: administrators and controllers.
	limited = `!authorizer.group('').resource('services').check('update').allowed()`
)

// expression returns format with operand for each %.
func expression(format, operand string) string { return strings.ReplaceAll(format, "%", operand) }

// admissionObjects returns the policies for what RBAC can't express, and their bindings. home is the announcers' namespace.
func admissionObjects(c config.Config) []any {
	services := resourceRule("", "services", admissionv1.Create, admissionv1.Update)
	var quoted []string
	for _, a := range restricted {
		quoted = append(quoted, "'"+a+"'")
	}
	var objects []any
	add := func(suffix string, spec admissionv1.ValidatingAdmissionPolicySpec) {
		objects = append(objects, policyAndBinding(name+"-"+suffix, spec)...)
	}
	add("addresses", admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: services,
		MatchConditions:  []admissionv1.MatchCondition{{Name: "by-a-tenant", Expression: limited}},
		Variables: []admissionv1.Variable{
			{Name: "requested", Expression: expression(requestedBy, "object")},
			{Name: "before", Expression: expression(requestedBy, "oldObject")},
			{Name: "allowed", Expression: expression(listedIn, allowedAddresses)},
			{Name: "refused", Expression: `variables.requested == variables.before ? [] : variables.requested.filter(a, !(a in variables.before) && !(isIP(a) && ` +
				`variables.allowed.exists(c, isCIDR(c) ? cidr(c).containsIP(ip(a)) : isIP(c) && ip(c) == ip(a))))`},
		},
		Validations: []admissionv1.Validation{
			{
				Expression: "variables.requested == variables.before || size(variables.requested) <= " + strconv.Itoa(maxAddresses),
				Message:    "a Service may ask for " + strconv.Itoa(maxAddresses) + " addresses at most",
			},
			{
				Expression: "size(variables.requested) > " + strconv.Itoa(maxAddresses) + " || size(variables.refused) == 0",
				MessageExpression: `'the namespace may not ask for ' + variables.refused.join(', ') + '; its annotation ` + allowedAddresses +
					` permits ' + (size(variables.allowed) == 0 ? 'none' : variables.allowed.join(', '))`,
			},
		},
	})
	add("annotations", admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: services,
		MatchConditions:  []admissionv1.MatchCondition{{Name: "by-a-tenant", Expression: limited}},
		Variables: []admissionv1.Variable{
			{Name: "now", Expression: expression(annotationsOf, "object")},
			{Name: "before", Expression: expression(annotationsOf, "oldObject")},
			{Name: "allowed", Expression: expression(listedIn, allowedAnnotations)},
			{Name: "refused", Expression: "[" + strings.Join(quoted, ", ") + "].filter(k, k in variables.now && variables.now[?k] != variables.before[?k] && " +
				"!(k in variables.allowed) && !('*' in variables.allowed))"},
		},
		Validations: []admissionv1.Validation{{
			Expression:        "size(variables.refused) == 0",
			MessageExpression: `'the namespace may not set ' + variables.refused.join(', ') + ' on a Service: its annotation ` + allowedAnnotations + ` does not list it'`,
		}},
	})
	add("claims", admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: resourceRule("coordination.k8s.io", "leases", admissionv1.Create, admissionv1.Update, admissionv1.Delete),
		MatchConditions: []admissionv1.MatchCondition{{
			Name:       "has-a-claim",
			Expression: `'heraldvip.io/claim' in ` + expression(annotationsOf, "object") + ` || 'heraldvip.io/claim' in ` + expression(annotationsOf, "oldObject"),
		}},
		Validations: []admissionv1.Validation{{
			// Herald, administrators, and the controllers that remove what belonged to a Service or a namespace.
			Expression: `authorizer.group('coordination.k8s.io').resource('leases').namespace('` + c.Node.Namespace + `').check('delete').allowed()`,
			Message:    "the annotation heraldvip.io/claim says which node owns a VIP: only Herald writes or deletes a Lease that has it",
		}},
	})
	return objects
}

// resourceRule returns the constraint to these operations on one kind of objects in namespaces. Subresources, such as the status, are no match.
func resourceRule(group, resource string, on ...admissionv1.OperationType) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: on,
		Rule: admissionv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}, Scope: new(admissionv1.NamespacedScope),
		},
	}}}}
}

// policyAndBinding returns a policy that refuses what it finds wrong, and what makes it effective in all namespaces.
func policyAndBinding(named string, spec admissionv1.ValidatingAdmissionPolicySpec) []any {
	spec.FailurePolicy = new(admissionv1.Fail) // an expression that can't be evaluated, for one because it is too costly, refuses
	m := meta("")
	m.Name = named
	kind := func(k string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: k}
	}
	return []any{
		&admissionv1.ValidatingAdmissionPolicy{TypeMeta: kind("ValidatingAdmissionPolicy"), ObjectMeta: m, Spec: spec},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: kind("ValidatingAdmissionPolicyBinding"), ObjectMeta: m,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: named, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
		},
	}
}
