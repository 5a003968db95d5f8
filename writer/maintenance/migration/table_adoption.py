"""Adoption: makes a Delta or Iceberg table of another client a pipeline's, with the rows that it has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace import bucketers
from headrace.writer.batch.bucketing import times_of
from headrace.writer.batch.staging.parquet_files import open_file
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import layout
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.core.text import join_first
from headrace.writer.maintenance.retention import rows_of
from headrace.writer.sealing.manifest import bucket_path
from headrace.writer.storage.damage import naming_damage
from headrace.writer.table.factory import foreign_table, main_table
from headrace.writer.table.log.foreign_writes import reading
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable
from headrace.writer.table.takeover import find_outside_path, obstacles

if TYPE_CHECKING:
    # pyiceberg takes a second to import.
    from headrace.writer.table.iceberg.adoption import ForeignTable

# The newest file of each of these buckets is read, which are spread over all.
_BUCKETS_COMPARED = 16
_ROWS_COMPARED_PER_FILE = 10_000
_BUCKETS_NAMED = 3
# Names that other writers give to topic, partition and offset.
_OFFSET_COLUMNS = (
    ("_topic", "_partition", "_offset"),
    ("kafka_topic", "kafka_partition", "kafka_offset"),
    ("topic", "partition", "offset"),
)


@dataclass(frozen=True)
class AdoptionPlan:
    """An adoption, ready to be written."""

    snapshot: PipelineSnapshot
    rows: int
    files: int
    buckets: int
    # Rows whose bucket was computed anew, and is the one that they lie in.
    rows_compared: int
    columns_added: Sequence[str]


class TableAdoption:
    """The table of another client, and the step that makes it the pipeline's."""

    def __init__(self, config: Config, pipeline: str) -> None:
        """Find the table. Raises ConfigError where there is none, or its format has no log."""
        self.pipeline = pipeline
        self.settings = config.one_table(pipeline)
        table_format = self.settings.table.format
        if table_format == "parquet":
            raise ConfigError(
                f"pipelines.{pipeline}.table.format is parquet: plain files are not adopted, for they have no log that "
                "says which of them count. Make a Delta table of them first (CONVERT TO DELTA), or begin a new table."
            )
        self._bucketer = bucketers.build(self.settings.bucket)
        self._table: PipelineTable | ForeignTable
        if table_format == "iceberg":
            self._table = foreign_table(pipeline, config)
        else:
            self._table = main_table(pipeline, config)
        with reading(self.location):
            if not self._table.exists():
                raise ConfigError(f"there is no table at {self.location}; `headrace run` makes one.")

    @property
    def location(self) -> str:
        """Location of the table."""
        return self._table.location

    def plan(self) -> AdoptionPlan:
        """Look at the table and at some of its rows. Raises ConfigError with all that is in the way, and OSError."""
        with reading(self.location):
            snapshot = self._table.snapshot()
            problems = obstacles(snapshot.state, list(PROVENANCE), self._bucketer.columns)
            if not isinstance(self._table, PipelineTable):
                problems += self._table.obstacles()
            files: list[BucketFile] = []
            if not problems:
                files = self._table.bucket_files(snapshot)
                problems += self._list_file_problems(files)
            rows_compared = 0
            if not problems:
                rows_compared, problem = self._compare_buckets(files)
                if problem:
                    problems.append(problem)
            if "start" not in self.settings.model_fields_set and not snapshot.epoch:
                hint = "" if problems else self._start_hint()
                problems.append(
                    "The offsets of its rows are not known: say where to read on, "
                    f"pipelines.{self.pipeline}.start{hint}."
                )
            if problems:
                raise ConfigError(f"the table at {self.location} cannot be adopted:\n  " + "\n  ".join(problems))
            columns = {column.lower() for column in snapshot.columns().names}
            return AdoptionPlan(
                snapshot,
                rows=sum(rows_of(self._table.store, file) for file in files),
                files=len(files),
                buckets=len({file.bucket for file in files}),
                rows_compared=rows_compared,
                columns_added=[column for column in PROVENANCE.names if column not in columns],
            )

    def carry_out(self, plan: AdoptionPlan, facts: Mapping[str, Any]) -> int:
        """Write the adoption. Returns the version that holds it. Raises CommitFailed if the table changed since."""
        counts = {"rows": plan.rows, "files": plan.files, "buckets": plan.buckets}
        return self._table.take(plan.snapshot, list(PROVENANCE), layout(self.settings.bucket), {**facts, **counts})

    def _list_file_problems(self, files: Sequence[BucketFile]) -> Iterator[str]:
        path = find_outside_path([file.path for file in files])
        if path:
            yield f"Its file {path} lies elsewhere, as those of a shallow clone do. Clone it whole."
        if not bucketers.goes_by_time(self._bucketer):
            return
        strange_buckets = {file.bucket for file in files if bucketers.interval(self._bucketer, file.bucket) is None}
        if strange_buckets:
            names = sorted(bucket_path(self._bucketer.columns, bucket) for bucket in strange_buckets)
            yield (
                f"Its partitions {join_first(names, _BUCKETS_NAMED)} are no buckets as configured. Correct 'bucket'."
            )

    def _compare_buckets(self, files: Sequence[BucketFile]) -> tuple[int, str]:
        """Compute the buckets of some rows anew. Returns how many are right, or what is wrong."""
        newest = {file.bucket: file for file in files}
        candidates = sorted(newest.values(), key=lambda file: tuple(map(str, file.bucket)))
        step = max(1, len(candidates) // _BUCKETS_COMPARED)
        count = 0
        for file in candidates[::step]:
            rows = self._first_rows(file)
            if not rows.num_rows:
                continue
            try:
                rows_with_time, buckets = self._buckets_of(rows)
            except ValueError as error:
                problem = f"{str(error)[:1].upper()}{str(error)[1:]}"
                return 0, f"{problem}. Set event_time and bucket to what the table has."
            other_buckets = buckets - {file.bucket}
            if other_buckets:
                columns = self._bucketer.columns
                configured = bucket_path(columns, min(other_buckets, key=str))
                return 0, (
                    f"Rows of its partition {bucket_path(columns, file.bucket)} belong to {configured} as configured. "
                    "Set 'bucket' to what it is."
                )
            count += rows_with_time
        return count, ""

    def _buckets_of(self, rows: pa.Table) -> tuple[int, set[BucketKey]]:
        """Return how many rows have an event time, and the buckets that these belong to. Raises ValueError."""
        # The rows do not say of which topic they are.
        topics = pa.repeat(next(iter(self.settings.topics.names), ""), rows.num_rows)
        rule = self.settings.event_time.rule(self.settings.event_time.unit)
        times, _ = times_of(rows, rule, topics)
        has_time = pc.is_valid(times)
        assignment = self._bucketer.assign(rows.filter(has_time), times.filter(has_time))
        # cold: the few codes that occur in the rows of one file
        buckets = {assignment.values[code] for code in pc.unique(assignment.codes).to_pylist()}
        return pc.sum(has_time).as_py() or 0, buckets

    def _first_rows(self, file: BucketFile) -> pa.Table:
        path = f"{self._table.store.location}/{file.path}"
        with open_file(self._table.store, file.path) as source, naming_damage(path, "a Parquet file"):
            batches = pq.ParquetFile(source).iter_batches(_ROWS_COMPARED_PER_FILE)
            batch = next(batches, None)
            return pa.table({}) if batch is None else pa.Table.from_batches([batch])

    def _start_hint(self) -> str:
        """Return where the table ends by columns that are named as offsets are, or how a start is written."""
        rows = self._table.rows()
        columns = next((names for names in _OFFSET_COLUMNS if set(names) <= set(rows.schema.names)), None)
        if columns is None:
            return ", such as {timestamp: 2026-11-20T05:00:00Z} or {offsets: {topic: {0: 17}}}"
        topic_column, partition_column, offset_column = columns
        newest = rows.to_table(columns=list(columns)).group_by([topic_column, partition_column])
        offsets: dict[str, dict[int, int]] = {}
        # cold: one row for each partition
        for row in newest.aggregate([(offset_column, "max")]).to_pylist():
            topic = row[topic_column]
            partition = row[partition_column]
            offset = row[f"{offset_column}_max"]
            if None not in (topic, partition, offset):
                offsets.setdefault(str(topic), {})[int(partition)] = int(offset) + 1
        if not offsets:
            return ""
        topics = ", ".join(f"{topic}: {_show_offsets(partitions)}" for topic, partitions in offsets.items())
        return f". By its columns {', '.join(columns)} they end at {{offsets: {{{topics}}}}}"


def _show_offsets(offsets: Mapping[int, int]) -> str:
    """Write the offsets of partitions as YAML does: `{0: 17, 1: 5}`."""
    partitions = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(offsets.items()))
    return f"{{{partitions}}}"
