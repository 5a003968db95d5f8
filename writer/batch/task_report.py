"""The report of a task to the driver: one row of JSON with its files and the outcome of each record."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa

from writer.batch.lateness import Lateness
from writer.core.files import StagedFile
from writer.core.offsets import LogMark, Source, Span, joined

# What a record that was read may become. `filtered` came with specs.
EXITS = ("rows", "late", "tombstones", "dead_letters", "quarantined", "filtered")
RAW = "raw"  # records that are in the raw table beside: a count of its own, for each of them has an exit, too
_ONLY_IF_ANY = {"filtered", RAW}  # where a pipeline has no specs and no raw table, nothing is stored of them
_FILES = ("files", "dead_letter_files", "late_files", "raw_files")  # of a report
_SETS = ("unknown_schemas", "unknown_names", "beyond_names", "schemas", "unknown_key_schemas", "key_schemas")
ROW = pa.schema([pa.field("report", pa.string())])
NAMES_MAX = 1_000  # of a route, beyond max_targets, that are remembered: producers choose them
SPANS_MAX = 2048  # of a partition in one task that are remembered; more only where a log is full of missing offsets


@dataclass
class Counts:
    """What became of one partition's records in this task: read at entry, the rest at exit from what was written."""

    read: int = 0
    skipped: int = 0  # below the frontier: the table has them
    tombstones: int = 0
    rows: int = 0
    dead_letters: int = 0
    quarantined: int = 0
    offset_min: int | None = None
    offset_max: int | None = None
    late: int = 0  # rows of closed buckets that went to the late table
    raw: int = 0  # records that went to the raw table
    filtered: int = 0  # left out by a spec
    seen: int | None = field(default=None, compare=False)  # how far its rows came, as microseconds since 1970
    spans: list[Span] = field(default_factory=list, compare=False)  # where the records read stand
    spans_whole: bool = field(default=True, compare=False)  # False: there are more than SPANS_MAX

    def plus(self, other: "Counts") -> "Counts":
        """Add the counts of another task for the same partition."""
        added = {name: getattr(self, name) + getattr(other, name) for name in ("read", "skipped", *EXITS, RAW)}
        offsets = [o for c in (self, other) for o in (c.offset_min, c.offset_max) if o is not None]
        seen = max((c.seen for c in (self, other) if c.seen is not None), default=None)
        return Counts(
            **added, seen=seen, offset_min=min(offsets, default=None), offset_max=max(offsets, default=None),
            spans=joined([*self.spans, *other.spans]), spans_whole=self.spans_whole and other.spans_whole,
        )  # fmt: skip

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

    def outcomes(self) -> dict[str, int]:
        """Read and its outcomes, as the commit carries them."""
        return outcomes(vars(self))

    def balanced(self) -> bool:
        """Every record read has one outcome."""
        return bool(self.read == sum(getattr(self, name) for name in EXITS))


def outcomes(account: Mapping[str, Any]) -> dict[str, int]:
    """Return what an account says of records: how many were read, their exits, and how many are in a raw table."""
    found = {name: int(account.get(name, 0)) for name in ("read", *EXITS, RAW)}
    return {name: records for name, records in found.items() if records or name not in _ONLY_IF_ANY}


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
    """Offsets [start, end) of a partition that a task fetched itself, and what became of them."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    missing: dict[str, int]  # offsets without a record, by reason: control, aborted, compacted
    before: LogMark | None = None  # of the log, before the range
    last: LogMark | None = None  # of the log, at the end of the range

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "RangeRead":
        """Read what a report has of it."""
        marks = {name: LogMark(*raw[name]) for name in ("before", "last") if raw[name] is not None}
        return cls(**{**raw, **marks})


@dataclass(frozen=True)
class ReadFailure:
    """Why a task cannot read its ranges, where another try would fail as well."""

    kind: str  # name of the error's class
    message: str


@dataclass
class Report:
    """What a task reports to the driver."""

    files: list[StagedFile] = field(default_factory=list)
    dead_letter_files: list[StagedFile] = field(default_factory=list)
    late_files: list[StagedFile] = field(default_factory=list)  # of the late table
    raw_files: list[StagedFile] = field(default_factory=list)  # of the raw table
    late: Lateness = field(default_factory=Lateness)
    targets: dict[str, "Report"] = field(default_factory=dict)  # of a route, by name: what is of one table alone
    counts: dict[Source, Counts] = field(default_factory=dict)
    unknown_schemas: set[int] = field(default_factory=set)
    refused: str = ""  # what the storage of a route's table said
    number: int = 0  # of a route's table, in the pipeline's log
    is_held: bool = False  # its files wait at the pipeline's log
    unrouted: int = 0  # dead letters for which the route has no rule, or whose table takes none for now
    unknown_names: set[str] = field(default_factory=set)  # for which the route may want a table that is not there yet
    beyond_names: set[str] = field(default_factory=set)  # that got no table, as too many were made; NAMES_MAX of them
    schemas: set[int] = field(default_factory=set)  # ids by whose schemas records were decoded
    unknown_key_schemas: set[int] = field(default_factory=set)
    key_schemas: set[int] = field(default_factory=set)  # ids by whose schemas keys were decoded
    seconds: dict[str, float] = field(default_factory=dict)  # processor seconds by step
    value_bytes: int = 0  # of the records that were read
    record_bytes_max: float = 0.0  # mean value of the heaviest Arrow batch
    spilled_bytes: int = 0
    time_unit: str = ""
    failed_records: list[FailedRecords] = field(default_factory=list)
    ranges_read: list[RangeRead] = field(default_factory=list)  # none where Spark fetches
    read_failures: list[ReadFailure] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)  # wall seconds of the task; of each, once added up
    filtered: dict[str, dict[str, int]] = field(default_factory=dict)  # records left out, by spec and rule
    filtered_newest: int | None = None  # newest believable event time of them, in microseconds since 1970
    tasks: int = 0  # whose reports were added up; the driver counts
    ranges: int = 0  # pieces in which the batch was read; the driver counts
    marks: dict[Source, LogMark] = field(default_factory=dict)  # of the logs where it ends; the driver finds them
    slots: int = 0  # tasks that could run at once, mean of begin and end; the driver counts

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

    def add_filtered(self, found: Mapping[str, Mapping[str, int]], newest: int | None) -> None:
        """Add records that specs left out, by spec and rule, and their newest event time."""
        known = [at for at in (self.filtered_newest, newest) if at is not None]
        self.filtered_newest = max(known, default=None)
        for spec, rules in found.items():
            mine = self.filtered.setdefault(spec, {})
            mine.update({rule: mine.get(rule, 0) + records for rule, records in rules.items()})

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
        others = {
            "late": self.late.to_json(), "counts": [[*source, vars(counts)] for source, counts in self.counts.items()],
            **{name: [vars(one) for one in getattr(self, name)] for name in (*_ROWS, "ranges_read")},
            **{name: sorted(getattr(self, name)) for name in _SETS},
        }  # fmt: skip
        targets = {name: target.to_dict() for name, target in self.targets.items()}
        return {**vars(self), **files, **others, "targets": targets}

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
        counts = {(topic, partition): _counts(counts) for topic, partition, counts in raw["counts"]}
        rows = {name: [made(**one) for one in raw[name]] for name, made in _ROWS.items()}
        targets = {name: cls.from_dict(target) for name, target in raw["targets"].items()}
        ranges = [RangeRead.from_dict(one) for one in raw["ranges_read"]]
        others = {"late": Lateness.from_json(raw["late"]), "targets": targets, **rows, "ranges_read": ranges}
        return cls(**{**raw, **files, **others, "counts": counts, **{name: set(raw[name]) for name in _SETS}})


_ROWS = {"failed_records": FailedRecords, "read_failures": ReadFailure}


def _counts(raw: dict[str, Any]) -> Counts:
    return Counts(**{**raw, "spans": [(start, end) for start, end in raw["spans"]]})


def file_to_json(file: StagedFile) -> dict[str, Any]:
    """Write a staged file as JSON values."""
    times = {"event_time_min": file.event_time_min.isoformat(), "event_time_max": file.event_time_max.isoformat()}
    return {**vars(file), **times, "rows_by_source": [[*source, rows] for source, rows in file.rows_by_source.items()]}


def file_from_json(raw: dict[str, Any]) -> StagedFile:
    """Read what `file_to_json` wrote."""
    return StagedFile(
        path=raw["path"], bucket=tuple(raw["bucket"]), rows=raw["rows"], bytes=raw["bytes"],
        statistics=raw["statistics"], event_time_min=datetime.fromisoformat(raw["event_time_min"]),
        event_time_max=datetime.fromisoformat(raw["event_time_max"]),
        rows_by_source={(topic, partition): rows for topic, partition, rows in raw["rows_by_source"]},
    )  # fmt: skip
