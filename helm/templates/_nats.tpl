{{/* The configuration of a bundled server. Users and routes, which hold passwords, are included from a Secret. */}}
{{- define "sojourn.natsConfig" -}}
{{- $nats := .Values.nats -}}
server_name: $POD_NAME
port: 4222
http_port: 8222
pid_file: "/run/nats/nats.pid"
max_payload: {{ $nats.maxPayload }}
lame_duck_grace_period: 10s
lame_duck_duration: 30s
jetstream {
  store_dir: "/data"
  max_mem: {{ $nats.maxMemory }}
  max_file: {{ include "sojourn.nineTenths" $nats.storage.size }}
  {{- if $nats.syncAlways }}
  # An acknowledged write is on the disk (two of three disks), not in a cache of the kernel.
  sync_interval: always
  {{- end }}
}
{{- if include "sojourn.tlsSecret" . }}
tls {
  cert_file: "/etc/nats/tls/tls.crt"
  key_file: "/etc/nats/tls/tls.key"
  ca_file: "/etc/nats/tls/ca.crt"
}
{{- end }}
include "auth/accounts.conf"
{{- if eq $nats.mode "cluster" }}
cluster {
  name: {{ include "sojourn.fullname" . }}
  port: 6222
  {{- if include "sojourn.tlsSecret" . }}
  tls {
    cert_file: "/etc/nats/tls/tls.crt"
    key_file: "/etc/nats/tls/tls.key"
    ca_file: "/etc/nats/tls/ca.crt"
    verify: true
  }
  {{- end }}
  include "auth/routes.conf"
}
{{- end }}
{{- end -}}

{{/* Nine tenths of a quantity such as 20Gi, in bytes. */}}
{{- define "sojourn.nineTenths" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- div (mul (int64 $number) (int64 (get $units $unit)) 9) 10 -}}
{{- end -}}
