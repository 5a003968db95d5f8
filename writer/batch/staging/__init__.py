"""Staged files: rows of open buckets in memory and on local disk, then Parquet."""
