"""Values of a pipeline's progress at one moment."""

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, Literal

from headrace.writer.batch.lateness import Lateness
from headrace.writer.batch.task_report import RAW
from headrace.writer.clients.supervisor_record import HaltRecord, LeaseWait
from headrace.writer.config.sections.resource_limits import Scheduling
from headrace.writer.core.offsets import OffsetRange, Source
from headrace.writer.hooks.outbox import Health
from headrace.writer.schemas.registry_hold import RegistryWait
from headrace.writer.sealing.bucket_states import BucketCounts, ListedBucket
from headrace.writer.sealing.retention_wait import RetentionWait
from headrace.writer.status.lag_sample import AppendedOffsets
from headrace.writer.status.pause import Pause
from headrace.writer.status.rate_limit import LimitState
from headrace.writer.status.table_facts import GapFacts, TableContents
from headrace.writer.table.pipeline_tables import TargetState

OUTCOMES = ("read", "rows", "late_table", "dead_letters", "quarantined", "tombstones", "filtered")
# What the log calls an outcome, where it is not the same.
_STORED = {"late_table": "late"}
GAP_CAUSES = ("retention", "latest")
# What waits longer is dated by asking Kafka.
SAMPLES_KEPT_FOR = timedelta(hours=1)
# What a reader is given of samples that are taken more often.
_APPENDED_EVERY = timedelta(seconds=10)
# Why a name that goes by a rule has no table.
WITHOUT_TABLE = ("refused", "beyond_max")
DECODERS = ("native", "single", "rejected")
State = Literal["starting", "running", "paused", "waiting", "draining", "failed", "stopped"]
# Without a driver that tells.
ShownState = State | Literal["not started", "unknown", "unreadable"]
# An offset, and the newest timestamp of the records up to it.
Dates = Mapping[Source, tuple[int, datetime]]
# Upper bounds in seconds of the histogram of batch durations: from a quiet topic to a batch that fills its delay.
DURATION_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


@dataclass(frozen=True)
class Batch:
    """The batch that is being carried now."""

    number: int
    began: datetime
    phase: str
    phase_began: datetime
    # That it will commit; None until its range is known.
    offsets: int | None


@dataclass(frozen=True)
class Commit:
    """One commit: its table version, when the driver saw it in the log, and its facts."""

    version: int
    at: datetime
    facts: Mapping[str, Any]
    # Wall seconds of the driver, commit and redo included.
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """How many offsets it committed, those without a record among them."""
        return sum(account["end"] - account["start"] for account in self.facts["ranges"])


@dataclass
class Totals:
    """Sums over commits."""

    # By reason.
    commits: Counter[str] = field(default_factory=Counter)
    # Read, and by outcome.
    records: Counter[str] = field(default_factory=Counter)
    # Processor seconds.
    steps: dict[str, float] = field(default_factory=dict)
    # Of the records that were read.
    value_bytes: int = 0
    files: int = 0
    bytes: int = 0
    dead_letter_bytes: int = 0
    spilled_bytes: int = 0
    offsets_without_records: int = 0
    late: Lateness = field(default_factory=Lateness)
    # Dead letters for which the route has no rule, or whose table took none.
    unrouted: int = 0
    # By cause.
    gaps: Counter[str] = field(default_factory=Counter)
    gap_offsets: Counter[str] = field(default_factory=Counter)
    # Records that specs left out: by spec, by rule.
    filtered: dict[str, Counter[str]] = field(default_factory=dict)
    # Members of JSON values that fit no column, by what became of them.
    unfit_members: Counter[str] = field(default_factory=Counter)
    # That are in the raw table beside.
    raw_records: int = 0
    # Of files that came to it.
    raw_bytes: int = 0
    raw_files: int = 0
    # Rows, bytes and files of a route's tables, by name.
    targets: dict[str, Counter[str]] = field(default_factory=dict)

    def add_gap(self, facts: Mapping[str, Any]) -> None:
        """Add the facts of a gap's entry."""
        self.gaps[facts["cause"]] += 1
        self.gap_offsets[facts["cause"]] += sum(OffsetRange.from_json(account).count for account in facts["ranges"])

    def add(self, facts: Mapping[str, Any]) -> None:
        """Add the facts of a commit."""
        self.commits[facts["reason"]] += 1
        for account in facts["ranges"]:
            self.records.update({name: account.get(_STORED.get(name, name), 0) for name in OUTCOMES})
            self.raw_records += account.get(RAW, 0)
        for step, seconds in facts["seconds"].items():
            self.steps[step] = self.steps.get(step, 0.0) + seconds
        self.value_bytes += facts["value_bytes"]
        self.files += facts["files"]
        self.bytes += facts["bytes"]
        self.dead_letter_bytes += facts["dead_letter_bytes"]
        raw = facts.get("raw", {})
        self.raw_bytes += raw.get("bytes", 0)
        self.raw_files += raw.get("files", 0)
        self.spilled_bytes += facts["spilled_bytes"]
        self.offsets_without_records += without_records(facts)
        for spec, rules in facts.get("specs", {}).get("filtered", {}).items():
            self.filtered.setdefault(spec, Counter()).update(rules)
        for name, target_facts in facts.get("targets", {}).items():
            sums = self.targets.setdefault(name, Counter())
            sums.update({key: target_facts[key] for key in ("rows", "bytes", "files")})
        self.unrouted += facts.get("unrouted", 0)
        self.unfit_members.update(facts.get("unfit_members", {}))
        if "late" in facts:
            self.late = self.late.plus(Lateness.from_json(facts["late"]))

    @property
    def late_rows(self) -> int:
        """Rows whose bucket was closed before their batch, whatever became of them."""
        return sum(self.late.beyond)

    @property
    def dead_letters_by_rule(self) -> int:
        """Dead letters that are none by a fault of theirs: late by the policy dead_letter, or unrouted."""
        return self.late.by_policy.get("dead_letter", 0) + self.unrouted

    def copy(self) -> "Totals":
        """Return the sums as they are now."""
        return deepcopy(self)


@dataclass(frozen=True)
class Sample:
    """Ends of the logs at one moment."""

    at: datetime
    ends: Mapping[Source, int]


@dataclass(frozen=True)
class Logs:
    """Kafka's answer about the logs of a pipeline's topics."""

    # Oldest first.
    samples: tuple[Sample, ...] = ()
    # First offsets still held.
    starts: Mapping[Source, int] = field(default_factory=dict)
    retention: Mapping[str, timedelta | None] = field(
        default_factory=dict
        # By topic; None: no limit; missing: unknown.
    )
    dated: Dates = field(default_factory=dict)
    appended: tuple[
        AppendedOffsets, ...
        # How the logs grew, oldest first; some of the samples, and what was before.
    ] = ()
    # Between samples: kafka.lag_interval.
    interval: timedelta = timedelta(seconds=15)

    def with_sample(self, sample: Sample) -> "Logs":
        """Add a sample. Those that are older than SAMPLES_KEPT_FOR go."""
        since = sample.at - SAMPLES_KEPT_FOR
        last_ends = self.samples[-1].ends if self.samples else sample.ends
        offsets = self.appended[-1].offsets if self.appended else 0
        for source, end in sample.ends.items():
            offsets += max(0, end - last_ends.get(source, end))
        appended = [moment for moment in self.appended if moment.at >= since]
        if len(appended) > 1 and appended[-1].at - appended[-2].at < _APPENDED_EVERY:
            appended.pop()
        appended.append(AppendedOffsets(sample.at, offsets))
        samples = [earlier for earlier in self.samples if earlier.at >= since]
        return replace(self, samples=(*samples, sample), appended=tuple(appended))

    def with_history(self, earlier: Iterable[Sample]) -> "Logs":
        """Add how the logs grew before the first sample."""
        return replace(self, appended=reduce(Logs.with_sample, (*earlier, *self.samples), Logs()).appended)

    def shift_times(self, step: timedelta) -> "Logs":
        """Move the times of the wall clock along with its step, so that ages stay what they are."""
        return replace(
            self,
            samples=tuple(replace(sample, at=sample.at + step) for sample in self.samples),
            dated={source: (offset, time + step) for source, (offset, time) in self.dated.items()},
            appended=tuple(replace(moment, at=moment.at + step) for moment in self.appended),
        )


@dataclass(frozen=True)
class View:
    """A pipeline at one moment."""

    pipeline: str
    # When the driver began with it.
    since: datetime
    state: ShownState = "starting"
    error: str = ""
    # None before the start commit.
    epoch: int | None = None
    # When the start commit was made; None: it is not known.
    epoch_began: datetime | None = None
    run: int | None = None
    batch: Batch | None = None
    # What the batch waits for, of a registry; None: it does not wait.
    registry_wait: RegistryWait | None = None
    # Why Kafka gave no answer when it was last asked where its logs end; empty: it answered.
    kafka_error: str = ""
    frontier: Mapping[Source, int] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    # Newest first, also of earlier starts.
    commits: tuple[Commit, ...] = ()
    # The newest commit, also of an earlier start.
    committed_at: datetime | None = None
    event_time_newest: datetime | None = None
    totals: Totals = field(default_factory=Totals)
    # Wall seconds of the driver since the start.
    phases: Mapping[str, float] = field(default_factory=dict)
    # Batches by DURATION_BOUNDS, each counted once; the last is beyond all bounds.
    durations: tuple[int, ...] = (0,) * (len(DURATION_BOUNDS) + 1)
    duration_sum_seconds: float = 0.0
    duration_last_seconds: float | None = None
    # By DECODERS.
    schemas: Mapping[str, int] = field(default_factory=dict)
    buckets: int = 0
    offset_commit_failures: int = 0
    # Of the wall clock, since the driver began.
    clock_steps: int = 0
    logs: Logs = field(default_factory=Logs)
    # None: not read.
    gaps: GapFacts | None = None
    # None: not read.
    contents: TableContents | None = None
    # Inside this process.
    restarts: int = 0
    # Likewise, because topics appeared that match the pattern.
    topic_restarts: int = 0
    # Topic → number of the one that is read.
    incarnations: Mapping[str, int] = field(default_factory=dict)
    # Why the logs are not those that this start began with.
    log_moved: str = ""
    # Rows of records that Kafka lost when it cut a log.
    log_cuts: tuple[OffsetRange, ...] = ()
    # Which topics another start would read, too.
    topics_appeared: str = ""
    # That match the pattern, beyond `topics.max`: they are not read.
    topics_beyond: tuple[str, ...] = ()
    # Tables of a route, by name.
    targets: Mapping[str, TargetState] = field(default_factory=dict)
    # Of files that may wait for one of them; None: without a route.
    max_held_bytes: int | None = None
    # Names of a route, by WITHOUT_TABLE.
    without_table: Mapping[str, int] = field(default_factory=dict)
    pause: Pause | None = None
    rate_limit: LimitState = field(default_factory=LimitState)
    # By the location of the table: a shorter retention that waits to be accepted.
    retention_waits: Mapping[str, RetentionWait] = field(default_factory=dict)
    scheduling: Scheduling = field(default_factory=lambda: Scheduling.model_validate({}))
    # Of the buckets; None: not read.
    bucket_counts: BucketCounts | None = None
    # By name.
    hooks: Mapping[str, Health] = field(default_factory=dict)
    # By receiver: commits sent, and dropped.
    telemetry: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # Since the driver began, it committed or nothing waited.
    committed_since_start: bool = False
    # Buckets one by one, the earliest first; empty: not read.
    listed_buckets: tuple[ListedBucket, ...] = ()
    # What a supervisor decided, newest first.
    recovery: tuple[Mapping[str, Any], ...] = ()
    # The supervisor gave the pipeline up; None: it did not, or there is none.
    halt: HaltRecord | None = None
    # Another process has its lease; None: it waits for none.
    lease_wait: LeaseWait | None = None

    def shift_times(self, step: timedelta) -> "View":
        """Move the times that the driver took of the wall clock along with its step, so that ages and waits stay.

        Times of events and of what stands on storage stay as they are.
        """
        batch = self.batch
        if batch is not None:
            batch = replace(batch, began=batch.began + step, phase_began=batch.phase_began + step)
        registry_wait = self.registry_wait
        if registry_wait is not None:
            registry_wait = replace(registry_wait, until=_shift(registry_wait.until, step))
        lease_wait = self.lease_wait
        if lease_wait is not None:
            lease_wait = replace(lease_wait, since=lease_wait.since + step)
        contents = self.contents
        if contents is not None:
            contents = replace(contents, counted_at=contents.counted_at + step)
        gaps = self.gaps
        if gaps is not None:
            gaps = replace(gaps, read_at=_shift(gaps.read_at, step))
        bucket_counts = self.bucket_counts
        if bucket_counts is not None:
            bucket_counts = replace(bucket_counts, counted_at=bucket_counts.counted_at + step)
        return replace(
            self,
            since=self.since + step,
            epoch_began=_shift(self.epoch_began, step),
            committed_at=_shift(self.committed_at, step),
            commits=tuple(replace(commit, at=commit.at + step) for commit in self.commits),
            rate_limit=replace(self.rate_limit, next_begin=_shift(self.rate_limit.next_begin, step)),
            batch=batch,
            registry_wait=registry_wait,
            lease_wait=lease_wait,
            contents=contents,
            gaps=gaps,
            bucket_counts=bucket_counts,
            logs=self.logs.shift_times(step),
        )

    @property
    def current_halt(self) -> HaltRecord | None:
        """The supervisor's halt, unless the pipeline runs since."""
        if self.state in ("failed", "stopped", "unknown", "not started", "unreadable"):
            return self.halt
        return None

    @property
    def current_lease_wait(self) -> LeaseWait | None:
        """The wait for its lease, unless the pipeline runs since."""
        return self.lease_wait if self.state == "waiting" else None

    @property
    def unread(self) -> dict[str, int]:
        """Topic that this start reads → offsets that waited at the newest sample."""
        offsets = dict.fromkeys(self.incarnations, 0)
        if not self.logs.samples:
            return offsets
        for source, end in self.logs.samples[-1].ends.items():
            topic, _ = source
            if topic in offsets:
                offsets[topic] += max(0, end - self.frontier.get(source, end))
        return offsets


def _shift(time: datetime | None, step: timedelta) -> datetime | None:
    return None if time is None else time + step


def assembly_time(facts: Mapping[str, Any]) -> datetime:
    """Return when a commit was put together."""
    return datetime.fromisoformat(facts["assembled"])


def event_time_newest(facts: Mapping[str, Any]) -> datetime | None:
    """Return the newest event time in a commit, of rows and of what specs left out; None: it has neither."""
    times = (facts["event_time_max"], facts.get("specs", {}).get("newest"))
    return max((datetime.fromisoformat(time) for time in times if time is not None), default=None)


def event_time_newest_of(commits: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return the newest event time in several commits, by their facts; None: they have none."""
    times = map(event_time_newest, commits)
    return max((time for time in times if time is not None), default=None)


def without_records(facts: Mapping[str, Any]) -> int:
    """Return the number of offsets of a commit that gave no record: transaction markers, or what compaction took."""
    return sum(account["end"] - account["start"] - account.get("read", 0) for account in facts["ranges"])
