{{- define "ballast.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "ballast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "ballast.name" .) .Release.Name -}}
{{- printf "%s-operator" (.Release.Name | trunc 54 | trimSuffix "-") }}
{{- else -}}
{{- printf "%s-%s-operator" (.Release.Name | trunc 30 | trimSuffix "-") (include "ballast.name" . | trunc 23 | trimSuffix "-") }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects, which differs for releases of the same name in several namespaces. */}}
{{- define "ballast.clusterName" -}}
{{ .Release.Namespace }}:{{ include "ballast.fullname" . }}
{{- end }}

{{- define "ballast.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "ballast.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* The network policies of services admit pods by the first of these labels. */}}
{{- define "ballast.selectorLabels" -}}
app.kubernetes.io/name: ballast-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "ballast.labels" -}}
{{ include "ballast.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: ballast
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* Argument: list of an image's values and the chart's appVersion. */}}
{{- define "ballast.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1) }}
{{- end }}
{{- end }}

{{/* The runtime's image for services without GPUs: the runtime's own variant, unless values name another. */}}
{{- define "ballast.cpuRuntimeImage" -}}
{{- $runtime := .Values.runtimeImage -}}
{{- $cpu := .Values.cpuRuntimeImage -}}
{{- if and $runtime.digest (not (or $cpu.repository $cpu.tag $cpu.digest)) -}}
{{ include "ballast.image" (list $runtime .Chart.AppVersion) }}
{{- else -}}
{{- $version := $runtime.tag | default .Chart.AppVersion | trimSuffix "-cuda" | trimSuffix "-cpu" -}}
{{- $repository := $cpu.repository | default $runtime.repository -}}
{{ include "ballast.image" (list (dict "repository" $repository "tag" $cpu.tag "digest" $cpu.digest) (printf "%s-cpu" $version)) }}
{{- end }}
{{- end }}

{{/* JSON list of the namespaces that are watched; empty: all. */}}
{{- define "ballast.watched" -}}
{{- if and (eq .Values.rbac.scope "Namespace") (not .Values.watchNamespaces) -}}
{{- list .Release.Namespace | toJson }}
{{- else -}}
{{- .Values.watchNamespaces | toJson }}
{{- end }}
{{- end }}
