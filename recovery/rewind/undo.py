"""Restores the files that another client changed, before a rewind removes rows by offsets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from writer.batch.staging.parquet_files import delta_statistics
from writer.batch.staging.table_file import read_footer
from writer.core.errors import ConfigError
from writer.core.files import BucketFile, BucketKey, StagedFile
from writer.maintenance.retention import rows_of
from writer.storage.base import Store
from writer.table.log.foreign_writes import Change, reading
from writer.table.log.operations import Undo
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable


@dataclass(frozen=True)
class RevertedChanges:
    """Changes of other clients, and the files that the table has again once they are taken back.

    `before`: the version before the first of them. `base`: the version whose files the table has again: that one, or
    the one that is returned to, where its files are those of now, as after a RESTORE to it.
    """

    changes: Sequence[Change]
    before: PipelineSnapshot
    base: PipelineSnapshot
    gone: Sequence[BucketFile]
    back: Sequence[BucketFile]
    missing: Sequence[str]  # paths of files to come back that are not there any more
    rows_before: Mapping[BucketKey, int]
    rows_base: Mapping[BucketKey, int]

    def taken(self, going: Mapping[BucketKey, int]) -> dict[BucketKey, int]:
        """Return the rows that the table had before and has not in the end. `going`: out of the files of `base`."""
        keys = self.rows_before.keys() | self.rows_base.keys()
        fewer = {
            key: self.rows_before.get(key, 0) - self.rows_base.get(key, 0) + going.get(key, 0) for key in keys
        }  # fmt: skip
        return {key: count for key, count in fewer.items() if count}

    def entry(self, store: Store) -> Undo:
        """Return it as an entry carries it. Raises OSError."""
        back = [_restored(store, file) for file in self.back]
        return Undo(self.changes, self.gone, back, self.before.parts())


def undone(
    table: PipelineTable, changes: Sequence[Change], to: PipelineSnapshot, now: PipelineSnapshot
) -> RevertedChanges:
    """Find what taking the changes back moves. `to`: the version that is returned to.

    Raises ConfigError where they made it another table, CommitFailed.
    """
    before = table.snapshot_at(changes[0].version - 1)
    if any(before.state.metadata[key] != now.state.metadata[key] for key in ("id", "partitionColumns")):
        raise ConfigError(
            f"{changes[0]} on the table at {table.location}, and made it another one, with other partitions. Start a "
            "new pipeline name on a new location."
        )
    there, then, wanted = ({f.path: f for f in table.bucket_files(one)} for one in (now, before, to))
    base, files = (to, wanted) if wanted.keys() == there.keys() else (before, then)
    gone, back = ([one[path] for path in sorted(one.keys() - other)] for one, other in ((there, files), (files, there)))
    with reading(table.location):
        missing = [file.path for file in back if table.store.mark(file.path) is None]
        rows = [_rows(table.store, one.values()) for one in (then, files)]
    return RevertedChanges(changes, before, base, gone, back, missing, *rows)


def _rows(store: Store, files: Iterable[BucketFile]) -> dict[BucketKey, int]:
    found: dict[BucketKey, int] = {}
    for file in files:
        found[file.bucket] = found.get(file.bucket, 0) + rows_of(store, file)
    return found


def _restored(store: Store, file: BucketFile) -> StagedFile:
    metadata = read_footer(store, file.path)
    first, last = file.event_time_min or datetime.now(UTC), file.event_time_max or datetime.now(UTC)
    statistics = delta_statistics(metadata)
    return StagedFile(file.path, file.bucket, metadata.num_rows, file.bytes, statistics, first, last, {})
