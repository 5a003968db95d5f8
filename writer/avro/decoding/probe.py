"""Probes whether the native decoder can be trusted with a schema."""

import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.avro.decoding.value_writer import write_samples
from headrace.writer.decoding.block import BlockRefused
from headrace.writer.framing.wire_format import header

# Of the fixed types of a record; nobody sends so large ones, and a schema may name any size.
PROBE_BYTES_MAX = 2**20
_PROBES = 24


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
