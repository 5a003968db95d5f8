"""Decodes Avro values within the frames of Kafka's records: frame and value in one pass, without a column of values.

A record of format 2 is: length, attributes, time delta, offset delta, length of the key, key, length of the value,
value, count of headers; all numbers but the attributes are zig-zag varints, which Avro calls longs. So a schema that
names the parts of the frame as fields before and after the value's own makes a native container reader read the
records of a batch as they are. (docs/adr/0035-frame-and-value-in-one-pass.md)

The proof: the last byte of each batch, the count of no headers, is replaced by a random number of 61 bits, which no
producer can know. Where it reads back as the last record's count of headers, the records of the batch consumed the
bytes of the batch, no more, no less. Within a batch, which one producer made, each frame's length must be that of its
parts, and the lengths must add up to the batch. What the proof cannot see: bytes that a producer laid into a value on
purpose, so that they look like a frame, while another of its records hides one in return: rows of this producer only,
which it could have sent as well.
"""

import os
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writer.avro import schema as avro
from writer.avro.block_decoder import BlockRefused, ContainerDecoder, all_equal
from writer.avro.shortest_bytes import Longs, varint_sizes

_NONCE_BYTES = 9  # of a varint; so many for each number of _NONCE_BITS bits above the top one
_NONCE_TOP = np.uint64(1 << 61)
_GROUP, _MORE = 0x7F, 0x80  # a varint has seven bits a byte, and a bit that says whether it goes on


class FramedValues(NamedTuple):
    """What the frames of some records say, and the rows of their values; all of one length."""

    time_delta: Longs
    offset_delta: Longs
    key_at: Longs  # where the key begins in the body
    key_length: Longs  # -1: null
    value_at: Longs
    value_length: Longs
    end: Longs  # behind the record
    rows: pa.Table


@dataclass
class FrameDecoder(ContainerDecoder):
    """Decodes records that are all alike: one schema, each with a key or none, no headers, no null value."""

    head: bytes = b""  # before each value
    keyed: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        key = "bytes" if self.keyed else "long"  # the length of a null key is -1
        before = {"length": "long", "attributes": avro.fixed("Attributes", 1), "time_delta": "long",
                  "offset_delta": "long", "key": key, "value_length": "long"}  # fmt: skip
        if self.head:
            before["head"] = avro.fixed("Head", len(self.head))
        self._schema, self._names = avro.framed(self.record, before, {"header_count": "long"})

    def __call__(self, body: memoryview, batch_ends: Longs, counts: Longs) -> FramedValues:
        """Decode the records of batches that lie behind one another in `body`, from 0 to the last of `batch_ends`.

        `counts`: records of each batch. Raises BlockRefused where they are not alike, where the proof fails or a value
        is bad; DecoderUnresponsive.
        """
        body = body.cast("B")  # Arrow gives signed bytes
        nonces, parts = _with_nonces(body, batch_ends)
        table = self.read(self._schema, int(counts.sum()), parts)
        header_counts, lasts = self._longs(table, "header_count"), np.cumsum(counts) - 1
        if (header_counts[lasts] != nonces).any() or np.count_nonzero(header_counts) > len(nonces):
            raise BlockRefused("the records of a batch did not end where it ends, or a record has headers")
        if self.head and not all_equal(table.column(self._names["head"]), self.head):
            raise BlockRefused("the values do not have one schema")
        found = self._parts(table, np.diff(batch_ends, prepend=0), counts)
        starts = found.value_at + len(self.head)
        sizes = found.value_length - len(self.head)
        read = self.columns_of(table)
        if self.rows_to_judge(read, np.frombuffer(body, np.uint8), starts, sizes).any():
            raise BlockRefused("a value may have bytes that Avro forbids")
        rows, bad = self.in_table_types(read)
        if bad is not None:
            raise BlockRefused("a value is bad")
        return found._replace(rows=rows)

    def _parts(self, table: pa.Table, batch_bytes: Longs, counts: Longs) -> FramedValues:
        """Compute where the parts of each record lie. Raises BlockRefused where its lengths do not add up."""
        length, time_delta, offset_delta, value_length = (
            self._longs(table, name) for name in ("length", "time_delta", "offset_delta", "value_length")
        )
        if self.keyed:
            key_length = pc.binary_length(table.column(self._names["key"])).to_numpy().astype(np.int64)
        else:
            key_length = self._longs(table, "key")
        record_bytes = varint_sizes(length) + length
        key_from_start = varint_sizes(length) + 1 + varint_sizes(time_delta) + varint_sizes(offset_delta)
        key_from_start += varint_sizes(key_length)
        value_from_start = key_from_start + np.maximum(key_length, 0) + varint_sizes(value_length)
        is_whole = value_from_start + value_length + 1 == record_bytes  # the count of no headers is one byte
        if not is_whole.all() or (not self.keyed and (key_length != -1).any()):
            raise BlockRefused("a record is not like the others, or its length is not that of its parts")
        firsts = np.cumsum(counts) - counts
        if (value_length < len(self.head)).any() or (np.add.reduceat(record_bytes, firsts) != batch_bytes).any():
            raise BlockRefused("the lengths of records do not add up to their batch")
        end = np.cumsum(record_bytes)
        start = end - record_bytes
        return FramedValues(
            time_delta, offset_delta, start + key_from_start, key_length, start + value_from_start, value_length, end,
            table,
        )  # fmt: skip

    def _longs(self, table: pa.Table, name: str) -> Longs:
        return np.asarray(table.column(self._names[name]).to_numpy(), np.int64)


def _with_nonces(body: memoryview, batch_ends: Longs) -> tuple[Longs, list[memoryview]]:
    """Replace the last byte of each batch by a number that nobody knows. Returns these, and the pieces in their order.

    Raises BlockRefused where the last byte is not a count of no headers.
    """
    if np.frombuffer(body, np.uint8)[batch_ends - 1].any():
        raise BlockRefused("the last record of a batch has headers")
    random = np.frombuffer(os.urandom(8 * len(batch_ends)), np.uint64)
    nonces = (random & (_NONCE_TOP - np.uint64(1))) | _NONCE_TOP
    zigzag, varints = nonces << np.uint64(1), np.empty((len(nonces), _NONCE_BYTES), np.uint8)
    for digit in range(_NONCE_BYTES):
        varints[:, digit] = (zigzag >> np.uint64(7 * digit)).astype(np.uint8) & _GROUP | _MORE
    varints[:, -1] &= _GROUP
    pieces, at = list[memoryview](), 0
    for end, nonce in zip(batch_ends.tolist(), varints, strict=True):
        pieces += [body[at : end - 1], nonce.data]
        at = end
    return nonces.astype(np.int64), pieces
