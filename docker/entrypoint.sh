#!/bin/bash
# Process 1 of the image. Spark asks for `executor` and tells the rest in its environment; anything else is a command.
set -euo pipefail

if [ "${1:-}" != executor ]; then
  exec "$@"
fi

# Executors copy jars to where they are, and the root cannot be written.
cd "${SPARK_LOCAL_DIRS%%,*}"

options=()
while read -r name; do
  options+=("${!name}")
done < <(compgen -A variable SPARK_JAVA_OPT_ | sort -t_ -k4 -n)

exec "$JAVA_HOME/bin/java" "${options[@]}" \
  -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
