"""Decodes Avro values one by one: for schemas that the native decoder refuses, and to find the bad value."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.value_reader import TRUNCATED, DamagedValue, Read, compile_reader
from headrace.writer.decoding.block import DecodedBlock
from headrace.writer.framing.wire_format import CONFLUENT


class SingleDecoder:
    """Reads one record at a time, strictly: the judge of what the native decoder refuses, and who names the culprit."""

    def __init__(self, record: avro.Record, *, header_bytes: int = CONFLUENT.header_bytes) -> None:
        """Decode values of this schema that begin after `header_bytes`."""
        self.record = record
        self.header_bytes = header_bytes

    @cached_property
    def _types(self) -> pa.Schema:
        return pa.schema(list(avro.table_fields(self.record).items()))

    @cached_property
    def _read_value(self) -> Read:
        # Most schemas of a task have no value that is read alone.
        return compile_reader(self.record, self.record.root)

    def __call__(self, values: pa.Array) -> DecodedBlock:
        """Decode each value (header included) on its own; never raises for what a value holds.

        Raises MemoryError: what this process lacks is no fault of a value.
        """
        decoded: dict[int, dict[str, Any]] = {}
        failures: dict[int, str] = {}
        for position, value in enumerate(values):
            try:
                decoded[position] = self._read(value.as_py())
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a hostile value provokes is a fact about that value
                failures[position] = _reason(error)
        try:
            rows = pa.Table.from_pylist(list(decoded.values()), self._types)
        except MemoryError:
            # One of Arrow's is an ArrowException, too.
            raise
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            # A value is one that its column cannot hold.
            rows = self._convert_each(decoded, failures)
        positions = [position for position in decoded if position not in failures]
        return DecodedBlock(rows, pa.array(positions, pa.int64()), dict(sorted(failures.items())))

    def _convert_each(self, decoded: Mapping[int, dict[str, Any]], failures: dict[int, str]) -> pa.Table:
        """Return the rows whose values their columns can hold, and add the reasons of the others to `failures`."""
        rows: list[pa.Table] = []
        for position, row in decoded.items():
            try:
                rows.append(pa.Table.from_pylist([row], self._types))
            except MemoryError:
                raise
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
        row: dict[str, Any] = fields
        return row


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, ValueError):
        return text
    return f"{type(error).__name__}: {text}"
