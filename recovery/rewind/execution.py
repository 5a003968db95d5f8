"""Executes a rewind: collects facts from table and Kafka, counts rows, writes one fenced entry.

The entry decides. What it lists of dead letters and late rows is taken out by redo right after, or by the next start.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from headrace.recovery.rewind.plan import (
    EarlierVersion,
    LaterEntries,
    RewindFacts,
    RewindPlan,
    plan_rewind,
    read_later_entries,
)
from headrace.recovery.rewind.undo import RevertedChanges, find_reverted_changes
from headrace.writer.clients import kafka_sample
from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.clients.kafka import Cluster, choose_topics
from headrace.writer.config.pipelines import Config
from headrace.writer.core import fault_points
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.files import BucketKey
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, OffsetSet, Source, TopicPartition
from headrace.writer.core.text import instant
from headrace.writer.offsets.log_check import LogCheck, fetch_log_ranges, log_check
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.offsets.start_decision import LogRange, incarnation_number
from headrace.writer.sealing.manifest import Manifests
from headrace.writer.table.factory import all_tables
from headrace.writer.table.gap_records import gap_records
from headrace.writer.table.log.appender import LostRace
from headrace.writer.table.log.entries import parse_commit_info
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.log import Action
from headrace.writer.table.log.operations.rewinds import ReopenedBucket, Rewind, TargetRewind
from headrace.writer.table.log.snapshot import PipelineSnapshot, TargetRecord, app_id
from headrace.writer.table.lost_tables import refuse_lost_tables
from headrace.writer.table.row_removal import RemovalResult, count_rows, discard_on_failure
from headrace.writer.table.table import PipelineTable

# Entries of the log in which a time is looked for, until it is found; None: all.
_SEARCH_DEPTHS = (64, 1_024, None)


@dataclass(frozen=True)
class BucketPreview:
    """A bucket that a rewind reopens: rows that are taken out, and left. `manifest`: its newest version; 0: none."""

    key: BucketKey
    taken: int
    left: int
    manifest: int

    @property
    def entry(self) -> ReopenedBucket:
        """Return it as an entry carries it."""
        return ReopenedBucket(self.key, self.taken, self.left)


@dataclass(frozen=True)
class TargetPreview:
    """What a rewind would take out of one table of a route."""

    number: int
    record: TargetRecord
    # Of its buckets.
    columns: tuple[str, ...]
    buckets: tuple[BucketPreview, ...]
    # Rows of its table of late rows.
    late: int
    files: int
    # As the earlier version had it.
    closed_until: datetime | None

    @property
    def entry(self) -> TargetRewind:
        """Return it as an entry carries it."""
        reopened = [bucket.entry for bucket in self.buckets]
        return TargetRewind(self.record.name, self.record.location, self.number, reopened, self.closed_until)

    @property
    def rows_by_location(self) -> list[tuple[str, int]]:
        """Locations, and how many rows go."""
        return [(self.record.location, self.entry.rows), (self.record.late, self.late)]


@dataclass(frozen=True)
class RewindPreview:
    """A plan, and what it would take."""

    plan: RewindPlan
    earlier: EarlierVersion
    later: LaterEntries
    snapshot: PipelineSnapshot
    log_ranges: Mapping[Source, LogRange]
    # Files with rows that go.
    files: int
    buckets: tuple[BucketPreview, ...]
    dead_letters: int
    late: int
    # Commits whose dead letters wait for redo, which comes first.
    pending: int
    # Changes of other clients, which are taken back first.
    undo: RevertedChanges | None = None
    # Tables of a route.
    targets: tuple[TargetPreview, ...] = ()
    # Locations of raw tables, and how many records of them go.
    raw: tuple[tuple[str, int], ...] = ()

    @property
    def raw_records(self) -> int:
        """Raw records that go."""
        return sum(records for _, records in self.raw)

    @property
    def base(self) -> PipelineSnapshot:
        """The version whose files hold the rows to remove."""
        return self.undo.base if self.undo else self.snapshot

    @property
    def moves(self) -> bool:
        """There is something to take back."""
        return bool(self.plan.ranges or self.undo)

    @property
    def rows(self) -> int:
        """Rows of the table that go, or of those of the route."""
        own_rows = sum(bucket.taken for bucket in self.buckets)
        return own_rows + sum(target.entry.rows for target in self.targets)

    @property
    def offsets(self) -> OffsetSet:
        """The offsets of the rows to remove."""
        return OffsetSet.of(self.plan.ranges)


@dataclass(frozen=True)
class _KafkaFacts:
    """What Kafka says of the parts that the table has.

    `incarnations`: topic → the number of its incarnation. `cut_parts`: parts whose log is not the one that the table
    was filled from.
    """

    incarnations: dict[str, int]
    log_ranges: dict[Source, LogRange]
    cut_parts: Collection[TopicPartition]


@dataclass
class _BucketCounts:
    """Rows that go and rows that there are, by bucket, and how many files have rows that go."""

    taken: dict[BucketKey, int] = field(default_factory=dict)
    rows: dict[BucketKey, int] = field(default_factory=dict)
    files: int = 0


class RewindExecution:
    """A rewind of one pipeline's tables."""

    def __init__(
        self, config: Config, name: str, cluster: Cluster | None = None, check: LogCheck | None = None
    ) -> None:
        """`cluster`, `check`: which Kafka is asked; default: that of the configuration. Raises ConfigError."""
        self.name = name
        self._config = config
        self._settings = config.pipelines[name]
        self._cluster = cluster
        self._tables = all_tables(name, config)
        self._main = self._tables.main
        self._check = check or log_check(name, config.kafka, partial(self._main.entries, -1))
        if not self._main.exists():
            raise ConfigError(f"pipeline {name!r} has no table at {self._main.location}; there is nothing to rewind.")

    def preview(self, to: int | datetime) -> RewindPreview:
        """Find what a rewind would take. Changes nothing.

        Raises ConfigError, SideTableLost, CommitFailed, BrokerUnreachable, ReadFailed.
        """
        refuse_lost_tables(self._settings, self._main, self._tables.side)
        snapshot = self._main.snapshot()
        version = to if isinstance(to, int) else self._find_version(to, snapshot.version)
        if not 0 <= version < snapshot.version:
            raise ConfigError(
                f"--to {version}: the table is at version {snapshot.version}; choose an earlier one, from 0"
            )
        later = self._later_entries(version, snapshot)
        earlier_snapshot = self._main.snapshot_at(version)
        earlier = EarlierVersion(
            version, earlier_snapshot.epoch, earlier_snapshot.parts(), self._find_write_time(version)
        )
        undo = None
        if later.foreign_changes:
            undo = find_reverted_changes(self._main, later.foreign_changes, earlier_snapshot, snapshot)
        kafka = self._read_kafka_facts(snapshot)
        facts = RewindFacts(
            earlier,
            later,
            (undo.before if undo else snapshot).parts(),
            kafka.incarnations,
            kafka.log_ranges,
            gap_records(self._main, self.name),
            undo.missing_files if undo else (),
            kafka.cut_parts,
        )
        return self._count(plan_rewind(facts), facts, snapshot, undo)

    def write(self, preview: RewindPreview, now: datetime) -> tuple[RewindPreview, int]:
        """Rewind as shown, unless there was a commit since. Returns what was removed, and the version.

        Raises CommitFailed, HeadraceError when a driver runs.
        """
        check_no_driver(self._config, self.name, "Stop it, then rewind: it would read on where it was.")
        # Dead letters that wait are in their table after it.
        self._tables.apply_side_files([change.version for change in preview.later.foreign_changes])
        if self._tables.behind:
            reasons = "; ".join(sorted(self._tables.behind.values()))
            raise HeadraceError(f"tables of the route do not take what is committed; nothing was rewound: {reasons}")
        if preview.pending:
            preview = self.preview(preview.plan.to)
        try:
            with self._main.stage_without_offsets(preview.base, preview.offsets, prefix="rewind") as removal:
                # It reads the log and the checkpoints.
                with discard_on_failure(removal.discard):
                    operation = self._operation(preview, removal, now)
                version = self._main.append(operation, preview.snapshot)
        except (LostRace, FileNotFoundError) as error:
            raise CommitFailed(f"the table changed meanwhile, nothing was rewound; look again ({error})") from error
        fault_points.point("before_redo")
        self._tables.apply_side_files()
        return preview, version

    def _operation(self, preview: RewindPreview, removal: RemovalResult, now: datetime) -> Rewind:
        """Return the rewind as an entry carries it."""
        plan = preview.plan
        earlier = self._main.snapshot_at(plan.to)
        rows_by_location = [
            (self._settings.dead_letters, preview.dead_letters),
            (self._settings.late_place, preview.late),
        ]
        for target in preview.targets:
            rows_by_location += target.rows_by_location
        rows_by_location += preview.raw
        checkpoints = Checkpoints(self._config.checkpoints, self.name, self._config.stores)
        return Rewind(
            uuid4().hex,
            plan.to,
            plan.ranges,
            removal.removed,
            removal.rewritten,
            withdrawn={location: preview.offsets for location, rows in rows_by_location if rows},
            reopened=[bucket.entry for bucket in preview.buckets],
            newest_event_times={r.part: earlier.newest_event_time(r.part) for r in plan.ranges},
            closed_until=earlier.closed_until,
            gaps=plan.gaps,
            closed=checkpoints.newest() or 0,
            facts={"at": now.isoformat()},
            undo=preview.undo.entry(self._main.store) if preview.undo else None,
            targets=[target.entry for target in preview.targets],
            marks=_earlier_marks(earlier, plan.ranges),
        )

    def _later_entries(self, version: int, snapshot: PipelineSnapshot) -> LaterEntries:
        """Read the entries after a version, and those of the route's tables. Raises ConfigError where one is gone."""
        entries = [entry for entry in self._main.entries(version) if entry[0] <= snapshot.version]
        if [number for number, _ in entries] != list(range(version + 1, snapshot.version + 1)):
            oldest = snapshot.version
            if entries:
                oldest = entries[0][0] - 1
            raise ConfigError(
                f"--to {version}: the log of {self._main.location} does not hold all entries since any more; the "
                f"oldest version that it can be taken back to is {oldest}"
            )
        later = read_later_entries(entries, {app_id(self.name, part): part for part in snapshot.parts()})
        removed_rows = Counter(later.removed_rows)
        for record in snapshot.targets().values():
            table = self._tables.side(record.location)
            if record.id or table.exists():
                removed_rows += _read_target_history(table, version).removed_rows
        return replace(later, removed_rows=removed_rows)

    def _find_version(self, time: datetime, newest: int) -> int:
        """Return the newest version that was written by then. Raises ConfigError."""
        for depth in _SEARCH_DEPTHS:
            entries = self._main.entries(-1 if depth is None else newest - depth)
            for version, actions in reversed(entries):
                write_time = _write_time(actions)
                if write_time is not None and write_time <= time:
                    return version
        raise ConfigError(f"--to {instant(time)}: the log of {self._main.location} has no version that old")

    def _find_write_time(self, version: int) -> datetime | None:
        """Return when a version was written; None where its entry is gone."""
        first = next(iter(self._main.entries(version - 1)), None)
        if first is None or first[0] != version:
            return None
        return _write_time(first[1])

    def _read_kafka_facts(self, snapshot: PipelineSnapshot) -> _KafkaFacts:
        """Ask Kafka which incarnation each topic lives, and what its logs hold of the parts that the table has."""
        cluster = self._cluster or kafka_sample.open_cluster(self._config.kafka)
        table_ids = snapshot.incarnations()
        topics = cluster.topics(choose_topics(cluster, self._settings.topics, table_ids).names)
        incarnations = {
            topic.name: incarnation_number(table_ids[topic.name], topic.id)
            for topic in topics.values()
            if topic.id in table_ids.get(topic.name, ())
        }
        parts = {
            part.source: part
            for part in snapshot.parts()
            if incarnations.get(part.topic) == part.incarnation and part.partition < topics[part.topic].partitions
        }
        log_ranges = fetch_log_ranges(cluster, parts)
        ranges_by_part = {parts[source]: log_range for source, log_range in log_ranges.items()}
        topic_ids = {topic.name: topic.id for topic in topics.values()}
        return _KafkaFacts(incarnations, log_ranges, self._check.diverging_parts(snapshot, ranges_by_part, topic_ids))

    def _count(
        self, plan: RewindPlan, facts: RewindFacts, snapshot: PipelineSnapshot, undo: RevertedChanges | None
    ) -> RewindPreview:
        """Count the rows that would go, bucket by bucket, and the dead letters."""
        offsets = OffsetSet.of(plan.ranges)
        late = 0
        # A table of a route may lie where late rows would, of which its log has none: it is counted as that table.
        if self._settings.late_place not in snapshot.targets_by_location:
            late = self._count_side_rows(self._settings.late_place, offsets)
        targets = self._target_previews(snapshot, plan.to, offsets)
        counts = self._count_main_rows(offsets, snapshot, undo)
        sealed: Collection[BucketKey] = ()
        if plan.ranges or undo:
            sealed = facts.later.sealed
        return RewindPreview(
            plan,
            facts.earlier,
            facts.later,
            snapshot,
            facts.log_ranges,
            files=counts.files + sum(target.files for target in targets),
            buckets=_bucket_previews(self._main, snapshot, counts, sealed),
            dead_letters=self._count_side_rows(self._settings.dead_letters, offsets),
            late=late + sum(target.late for target in targets),
            pending=self._count_pending(snapshot, facts.later),
            undo=undo,
            targets=targets,
            raw=tuple((location, self._count_side_rows(location, offsets)) for location in snapshot.raw_locations),
        )

    def _count_main_rows(
        self, offsets: OffsetSet, snapshot: PipelineSnapshot, undo: RevertedChanges | None
    ) -> _BucketCounts:
        """Count the rows of the pipeline's own table. With `undo`, of those that were there before the changes."""
        if undo is None:
            return _count_bucket_rows(self._main, snapshot, offsets)
        counts = _count_bucket_rows(self._main, undo.base, OffsetSet() if undo.missing_files else offsets)
        return _BucketCounts(undo.removed_rows(counts.taken), dict(undo.rows_before), counts.files)

    def _count_pending(self, snapshot: PipelineSnapshot, later: LaterEntries) -> int:
        """Count the commits whose rows of side tables are not there yet."""
        foreign_versions = [change.version for change in later.foreign_changes]
        pending = 0
        for commit in self._main.commits_since(snapshot.settled, foreign_versions):
            locations = [*commit.side_files, *commit.withdrawn]
            if not all(self._is_applied(commit.version, location) for location in locations):
                pending += 1
        return pending

    def _is_applied(self, version: int, location: str) -> bool:
        """Return whether a side table has what a version of the pipeline's table commits to it, or does not exist."""
        table = self._tables.side(location)
        return not table.exists() or table.snapshot().applied >= version

    def _target_previews(self, snapshot: PipelineSnapshot, to: int, offsets: OffsetSet) -> tuple[TargetPreview, ...]:
        """Count what would go out of the tables of a route."""
        if not offsets:
            return ()
        closed_targets = self._main.snapshot_at(to).closed_targets
        previews = []
        for target_number, record in snapshot.targets().items():
            table = self._tables.side(record.location)
            if not record.id and not table.exists():
                # The table was never made.
                continue
            target_snapshot = table.snapshot()
            counts = _count_bucket_rows(table, target_snapshot, offsets)
            sealed = _read_target_history(table, to).sealed
            previews.append(
                TargetPreview(
                    target_number,
                    record,
                    tuple(target_snapshot.state.metadata["partitionColumns"]),
                    _bucket_previews(table, target_snapshot, counts, sealed),
                    late=self._count_side_rows(record.late, offsets),
                    files=counts.files,
                    closed_until=closed_targets.get(target_number),
                )
            )
        return tuple(previews)

    def _count_side_rows(self, location: str, offsets: OffsetSet) -> int:
        """Count the rows of a side table at these offsets. No location: 0."""
        if not offsets or not location:
            return 0
        table = self._tables.side(location)
        if not table.exists():
            return 0
        return sum(count_rows(table.store, file, offsets) for file in table.bucket_files(table.snapshot()))


def _write_time(actions: Sequence[Action]) -> datetime | None:
    """Return when an entry was written; None where it does not say."""
    timestamp_ms = parse_commit_info(actions)[0].get("timestamp")
    if timestamp_ms is None:
        return None
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def _count_bucket_rows(table: PipelineTable, snapshot: PipelineSnapshot, offsets: OffsetSet) -> _BucketCounts:
    """Count the rows of a table, and those at these offsets, by bucket. Without offsets, nothing is counted."""
    counts = _BucketCounts()
    if not offsets:
        return counts
    for file in table.bucket_files(snapshot):
        if file.rows is None:
            raise HeadraceError(
                f"another client wrote {table.location}/{file.path} and does not say how many rows it holds; "
                "`headrace compact` writes it anew"
            )
        counts.rows[file.bucket] = counts.rows.get(file.bucket, 0) + file.rows
        taken = count_rows(table.store, file, offsets)
        if taken:
            counts.taken[file.bucket] = counts.taken.get(file.bucket, 0) + taken
            counts.files += 1
    return counts


def _bucket_previews(
    table: PipelineTable, snapshot: PipelineSnapshot, counts: _BucketCounts, sealed: Collection[BucketKey]
) -> tuple[BucketPreview, ...]:
    """Describe the buckets that lose rows, and those that were sealed since."""
    manifests = Manifests(table.store, snapshot.state.metadata["partitionColumns"])
    previews = []
    for key in sorted({*counts.taken, *sealed}, key=str):
        newest = manifests.newest(key)
        taken = counts.taken.get(key, 0)
        left = counts.rows.get(key, 0) - taken
        previews.append(BucketPreview(key, taken, left, newest.version if newest else 0))
    return tuple(previews)


def _earlier_marks(earlier: PipelineSnapshot, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, LogMark]:
    """Return the marks of the logs where the frontier returns to, of the parts that had one there."""
    marks = {r.part: earlier.mark(r.part) for r in ranges if earlier.frontier(r.part) == r.start}
    return {part: mark for part, mark in marks.items() if mark is not None}


@dataclass
class _TargetHistory:
    """Buckets of a route's table that were sealed, and rows that left it on purpose, by why."""

    sealed: set[BucketKey] = field(default_factory=set)
    removed_rows: Counter[str] = field(default_factory=Counter)


def _read_target_history(table: PipelineTable, to: int) -> _TargetHistory:
    """Read the history of a route's table after it had what version `to` of the pipeline's log lists."""
    history = _TargetHistory()
    # The newest entry comes first.
    for entry in table.history():
        if entry.kind == "seal":
            history.sealed.update(tuple(manifest["bucket"]) for manifest in entry.facts["manifests"])
        elif entry.kind == "rewrite" and entry.facts.get("taken"):
            removal = entry.facts["taken"]
            history.removed_rows[removal["why"]] += removal["rows"]
        elif entry.kind == "side" and entry.facts["main_version"] <= to:
            break
    return history
