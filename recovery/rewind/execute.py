"""Executes a rewind: collects facts from table and Kafka, counts rows, writes one fenced entry.

The entry decides. What it lists of dead letters and late rows is taken out by redo right after, or by the next start.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from recovery.rewind.plan import EarlierVersion, LaterEntries, Plan, RewindFacts, plan, since
from recovery.rewind.undo import RevertedChanges, undone
from writer.clients import kafka_sample
from writer.clients.driver_endpoint import check_no_driver
from writer.clients.kafka import Cluster, choose_topics
from writer.config.pipelines import Config
from writer.core import fault_points
from writer.core.errors import ConfigError, HeadraceError
from writer.core.files import BucketKey
from writer.core.offsets import LogMark, OffsetRange, TopicPartition
from writer.core.text import instant
from writer.offsets.log_check import LogCheck, log_check
from writer.offsets.spark_checkpoint import Checkpoints
from writer.offsets.start_decision import LogRange, number as number_of
from writer.sealing.manifest import Manifests
from writer.table.factory import all_tables
from writer.table.gap_records import gap_records
from writer.table.log.appender import LostRace
from writer.table.log.entries import parse_commit_info
from writer.table.log.foreign_writes import CommitFailed
from writer.table.log.log import Action
from writer.table.log.operations import ReopenedBucket, Rewind, TargetRewind
from writer.table.log.snapshot import PipelineSnapshot, TargetRecord, app_id
from writer.table.row_removal import Offsets, count_rows
from writer.table.table import PipelineTable

_REACHES = (64, 1_024, None)  # entries of the log in which a time is looked for


@dataclass(frozen=True)
class Bucket:
    """A bucket that a rewind reopens."""

    key: BucketKey
    taken: int
    left: int
    manifest: int  # version of its newest manifest; 0: it has none


@dataclass(frozen=True)
class TargetPreview:
    """What a rewind would take out of one table of a route."""

    number: int
    record: TargetRecord
    columns: tuple[str, ...]  # of its buckets
    buckets: tuple[Bucket, ...]
    late: int  # rows of its table of late rows
    files: int
    closed_until: datetime | None  # as the earlier version had it

    @property
    def entry(self) -> TargetRewind:
        """Return it as an entry carries it."""
        reopened = [ReopenedBucket(one.key, one.taken, one.left) for one in self.buckets]
        return TargetRewind(self.record.name, self.record.location, self.number, reopened, self.closed_until)

    @property
    def places(self) -> list[tuple[str, int]]:
        """Locations, and how many rows go."""
        return [(self.record.location, self.entry.rows), (self.record.late, self.late)]


@dataclass(frozen=True)
class RewindPreview:
    """A plan, and what it would take."""

    plan: Plan
    then: EarlierVersion
    since: LaterEntries
    snapshot: PipelineSnapshot
    held: Mapping[tuple[str, int], LogRange]
    files: int  # that hold rows which go
    buckets: tuple[Bucket, ...]
    dead_letters: int
    late: int
    pending: int  # commits whose dead letters wait for redo, which comes first
    undo: RevertedChanges | None = None  # what other clients did, and is taken back first
    targets: tuple[TargetPreview, ...] = ()  # tables of a route
    raw: tuple[tuple[str, int], ...] = ()  # locations of raw tables, and how many records of them go

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
        return sum(one.taken for one in (*self.buckets, *(b for target in self.targets for b in target.buckets)))

    @property
    def offsets(self) -> Offsets:
        """The offsets of the rows to remove."""
        return {r.part: [(r.start, r.end)] for r in self.plan.ranges}


class RewindExecution:
    """One pipeline's way back."""

    def __init__(
        self, config: Config, name: str, cluster: Cluster | None = None, check: LogCheck | None = None
    ) -> None:
        """`cluster`, `check`: which Kafka is asked; default: that of the configuration. Raises ConfigError."""
        self._cluster = cluster
        self._config, self.name, self._settings = config, name, config.pipelines[name]
        self._tables = all_tables(name, config)
        self._main = self._tables.main
        self._check = check or log_check(name, config.kafka, partial(self._main.entries, -1))
        if not self._main.exists():
            raise ConfigError(f"pipeline {name!r} has no table at {self._main.location}; there is nothing to rewind.")

    def look(self, to: int | datetime) -> RewindPreview:
        """Find what a rewind would take. Changes nothing.

        Raises ConfigError, CommitFailed, BrokerUnreachable, ReadFailed.
        """
        snapshot = self._main.snapshot()
        version = to if isinstance(to, int) else self._at(to, snapshot.version)
        if not 0 <= version < snapshot.version:
            raise ConfigError(
                f"--to {version}: the table is at version {snapshot.version}; choose an earlier one, from 0"
            )
        entries = self._entries(version, snapshot.version)
        earlier = self._main.snapshot_at(version)
        then = EarlierVersion(version, earlier.epoch, earlier.parts(), self._written(version))
        frontiers = {app_id(self.name, part): part for part in snapshot.parts()}
        after = since(entries, frontiers)
        for record in snapshot.targets().values():
            if not record.id and not self._tables.side(record.location).exists():
                continue
            after = replace(after, taken=Counter(after.taken) + _since(self._tables.side(record.location), version)[1])
        undo = undone(self._main, after.foreign, earlier, snapshot) if after.foreign else None
        numbers, held, cut = self._asked(snapshot)
        found = plan(RewindFacts(
            then, after, (undo.before if undo else snapshot).parts(), numbers, held, gap_records(self._main, self.name),
            undo.missing if undo else (), cut,
        ))  # fmt: skip
        return self._counted(found, then, after, snapshot, held, undo)

    def write(self, look: RewindPreview, now: datetime) -> tuple[RewindPreview, int]:
        """Rewind as shown, unless there was a commit since. Returns what was removed, and the version.

        Raises CommitFailed, HeadraceError when a driver runs.
        """
        check_no_driver(self._config, self.name, "Stop it, then rewind: it would read on where it was.")
        self._tables.apply_side_files(
            [change.version for change in look.since.foreign]
        )  # dead letters that wait are there by then
        if self._tables.behind:
            refused = "; ".join(sorted(self._tables.behind.values()))
            raise HeadraceError(f"tables of the route do not take what is committed; nothing was rewound: {refused}")
        look = self.look(look.plan.to) if look.pending else look
        places = [(self._settings.dead_letters, look.dead_letters), (self._settings.late_place, look.late)]
        places += [place for target in look.targets for place in target.places] + list(look.raw)
        earlier, offsets = self._main.snapshot_at(look.plan.to), look.offsets
        try:
            with self._main.stage_without_offsets(look.base, offsets, prefix="rewind") as left:
                wanted = Rewind(
                    uuid4().hex, look.plan.to, look.plan.ranges, left.removed, left.rewritten,
                    withdrawn={place: offsets for place, rows in places if rows},
                    reopened=[ReopenedBucket(one.key, one.taken, one.left) for one in look.buckets],
                    newest_event_times={r.part: earlier.newest_event_time(r.part) for r in look.plan.ranges},
                    closed_until=earlier.closed_until, gaps=look.plan.gaps,
                    closed=Checkpoints(self._config.checkpoints, self.name, self._config.s3.settings).newest() or 0,
                    facts={"at": now.isoformat()}, targets=[target.entry for target in look.targets],
                    undo=look.undo.entry(self._main.store) if look.undo else None,
                    marks=_marks_of(earlier, look.plan.ranges),
                )  # fmt: skip
                version = self._main.rewind(look.snapshot, wanted)
        except (LostRace, FileNotFoundError) as error:
            raise CommitFailed(f"the table changed meanwhile, nothing was rewound; look again ({error})") from error
        fault_points.point("before_redo")
        self._tables.apply_side_files()
        return look, version

    def _entries(self, version: int, newest: int) -> list[tuple[int, list[Action]]]:
        found = [entry for entry in self._main.entries(version) if entry[0] <= newest]
        if [number for number, _ in found] != list(range(version + 1, newest + 1)):
            raise ConfigError(
                f"--to {version}: the log of {self._main.location} does not hold all entries since any more; the "
                f"oldest version that it can be taken back to is {found[0][0] - 1 if found else newest}"
            )
        return found

    def _at(self, when: datetime, newest: int) -> int:
        """Return the newest version that was written by then. Raises ConfigError."""
        for reach in _REACHES:
            for version, actions in reversed(self._main.entries(-1 if reach is None else newest - reach)):
                at = parse_commit_info(actions)[0].get("timestamp")
                if at is not None and datetime.fromtimestamp(at / 1000, UTC) <= when:
                    return version
        raise ConfigError(f"--to {instant(when)}: the log of {self._main.location} has no version that old")

    def _written(self, version: int) -> datetime | None:
        """Return when a version was written; None where its entry is gone."""
        first = next(iter(self._main.entries(version - 1)), None)
        at = parse_commit_info(first[1])[0].get("timestamp") if first and first[0] == version else None
        return None if at is None else datetime.fromtimestamp(at / 1000, UTC)

    def _asked(
        self, snapshot: PipelineSnapshot
    ) -> tuple[dict[str, int], dict[tuple[str, int], LogRange], Collection[TopicPartition]]:
        """Ask Kafka which incarnation each topic lives, and what its logs hold of the parts that the table knows.

        Last come the parts whose log is not the one that the table was filled from.
        """
        cluster = self._cluster or kafka_sample.open_cluster(self._config.kafka)
        known = snapshot.incarnations()
        topics = cluster.topics(choose_topics(cluster, self._settings.topics, known).names)
        numbers = {t.name: number_of(known[t.name], t.id) for t in topics.values() if t.id in known.get(t.name, ())}
        sources = [
            (part.topic, part.partition)
            for part in snapshot.parts()
            if numbers.get(part.topic) == part.incarnation and part.partition < topics[part.topic].partitions
        ]
        earliest, ends = cluster.earliest(sources), cluster.latest(sources)
        held = {source: LogRange(earliest[source], ends[source]) for source in sources}
        parts = {
            TopicPartition(topic, numbers[topic], partition): log_range
            for (topic, partition), log_range in held.items()
        }
        topic_ids = {topic.name: topic.id for topic in topics.values()}
        return numbers, held, self._check.diverging(snapshot, parts, topic_ids)

    def _counted(
        self, found: Plan, then: EarlierVersion, after: LaterEntries, snapshot: PipelineSnapshot,
        held: Mapping[tuple[str, int], LogRange], undo: RevertedChanges | None,
    ) -> RewindPreview:  # fmt: skip
        """Count the rows that would go, bucket by bucket, and the dead letters."""
        offsets = {r.part: [(r.start, r.end)] for r in found.ranges}
        taken, rows, files = self._rows(
            self._main, undo.base if undo else snapshot, {} if undo and undo.missing else offsets
        )
        if undo:  # of the rows that were there before
            taken, rows = undo.taken(taken), dict(undo.rows_before)
        manifests = Manifests(self._main.store, snapshot.state.metadata["partitionColumns"])
        buckets = []
        for key in sorted({*taken, *(after.sealed if found.ranges or undo else ())}, key=str):
            newest = manifests.newest(key)
            left = rows.get(key, 0) - taken.get(key, 0)
            buckets.append(Bucket(key, taken.get(key, 0), left, newest.version if newest else 0))
        pending = sum(
            bool(one.side_files or one.withdrawn)
            and not self._applied(one.version, {**one.side_files, **one.withdrawn})
            for one in self._main.commits_since(snapshot.settled, [change.version for change in after.foreign])
        )
        dead_letters = self._aside(self._settings.dead_letters, offsets)
        # A table of a route may lie where late rows would, of which its log has none: it is counted as that table.
        late_is_target = self._settings.late_place in snapshot.targets_by_location
        late = 0 if late_is_target else self._aside(self._settings.late_place, offsets)
        targets = self._targets(snapshot, found.to, offsets) if offsets else ()
        files += sum(target.files for target in targets)
        late += sum(target.late for target in targets)
        raw = tuple((place, self._aside(place, offsets)) for place in snapshot.raw_locations)
        return RewindPreview(
            found, then, after, snapshot, held, files, tuple(buckets), dead_letters, late, pending, undo, targets, raw
        )

    def _targets(self, snapshot: PipelineSnapshot, to: int, offsets: Offsets) -> tuple[TargetPreview, ...]:
        """Count what would go out of the tables of a route."""
        closed, found = self._main.snapshot_at(to).closed_targets, []
        for number, record in snapshot.targets().items():
            table = self._tables.side(record.location)
            if not record.id and not table.exists():
                continue  # it was never made
            now = table.snapshot()
            taken, rows, files = self._rows(table, now, offsets)
            columns = tuple(now.state.metadata["partitionColumns"])
            manifests, buckets = Manifests(table.store, columns), []
            for key in sorted({*taken, *_since(table, to)[0]}, key=str):
                newest = manifests.newest(key)
                left = rows.get(key, 0) - taken.get(key, 0)
                buckets.append(Bucket(key, taken.get(key, 0), left, newest.version if newest else 0))
            late = self._aside(record.late, offsets) if record.late else 0
            found.append(TargetPreview(number, record, columns, tuple(buckets), late, files, closed.get(number)))
        return tuple(found)

    def _applied(self, version: int, places: Mapping[str, object]) -> bool:
        return all(
            self._tables.side(place).snapshot().applied >= version
            for place in places
            if self._tables.side(place).exists()
        )

    def _rows(
        self, table: PipelineTable, snapshot: PipelineSnapshot, offsets: Offsets
    ) -> tuple[dict[BucketKey, int], dict[BucketKey, int], int]:
        """Return the rows that go and the rows that there are, by bucket, and how many files hold some that go."""
        taken: dict[BucketKey, int] = {}
        rows: dict[BucketKey, int] = {}
        files = 0
        for file in table.bucket_files(snapshot) if offsets else ():
            if file.rows is None:
                raise HeadraceError(
                    f"another client wrote {table.location}/{file.path} and does not say how many rows it holds; "
                    "`headrace compact` writes it anew"
                )
            rows[file.bucket] = rows.get(file.bucket, 0) + file.rows
            if going := count_rows(table.store, file, offsets):
                taken[file.bucket] = taken.get(file.bucket, 0) + going
                files += 1
        return taken, rows, files

    def _aside(self, place: str, offsets: Offsets) -> int:
        """Count the rows of a side table at these offsets."""
        table = self._tables.side(place)
        if not offsets or not table.exists():
            return 0
        return sum(count_rows(table.store, file, offsets) for file in table.bucket_files(table.snapshot()))


def _marks_of(earlier: PipelineSnapshot, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, LogMark]:
    """Return what the logs were known by where the frontier returns to, of the parts that had one there."""
    there = (r.part for r in ranges if earlier.frontier(r.part) == r.start)
    return {part: mark for part in there if (mark := earlier.mark(part)) is not None}


def _since(table: PipelineTable, to: int) -> tuple[set[BucketKey], Counter[str]]:
    """Return what became of a route's table after it had what version `to` of the pipeline's log lists.

    That is the buckets that were sealed, and the rows that left it on purpose, by why.
    """
    sealed, taken = set[BucketKey](), Counter[str]()
    for entry in table.history():  # newest first
        if entry.kind == "seal":
            sealed |= {tuple(manifest["bucket"]) for manifest in entry.facts["manifests"]}
        elif entry.kind == "rewrite" and entry.facts.get("taken"):
            taken[entry.facts["taken"]["why"]] += entry.facts["taken"]["rows"]
        elif entry.kind == "side" and entry.facts["main_version"] <= to:
            break
    return sealed, taken
