"""Decodes Avro values one by one: for schemas that the native decoder refuses, and to find the bad value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from writer.avro import schema as avro
from writer.avro.decoding.value_reader import TRUNCATED, DamagedValue, compile_reader
from writer.avro.wire_format import CONFLUENT


@dataclass(frozen=True)
class DecodedBlock:
    """Outcome of one block: rows in table types, which of the block's values they are, and what failed.

    `positions` holds the position of each row's value in the block; `failures` maps the other positions to a reason.
    """

    rows: pa.Table
    positions: pa.Int64Array
    failures: dict[int, str]


class SingleDecoder:
    """Reads one record at a time, strictly: the judge of what the native decoder refuses, and who names the culprit."""

    def __init__(self, record: avro.Record, *, header_bytes: int = CONFLUENT.header_bytes) -> None:
        """Decode values of this schema that begin after `header_bytes`."""
        self.record, self.header_bytes = record, header_bytes
        self._types = pa.schema(list(avro.table_fields(record).items()))
        self._read_value = compile_reader(record, record.root)

    def __call__(self, values: pa.Array) -> DecodedBlock:
        """Decode each value (header included) on its own; never raises for what a value holds."""
        read: dict[int, dict[str, Any]] = {}
        failures: dict[int, str] = {}
        for position, value in enumerate(values):
            try:
                read[position] = self._read(value.as_py())
            except Exception as error:  # noqa: BLE001 - whatever a hostile value provokes is a fact about that value
                failures[position] = _reason(error)
        try:
            rows = pa.Table.from_pylist(list(read.values()), self._types)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):  # a value that its column cannot hold
            rows = self._those_that_fit(read, failures)
        taken = [position for position in read if position not in failures]
        return DecodedBlock(rows, pa.array(taken, pa.int64()), dict(sorted(failures.items())))

    def _those_that_fit(self, read: Mapping[int, dict[str, Any]], failures: dict[int, str]) -> pa.Table:
        rows: list[pa.Table] = []
        for position, row in read.items():
            try:
                rows.append(pa.Table.from_pylist([row], self._types))
            except Exception as error:  # noqa: BLE001
                failures[position] = _reason(error)
        return pa.concat_tables([self._types.empty_table(), *rows]).combine_chunks()

    def _read(self, value: bytes) -> dict[str, Any]:
        try:
            fields, position = self._read_value(value, self.header_bytes)
        except IndexError:
            raise DamagedValue(TRUNCATED) from None
        surplus = len(value) - position
        if surplus < 0:
            raise DamagedValue(TRUNCATED)
        if surplus:
            raise DamagedValue(f"{surplus} surplus bytes after the record")
        values: dict[str, Any] = fields
        return values


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
