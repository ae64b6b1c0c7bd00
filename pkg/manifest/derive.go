package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/config"
)

// derivedHeader is the first line of every derived file.
const derivedHeader = `# Written by "herald docs" from what "herald manifest" prints. Do not edit.` + "\n"

// defaultRequest returns a Request in which nothing was given.
func defaultRequest() (Request, error) {
	c, _, err := config.Parse(config.Sources{Hostname: "localhost"})
	return Request{Config: c, Image: Image("")}, err
}

// BaseRBAC returns the permissions for the kustomize base.
func BaseRBAC() ([]byte, error) {
	r, err := defaultRequest()
	if err != nil {
		return nil, err
	}
	return write(derivedHeader, rbacObjects(r.Config)...)
}

// BaseDaemonSet returns the DaemonSet for the kustomize base. Its options are in a
// ConfigMap, which overlays add to.
func BaseDaemonSet() ([]byte, error) {
	r, err := defaultRequest()
	if err != nil {
		return nil, err
	}
	d := daemonSet(r)
	d.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
	}}
	return write(derivedHeader, d)
}

// ChartRBAC returns the permissions as a template of the Helm chart, which has
// helpers for the names.
func ChartRBAC() ([]byte, error) {
	r, err := defaultRequest()
	if err != nil {
		return nil, err
	}
	objects := rbacObjects(r.Config)
	account, err := write("", objects[0])
	if err != nil {
		return nil, err
	}
	roles, err := write("", objects[1:]...)
	if err != nil {
		return nil, err
	}
	helpers := strings.NewReplacer(
		"  labels:\n    app.kubernetes.io/name: herald\n", "  labels: {{- include \"herald.labels\" . | nindent 4 }}\n",
		"- kind: ServiceAccount\n  name: herald\n", "- kind: ServiceAccount\n  name: {{ include \"herald.account\" . }}\n",
		"  name: herald\n", "  name: {{ include \"herald.name\" . }}\n",
		"namespace: "+r.Config.Node.Namespace+"\n", "namespace: {{ .Release.Namespace }}\n",
	)
	accountHelpers := strings.NewReplacer(
		"herald.name", "herald.account",
		"metadata:\n", "metadata:\n  {{- with .Values.serviceAccount.annotations }}\n  annotations: {{- toYaml . | nindent 4 }}\n  {{- end }}\n",
	)
	return fmt.Appendf(nil, "%s{{- if .Values.serviceAccount.create }}\n%s{{- end }}\n{{- if .Values.rbac.create }}\n%s{{- end }}\n",
		derivedHeader, accountHelpers.Replace(helpers.Replace(string(account))), helpers.Replace(string(roles))), nil
}

// ChartSchema returns the schema of the chart's values: old with the options that this version has.
func ChartSchema(old []byte) ([]byte, error) {
	type object = map[string]any
	var schema object
	if err := json.Unmarshal(old, &schema); err != nil {
		return nil, fmt.Errorf("the schema of the chart's values: %w", err)
	}
	known := object{}
	for _, o := range config.Options {
		if !o.Supported() || o.Env == configFile {
			continue
		}
		types := []string{"string", "null"}
		switch o.Type {
		case config.Bool:
			types = append(types, "boolean")
		case config.Int, config.Seconds, config.Milliseconds, config.Port:
			types = append(types, "integer")
		}
		for _, name := range append([]string{o.Env}, o.Aliases...) {
			known[name] = object{"type": types, "description": o.Meaning}
		}
	}
	properties, _ := schema["properties"].(object)
	options, ok := properties["options"].(object)
	if !ok {
		return nil, fmt.Errorf("the schema of the chart's values has no options")
	}
	options["properties"] = known
	delete(options, "patternProperties")
	var b bytes.Buffer
	e := json.NewEncoder(&b) // sorts the keys of maps
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err := e.Encode(schema)
	return b.Bytes(), err
}
