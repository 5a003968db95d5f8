"""Objects below a location: local files, S3."""
