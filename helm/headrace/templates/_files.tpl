{{/* What this place decides and the pipelines' file does not say: where Spark's executors come from, which requests are answered. */}}
{{- define "headrace.place" -}}
{{- $name := include "headrace.fullname" . -}}
{{- $conf := dict "spark.driver.memory" .Values.driver.memory -}}
{{- if .Values.executors.enabled -}}
{{- $e := .Values.executors -}}
{{- $conf = merge $conf (dict
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.kubernetes.container.image" (include "headrace.image" .)
  "spark.kubernetes.container.image.pullPolicy" .Values.image.pullPolicy
  "spark.kubernetes.driver.pod.name" "${env:POD_NAME}"
  "spark.kubernetes.executor.podTemplateFile" "/etc/headrace/executor.yaml"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.kubernetes.authenticate.executor.serviceAccountName" (include "headrace.executorServiceAccount" .)
  "spark.kubernetes.executor.disableConfigMap" "true"
  "spark.kubernetes.driver.service.deleteOnTermination" "false"
  "spark.kubernetes.driver.ownPersistentVolumeClaim" "false"
  "spark.kubernetes.executor.deleteOnTermination" "true"
  "spark.kubernetes.executor.request.cores" ($e.cpuRequest | default ($e.cores | toString))
  "spark.executor.instances" ($e.instances | toString)
  "spark.executor.cores" ($e.cores | toString)
  "spark.executor.memory" $e.memory
  "spark.executor.memoryOverhead" $e.memoryOverhead
  "spark.executor.failuresValidityInterval" "1h"
  "spark.executor.decommission.forceKillTimeout" $e.decommissionWithin
  "spark.decommission.enabled" "true"
  "spark.storage.decommission.enabled" "false"
  "spark.dynamicAllocation.enabled" "false"
  "spark.driver.host" "${env:POD_IP}"
  "spark.driver.bindAddress" "${env:POD_IP}"
  "spark.driver.port" (.Values.ports.sparkDriver | toString)
  "spark.driver.blockManager.port" (.Values.ports.sparkBlocks | toString)
) -}}
{{- with $e.cpuLimit -}}{{- $conf = set $conf "spark.kubernetes.executor.limit.cores" . -}}{{- end -}}
{{- with .Values.imagePullSecrets -}}
{{- $names := list -}}{{- range . -}}{{- $names = append $names .name -}}{{- end -}}
{{- $conf = set $conf "spark.kubernetes.container.image.pullSecrets" (join "," $names) -}}
{{- end -}}
{{- end -}}
{{- range $key, $value := .Values.sparkConf -}}{{- $conf = set $conf $key ($value | toString) -}}{{- end -}}
# What this cluster decides, beneath the pipelines' file ($HEADRACE_CONFIG_OVERLAY).
http:
  host: 0.0.0.0
  port: {{ .Values.ports.driver }}
supervisor:
  host: 0.0.0.0
  port: {{ .Values.ports.supervisor }}
{{- if eq .Values.supervisor.lease "kubernetes" }}
  lease: kubernetes
  lease_prefix: {{ $name }}
{{- end }}
{{- if and .Values.executors.enabled .Values.autoscaler.enabled }}
autoscaler:
  host: 0.0.0.0
  port: {{ .Values.ports.autoscaler }}
  token: ${file:/token/token}
  min_executors: {{ .Values.autoscaler.minimum }}
  max_executors: {{ .Values.autoscaler.maximum }}
{{- end }}
spark:
{{- if .Values.executors.enabled }}
  master: k8s://{{ .Values.executors.apiServer }}
{{- end }}
  conf:
{{ toYaml $conf | indent 4 }}
{{- end }}

{{/* The executors' pods, as far as Spark does not decide it. */}}
{{- define "headrace.executor" -}}
{{- $e := .Values.executors -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
{{ include "headrace.selector" (list . "executor") | indent 4 }}
{{- with merge dict $e.labels .Values.podLabels .Values.commonLabels }}
{{ toYaml . | indent 4 }}
{{- end }}
{{- with $e.annotations }}
  annotations:
{{ toYaml . | indent 4 }}
{{- end }}
spec:
  automountServiceAccountToken: false
  securityContext:
{{ include "headrace.podSecurity" . | indent 4 }}
{{- $scheduling := include "headrace.scheduling" $e | trim }}
{{- with $scheduling }}
{{ . | indent 2 }}
{{- end }}
{{- if not $e.topologySpreadConstraints }}
  topologySpreadConstraints:
{{- range tuple "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
{{ include "headrace.selector" (list $ "executor") | indent 10 }}
{{- end }}
{{- end }}
  containers:
    - name: executor
      env:
        - {name: HOME, value: /tmp}
{{- with .Values.extraEnv }}
{{ toYaml . | indent 8 }}
{{- end }}
{{- with .Values.envFrom }}
      envFrom:
{{ toYaml . | indent 8 }}
{{- end }}
      securityContext:
{{ include "headrace.containerSecurity" . | indent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: spark-local-dir-scratch, mountPath: /scratch}  # Spark goes by the name
{{- with .Values.volumeMounts }}
{{ toYaml . | indent 8 }}
{{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 2Gi}
    - name: spark-local-dir-scratch
      emptyDir: {sizeLimit: {{ $e.scratch.sizeLimit }}}
{{- with .Values.volumes }}
{{ toYaml . | indent 4 }}
{{- end }}
{{- end }}

{{/* The data of the ConfigMap: the file of the pipelines as it is, and the two above. */}}
{{- define "headrace.files" -}}
{{- if not .Values.existingConfigMap -}}
pipelines.yaml: {{ .Values.config | toJson }}
{{ end -}}
overlay.yaml: |
{{ include "headrace.place" . | indent 2 }}
executor.yaml: |
{{ include "headrace.executor" . | indent 2 }}
{{- end }}

{{/* What a running driver does not take over: all but the pipelines. Another one of these is another pod. */}}
{{- define "headrace.restartFiles" -}}
{{- if not .Values.existingConfigMap -}}
{{ omit (fromYaml .Values.config) "pipelines" "defaults" | toJson }}
{{ end -}}
{{ include "headrace.place" . }}
{{ include "headrace.executor" . }}
{{- end }}
