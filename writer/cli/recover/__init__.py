"""Commands after something changed for good: topics that moved."""
