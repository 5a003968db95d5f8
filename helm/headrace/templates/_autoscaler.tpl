{{/* The token with which the autoscaler may scale. It is drawn when the pod starts, and no other pod has it. */}}
{{- define "headrace.tokenContainer" -}}
- name: token
  image: {{ include "headrace.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [python, -c, "import secrets; open('/token/token', 'w').write(secrets.token_hex(32))"]
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 64Mi}
  securityContext:
{{ include "headrace.containerSecurity" . | indent 4 }}
  volumeMounts:
    - {name: token, mountPath: /token}
{{- end }}

{{/* The autoscaler: a native sidecar, which is there before the driver and goes after it. */}}
{{- define "headrace.autoscalerContainer" -}}
{{- $a := .Values.autoscaler -}}
{{- $arguments := list "headrace" "autoscaler" "run" "/etc/headrace/pipelines.yaml" "--watch-config" "--interval" $a.interval -}}
{{- if $a.dryRun -}}{{- $arguments = append $arguments "--dry-run" -}}{{- end -}}
- name: autoscaler
  restartPolicy: Always
  image: {{ include "headrace.autoscalerImage" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: {{ concat $arguments $a.arguments | toJson }}
  env:
{{ include "headrace.driverEnv" . | indent 4 }}
{{- with .Values.envFrom }}
  envFrom:
{{ toYaml . | indent 4 }}
{{- end }}
  ports:
    - {name: autoscaler, containerPort: {{ .Values.ports.autoscaler }}}
  resources:
{{ toYaml $a.resources | indent 4 }}
  securityContext:
{{ include "headrace.containerSecurity" . | indent 4 }}
  volumeMounts:
{{ include "headrace.mounts" . | indent 4 }}
    - {name: token, mountPath: /token, readOnly: true}
{{- end }}
