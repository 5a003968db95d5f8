"""The micro-batches of a pipeline: which runs next, its tasks, its commit, and what is reported of it."""
