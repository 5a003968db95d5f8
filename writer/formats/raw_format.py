"""Values as they are: one column of bytes, null for a record without a value."""

import pyarrow as pa

from headrace.writer.avro.schema import Record
from headrace.writer.decoding.block import DecodedBlock


class RawDecoder:
    """Takes each value for its row."""

    unresponsive = False

    def __init__(self, column: str) -> None:
        """`column`: name of the only column."""
        self._column = column

    def decode(self, values: pa.Array) -> DecodedBlock:
        """Return the values as a column; none fails."""
        rows = pa.table({self._column: values.cast(pa.binary())})
        return DecodedBlock(rows, pa.arange(0, len(values)), {})


class RawFormat:
    """Raw: values that are not looked into."""

    name = "raw"

    def is_native(self, record: Record) -> bool:  # noqa: ARG002 - of any record
        """Return that a block is taken at once."""
        return True

    def open_decoder(self, record: Record, *, native: bool, header_bytes: int, scratch: str) -> RawDecoder:  # noqa: ARG002
        """Return what takes values as they are."""
        return RawDecoder(record.fields[0]["name"])
