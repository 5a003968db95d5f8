"""What stands before a value on the wire: Confluent's header, a magic byte and the id of the schema."""

import struct

HEADER_BYTES = 5  # Confluent's wire format: magic 0, then the schema id as 4 bytes, big end first


def header(schema_id: int) -> bytes:
    """Five bytes that stand before each value of this schema."""
    return struct.pack(">bI", 0, schema_id)
