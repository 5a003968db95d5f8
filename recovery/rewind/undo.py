"""Restores the files that another client changed, before a rewind removes rows by offsets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.writer.batch.staging.parquet_files import delta_statistics
from headrace.writer.batch.staging.table_file import read_footer
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketFile, BucketKey, StagedFile
from headrace.writer.maintenance.retention import rows_of
from headrace.writer.storage.base import Store
from headrace.writer.table.log.foreign_writes import Change, reading
from headrace.writer.table.log.operations.rewinds import Undo
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable


@dataclass(frozen=True)
class RevertedChanges:
    """Changes of other clients, and the files that the table has again once they are taken back.

    `before`: the version before the first of them. `base`: the version whose files the table has again: that one, or
    the one that is returned to, where its files are those of now, as after a RESTORE to it. `gone`: files that the
    table loses. `back`: files that it gets again; `missing_files`: paths of those of them that are not there any more.
    """

    changes: Sequence[Change]
    before: PipelineSnapshot
    base: PipelineSnapshot
    gone: Sequence[BucketFile]
    back: Sequence[BucketFile]
    missing_files: Sequence[str]
    rows_before: Mapping[BucketKey, int]
    rows_base: Mapping[BucketKey, int]

    def removed_rows(self, base_rows: Mapping[BucketKey, int]) -> dict[BucketKey, int]:
        """Return the rows that the table had before and has not in the end. `base_rows`: those that `base` loses."""
        removed_rows = {}
        for bucket in self.rows_before.keys() | self.rows_base.keys():
            undone_rows = self.rows_before.get(bucket, 0) - self.rows_base.get(bucket, 0)
            count = undone_rows + base_rows.get(bucket, 0)
            if count:
                removed_rows[bucket] = count
        return removed_rows

    def entry(self, store: Store) -> Undo:
        """Return it as an entry carries it. Raises OSError."""
        back = [_describe_file(store, file) for file in self.back]
        return Undo(self.changes, self.gone, back, self.before.parts())


def find_reverted_changes(
    table: PipelineTable, changes: Sequence[Change], earlier: PipelineSnapshot, newest: PipelineSnapshot
) -> RevertedChanges:
    """Find what taking the changes back moves. `earlier`: the version that is returned to.

    Raises ConfigError where they made it another table, CommitFailed.
    """
    before = table.snapshot_at(changes[0].version - 1)
    if any(before.state.metadata[key] != newest.state.metadata[key] for key in ("id", "partitionColumns")):
        raise ConfigError(
            f"{changes[0]} on the table at {table.location}, and made it another one, with other partitions. Start a "
            "new pipeline name on a new location."
        )
    newest_files = _files_by_path(table, newest)
    files_before = _files_by_path(table, before)
    earlier_files = _files_by_path(table, earlier)
    base = before
    base_files = files_before
    if earlier_files.keys() == newest_files.keys():
        base = earlier
        base_files = earlier_files
    gone = [newest_files[path] for path in sorted(newest_files.keys() - base_files.keys())]
    back = [base_files[path] for path in sorted(base_files.keys() - newest_files.keys())]
    with reading(table.location):
        return RevertedChanges(
            changes,
            before,
            base,
            gone,
            back,
            missing_files=[file.path for file in back if table.store.mark(file.path) is None],
            rows_before=_count_rows(table.store, files_before.values()),
            rows_base=_count_rows(table.store, base_files.values()),
        )


def _files_by_path(table: PipelineTable, snapshot: PipelineSnapshot) -> dict[str, BucketFile]:
    return {file.path: file for file in table.bucket_files(snapshot)}


def _count_rows(store: Store, files: Iterable[BucketFile]) -> dict[BucketKey, int]:
    rows: dict[BucketKey, int] = {}
    for file in files:
        rows[file.bucket] = rows.get(file.bucket, 0) + rows_of(store, file)
    return rows


def _describe_file(store: Store, file: BucketFile) -> StagedFile:
    """Describe a file of an earlier version, as an entry adds it again. Raises OSError."""
    metadata = read_footer(store, file.path)
    now = datetime.now(UTC)
    return StagedFile(
        file.path,
        file.bucket,
        metadata.num_rows,
        file.bytes,
        delta_statistics(metadata),
        file.event_time_min or now,
        file.event_time_max or now,
        {},
    )
