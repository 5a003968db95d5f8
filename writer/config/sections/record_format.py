"""Sections about records: their wire format, the columns of keys and headers, the clocks of their producers."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from headrace import bucketers
from headrace.writer.batch.bucketing import Clock
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.config.base import ShortForm, Strict
from headrace.writer.core.pages import page_address
from headrace.writer.core.units import Shift
from headrace.writer.formats.value_rules import FormatName, ValueRules
from headrace.writer.framing import wire_format
from headrace.writer.json.declared import declared_record
from headrace.writer.json.record_schema import Misfit, Undeclared

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
            # Raises ValueError for an unknown zone.
            bucketers.EventTime(timedelta(days=1), self.zone)
        return self

    @property
    def clock(self) -> Clock:
        """What tasks get of it."""
        return Clock(self.topic, self.field, tuple(self.values), self.shift, self.zone)


class Wire(ShortForm):
    """How a record says which schema its value, or its key, was written with. `wire: confluent` gives its `format`."""

    short: ClassVar[str] = "format"
    format: Literal["auto", "confluent", "apicurio", "glue", "header", "single_object", "bare"] = Field(
        "auto",
        description=f"wire format; `auto` finds it in the records and keeps it ({page_address('docs/TYPES.md')})",
    )
    header: str | None = Field(
        None,
        min_length=1,
        description="for `header`: Kafka header with the id, such as __value_schema_id or apicurio.value.globalId",
    )
    ids: Literal["confluent", "global", "content"] | None = Field(
        None,
        description="for `apicurio`: which of its ids, by default `global`; for `confluent`: `global` or `content`, "
        "where the 4 bytes are an id of Apicurio's; for a `header` of another name: which ids",
    )
    schema_id: int | None = Field(None, ge=1, description="for `bare`: id of the schema that all have")
    others: list["Wire"] = Field(
        default_factory=list,
        description="formats that values may have as well; `wire: [confluent, apicurio]` is short for the first and "
        "the others. Each value is read by the first that it has",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_list(cls, raw: Any) -> Any:
        if not isinstance(raw, list):
            return raw
        if not raw:
            raise ValueError("an empty list names no format; leave `wire` out to have it detected")
        first, *others = [{"format": wire} if isinstance(wire, str) else wire for wire in raw]
        if not isinstance(first, dict):
            raise ValueError(f"{first!r} is no wire format")  # noqa: TRY004 - becomes the error of its key
        return {**first, "others": others}

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
        if self.ids is not None and self.format not in ("apicurio", "confluent", "header", "bare"):
            raise ValueError(f"format {self.format!r} has no choice of 'ids'; leave it out")
        if self.format == "apicurio" and self.ids == "confluent":
            raise ValueError("format 'apicurio' has global or content ids")
        self._check_others()
        return self

    def _check_others(self) -> None:
        if not self.others:
            return
        for wire in (self, *self.others):
            if wire.format in ("auto", "bare"):
                raise ValueError(f"several formats: {wire.format!r} takes every value, so no other stands beside it")
        if any(wire.others for wire in self.others):
            raise ValueError("others: they have no others of their own; write one list")
        marks = [(wire.format, wire.header) for wire in (self, *self.others)]
        if len(set(marks)) < len(marks):
            raise ValueError("several formats: one of them stands there twice, and no value shows which is meant")

    @property
    def fixed(self) -> wire_format.Wire | None:
        """The format, with the others; None if it is to be detected."""
        wire = self._single
        if wire is None or not self.others:
            return wire
        others = tuple(other for other in (section.fixed for section in self.others) if other is not None)
        return replace(wire, others=others)

    @property
    def _single(self) -> wire_format.Wire | None:
        match self.format:
            case "auto":
                return None
            case "apicurio":
                return wire_format.Wire("apicurio", self.ids or "global")
            case "single_object":
                return wire_format.Wire("single_object", "fingerprint")
            case "glue":
                return wire_format.GLUE
            case "header":
                return wire_format.Wire("header", self.ids or _ID_HEADERS[str(self.header)], self.header)
            case format_:
                return wire_format.Wire(format_, self.ids or "confluent", schema_id=self.schema_id)


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
    """The columns of JSON values, and those of what a record has beside its value.

    A table that exists has them from the next commit on.
    """

    declared: dict[str, Any] = Field(
        default_factory=dict,
        description="with format json: member of the values → type, such as long, timestamp(ms), decimal(10, 2), json; "
        "a mapping is an object with members of its own, a list of one type an array, {'*': type} an object with "
        "members of any name",
    )
    undeclared: Undeclared = Field(
        "rest",
        description="members of JSON that have no column: rest keeps them as JSON text in the column `rest` of their "
        "object, drop leaves them out and counts them, dead_letter refuses the record",
    )
    misfit: Misfit = Field(
        "dead_letter",
        description="a member of JSON that does not have its column's type makes a dead letter; with null the column "
        "is null, and the member goes to `rest`",
    )

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

    @model_validator(mode="after")
    def _check_declaration(self) -> "Columns":
        if self.declared:
            try:
                declared_record(self.declared, self.undeclared, self.misfit)
            except ValueError as error:
                raise ValueError(f"declared: {error}") from error
        return self

    @property
    def avro_key(self) -> KeyColumn | None:
        """The column of a key that is read by its own Avro schema; None without one."""
        if self.key is not None and self.key.type == "avro":
            return self.key
        return None

    @property
    def record_columns(self) -> RecordColumns:
        """What tasks get."""
        chosen = tuple((name, column.header, column.type) for name, column in self.header_columns.items())
        key = None
        if self.key is not None:
            key = (self.key.name, self.key.type)
        return RecordColumns(key, self.headers, chosen, self.undecodable == "null")


def check_formats(formats: list[FormatName], wire: Wire, columns: Columns) -> None:
    """Raise ValueError where formats, the wire format and the columns of JSON contradict each other."""
    if twice := next((name for name in formats if formats.count(name) > 1), None):
        raise ValueError(f"formats: {twice!r} stands there twice; name each format once")
    if "raw" in formats and len(formats) > 1:
        raise ValueError("formats: raw takes every value, so no other format stands beside it; leave one of them out")
    if "json" in formats and not columns.declared:
        raise ValueError(
            "columns.declared: JSON without a schema has the columns that are declared; declare some, which "
            "`headrace init` proposes, or take the format json_schema for values that name a schema of the registry"
        )
    if "json" not in formats and columns.declared:
        raise ValueError("columns.declared: columns are declared for the format json; add it to `formats`")
    if "json" not in formats and "json_schema" not in formats:
        for key in ("undeclared", "misfit"):
            if getattr(columns, key) != Columns.model_fields[key].default:
                raise ValueError(f"columns.{key} is of JSON, which `formats` does not name")
    if wire.format != "auto" and not ValueRules(tuple(formats)).has_schemas:
        raise ValueError(
            f"wire: values of the format {formats[0]} name no schema, so they have no wire format; leave it out"
        )
    if wire.format == "bare" and len(formats) > 1:
        raise ValueError("wire: `bare` gives all values one schema, so `formats` has one format")
