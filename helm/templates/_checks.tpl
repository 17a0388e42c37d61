{{/* Combinations of values that the schema cannot tell apart, each refused with what to do. */}}
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
{{- $copies := int (include "sojourn.streamReplicas" .) -}}
{{- if and (include "sojourn.bundled" .) (gt $copies (int (include "sojourn.natsServers" .))) -}}
{{- fail (printf "topology.replicas is %d and the bundled NATS has %s server(s): set nats.mode to \"cluster\" or topology.replicas to 0" $copies (include "sojourn.natsServers" .)) -}}
{{- end -}}
{{- if and (not (include "sojourn.bundled" .)) (ne .Values.nats.external.auth "none") (not .Values.nats.external.existingSecret) .Values.nats.external.url -}}
{{- fail "nats.external.existingSecret is needed: the Secret with the NATS credentials (or set nats.external.auth to \"none\")" -}}
{{- end -}}
{{- end -}}
