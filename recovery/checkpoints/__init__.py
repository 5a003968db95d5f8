"""Reads, checks and repairs Spark's checkpoints; rebuilds committed offsets from older ones."""
