"""Value types and functions without dependencies: errors, units, text, offsets, files, logging."""
