"""Says what to do about a field that is no event time. What it proposes passes the check that refused the field."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from bucketers.timestamps import find_refusal
from writer.avro.schema import timestamp_unit
from writer.avro.schema_plan import SchemaPlan, WriterSchema
from writer.batch.bucketing import TimeRule


def fix_event_time(plan: SchemaPlan, rule: TimeRule) -> str:
    """Return the end of a sentence about a field that the rule refuses: columns that it takes, or another unit."""
    usable = [column for column in plan.columns if not find_refusal(column.type, rule.unit)]
    times = [column.name for column in usable if pa.types.is_temporal(column.type)]
    numbers = [column.name for column in usable if pa.types.is_int64(column.type)]
    named = ", ".join(times or numbers)
    texts = (schema.text for schema in plan.schemas.values() if isinstance(schema, WriterSchema))
    misplaced = next((found for text in texts for found in find_misplaced_types(text, rule.field)), None)
    if misplaced is not None and rule.unit == "logical":
        logical, unit = misplaced
        other = f", or event_time.field to one that is: {named}" if named else ""
        return (
            f"; its schema has logicalType {logical!r} beside the type instead of in it, where Avro ignores it. "
            f"Set event_time.unit to {unit}{other}."
        )
    return f". Set event_time.field to one that is: {named}." if named else ""


def find_misplaced_types(text: str, field: str) -> Iterator[tuple[str, str]]:
    """Yield the logical type, and its unit, that stands beside the type `long` of a field. `field`: dotted."""
    root: Any = json.loads(text)
    members = [root]
    for name in field.split("."):
        inner = [member for schema in members for member in _fields(schema) if member.get("name") == name]
        for member in inner:
            logical = member.get("logicalType")
            unit = None
            if isinstance(logical, str):
                unit = timestamp_unit({"type": "long", "logicalType": logical})
            if unit is not None and "long" in _branches(member["type"]):
                yield str(logical), unit
        members = [branch for member in inner for branch in _branches(member["type"])]


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    fields: list[Mapping[str, Any]] = []
    if isinstance(schema, Mapping) and isinstance(schema.get("fields"), list):
        fields = schema["fields"]
    return fields


def _branches(schema: Any) -> list[Any]:
    return schema if isinstance(schema, list) else [schema]
