"""Decides where a start reads on: committed offsets, Spark's checkpoint, skips to latest, adopted topics."""
