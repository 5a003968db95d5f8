"""Values in Avro's binary encoding."""

from dataclasses import dataclass

import pyarrow as pa

from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.probe import is_native
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.avro.schema import Record
from headrace.writer.decoding.block import DecodedBlock
from headrace.writer.decoding.decode import decode


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes Avro values: by the native decoder where there is one, and by the single decoder."""

    native: NativeDecoder | None
    single: SingleDecoder

    @property
    def unresponsive(self) -> bool:
        """The native decoder of this process is lost."""
        return self.native is not None and self.native.unresponsive

    def decode(self, values: pa.Array) -> DecodedBlock:
        """Decode a block of values, each behind its header."""
        return decode(values, self.native, self.single)


class AvroFormat:
    """Avro: the values of schemas that say no other format."""

    name = "avro"

    def is_native(self, record: Record) -> bool:
        """Probe the native decoder with generated records."""
        return is_native(record)

    def open_decoder(self, record: Record, *, native: bool, header_bytes: int, scratch: str) -> AvroDecoder:
        """Return what decodes values of a record schema."""
        block_decoder = None
        if native:
            block_decoder = NativeDecoder(record, scratch=scratch, header_bytes=header_bytes)
        return AvroDecoder(block_decoder, SingleDecoder(record, header_bytes=header_bytes))
