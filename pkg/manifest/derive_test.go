package manifest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/testing/check"
)

// derivedHeader is the first line of every derived file but the schema, which JSON has no comment for.
const derivedHeader = `# Written by "make manifests" from what "herald manifest" prints. Do not edit.` + "\n"

// TestDerived: the files of manifests/ that follow from what "herald manifest" prints are current.
func TestDerived(t *testing.T) {
	for file, text := range map[string]func(*testing.T) string{
		"base/rbac.yaml":                  baseRBAC,
		"base/daemonset.yaml":             baseDaemonSet,
		"helm/herald/templates/rbac.yaml": chartRBAC,

		"components/admission/admission.yaml":             componentAdmission,
		"components/admission-token/admission-token.yaml": componentAdmissionToken,
		"helm/herald/templates/admission.yaml":            chartAdmission,
		"helm/herald/values.schema.json":                  chartSchema,
		"helm/herald/templates/alerts.yaml":               chartAlerts,
	} {
		check.Golden(t, filepath.Join(manifests, file), text(t))
	}
	for file, d := range dashboards {
		check.Golden(t, filepath.Join(manifests, file), d.json(t))
	}
}

// yamlOf returns a comment and the objects as YAML documents.
func yamlOf(t *testing.T, comment string, objects ...any) string {
	t.Helper()
	return string(check.Value(write(comment, objects...))(t))
}

// baseRBAC returns the permissions for the kustomize base.
func baseRBAC(t *testing.T) string {
	return yamlOf(t, derivedHeader, rbacObjects(request(t).Config)...)
}

// baseDaemonSet returns the DaemonSet for the kustomize base. Its options are in a ConfigMap, which overlays add to.
func baseDaemonSet(t *testing.T) string {
	d := daemonSet(request(t)) // without options: they are in the ConfigMap
	d.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
	}}
	return yamlOf(t, derivedHeader, d)
}

// chartRBAC returns the permissions as a template of the Helm chart, which has helpers for the names.
func chartRBAC(t *testing.T) string {
	c := request(t).Config
	objects := rbacObjects(c)
	account, secret, roles := yamlOf(t, "", objects[0]), yamlOf(t, "", objects[1]), withConditions(t, yamlOf(t, "", objects[2:]...), c)
	helpers := strings.NewReplacer(
		"  labels:\n    app.kubernetes.io/name: herald\n", "  labels: {{- include \"herald.labels\" . | nindent 4 }}\n",
		"- kind: ServiceAccount\n  name: herald\n", "- kind: ServiceAccount\n  name: {{ include \"herald.account\" . }}\n",
		"        name: herald\n        namespace: "+c.Node.Namespace+"\n", "        name: {{ include \"herald.account\" . }}\n        namespace: {{ .Release.Namespace }}\n",
		"  - "+c.Pools.Name+"\n", "  - {{ include \"herald.pools\" . | quote }}\n",
		"  name: herald-leases\n", "  name: {{ include \"herald.name\" . }}-leases\n",
		"  name: herald\n", "  name: {{ include \"herald.name\" . }}\n",
		"namespace: "+c.Node.Namespace+"\n", "namespace: {{ .Release.Namespace }}\n",
	)
	accountHelpers := strings.NewReplacer(
		"herald.name", "herald.account",
		"metadata:\n", "metadata:\n  {{- with .Values.serviceAccount.annotations }}\n  annotations: {{- toYaml . | nindent 4 }}\n  {{- end }}\n",
	)
	return derivedHeader + "{{- if .Values.serviceAccount.create }}\n" + accountHelpers.Replace(helpers.Replace(account)) + "{{- end }}\n" +
		"{{- if .Values.rbac.create }}\n" +
		// Helm refuses an object that is there and belongs to no release, as one that Herald has created itself.
		"{{- $peers := lookup \"v1\" \"Secret\" .Release.Namespace \"" + peersSecret + "\" }}\n" +
		"{{- if and (include \"herald.keepsSecret\" .) (or (not $peers) (eq (dig \"metadata\" \"annotations\" \"meta.helm.sh/release-name\" \"\" $peers) .Release.Name)) }}\n" +
		helpers.Replace(secret) + "{{- end }}\n" +
		"{{- if ne .Release.Namespace \"" + priorityNamespace + "\" }}\n" + helpers.Replace(yamlOf(t, "", flowSchemasIn(c.Node.Namespace)...)) + "{{- end }}\n" +
		helpers.Replace(roles) +
		"{{- end }}\n"
}

// withConditions returns the roles with each rule that depends on options only where the chart's options need it.
func withConditions(t *testing.T, roles string, c config.Config) string {
	t.Helper()
	for resource, condition := range map[string]string{
		"services/status": "herald.writesServices", "pods": "herald.hasEgress", "configmaps": "herald.readsPools", "namespaces": "herald.readsPools", "secrets": "herald.keepsSecret",
	} {
		r := rules[slices.IndexFunc(rules, func(r rule) bool { return r.Resource == resource })]
		text := string(check.Value(yaml.Marshal([]rbacv1.PolicyRule{{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, ResourceNames: r.namesIn(c), Verbs: r.Verbs}}))(t))
		if strings.Count(roles, text) != 1 {
			t.Fatalf("the rule of %s is not once in\n%s", resource, roles)
		}
		roles = strings.Replace(roles, text, "{{- if include \""+condition+"\" . }}\n"+text+"{{- end }}\n", 1)
	}
	return roles
}

// componentAdmission and componentAdmissionToken return the policies for the two kustomize components.
func componentAdmission(t *testing.T) string {
	return yamlOf(t, derivedHeader, tenantPolicies()...)
}

func componentAdmissionToken(t *testing.T) string {
	return yamlOf(t, derivedHeader, tokenPolicies(request(t).Config)...)
}

// chartAdmission returns the policies as a template of the Helm chart. Their names contain that of the release.
func chartAdmission(t *testing.T) string {
	c := request(t).Config
	return derivedHeader + "{{- if .Values.admission.enabled }}\n" + strings.NewReplacer(
		"  labels:\n    app.kubernetes.io/name: herald\n", "  labels: {{- include \"herald.labels\" . | nindent 4 }}\n",
		"  name: herald-", "  name: {{ include \"herald.name\" . }}-",
		"  policyName: herald-", "  policyName: {{ include \"herald.name\" . }}-",
		"namespace('"+c.Node.Namespace+"')", "namespace('{{ .Release.Namespace }}')",
		"serviceaccount:"+c.Node.Namespace+":herald", `serviceaccount:{{ .Release.Namespace }}:{{ include "herald.account" . }}`,
	).Replace(yamlOf(t, "", admissionObjects(c)...)) + "{{- end }}\n"
}

// chartAlerts returns the alerts of the kustomize component as a template of the Helm chart. What Prometheus is to expand is text for Helm.
func chartAlerts(t *testing.T) string {
	text := derivedHeader + "{{- if .Values.alerts.enabled }}\n"
	for i, file := range []string{"alerts.yaml", "nodes.yaml"} {
		if i > 0 {
			text += "---\n"
		}
		rule := strings.NewReplacer("{{", "{{ `{{", "}}", "}}` }}").Replace(string(check.Value(os.ReadFile(filepath.Join(manifests, "components/alerts", file)))(t)))
		text += strings.NewReplacer(
			"  name: herald-nodes\n", "  name: {{ include \"herald.name\" . }}-nodes\n", "  name: herald\n", "  name: {{ include \"herald.name\" . }}\n",
			"  namespace: kube-system\n", "  namespace: {{ .Release.Namespace }}\n",
			"    app.kubernetes.io/name: herald\n", "    {{- include \"herald.labels\" . | nindent 4 }}\n    {{- with .Values.alerts.labels }}{{ toYaml . | nindent 4 }}{{ end }}\n",
		).Replace(rule)
	}
	return text + "{{- end }}\n"
}

// inChart reports whether an option is one of the chart: Herald has it, or it is a variable of kube-vip with which Herald starts nevertheless.
func inChart(o config.Option) bool {
	return o.Supported() || o.Effect != config.Refused && !strings.HasPrefix(o.Env, "--") && !strings.HasSuffix(o.Env, "*")
}

// chartSchema returns the schema of the chart's values: the file with the options of inChart.
func chartSchema(t *testing.T) string {
	type object = map[string]any
	var schema object
	check.OK(t, json.Unmarshal(check.Value(os.ReadFile(filepath.Join(manifests, "helm/herald/values.schema.json")))(t), &schema))
	known := object{}
	for _, o := range config.Options {
		if !inChart(o) {
			continue
		}
		entry := object{"type": []string{"string", "null"}, "description": o.Meaning}
		switch o.Type {
		case config.Bool:
			entry["type"], entry["pattern"] = []string{"string", "null", "boolean"}, "^(1|t|T|TRUE|true|True|0|f|F|FALSE|false|False)?$" // what strconv.ParseBool takes
		case config.Port:
			entry["minimum"], entry["maximum"] = 0, 65535
			fallthrough
		case config.Int, config.Seconds, config.Milliseconds:
			entry["type"], entry["pattern"] = []string{"string", "null", "integer"}, "^([+-]?[0-9]+)?$"
		case config.Endpoint:
			entry["pattern"] = "^(off|.*:[0-9]{1,5})?$"
			entry["type"], entry["not"] = []string{"string", "null", "boolean"}, object{"const": true} // off is false to YAML
		case config.String, config.List, config.Name: // vip_subnet: 24, upnp_ports: 80, svc_namespace: 1
			entry["type"] = []string{"string", "null", "integer"}
		}
		if !o.Supported() {
			entry["description"] = "Has no effect: " + o.Reason + "."
			if o.Type == config.String { // vip_loseleadership
				entry["type"] = []string{"string", "null", "integer", "boolean"}
			}
		}
		for _, name := range append([]string{o.Env}, o.Aliases...) {
			known[name] = entry
		}
	}
	properties, _ := schema["properties"].(object)
	options, ok := properties["options"].(object)
	if !ok {
		t.Fatal("the schema of the chart's values has no options")
	}
	options["properties"] = known
	delete(options, "patternProperties")
	var b bytes.Buffer
	e := json.NewEncoder(&b) // sorts the keys of maps
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	check.OK(t, e.Encode(schema))
	return b.String()
}
