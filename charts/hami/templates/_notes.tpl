{{/* Keys of the values that mean nothing here, one per line. Arguments: values, known, path. */}}
{{- define "hami.unknownKeys" -}}
{{- $call := . -}}
{{- range $key, $value := .values -}}
{{- $path := ternary $key (printf "%s.%s" $call.path $key) (eq $call.path "") -}}
{{- if not (hasKey $call.known $key) }}
{{ $path }}
{{- else -}}
{{- $known := get $call.known $key -}}
{{- if and (kindIs "map" $known) (kindIs "map" $value) -}}
{{- include "hami.unknownKeys" (dict "values" $value "known" $known "path" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Keys of the values that HAMi's chart has and that do nothing here, with the reason, one per line. */}}
{{- define "hami.keysWithoutEffect" -}}
{{- $values := .Values -}}
{{- range $path, $why := (.Files.Get "files/values.json" | fromJson).noEffect -}}
{{- $place := $values -}}
{{- range splitList "." $path -}}
{{- $place = ternary (get (ternary $place (dict) (kindIs "map" $place)) .) nil (kindIs "map" $place) -}}
{{- end -}}
{{- if not (or (kindIs "invalid" $place) (eq (toString $place) "") (eq (toString $place) "false") (eq (toString $place) "[]") (eq (toString $place) "map[]")) }}
{{ $path }}: {{ $why }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "hami.warnings" -}}
{{- $scheduler := .Values.scheduler -}}
{{- $webhook := $scheduler.admissionWebhook -}}
{{- if not $webhook.enabled }}
scheduler.admissionWebhook.enabled is false: pods need spec.schedulerName {{ .Values.schedulerName }}, and nothing is checked.
{{- else if eq $webhook.failurePolicy "Ignore" }}
scheduler.admissionWebhook.failurePolicy is Ignore: while no scheduler answers, pods pass unchanged and wait for their GPU unserved.
{{- else }}
scheduler.admissionWebhook.failurePolicy is Fail: while no scheduler answers, no pod can be created outside kube-system and {{ include "hami.namespace" . }}.
{{- end }}
{{- if and $webhook.enabled (not $webhook.manageNamespaceSelector) }}
scheduler.admissionWebhook.manageNamespaceSelector is false: the webhook also sees pods of kube-system and of its own namespace.
{{- end }}
{{- if and (eq (include "hami.certificates" .) "own") (not $scheduler.certificates.caBundle) }}
The certificate is yours and scheduler.certificates.caBundle is empty: run `hami certs patch --ca-file ca.crt --webhook-configuration {{ include "hami.webhook" . }}`: the scheduler is ready once kube-apiserver trusts it.
{{- end }}
{{- if and $scheduler.leaderElect (not $scheduler.kubeScheduler.enabled) }}
scheduler.kubeScheduler.enabled is false: nobody elects a leader, so there is one replica and --leader-elect is off.
{{- end }}
{{- if and .Values.admissionPolicy.enabled (not (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version)) }}
This Kubernetes is older than 1.30: allocation annotations are protected at pod creation only, by the webhook.
{{- end }}
{{- if or (eq $scheduler.service.type "NodePort") (eq .Values.devicePlugin.service.type "NodePort") }}
Services are of type NodePort, as in HAMi's chart: metrics and webhook can be reached from outside without a password.
{{- end }}
{{- $memoryScaling := (include "hami.nvidia" . | fromYaml).deviceMemoryScaling }}
{{- if gt (float64 $memoryScaling) 1.0 }}
deviceMemoryScaling is {{ $memoryScaling }}: memory is oversold, programs may be slow or fail when all use theirs.
{{- end }}
{{- if $scheduler.allowDisableControl }}
scheduler.allowDisableControl is true: any pod may lift all limits by CUDA_DISABLE_CONTROL=true.
{{- end }}
{{- if .Values.devicePlugin.simulate }}
devicePlugin.simulate is {{ .Values.devicePlugin.simulate }}: nodes offer cards that do not exist. For trying out only.
{{- end }}
{{- range $name, $image := dict "scheduler.extender.image" $scheduler.extender.image "devicePlugin.image" .Values.devicePlugin.image "devicePlugin.monitor.image" .Values.devicePlugin.monitor.image }}
{{- if include "hami.isUpstreamImage" $image }}
{{ $name }} names HAMi's own image, which holds other programs: ours is used instead.
{{- end }}
{{- end }}
{{- end -}}
