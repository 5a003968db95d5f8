"""The configuration file: schema, defaults, checks and reference documentation at once.

One YAML file, which `writer/config/loader.py` reads. Unknown keys fail with a suggestion; durations and sizes carry
units.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

import bucketers
from writer.batch.bucketing import TimeRule
from writer.config.base import Strict, did_you_mean
from writer.config.connections import (
    S3,
    Autoscaler,
    Http,
    Kafka,
    Notifications,
    OpenLineage,
    OpenTelemetry,
    Recovery,
    Registry,
    Spark,
    Supervisor,
)  # fmt: skip
from writer.config.hooks import Hooks
from writer.config.pipeline_sections import ClockRule, Columns, Compact, Place, Scheduling, Seal, Wire
from writer.config.topic_selection import TopicSelection
from writer.core.errors import ConfigError
from writer.core.units import Duration, Size, duration, show_duration
from writer.storage.nesting import Parts, parts

_POSITIONS = "must be earliest, latest, {timestamp: 2026-11-20T05:00:00Z} or {offsets: {topic: {0: 17}}}"
_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")
_HIVE_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_COPIED_MAX = 2**30  # bytes that S3 copies before its client gives the request up


TableFormat = Literal["delta", "parquet"]
Reader = Literal["trino", "presto", "druid", "spark", "duckdb"]


class EventTime(Strict):
    """Where an event's time stands, and which times are believed."""

    field: str = Field(description="column with the event time; nested with dots")
    unit: Literal["auto", "s", "ms", "us", "ns", "logical"] = Field("auto", description="unit of a plain number")
    max_age: Duration = Field(timedelta(days=365), description="older events are quarantined")
    max_ahead: Duration = Field(timedelta(days=1), description="events further in the future are quarantined")
    clocks: list[ClockRule] = Field(
        default_factory=list, description="sources whose clocks are not UTC; of the rules that fit, the first counts"
    )

    def rule(self, unit: str) -> TimeRule:
        """Return the rule for a batch; `unit`: as configured or detected."""
        return TimeRule(self.field, unit, self.max_age, self.max_ahead, tuple(one.clock for one in self.clocks))


def _bucketer(spec: Any) -> dict[str, Any]:
    if not isinstance(spec, dict):
        raise ValueError(f"bucketer {spec!r} is no mapping; write {{type: event_time, width: 1 h}}")  # noqa: TRY004
    ready: dict[str, Any] = {key: duration(value) if key == "width" else value for key, value in spec.items()}
    if "parts" in ready:
        if not isinstance(ready["parts"], list):
            raise ValueError(f"'parts' is {ready['parts']!r}; make it a list of bucketers")
        ready["parts"] = [_bucketer(part) for part in ready["parts"]]
    bucketers.build(ready)  # raises ValueError with the fix
    return ready


def layout(spec: dict[str, Any]) -> str:
    """Return in words how a bucket specification maps rows to buckets: what a table remembers of it."""
    shown = (
        f"{k} {show_duration(v) if isinstance(v, timedelta) else v}"
        for k, v in spec.items()
        if k not in ("type", "parts")
    )
    parts = " and ".join(layout(part) for part in spec.get("parts", []))
    return ", ".join([str(spec["type"]), *shown]) + (f" of {parts}" if parts else "")


class Table(Strict):
    """The table of a pipeline. A table belongs to exactly one pipeline."""

    location: Place = Field(description="absolute path of the table's directory, or s3://bucket/folder")
    format: TableFormat = Field(
        "delta", description="delta: Delta Lake; parquet: plain files in Hive's folders (docs/TABLES.md)"
    )
    dead_letters: Place | None = Field(
        None, description="location of the dead-letter table; default: location + '_dead_letters'"
    )
    checkpoint_interval: int = Field(50, ge=1, description="commits between two checkpoints of the table's log")
    orphan_retention: Duration = Field(
        timedelta(days=7),
        description="how old a file that no commit names must be for `headrace vacuum` to remove it; what was staged "
        "half as long ago is not committed any more",
    )
    readers: tuple[Reader, ...] = Field(
        ("trino", "presto", "druid", "spark", "duckdb"),
        description="engines that read it; `validate` says what they will not be able to (docs/ENGINES.md)",
    )
    entropy_bits: int = Field(
        0, ge=0, le=16,
        description="binary digits, drawn for each file, of a folder in front of its path: where S3 throttles a prefix",
    )  # fmt: skip


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


class Roll(Strict):
    """When a file is closed."""

    target_file_size: Size = Field(128 * 2**20, description="size at which a Parquet file is closed")


class Memory(Strict):
    """What a task may hold."""

    buffer: Size = Field(256 * 2**20, description="rows of all open buckets of one task; beyond it they spill to disk")
    batch_records: int = Field(25_000, ge=1, description="most records in one Arrow batch; fewer where they are large")


class Schemas(Strict):
    """What happens when a schema is not to be had, or needs a wider column."""

    unknown_id_timeout: Duration = Field(
        timedelta(minutes=5),
        description="how long an unknown schema id holds the batch before its records are dead letters",
    )
    widen: Literal["in_place", "reject"] = Field(
        "in_place",
        description="a schema has long where the column is int, or the like: give the column the wider type, or reject "
        "the schema's records, for readers such as Spark 3 that cannot read older files of a wider column",
    )


class Limits(Strict):
    """What stops the pipeline with exit code 5, so that a person looks."""

    failed_ratio_max: float = Field(
        0.5, ge=0, le=1, description="most of a batch's records that may be dead letters or quarantined; 1: any"
    )
    failed_records_min: int = Field(
        1000, ge=1, description="as long as fewer records of a batch are, their share does not matter"
    )


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


class Pipeline(Strict):
    """One table and the topics that fill it."""

    topics: TopicSelection = Field(description="topics to read: their names, or a pattern")
    start: Any = Field(
        "earliest",
        description="where a new pipeline begins: earliest, latest, {timestamp: …}, {offsets: {topic: {0: 17}}}",
    )
    on_topic_recreated: Literal["start", "stop"] = Field(
        "start", description="a topic was deleted and created again: read the new one from its beginning, or stop"
    )
    on_data_loss: Literal["record", "stop"] = Field(
        "record",
        description="Kafka no longer holds offsets that the table does not have: record them as a gap, or stop",
    )
    table: Table
    wire: Wire = Wire.model_validate({})
    columns: Columns = Columns.model_validate({})
    event_time: EventTime
    bucket: Annotated[dict[str, Any], AfterValidator(_bucketer)] = Field(
        default_factory=lambda: {"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"},
        description="how event times map to buckets: event_time, field, composite, or your own module:Class",
    )
    commit: Commit = Commit.model_validate({})
    roll: Roll = Roll.model_validate({})
    memory: Memory = Memory.model_validate({})
    scheduling: Scheduling = Scheduling.model_validate({})
    schemas: Schemas = Schemas.model_validate({})
    limits: Limits = Limits.model_validate({})
    retention: Duration | None = Field(
        None, description="buckets that ended longer ago are dropped from the table; default: every bucket stays"
    )
    seal: Seal = Seal.model_validate({})
    compact: Compact = Compact.model_validate({})
    hooks: Hooks = Field(default_factory=list, description="what is called when a bucket is sealed (docs/HOOKS.md)")
    commit_offsets_to_group: str | None = Field(
        None,
        min_length=1,
        description="consumer group to which the committed offsets are written, for tools that show a group's lag",
    )

    @field_validator("start")
    @classmethod
    def _position(cls, value: Any) -> Any:
        match value:
            case "earliest" | "latest":
                return value
            case {"timestamp": when, **rest} if not rest:
                return {"timestamp": _instant(when)}
            case {"offsets": dict() as topics, **rest} if not rest:
                return {"offsets": {str(topic): _offsets(partitions) for topic, partitions in topics.items()}}
        raise ValueError(_POSITIONS)

    @model_validator(mode="after")
    def _retention_beyond_max_age(self) -> "Pipeline":
        if self.retention is None:
            return self
        if not bucketers.goes_by_time(bucketers.build(self.bucket)):
            raise ValueError("retention: buckets of this bucketer do not go by time, so they never grow old")
        if self.retention < self.event_time.max_age:
            age = show_duration(self.event_time.max_age)
            raise ValueError(
                f"retention {show_duration(self.retention)} is shorter than event_time.max_age {age}: events would "
                "come to buckets that were dropped. Set event_time.max_age to the retention or less; what is older is "
                "quarantined then."
            )
        return self

    @model_validator(mode="after")
    def _clocks_of_its_topics(self) -> "Pipeline":
        for clock in self.event_time.clocks:
            if clock.topic is not None and not self.topics.includes(clock.topic):
                raise ValueError(
                    f"event_time.clocks: the pipeline reads no topic {clock.topic!r}"
                    f"{did_you_mean(clock.topic, self.topics.names)}"
                )
        return self

    @model_validator(mode="after")
    def _readable_as_hive(self) -> "Pipeline":
        if self.table.format == "parquet":
            if self.table.entropy_bits:
                raise ValueError(
                    "table.entropy_bits would hide the buckets from readers of Hive's folders; leave it out"
                )
            if self.roll.target_file_size > _COPIED_MAX:
                raise ValueError(
                    "with table.format: parquet, roll.target_file_size is at most 1 GiB: one copy publishes a file"
                )
            for column in bucketers.build(self.bucket).columns:
                if not _HIVE_COLUMN.fullmatch(column):
                    raise ValueError(
                        f"bucket column {column!r} cannot name folders that readers look into; begin it with a letter, "
                        "and use letters, digits and _ (bucket.column)"
                    )
        return self

    @model_validator(mode="after")
    def _deduped_when_sealed(self) -> "Pipeline":
        if self.compact.dedupe and not self.compacts_at_seal:
            raise ValueError("compact.dedupe takes rows out when a bucket is sealed; set compact.at_seal: true")
        return self

    @property
    def compacts_at_seal(self) -> bool:
        """Rewrite a bucket before it is sealed: by default where readers see all files of a commit at once."""
        wanted = self.compact.at_seal
        return self.table.format == "delta" if wanted is None else wanted

    @property
    def dead_letters(self) -> str:
        """Location of the dead-letter table."""
        return self.table.dead_letters or self.table.location + "_dead_letters"

    @property
    def late_table(self) -> str | None:
        """Location of the table of late rows; None where late rows go elsewhere."""
        return self.late_place if self.seal.enabled and self.seal.late == "late_table" else None

    @property
    def late_place(self) -> str:
        """Where the table of late rows lies, if there was ever one."""
        return self.seal.late_table or self.table.location + "_late"


class Config(Strict):
    """The whole file."""

    kafka: Kafka
    registry: Registry
    checkpoints: Place = Field(
        description="absolute path or s3:// location for Spark's checkpoints; disposable, the tables are the truth"
    )
    stop_timeout: Duration = Field(
        timedelta(minutes=2),
        description="how long a batch may still take once a stop was asked for (SIGTERM, a supervisor); then its tasks "
        "are cancelled, it is not committed, and the next start reads it again",
    )
    s3: S3 = S3.model_validate({})
    spark: Spark = Spark.model_validate({})
    http: Http = Http.model_validate({})
    recovery: Recovery = Recovery.model_validate({})
    supervisor: Supervisor = Supervisor.model_validate({})
    autoscaler: Autoscaler = Autoscaler.model_validate({})
    notifications: Notifications = Notifications.model_validate({})
    openlineage: OpenLineage = OpenLineage.model_validate({})
    opentelemetry: OpenTelemetry = OpenTelemetry.model_validate({})
    pipelines: dict[str, Pipeline] = Field(min_length=1, description="pipelines by name; all run in one application")

    @model_validator(mode="after")
    def _records_of_topics(self) -> "Config":
        self.registry.subjects.check_topics([pipeline.topics for pipeline in self.pipelines.values()])
        return self

    @model_validator(mode="after")
    def _names_and_places(self) -> "Config":
        for name in self.pipelines:
            if not _NAME.match(name):
                raise ValueError(
                    f"pipeline name {name!r}: use lower-case letters, digits, - and _ (it becomes a directory)"
                )
        owners: dict[Parts, str] = {}
        for name, pipeline in self.pipelines.items():
            for place in filter(None, (pipeline.table.location, pipeline.dead_letters, pipeline.late_table)):
                at = parts(place)
                if at in owners:
                    owners_named = (
                        f"pipelines {owners[at]!r} and {name!r}" if owners[at] != name else f"pipeline {name!r}"
                    )
                    raise ValueError(f"{owners_named} would write two tables to {place}; give each its own location")
                owners[at] = name
        groups: dict[str, str] = {}
        for name, pipeline in self.pipelines.items():
            group = pipeline.commit_offsets_to_group
            if group is not None and (other := groups.setdefault(group, name)) != name:
                raise ValueError(
                    f"pipelines {other!r} and {name!r} would both mirror their offsets to group {group!r}; "
                    "give each its own"
                )
        return self

    @model_validator(mode="after")
    def _pools_are_ours(self) -> "Config":
        equal = Scheduling.model_validate({})
        shares = [name for name, pipeline in self.pipelines.items() if pipeline.scheduling != equal]
        for key in ("spark.scheduler.mode", "spark.scheduler.allocation.file"):
            if shares and self.spark.conf.get(key, "FAIR").upper() != "FAIR":
                raise ValueError(
                    f"spark.conf sets {key}, so pipelines.{shares[0]}.scheduling would not count; leave one of them out"
                )
        return self

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema of the file, for editors: durations and sizes are text, as they are in the file."""
        found = cls.model_json_schema(mode="serialization")
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "headrace configuration"}

    def one(self, name: str | None) -> str:
        """Name of the pipeline that was asked for; of the only one, when none was. Raises ConfigError."""
        names = self.chosen([name] if name else None)
        if len(names) > 1:
            raise ConfigError(f"there are {len(names)} pipelines; say which: --pipeline {' or '.join(names)}")
        return names[0]

    def chosen(self, only: list[str] | None) -> list[str]:
        """Names of the pipelines that were asked for; all, when none was. Raises ConfigError for an unknown one."""
        for name in only or []:
            if name not in self.pipelines:
                raise ConfigError(
                    f"the configuration has no pipeline {name!r}{did_you_mean(name, list(self.pipelines))}"
                )
        return only or list(self.pipelines)
