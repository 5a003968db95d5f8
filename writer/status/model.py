"""Values of a pipeline's progress at one moment."""

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, Literal

from writer.batch.lateness import Lateness
from writer.batch.task_report import RAW
from writer.config.pipeline_sections import Scheduling
from writer.core.offsets import OffsetRange, Source
from writer.hooks.outbox import Health
from writer.sealing.bucket_states import BucketCounts, BucketState
from writer.status.lag_sample import AppendedRecords
from writer.status.pause import Pause
from writer.status.rate_limit import LimitState
from writer.table.pipeline_tables import TargetState

OUTCOMES = ("read", "rows", "late_table", "dead_letters", "quarantined", "tombstones", "filtered")
_STORED = {"late_table": "late"}  # what the log calls an outcome, where it is not the same
GAP_CAUSES = ("retention", "latest")
SAMPLES_KEPT_FOR = timedelta(hours=1)  # what waits longer is dated by asking Kafka
_APPENDED_EVERY = timedelta(seconds=10)  # what a reader is given of samples that are taken more often
WITHOUT_TABLE = ("refused", "beyond_max")  # why a name that goes by a rule has no table
DECODERS = ("native", "single", "rejected")
State = Literal["starting", "running", "paused", "draining", "failed", "stopped"]
ShownState = State | Literal["not started", "unknown", "unreadable"]  # without a driver that tells
Dates = Mapping[Source, tuple[int, datetime]]  # an offset, and the newest timestamp of the records up to it
# Upper bounds in seconds of the histogram of batch durations: from a quiet topic to a batch that fills its delay.
DURATION_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


@dataclass(frozen=True)
class Batch:
    """The batch that is being carried now."""

    number: int
    began: datetime
    phase: str
    phase_began: datetime
    offsets: int | None  # that it will commit; None until its range is known


@dataclass(frozen=True)
class Commit:
    """One commit: its table version, when the driver saw it in the log, and its facts."""

    version: int
    at: datetime
    facts: Mapping[str, Any]
    phases: Mapping[str, float] = field(default_factory=dict)  # wall seconds of the driver, commit and redo included


@dataclass
class Totals:
    """Sums over commits."""

    commits: Counter[str] = field(default_factory=Counter)  # by reason
    records: Counter[str] = field(default_factory=Counter)  # read, and by outcome
    steps: dict[str, float] = field(default_factory=dict)  # processor seconds
    value_bytes: int = 0  # of the records that were read
    files: int = 0
    bytes: int = 0
    dead_letter_bytes: int = 0
    spilled_bytes: int = 0
    offsets_without_records: int = 0
    late: Lateness = field(default_factory=Lateness)
    unrouted: int = 0  # dead letters for which the route has no rule, or whose table took none
    gaps: Counter[str] = field(default_factory=Counter)  # by cause
    gap_offsets: Counter[str] = field(default_factory=Counter)
    filtered: dict[str, Counter[str]] = field(default_factory=dict)  # records that specs left out: by spec, by rule
    raw_records: int = 0  # that are in the raw table beside
    raw_bytes: int = 0  # of files that came to it
    raw_files: int = 0
    targets: dict[str, Counter[str]] = field(default_factory=dict)  # rows, bytes and files of a route's tables, by name

    def add_gap(self, facts: Mapping[str, Any]) -> None:
        """Add the facts of a gap's entry."""
        self.gaps[facts["cause"]] += 1
        self.gap_offsets[facts["cause"]] += sum(r["end"] - r["start"] for r in facts["ranges"])

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
        self.raw_bytes, self.raw_files = self.raw_bytes + raw.get("bytes", 0), self.raw_files + raw.get("files", 0)
        self.spilled_bytes += facts["spilled_bytes"]
        self.offsets_without_records += without_records(facts)
        for spec, rules in facts.get("specs", {}).get("filtered", {}).items():
            self.filtered.setdefault(spec, Counter()).update(rules)
        for name, about in facts.get("targets", {}).items():
            self.targets.setdefault(name, Counter()).update({key: about[key] for key in ("rows", "bytes", "files")})
        self.unrouted += facts.get("unrouted", 0)
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

    samples: tuple[Sample, ...] = ()  # oldest first
    starts: Mapping[Source, int] = field(default_factory=dict)  # first offsets still held
    retention: Mapping[str, timedelta | None] = field(
        default_factory=dict
    )  # by topic; None: no limit; missing: unknown
    dated: Dates = field(default_factory=dict)
    appended: tuple[
        AppendedRecords, ...
    ] = ()  # how the logs grew, oldest first; some of the samples, and what was before
    interval: timedelta = timedelta(seconds=15)  # between samples: kafka.lag_interval

    def with_sample(self, sample: Sample) -> "Logs":
        """Add a sample. Those that are older than SAMPLES_KEPT_FOR go."""
        since, last = sample.at - SAMPLES_KEPT_FOR, self.samples[-1] if self.samples else sample
        records = self.appended[-1].records if self.appended else 0
        records += sum(max(0, end - last.ends[source]) for source, end in sample.ends.items() if source in last.ends)
        kept = tuple(one for one in self.appended if one.at >= since)
        if len(kept) > 1 and kept[-1].at - kept[-2].at < _APPENDED_EVERY:
            kept = kept[:-1]
        samples = (*(one for one in self.samples if one.at >= since), sample)
        return replace(self, samples=samples, appended=(*kept, AppendedRecords(sample.at, records)))

    def with_history(self, earlier: Iterable[Sample]) -> "Logs":
        """Add how the logs grew before the first sample."""
        return replace(self, appended=reduce(Logs.with_sample, (*earlier, *self.samples), Logs()).appended)

    def shifted(self, step: timedelta) -> "Logs":
        """Move what was noted by the wall clock along with it, so that ages stay what they are."""
        return replace(
            self,
            samples=tuple(replace(one, at=one.at + step) for one in self.samples),
            dated={source: (offset, at + step) for source, (offset, at) in self.dated.items()},
            appended=tuple(replace(one, at=one.at + step) for one in self.appended),
        )


@dataclass(frozen=True)
class View:
    """A pipeline at one moment."""

    pipeline: str
    since: datetime  # when the driver began with it
    state: ShownState = "starting"
    error: str = ""
    epoch: int | None = None  # None before the start commit
    run: int | None = None
    batch: Batch | None = None
    frontier: Mapping[Source, int] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    commits: tuple[Commit, ...] = ()  # of this start, newest first
    committed_at: datetime | None = None  # the newest commit, also of an earlier start
    event_time_newest: datetime | None = None
    totals: Totals = field(default_factory=Totals)
    phases: Mapping[str, float] = field(default_factory=dict)  # wall seconds of the driver since the start
    # Batches by DURATION_BOUNDS, each counted once; the last is beyond all bounds.
    durations: tuple[int, ...] = (0,) * (len(DURATION_BOUNDS) + 1)
    duration_sum_seconds: float = 0.0
    duration_last_seconds: float | None = None
    schemas: Mapping[str, int] = field(default_factory=dict)  # by DECODERS
    buckets: int = 0
    offset_commit_failures: int = 0
    clock_steps: int = 0  # of the wall clock, since the driver began
    logs: Logs = field(default_factory=Logs)
    gaps: tuple[int, int] = (0, 0)  # that are open, and the offsets they hold
    gap_offsets_closed: int | None = None  # offsets of gaps that are over, in the table's life; None: not read
    gap_oldest: datetime | None = None  # when the oldest of those that are open was opened; None: not read
    gap_last: Mapping[str, Any] | None = None  # what its entry says; None: none among the entries that were looked at
    restarts: int = 0  # inside this process
    topic_restarts: int = 0  # likewise, because topics appeared that match the pattern
    incarnations: Mapping[str, int] = field(default_factory=dict)  # topic → number of the one that is read
    log_moved: str = ""  # why the logs are not those that this start began with
    log_cuts: tuple[OffsetRange, ...] = ()  # rows of records that Kafka lost when it cut a log
    topics_appeared: str = ""  # which topics another start would read, too
    topics_beyond: tuple[str, ...] = ()  # that match the pattern, beyond `topics.max`: they are not read
    targets: Mapping[str, TargetState] = field(default_factory=dict)  # tables of a route, by name
    held_bytes_max: int | None = None  # of files that may wait for one of them; None: without a route
    without_table: Mapping[str, int] = field(default_factory=dict)  # names of a route, by WITHOUT_TABLE
    pause: Pause | None = None
    rate_limit: LimitState = field(default_factory=LimitState)
    scheduling: Scheduling = field(default_factory=lambda: Scheduling.model_validate({}))
    bucket_counts: BucketCounts | None = None  # of the buckets; None: not read
    hooks: Mapping[str, Health] = field(default_factory=dict)  # by name
    telemetry: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # by receiver: commits sent, and dropped
    committed_since_start: bool = False  # since the driver began, it committed or nothing waited
    cells: tuple[BucketState, ...] = ()  # buckets one by one, the earliest first; empty: not read
    recovery: tuple[Mapping[str, Any], ...] = ()  # what a supervisor decided, newest first

    @property
    def unread(self) -> dict[str, int]:
        """Topic that this start reads → offsets that waited at the newest sample."""
        found = dict.fromkeys(self.incarnations, 0)
        for (topic, partition), end in self.logs.samples[-1].ends.items() if self.logs.samples else ():
            if topic in found:
                found[topic] += max(0, end - self.frontier.get((topic, partition), end))
        return found


def assembled(facts: Mapping[str, Any]) -> datetime:
    """Return when a commit was put together."""
    return datetime.fromisoformat(facts["assembled"])


def event_time_newest(facts: Mapping[str, Any]) -> datetime | None:
    """Newest event time in a commit, of rows and of what specs left out; None when it has neither."""
    found = (facts["event_time_max"], facts.get("specs", {}).get("newest"))
    return max((datetime.fromisoformat(at) for at in found if at is not None), default=None)


def without_records(facts: Mapping[str, Any]) -> int:
    """Offsets of a commit that gave no record: transaction markers, or what compaction took."""
    return sum(account["end"] - account["start"] - account.get("read", 0) for account in facts["ranges"])
