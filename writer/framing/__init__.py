"""Framing: where a record names the schema of its value, and where the value begins."""
