"""The schema plan: which columns the table has, and how each writer schema fills them.

The driver owns it and hands it to the tasks of a batch, so two new schemas in one batch have one arbiter. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa

from writer.rooms import avro
from writer.rooms.decode import is_native

# What every row carries besides its own fields: the lake proves itself, and the frontier can be rebuilt from the files.
PROVENANCE = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_incarnation", pa.int32()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_kafka_time", avro.TIMESTAMP),
    ]
)
_PROMOTIONS = {
    pa.int32(): (pa.int64(), pa.float32(), pa.float64()),
    pa.int64(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.binary(),),
}  # Avro 1.12, schema resolution; but bytes are no text here: they need not be UTF-8


@dataclass(frozen=True)
class WriterSchema:
    """One registered schema: its text, the decoder it gets, and the column that each of its fields fills."""

    text: str
    native: bool
    columns: Mapping[str, str]  # field of the record → column of the table


@dataclass(frozen=True)
class Rejected:
    """A schema whose records are parked, and the sentence that says why."""

    reason: str


@dataclass(frozen=True)
class SchemaPlan:
    """Columns of the table (without provenance and bucket columns), and what is known of each schema id."""

    columns: pa.Schema
    reserved: frozenset[str] = frozenset()  # lower-case names that no field may take
    schemas: Mapping[int, WriterSchema | Rejected] = field(default_factory=dict)

    def reject(self, schema_id: int, reason: str) -> "SchemaPlan":
        """Park the records of this schema id."""
        return replace(self, schemas={**self.schemas, schema_id: Rejected(reason)})

    def extend(self, schema_id: int, text: str) -> "SchemaPlan":
        """Admit a schema: new fields become columns, known ones are promoted by Avro's rules.

        A schema that cannot fill the table's columns is rejected: only its own records are parked.
        """
        try:
            record = avro.parse(text)
            columns, mapping = self._merged(record)
        except avro.UnsupportedSchema as error:
            return self.reject(schema_id, f"schema id {schema_id}: {error}")
        known = WriterSchema(text, _probed(text), mapping)
        return replace(self, columns=columns, schemas={**self.schemas, schema_id: known})

    def _merged(self, record: avro.Record) -> tuple[pa.Schema, dict[str, str]]:
        aliases = {f["name"]: f.get("aliases", []) for f in record.fields}
        by_case = {name.lower(): name for name in self.columns.names}
        columns = self.columns
        mapping: dict[str, str] = {}
        for name, kind in avro.table_fields(record).items():
            column = next((known for known in (name, *aliases[name]) if known in columns.names), name)
            if column.lower() in self.reserved:
                raise avro.UnsupportedSchema(f"field {name!r} has a name that headrace keeps for itself; rename it")
            if by_case.setdefault(column.lower(), column) != column:
                other = by_case[column.lower()]
                raise avro.UnsupportedSchema(f"field {name!r} differs from column {other!r} only in case")
            if column in mapping.values():
                raise avro.UnsupportedSchema(f"two fields would fill column {column!r}")
            if column not in columns.names:
                columns = columns.append(pa.field(column, kind))
            elif not fits(kind, columns.field(column).type):
                have = columns.field(column).type
                raise avro.UnsupportedSchema(f"field {name!r} is {kind}, but column {column!r} holds {have}")
            mapping[name] = column
        return columns, mapping


@lru_cache(maxsize=1024)
def _probed(text: str) -> bool:
    return is_native(avro.parse(text))


def fits(kind: pa.DataType, column: pa.DataType) -> bool:
    """Tell whether values of this type can fill the column: the same type, or a promotion of Avro's."""
    return bool(kind == column) or column in _PROMOTIONS.get(kind, ())
