{{- define "amd-cdi.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $whole .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- /* Metadata of an object that every object has: [., what it does, annotations of its own]. */ -}}
{{- define "amd-cdi.metadata" -}}
{{- $top := index . 0 -}}
{{- $own := include "amd-cdi.selector" . | fromYaml -}}
{{- $common := dict "app.kubernetes.io/version" $top.Chart.AppVersion "app.kubernetes.io/managed-by" $top.Release.Service "helm.sh/chart" (printf "%s-%s" $top.Chart.Name $top.Chart.Version) -}}
labels: {{- mergeOverwrite (dict) $top.Values.global.labels $common $own | toYaml | nindent 2 }}
{{- with mergeOverwrite (dict) $top.Values.global.annotations (index . 2) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "amd-cdi.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ default $top.Chart.Name $top.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "amd-cdi.image" -}}
{{- $image := .Values.devicePlugin.image -}}
{{- $registry := default $image.registry .Values.global.imageRegistry -}}
{{- $tag := .Values.global.imageTag | default $image.tag | default .Chart.AppVersion -}}
{{- with $registry }}{{ . }}/{{ end }}{{ $image.repository }}:{{ $tag }}
{{- end -}}

{{- /* What all containers have in common. */ -}}
{{- define "amd-cdi.container" -}}
image: {{ include "amd-cdi.image" . | quote }}
imagePullPolicy: {{ .Values.devicePlugin.image.pullPolicy }}
env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- with .Values.devicePlugin.extraEnvs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* What all pods have in common. */ -}}
{{- define "amd-cdi.pod" -}}
{{- with concat .Values.global.imagePullSecrets .Values.devicePlugin.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.devicePlugin.hostNetwork }}
hostNetwork: {{ . }}
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with .Values.devicePlugin.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
