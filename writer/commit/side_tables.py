"""The tables beside a pipeline's log that a start makes: dead letters, late rows, raw records."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace import bucketers
from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.batch.staging.raw_records import RAW_BUCKET, RAW_BUCKET_COLUMNS, RAW_COLUMNS
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.table import layout
from headrace.writer.table.lost_tables import DEAD_LETTER_TABLE, LATE_TABLE, RAW_TABLE


@dataclass(frozen=True)
class SideTable:
    """One of these tables, as it is made."""

    kind: str
    location: str
    # The key of the configuration that names the location.
    key: str
    # Those of buckets included.
    columns: pa.Schema
    bucket_columns: Sequence[str] = ()
    layout: str = ""


def list_side_tables(settings: Pipeline, columns: pa.Schema) -> list[SideTable]:
    """Return the tables beside a pipeline's log. `columns`: of its rows, for the table of late ones.

    Those that a route fills are not among them, nor those of their late rows.
    """
    tables = list[SideTable]()
    if settings.late_table is not None:
        bucket_columns = bucketers.build(settings.bucket).columns
        late = SideTable(
            LATE_TABLE, settings.late_table, "seal.late_table", columns, bucket_columns, layout(settings.bucket)
        )
        tables.append(late)
    if settings.raw_place is not None:
        raw_columns = [*RAW_COLUMNS, *(pa.field(name, pa.string()) for name in RAW_BUCKET_COLUMNS)]
        raw = SideTable(
            RAW_TABLE,
            settings.raw_place,
            "table.raw.location",
            pa.schema(raw_columns),
            RAW_BUCKET_COLUMNS,
            layout(RAW_BUCKET),
        )
        tables.append(raw)
    tables.append(SideTable(DEAD_LETTER_TABLE, settings.dead_letters, "table.dead_letters", DEAD_LETTERS))
    return tables
