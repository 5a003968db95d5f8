"""Which table each record of a pipeline goes to, where it fills many (docs/ROUTING.md)."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from headrace.writer.batch.route import By, RouteRule
from headrace.writer.config.base import ShortForm, Strict, did_you_mean
from headrace.writer.config.safe_names import make_folder_name, make_identifier, make_namespace_folder_name
from headrace.writer.config.sections.bucket_upkeep import Compact, Seal
from headrace.writer.config.sections.hooks import HookSettings
from headrace.writer.config.sections.record_format import Columns
from headrace.writer.config.sections.table import (
    CATALOG_NAME,
    BucketSpec,
    EventTime,
    Roll,
    Schemas,
    TableFormat,
)
from headrace.writer.core.units import Duration, Size
from headrace.writer.storage.locations import parse_location

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = ("name", "namespace", "full_name")
_GLOB = re.compile(r"[*?[]")


class RouteKey(Strict):
    """A header, or a field, whose text names the table."""

    header: str | None = Field(None, min_length=1, description="name of the header; of several, the last counts")
    field: str | None = Field(None, min_length=1, description="field of the value, nested with dots; null has no table")

    @model_validator(mode="after")
    def _one(self) -> "RouteKey":
        if (self.header is None) == (self.field is None):
            raise ValueError("route by one: {header: event-type} or {field: type}")
        return self


class Target(ShortForm):
    """A table, or one for each name that matches. What is not given is as in the pipeline."""

    short: ClassVar[str] = "location"
    location: str = Field(
        description="location of the table. With {name}, {namespace} (what stands before the last dot) or {full_name} "
        "each name gets a table of its own"
    )
    format: TableFormat | None = Field(None, description="as `table.format`")
    name: str | None = Field(
        None,
        description="name in the catalog, of an Iceberg table, such as shop.{name}; with what a location may have. "
        "Default: the namespace of the pipeline's own table, and the name of the folder",
    )
    event_time: EventTime | None = Field(None, description="as `event_time`")
    bucket: BucketSpec | None = Field(None, description="as `bucket`")
    columns: Columns | None = Field(None, description="as `columns`")
    roll: Roll | None = Field(None, description="as `roll`")
    schemas: Schemas | None = Field(None, description="as `schemas`")
    retention: Duration | None = Field(None, description="as `retention`")
    seal: Seal | None = Field(None, description="as `seal`")
    compact: Compact | None = Field(None, description="as `compact`")
    hooks: list[HookSettings] | None = Field(None, description="as `hooks`")

    @field_validator("location")
    @classmethod
    def _known_placeholders(cls, value: str) -> str:
        if parse_location(_sample(value)) == value:
            return value
        return value.removeprefix("file://").rstrip("/")

    @field_validator("name")
    @classmethod
    def _namespace_and_table(cls, value: str | None) -> str | None:
        if value is not None and not re.match(CATALOG_NAME, _sample(value)):
            raise ValueError(f"{value!r} is no namespace and table; write it as shop.clicks, or shop.{{name}}")
        return value

    @property
    def is_template(self) -> bool:
        """Whether each name has a location of its own."""
        return _PLACEHOLDER.search(self.location) is not None

    def location_of(self, name: str) -> str:
        """Return where the table of a name lies."""
        return fill_location(self.location, name)

    def catalog_name_of(self, name: str) -> str | None:
        """Return what the table of a name is called in the catalog; None where that is not given."""
        if self.name is None:
            return None
        return fill_identifier(self.name, name)


def _sample(template: str) -> str:
    """Put a letter for each placeholder. Raises ValueError for one that is not known."""
    for name in _PLACEHOLDER.findall(template):
        if name not in _PLACEHOLDERS:
            raise ValueError(f"{template}: {{{name}}} is not known{did_you_mean(name, list(_PLACEHOLDERS))}")
    return _PLACEHOLDER.sub("x", template)


def fill_location(template: str, name: str) -> str:
    """Put a name into a location. Each placeholder becomes one folder's name, or a part of one."""
    return _fill(template, _folder_names(name))


def fill_identifier(template: str, name: str) -> str:
    """Put a name into a name in a catalog, where tables are called as their folders are."""
    return _fill(template, {key: make_identifier(folder) for key, folder in _folder_names(name).items()})


def _folder_names(name: str) -> dict[str, str]:
    """Return what stands for each placeholder in a location."""
    namespace, dot, last = name.rpartition(".")
    return {
        "name": make_folder_name(last),
        "namespace": make_namespace_folder_name(namespace if dot else None),
        "full_name": make_folder_name(name),
    }


def _fill(template: str, texts: Mapping[str, str]) -> str:
    """Put texts in the place of their placeholders. What is no placeholder stays."""
    return _PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), template)


class HeldSection(Strict):
    """What becomes of the records for a table whose storage refuses: their files wait at the pipeline's log."""

    max_bytes: Size = Field(10 * 2**30, description="of files that wait for one table")
    max_age: Duration = Field(timedelta(days=1), description="of the oldest that waits")
    on_limit: Literal["stop", "dead_letters"] = Field(
        "stop", description="beyond it: stop with exit code 5, or make dead letters of further records of this table"
    )


class RouteSection(Strict):
    """Where the records of a pipeline go that fills many tables."""

    by: Literal["record", "topic"] | RouteKey = Field(
        "record",
        description="what names the table: record (the full name of the Avro record), topic, {header: …} or {field: …}",
    )
    targets: dict[str, Target] = Field(
        min_length=1,
        description="tables by the name that goes there, or by a pattern with *, ? and […]. A name itself goes before "
        "patterns, of which the first counts",
    )
    unrouted: str = Field(
        "dead_letters", description="what becomes of a record without a table: dead_letters, stop, or one of `targets`"
    )
    max_targets: int = Field(
        200, ge=0, description="most tables that are made by {name}; a record that needs a further one is unrouted"
    )

    held: HeldSection = HeldSection.model_validate({})

    @model_validator(mode="after")
    def _unrouted_somewhere(self) -> "RouteSection":
        if self.unrouted in ("dead_letters", "stop"):
            return self
        fixed_names = [name for name, target in self.targets.items() if name in self.fixed]
        if self.unrouted not in fixed_names:
            raise ValueError(
                f"route.unrouted: {self.unrouted!r} is neither dead_letters nor stop, nor one table of `targets`"
                f"{did_you_mean(self.unrouted, ['dead_letters', 'stop', *fixed_names])}"
            )
        return self

    @property
    def by_key(self) -> tuple[By, str]:
        """What names the table, and the name of the header or field."""
        if not isinstance(self.by, RouteKey):
            return self.by, ""
        if self.by.field is not None:
            return ("field", self.by.field)
        return ("header", self.by.header or "")

    @property
    def fixed(self) -> Mapping[str, str]:
        """Targets that are one table each, and where it lies."""
        return {
            name: target.location_of(name)
            for name, target in self.targets.items()
            if not (target.is_template and _GLOB.search(name))
        }

    def has_one_name(self, rule: str) -> bool:
        """Return whether all of the tables that a rule makes would have one name in a catalog."""
        target = self.targets[rule]
        return rule not in self.fixed and not _PLACEHOLDER.search(target.name or target.location.rpartition("/")[2])

    @property
    def rules(self) -> list[RouteRule]:
        """The rules in the order that counts: names, then patterns."""
        ordered = sorted(self.targets, key=lambda name: _GLOB.search(name) is not None)
        return [RouteRule(name, name if name in self.fixed else None) for name in ordered]

    def rule_of(self, name: str) -> str | None:
        """Return the key of `targets` that a name of a record goes by; None: none."""
        return next((rule.pattern for rule in self.rules if rule.matches(name)), None)


def settings_of(target: Target) -> dict[str, Any]:
    """Return the sections that a target has of its own, by their keys in a pipeline."""
    keys = ("event_time", "bucket", "columns", "roll", "schemas", "retention", "seal", "compact", "hooks")
    return {key: value for key in keys if (value := getattr(target, key)) is not None}
