"""Decodes Avro values to Arrow rows: natively by block, one by one if that is refused. A bad value fails alone."""

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.block_decoder import BlockRefused, DecoderUnresponsive, NativeDecoder
from headrace.writer.avro.decoding.corrupt_values import suspects
from headrace.writer.avro.decoding.record_decoder import DecodedBlock, SingleDecoder
from headrace.writer.avro.decoding.value_writer import write_samples
from headrace.writer.avro.wire_format import header

# Arrow's binary arrays end at 2 GiB; half of it leaves room for the nonces.
BLOCK_BYTES_MAX = 2**30
# Of the fixed types of a record; nobody sends so large ones, and a schema may name any size.
PROBE_BYTES_MAX = 2**20
_PROBES = 24
# So few records are decoded one by one: a native call costs as much.
SINGLY = 16


class BlockDecoder(Protocol):
    """Decodes a block of framed values (binary array, header included) all at once, or raises BlockRefused."""

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Return n rows in table types, and why a row has a value that the table cannot hold (null: it has none)."""


def decode(values: pa.Array, native: BlockDecoder | None, single: SingleDecoder) -> DecodedBlock:
    """Decode a block of values that carry the same header. Bad values fail alone; the others keep their order.

    `values`: binary array without nulls, every value with its header. `native` None: the schema is not native.
    Of a block that is refused, the suspects are decoded one by one and the others at once; where that is refused too,
    it is halved until the culprits stand alone.
    """
    if native is None:
        return single(values)
    if len(values) <= SINGLY or values.nbytes > BLOCK_BYTES_MAX:
        return _decode_by_halves(values, native, single)
    decoded = _decode_natively(values, native, single)
    if decoded is not None:
        return decoded
    is_suspect = suspects(values, single.record, single.header_bytes)
    if is_suspect is None or not is_suspect.any():
        return _decode_by_halves(values, native, single, is_refused=True)
    sound_positions = pa.array(np.flatnonzero(~is_suspect))
    suspect_positions = pa.array(np.flatnonzero(is_suspect))
    sound = _decode_by_halves(values.take(sound_positions), native, single)
    suspect = single(values.take(suspect_positions))
    return _merge_blocks([(sound_positions, sound), (suspect_positions, suspect)])


def _decode_by_halves(
    values: pa.Array, native: BlockDecoder, single: SingleDecoder, *, is_refused: bool = False
) -> DecodedBlock:
    """Decode the values in blocks as large as are accepted. `is_refused`: all of them at once are not."""
    blocks: list[tuple[int, DecodedBlock]] = []
    pending = [(0, len(values))]
    if is_refused:
        middle = len(values) // 2
        pending = [(middle, len(values)), (0, middle)]
    while pending:
        start, stop = pending.pop()
        part = values.slice(start, stop - start)
        is_small = stop - start <= SINGLY
        decoded = None
        if part.nbytes <= BLOCK_BYTES_MAX and not (is_small and blocks):
            decoded = _decode_natively(part, native, single)
        if decoded is None and is_small:
            decoded = single(part)
        if decoded is not None:
            blocks.append((start, decoded))
        else:
            middle = (start + stop) // 2
            pending += [(middle, stop), (start, middle)]
    return _concat_blocks(blocks)


def _decode_natively(values: pa.Array, native: BlockDecoder, single: SingleDecoder) -> DecodedBlock | None:
    """Decode the values at once; None when they are refused."""
    try:
        rows, reasons = native(values)
    except DecoderUnresponsive:
        return single(values)
    except BlockRefused:
        return None
    return _drop_bad_rows(rows, reasons)


def is_native(record: avro.Record) -> bool:
    """Probe the native decoder with records through every branch of the schema; the single decoder is the judge."""
    if avro.fixed_bytes(record, record.root) > PROBE_BYTES_MAX:
        return False
    values = pa.array([header(1) + sample for sample in write_samples(record, _PROBES)], pa.binary())
    expected = SingleDecoder(record)(values)
    if expected.failures:
        return False
    try:
        rows, reasons = NativeDecoder(record, deadline=lambda _: 5)(values)
    except BlockRefused:
        return False
    return reasons is None and bool(rows.equals(expected.rows))


def _drop_bad_rows(rows: pa.Table, reasons: pa.StringArray | None) -> DecodedBlock:
    positions = pa.arange(0, rows.num_rows)
    if reasons is None:
        return DecodedBlock(rows, positions, {})
    is_good = reasons.is_null()
    # Python sees the bad rows only.
    bad_positions = positions.filter(reasons.is_valid()).to_pylist()
    failures = dict(zip(bad_positions, reasons.drop_null().to_pylist(), strict=True))
    return DecodedBlock(rows.filter(is_good), positions.filter(is_good), failures)


def _concat_blocks(blocks: list[tuple[int, DecodedBlock]]) -> DecodedBlock:
    """Join what was decoded from values that begin at these positions."""
    if len(blocks) == 1:
        return blocks[0][1]
    blocks.sort(key=lambda block: block[0])
    rows = pa.concat_tables([block.rows for _, block in blocks])
    positions = pa.concat_arrays([pc.add(block.positions, start) for start, block in blocks])
    failures: dict[int, str] = {}
    for start, block in blocks:
        failures |= {start + position: reason for position, reason in block.failures.items()}
    return DecodedBlock(rows, positions, failures)


def _merge_blocks(blocks: list[tuple[pa.Int64Array, DecodedBlock]]) -> DecodedBlock:
    """Join what was decoded from values at these positions.

    Rows of the positions 0, 2, 3 and of the position 1 become rows of 0, 1, 2, 3.
    """
    rows = pa.concat_tables([block.rows for _, block in blocks])
    positions = pa.concat_arrays([of_values.take(block.positions) for of_values, block in blocks])
    _, last_block = blocks[-1]
    # A suspect that is sound goes back to its position.
    if len(last_block.positions):
        order = pc.sort_indices(positions)
        rows = rows.take(order)
        positions = positions.take(order)
    failures: dict[int, str] = {}
    for of_values, block in blocks:
        failures |= {of_values[position].as_py(): reason for position, reason in block.failures.items()}
    return DecodedBlock(rows, positions, dict(sorted(failures.items())))
