"""The schema plan: the table's columns, and how each writer schema fills them.

The driver owns it and hands it to the tasks of a batch, so two new schemas in one batch have one arbiter. Pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache

import pyarrow as pa

from bucketers.arrow import contiguous
from writer.avro import schema
from writer.avro.column_cast import SEAMLESS, Seams, absent, fitted
from writer.avro.decode import is_native
from writer.avro.resolution import Reader, Widening, resolve

# What every row carries besides its own fields: the lake proves itself, and the frontier can be rebuilt from the files.
PROVENANCE = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_incarnation", pa.int32()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_kafka_time", schema.TIMESTAMP),
    ]
)


@dataclass(frozen=True)
class WriterSchema:
    """One registered schema: its text, the decoder it gets, and the column that each of its fields fills."""

    text: str
    native: bool
    columns: Mapping[str, str]  # field of the record → column of the table
    seams: Seams = SEAMLESS


@dataclass(frozen=True)
class Rejected:
    """A schema whose records become dead letters, and the reason."""

    reason: str


@dataclass(frozen=True)
class ColumnRules:
    """How the columns of a table may grow, by its format and its configuration."""

    widen: Widening = "any"
    reserved: frozenset[str] = frozenset()  # lower-case names that the format keeps for itself


@dataclass(frozen=True)
class SchemaPlan:
    """Columns of the table (without provenance and bucket columns), and what is known of each schema id."""

    columns: pa.Schema
    reserved: frozenset[str] = frozenset()  # lower-case names that no field may take
    schemas: Mapping[int, WriterSchema | Rejected] = field(default_factory=dict)
    reader: Reader = field(default_factory=Reader)
    widen: Widening = "any"  # which columns may get a wider type
    since: Mapping[int, datetime] = field(default_factory=dict)  # ids that meant other schemas for older records

    def reject(self, schema_id: int, reason: str) -> "SchemaPlan":
        """Park the records of this schema id."""
        return replace(self, schemas={**self.schemas, schema_id: Rejected(reason)})

    def without(self, ids: Collection[int]) -> "SchemaPlan":
        """Forget what is known of these ids; their columns stay."""
        kept = {schema_id: known for schema_id, known in self.schemas.items() if schema_id not in ids}
        return replace(self, schemas=kept) if ids else self

    def extend(self, schema_id: int, text: str) -> "SchemaPlan":
        """Admit a schema: what is new in it grows the columns, what is known fills them by Avro's rules.

        A schema that cannot fill the table's columns is rejected: only its own records are parked.
        """
        try:
            record = schema.parse(text)
            found = resolve(record, self.columns, self.reader, self.reserved, widen=self.widen)
        except schema.UnsupportedSchema as error:
            return self.reject(schema_id, f"schema id {schema_id}: {error}")
        known = WriterSchema(text, _probed(text), found.mapping, found.seams)
        schemas = {**self.schemas, schema_id: known}
        return replace(self, columns=found.columns, schemas=schemas, reader=found.reader)

    def decode_only(self, schema_id: int, text: str) -> "SchemaPlan":
        """Admit a schema whose values are decoded and then given to other plans: it is held against no column."""
        alone = SchemaPlan(pa.schema([]), self.reserved).extend(schema_id, text)
        return replace(self, schemas={**self.schemas, **alone.schemas})


@lru_cache(maxsize=1024)
def _probed(text: str) -> bool:
    return is_native(schema.parse(text))


def conform(rows: pa.Table, schema: WriterSchema, plan: SchemaPlan) -> pa.Table:
    """Give the rows exactly the plan's columns, in its order; where the writer lacks one, its default or null."""
    source = {column: name for name, column in schema.columns.items()}
    seams, defaults = schema.seams, plan.reader.defaults
    columns = []
    for column in plan.columns:
        place = (column.name,)
        if column.name not in source:
            columns.append(absent(rows.num_rows, column.type, place, defaults))
            continue
        values = rows.column(source[column.name])
        same = values.type == column.type and not seams.beside(place)
        columns.append(values if same else fitted(contiguous(values), column.type, place, seams, defaults))
    return pa.table(columns, schema=plan.columns)
