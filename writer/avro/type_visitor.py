"""Visits the types of a parsed Avro schema, each wherever it stands, with its path and the field around it. Pure.

A named type is visited again at each place that names it, as a table has columns for each. Only a record inside itself
is not entered again. Code that goes through a schema together with something else, such as a value or a column's
type, or that writes another schema, has a recursion of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from headrace.writer.avro.schema_text import Schema, SchemaForm


class Step(NamedTuple):
    """A step from a type into one inside it. `name`: as the paths of columns have it, such as `element`."""

    kind: Literal["field", "member", "element", "value"]
    name: str


class TypePart(NamedTuple):
    """A type where it stands in a schema. A tuple, as a schema may have 20,000, and tuples are made quickly."""

    # Its definition, not its name.
    schema: Schema
    # From the type at which the visit began. A union with one type besides null has no step of its own.
    steps: tuple[Step, ...] = ()
    # The innermost field around it; None where none is.
    field: Mapping[str, Any] | None = None
    # Full names of the records around it, the innermost last; the last one has the field.
    records: tuple[str, ...] = ()
    # How many types are around it, each array, map, union and record.
    depth: int = 0

    @property
    def column_path(self) -> tuple[str, ...]:
        """The path of its column. Both types of a union of two numbers have one, though a table joins them."""
        return tuple(step.name for step in self.steps)

    @property
    def is_recursive(self) -> bool:
        """Whether it is a record that is around itself."""
        schema = self.schema
        return isinstance(schema, dict) and schema["type"] == "record" and schema["name"] in self.records


def iterate_types(form: SchemaForm, schema: Schema) -> Iterator[TypePart]:
    """Yield a type of a schema and all types inside, each before those inside it, in the order of the schema.

    A record that contains itself is yielded once more inside itself, as `is_recursive`, without its fields.

    Of a record with a field `tags` of ["null", array of string] it yields the record, and then the union, null and
    the array, all at `tags`, and string at `tags.element`.
    """
    pending = [TypePart(form.resolve(schema))]
    while pending:
        part = pending.pop()
        yield part
        if not part.is_recursive:
            pending += reversed(list(_inner_parts(form, part)))


def _inner_parts(form: SchemaForm, part: TypePart) -> Iterator[TypePart]:
    """Yield the types directly inside a type."""
    schema = part.schema
    depth = part.depth + 1
    if isinstance(schema, list):
        yield from _branch_parts(form, part)
    if not isinstance(schema, dict):
        return
    match schema["type"]:
        case "record":
            records = (*part.records, schema["name"])
            for field in schema["fields"]:
                steps = (*part.steps, Step("field", field["name"]))
                yield TypePart(form.resolve(field["type"]), steps, field, records, depth)
        case "array":
            steps = (*part.steps, Step("element", "element"))
            yield TypePart(form.resolve(schema["items"]), steps, part.field, part.records, depth)
        case "map":
            steps = (*part.steps, Step("value", "value"))
            yield TypePart(form.resolve(schema["values"]), steps, part.field, part.records, depth)


def _branch_parts(form: SchemaForm, union: TypePart) -> Iterator[TypePart]:
    """Yield the branches of a union. Those besides null are members of its column where they are several."""
    branches = [form.resolve(branch) for branch in union.schema]
    has_members = sum(branch != "null" for branch in branches) > 1
    member_number = 0
    for branch in branches:
        steps = union.steps
        if has_members and branch != "null":
            steps = (*steps, Step("member", f"member{member_number}"))
            member_number += 1
        yield TypePart(branch, steps, union.field, union.records, union.depth + 1)
