{{/* Rules between values, which values.schema.json cannot say. Each message says what is wrong and what to set. */}}
{{- define "hami.validate" -}}
{{- $scheduler := .Values.scheduler -}}
{{- $vgpu := include "hami.vgpuFolder" . -}}
{{- range $key, $folder := dict "devicePlugin.libPath" .Values.devicePlugin.libPath "devicePlugin.monitor.ctrPath" .Values.devicePlugin.monitor.ctrPath -}}
{{- $wanted := ternary $vgpu (printf "%s/containers" $vgpu) (eq $key "devicePlugin.libPath") -}}
{{- if and $folder (ne (trimSuffix "/" $folder) $wanted) -}}
{{- fail (printf "\n\n%s is %q, but with global.gpuHookPath %q the folder is %q. Leave %s out, or set global.gpuHookPath to match." $key $folder $.Values.global.gpuHookPath $wanted $key) -}}
{{- end -}}
{{- end -}}
{{- if $scheduler.kubeScheduler.enabled -}}
{{- $tag := include "hami.kubeSchedulerTag" . -}}
{{- if not (regexMatch "^v?[0-9]+\\.[0-9]+\\.[0-9]+" $tag) -}}
{{- fail (printf "\n\nscheduler.kubeScheduler.image.tag is %q: expected a version as v1.31.4, because kube-scheduler's configuration depends on it." $tag) -}}
{{- end -}}
{{- $image := semver (regexFind "[0-9]+\\.[0-9]+\\.[0-9]+" $tag) -}}
{{- $cluster := semver (include "hami.clusterVersion" . | trimPrefix "v") -}}
{{- if lt (int $image.Minor) 25 -}}
{{- fail (printf "\n\nscheduler.kubeScheduler.image.tag is %q: kube-scheduler before v1.25 does not read the configuration that this chart writes. Leave the tag empty to use the cluster's version, %s." $tag (include "hami.clusterVersion" .)) -}}
{{- end -}}
{{- if gt (int $image.Minor) (int $cluster.Minor) -}}
{{- fail (printf "\n\nscheduler.kubeScheduler.image.tag is %q: newer than the cluster's %s. kube-scheduler must not be newer than kube-apiserver. Leave the tag empty to use the cluster's version." $tag (include "hami.clusterVersion" .)) -}}
{{- end -}}
{{- end -}}
{{- if and $scheduler.hostNetwork (lt (int (include "hami.httpPort" .)) 1024) -}}
{{- fail (printf "\n\nscheduler.hostNetwork is true and scheduler.service.httpTargetPort is %v: on the host a program that is not root cannot listen below 1024. Set httpTargetPort to 8443, for example." $scheduler.service.httpTargetPort) -}}
{{- end -}}
{{- range $key, $listener := dict "scheduler.metricsBindAddress" $scheduler.metricsBindAddress "devicePlugin.opsBindAddress" .Values.devicePlugin.opsBindAddress -}}
{{- $port := last (splitList ":" $listener) -}}
{{- if not (and (contains ":" $listener) (regexMatch "^[0-9]{1,5}$" $port) (ge (int $port) 1) (le (int $port) 65535)) -}}
{{- fail (printf "\n\n%s is %q: expected an address and a port, as :9395." $key $listener) -}}
{{- end -}}
{{- end -}}
{{- $target := toString ($scheduler.service.monitorTargetPort | default "metrics") -}}
{{- if not (has $target (list "metrics" (include "hami.metricsPort" .))) -}}
{{- fail (printf "\n\nscheduler.metricsBindAddress is %q and scheduler.service.monitorTargetPort is %s: the Service would lead to a port where nobody listens. Leave monitorTargetPort out." $scheduler.metricsBindAddress $target) -}}
{{- end -}}
{{- $nodes := .Values.devicePlugin.nodeConfiguration -}}
{{- if and (trim ($nodes.config | default "")) (not $nodes.externalConfigName) -}}
{{- $parsed := fromJson $nodes.config -}}
{{- if hasKey $parsed "Error" -}}
{{- fail (printf "\n\ndevicePlugin.nodeConfiguration.config is no JSON object, so that no node's device plugin would start: %s. Expected {\"nodeconfig\": [...]}." $parsed.Error) -}}
{{- end -}}
{{- end -}}
{{- $device := include "hami.deviceConfig" . | fromYaml -}}
{{- if hasKey $device "Error" -}}
{{- fail (printf "\n\ndevice-config.content is no YAML mapping, so that neither the scheduler nor a device plugin would start: %s. Expected nvidia: and its settings." $device.Error) -}}
{{- else if not $device -}}
{{- fail "\n\ndevice-config.content says nothing, so that neither the scheduler nor a device plugin would start. Expected nvidia: and its settings; leave it empty to have it made from the other values." -}}
{{- end -}}
{{- if lt (int (include "hami.bindTimeout" .)) 10 -}}
{{- fail "\n\nscheduler.bindTimeoutSeconds must be at least 10: a bind waits for its node's turn and then needs up to 5 s." -}}
{{- end -}}
{{- end -}}
