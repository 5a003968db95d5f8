"""The section `wire` of a pipeline: how its records carry the id of their schema."""

from typing import Any, Literal

from pydantic import Field, model_validator

from writer.avro import wire_format
from writer.config.base import Strict


class Wire(Strict):
    """How a record says which schema its value was written with. `wire: confluent` is short for its `format`."""

    format: Literal["auto", "confluent", "apicurio", "header", "single_object", "bare"] = Field(
        "auto", description="wire format of the values; `auto` finds it in the records and keeps it (docs/TYPES.md)"
    )
    header: str | None = Field(
        None, min_length=1,
        description="for `header`: Kafka header with the id, such as __value_schema_id or apicurio.value.globalId",
    )  # fmt: skip
    ids: Literal["confluent", "global", "content"] | None = Field(
        None,
        description="for `apicurio`: which of its ids, by default `global`; for a `header` of another name: which ids",
    )
    schema_id: int | None = Field(None, ge=1, description="for `bare`: id of the schema that all values have")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, raw: Any) -> Any:
        return {"format": raw} if isinstance(raw, str) else raw

    @model_validator(mode="after")
    def _what_the_format_needs(self) -> "Wire":
        needed = {"header": "header", "bare": "schema_id"}.get(self.format)
        for key in ("header", "schema_id"):
            given = getattr(self, key) is not None
            if key == needed and not given:
                raise ValueError(f"format {self.format!r} needs {key!r}: {type(self).model_fields[key].description}")
            if key != needed and given:
                raise ValueError(f"format {self.format!r} has no {key!r}; leave it out")
        if self.format == "header" and self.header not in wire_format.ID_HEADERS and self.ids is None:
            raise ValueError(f"which ids the Kafka header {self.header!r} carries is not known; set 'ids'")
        if self.ids is not None and self.format not in ("apicurio", "header", "bare"):
            raise ValueError(f"format {self.format!r} has no choice of 'ids'; leave it out")
        if self.format == "apicurio" and self.ids == "confluent":
            raise ValueError("format 'apicurio' has global or content ids")
        return self

    @property
    def fixed(self) -> wire_format.Wire | None:
        """The format; None when it is to be found."""
        match self.format:
            case "auto":
                return None
            case "apicurio":
                return wire_format.Wire("apicurio", self.ids or "global")
            case "single_object":
                return wire_format.Wire("single_object", "fingerprint")
            case "header":
                return wire_format.Wire("header", self.ids or wire_format.ID_HEADERS[str(self.header)], self.header)
            case format_:
                return wire_format.Wire(format_, self.ids or "confluent", schema_id=self.schema_id)
