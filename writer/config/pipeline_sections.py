"""Sections of a pipeline that need a module of their own: where it starts, clocks, wire format, sealing, compaction."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

import bucketers
from writer.avro import wire_format
from writer.avro.schema_plan import PROVENANCE
from writer.batch.bucketing import Clock
from writer.batch.lateness import LATE_POLICIES, LatePolicy, LateTier
from writer.batch.record_columns import RecordColumns
from writer.batch.staging.sorting import Dedupe as Rule
from writer.config.base import ShortForm, Strict
from writer.core.units import Duration, Shift, Size, Slack
from writer.storage import locations

_POSITIONS = "must be earliest, latest, {timestamp: 2026-11-20T05:00:00Z} or {offsets: {topic: {0: 17}}}"
Place = Annotated[str, AfterValidator(locations.parse_location)]
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ID_HEADERS = {**wire_format.ID_HEADERS, **wire_format.KEY_ID_HEADERS}


class ClockRule(Strict):
    """Whose clock is not UTC, and what it shows instead. Without `topic` and `field` it is of all topics."""

    topic: str | None = Field(None, min_length=1, description="only rows of this topic")
    field: str | None = Field(None, min_length=1, description="only rows where this field has one of the `values`")
    values: list[str] = Field(default_factory=list, description="with `field`: its values, as text")
    shift: Shift | None = Field(None, description="what is added to their event times, such as `-1 h`")
    zone: str | None = Field(
        None, description="their event times are wall clocks of this IANA zone, such as Europe/Berlin"
    )

    @model_validator(mode="after")
    def _check_owner_and_rule(self) -> "ClockRule":
        if (self.shift is None) == (self.zone is None):
            raise ValueError("a clock has either 'shift' or 'zone'")
        if (self.field is None) != (not self.values):
            raise ValueError("a clock has 'field' and 'values' together, or neither")
        if self.zone is not None:
            bucketers.EventTime(timedelta(days=1), self.zone)  # raises ValueError for an unknown zone
        return self

    @property
    def clock(self) -> Clock:
        """What tasks get of it."""
        return Clock(self.topic, self.field, tuple(self.values), self.shift, self.zone)


class Scheduling(Strict):
    """How the pipelines of a driver share its task slots: Spark's pools, and turns where slots are fewer."""

    weight: int = Field(1, ge=1, description="time of task slots beside the other pipelines; 2: twice as much as 1")
    min_share: int = Field(
        0, ge=0, description="slots that its tasks get before those of others; from 1 on, its batches go first"
    )


class Wire(ShortForm):
    """How a record says which schema its value, or its key, was written with. `wire: confluent` gives its `format`."""

    short: ClassVar[str] = "format"
    format: Literal["auto", "confluent", "apicurio", "header", "single_object", "bare"] = Field(
        "auto", description="wire format; `auto` finds it in the records and keeps it (docs/TYPES.md)"
    )
    header: str | None = Field(
        None, min_length=1,
        description="for `header`: Kafka header with the id, such as __value_schema_id or apicurio.value.globalId",
    )  # fmt: skip
    ids: Literal["confluent", "global", "content"] | None = Field(
        None,
        description="for `apicurio`: which of its ids, by default `global`; for a `header` of another name: which ids",
    )
    schema_id: int | None = Field(None, ge=1, description="for `bare`: id of the schema that all have")

    @model_validator(mode="after")
    def _what_the_format_needs(self) -> "Wire":
        needed = {"header": "header", "bare": "schema_id"}.get(self.format)
        for key in ("header", "schema_id"):
            given = getattr(self, key) is not None
            if key == needed and not given:
                raise ValueError(f"format {self.format!r} needs {key!r}: {type(self).model_fields[key].description}")
            if key != needed and given:
                raise ValueError(f"format {self.format!r} has no {key!r}; leave it out")
        if self.format == "header" and self.header not in _ID_HEADERS and self.ids is None:
            raise ValueError(f"which ids the Kafka header {self.header!r} carries is not known; set 'ids'")
        if self.ids is not None and self.format not in ("apicurio", "header", "bare"):
            raise ValueError(f"format {self.format!r} has no choice of 'ids'; leave it out")
        if self.format == "apicurio" and self.ids == "confluent":
            raise ValueError("format 'apicurio' has global or content ids")
        return self

    @property
    def fixed(self) -> wire_format.Wire | None:
        """The format; None if it is to be detected."""
        match self.format:
            case "auto":
                return None
            case "apicurio":
                return wire_format.Wire("apicurio", self.ids or "global")
            case "single_object":
                return wire_format.Wire("single_object", "fingerprint")
            case "header":
                return wire_format.Wire("header", self.ids or _ID_HEADERS[str(self.header)], self.header)
            case format_:
                return wire_format.Wire(format_, self.ids or "confluent", schema_id=self.schema_id)


class LateRule(Strict):
    """What becomes of late rows up to some lateness."""

    within: Duration | None = Field(
        None, description="how far the watermark may be past the end of their bucket; none: all that is later"
    )
    to: LatePolicy = Field(
        description="what becomes of a row whose bucket is closed: reopen: it joins the bucket, which is sealed again; "
        "late_table: it goes to a table beside; dead_letter: to the dead letters. A word alone stands for one rule: "
        "`late: reopen`, the default"
    )


def _rules(late: Any) -> Any:
    return [{"to": late}] if isinstance(late, str) else late


def _in_order(late: list[LateRule]) -> list[LateRule]:
    bounds = [rule.within for rule in late]
    if not bounds or bounds[-1] is not None or None in bounds[:-1]:
        raise ValueError("each rule but the last has `within`, and the last has none: it takes all that is later")
    if any(a >= b for a, b in pairwise(bound for bound in bounds if bound is not None)):
        raise ValueError("`within` grows from rule to rule, since the first that fits counts")
    if twice := next((to for to, rules in Counter(rule.to for rule in late).items() if rules > 1), None):
        raise ValueError(f"two rules say {twice}; give each destination one")
    return late


def _or_word(schema: dict[str, Any]) -> None:
    """Let the JSON schema take a destination alone, too."""
    rules = {"type": schema.pop("type"), "items": schema.pop("items")}
    schema["anyOf"] = [{"type": "string", "enum": list(LATE_POLICIES)}, rules]


class Seal(Strict):
    """When a bucket of event time is complete, and what becomes of rows that come after (docs/BUCKETS.md)."""

    enabled: bool = Field(True, description="close and seal buckets; without it none is, and no row is late")
    out_of_orderness: Slack = Field(
        timedelta(minutes=5), description="how far behind the newest of its partition an event may come, on time"
    )
    allowed_lateness: Slack = Field(
        timedelta(0), description="how long after its end, by the watermark, a bucket is left open"
    )
    idle_timeout: Duration = Field(
        timedelta(minutes=10), description="a partition without records for so long does not hold the watermark back"
    )
    after: Duration | None = Field(
        timedelta(hours=1),
        description="how long after its end a bucket is closed by the clock, if all that Kafka has is committed; null: "
        "never",
    )
    late: Annotated[list[LateRule], BeforeValidator(_rules), AfterValidator(_in_order)] = Field(
        default_factory=lambda: [LateRule(within=None, to="reopen")],
        json_schema_extra=_or_word,
        description="what becomes of a row whose bucket is closed, by how late it is; or one word for all",
    )
    late_table: Place | None = Field(
        None, description="location of the table of late rows; default: location of the table + '_late'"
    )
    reopen_after: Slack = Field(
        timedelta(minutes=10), description="how long a sealed bucket rests after a change before it is sealed again"
    )
    success_file: bool | None = Field(
        None, description="put `_SUCCESS` into the folder of a sealed bucket; default: for tables in Parquet format"
    )

    @property
    def tiers(self) -> tuple[LateTier, ...]:
        """What becomes of late rows, by how late they are; the last has no bound."""
        return tuple(LateTier(rule.within, rule.to) for rule in self.late)


class KeyColumn(ShortForm):
    """The column of the records' keys. `key: string` is short for its `type`."""

    short: ClassVar[str] = "type"
    type: Literal["binary", "string", "avro"] = Field(
        description="type of the column; avro: the one of the key's own Avro schema, a struct for a record"
    )
    name: str = Field("_key", min_length=1, description="name of the column")
    wire: Wire = Wire.model_validate({})

    @model_validator(mode="after")
    def _what_avro_needs(self) -> "KeyColumn":
        if self.type != "avro" and "wire" in self.model_fields_set:
            raise ValueError(f"a key of type {self.type!r} has no 'wire'; leave it out, or set type: avro")
        if self.type == "avro" and not _AVRO_NAME.fullmatch(self.name):
            raise ValueError(
                f"the column of an Avro key has a name of Avro's: letters, digits and _, not {self.name!r}"
            )
        return self


class HeaderColumn(ShortForm):
    """A column of one header. A name alone is short for its `header`, as a string."""

    short: ClassVar[str] = "header"
    header: str = Field(min_length=1, description="name of the header; of several with one name, the last counts")
    type: Literal["binary", "string", "long", "double", "boolean"] = Field(
        "string", description="type of the column, read from the header's text"
    )


class Columns(Strict):
    """What a row holds of its record beside the value. A table that exists has it from the next commit on."""

    key: KeyColumn | None = Field(
        None, description="column of the key; default: none. A table with keys can be deleted from, and deduped, by key"
    )
    headers: str | None = Field(
        None, min_length=1, description="name of a column with all headers, a map of names to bytes, such as `_headers`"
    )
    header_columns: dict[str, HeaderColumn] = Field(
        default_factory=dict, description="columns of single headers: name of the column, then header and type"
    )
    undecodable: Literal["dead_letter", "null"] = Field(
        "dead_letter",
        description="a key that cannot be decoded, or a key or chosen header that does not have its type, makes "
        "a dead letter, or null",
    )

    @model_validator(mode="after")
    def _each_name_once(self) -> "Columns":
        names = self.record_columns.names
        lower = [name.lower() for name in (*names, *PROVENANCE.names)]
        if twice := [name for name in names if lower.count(name.lower()) > 1]:
            raise ValueError(f"columns: {twice[0]!r} is the name of two columns; give each its own")
        return self

    @property
    def avro_key(self) -> KeyColumn | None:
        """The column of a key that is read by its own Avro schema; None without one."""
        return self.key if self.key is not None and self.key.type == "avro" else None

    @property
    def record_columns(self) -> RecordColumns:
        """What tasks get."""
        chosen = tuple((name, one.header, one.type) for name, one in self.header_columns.items())
        key = None if self.key is None else (self.key.name, self.key.type)
        return RecordColumns(key, self.headers, chosen, self.undecodable == "null")


class Dedupe(Strict):
    """Of rows with the same key in one bucket, or within a window, one stays."""

    key: list[str] = Field(
        min_length=1, description="columns that make rows the same; a row with a null among them is left as it is"
    )
    keep: Literal["first", "last"] = Field("first", description="which of them stays, by Kafka's time, then by offset")
    window: Duration | None = Field(
        None,
        description="also across buckets: a row goes if one that came before it stays in a bucket that is at most this "
        "far away, such as `24 h`; default: within one bucket only",
    )

    @model_validator(mode="after")
    def _first_stays(self) -> "Dedupe":
        if self.window is not None and self.keep == "last":
            raise ValueError(
                "dedupe with 'window' keeps the first row: with keep: last each repeat would take a row out of a "
                "bucket that is sealed. Leave keep out, or leave window out"
            )
        return self

    @property
    def rule(self) -> Rule:
        """What tasks get."""
        return Rule(tuple(self.key), self.keep)


class Compact(Strict):
    """Files of a bucket that are merged, put in order, and freed of rows that came twice (docs/COMPACTION.md)."""

    at_seal: bool | None = Field(
        None, description="rewrite a bucket's files before it is sealed; default: except for tables in Parquet format"
    )
    open_files_max: int | None = Field(
        100, ge=2, description="an open bucket with more small files is merged before it is closed; null: none is"
    )
    sort_by: list[str] = Field(
        default_factory=list, description="columns that the rows of a closed bucket are put in order by"
    )
    dedupe: Dedupe | None = Field(None, description="take rows out that came more than once, when a bucket is sealed")
    share: float = Field(
        0.1, gt=0, le=1, description="most of the driver's task slots, or of their processor time, that rewriting "
        "takes, over time; the rest is the stream's",
    )  # fmt: skip


def start_position(value: Any) -> Any:
    """Read where a new pipeline begins; timestamps are aware UTC then. Raises ValueError."""
    match value:
        case "earliest" | "latest":
            return value
        case {"timestamp": when, **rest} if not rest:
            return {"timestamp": _instant(when)}
        case {"offsets": dict() as topics, **rest} if not rest:
            return {"offsets": {str(topic): _offsets(partitions) for topic, partitions in topics.items()}}
    raise ValueError(_POSITIONS)


def _instant(when: Any) -> datetime:
    try:
        instant = when if isinstance(when, datetime) else datetime.fromisoformat(str(when))
    except ValueError as error:
        raise ValueError(f"timestamp {when!r} is none; it {_POSITIONS}") from error
    if instant.tzinfo is None:
        raise ValueError(f"timestamp {when} has no zone; write {instant.isoformat()}Z for UTC")
    return instant.astimezone(UTC)


def _offsets(partitions: Any) -> dict[int, int]:
    try:
        found = {int(partition): int(offset) for partition, offset in partitions.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"offsets {partitions!r} are not numbers by partition; it {_POSITIONS}") from error
    if min([*found, *found.values()], default=0) < 0:
        raise ValueError(f"offsets {partitions!r} are below zero; it {_POSITIONS}")
    return found


class Commit(Strict):
    """When a micro-batch is committed: enough records, or the delay, whichever is first."""

    max_delay: Duration = Field(
        timedelta(minutes=10), description="a record waits at most this long for its commit to begin"
    )
    max_records: int = Field(5_000_000, ge=1, description="at most this many offsets in one commit")
    max_records_per_second: int | None = Field(
        None, ge=1, description="at most this many records a second, over time; `headrace limit` sets another at once"
    )
    max_bytes_per_second: Size | None = Field(
        None, description="at most so much a second of the records' values, over time, such as `10 MB`"
    )
    min_records: int | None = Field(
        None, ge=1, description="commit at once from this many on; default: enough for one file"
    )


class Memory(Strict):
    """What a task may hold."""

    buffer: Size = Field(256 * 2**20, description="rows of all open buckets of one task; beyond it they spill to disk")
    batch_records: int = Field(
        25_000,
        ge=1,
        description="most records in one Arrow batch, with a route 8 times as many; fewer where they are large",
    )


class Limits(Strict):
    """What stops the pipeline with exit code 5, so that a person looks."""

    failed_ratio_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of a batch's records that may be dead letters or quarantined; those that are late, or that "
        "no key of `route.targets` is for, count on neither side; 1: any",
    )
    failed_records_min: int = Field(
        1000, ge=1, description="as long as fewer records of a batch are, their share does not matter"
    )
