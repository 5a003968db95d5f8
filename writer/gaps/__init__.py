"""Gaps: ranges of offsets that were skipped, their tickets, and what became of them."""
