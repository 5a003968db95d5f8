"""Decodes a block of values of any format: natively at once, one by one where that is refused."""
