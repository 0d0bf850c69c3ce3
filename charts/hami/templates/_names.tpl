{{/* Names, labels and images: each defined once. */}}

{{/* Suffixes add up to 22 characters, and a Service's name has at most 63. */}}
{{- define "hami.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 41 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 41 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 41 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "hami.namespace" -}}{{ default .Release.Namespace .Values.namespaceOverride }}{{- end -}}
{{- define "hami.scheduler" -}}{{ include "hami.fullname" . }}-scheduler{{- end -}}
{{- define "hami.devicePlugin" -}}{{ include "hami.fullname" . }}-device-plugin{{- end -}}
{{- define "hami.webhook" -}}{{ include "hami.fullname" . }}-webhook{{- end -}}
{{- define "hami.tlsSecret" -}}{{ default (printf "%s-tls" (include "hami.scheduler" .)) .Values.scheduler.certificates.existingSecret }}{{- end -}}
{{- define "hami.nodeConfigMap" -}}{{ default (include "hami.devicePlugin" .) .Values.devicePlugin.nodeConfiguration.externalConfigName }}{{- end -}}

{{- define "hami.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "hami.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "hami.selectorLabels" . }}
{{- with .Values.global.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The repositories of HAMi's own images hold other programs: with HAMi's values file ours are taken instead. */}}
{{- define "hami.isUpstreamImage" -}}
{{- if has .repository (list "projecthami/hami" "4pdosc/k8s-vdevice") }}true{{ end -}}
{{- end -}}

{{/* Arguments: root, image, own (our repository). */}}
{{- define "hami.image" -}}
{{- $upstream := include "hami.isUpstreamImage" .image -}}
{{- $registry := default (ternary "" .image.registry (eq $upstream "true")) .root.Values.global.imageRegistry -}}
{{- $repository := ternary .own .image.repository (eq $upstream "true") -}}
{{- $tag := .root.Chart.AppVersion -}}
{{- if ne $upstream "true" -}}
{{- $tag = coalesce .image.tag .root.Values.global.imageTag .root.Chart.AppVersion -}}
{{- end -}}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end }}{{ $repository }}:{{ $tag }}
{{- end -}}

{{- define "hami.schedulerImage" -}}
{{- include "hami.image" (dict "root" . "image" .Values.scheduler.extender.image "own" "hami-scheduler") -}}
{{- end -}}
{{- define "hami.devicePluginImage" -}}
{{- include "hami.image" (dict "root" . "image" .Values.devicePlugin.image "own" "hami-device-plugin") -}}
{{- end -}}
{{- define "hami.monitorImage" -}}
{{- include "hami.image" (dict "root" . "image" .Values.devicePlugin.monitor.image "own" "hami-device-plugin") -}}
{{- end -}}

{{/* Vendors add to the version (v1.31.4-eks-ab12, v1.31.4-gke.100, v1.31.4+k3s1, v1.31.4+rke2r1): vX.Y.Z is left. Tools that render
without a cluster at hand may know vX.Y only: its first release is there for certain. */}}
{{- define "hami.clusterVersion" -}}
{{- $version := regexFind "^v?[0-9]+\\.[0-9]+(\\.[0-9]+)?" .Capabilities.KubeVersion.Version | trimPrefix "v" -}}
v{{ $version }}{{ if eq (len (splitList "." $version)) 2 }}.0{{ end }}
{{- end -}}

{{- define "hami.kubeSchedulerTag" -}}
{{- default (include "hami.clusterVersion" .) .Values.scheduler.kubeScheduler.image.tag -}}
{{- end -}}

{{- define "hami.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- $registry := default $image.registry .Values.global.imageRegistry -}}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end }}{{ $image.repository }}:{{ include "hami.kubeSchedulerTag" . }}
{{- end -}}

{{/* Arguments: root, lists (of names of pull secrets). */}}
{{- define "hami.pullSecrets" -}}
{{- $names := list -}}
{{- range concat (list (.root.Values.global.imagePullSecrets | default list)) .lists -}}
{{- range . -}}
{{- $names = append $names (ternary . (get (ternary (dict) . (kindIs "string" .)) "name") (kindIs "string" .)) -}}
{{- end -}}
{{- end -}}
{{- with uniq $names }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}
