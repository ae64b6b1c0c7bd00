package manifest

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/config"
)

// priorityNamespace is where the API server serves ServiceAccounts before tenants: system-leader-election for Leases,
// kube-system-service-accounts for the rest.
const priorityNamespace = metav1.NamespaceSystem

// flowSchemas returns the same for Herald's ServiceAccount elsewhere: else its renewals queue in workload-low with all
// tenants' requests. In kube-system it returns none.
func flowSchemas(c config.Config) []any {
	if c.Node.Namespace == priorityNamespace {
		return nil
	}
	return flowSchemasIn(c.Node.Namespace)
}

func flowSchemasIn(home string) []any {
	every := []string{flowcontrolv1.NamespaceEvery}
	return []any{
		// Before the API server's own for ServiceAccounts, 9000.
		flowSchema(home, name+"-leases", "leader-election", 150, flowcontrolv1.ResourcePolicyRule{
			Verbs: []string{"get", "create", "update", "delete"}, APIGroups: []string{"coordination.k8s.io"},
			Resources: []string{"leases"}, Namespaces: every,
		}),
		flowSchema(home, name, "workload-high", 950, flowcontrolv1.ResourcePolicyRule{
			Verbs: []string{flowcontrolv1.VerbAll}, APIGroups: []string{flowcontrolv1.APIGroupAll},
			Resources: []string{flowcontrolv1.ResourceAll}, Namespaces: every, ClusterScope: true,
		}),
	}
}

// flowSchema returns the FlowSchema that gives Herald's ServiceAccount a priority level.
func flowSchema(home, role, level string, precedence int32, rule flowcontrolv1.ResourcePolicyRule) any {
	return &flowcontrolv1.FlowSchema{
		TypeMeta:   metav1.TypeMeta{APIVersion: flowcontrolv1.SchemeGroupVersion.String(), Kind: "FlowSchema"},
		ObjectMeta: named(role, "", home),
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level},
			MatchingPrecedence:         precedence,
			DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{
				Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{
					Kind:           flowcontrolv1.SubjectKindServiceAccount,
					ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Name: name, Namespace: home},
				}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{rule},
			}},
		},
	}
}
