#!/bin/bash
# Before Kubernetes ends an executor: let it finish its tasks. Spark runs this as the pod's preStop hook.
# SIGPWR is Spark's word for it; the executor is process 1, and ends when the driver has let it go.
kill -PWR 1
while kill -0 1 2>/dev/null; do
  sleep 1
done
