{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "headrace.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "headrace.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "headrace.executorServiceAccount" -}}
{{- .Values.serviceAccount.executorName | default (ternary (printf "%s-executor" (include "headrace.fullname" .)) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{/* Called with (list . section of the values): what stands in neither is the version of the chart. */}}
{{- define "headrace.imageOf" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (index . 0).Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "headrace.image" -}}
{{- include "headrace.imageOf" (list . .Values.image) -}}
{{- end }}

{{/* The writer's, unless the autoscaler has a repository, tag or digest of its own. */}}
{{- define "headrace.autoscalerImage" -}}
{{- $own := .Values.autoscaler.image -}}
{{- if or $own.repository $own.tag $own.digest -}}
{{- include "headrace.imageOf" (list . (dict "repository" ($own.repository | default .Values.image.repository) "tag" ($own.tag | default .Values.image.tag) "digest" $own.digest)) -}}
{{- else -}}
{{- include "headrace.image" . -}}
{{- end -}}
{{- end }}

{{/* What a pod is picked by. Called with (list . "component"). */}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: headrace
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Called with (list . "component"), and further labels, which count before commonLabels. */}}
{{- define "headrace.labels" -}}
{{- $top := index . 0 -}}
{{ include "headrace.selector" . }}
{{- with merge dict (rest (rest .) | first | default dict) $top.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version }}
{{- end }}

{{/* The pipelines' file, parsed: of one that the chart does not see, the names of its pipelines. What makes no sense here
is refused before anything is installed. */}}
{{- define "headrace.config" -}}
{{- if .Values.existingConfigMap -}}
{{- if trim .Values.config -}}
{{- fail "\n\nexistingConfigMap: it holds the file of the pipelines, and config gives another. Set one of them.\n" -}}
{{- end -}}
{{- if not .Values.pipelines -}}
{{- fail "\n\npipelines: the chart does not see the file of existingConfigMap. Name its pipelines: --set pipelines={clicks,installs}\n" -}}
{{- end -}}
{{- $names := dict -}}{{- range .Values.pipelines -}}{{- $names = set $names . dict -}}{{- end -}}
{{- toJson (dict "pipelines" $names) -}}
{{- else -}}
{{- include "headrace.givenConfig" . -}}
{{- end -}}
{{- end }}

{{- define "headrace.givenConfig" -}}
{{- if .Values.pipelines -}}
{{- fail "\n\npipelines: config names them itself. Take the value out, or set existingConfigMap.\n" -}}
{{- end -}}
{{- if not (trim .Values.config) -}}
{{- fail "\n\nconfig: the file of the pipelines is missing. Give it as it is: --set-file config=pipelines.yaml\n" -}}
{{- end -}}
{{- $config := fromYaml .Values.config -}}
{{- if hasKey $config "Error" -}}
{{- fail (printf "\n\nconfig: this is no YAML mapping: %s\nGive the file of the pipelines: --set-file config=pipelines.yaml\n" (index $config "Error")) -}}
{{- end -}}
{{- if not (kindIs "map" $config.pipelines) -}}
{{- fail "\n\nconfig: it names no pipelines. Give the file that `headrace validate` accepts: --set-file config=pipelines.yaml\n" -}}
{{- end -}}
{{- range tuple "http" "supervisor" "autoscaler" -}}
{{- $section := index $config . -}}
{{- if and (kindIs "map" $section) (or (hasKey $section "host") (hasKey $section "port") (and (hasKey $section "enabled") (not $section.enabled))) -}}
{{- fail (printf "\n\nconfig: %s.host, port and enabled are the chart's here: probes and scrapes must find them. Take them out of the file; set ports.%s.\n" . (get (dict "http" "driver" "supervisor" "supervisor" "autoscaler" "autoscaler") .)) -}}
{{- end -}}
{{- end -}}
{{- if and (kindIs "map" $config.supervisor) (or (hasKey $config.supervisor "lease") (hasKey $config.supervisor "lease_prefix")) -}}
{{- fail "\n\nconfig: supervisor.lease and lease_prefix are the chart's here: the account needs rights for them. Take them out of the file; set supervisor.lease of the values.\n" -}}
{{- end -}}
{{- range .Values.volumeMounts -}}
{{- if hasPrefix "/etc/headrace/" (printf "%s/" (trimSuffix "/" .mountPath)) -}}
{{- fail (printf "\n\nvolumeMounts: %s is inside /etc/headrace, which is the chart's. Mount it elsewhere.\n" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- $spark := $config.spark | default dict -}}
{{- if and .Values.executors.enabled $spark.master (not (hasPrefix "k8s://" $spark.master)) -}}
{{- fail (printf "\n\nconfig: spark.master is %q, and executors.enabled is true. Take spark.master out of the file, or set executors.enabled=false.\n" $spark.master) -}}
{{- end -}}
{{- include "headrace.places" (list . $config) -}}
{{- include "headrace.checkFile" (list . $config) -}}
{{- toJson $config -}}
{{- end }}

{{/* The names of the Leases of all pipelines, as writer/lease/kubernetes_lease.py makes them. */}}
{{- define "headrace.leases" -}}
{{- $prefix := include "headrace.fullname" . -}}
{{- $names := list -}}
{{- range $pipeline, $_ := (include "headrace.config" . | fromJson).pipelines -}}
{{- if regexMatch "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" $pipeline -}}
{{- $names = append $names (printf "%s-%s" $prefix $pipeline) -}}
{{- else -}}
{{- $names = append $names (printf "%s-%s-%s" $prefix ($pipeline | replace "_" "-") (sha256sum $pipeline | trunc 8)) -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* A path where no volume is would lie in the pod, and go with it. Called with (list . config). */}}
{{- define "headrace.places" -}}
{{- $checkpoints := (index . 1).checkpoints | default "" | toString -}}
{{- if regexMatch "^(gs|az|abfss)://" $checkpoints -}}
{{- fail (printf "\n\nconfig: checkpoints: Spark's checkpoints cannot lie in %s: Azure's connector was seen to read none of them, without an error, and Google's is not offered. Give the path of a volume, or an s3:// location. They are disposable: without them a start goes on at the tables' offsets\n" $checkpoints) -}}
{{- end -}}
{{- $places := dict "checkpoints" (index . 1).checkpoints -}}
{{- range $name, $pipeline := (index . 1).pipelines -}}
{{- if and (kindIs "map" $pipeline) (kindIs "map" $pipeline.table) -}}
{{- $places = set $places (printf "pipelines.%s.table.location" $name) $pipeline.table.location -}}
{{- end -}}
{{- end -}}
{{- $mounts := (index . 0).Values.volumeMounts -}}
{{- range $key, $place := $places -}}
{{- if hasPrefix "/" ($place | default "" | toString) -}}
{{- $mounted := false -}}
{{- range $mounts -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $place) -}}{{- $mounted = true -}}{{- end -}}
{{- end -}}
{{- if not $mounted -}}
{{- fail (printf "\n\nconfig: %s is %s, and no volume is there: it would go with the pod. Name a bucket (s3://…; a table also gs://…, abfss://…), or mount a volume that all pods see: volumes, volumeMounts.\n" $key $place) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A security context without what is null: there the namespace decides. Called with the section of the values. */}}
{{- define "headrace.security" -}}
{{- $set := dict -}}
{{- range $key, $value := . -}}{{- if not (kindIs "invalid" $value) -}}{{- $set = set $set $key $value -}}{{- end -}}{{- end -}}
{{- toYaml $set -}}
{{- end }}

{{- define "headrace.podSecurity" -}}
{{- include "headrace.security" .Values.podSecurityContext -}}
{{- end }}

{{- define "headrace.containerSecurity" -}}
{{- include "headrace.security" .Values.securityContext -}}
{{- end }}

{{/* What each of our containers is told, and the files that it reads. */}}
{{- define "headrace.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: HOME, value: /tmp}
- {name: SPARK_LOCAL_DIRS, value: /scratch}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What the driver's pod is told beside; a job runs no driver, and has no place. */}}
{{- define "headrace.driverEnv" -}}
- {name: HEADRACE_CONFIG_OVERLAY, value: /etc/headrace/overlay.yaml}
{{ include "headrace.env" . }}
{{- end }}

{{/* The folder as a whole: a running pod sees another file of the pipelines within a minute, and takes it over. */}}
{{- define "headrace.mounts" -}}
- {name: config, mountPath: /etc/headrace, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: scratch, mountPath: /scratch}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Called with (list . "name of the ConfigMap"). */}}
{{- define "headrace.volumes" -}}
{{- $top := index . 0 -}}
- name: config
{{- with $top.Values.existingConfigMap }}
  projected:
    sources:
      - configMap: {name: {{ . }}, items: [{key: pipelines.yaml, path: pipelines.yaml}]}
      - configMap: {name: {{ index $ 1 }}}
{{- else }}
  configMap: {name: {{ index . 1 }}}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 2Gi}
- name: scratch
  emptyDir: {sizeLimit: {{ $top.Values.driver.scratch.sizeLimit }}}
{{- with $top.Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where a pod may run. Called with the section of the values. */}}
{{- define "headrace.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* A pod that runs one verb to its end. Called with a dict: top, component, arguments, config, restart. */}}
{{- define "headrace.verbPod" -}}
metadata:
  labels:
{{ include "headrace.labels" (list .top .component .top.Values.podLabels) | indent 4 }}
spec:
  restartPolicy: {{ .restart | default "Never" }}
  serviceAccountName: {{ include "headrace.executorServiceAccount" .top }}
  automountServiceAccountToken: false
{{- with .top.Values.imagePullSecrets }}
  imagePullSecrets:
{{ toYaml . | indent 4 }}
{{- end }}
  securityContext:
{{ include "headrace.podSecurity" .top | indent 4 }}
{{- with .top.Values.driver.nodeSelector }}
  nodeSelector:
{{ toYaml . | indent 4 }}
{{- end }}
{{- with .top.Values.driver.tolerations }}
  tolerations:
{{ toYaml . | indent 4 }}
{{- end }}
  containers:
    - name: headrace
      image: {{ include "headrace.image" .top | quote }}
      imagePullPolicy: {{ .top.Values.image.pullPolicy }}
      args: {{ prepend .arguments "headrace" | toJson }}
      env:
{{ include "headrace.env" .top | indent 8 }}
{{- with .top.Values.envFrom }}
      envFrom:
{{ toYaml . | indent 8 }}
{{- end }}
      resources:
{{ toYaml .top.Values.jobs.resources | indent 8 }}
      securityContext:
{{ include "headrace.containerSecurity" .top | indent 8 }}
      volumeMounts:
{{ include "headrace.mounts" .top | indent 8 }}
  volumes:
{{ include "headrace.volumes" (list .top .config) | indent 4 }}
{{- end }}
