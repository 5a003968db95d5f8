"""Decodes Avro values one by one: for schemas that the native decoder refuses, and to find the bad value."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from uuid import UUID

import pyarrow as pa
from fastavro import schemaless_reader

from writer.avro import schema as avro
from writer.avro.arrow_types import DATE_RANGE_DAYS, NOT_A_TIME, TIMESTAMP_RANGE_US, decimal_value, too_many_digits
from writer.avro.wire_format import CONFLUENT


@dataclass(frozen=True)
class DecodedBlock:
    """Outcome of one block: rows in table types, which of the block's values they are, and what failed.

    `taken` holds the position of each row's value in the block; `failures` maps the other positions to a reason.
    """

    rows: pa.Table
    taken: pa.Int64Array
    failures: dict[int, str]


class SingleDecoder:
    """fastavro, one record at a time: for what the native decoder refuses, and to name the culprit."""

    def __init__(self, record: avro.Record, *, header_bytes: int = CONFLUENT.header_bytes) -> None:
        """Decode values of this schema that begin after `header_bytes`."""
        self.record, self.header_bytes = record, header_bytes
        self._schema = avro.plain_schema(record)
        self._types = pa.schema(list(avro.table_fields(record).items()))
        self._by_name = {f["name"]: f["type"] for f in record.fields if f["name"] in self._types.names}

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
        source = BytesIO(value)
        source.seek(self.header_bytes)
        fields = schemaless_reader(source, self._schema, None, return_record_name=True)
        left = len(value) - source.tell()
        if left:
            raise ValueError(f"{left} surplus bytes after the record")
        return {name: table_value(self.record, kind, fields[name]) for name, kind in self._by_name.items()}


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the value ends before the record does"
    text = str(error) or type(error).__name__
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def table_value(record: avro.Record, schema: avro.Schema, value: Any) -> Any:
    """Give a value that fastavro read with `plain_schema` the shape of the table's type. Raises ValueError."""
    schema = record.resolve(schema)
    if isinstance(schema, list):
        return _python_union(record, schema, value)
    if value is None:
        return None
    digits = avro.decimal_digits(schema)
    if digits is not None:
        unscaled = int.from_bytes(value, "big", signed=True)
        if abs(unscaled) >= 10 ** digits[0]:
            raise ValueError(too_many_digits(digits[0]))
        number = decimal_value(unscaled, digits[1])
        return number if digits[0] <= avro.DECIMAL_DIGITS_MAX else str(number)
    unit = avro.timestamp_unit(schema)
    if unit is not None:
        return _believable(value // 1000 if unit == "ns" else value * {"ms": 1000, "us": 1}[unit], TIMESTAMP_RANGE_US)
    if isinstance(schema, dict) and schema.get("logicalType") == "date":
        return _believable(value, DATE_RANGE_DAYS)
    if avro.is_uuid(schema):
        return str(UUID(bytes=value))
    match schema["type"] if isinstance(schema, dict) else schema:
        case "record":
            kinds = {f["name"]: f["type"] for f in schema["fields"]}
            return {name: table_value(record, kinds[name], item) for name, item in value.items()}
        case "array":
            return [table_value(record, schema["items"], item) for item in value]
        case "map":
            return {key: table_value(record, schema["values"], item) for key, item in value.items()}
        case _:
            return value


def _believable(value: int, limits: tuple[int, int]) -> int:
    if not limits[0] <= value <= limits[1]:
        raise ValueError(NOT_A_TIME)
    return value


def _python_union(record: avro.Record, schema: list[Any], value: Any) -> Any:
    if value is None:
        return None
    branches = [record.resolve(branch) for branch in schema]
    if sum(branch != "null" for branch in branches) == 1:
        (branch,) = (branch for branch in branches if branch != "null")
        return table_value(record, branch, value[1] if isinstance(value, tuple) else value)
    at, content = avro.tagged_branch(value)
    item = table_value(record, branches[at], content)
    if not pa.types.is_struct(avro.table_type(record, schema)):
        return item
    return {f"member{sum(branch != 'null' for branch in branches[:at])}": item}
