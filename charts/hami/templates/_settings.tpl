{{/* What several objects must agree on. */}}

{{/* device-config.yaml, as text: the value device-config.content, or made from the values. */}}
{{- define "hami.deviceConfig" -}}
{{- $content := (index .Values "device-config").content -}}
{{- if $content -}}
{{ $content }}
{{- else -}}
{{- $nvidia := include "hami.nvidia" . | fromYaml -}}
nvidia:
{{- range list "resourceCountName" "resourceMemoryName" "resourceMemoryPercentageName" "resourceCoreName" "resourcePriorityName" "overwriteEnv" "defaultMemory" "defaultCores" "defaultGPUNum" "memoryFactor" "deviceSplitCount" "deviceMemoryScaling" "deviceCoreScaling" "preConfiguredDeviceMemory" "libCudaLogLevel" "enableNumaTopology" "disableCoreLimit" "gpuCorePolicy" "runtimeClassName" "migProfileAllowlist" }}
{{- if hasKey $nvidia . }}
  {{ . }}: {{ get $nvidia . | toJson }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The settings of NVIDIA's cards. HAMi after 2.10 has all of them below devices.nvidia, where they go before those that
earlier releases have in other places. */}}
{{- define "hami.nvidia" -}}
{{- $plugin := .Values.devicePlugin -}}
{{- $made := dict "resourceCountName" .Values.resourceName "resourceMemoryName" .Values.resourceMem "resourceMemoryPercentageName" .Values.resourceMemPercentage "resourceCoreName" .Values.resourceCores "resourcePriorityName" .Values.resourcePriority -}}
{{- $made = merge $made (dict "overwriteEnv" (eq (toString .Values.scheduler.overwriteEnv) "true") "defaultMemory" 0 "defaultCores" 0 "defaultGPUNum" 1 "memoryFactor" 1) -}}
{{- $made = merge $made (dict "deviceSplitCount" $plugin.deviceSplitCount "deviceMemoryScaling" $plugin.deviceMemoryScaling "deviceCoreScaling" $plugin.deviceCoreScaling "preConfiguredDeviceMemory" $plugin.preConfiguredDeviceMemory "enableNumaTopology" $plugin.enableNumaTopology) -}}
{{- $made = merge $made (dict "disableCoreLimit" (eq (toString $plugin.disablecorelimit) "true") "runtimeClassName" ($plugin.runtimeClassName | default "") "createRuntimeClass" $plugin.createRuntimeClass) -}}
{{- range $key, $value := omit .Values.devices.nvidia "overwriteEnv" "disableCoreLimit" -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $made $key $value }}{{ end -}}
{{- end -}}
{{- $_ := set $made "libCudaLogLevel" (toString $made.libCudaLogLevel) -}}
{{- toJson $made -}}
{{- end -}}

{{/* Resources that kube-scheduler leaves to the extender: the names that the device configuration gives. */}}
{{- define "hami.managedResources" -}}
{{- $nvidia := (include "hami.deviceConfig" . | fromYaml).nvidia | default dict -}}
{{- $defaults := dict "resourceCountName" "nvidia.com/gpu" "resourceMemoryName" "nvidia.com/gpumem" "resourceMemoryPercentageName" "nvidia.com/gpumem-percentage" "resourceCoreName" "nvidia.com/gpucores" "resourcePriorityName" "nvidia.com/priority" -}}
{{- range list "resourceCountName" "resourceMemoryName" "resourceMemoryPercentageName" "resourceCoreName" "resourcePriorityName" }}
- name: {{ get $nvidia . | default (get $defaults .) }}
  ignoredByScheduler: true
{{- end }}
{{- end -}}

{{/* What kube-apiserver asks the webhook about, so that other pods never wait for it: pods that ask for a share, and
those that carry annotations of ours, which may be forged. Empty, all pods, where the cluster is too old for conditions
or where containers without cards are to be kept from them. */}}
{{- define "hami.webhookCondition" -}}
{{- $nvidia := (include "hami.deviceConfig" . | fromYaml).nvidia | default dict -}}
{{- if and (semverCompare ">=1.28-0" .Capabilities.KubeVersion.Version) (not $nvidia.overwriteEnv) -}}
{{- $names := list -}}
{{- range include "hami.managedResources" . | fromYamlArray }}{{ $names = append $names (printf "'%s'" .name) }}{{ end -}}
{{- $listed := printf "exists(k, k in [%s])" (join ", " $names) -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, has(c.resources) && ((has(c.resources.limits) && c.resources.limits.{{ $listed }}) || (has(c.resources.requests) && c.resources.requests.{{ $listed }}))) || (has(object.metadata.annotations) && object.metadata.annotations.exists(k, k.startsWith('hami.io/')))
{{- end -}}
{{- end -}}

{{/* kube-scheduler beside the extender elects the leader; without it there is nobody to follow. */}}
{{- define "hami.leaderElect" -}}
{{- if and .Values.scheduler.leaderElect .Values.scheduler.kubeScheduler.enabled }}true{{ end -}}
{{- end -}}

{{- define "hami.replicas" -}}
{{- if include "hami.leaderElect" . }}{{ .Values.scheduler.replicas }}{{ else }}1{{ end -}}
{{- end -}}

{{/* self-managed, cert-manager, own (a Secret that is there), none (plain HTTP). */}}
{{- define "hami.certificates" -}}
{{- if not .Values.scheduler.admissionWebhook.enabled }}none
{{- else if .Values.scheduler.certManager.enabled }}cert-manager
{{- else if .Values.scheduler.certificates.existingSecret }}own
{{- else if .Values.scheduler.patch.enabled }}self-managed
{{- else }}own
{{- end }}
{{- end -}}

{{/* Seconds that kube-scheduler waits for one call. */}}
{{- define "hami.bindTimeout" -}}
{{- int (.Values.scheduler.extenderHTTPTimeout | default .Values.scheduler.bindTimeoutSeconds) -}}
{{- end -}}

{{/* How long a bind waits for its node's turn: less than kube-scheduler waits for the bind. */}}
{{- define "hami.turnTimeout" -}}
{{- .Values.scheduler.nodeLockRetryTimeout | default (printf "%ds" (sub (int (include "hami.bindTimeout" .)) 5)) -}}
{{- end -}}

{{- define "hami.metricsPort" -}}{{ last (splitList ":" .Values.scheduler.metricsBindAddress) }}{{- end -}}

{{/* HAMi calls it platform.openshift. */}}
{{- define "hami.openshift" -}}
{{- if or .Values.openshift.enabled (.Values.platform | default dict).openshift }}true{{ end -}}
{{- end -}}

{{- define "hami.selinux" -}}
{{- if or (include "hami.openshift" .) (.Values.selinux | default dict).enabled }}{{ (.Values.selinux | default dict).type | default "container_file_t" }}{{ end -}}
{{- end -}}

{{/* Host folder of the driver; empty where the container runtime brings it. */}}
{{- define "hami.driverRoot" -}}
{{- $root := .Values.devicePlugin.nvidiaDriverRoot -}}
{{- if and (kindIs "string" $root) (ne $root "auto") }}{{ $root }}{{ end -}}
{{- end -}}

{{- define "hami.httpPort" -}}
{{- if .Values.scheduler.admissionWebhook.enabled }}{{ .Values.scheduler.service.httpTargetPort }}{{ else }}8080{{ end -}}
{{- end -}}

{{- define "hami.serviceHost" -}}{{ include "hami.scheduler" . }}.{{ include "hami.namespace" . }}.svc{{- end -}}

{{/* Names and addresses that the serving certificate is for. */}}
{{- define "hami.hosts" -}}
{{- $hosts := list (include "hami.serviceHost" .) (printf "%s.cluster.local" (include "hami.serviceHost" .)) "127.0.0.1" -}}
{{- if .Values.scheduler.admissionWebhook.customURL.enabled -}}
{{- $hosts = append $hosts (trimAll "[]" .Values.scheduler.admissionWebhook.customURL.host) -}}
{{- end -}}
{{- uniq $hosts | toJson -}}
{{- end -}}

{{- define "hami.vgpuFolder" -}}{{ trimSuffix "/" .Values.global.gpuHookPath }}/vgpu{{- end -}}

{{- define "hami.nvml" -}}
{{- if .Values.devicePlugin.simulate }}sim:{{ .Values.devicePlugin.simulate }}{{ else }}real{{ end -}}
{{- end -}}

{{/* extraEnvs is a list of variables; HAMi's values file gives an empty mapping. */}}
{{- define "hami.extraEnvs" -}}
{{- if kindIs "map" . -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- else -}}
{{- with . }}
{{ toYaml . }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "hami.securityContext" -}}
{{- with . }}
securityContext:
{{ toYaml . | indent 2 }}
{{- end }}
{{- end -}}

{{/* Not empty for a security context with CAP_SYS_ADMIN: NVIDIA's runtime starts a container that asks for the MIG
capabilities with it only, and refuses it otherwise. */}}
{{- define "hami.administers" -}}
{{- $context := . | default dict }}
{{- $added := (($context.capabilities | default dict).add | default list) }}
{{- if or $context.privileged (has "SYS_ADMIN" $added) (has "CAP_SYS_ADMIN" $added) (has "ALL" $added) }}yes{{ end }}
{{- end -}}
