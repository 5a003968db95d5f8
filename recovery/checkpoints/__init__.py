"""Reads and checks Spark's checkpoints; rebuilds committed offsets from older ones."""
