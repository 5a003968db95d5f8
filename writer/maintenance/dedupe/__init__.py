"""Dedupe across buckets: which buckets are compared, and which of their rows are repeats."""
