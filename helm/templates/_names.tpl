{{/* Names, labels, and the list of versions that everything else is made from. */}}

{{- define "sojourn.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects everything of this release. The name is the chart's, or its alias: a parent may have this chart twice. */}}
{{- define "sojourn.ours" -}}
app.kubernetes.io/name: {{ .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* What selects a part of this release: (dict "root" $ "component" "node"). Never changes, selectors cannot. */}}
{{- define "sojourn.selector" -}}
{{ include "sojourn.ours" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/*
Labels of a pod template: (dict "root" $ "component" "node" "more" (list of labels)). Those that stay when only the chart's version changes, so
that this alone restarts nothing. No label stands there twice: what selects comes first, then what is closer to the pod.
*/}}
{{- define "sojourn.podLabels" -}}
{{- $labels := include "sojourn.selector" . | fromYaml -}}
{{- range default list .more -}}
{{- $labels = merge $labels (default dict .) -}}
{{- end -}}
{{- toYaml (merge $labels (default dict .root.Values.commonLabels) (dict "app.kubernetes.io/part-of" "sojourn")) -}}
{{- end -}}

{{/* Labels of any other object, likewise. */}}
{{- define "sojourn.labels" -}}
{{- $labels := include "sojourn.selector" . | fromYaml -}}
{{- range default list .more -}}
{{- $labels = merge $labels (default dict .) -}}
{{- end -}}
{{- toYaml (merge $labels (default dict .root.Values.commonLabels) (dict
    "app.kubernetes.io/part-of" "sojourn"
    "app.kubernetes.io/version" .root.Chart.AppVersion
    "app.kubernetes.io/managed-by" .root.Release.Service
    "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_"))) -}}
{{- end -}}

{{/*
A version's label from its image's tag or digest: what Kubernetes takes as a part of a name. The usual tags stay readable
(1.4.2 is 1-4-2); where more than dots and underscores had to change, six digits of a hash keep two tags apart.
*/}}
{{- define "sojourn.labelOf" -}}
{{- $text := . -}}
{{- if hasPrefix "sha256:" $text -}}
{{- $text = printf "sha-%s" (trunc 12 (trimPrefix "sha256:" $text)) -}}
{{- end -}}
{{- $plain := regexReplaceAll "[._+]" $text "-" -}}
{{- if regexMatch "^[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?$" $plain -}}
{{- $plain -}}
{{- else -}}
{{- $short := regexReplaceAll "[^a-z0-9-]" (lower $text) "-" | trunc 17 | trimAll "-" -}}
{{- printf "%s-%s" (default "v" $short) (sha256sum . | trunc 6) -}}
{{- end -}}
{{- end -}}

{{- define "sojourn.image" -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository .tag -}}
{{- end -}}
{{- end -}}

{{/* {"versions": [...]} as JSON: each with label, name, image, state, weight, replicas, resources, capacity; nothing left to default. */}}
{{- define "sojourn.versions" -}}
{{- $root := . -}}
{{- $found := list -}}
{{- $given := .Values.versions -}}
{{- if not $given -}}
{{- $given = list dict -}}
{{- end -}}
{{- range $given -}}
{{- $image := merge (dict) (default dict .image) (omit $root.Values.image "tag" "digest") -}}
{{- if not $root.Values.versions -}}
{{- $image = merge (dict) $root.Values.image -}}
{{- end -}}
{{- if not $image.tag -}}
{{- $_ := set $image "tag" $root.Chart.AppVersion -}}
{{- end -}}
{{- $label := default (include "sojourn.labelOf" (default $image.tag $image.digest)) .label -}}
{{- $version := dict
    "label" $label
    "name" (printf "%s-node-%s" (include "sojourn.fullname" $root) $label)
    "image" (include "sojourn.image" $image)
    "pullPolicy" $image.pullPolicy
    "state" (default "current" .state)
    "weight" (int (default 100 .weight))
    "replicas" (int (ternary .replicas $root.Values.node.replicas (hasKey . "replicas")))
    "sized" (hasKey . "replicas")
    "resources" (default $root.Values.node.resources .resources)
    "capacity" (default $root.Values.node.capacity .capacity) -}}
{{- if and (hasKey . "weight") (eq (int .weight) 0) -}}
{{- $_ := set $version "weight" 0 -}}
{{- end -}}
{{- $found = append $found $version -}}
{{- end -}}
{{- dict "versions" $found | toJson -}}
{{- end -}}

{{/*
{"workers": [...]} as JSON: one for each queue and version that is listed, with everything a worker Deployment needs. A worker belongs to a
version as a node does: queues are shared by versions, so what stays of the old version has workers that know its steps.
*/}}
{{- define "sojourn.workers" -}}
{{- $root := . -}}
{{- $node := .Values.node -}}
{{- $found := list -}}
{{- range $given := .Values.workers -}}
{{- $slug := include "sojourn.labelOf" $given.queue -}}
{{- range $version := (include "sojourn.versions" $root | fromJson).versions -}}
{{- if or (not $given.version) (eq $given.version $version.label) -}}
{{- $scaling := merge (dict) (default dict $given.scaling) (dict
    "kind" "" "minReplicas" 1 "maxReplicas" 8 "cpuPercent" 70 "depth" 0 "scaleDownSeconds" 300) -}}
{{- /* merge takes a 0 for nothing said */ -}}
{{- range $name := list "minReplicas" "scaleDownSeconds" -}}
{{- if hasKey (default dict $given.scaling) $name -}}
{{- $_ := set $scaling $name (get $given.scaling $name) -}}
{{- end -}}
{{- end -}}
{{- $worker := dict
    "queue" $given.queue
    "slug" $slug
    "label" $version.label
    "name" (printf "%s-worker-%s-%s" (include "sojourn.fullname" $root) $slug $version.label)
    "image" $version.image
    "pullPolicy" $version.pullPolicy
    "state" $version.state
    "replicas" (int (ternary $given.replicas 1 (hasKey $given "replicas")))
    "sized" (hasKey $given "replicas")
    "concurrency" (int (default 0 $given.concurrency))
    "drainSeconds" (int (default $node.drainSeconds $given.drainSeconds))
    "resources" (default $node.resources $given.resources)
    "env" (concat (default list $node.env) (default list $given.env))
    "envFrom" (concat (default list $node.envFrom) (default list $given.envFrom))
    "extraVolumes" (concat (default list $node.extraVolumes) (default list $given.extraVolumes))
    "extraVolumeMounts" (concat (default list $node.extraVolumeMounts) (default list $given.extraVolumeMounts))
    "strategy" (default (dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" 1 "maxUnavailable" 0)) $given.strategy)
    "podAnnotations" (merge (dict) (default dict $given.podAnnotations) (default dict $node.podAnnotations))
    "podLabels" (merge (dict) (default dict $given.podLabels) (default dict $node.podLabels))
    "topologySpreadConstraints" (default list $given.topologySpreadConstraints)
    "runtimeClassName" (ternary $given.runtimeClassName $node.runtimeClassName (hasKey $given "runtimeClassName"))
    "nodeSelector" (ternary $given.nodeSelector $node.nodeSelector (hasKey $given "nodeSelector"))
    "tolerations" (ternary $given.tolerations $node.tolerations (hasKey $given "tolerations"))
    "affinity" (ternary $given.affinity $node.affinity (hasKey $given "affinity"))
    "priorityClassName" (ternary $given.priorityClassName $node.priorityClassName (hasKey $given "priorityClassName"))
    "scaling" $scaling -}}
{{- $found = append $found $worker -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "workers" $found | toJson -}}
{{- end -}}

{{/* Labels of this release's metrics, for queries: where the chart's own monitor scrapes, those of another release in the namespace are not meant. */}}
{{- define "sojourn.scope" -}}
namespace={{ .Release.Namespace | quote }}
{{- if .Values.serviceMonitor.enabled -}}
,service="{{ include "sojourn.fullname" . }}-metrics"
{{- end -}}
{{- end -}}

{{/* What KEDA scales is named after its Deployment. KEDA names an autoscaler `keda-hpa-NAME`, which has 63 characters. */}}
{{- define "sojourn.scaledName" -}}
{{- if gt (len .) 54 -}}
{{- printf "%s-%s" (trunc 47 . | trimSuffix "-") (sha256sum . | trunc 6) -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* The longest drain that pods of this release may take, in seconds. */}}
{{- define "sojourn.longestDrain" -}}
{{- $drain := int .Values.node.drainSeconds -}}
{{- range (include "sojourn.workers" . | fromJson).workers -}}
{{- $drain = max $drain .drainSeconds -}}
{{- end -}}
{{- $drain -}}
{{- end -}}

{{/* The queues that workers serve, each once. */}}
{{- define "sojourn.queues" -}}
{{- $queues := list -}}
{{- range .Values.workers -}}
{{- $queues = append $queues .queue -}}
{{- end -}}
{{- $queues | uniq | sortAlpha | join "," -}}
{{- end -}}

{{/* The version that jobs run: the first current one, whose commands are the newest the release knows. */}}
{{- define "sojourn.jobImage" -}}
{{- range (include "sojourn.versions" . | fromJson).versions -}}
{{- if eq .state "current" -}}{{- .image -}}{{- break -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sojourn.bundled" -}}
{{- if ne .Values.nats.mode "external" -}}true{{- end -}}
{{- end -}}

{{- define "sojourn.natsServers" -}}
{{- if eq .Values.nats.mode "cluster" -}}3{{- else -}}1{{- end -}}
{{- end -}}

{{- define "sojourn.streamReplicas" -}}
{{- if .Values.topology.replicas -}}
{{- int .Values.topology.replicas -}}
{{- else if eq .Values.nats.mode "single" -}}1{{- else -}}3{{- end -}}
{{- end -}}

{{- define "sojourn.natsUrl" -}}
{{- if include "sojourn.bundled" . -}}
{{- printf "%s://%s-nats:4222" (ternary "tls" "nats" .Values.nats.tls.enabled) (include "sojourn.fullname" .) -}}
{{- else -}}
{{- required "nats.external.url is needed with nats.mode=external: the address of your NATS, such as nats://nats.messaging:4222 (or set nats.mode to \"cluster\" or \"single\" for a NATS in this release)" .Values.nats.external.url -}}
{{- end -}}
{{- end -}}

{{- define "sojourn.keysSecret" -}}
{{- default (printf "%s-keys" (include "sojourn.fullname" .)) .Values.keys.existingSecret -}}
{{- end -}}

{{- define "sojourn.natsAuthSecret" -}}
{{- if include "sojourn.bundled" . -}}
{{- include "sojourn.fullname" . }}-nats-auth
{{- else -}}
{{- .Values.nats.external.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "sojourn.tlsSecret" -}}
{{- if .Values.nats.tls.enabled -}}
{{- if .Values.nats.tls.existingSecret -}}
{{- .Values.nats.tls.existingSecret -}}
{{- else if include "sojourn.bundled" . -}}
{{- include "sojourn.fullname" . }}-nats-tls
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "sojourn.nodeAccount" -}}
{{- default (printf "%s-node" (include "sojourn.fullname" .)) .Values.serviceAccount.existingName -}}
{{- end -}}
