"""Lists a pipeline's dead letters, by what they have in common or one by one, and decodes those that can be."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace.writer.commit.privacy import record_screen
from headrace.writer.config.pipelines import Config
from headrace.writer.maintenance import local_pipeline
from headrace.writer.maintenance.dead_letters.selection import Selection, read_dead_letters, to_records
from headrace.writer.maintenance.local_pipeline import record_positions
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.table.factory import all_tables
from headrace.writer.table.lost_tables import refuse_lost_tables

_NUMBERS = re.compile(r"\d[\d.,:TZ-]*")
# Further dead letters are only told apart by outcome and topic.
_GROUPS_MAX = 10_000
_GROUP_COLUMNS = ("_topic", "_partition", "_offset", "_kafka_time", "schema_id", "outcome", "error")
_RECORD_COLUMNS = (
    "_topic",
    "_partition",
    "_offset",
    "_kafka_time",
    "_incarnation",
    "key",
    "schema_id",
    "outcome",
    "error",
)

RecordPosition = tuple[str, int, int]  # topic, partition, offset


@dataclass
class DeadLetterGroup:
    """Dead letters that share outcome, topic, schema id and reason, numbers in it aside."""

    outcome: str
    topic: str
    schema_id: int | None
    # Of the first of them.
    reason: str
    records: int
    offset_min: int
    offset_max: int
    # Of those that have a time.
    time_min: datetime | None
    time_max: datetime | None

    def add(self, offset: int, time: datetime | None) -> None:
        """Count another dead letter; a time of None says that it has none."""
        self.records += 1
        self.offset_min = min(self.offset_min, offset)
        self.offset_max = max(self.offset_max, offset)
        times = [known_time for known_time in (self.time_min, self.time_max, time) if known_time is not None]
        self.time_min = min(times, default=None)
        self.time_max = max(times, default=None)


def group_dead_letters(name: str, config: Config, selection: Selection) -> list[DeadLetterGroup]:
    """Group the chosen dead letters, most first. Raises HeadraceError when there is no dead-letter table."""
    groups: dict[tuple[str, str, int | None, str], DeadLetterGroup] = {}
    screen = record_screen(name, config)
    columns = list(_GROUP_COLUMNS)
    if screen.hides:
        # Whether a reason may quote a value, the value says.
        columns.append("value")
    for batch in _read(name, config, selection, columns):
        reasons = screen.reasons(pa.Table.from_batches([batch]))
        # cold: dead letters only
        for row, reason in zip(batch.select(_GROUP_COLUMNS).to_pylist(), reasons, strict=True):
            key = (row["outcome"], row["_topic"], row["schema_id"], _NUMBERS.sub("#", reason))
            if len(groups) >= _GROUPS_MAX and key not in groups:
                key = (row["outcome"], row["_topic"], None, "others")
            offset = row["_offset"]
            time = row["_kafka_time"]
            if key in groups:
                groups[key].add(offset, time)
            else:
                outcome, topic, schema_id, _ = key
                groups[key] = DeadLetterGroup(outcome, topic, schema_id, reason, 1, offset, offset, time, time)
    return sorted(groups.values(), key=lambda group: -group.records)


def first_dead_letters(name: str, config: Config, selection: Selection, limit: int, *, has_values: bool) -> pa.Table:
    """Return the first of the chosen dead letters, with values and headers if asked. Raises HeadraceError."""
    columns = list(_RECORD_COLUMNS)
    if has_values:
        columns += ["value", "headers"]
    batches: list[pa.RecordBatch] = []
    remaining = limit
    for batch in _read(name, config, selection, columns):
        batches.append(batch.slice(0, remaining))
        remaining -= batches[-1].num_rows
        if remaining == 0:
            break
    return pa.Table.from_batches(batches) if batches else pa.table({})


def decode_dead_letters(
    name: str, config: Config, source: SchemaSource, dead_letters: pa.Table
) -> Mapping[RecordPosition, dict[str, Any]]:
    """Decode what can be: quarantined records, and those whose schema is known by now. Nulls are left out.

    Raises RegistryUnreachable, SchemaChanged.
    """
    pipeline = local_pipeline.open_local_pipeline(name, config, source)
    pipeline.assume_wires()
    decoded = {}
    for batch in to_records(dead_letters).combine_chunks().to_batches():
        for group in pipeline.decode(batch).groups:
            # cold: the dead letters of one screen
            for position, row in zip(record_positions(group.records), group.rows.to_pylist(), strict=True):
                decoded[position] = {column: value for column, value in row.items() if value is not None}
    return decoded


def _read(name: str, config: Config, selection: Selection, columns: list[str]) -> Iterator[pa.RecordBatch]:
    settings = config.pipelines[name]
    tables = all_tables(name, config)
    table = tables.side(settings.dead_letters)
    if tables.main.exists():
        refuse_lost_tables(settings, tables.main, tables.side)
    table.check_exists()
    return read_dead_letters(table.store, table.bucket_files(table.snapshot()), selection, columns=columns)
