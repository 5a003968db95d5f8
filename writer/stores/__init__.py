"""Where tables and checkpoints lie, behind one small protocol: a local directory, or a bucket of S3."""
