"""The driver process: pipelines, the threads beside them, restarts, exit code."""
