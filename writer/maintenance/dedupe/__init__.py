"""Dedupe across buckets: which buckets are compared, and the table of late rows."""
