"""Selects rows of an archive without offsets whose keys the table does not have yet. Approximate."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import bucketers
from writer.avro.schema_plan import PROVENANCE
from writer.batch.bucketing import BucketAssignment, TimeRule, assign_buckets
from writer.batch.plan import TaskPlan
from writer.batch.staging.parquet_files import open_file
from writer.batch.staging.spill_buffer import Stage
from writer.batch.task_report import Report
from writer.config.pipeline import Pipeline
from writer.core.errors import ConfigError
from writer.core.files import BucketKey
from writer.storage.damage import naming_damage
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable


class Unplaced:
    """Stages rows without provenance, bucket by bucket, without those whose keys are in the bucket already."""

    def __init__(
        self, table: PipelineTable, snapshot: PipelineSnapshot, settings: Pipeline, to: TaskPlan, rule: TimeRule
    ) -> None:
        """`to`: where files go."""
        self._table, self._snapshot, self._settings, self._to, self._rule = table, snapshot, settings, to, rule
        self._bucketer = bucketers.build(settings.bucket)

    def carried(self, pieces: Iterable[pa.Table], keys: Sequence[str]) -> tuple[Report, int, int]:
        """Stage what is new, each row once by its keys.

        Returns the report, the rows, and how many were left out: known, or without a time.
        """
        to = self._to
        stage = Stage(to.destination(to.table, self._bucketer.columns, to.entropy_bits), budget=to.budget)
        known: dict[BucketKey, set[tuple[object, ...]]] = {}
        rows = out = 0
        try:
            for piece in pieces:
                found = self._assigned(piece)
                fresh = self._fresh(found, keys, known)
                out += piece.num_rows - (pc.sum(fresh).as_py() or 0)
                kept = _nowhere(found.rows.filter(fresh))
                rows += kept.num_rows
                buckets = found.buckets.__class__(
                    found.buckets.codes.filter(fresh), found.buckets.values, found.buckets.intervals
                )
                stage.add(kept, found.event_time.filter(fresh), buckets)
            return Report(files=stage.finish()), rows, out
        except BaseException:
            stage.abandon()
            raise

    def _assigned(self, piece: pa.Table) -> BucketAssignment:
        known = self._settings.topics.among(self._snapshot.incarnations())
        topics = pa.repeat(known[0], piece.num_rows)
        try:
            return assign_buckets(piece, self._rule, self._bucketer, self._to.now, topics)
        except ValueError as error:
            raise ConfigError(f"the archive's rows have no event time that can be read: {error}") from error

    def _fresh(
        self, found: BucketAssignment, keys: Sequence[str], known: dict[BucketKey, set[tuple[object, ...]]]
    ) -> pa.BooleanArray:
        """Return for each row whether its key is new in its bucket (cold: an archive is read once)."""
        columns = [found.rows.column(name).to_pylist() for name in keys]
        marks = []
        for code, *key in zip(found.buckets.codes.to_pylist(), *columns, strict=True):
            bucket = found.buckets.values[code]
            if bucket not in known:
                known[bucket] = self._there(bucket, keys)
            marks.append(tuple(key) not in known[bucket])
            known[bucket].add(tuple(key))
        return pa.array(marks, pa.bool_())

    def _there(self, bucket: BucketKey, keys: Sequence[str]) -> set[tuple[object, ...]]:
        """Read the keys that the table has in a bucket."""
        found: set[tuple[object, ...]] = set()
        for file in self._table.bucket_files(self._snapshot, bucket):
            path = f"{self._table.store.location}/{file.path}"
            with open_file(self._table.store, file.path) as source, naming_damage(path, "a Parquet file"):
                have = pq.read_schema(source).names
                source.seek(0)
                rows = pq.read_table(source, columns=[name for name in keys if name in have])
                columns = [rows.column(k).to_pylist() if k in have else [None] * rows.num_rows for k in keys]
                found |= set(zip(*columns, strict=True))
        return found


def _nowhere(rows: pa.Table) -> pa.Table:
    """Add provenance columns to rows, all null."""
    for field in PROVENANCE:
        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.replace_schema_metadata(None)
