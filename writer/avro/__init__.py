"""Avro schemas and values to Arrow: parsing, resolution, native and record-by-record decoding."""
