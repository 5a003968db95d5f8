"""Decodes Avro values to Arrow rows: a block at once by the native decoder, or each value by itself."""
