"""Compaction at a person's request: rewrites buckets of a table in this process, beside the driver or without one."""

from collections.abc import Iterator, Sequence

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketFile, BucketKey, group_by_bucket
from headrace.writer.maintenance.compaction.compactor import CompactionResult, Compactor, here
from headrace.writer.maintenance.compaction.late_rows import compactor_of
from headrace.writer.sealing.bucket_selection import BucketSelection
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.factory import existing_table

# Each entry of the log since the last list of files is looked at by the next, so a list is good for some buckets.
_BUCKETS_PER_LIST = 50


class CompactionRun:
    """The buckets of a table that are to be looked at, and the steps that rewrite them."""

    def __init__(self, pipeline: str, config: Config, selections: Sequence[BucketSelection]) -> None:
        """Take the buckets of selections, or all without one.

        Raises ConfigError where one means no files, HeadraceError where there is no table.
        """
        self._table = existing_table(pipeline, config)
        self._snapshot = self._table.snapshot()
        self.columns: Sequence[str] = tuple(self._snapshot.state.metadata["partitionColumns"])
        settings = config.pipelines[pipeline]
        self._compares_buckets = settings.compact.dedupe is not None and settings.compact.dedupe.window is not None
        if self._compares_buckets:
            self._compactor, _ = compactor_of(Sealer(pipeline, config), config)
        else:
            self._compactor = Compactor(pipeline, settings, self._table, config.stores)
        if selections:
            self._buckets = self._select_buckets(selections)
        else:
            self._buckets = self._compactor.buckets(self._snapshot)

    def list_files(self) -> dict[BucketKey, list[BucketFile]]:
        """Return the files that are worth a rewrite, by bucket."""
        pieces_by_bucket = self._compactor.plan(self._snapshot, self._buckets, open_too=True)
        files: dict[BucketKey, list[BucketFile]] = {}
        for bucket, pieces in pieces_by_bucket.items():
            for piece in pieces:
                files.setdefault(bucket, []).extend(piece.files)
        return files

    def count_taken(self, bucket: BucketKey) -> int:
        """Count the rows that dedupe would take of a bucket. Raises as `Compactor.count_taken`."""
        pieces = self._compactor.plan(self._snapshot, [bucket], open_too=True)[bucket]
        return self._compactor.count_taken(self._snapshot, pieces, here)

    def carry_out(self) -> Iterator[CompactionResult]:
        """Rewrite what is worth it, and yield each result once it is in the log. Raises as `Compactor.carry_out`."""
        # What a crash broke off is ended, also where nothing is left to rewrite.
        self._table.publish(self._snapshot.state.table_version)
        # Where rows of several buckets are compared, a bucket changes what is to be done to the next.
        step = 1 if self._compares_buckets else _BUCKETS_PER_LIST
        for start in range(0, len(self._buckets), step):
            snapshot = self._table.snapshot()
            pieces_by_bucket = self._compactor.plan(snapshot, self._buckets[start : start + step], open_too=True)
            for pieces in pieces_by_bucket.values():
                yield from self._compactor.carry_out(snapshot, pieces, here)
            yield from self._compactor.rewrite_repeats(here)

    def _select_buckets(self, selections: Sequence[BucketSelection]) -> list[BucketKey]:
        """Return the buckets that have files and are meant. Raises ConfigError for a selection without any."""
        keys = group_by_bucket(self._table.bucket_files(self._snapshot))
        buckets: dict[BucketKey, None] = {}
        for selection in selections:
            selected_keys = selection.choose(keys)
            if not selected_keys:
                raise ConfigError(f"the table at {self._table.location} has no files of bucket {selection.name}")
            buckets |= dict.fromkeys(selected_keys)
        return list(buckets)
