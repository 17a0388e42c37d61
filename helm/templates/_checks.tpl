{{/* Combinations of values that the schema cannot tell apart, each refused with what to do. */}}
{{- define "sojourn.asksForCpu" -}}
{{- or (dig "requests" "cpu" "" .) (dig "limits" "cpu" "" .) -}}
{{- end -}}

{{- define "sojourn.workersEnv" -}}
{{- $all := list -}}
{{- range .Values.workers -}}
{{- $all = concat $all (default list .env) -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{- define "sojourn.checks" -}}
{{- $versions := (include "sojourn.versions" . | fromJson).versions -}}
{{- $labels := list -}}
{{- $current := 0 -}}
{{- $weight := 0 -}}
{{- range $versions -}}
{{- if has .label $labels -}}
{{- fail (printf "versions: the label %q stands there twice; one label is one version of your code" .label) -}}
{{- end -}}
{{- $labels = append $labels .label -}}
{{- if regexMatch ":(latest|main|master|stable|edge)$" .image -}}
{{- fail (printf "image %q: a tag names one version of your code for ever, and %q does not; actors could not tell whose code they sleep in" .image (splitList ":" .image | last)) -}}
{{- end -}}
{{- if eq .state "current" -}}
{{- if and $.Values.autoscaling.kind (not (include "sojourn.asksForCpu" .resources)) -}}
{{- fail (printf "autoscaling.kind %q needs a CPU request of version %q (node.resources.requests.cpu): it scales by the share of that" $.Values.autoscaling.kind .label) -}}
{{- end -}}
{{- $current = add1 $current -}}
{{- $weight = add $weight (int .weight) -}}
{{- if lt (int .replicas) 1 -}}
{{- fail (printf "version %q is current and has no replicas: new actors would start where no node is" .label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq $current 0 -}}
{{- fail "versions: none has state \"current\"; new actors need one to start on" -}}
{{- end -}}
{{- if eq (int $weight) 0 -}}
{{- fail "versions: the weights of the current versions are all 0; at least one must get new actors" -}}
{{- end -}}
{{- with .Values.autoscaling -}}
{{- if and .kind (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "autoscaling.minReplicas (%d) is above autoscaling.maxReplicas (%d)" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if and .kind (gt (int .maxReplicas) (int $.Values.topology.partitions)) -}}
{{- fail (printf "autoscaling.maxReplicas (%d) is above topology.partitions (%d): a node without a partition has nothing to do" (int .maxReplicas) (int $.Values.topology.partitions)) -}}
{{- end -}}
{{- if and (eq .kind "keda") .activeActors (not .prometheusAddress) -}}
{{- fail "autoscaling.activeActors with keda needs autoscaling.prometheusAddress: where KEDA asks for sojourn_active_actors" -}}
{{- end -}}
{{- end -}}
{{- $seen := list -}}
{{- range (include "sojourn.workers" . | fromJson).workers -}}
{{- if has .name $seen -}}
{{- fail (printf "workers: queue %q stands there twice for version %q" .queue .label) -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- if and .scaling.kind (gt (int .scaling.minReplicas) (int .scaling.maxReplicas)) -}}
{{- fail (printf "workers: queue %q: scaling.minReplicas (%d) is above scaling.maxReplicas (%d)" .queue (int .scaling.minReplicas) (int .scaling.maxReplicas)) -}}
{{- end -}}
{{- if and .scaling.kind (not (include "sojourn.asksForCpu" .resources)) -}}
{{- fail (printf "workers: queue %q: scaling.kind %q needs resources.requests.cpu: it scales by the share of that" .queue .scaling.kind) -}}
{{- end -}}
{{- if and (eq .scaling.kind "keda") .scaling.depth (not $.Values.autoscaling.prometheusAddress) -}}
{{- fail (printf "workers: queue %q: scaling.depth with keda needs autoscaling.prometheusAddress: where KEDA asks for sojourn_step_queue_depth" .queue) -}}
{{- end -}}
{{- if and .scaling.kind (eq (int .scaling.minReplicas) 0) (not (and (eq .scaling.kind "keda") .scaling.depth)) -}}
{{- fail (printf "workers: queue %q: scaling.minReplicas 0 needs scaling.kind keda and scaling.depth: nothing else starts a worker again" .queue) -}}
{{- end -}}
{{- if and (not .scaling.kind) (eq .state "current") (lt (int .replicas) 1) -}}
{{- fail (printf "workers: queue %q of current version %q has no replicas: its steps would wait for ever" .queue .label) -}}
{{- end -}}
{{- end -}}
{{- range .Values.workers -}}
{{- if and .version (not (has .version $labels)) -}}
{{- fail (printf "workers: queue %q names version %q, which is not current nor draining here; there are: %s" .queue .version (join ", " $labels)) -}}
{{- end -}}
{{- end -}}
{{- $taken := include "sojourn.ownEnv" (dict "root" . "role" "node") | fromYamlArray -}}
{{- $names := list -}}
{{- range $taken -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $where, $env := dict "node.env" .Values.node.env "workers[].env" (include "sojourn.workersEnv" . | fromYamlArray) -}}
{{- range $env -}}
{{- if and (ne .name "HOME") (has .name $names) -}}
{{- fail (printf "%s: %s needs no entry: the chart sets it from other values (nats, topology, keys)" $where .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $volumes := default list .Values.node.extraVolumes -}}
{{- $mounts := default list .Values.node.extraVolumeMounts -}}
{{- range .Values.workers -}}
{{- $volumes = concat $volumes (default list .extraVolumes) -}}
{{- $mounts = concat $mounts (default list .extraVolumeMounts) -}}
{{- end -}}
{{- range $volumes -}}
{{- if has .name (list "tmp" "keys" "nats" "tls") -}}
{{- fail (printf "extraVolumes: %q needs another name: the chart has a volume of that name" .name) -}}
{{- end -}}
{{- end -}}
{{- range $mounts -}}
{{- if has (trimSuffix "/" .mountPath) (list "/tmp" "/etc/sojourn" "/etc/sojourn/keys" "/etc/sojourn/nats" "/etc/sojourn/tls") -}}
{{- fail (printf "extraVolumeMounts: what is mounted at %s needs another place: the chart has files there" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- range $where, $labels := dict "commonLabels" .Values.commonLabels "node.podLabels" .Values.node.podLabels "nats.podLabels" .Values.nats.podLabels "jobs.podLabels" .Values.jobs.podLabels -}}
{{- range $label, $_ := $labels -}}
{{- if or (hasPrefix "sojourn/" $label) (has $label (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component")) -}}
{{- fail (printf "%s: %s selects pods here and needs the value that the chart gives it" $where $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (or (include "sojourn.bundled" .) .Values.serviceMonitor.enabled) (not (regexMatch "^[a-z][a-z0-9-]*$" (include "sojourn.fullname" .))) -}}
{{- fail (printf "the name %q cannot be that of a Service, which begins with a letter and has no dots: fullnameOverride is needed" (include "sojourn.fullname" .)) -}}
{{- end -}}
{{- $copies := int (include "sojourn.streamReplicas" .) -}}
{{- if and (include "sojourn.bundled" .) (gt $copies (int (include "sojourn.natsServers" .))) -}}
{{- fail (printf "topology.replicas is %d and the bundled NATS has %s server(s): set nats.mode to \"cluster\" or topology.replicas to 0" $copies (include "sojourn.natsServers" .)) -}}
{{- end -}}
{{- if and (not (include "sojourn.bundled" .)) (ne .Values.nats.external.auth "none") (not .Values.nats.external.existingSecret) .Values.nats.external.url -}}
{{- fail "nats.external.existingSecret is needed: the Secret with the NATS credentials (or set nats.external.auth to \"none\")" -}}
{{- end -}}
{{- /* What an upgrade must not change by mistake, such as a forgotten --reuse-values. Nothing is found without a cluster; then nothing is said. */ -}}
{{- $before := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-scripts" (include "sojourn.fullname" .)) -}}
{{- $ours := include "sojourn.ours" . | fromYaml -}}
{{- if and .Release.IsUpgrade (not $before) -}}
{{- range (lookup "v1" "ConfigMap" .Release.Namespace "").items -}}
{{- if and (hasKey (default dict .metadata.annotations) "sojourn/partitions") (deepEqual $ours (pick (default dict .metadata.labels) "app.kubernetes.io/name" "app.kubernetes.io/instance")) -}}
{{- fail (printf "the name was %s and would become %s: it cannot change, keys and a bundled NATS go by it and the workflows would be left behind (fullnameOverride, nameOverride; is --reset-then-reuse-values missing?)" (trimSuffix "-scripts" .metadata.name) (include "sojourn.fullname" $)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with and .Release.IsUpgrade $before -}}
{{- $known := default dict .metadata.annotations -}}
{{- range $name, $value := dict "namespace" $.Values.topology.namespace "app" $.Values.topology.app "partitions" (toString $.Values.topology.partitions) -}}
{{- $was := default $value (get $known (printf "sojourn/%s" $name)) -}}
{{- if ne $was $value -}}
{{- fail (printf "topology.%s was %s and would become %s: it cannot change, the workflows that are there would be left behind (is --reset-then-reuse-values missing?)" $name $was $value) -}}
{{- end -}}
{{- end -}}
{{- $was := get $known "sojourn/tls" -}}
{{- if and $was (include "sojourn.bundled" $) (ne $was (toString $.Values.nats.tls.enabled)) -}}
{{- range (lookup "apps/v1" "Deployment" $.Release.Namespace "").items -}}
{{- $label := dig "metadata" "labels" "sojourn/deployment" "" . -}}
{{- if and $label (not (has $label $labels)) (deepEqual $ours (pick .metadata.labels "app.kubernetes.io/name" "app.kubernetes.io/instance")) -}}
{{- fail (printf "nats.tls.enabled was %s and would become %v: %s, which an earlier upgrade left, could not reach NATS any more, and its workflows would wait (list its version in `versions`, or wait until the janitor has removed it)" $was $.Values.nats.tls.enabled .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $was = get $known "sojourn/keys" -}}
{{- if and $was (not $.Values.keys.existingSecret) -}}
{{- fail (printf "keys.existingSecret was %s and would become empty: new keys would be made, with which nobody can read the workflows that are there (is --reset-then-reuse-values missing?)" $was) -}}
{{- end -}}
{{- $was = default $.Values.nats.mode (get $known "sojourn/nats") -}}
{{- if ne $was $.Values.nats.mode -}}
{{- fail (printf "nats.mode was %s and would become %s: the workflows are in the NATS that is there, and would be left behind; a single server's streams are lost when it joins a cluster (is --reset-then-reuse-values missing?)" $was $.Values.nats.mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}
