{{/*
Mistakes that the schema of the values cannot detect: one per line, each with its path. Without this check, they would appear only in the
log of a pod that cannot start. `helm lint` ignores the failure, so the chart can be linted without values.
*/}}
{{- define "unseen.faults" -}}
{{- $config := .Values.config }}
{{- $brokers := include "unseen.config" (list $config "kafka.bootstrap_servers" "") }}
{{- if not (trim $brokers) }}
config.kafka.bootstrap_servers: required: one or more brokers, such as "kafka:9092"
{{- end }}
{{- if contains "@" $brokers }}
config.kafka.bootstrap_servers: must not contain a user or password, because the ConfigMap would reveal it; set sasl.username and sasl.password in config.kafka.properties
{{- end }}
{{- if not $config.topics }}
config.topics: required: at least one topic to deduplicate
{{- end }}
{{- if include "unseen.config" (list $config "kafka.instance_id" "") }}
config.kafka.instance_id: must not be set, because the chart sets it to the pod's name; remove it
{{- end }}
{{- if include "unseen.config" (list $config "state.dir" "") }}
config.state.dir: must not be set, because the chart sets it to a directory on the pod's volume; remove it
{{- end }}
{{- if include "unseen.config" (list $config "http.listen" "") }}
config.http.listen: must not be set, because the chart sets it; use http.host and http.port
{{- end }}
{{- if or (include "unseen.config" (list $config "serve.listen" "")) (include "unseen.config" (list $config "serve.http_listen" "")) }}
config.serve: must not contain listen or http_listen, because the chart sets them; use serve.port and serve.httpPort
{{- end }}
{{- with $config.serve }}
{{- with .password }}
{{- include "unseen.readable" (list $ "config.serve.password" .) }}
{{- end }}
{{- end }}
{{- with .Values.serve }}
{{- if .enabled }}
{{- include "unseen.servable" $config }}
{{- end }}
{{- if and .enabled (eq (int .port) (int .httpPort)) }}
serve.httpPort: must differ from serve.port
{{- end }}
{{- if and .tlsSecretName (dig "serve" "tls" "" $config) }}
serve.tlsSecretName: must not be set together with config.serve.tls; remove one of the two
{{- end }}
{{- if and .enabled .autoscaling.enabled (gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) }}
serve.autoscaling.minReplicas: must be at most serve.autoscaling.maxReplicas, {{ int .autoscaling.maxReplicas }}, got {{ int .autoscaling.minReplicas }}
{{- end }}
{{- end }}
{{- include "unseen.readableProperties" (list $ "config.kafka.properties" (dig "kafka" "properties" dict $config | default dict)) }}
{{- with $config.schema_registry }}
{{- if contains "@" (toString .url) }}
config.schema_registry.url: must not contain a user or password, because the ConfigMap would reveal it; set config.schema_registry.username and .password
{{- end }}
{{- with .password }}
{{- include "unseen.readable" (list $ "config.schema_registry.password" .) }}
{{- end }}
{{- with dig "oauth" "client_secret" "" . }}
{{- include "unseen.readable" (list $ "config.schema_registry.oauth.client_secret" .) }}
{{- end }}
{{- end }}
{{- range $index, $topic := $config.topics }}
{{- if kindIs "map" (get $topic "hash") }}
{{- include "unseen.readable" (list $ (printf "config.topics[%d].hash.siphash" $index) (get $topic.hash "siphash")) }}
{{- end }}
{{- end }}
{{- $drain := include "unseen.shutdownTimeout" . }}
{{- $grace := .Values.terminationGracePeriodSeconds }}
{{- if contains "$" $drain }}
{{- if not $grace }}
terminationGracePeriodSeconds: is required if config.worker.shutdown_timeout, or UNSEEN__WORKER__SHUTDOWN_TIMEOUT in extraEnv, is a variable
{{- end }}
{{- else if and $grace (le (int64 $grace) (include "unseen.seconds" $drain | int64)) }}
terminationGracePeriodSeconds: must be longer than the shutdown timeout, {{ $drain }}, got {{ int64 $grace }}
{{- end }}
{{- with .Values.keda }}
{{- if .enabled }}
{{- if not .partitions }}
keda.partitions: required: the number of partitions of the input with the most partitions
{{- end }}
{{- if not .maxReplicaCount }}
keda.maxReplicaCount: required: the maximum number of pods, at most keda.partitions
{{- else if and .partitions (gt (int64 .maxReplicaCount) (int64 .partitions)) }}
keda.maxReplicaCount: must be at most keda.partitions, {{ int64 .partitions }}, got {{ int64 .maxReplicaCount }}; more pods would be idle
{{- else if gt (int64 .minReplicaCount) (int64 .maxReplicaCount) }}
keda.minReplicaCount: must be at most keda.maxReplicaCount, {{ int64 .maxReplicaCount }}, got {{ int64 .minReplicaCount }}
{{- end }}
{{- if and .partitions .activationLagThreshold (lt (int64 .activationLagThreshold) (int64 .partitions)) }}
keda.activationLagThreshold: must be at least keda.partitions, {{ int64 .partitions }}, got {{ int64 .activationLagThreshold }}; see KEDA #5675
{{- end }}
{{- if and (not .bootstrapServers) (contains "${" $brokers) }}
keda.bootstrapServers: is required if config.kafka.bootstrap_servers is a variable, because KEDA cannot see its value
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Settings that are valid for workers, but not for servers. `unseen check` reports the same mistakes. */}}
{{- define "unseen.servable" -}}
{{- if and (kindIs "map" .state) (eq (toString (get .state "changelog")) "false") }}
config.state.changelog: must not be false with serve.enabled, because servers build their states from the changelogs
{{- end }}
{{- $filters := default dict (get (default dict .serve) "filters") }}
{{- range $index, $topic := .topics }}
{{- $filter := default dict $topic.filter }}
{{- range kindIs "slice" $topic.input | ternary $topic.input (list $topic.input) }}
{{- $space := kindIs "map" . | ternary "NAME" (default "{input}" $topic.space | replace "{input}" (toString .)) }}
{{- /* The chart cannot know the spaces of the topics that match a pattern. */}}
{{- if not (or (hasKey $filters $space) (and (kindIs "map" .) $filters)) }}
{{- if eq (toString (get $filter "kind")) "exact" }}
config.topics[{{ $index }}].filter: must not have kind "exact" with serve.enabled, because servers keep all keys in memory; set config.serve.filters.{{ $space }}
{{- else if and $topic.retract (eq (toString (get $filter "confirm")) "true") }}
config.topics[{{ $index }}].retract: must not be combined with confirm and serve.enabled, because the servers' filter must be able to retract keys; set config.serve.filters.{{ $space }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Reports a path whose value contains a secret as plain text. The value must consist of references without defaults, because the ConfigMap
would reveal any other text.
*/}}
{{- define "unseen.readable" -}}
{{- if not (regexMatch "^([$][{](file:[^}]+|[A-Za-z0-9_]+(:-|:[?][^}]*)?)[}])+$" (index . 2 | toString)) }}
{{ index . 1 }}: must not be a secret, because the ConfigMap would reveal it; use ${file:{{ (index . 0).Values.secretMountPath }}/NAME} and a Secret in existingSecret, or ${P} and the variable P in extraEnv, without other text and without a default
{{- end }}
{{- end }}

{{/*
The same as unseen.readable, for librdkafka's properties, which may be nested: `sasl: { password: ... }` is `sasl.password`.
src/config/secrets.rs lists the secret properties.
*/}}
{{- define "unseen.readableProperties" -}}
{{- $root := index . 0 }}
{{- $above := index . 1 }}
{{- range $name, $value := index . 2 }}
{{- $path := printf "%s.%s" $above $name }}
{{- if kindIs "map" $value }}
{{- include "unseen.readableProperties" (list $root $path $value) }}
{{- else if regexMatch "password|passphrase|secret|key[.]pem|sasl[.]oauthbearer[.]config|sasl[.]jaas[.]config" (lower $path) }}
{{- include "unseen.readable" (list $root $path $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "unseen.check" -}}
{{- with include "unseen.faults" . | trim }}
{{- fail (printf "\n\n%s\n" .) }}
{{- end }}
{{- end }}
