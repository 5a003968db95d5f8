"""The table formats, behind one small protocol."""
