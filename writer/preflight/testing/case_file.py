"""What a test file may say."""

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.writer.config.base import ShortForm, Strict
from headrace.writer.core.units import parse_instant

Exit = Literal["row", "late", "dead_letter", "quarantined", "filtered", "tombstone"]


def _instant(value: Any) -> datetime:
    try:
        return parse_instant(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is no time; write 2026-11-20T12:00:00Z") from error


Instant = Annotated[datetime, BeforeValidator(_instant)]


class RecordSpec(Strict):
    """One record: its value as JSON, or as bytes."""

    value: Any = Field(None, description="the value as JSON, of the format raw as text; null: a tombstone")
    hex: str | None = Field(None, description="in place of `value`: the bytes of the value as Kafka has them")
    schema_file: Path | None = Field(None, alias="schema", description="default: that of the test")
    message: str | None = Field(
        None, description="of a Protobuf schema with several messages: the full name of the one; default: the test's"
    )
    key: Any = Field(None, description="text, or with a key_schema the Avro value as JSON")
    key_schema: Path | None = Field(None, description="default: that of the test")
    headers: dict[str, str | None] = Field(default_factory=dict)
    topic: str | None = Field(None, description="default: that of the test")
    partition: int = Field(0, ge=0)
    offset: int | None = Field(None, ge=0, description="default: behind the record before it")
    timestamp: Instant | None = Field(None, description="when the broker had it; default: `now`")

    @model_validator(mode="after")
    def _has_a_value(self) -> "RecordSpec":
        if (self.hex is None) == ("value" not in self.model_fields_set):
            raise ValueError("give it a `value`, which is null for a tombstone, or `hex`")
        if self.hex is not None and not re.fullmatch(r"(\s*[0-9A-Fa-f]{2})*\s*", self.hex):
            raise ValueError(f"hex: {self.hex!r} is no row of pairs of hexadecimal digits")
        return self


class ExpectedOutcome(ShortForm):
    """What is to become of a record. What it does not say is not compared."""

    short: ClassVar[str] = "exit"
    exit: Exit = Field("row", description="what becomes of it")
    table: str | None = Field(None, description="of a route: the name whose table the row goes to")
    bucket: str | None = Field(None, description="as its folder is called, such as hour=2026-11-20T11")
    row: dict[str, Any] | None = Field(None, description="columns of the row; others are not compared")
    reason: str | None = Field(None, description="text that the reason has")
    spec: str | None = Field(None, description="the event spec that leaves it out")
    rule: str | None = Field(None, description="where, or sample")

    @model_validator(mode="after")
    def _fits_the_exit(self) -> "ExpectedOutcome":
        of_rows = ("row", "late")
        of_failures = ("dead_letter", "quarantined")
        for key, exits in {
            "table": of_rows,
            "bucket": of_rows,
            "row": of_rows,
            "reason": of_failures,
            "spec": ("filtered",),
            "rule": ("filtered",),
        }.items():
            if getattr(self, key) is not None and self.exit not in exits:
                raise ValueError(f"{key!r} goes with exit {' or '.join(exits)}, not with {self.exit}")
        return self


Count = int | dict[str, int]


class CaseFile(Strict):
    """A test file. Paths are relative to it."""

    config: Path = Field(description="the configuration file")
    pipeline: str | None = Field(None, description="default: the only one")
    now: Instant = Field(description="the time that the steps take for now, so that each run has the same result")
    closed_until: Instant | None = Field(
        None, description="buckets that end by then are closed, so their rows are late; default: none is closed"
    )
    variables: dict[str, str] = Field(default_factory=dict, description="for ${env:NAME} in the configuration")
    topic: str | None = Field(None, description="of records that name none; default: the first that is configured")
    schema_file: Path | None = Field(None, alias="schema", description="of the values of records that name none")
    message: str | None = Field(None, description="of a Protobuf schema: the message of records that name none")
    key_schema: Path | None = Field(None, description="of the keys of records that name none; default: keys are text")
    registered: list[Path] = Field(default_factory=list, description="schemas of values that are older than these")
    records: Any = Field(description="records by their names, or the file of a sample that `preview --save` wrote")
    expect: Any = Field(default_factory=dict, description="by names what is expected, or the file that has it")
    counts: dict[Exit, Count] | None = Field(
        None, description="how many records have an exit, or how many by table; the others need not be in `expect`"
    )
