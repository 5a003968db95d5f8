"""Deletes dead letters by key: decodes them with today's schemas and removes those that match.

A replay that read them before they went would commit their rows after. So an empty replay is committed once they are
gone: by it the other one is overtaken, and reads what is there then.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

import pyarrow as pa

from headrace.writer.commit import builder
from headrace.writer.core.offsets import OffsetRange, OffsetSet, TopicPartition
from headrace.writer.maintenance.dead_letters.selection import (
    Selection,
    read_dead_letters,
    split_by_incarnation,
    to_records,
)
from headrace.writer.maintenance.deletion.row_deletion import WHY
from headrace.writer.maintenance.deletion.row_keys import Keys, RowFinder
from headrace.writer.maintenance.local_pipeline import LocalPipeline
from headrace.writer.table.log.foreign_writes import FilesGone, Overtaken
from headrace.writer.table.log.operations.rows import RemovedRows, Replay, Rewrite
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.row_removal import stage_without_offsets
from headrace.writer.table.table import PipelineTable

_TRIES = 5


@dataclass
class DeadLetters:
    """The result of a search among dead letters."""

    dead_letters: int = 0
    # Those whose keys are unknown.
    undecodable: int = 0
    meant: int = 0
    # Offsets of those that are meant.
    offsets: OffsetSet = field(default_factory=OffsetSet)
    # The version of the dead-letter table that took them out.
    version: int | None = None


def find(
    side: PipelineTable, pipeline: LocalPipeline, keys: Keys, columns: pa.Schema, snapshot: PipelineSnapshot
) -> DeadLetters:
    """Find the dead letters of a version that hold such rows.

    Raises ConfigError, CommitFailed, RegistryUnreachable, OSError.
    """
    result = DeadLetters()
    finder = RowFinder(keys, columns)
    for batch in read_dead_letters(side.store, side.bucket_files(snapshot), Selection()):
        dead_letters = pa.Table.from_batches([batch])
        result.dead_letters += dead_letters.num_rows
        for incarnation, table in split_by_incarnation(dead_letters):
            for records in to_records(table).combine_chunks().to_batches():
                sample = pipeline.decode(records)
                result.undecodable += len(sample.dead_letters)
                for group in sample.groups:
                    meant = group.records.filter(pa.array(finder.match_rows(group.rows), pa.bool_()))
                    _add_offsets(result, meant, incarnation)
    return result


def delete(
    tables: Tables,
    side: PipelineTable,
    find: Callable[[PipelineSnapshot], DeadLetters],
    keys: Keys,
    now: datetime,
    request: str,
    first: Callable[[OffsetSet], None] = lambda _: None,
) -> DeadLetters:
    """Take the dead letters out that `find` finds in a version, in one entry. `first` gets their offsets before.

    `tables`: of the pipeline. No replay that read them commits after. Raises what a commit raises.
    """
    for tries in range(_TRIES):
        # Dead letters that a reprocess just made of rows are there by then.
        tables.apply_side_files()
        snapshot = side.snapshot()
        try:
            result = find(snapshot)
            if not result.meant:
                return result
            first(result.offsets)
            files = side.bucket_files(snapshot)
            with stage_without_offsets(
                side.store, files, result.offsets, hidden=side.hidden, folder=side.folder
            ) as removal:
                facts = {"at": now.isoformat(), "request": request, "fields": keys.fields, "keys": keys.count}
                removed_rows = RemovedRows(WHY, result.meant)
                swap = Rewrite(uuid4().hex, removal.removed, removal.rewritten, removed_rows, facts)
                result.version = side.append(swap, snapshot)
        except (FilesGone, FileNotFoundError):
            # A replay rewrote dead letters meanwhile.
            if tries == _TRIES - 1:
                raise
        else:
            _overtake_replays(tables.main, now, request)
            return result
    raise AssertionError


def _overtake_replays(main: PipelineTable, now: datetime, request: str) -> None:
    """Commit a replay of no dead letter, so that one that is under way reads them again. Raises Overtaken."""
    facts = {"started": now.isoformat(), "moves": [], "letters": 0, "request": request, **builder.sums(())}
    for tries in range(_TRIES):
        snapshot = main.snapshot()
        try:
            main.append(Replay(uuid4().hex, snapshot.replays, (), {}, {}, facts), snapshot)
        except Overtaken:
            # Another replay was committed: one more may have begun by then.
            if tries == _TRIES - 1:
                raise
        else:
            return


def _add_offsets(result: DeadLetters, records: pa.Table, incarnation: int) -> None:
    """Note where the dead letters are: they are few, those of one person."""
    result.meant += records.num_rows
    ranges = []
    for row in records.select(["topic", "partition", "offset"]).to_pylist():
        part = TopicPartition(row["topic"], incarnation, row["partition"])
        ranges.append(OffsetRange(part, row["offset"], row["offset"] + 1))
    result.offsets |= OffsetSet.of(ranges)
