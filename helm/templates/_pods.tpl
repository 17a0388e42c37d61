{{/* What pods of this chart have in common. */}}

{{- define "sojourn.podSecurity" -}}
runAsNonRoot: true
{{- with int .Values.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "sojourn.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- with int .Values.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
{{- end }}
privileged: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "sojourn.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* How `sojourn` finds the broker, as a role: (dict "root" $ "role" "node"). Secrets come as files. */}}
{{- define "sojourn.brokerEnv" -}}
{{- $values := .root.Values -}}
{{- $auth := ternary "password" $values.nats.external.auth (ne "external" $values.nats.mode) -}}
- name: SOJOURN_SERVER
  value: {{ include "sojourn.natsUrl" .root | quote }}
- name: SOJOURN_NAMESPACE
  value: {{ $values.topology.namespace | quote }}
{{- if and (ne $auth "none") (or (include "sojourn.bundled" .root) $values.nats.external.roles) }}
- name: SOJOURN_ROLE
  value: {{ .role }}
{{- end }}
{{- if eq $auth "password" }}
- name: SOJOURN_USER_FILE
  value: /etc/sojourn/nats/user
- name: SOJOURN_PASSWORD_FILE
  value: /etc/sojourn/nats/password
{{- else if eq $auth "creds" }}
- name: SOJOURN_CREDS
  value: /etc/sojourn/nats/user.creds
{{- end }}
{{- if include "sojourn.tlsSecret" .root }}
- name: SOJOURN_TLS_CA
  value: /etc/sojourn/tls/ca.crt
{{- else if $values.nats.tls.enabled }}
- name: SOJOURN_TLS_CA
  value: system
{{- end }}
{{- end -}}

{{/*
A list in YAML in which no name stands twice, which server-side apply refuses: (dict "list" list "by" "name"). The last of a name holds, in the
first one's place: what refers to it comes after it.
*/}}
{{- define "sojourn.unique" -}}
{{- $found := dict -}}
{{- $order := list -}}
{{- $by := .by -}}
{{- range .list -}}
{{- $name := get . $by -}}
{{- if not (hasKey $found $name) -}}
{{- $order = append $order $name -}}
{{- end -}}
{{- $_ := set $found $name . -}}
{{- end -}}
{{- $all := list -}}
{{- range $order -}}
{{- $all = append $all (get $found .) -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* A container's environment: (dict "root" $ "role" "node" "more" list). What the values say of HOME replaces the chart's. */}}
{{- define "sojourn.env" -}}
{{- $own := include "sojourn.ownEnv" . | fromYamlArray -}}
{{- include "sojourn.unique" (dict "list" (concat $own (default list .more)) "by" "name") -}}
{{- end -}}

{{- define "sojourn.ownEnv" -}}
- name: HOME
  value: /tmp
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{ include "sojourn.brokerEnv" . }}
{{- end -}}

{{- define "sojourn.brokerMounts" -}}
{{- $values := .root.Values -}}
{{- if or (include "sojourn.bundled" .root) (ne $values.nats.external.auth "none") }}
- name: nats
  mountPath: /etc/sojourn/nats
  readOnly: true
{{- end }}
{{- if include "sojourn.tlsSecret" .root }}
- name: tls
  mountPath: /etc/sojourn/tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "sojourn.brokerVolumes" -}}
{{- $values := .root.Values -}}
{{- $bundled := include "sojourn.bundled" .root -}}
{{- $name := .role -}}
{{- if not $bundled -}}
{{- $name = get $values.nats.external (printf "%sRole" .role) -}}
{{- end -}}
{{- if .queue -}}
{{- $name = printf "%s-%s" $name .queue -}}
{{- end -}}
{{- if or $bundled (ne $values.nats.external.auth "none") }}
- name: nats
  secret:
    secretName: {{ required "nats.external.existingSecret is needed: the Secret with the NATS credentials (or set nats.external.auth to none)" (include "sojourn.natsAuthSecret" .root) }}
    defaultMode: 0440
    items:
      {{- if and (not $bundled) (eq $values.nats.external.auth "creds") }}
      - {key: {{ $name }}.creds, path: user.creds}
      {{- else }}
      - {key: {{ $name }}-user, path: user}
      - {key: {{ $name }}-password, path: password}
      {{- end }}
{{- end }}
{{- with include "sojourn.tlsSecret" .root }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - {key: ca.crt, path: ca.crt}
{{- end }}
{{- end -}}

{{/*
A job's pod: (dict "root" $ "component" "promote" "script" "promote.py" or "command" [...] "role" "admin" "kube" true "env" list).
Without a role it does not know the broker; without kube it has no token for the API server.
*/}}
{{- define "sojourn.jobPod" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "sojourn.podLabels" (dict "root" $root "component" .component "more" (list $root.Values.jobs.podLabels)) | nindent 4 }}
  {{- with $root.Values.jobs.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  restartPolicy: {{ default "OnFailure" .restart }}
  {{- if .kube }}
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: true
  {{- else }}
  serviceAccountName: {{ include "sojourn.nodeAccount" $root }}
  automountServiceAccountToken: false
  {{- end }}
  enableServiceLinks: false
  securityContext:
    {{- include "sojourn.podSecurity" $root | nindent 4 }}
  {{- include "sojourn.pullSecrets" $root | nindent 2 }}
  {{- with $root.Values.node.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.node.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "sojourn.jobImage" $root | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- if .script }}
      command: [python, /scripts/{{ .script }}]
      {{- else }}
      command: {{ toJson .command }}
      {{- end }}
      env:
        - name: HOME
          value: /tmp
        {{- if .role }}
        {{- include "sojourn.brokerEnv" (dict "root" $root "role" .role) | nindent 8 }}
        {{- end }}
        {{- if .kube }}
        - name: NAME
          value: {{ $root.Chart.Name | quote }}
        - name: INSTANCE
          value: {{ $root.Release.Name | quote }}
        - name: KUBE_NAMESPACE
          value: {{ $root.Release.Namespace | quote }}
        {{- end }}
        {{- range .env }}
        - name: {{ .name }}
          value: {{ .value | quote }}
        {{- end }}
      securityContext:
        {{- include "sojourn.containerSecurity" $root | nindent 8 }}
      resources:
        {{- toYaml $root.Values.jobs.resources | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- if .script }}
        - name: scripts
          mountPath: /scripts
          readOnly: true
        {{- end }}
        {{- if .role }}
        {{- include "sojourn.brokerMounts" (dict "root" $root) | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- if .script }}
    - name: scripts
      configMap: {name: {{ default (printf "%s-scripts" (include "sojourn.fullname" $root)) .scripts }}}
    {{- end }}
    {{- if .role }}
    {{- include "sojourn.brokerVolumes" (dict "root" $root "role" .role) | nindent 4 }}
    {{- end }}
{{- end -}}

{{/*
Where the pods of a Deployment run: (dict "values" node-or-worker "spread" constraints "selector" (labels to spread)). As a list in YAML.
*/}}
{{- define "sojourn.scheduling" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- if .spread }}
  {{- toYaml .spread | nindent 2 }}
  {{- else }}
  {{- $selector := .selector }}
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end -}}

{{/*
The first container of nodes and workers: (dict "root" $ "image" "..." "pullPolicy" "..." "role" "node"). They refuse to start on streams that
are missing or differ, and end when NATS does not answer; this waits for both instead of crashing, for as long as it takes. A shell as
process 1 ignores SIGTERM unless told: a pod that is deleted while it waits goes at once.
*/}}
{{- define "sojourn.waitForTopology" -}}
- name: topology
  image: {{ .image | quote }}
  imagePullPolicy: {{ .pullPolicy }}
  command: [sh, -c, "trap 'exit 143' TERM; until sojourn topology check; do sleep 2 & wait $!; done"]
  env:
    - name: HOME
      value: /tmp
    {{- include "sojourn.brokerEnv" (dict "root" .root "role" .role) | nindent 4 }}
  securityContext:
    {{- include "sojourn.containerSecurity" .root | nindent 4 }}
  resources:
    {{- toYaml .root.Values.jobs.resources | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    {{- include "sojourn.brokerMounts" (dict "root" .root) | nindent 4 }}
{{- end -}}

{{/* Port and probes of nodes and workers, with `root` as the context. */}}
{{- define "sojourn.probes" -}}
ports:
  - {name: health, containerPort: {{ .Values.node.healthPort }}, protocol: TCP}
startupProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ div (add1 .Values.node.startupSeconds) 2 }}
# 503 while its loop is stuck in code that does not await: a restart cures what it reports.
livenessProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
# 503 while it has not joined, may not act, or drains.
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* Egress rules of network policies. */}}
{{- define "sojourn.egressDns" -}}
- ports:
    {{- range .Values.networkPolicy.dnsPorts }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- define "sojourn.egressApiServer" -}}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- define "sojourn.egressNats" -}}
{{- if include "sojourn.bundled" . }}
- to:
    - podSelector:
        matchLabels:
          {{- include "sojourn.selector" (dict "root" . "component" "nats") | nindent 10 }}
  ports:
    - {protocol: TCP, port: 4222}
{{- else }}
{{- /* Those of the URL too: policies see the pod's port, which may be another than its Service's. */}}
{{- $ports := list (int .Values.nats.external.port) }}
{{- range splitList "," .Values.nats.external.url }}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default "4222" | int) }}
{{- end }}
- ports:
    {{- range uniq $ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- end }}
