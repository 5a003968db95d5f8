"""Faults at random moments on a real stack, from a seed, and a judge that knows nothing of the writer's own counts."""
