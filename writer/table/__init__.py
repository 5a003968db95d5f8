"""A pipeline's table in either format, over its transaction log."""
