"""The offset ledger: which offsets became what, by segments of the log."""
