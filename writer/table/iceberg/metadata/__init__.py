"""Schemas, manifests and snapshots of Iceberg, as headrace writes them."""
