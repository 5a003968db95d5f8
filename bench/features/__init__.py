"""Measurements of one feature each: `python -m headrace.bench.features.<name>`."""
