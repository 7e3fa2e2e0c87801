{{- define "vramscope.name" -}}
{{- if contains "vramscope" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-vramscope{{ end -}}
{{- end }}

{{- define "vramscope.selector" -}}
app.kubernetes.io/name: vramscope
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "vramscope.labels" -}}
{{ include "vramscope.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "vramscope.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "vramscope.name" .) }}
{{- end }}

{{- define "vramscope.config" -}}
{{ .Values.config | trim }}

[kubernetes]
log_dir = "/host/var/log"
{{- if .Values.kubelet.enabled }}
kubelet_url = {{ .Values.kubelet.address | quote }}
token_file = "/var/run/secrets/kubelet/token"
ca_file = "/host/kubelet/ca.crt"
{{- end }}
{{- end }}
