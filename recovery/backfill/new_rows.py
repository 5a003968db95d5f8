"""Selects rows of an archive without offsets whose keys the table does not have yet. Approximate."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from headrace import bucketers
from headrace.writer.batch.bucketing import BucketAssignment, TimeRule, assign_buckets
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.staging.parquet_files import open_file
from headrace.writer.batch.staging.spill_buffer import Stage
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketKey
from headrace.writer.storage.damage import naming_damage
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

Keys = set[tuple[object, ...]]


class NewRowStage:
    """Stages rows without provenance, bucket by bucket, without those whose keys are in the bucket already."""

    def __init__(
        self,
        table: PipelineTable,
        snapshot: PipelineSnapshot,
        settings: Pipeline,
        task_plan: TaskPlan,
        rule: TimeRule,
    ) -> None:
        """`task_plan`: where files go."""
        self._table = table
        self._snapshot = snapshot
        self._settings = settings
        self._task_plan = task_plan
        self._rule = rule
        self._bucketer = bucketers.build(settings.bucket)

    def write(self, pieces: Iterable[pa.Table], keys: Sequence[str]) -> tuple[Report, int, int]:
        """Stage what is new, each row once by its keys.

        Returns the report, the number of rows, and how many were left out: in the table already, or without a time.
        """
        task_plan = self._task_plan
        destination = task_plan.destination(task_plan.table, self._bucketer.columns, task_plan.entropy_bits)
        stage = Stage(destination, budget=task_plan.budget)
        keys_by_bucket: dict[BucketKey, Keys] = {}
        row_count = 0
        left_out = 0
        try:
            for piece in pieces:
                assignment = self._assign(piece)
                is_new = self._is_new(assignment, keys, keys_by_bucket)
                rows = _add_null_provenance(assignment.rows.filter(is_new))
                buckets = replace(assignment.buckets, codes=assignment.buckets.codes.filter(is_new))
                row_count += rows.num_rows
                left_out += piece.num_rows - rows.num_rows
                stage.add(rows, assignment.event_time.filter(is_new), buckets)
            return Report(files=stage.finish()), row_count, left_out
        except BaseException:
            stage.abandon()
            raise

    def _assign(self, piece: pa.Table) -> BucketAssignment:
        topic = self._settings.topics.among(self._snapshot.incarnations())[0]
        topics = pa.repeat(topic, piece.num_rows)
        try:
            return assign_buckets(piece, self._rule, self._bucketer, self._task_plan.now, topics)
        except ValueError as error:
            raise ConfigError(f"the archive's rows have no event time that can be read: {error}") from error

    def _is_new(
        self, assignment: BucketAssignment, keys: Sequence[str], keys_by_bucket: dict[BucketKey, Keys]
    ) -> pa.BooleanArray:
        """Return for each row whether its key is new in its bucket. Cold: an archive is read once.

        `keys_by_bucket`: keys of the buckets that were met so far; those of these rows are added.
        """
        columns = [assignment.rows.column(name).to_pylist() for name in keys]
        is_new = []
        for code, *values in zip(assignment.buckets.codes.to_pylist(), *columns, strict=True):
            bucket = assignment.buckets.values[code]
            if bucket not in keys_by_bucket:
                keys_by_bucket[bucket] = self._read_keys(bucket, keys)
            key = tuple(values)
            is_new.append(key not in keys_by_bucket[bucket])
            keys_by_bucket[bucket].add(key)
        return pa.array(is_new, pa.bool_())

    def _read_keys(self, bucket: BucketKey, keys: Sequence[str]) -> Keys:
        """Read the keys that the table has in a bucket."""
        bucket_keys: Keys = set()
        for file in self._table.bucket_files(self._snapshot, bucket):
            path = f"{self._table.store.location}/{file.path}"
            with open_file(self._table.store, file.path) as source, naming_damage(path, "a Parquet file"):
                names = pq.read_schema(source).names
                source.seek(0)
                rows = pq.read_table(source, columns=[key for key in keys if key in names])
                columns = [rows.column(key).to_pylist() if key in names else [None] * rows.num_rows for key in keys]
                bucket_keys |= set(zip(*columns, strict=True))
        return bucket_keys


def _add_null_provenance(rows: pa.Table) -> pa.Table:
    """Add provenance columns to rows, all null."""
    for field in PROVENANCE:
        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.replace_schema_metadata(None)
