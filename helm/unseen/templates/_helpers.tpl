{{/* Name of the chart. */}}
{{- define "unseen.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* Name of all objects. A label can have 63 characters, and Kubernetes appends a hash to a StatefulSet's name. */}}
{{- define "unseen.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "unseen.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "unseen.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "unseen.headless" -}}
{{ include "unseen.fullname" . }}-headless
{{- end }}

{{/* Labels that never change during the life of a release. */}}
{{- define "unseen.selectorLabels" -}}
app.kubernetes.io/name: {{ include "unseen.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "unseen.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "unseen.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/*
Not empty if a topic has a pattern. The pods are then not static members, because static members would not get the partitions of new
topics. Instead, the id in the state directory, on the pod's volume, keeps the transactional ids stable.
*/}}
{{- define "unseen.hasPattern" -}}
{{- range .topics }}{{ if kindIs "map" .input }}true{{ end }}{{ end }}
{{- end }}

{{/* Servers and workers are different pods. Their selectors must not match each other. */}}
{{- define "unseen.serveName" -}}
{{ include "unseen.fullname" . }}-serve
{{- end }}

{{- define "unseen.serveSelectorLabels" -}}
app.kubernetes.io/name: {{ include "unseen.name" . }}-serve
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "unseen.serveLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "unseen.serveSelectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "unseen.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "unseen.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "unseen.image" -}}
{{- with .Values.image }}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{/* The value in `config` at a path such as "kafka.group_id", or a default. */}}
{{- define "unseen.config" -}}
{{- $at := index . 0 }}
{{- range splitList "." (index . 1) }}
{{- $at = ternary (get (default dict $at) .) "" (kindIs "map" $at) }}
{{- end }}
{{- default (index . 2) $at }}
{{- end }}

{{/* A duration such as "1m 30s" in seconds, rounded up. */}}
{{- define "unseen.seconds" -}}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+[a-zA-Zµ]+" (regexReplaceAll "\\s" . "") -1 }}
{{- $unit := regexFind "[a-zA-Zµ]+" . }}
{{- $scale := 0.001 }}
{{- if hasPrefix "s" $unit }}{{ $scale = 1 }}
{{- else if has $unit (list "m" "min" "mins" "minute" "minutes") }}{{ $scale = 60 }}
{{- else if hasPrefix "h" $unit }}{{ $scale = 3600 }}
{{- else if hasPrefix "d" $unit }}{{ $scale = 86400 }}
{{- else if hasPrefix "w" $unit }}{{ $scale = 604800 }}
{{- else if or (hasPrefix "month" $unit) (eq $unit "M") }}{{ $scale = 2630016 }}
{{- else if hasPrefix "y" $unit }}{{ $scale = 31557600 }}
{{- end }}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) $scale) }}
{{- end }}
{{- ceil $sum | int64 }}
{{- end }}

{{/* The shutdown timeout. Contains a `$` if only the pod knows the value. The environment overrides the configuration. */}}
{{- define "unseen.shutdownTimeout" -}}
{{- $timeout := include "unseen.config" (list .Values.config "worker.shutdown_timeout" "20s") }}
{{- range .Values.extraEnv }}
{{- if eq (get . "name" | toString) "UNSEEN__WORKER__SHUTDOWN_TIMEOUT" }}
{{- $timeout = hasKey . "valueFrom" | ternary "$" (get . "value" | toString) }}
{{- end }}
{{- end }}
{{- $timeout }}
{{- end }}

{{- define "unseen.terminationGracePeriodSeconds" -}}
{{- $drain := include "unseen.seconds" (include "unseen.shutdownTimeout" .) | int64 }}
{{- .Values.terminationGracePeriodSeconds | default (add $drain 10) | int64 }}
{{- end }}

{{/*
Not empty if all clients that can connect to the servers can write. The environment overrides the configuration. The chart cannot see
the contents of `extraEnvFrom`.
*/}}
{{- define "unseen.openToWrites" -}}
{{- $serve := dig "serve" dict .Values.config | default dict }}
{{- $env := dict }}
{{- range .Values.extraEnv }}
{{- $_ := set $env (get . "name" | toString) (get . "value" | toString) }}
{{- end }}
{{- $writes := default (get $serve "writes" | toString) (get $env "UNSEEN__SERVE__WRITES") }}
{{- $password := or (get $serve "password") (hasKey $env "UNSEEN__SERVE__PASSWORD") }}
{{- $certificates := or (dig "tls" "client_ca_location" "" $serve) (hasKey $env "UNSEEN__SERVE__TLS__CLIENT_CA_LOCATION") }}
{{- if and .Values.serve.enabled $writes (ne $writes "false") (not $password) (not $certificates) }}true{{ end }}
{{- end }}

{{/* The part of the pod specification that workers and servers share. */}}
{{- define "unseen.podSpec" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* OpenShift assigns user and group ids and rejects the image's ids. Other ids stay, because the user has set them. */}}
{{- $security := .Values.podSecurityContext }}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}
{{- range list "runAsUser" "runAsGroup" "fsGroup" }}
{{- if eq (get $security . | int64) 65532 }}
{{- $security = omit $security . }}
{{- end }}
{{- end }}
{{- end }}
securityContext:
  {{- toYaml $security | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "unseen.mounts" -}}
- name: config
  mountPath: /etc/unseen
  readOnly: true
{{- include "unseen.extraMounts" . }}
{{- end }}

{{/* Mounts of files that the configuration may refer to: secrets, and the user's own files. */}}
{{- define "unseen.extraMounts" -}}
{{- if .Values.existingSecret }}
- name: secrets
  mountPath: {{ .Values.secretMountPath }}
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "unseen.volumes" -}}
- name: config
  configMap:
    name: {{ include "unseen.fullname" . }}
{{- include "unseen.extraVolumes" . }}
{{- end }}

{{- define "unseen.extraVolumes" -}}
{{- if .Values.existingSecret }}
- name: secrets
  secret:
    secretName: {{ .Values.existingSecret }}
    # Readable only for the owner (root) and the group (fsGroup).
    defaultMode: 0440
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
