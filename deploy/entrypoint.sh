#!/bin/bash
# The image's entry. Spark on Kubernetes starts an executor from it by the word "executor", and says
# all else in the environment; any other word is a command.
set -eu
[ "${1:-}" = executor ] || exec "$@"

spark=$(python -c 'from importlib.util import find_spec; print(*find_spec("pyspark").submodule_search_locations)')
options=()
while IFS= read -r name; do
    options+=("${!name}")
done < <(compgen -e | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n)

export SPARK_HOME=$spark
exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "$spark/jars/*" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
