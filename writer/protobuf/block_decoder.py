"""Decodes a block of Protobuf values at once with ptars, and leaves to google.protobuf what that may read otherwise.

ptars parses each value for itself, so row i is value i. It names no culprit of a block that it refuses; google.protobuf
finds it in less time than ptars needs for the block. (docs/adr/0070-protobuf-values.md)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.avro import schema as avro
from headrace.writer.core.errors import panics_as_errors
from headrace.writer.decoding.block import BlockRefused, DecodedBlock, Mask, PartRefused
from headrace.writer.decoding.decode import decode
from headrace.writer.protobuf.column_values import Suspects, make_columns
from headrace.writer.protobuf.message_tree import Message
from headrace.writer.protobuf.record_schema import tree_of
from headrace.writer.protobuf.single_decoder import ProtobufSingleDecoder
from headrace.writer.protobuf.wire_schema import wire_descriptor

# A value of so many bytes is parsed by google.protobuf before ptars gets it.
_LARGE_BYTES = 8_192
_END_OF_VALUE = 2**31 - 1


class _LargeRefused(BlockRefused):
    """Large values are no messages."""

    def __init__(self, is_suspect: Mask) -> None:
        super().__init__("a large value is no message")
        self.is_suspect = is_suspect


class ProtobufBlockDecoder:
    """Reads all values of a block with ptars."""

    def __init__(
        self, record: avro.Record, tree: Message, single: ProtobufSingleDecoder, header_bytes: int = 0
    ) -> None:
        """Raise BlockRefused where ptars does not take the message type."""
        self._header_bytes = header_bytes
        self._single = single
        self._tree = tree
        self._types = avro.table_fields(record)
        self._schema = pa.schema(list(self._types.items()))
        self._handler = _open_handler(tree)

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Decode all values. Raises BlockRefused."""
        count = len(values)
        if count == 0:
            return self._schema.empty_table(), None
        if self._header_bytes:
            values = pc.binary_slice(values, self._header_bytes, _END_OF_VALUE)
        self._check_large(values)
        batch = _call_ptars(lambda: self._handler.array_to_record_batch(values))
        if batch.num_rows != count:
            raise BlockRefused(f"{batch.num_rows} rows were read of {count} values")
        suspects = Suspects()
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        try:
            columns = make_columns(self._tree, arrays, self._types, suspects.blame)
            rows = pa.table(columns, schema=self._schema)
        except pa.ArrowException as error:
            # The names of an enum may be more bytes than an array has.
            raise BlockRefused(str(error)) from error
        if suspects.mask is not None:
            raise PartRefused(rows.filter(pa.array(~suspects.mask)), suspects.mask, {})
        return rows, None

    def _check_large(self, values: pa.Array) -> None:
        """Raise BlockRefused where a large value, without its header, is no message.

        ptars skips groups inside groups by recursion without a limit, 64 bytes of the stack each: a large value of them
        would end the process. google.protobuf ends at 100.
        """
        is_large = pc.greater(pc.binary_length(values), _LARGE_BYTES)
        if not pc.any(is_large).as_py():
            return
        positions = np.flatnonzero(is_large.to_numpy(zero_copy_only=False))
        is_unparsable = self._single.find_unparsable(values.take(pa.array(positions)).to_pylist(), 0)
        if is_unparsable.any():
            is_suspect = np.zeros(len(values), bool)
            is_suspect[positions[is_unparsable]] = True
            raise _LargeRefused(is_suspect)

    def take_unfit(self) -> dict[str, int]:
        """Return no counts: what a message type does not declare is skipped by every reader of Protobuf."""
        return {}

    def find_suspects(self, values: pa.Array, refusal: BlockRefused) -> Mask | None:
        """Return the values that google.protobuf refuses; None where it takes all."""
        if isinstance(refusal, _LargeRefused):
            return refusal.is_suspect
        is_unparsable = self._single.find_unparsable(values.to_pylist(), self._header_bytes)
        return is_unparsable if is_unparsable.any() else None


@dataclass(frozen=True)
class ProtobufDecoder:
    """Decodes Protobuf values: by blocks, and one by one what a block refuses, or a schema that is not native."""

    block: ProtobufBlockDecoder | None
    single: ProtobufSingleDecoder

    @property
    def unresponsive(self) -> bool:
        """Whether the decoder of this process is lost: ptars and google.protobuf end with their input."""
        return False

    def decode(self, values: pa.Array) -> DecodedBlock:
        """Decode a block of values, each behind its header."""
        return decode(values, self.block, self.single)


def open_decoder(record: avro.Record, *, native: bool, header_bytes: int) -> ProtobufDecoder:
    """Return what decodes values of a record schema. `native`: as the probe says. `header_bytes`: before each value."""
    tree = tree_of(record)
    single = ProtobufSingleDecoder(record, tree, header_bytes)
    block = ProtobufBlockDecoder(record, tree, single, header_bytes) if native else None
    return ProtobufDecoder(block, single)


def _open_handler(tree: Message) -> Any:
    """Return what decodes messages by their plain form. Raises BlockRefused where ptars does not take it."""
    from ptars import HandlerPool, PtarsConfig

    config = PtarsConfig(list_value_name="element", list_nullable=True, list_value_nullable=True)
    descriptor = wire_descriptor(tree)
    return _call_ptars(lambda: HandlerPool([descriptor.file], config=config).get_for_message(descriptor))


def _call_ptars(call: Any) -> Any:
    """Return what ptars gives. Raises BlockRefused for its errors, and its panics."""
    try:
        with panics_as_errors("ptars"):
            return call()
    except Exception as error:
        raise BlockRefused(str(error)) from error
