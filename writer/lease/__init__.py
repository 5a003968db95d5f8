"""The lease that lets one process at a time run a pipeline, by a supervisor or by hand: local, on S3, in Kubernetes."""
