{{/*
What is wrong with a part of the pipelines' file by the JSON schema of the configuration, a line for each fault: keys that
are unknown or missing, words that none of a choice is, mappings, lists and values in the place of one another. Nothing is
said of references (${env:…}), and of what is left empty.
Called with a dict: schema, value, path; defs: of the schema; partial: keys may be missing, for `defaults` may have them.
*/}}
{{- define "headrace.faults" -}}
{{- $call := . -}}
{{- $schema := .schema -}}
{{- range until 4 -}}
{{- if hasKey $schema "$ref" -}}{{- $schema = index $call.defs (trimPrefix "#/$defs/" (get $schema "$ref")) -}}{{- end -}}
{{- end -}}
{{- $value := .value -}}
{{- $isReference := and (kindIs "string" $value) (regexMatch "\\$\\{(env|file):" (toString $value)) -}}
{{- if not (or $isReference (kindIs "invalid" $value)) -}}
{{- if or (hasKey $schema "anyOf") (hasKey $schema "oneOf") -}}
{{ include "headrace.choiceFaults" (dict "choices" (concat ($schema.anyOf | default list) ($schema.oneOf | default list)) "value" $value "path" .path "defs" .defs "partial" .partial) }}
{{- end -}}
{{- if kindIs "map" $value -}}
{{ include "headrace.mapFaults" (dict "schema" $schema "value" $value "path" .path "defs" .defs "partial" .partial) }}
{{- else if kindIs "slice" $value -}}
{{- if and (hasKey $schema "type") (ne $schema.type "array") }}
{{ .path }}: it is a list; write a {{ ternary "mapping of keys to values" "single value" (eq $schema.type "object") }}
{{- else if hasKey $schema "items" -}}
{{- range $index, $item := $value -}}
{{ include "headrace.faults" (dict "schema" $schema.items "value" $item "path" (printf "%s.%d" $call.path $index) "defs" $call.defs "partial" $call.partial) }}
{{- end -}}
{{- end -}}
{{- else if eq ($schema.type | default "") "object" }}
{{ .path }}: it is a single value; write a mapping of keys to values
{{- else if eq ($schema.type | default "") "array" }}
{{ .path }}: it is a single value; write a list
{{- else if and (hasKey $schema "enum") (not (has $value $schema.enum)) }}
{{ .path }}: {{ $value | quote }} is none of {{ $schema.enum | join ", " }}
{{- else if and (hasKey $schema "const") (ne (toString $value) (toString $schema.const)) }}
{{ .path }}: {{ $value | quote }} is not {{ $schema.const }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What is wrong with a mapping. Called as headrace.faults. */}}
{{- define "headrace.mapFaults" -}}
{{- $call := . -}}
{{- $known := .schema.properties | default dict -}}
{{- $others := get .schema "additionalProperties" -}}
{{- if and (hasKey .schema "type") (ne .schema.type "object") }}
{{ .path }}: it is a mapping; write a {{ ternary "list" "single value" (eq .schema.type "array") }}
{{- else -}}
{{- range $key, $item := .value -}}
{{- $path := ternary $key (printf "%s.%s" $call.path $key) (eq $call.path "") -}}
{{- if hasKey $known $key -}}
{{ include "headrace.faults" (dict "schema" (get $known $key) "value" $item "path" $path "defs" $call.defs "partial" $call.partial) }}
{{- else if kindIs "map" $others -}}
{{ include "headrace.faults" (dict "schema" $others "value" $item "path" $path "defs" $call.defs "partial" $call.partial) }}
{{- else if and (hasKey $call.schema "additionalProperties") (not $others) }}
{{ $call.path | default "file" }}: unknown key {{ $key | squote }}; known here: {{ keys $known | sortAlpha | join ", " }}
{{- end -}}
{{- end -}}
{{- if not .partial -}}
{{- range .schema.required -}}
{{- if not (hasKey $call.value .) }}
{{ ternary . (printf "%s.%s" $call.path .) (eq $call.path "") }}: it is missing
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
What is wrong with a value that may be one of several kinds: nothing, or the least that is wrong with one of them, if
possible with one of the value's own kind.
*/}}
{{- define "headrace.choiceFaults" -}}
{{- $call := . -}}
{{- $least := "" -}}
{{- $fits := false -}}
{{- range .choices -}}
{{- $faults := include "headrace.faults" (dict "schema" . "value" $call.value "path" $call.path "defs" $call.defs "partial" $call.partial) | trim -}}
{{- if eq (get . "type" | default "") "null" -}}
{{- else if not $faults -}}
{{- $fits = true -}}
{{- else -}}
{{- $isOther := contains "; write a " $faults -}}
{{- $leastIsOther := contains "; write a " $least -}}
{{- if or (not $least) (and $leastIsOther (not $isOther)) (and (eq $isOther $leastIsOther) (lt (len $faults) (len $least))) -}}
{{- $least = $faults -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not $fits) $least }}
{{ $least }}
{{- end -}}
{{- end }}

{{/* The pipelines whose values name a schema, where the file has no schemas. Called with the configuration. */}}
{{- define "headrace.registryFaults" -}}
{{- $config := . -}}
{{- if kindIs "map" $config.pipelines -}}
{{- range $name, $pipeline := $config.pipelines -}}
{{- $formats := "avro" -}}
{{- $registry := $config.registry -}}
{{- range list $config.defaults $pipeline -}}
{{- if kindIs "map" . -}}
{{- $formats = .formats | default $formats -}}
{{- $registry = .registry | default $registry -}}
{{- end -}}
{{- end -}}
{{- $known := true -}}
{{- if or (kindIs "map" $registry) (kindIs "invalid" $registry) -}}
{{- $known = or (get ($registry | default dict) "url") (get ($registry | default dict) "glue") (get ($registry | default dict) "files") -}}
{{- end -}}
{{- if kindIs "string" $formats -}}{{- $formats = list $formats -}}{{- end -}}
{{- $named := false -}}
{{- range $formats -}}{{- if has . (list "avro" "json_schema" "protobuf") -}}{{- $named = true -}}{{- end -}}{{- end -}}
{{- if and $named (not $known) }}
registry: pipelines.{{ $name }} reads records that name a schema; give the registry's url, or files of schemas
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Refuses a file of the pipelines that the schema does not take, before anything is installed. Called with (list . config). */}}
{{- define "headrace.checkFile" -}}
{{- $schema := (index . 0).Files.Get "files/headrace.schema.json" | fromJson -}}
{{- $config := index . 1 -}}
{{- $partial := hasKey $config "defaults" -}}
{{- $faults := "" -}}
{{- /* Of its choices the last says what each pipeline has where there are no defaults. */ -}}
{{- range list (omit $schema "anyOf") (last $schema.anyOf) -}}
{{- $faults = printf "%s\n%s" $faults (include "headrace.faults" (dict "schema" . "value" $config "path" "" "defs" (get $schema "$defs") "partial" $partial)) -}}
{{- end -}}
{{- $faults = printf "%s\n%s" $faults (include "headrace.registryFaults" $config) -}}
{{- $lines := list -}}
{{- range splitList "\n" $faults -}}{{- if trim . -}}{{- $lines = append $lines (printf "  %s" (trim .)) -}}{{- end -}}{{- end -}}
{{- if $lines -}}
{{- fail (printf "\n\nconfig: the file of the pipelines cannot be used:\n%s\nCorrect it; `headrace validate --offline pipelines.yaml` checks the rest of it, too.\n" (join "\n" (uniq $lines))) -}}
{{- end -}}
{{- $catalog := $config.catalog -}}
{{- if and (kindIs "map" $catalog) (hasPrefix "sqlite" (lower (toString $catalog.uri))) -}}
{{- fail "\n\nconfig: catalog.uri is a file of SQLite: driver and jobs are pods of their own, and two that write such a file at once damage or block it. Give a catalog that is a server: PostgreSQL (type: sql), a REST catalog, or Glue.\n" -}}
{{- end -}}
{{- end }}
