"""Decodes Avro values to Arrow rows: natively by block, one by one if that is refused. A bad value fails alone."""

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writer.avro import schema
from writer.avro.decoding.block_decoder import BlockRefused, DecoderUnresponsive, NativeDecoder
from writer.avro.decoding.corrupt_values import suspects
from writer.avro.decoding.record_decoder import DecodedBlock, SingleDecoder
from writer.avro.decoding.value_writer import write_samples
from writer.avro.wire_format import header

BLOCK_BYTES_MAX = 2**30  # Arrow's binary arrays end at 2 GiB; half of it leaves room for the nonces
PROBE_BYTES_MAX = 2**20  # of the fixed types of a record; nobody sends so large ones, and a schema may name any size
_PROBES = 24
SINGLY = 16  # this few records are decoded one by one: a native call costs as much


class BlockDecoder(Protocol):
    """Decodes a block of framed values (binary array, header included) all at once, or raises BlockRefused."""

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Return n rows in table types, and why a row holds a value that the table cannot (null: it does not)."""


def decode(values: pa.Array, native: BlockDecoder | None, singly: SingleDecoder) -> DecodedBlock:
    """Decode a block of values that carry the same header. Bad values fail alone; the rest keeps its order.

    `values`: binary array without nulls, every value with its header. `native` None: the schema is not native.
    Of a block that is refused, the values that do not look like the schema are decoded one by one and the rest at once;
    where that is refused too, it is halved until the culprits stand alone.
    """
    if native is None:
        return singly(values)
    if len(values) <= SINGLY or values.nbytes > BLOCK_BYTES_MAX:
        return _by_halves(values, native, singly)
    done = _natively(values, native, singly)
    if done is not None:
        return done
    suspected = suspects(values, singly.record, singly.header_bytes)
    if suspected is None or not suspected.any():
        return _by_halves(values, native, singly, refused=True)
    rest, some = (pa.array(np.flatnonzero(which)) for which in (~suspected, suspected))
    parts = [(rest, _by_halves(values.take(rest), native, singly)), (some, singly(values.take(some)))]
    return _woven(parts)


def _by_halves(values: pa.Array, native: BlockDecoder, singly: SingleDecoder, *, refused: bool = False) -> DecodedBlock:
    """Decode the values in blocks as large as are accepted. `refused`: all of them at once are not."""
    done: list[tuple[int, DecodedBlock]] = []
    middle = len(values) // 2
    pending = [(middle, len(values)), (0, middle)] if refused else [(0, len(values))]
    while pending:
        start, stop = pending.pop()
        block = values.slice(start, stop - start)
        few = stop - start <= SINGLY
        outcome = None
        if block.nbytes <= BLOCK_BYTES_MAX and not (few and done):
            outcome = _natively(block, native, singly)
        if outcome is None and few:
            outcome = singly(block)
        if outcome is not None:
            done.append((start, outcome))
        else:
            middle = (start + stop) // 2
            pending += [(middle, stop), (start, middle)]
    return _joined(done)


def _natively(block: pa.Array, native: BlockDecoder, singly: SingleDecoder) -> DecodedBlock | None:
    """Decode the block at once; None when it is refused."""
    try:
        return _without_bad(*native(block))
    except DecoderUnresponsive:
        return singly(block)
    except BlockRefused:
        return None


def is_native(record: schema.Record) -> bool:
    """Probe the native decoder with records through every branch of the schema; the single decoder is the judge."""
    if schema.fixed_bytes(record, record.root) > PROBE_BYTES_MAX:
        return False
    values = pa.array([header(1) + sample for sample in write_samples(record, _PROBES)], pa.binary())
    expected = SingleDecoder(record)(values)
    if expected.failures:
        return False
    try:
        rows, bad = NativeDecoder(record, deadline=lambda _: 5)(values)
    except BlockRefused:
        return False
    return bad is None and bool(rows.equals(expected.rows))


def _without_bad(rows: pa.Table, bad: pa.StringArray | None) -> DecodedBlock:
    positions = pa.arange(0, rows.num_rows)
    if bad is None:
        return DecodedBlock(rows, positions, {})
    good = bad.is_null()
    at = positions.filter(bad.is_valid()).to_pylist()  # cold: only the bad ones
    return DecodedBlock(
        rows.filter(good), positions.filter(good), dict(zip(at, bad.drop_null().to_pylist(), strict=True))
    )


def _joined(parts: list[tuple[int, DecodedBlock]]) -> DecodedBlock:
    if len(parts) == 1:
        return parts[0][1]
    parts.sort(key=lambda part: part[0])
    rows = pa.concat_tables([part.rows for _, part in parts])
    taken = pa.concat_arrays([pc.add(part.positions, start) for start, part in parts])
    return DecodedBlock(rows, taken, {start + at: why for start, part in parts for at, why in part.failures.items()})


def _woven(parts: list[tuple[pa.Int64Array, DecodedBlock]]) -> DecodedBlock:
    """Join rows that were decoded from values at these positions."""
    rows = pa.concat_tables([part.rows for _, part in parts])
    taken = pa.concat_arrays([at.take(part.positions) for at, part in parts])
    if len(parts[-1][1].positions):  # a suspect that is sound goes back to its place
        order = pc.sort_indices(taken)
        rows, taken = rows.take(order), taken.take(order)
    failures = {at[position].as_py(): why for at, part in parts for position, why in part.failures.items()}
    return DecodedBlock(rows, taken, dict(sorted(failures.items())))
