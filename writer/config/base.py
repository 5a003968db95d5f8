"""Base of all configuration sections: refuses unknown keys and names the key that was probably meant."""

import difflib
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Strict(BaseModel):
    """A section that refuses unknown keys and names the key that was probably meant."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", serialize_by_alias=True, hide_input_in_errors=True  # it may be a secret
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, raw: Any) -> Any:
        if isinstance(raw, dict):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            for key in raw:
                if key not in known:
                    raise ValueError(f"unknown key {key!r}{did_you_mean(str(key), known)}")
        return raw


def did_you_mean(name: str, known: list[str]) -> str:
    """Name the closest known word, or list them all; '' where none is known."""
    if not known:
        return ""
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"


class ShortForm(Strict):
    """A section that may be written as the value of one of its keys alone."""

    short: ClassVar[str]  # name of the key

    @model_validator(mode="before")
    @classmethod
    def _expanded(cls, raw: Any) -> Any:
        return {cls.short: raw} if isinstance(raw, str) else raw

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """Let the JSON schema take the short form, too."""
        whole = handler(core)
        value = handler.resolve_ref_schema(whole)["properties"][cls.short]
        return {"anyOf": [whole, {name: value[name] for name in ("type", "enum") if name in value}]}
