"""Avro schemas and wire formats, the columns that schemas fill, and the decoding of values to Arrow rows."""
