"""Data sets of the bench, and topics filled with them."""
