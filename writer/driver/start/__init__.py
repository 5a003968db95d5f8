"""The start of a pipeline: what it checks, which topics it reads, and from which offsets."""
