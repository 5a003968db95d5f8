"""The report of a task to the driver: one row of JSON with its files and the outcome of each record."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa

from headrace.writer.batch.lateness import Lateness
from headrace.writer.core.files import StagedFile, file_from_json, file_to_json
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, Source, Span, merge_spans
from headrace.writer.storage.requests.counts import RequestTally

# What a record that was read may become.
EXITS = ("rows", "late", "tombstones", "dead_letters", "quarantined", "filtered")
# Records that are in the raw table beside. Each of them has an exit, too, so they have a count of their own.
RAW = "raw"
# Nothing is stored of these where a pipeline has no specs and no raw table.
_ONLY_IF_ANY = {"filtered", RAW}
_FILES = ("files", "dead_letter_files", "late_files", "raw_files")
_SETS = ("unknown_schemas", "unknown_names", "beyond_names", "schemas", "unknown_key_schemas", "key_schemas")
ROW = pa.schema([pa.field("report", pa.string())])
# Names of a route, beyond max_targets, that are remembered: producers choose them.
NAMES_MAX = 1_000
# Spans of a partition that one task remembers. There are more only where a log is full of missing offsets.
SPANS_MAX = 2048


@dataclass
class Counts:
    """What became of one partition's records in this task: read at entry, the rest at exit from what was written.

    `skipped`: they are below the frontier, so the table has them. `late`: rows of closed buckets that went to the late
    table. `raw`: records that went to the raw table. `filtered`: a spec left them out. `seen`: how far its rows came,
    in microseconds since 1970. `spans`: offsets of the records read. `spans_whole`: False if there are more than
    SPANS_MAX.
    """

    read: int = 0
    skipped: int = 0
    tombstones: int = 0
    rows: int = 0
    dead_letters: int = 0
    quarantined: int = 0
    offset_min: int | None = None
    offset_max: int | None = None
    late: int = 0
    raw: int = 0
    filtered: int = 0
    seen: int | None = field(default=None, compare=False)
    spans: list[Span] = field(default_factory=list, compare=False)
    spans_whole: bool = field(default=True, compare=False)

    def plus(self, other: "Counts") -> "Counts":
        """Add the counts of another task for the same partition."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("read", "skipped", *EXITS, RAW)}
        bounds = (self.offset_min, self.offset_max, other.offset_min, other.offset_max)
        offsets = [offset for offset in bounds if offset is not None]
        times = [time for time in (self.seen, other.seen) if time is not None]
        return Counts(
            **sums,
            seen=max(times, default=None),
            offset_min=min(offsets, default=None),
            offset_max=max(offsets, default=None),
            spans=merge_spans([*self.spans, *other.spans]),
            spans_whole=self.spans_whole and other.spans_whole,
        )

    def add_spans(self, spans: Iterable[Span]) -> None:
        """Add the offsets of records that were read, in order."""
        for start, end in spans:
            if self.spans and self.spans[-1][1] == start:
                self.spans[-1] = (self.spans[-1][0], end)
            elif len(self.spans) < SPANS_MAX:
                self.spans.append((start, end))
            else:
                self.spans_whole = False
                return

    def add_event_time(self, newest_us: int) -> None:
        """Note how far the event times of some rows came, in microseconds since 1970."""
        self.seen = newest_us if self.seen is None else max(self.seen, newest_us)

    def add_outcome(self, name: str, records: int) -> None:
        """Add records that had an outcome, one of EXITS."""
        setattr(self, name, getattr(self, name) + records)

    def outcomes(self) -> dict[str, int]:
        """Read and its outcomes, as the commit carries them."""
        return outcomes(vars(self))

    def is_balanced(self) -> bool:
        """Return whether every record read has one outcome."""
        return bool(self.read == sum(getattr(self, name) for name in EXITS))


def outcomes(account: Mapping[str, Any]) -> dict[str, int]:
    """Return what an account says of records: how many were read, their exits, and how many are in a raw table."""
    counts = {name: int(account.get(name, 0)) for name in ("read", *EXITS, RAW)}
    return {name: records for name, records in counts.items() if records or name not in _ONLY_IF_ANY}


@dataclass(frozen=True)
class FailedRecords:
    """Records that could not become rows, by what they share: how many, and the first one's reason and place."""

    outcome: str
    schema_id: int | None
    records: int
    reason: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class RangeRead:
    """Offsets of a partition that a task fetched itself, and what became of them.

    `missing`: how many offsets have no record, by reason: control, aborted, compacted. `before`: mark of the log before
    the range. `last`: mark of the log at the end of the range.
    """

    range: OffsetRange
    records: int
    missing: dict[str, int]
    before: LogMark | None = None
    last: LogMark | None = None

    @property
    def is_complete(self) -> bool:
        """Whether each offset of the range gave a record or is missing for a reason."""
        return self.records + sum(self.missing.values()) == self.range.count

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "RangeRead":
        """Read what a report has of it."""
        marks = {name: LogMark(*raw[name]) for name in ("before", "last") if raw[name] is not None}
        return cls(**{**raw, **marks, "range": OffsetRange.from_json(raw["range"])})

    def to_dict(self) -> dict[str, Any]:
        """Describe it as JSON values."""
        return {**vars(self), "range": self.range.to_json()}


@dataclass(frozen=True)
class ReadFailure:
    """Why a task cannot read its ranges, where another try would fail as well. `kind`: name of the error's class."""

    kind: str
    message: str


@dataclass
class Report:
    """What a task reports to the driver."""

    files: list[StagedFile] = field(default_factory=list)
    dead_letter_files: list[StagedFile] = field(default_factory=list)
    # Of the late table.
    late_files: list[StagedFile] = field(default_factory=list)
    # Of the raw table.
    raw_files: list[StagedFile] = field(default_factory=list)
    late: Lateness = field(default_factory=Lateness)
    # Of a route, by name: what is of one table alone.
    targets: dict[str, "Report"] = field(default_factory=dict)
    counts: dict[Source, Counts] = field(default_factory=dict)
    unknown_schemas: set[int] = field(default_factory=set)
    # The error by which the storage of a route's table refused.
    refused: str = ""
    # Number of a route's table in the pipeline's log.
    number: int = 0
    # Whether the table's files wait at the pipeline's log.
    is_held: bool = False
    # Dead letters for which the route has no rule, or whose table takes none for now.
    unrouted: int = 0
    # Names for which a table may be made.
    unknown_names: set[str] = field(default_factory=set)
    # Names that got no table because too many were made; NAMES_MAX of them.
    beyond_names: set[str] = field(default_factory=set)
    # Ids by whose schemas records were decoded.
    schemas: set[int] = field(default_factory=set)
    unknown_key_schemas: set[int] = field(default_factory=set)
    # Ids by whose schemas keys were decoded.
    key_schemas: set[int] = field(default_factory=set)
    # Processor seconds by step.
    seconds: dict[str, float] = field(default_factory=dict)
    # Of the records that were read.
    value_bytes: int = 0
    # Mean bytes of a value in the heaviest Arrow batch.
    record_bytes_max: float = 0.0
    spilled_bytes: int = 0
    time_unit: str = ""
    failed_records: list[FailedRecords] = field(default_factory=list)
    # Empty where Spark fetches.
    ranges_read: list[RangeRead] = field(default_factory=list)
    read_failures: list[ReadFailure] = field(default_factory=list)
    # Wall seconds of the task; of each task, once reports are added up.
    took_s: list[float] = field(default_factory=list)
    # Records that specs left out, by spec and rule.
    filtered: dict[str, dict[str, int]] = field(default_factory=dict)
    # Newest believable event time of these records, in microseconds since 1970.
    filtered_newest: int | None = None
    # Members of JSON values that fit no column, by what became of them: dropped, nulled.
    unfit_members: Counter[str] = field(default_factory=Counter)
    # Requests to object stores that this process sent since its last report.
    requests: RequestTally = field(default_factory=RequestTally)
    # How many reports were added up; the driver counts.
    tasks: int = 0
    # Pieces in which the batch was read; the driver counts.
    ranges: int = 0
    # Marks of the logs at the end of the batch; the driver finds them.
    marks: dict[Source, LogMark] = field(default_factory=dict)
    # Tasks that could run at once, mean of begin and end; the driver counts.
    slots: int = 0

    @property
    def lacks_schemas(self) -> bool:
        """The plan lacked schemas or targets, or one refused: nothing was staged, the records are to be read again."""
        lacks = bool(self.unknown_schemas or self.unknown_key_schemas or self.unknown_names or self.refused)
        return lacks or any(target.lacks_schemas for target in self.targets.values())

    @property
    def lateness(self) -> Lateness:
        """Late rows of all tables."""
        return reduce(Lateness.plus, (target.late for target in self.targets.values()), self.late)

    @property
    def dead_letters_by_rule(self) -> int:
        """Dead letters that are none by a fault of theirs: late by the policy dead_letter, or unrouted."""
        return self.lateness.by_policy.get("dead_letter", 0) + self.unrouted

    def add_filter_counts(self, filtered: Mapping[str, Mapping[str, int]], newest_us: int | None) -> None:
        """Add records that specs left out, by spec and rule, and their newest event time."""
        times = [time for time in (self.filtered_newest, newest_us) if time is not None]
        self.filtered_newest = max(times, default=None)
        for spec, rules in filtered.items():
            counts = self.filtered.setdefault(spec, {})
            for rule, records in rules.items():
                counts[rule] = counts.get(rule, 0) + records

    def add_seconds(self, other: "Report") -> None:
        """Add the processor seconds of another report, by step."""
        for step, seconds in other.seconds.items():
            self.seconds[step] = self.seconds.get(step, 0) + seconds

    def to_json(self) -> str:
        """Write the report as one JSON text."""
        return json.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Write the report as JSON values."""
        files = {name: [file_to_json(file) for file in getattr(self, name)] for name in _FILES}
        records = {name: [vars(record) for record in getattr(self, name)] for name in _RECORDS}
        sets = {name: sorted(getattr(self, name)) for name in _SETS}
        return {
            **vars(self),
            **files,
            **records,
            **sets,
            "ranges_read": [range_read.to_dict() for range_read in self.ranges_read],
            "late": self.late.to_json(),
            "requests": self.requests.to_json(),
            "counts": [[*source, vars(counts)] for source, counts in self.counts.items()],
            "targets": {name: target.to_dict() for name, target in self.targets.items()},
        }

    def to_row(self) -> pa.RecordBatch:
        """Write the report as the only row of a batch (schema ROW)."""
        return pa.RecordBatch.from_pydict({"report": [self.to_json()]}, schema=ROW)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Read what `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Report":
        """Read what `to_dict` wrote."""
        files = {name: [file_from_json(file) for file in raw[name]] for name in _FILES}
        records = {name: [record_type(**values) for values in raw[name]] for name, record_type in _RECORDS.items()}
        sets = {name: set(raw[name]) for name in _SETS}
        values = {
            **raw,
            **files,
            **records,
            **sets,
            "late": Lateness.from_json(raw["late"]),
            "requests": RequestTally.from_json(raw["requests"]),
            "unfit_members": Counter(raw["unfit_members"]),
            "counts": {(topic, partition): _parse_counts(counts) for topic, partition, counts in raw["counts"]},
            "targets": {name: cls.from_dict(target) for name, target in raw["targets"].items()},
            "ranges_read": [RangeRead.from_dict(range_read) for range_read in raw["ranges_read"]],
        }
        return cls(**values)


_RECORDS = {"failed_records": FailedRecords, "read_failures": ReadFailure}


def _parse_counts(raw: dict[str, Any]) -> Counts:
    return Counts(**{**raw, "spans": [(start, end) for start, end in raw["spans"]]})
