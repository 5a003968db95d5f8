"""Reconciles offsets with rows, dead letters and gaps, from the lake alone."""
