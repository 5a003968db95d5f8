"""Says what to do about a field that is no event time. What it proposes passes the check that refused the field."""

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from bucketers.timestamps import find_refusal
from writer.avro.schema import timestamp_unit
from writer.avro.schema_plan import SchemaPlan, WriterSchema
from writer.avro.schema_text import parse_schema
from writer.avro.type_visitor import iterate_types
from writer.batch.bucketing import TimeRule


def fix_event_time(plan: SchemaPlan, rule: TimeRule) -> str:
    """Return the end of a sentence about a field that the rule refuses: columns that it takes, or another unit."""
    usable = [column for column in plan.columns if not find_refusal(column.type, rule.unit)]
    times = [column.name for column in usable if pa.types.is_temporal(column.type)]
    numbers = [column.name for column in usable if pa.types.is_int64(column.type)]
    named = ", ".join(times or numbers)
    texts = (schema.text for schema in plan.schemas.values() if isinstance(schema, WriterSchema))
    misplaced_types = chain.from_iterable(find_misplaced_types(text, rule.field) for text in texts)
    misplaced = next(misplaced_types, None)
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
    form = parse_schema(text)
    for part in iterate_types(form, form.root):
        # The name of a member of a union is no part of the path.
        names = [step.name for step in part.steps if step.kind != "member"]
        if part.schema != "long" or part.field is None or names != field.split("."):
            continue
        logical = part.field.get("logicalType")
        if not isinstance(logical, str):
            continue
        unit = timestamp_unit({"type": "long", "logicalType": logical})
        if unit is not None:
            yield logical, unit
