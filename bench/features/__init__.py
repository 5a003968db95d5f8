"""Measurements of one feature each: `python -m bench.features.<name>`."""
