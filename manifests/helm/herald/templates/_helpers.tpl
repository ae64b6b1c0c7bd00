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

{{- /* The ConfigMap of pools, which the permissions name; empty if there is none. */ -}}
{{- define "herald.pools" -}}
{{- $name := "kubevip" }}
{{- range list "KUBEVIP_CONFIG_MAP" "svc_pools" }}
{{- $value := index $.Values.options . }}
{{- if not (kindIs "invalid" $value) }}{{ $name = include "herald.text" $value }}{{ end }}
{{- end }}
{{- $name -}}
{{- end -}}

{{- /* "true" if a value is what strconv.ParseBool takes for true, or for false; else empty. */ -}}
{{- define "herald.true" -}}
{{- if has (toString .) (list "1" "t" "T" "TRUE" "true" "True") }}true{{ end -}}
{{- end -}}
{{- define "herald.false" -}}
{{- if has (toString .) (list "0" "f" "F" "FALSE" "false" "False") }}true{{ end -}}
{{- end -}}

{{- /* Which permissions the options need: "true", or empty. They are the conditions of the table in pkg/manifest. */ -}}
{{- define "herald.writesServices" -}}
{{- if not (include "herald.true" (index .Values.options "disable_service_updates")) }}true{{ end -}}
{{- end -}}
{{- define "herald.hasEgress" -}}
{{- if not (include "herald.false" (index .Values.options "egress_enable")) }}true{{ end -}}
{{- end -}}
{{- define "herald.readsPools" -}}
{{- if and (include "herald.writesServices" .) (include "herald.pools" .) (not (index .Values.options "svc_namespace")) }}true{{ end -}}
{{- end -}}
{{- define "herald.keepsSecret" -}}
{{- if and (ne (include "herald.peersPort" .) "0") (not (index .Values.options "herald_peers_key")) }}true{{ end -}}
{{- end -}}
{{- /* A value of an option. A number of a file of values is a float64, and toString writes a large one as 1e+06. */ -}}
{{- define "herald.text" -}}
{{- if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ toString . }}{{ end -}}
{{- end -}}

{{- define "herald.healthPort" -}}
{{- index .Values.options "health_check_port" | default 0 | int | default 2113 -}}
{{- end -}}

{{- /* The port of the heartbeats; 0 is off. */ -}}
{{- define "herald.peersPort" -}}
{{- $port := index .Values.options "herald_peers_port" }}
{{- if has (toString $port) (list "<nil>" "") }}7947{{ else }}{{ int $port }}{{ end -}}
{{- end -}}

{{- /* Fails, with the reason, for values that the schema takes and that make no Pod which runs as they say. */ -}}
{{- define "herald.check" -}}
{{- $o := .Values.options }}
{{- if index $o "vip_nodename" }}
{{- fail "options.vip_nodename: a DaemonSet has many nodes and names each by itself; remove it" }}
{{- end }}
{{- if index $o "herald_config" }}
{{- fail "options.herald_config: the chart does not see what is in that file; write the options in it into options" }}
{{- end }}
{{- $namespace := toString (index $o "cp_namespace" | default .Release.Namespace) }}
{{- if ne $namespace .Release.Namespace }}
{{- fail (printf "options.cp_namespace: the namespace of the announcers is that of the release, %s; remove it, or install with --namespace %s" .Release.Namespace $namespace) }}
{{- end }}
{{- range $name := list "health_check_port" "herald_peers_port" }}
{{- $port := int (index $o $name) }}
{{- if or (lt $port 0) (gt $port 65535) }}
{{- fail (printf "options.%s: must be a port from 1 to 65535, or 0 for none" $name) }}
{{- end }}
{{- end }}
{{- $port := include "herald.healthPort" . }}
{{- if hasSuffix (printf ":%s" $port) (toString (index $o "prometheus_server")) }}
{{- fail (printf "options.prometheus_server: kubelet's probes have its port, %s: name another here, or for them by health_check_port" $port) }}
{{- end }}
{{- range $name := list "app.kubernetes.io/name" "app.kubernetes.io/instance" }}
{{- if hasKey ($.Values.podLabels | default dict) $name }}
{{- fail (printf "podLabels: %s is one of the two labels by which the DaemonSet finds its Pods; remove it" $name) }}
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if or (has .name (list "vip_nodename" "POD_NAME" "health_check_port" "herald_config" "prometheus_server")) (hasKey $o .name) }}
{{- fail (printf "extraEnv: the chart sets %s itself: from options, if it is an option; remove it there or here" .name) }}
{{- end }}
{{- end }}
{{- if and .Values.affinity .Values.controlPlaneOnly }}
{{- fail "controlPlaneOnly and affinity exclude each other: write the control-plane nodes into affinity" }}
{{- end }}
{{- if and .Values.podMonitor.enabled (regexMatch "^(off$|false$|127[.]|localhost:|\\[::1\\])" (toString (index $o "prometheus_server"))) }}
{{- fail (printf "podMonitor.enabled: Prometheus can't fetch the metrics of nodes, since options.prometheus_server is %s" (toString (index $o "prometheus_server"))) }}
{{- end }}
{{- include "herald.checkFiles" . }}
{{- end -}}

{{- /* Fails if an option names a file that no mount has. */ -}}
{{- define "herald.checkFiles" -}}
{{- $files := dict }}
{{- range list "k8s_config_file" "herald_peers_key" "control_plane_health_check_ca_path" }}
{{- with index $.Values.options . }}{{ $_ := set $files (toString .) true }}{{ end }}
{{- end }}
{{- range list "bgp_peerpass" "bgp_peers" }}
{{- range regexFindAll "(^|:)@/[^:,]+" (toString (index $.Values.options .)) -1 }}{{ $_ := set $files (trimPrefix ":" . | trimPrefix "@") true }}{{ end }}
{{- end }}
{{- range $file := keys $files | sortAlpha }}
{{- $mounted := or (hasPrefix "/var/run/secrets/" $file) (hasPrefix "/etc/ssl/certs/" $file) }}
{{- range $.Values.extraVolumeMounts }}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $file) }}{{ $mounted = true }}{{ end }}
{{- end }}
{{- if not $mounted }}
{{- fail (printf "options name the file %s, which the Pods do not have: mount it by extraVolumes and extraVolumeMounts" $file) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "herald.env" -}}
- name: vip_nodename
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- range $name, $value := omit .Values.options "health_check_port" "vip_nodename" "herald_config" }}
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
