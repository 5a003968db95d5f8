"""Compaction: which files of a bucket are rewritten, by whom, and dedupe of late rows in the same pass."""
