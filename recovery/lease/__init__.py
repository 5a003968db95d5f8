"""The lease that keeps a second supervisor out: local, on S3, in Kubernetes."""
