{{- define "herald.name" -}}
{{- if contains "herald" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-herald" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "herald.account" -}}
{{- .Values.serviceAccount.name | default (include "herald.name" .) -}}
{{- end -}}

{{- define "herald.selector" -}}
app.kubernetes.io/name: herald
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "herald.labels" -}}
{{ include "herald.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "herald.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* The port of an option's host:port, or a default. */ -}}
{{- define "herald.metricsPort" -}}
{{- $at := toString (index .Values.options "prometheus_server" | default ":2112") -}}
{{- regexFind "[0-9]+$" $at | default "2112" -}}
{{- end -}}

{{- /* The ConfigMap of pools, which the permissions name. */ -}}
{{- define "herald.pools" -}}
{{- get .Values.options "svc_pools" | default (get .Values.options "KUBEVIP_CONFIG_MAP") | default "kubevip" -}}
{{- end -}}

{{- /* A value of an option. A number of a file of values is a float64, and toString writes a large one as 1e+06. */ -}}
{{- define "herald.text" -}}
{{- if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ toString . }}{{ end -}}
{{- end -}}

{{- define "herald.healthPort" -}}
{{- index .Values.options "health_check_port" | default 2113 | int -}}
{{- end -}}

{{- define "herald.env" -}}
- name: vip_nodename
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- range $name, $value := omit .Values.options "health_check_port" "vip_nodename" }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $name }}
  value: {{ include "herald.text" $value | quote }}
{{- end }}
{{- end }}
- name: health_check_port
  value: {{ include "herald.healthPort" . | quote }}
{{- end -}}

{{- define "herald.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
{{- if .Values.nonRoot }}
runAsUser: 65532
runAsGroup: 65532
runAsNonRoot: true
{{- else }}
runAsUser: 0 # of other users only a program with file capabilities gets those that are added
{{- end }}
capabilities:
  drop: [ALL]
  add: [NET_ADMIN, NET_RAW]
{{- end -}}
