"""Writes the columns that a spec makes as an Avro schema, so that they fill a table as any writer's schema does."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa

_PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "bytes",
    pa.string(): "string",
}


def avro_schema(columns: pa.Schema) -> str:
    """Return a record schema whose fields have the types of the columns; each may be null."""
    numbers = count()
    return json.dumps(_record(list(columns), numbers))


def _record(members: list[pa.Field], numbers: Iterator[int]) -> dict[str, Any]:
    """Return the type of a record. `numbers`: of records, for their names."""
    name = f"r{next(numbers)}"
    fields = [
        {"name": member.name, "type": ["null", _type(member.type, numbers)], "default": None} for member in members
    ]
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: pa.DataType, numbers: Iterator[int]) -> Any:
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, numbers)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _type(kind.item_type, numbers)]}
    assert pa.types.is_struct(kind), f"a table has no {kind}"
    return _record(list(kind), numbers)
