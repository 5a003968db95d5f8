"""The lease that keeps a second supervisor, and a run by hand, out: local, on S3, in Kubernetes."""
