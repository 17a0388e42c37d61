{{/* What pods of this chart have in common. */}}

{{- define "sojourn.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "sojourn.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
privileged: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "sojourn.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
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
    {{- include "sojourn.labels" (dict "root" $root "component" .component) | nindent 4 }}
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

{{/* Egress rules of network policies. */}}
{{- define "sojourn.egressDns" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
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
- ports:
    - {protocol: TCP, port: {{ .Values.nats.external.port }}}
{{- end }}
{{- end }}
