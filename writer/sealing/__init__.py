"""The lifecycle of a bucket: watermark, close, seal, manifest."""
