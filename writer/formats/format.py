"""What a value format is: how the columns of a record schema are filled from values.

Each schema of values becomes the text of a record schema, in Avro's words: `headrace.format` at its root names their
format, Avro where it is missing. Columns, evolution, privacy and event specs know record schemas alone.
"""

from typing import Protocol

import pyarrow as pa

from headrace.writer.avro.schema import Record
from headrace.writer.decoding.block import DecodedBlock


class ValueDecoder(Protocol):
    """Decodes blocks of values of one schema."""

    @property
    def unresponsive(self) -> bool:
        """The decoder of this process is lost: end the process after the task."""

    def decode(self, values: pa.Array) -> DecodedBlock:
        """Decode a block of values (binary array without nulls), each behind its header. Bad values fail alone."""


class Format(Protocol):
    """A format of values."""

    @property
    def name(self) -> str:
        """Name of the format, as `headrace.format` of a record schema has it."""

    def is_native(self, record: Record) -> bool:
        """Return whether blocks of such values are decoded at once. Else each is decoded by itself."""

    def open_decoder(self, record: Record, *, native: bool, header_bytes: int, scratch: str) -> ValueDecoder:
        """Return what decodes values of a record schema.

        `native`: as `is_native` says. `header_bytes`: before each value. `scratch`: folder for files of the decoder.
        """
