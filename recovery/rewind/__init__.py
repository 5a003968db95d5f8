"""Rewinds a table: removes rows and resets committed offsets in one commit."""
