{{- define "refold.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The labels that select a component's pods; arguments: (root, component). */}}
{{- define "refold.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "refold.labels" -}}
{{ include "refold.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels of pods: the selecting ones, and those of all objects. */}}
{{- define "refold.podLabels" -}}
{{ include "refold.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "refold.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "refold.serviceAccountName" -}}
{{- with .Values.serviceAccount -}}
{{- if .create -}}
{{- default (include "refold.fullname" $) .name -}}
{{- else -}}
{{- default "default" .name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A setting's environment variable: ssl.ca.location with REFOLD_KAFKA is REFOLD_KAFKA_SSL_CA_LOCATION. */}}
{{- define "refold.variable" -}}
{{- printf "%s_%s" .prefix (.name | replace "." "_" | upper) -}}
{{- end -}}

{{- define "refold.fromSecret" -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ .from.secret | quote }}, key: {{ .from.key | quote }}}
{{- end -}}

{{/* The Secret with the workers' token. */}}
{{- define "refold.tokenSecret" -}}
{{- default (printf "%s-worker-token" (include "refold.fullname" .)) .Values.workers.token.existingSecret -}}
{{- end -}}

{{/* The environment of a container; arguments: (root, component, kafka, keys, env, secretEnv). kafka: its own settings, or null. */}}
{{- define "refold.env" -}}
{{- $values := .root.Values -}}
{{- $plain := merge (dict) (.env | default dict) $values.env -}}
{{- $secret := merge (dict) (.secretEnv | default dict) $values.secretEnv -}}
{{- range $name, $_ := $plain -}}
{{- if hasKey $secret $name -}}
{{- fail (printf "%s is under env and under secretEnv; leave one of them" $name) -}}
{{- end -}}
{{- end -}}
{{- $kafka := .kafka | default $values.kafka -}}
- name: REFOLD_LOG
  value: {{ printf "kafka://%s/%s?partitions=%d" (join "," $values.log.brokers) $values.log.prefix (int $values.log.partitions) | quote }}
- name: HOME
  value: /tmp
{{- if $kafka.existingSecret }}
- name: REFOLD_KAFKA_CONFIG
  value: {{ printf "/etc/refold/kafka/%s" ($kafka.propertiesKey | default "client.properties") | quote }}
{{- end }}
{{- range $name, $value := $kafka.settings }}
- name: {{ include "refold.variable" (dict "prefix" "REFOLD_KAFKA" "name" $name) }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- range $name, $from := $kafka.secretSettings }}
{{ include "refold.fromSecret" (dict "name" (include "refold.variable" (dict "prefix" "REFOLD_KAFKA" "name" $name)) "from" $from) }}
{{- end }}
{{- with $values.registry }}
{{- if .url }}
- name: REFOLD_SCHEMA_REGISTRY
  value: {{ .url | quote }}
{{- if .existingSecret }}
{{ include "refold.fromSecret" (dict "name" "REFOLD_SCHEMA_REGISTRY_USER_INFO" "from" (dict "secret" .existingSecret "key" .userInfoKey)) }}
{{- end }}
{{- range $name, $value := .settings }}
- name: {{ include "refold.variable" (dict "prefix" "REFOLD_SCHEMA_REGISTRY" "name" $name) }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if $values.blobs.existingClaim }}
- name: REFOLD_BLOBS
  value: file:///blobs
{{- else if $values.blobs.url }}
- name: REFOLD_BLOBS
  value: {{ $values.blobs.url | quote }}
{{- end }}
{{- if and .keys $values.keys.existingSecret }}
- name: REFOLD_MASTER_KEY
  value: {{ printf "file:/etc/refold/keys/%s" $values.keys.masterKeyKey | quote }}
{{- end }}
{{- if $values.types.existingConfigMap }}
- name: REFOLD_TYPES
  value: /etc/refold/types
{{- end }}
{{- /* The topics hook does not ask workers. */}}
{{- if ne .component "topics" }}
- name: REFOLD_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ include "refold.tokenSecret" .root | quote }}, key: {{ $values.workers.token.key | quote }}}
{{- if $values.workers.tls.existingSecret }}
- name: REFOLD_TLS_CA
  value: /etc/refold/pages/ca.crt
{{- end }}
{{- end }}
{{- range $name, $value := $plain }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range $name, $from := $secret }}
{{ include "refold.fromSecret" (dict "name" $name "from" $from) }}
{{- end }}
{{- end -}}

{{/* The mounts of a container; arguments as for "refold.env", and extra: the component's values. */}}
{{- define "refold.mounts" -}}
{{- $values := .root.Values -}}
{{- $kafka := .kafka | default $values.kafka -}}
- {name: tmp, mountPath: /tmp}
{{- if and $values.workers.tls.existingSecret (ne .component "topics") }}
- {name: pages, mountPath: /etc/refold/pages, readOnly: true}
{{- end }}
{{- if $kafka.existingSecret }}
- {name: kafka, mountPath: /etc/refold/kafka, readOnly: true}
{{- end }}
{{- if $values.blobs.existingClaim }}
- {name: blobs, mountPath: /blobs}
{{- end }}
{{- if and .keys $values.keys.existingSecret }}
- {name: keys, mountPath: /etc/refold/keys, readOnly: true}
{{- end }}
{{- if $values.types.existingConfigMap }}
- {name: types, mountPath: /etc/refold/types, readOnly: true}
{{- end }}
{{- range $index, $name := $values.secretFiles }}
- {name: secret-{{ $index }}, mountPath: {{ printf "/etc/refold/secrets/%s" $name | quote }}, readOnly: true}
{{- end }}
{{- with (.extra | default dict).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volumes of these mounts; a further argument: tmpSizeLimit. */}}
{{- define "refold.volumes" -}}
{{- $values := .root.Values -}}
{{- $kafka := .kafka | default $values.kafka -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmpSizeLimit | default "1Gi" | quote }}}
{{- if and $values.workers.tls.existingSecret (ne .component "topics") }}
- name: pages
  secret:
    secretName: {{ $values.workers.tls.existingSecret | quote }}
    defaultMode: 0440
    {{- /* Only workers get the key. */}}
    {{- if ne .component "worker" }}
    items: [{key: ca.crt, path: ca.crt}]
    {{- end }}
{{- end }}
{{- if $kafka.existingSecret }}
- name: kafka
  secret: {secretName: {{ $kafka.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- if $values.blobs.existingClaim }}
- name: blobs
  persistentVolumeClaim: {claimName: {{ $values.blobs.existingClaim | quote }}}
{{- end }}
{{- if and .keys $values.keys.existingSecret }}
- name: keys
  secret: {secretName: {{ $values.keys.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- if $values.types.existingConfigMap }}
- name: types
  configMap: {name: {{ $values.types.existingConfigMap | quote }}}
{{- end }}
{{- range $index, $name := $values.secretFiles }}
- name: secret-{{ $index }}
  secret: {secretName: {{ $name | quote }}, defaultMode: 0440}
{{- end }}
{{- with (.extra | default dict).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The common part of all pods; arguments: (root). */}}
{{- define "refold.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
{{- with .root.Values.podSecurity }}
{{- range $name, $id := dict "runAsUser" .runAsUser "runAsGroup" .runAsGroup "fsGroup" .fsGroup }}
{{- if not (kindIs "invalid" $id) }}
  {{ $name }}: {{ int64 $id }}
{{- end }}
{{- end }}
{{- end }}
  # A volume with many files is not walked at every start.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "refold.container" -}}
image: {{ include "refold.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* The scheduling of pods; argument: a component's values. */}}
{{- define "refold.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The spread over hosts and zones in a component's values; null adds nothing. */}}
{{- define "refold.spread" -}}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Pods that run once; arguments: (root, component, args, kafka, keys, resources, serviceAccountName, extra). */}}
{{- define "refold.oncePod" -}}
{{ include "refold.pod" . }}
restartPolicy: {{ .restartPolicy | default "Never" }}
serviceAccountName: {{ .serviceAccountName }}
{{- /* It may run wherever workers may, unless its values say otherwise; the workers' spread does not apply to it. */}}
{{- $extra := .extra | default dict }}
{{- $where := pick .root.Values.workers "nodeSelector" "tolerations" }}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- $own := get $extra $name }}
{{- if or (kindIs "map" $own) (kindIs "slice" $own) }}
{{- $_ := set $where $name $own }}
{{- end }}
{{- end }}
{{- with include "refold.scheduling" $where }}
{{- . }}
{{- end }}
{{- with include "refold.spread" $extra }}
{{- . }}
{{- end }}
{{- with $extra.initContainers }}
initContainers: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .component }}
    {{- include "refold.container" . | nindent 4 }}
    args: {{- toYaml .args | nindent 6 }}
    env: {{- include "refold.env" . | nindent 6 }}
    {{- with .resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts: {{- include "refold.mounts" . | nindent 6 }}
volumes: {{- include "refold.volumes" . | nindent 2 }}
{{- end -}}

{{/* Egress rules of {to, ports}. */}}
{{- define "refold.egress" -}}
{{- range . }}
- {{- if .to }}
  to: {{- toYaml .to | nindent 4 }}
  {{- end }}
  ports:
  {{- range .ports }}
    - {protocol: TCP, port: {{ int . }}}
  {{- end }}
{{- end }}
{{- end -}}
