"""Benchmarks: records per CPU-second of the writer and of plain Spark jobs."""
