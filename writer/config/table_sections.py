"""The sections that describe one table: where it lies, its event time, its buckets, its files, its schemas."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

import bucketers
from writer.batch.bucketing import TimeRule
from writer.config.base import Strict
from writer.config.pipeline_sections import ClockRule, Place
from writer.core.units import Duration, Size, duration, show_duration

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


BucketSpec = Annotated[dict[str, Any], AfterValidator(_bucketer)]


class Roll(Strict):
    """When a file is closed."""

    target_file_size: Size = Field(128 * 2**20, description="size at which a Parquet file is closed")


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
