"""What all configuration sections share: a base that refuses unknown keys, short forms, defaults."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Strict(BaseModel):
    """A section that refuses unknown keys and names the key that was probably meant."""

    # The input is not shown in errors: it may be a secret.
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, raw: Any) -> Any:
        if isinstance(raw, dict):
            keys = [field.alias or name for name, field in cls.model_fields.items()]
            unknown = [f"unknown key {key!r}{did_you_mean(str(key), keys)}" for key in raw if key not in keys]
            if unknown:
                raise ValueError(" and ".join(unknown))
        return raw


def did_you_mean(name: str, known: list[str]) -> str:
    """Name the closest known word, or list them all; '' where none is known."""
    if not known:
        return ""
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"


class ShortForm(Strict):
    """A section that may be written as the value of one of its keys alone."""

    # Name of the key.
    short: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, raw: Any) -> Any:
        return {cls.short: raw} if isinstance(raw, str) else raw

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        """Let the JSON schema take the short form, too."""
        section = handler(core)
        value = handler.resolve_ref_schema(section)["properties"][cls.short]
        return {"anyOf": [section, {name: value[name] for name in ("type", "enum") if name in value}]}


def overlay_settings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with what `above` says, section by section. A section of another `type` stands alone.

    A section that is named and left empty says nothing.
    """
    settings = dict(below)
    for key, value in above.items():
        lower = settings.get(key)
        if not isinstance(lower, Mapping) or not isinstance(value, Mapping | None):
            settings[key] = value
        elif value is not None:
            is_other = "type" in value and value["type"] != lower.get("type", value["type"])
            settings[key] = dict(value) if is_other else overlay_settings(lower, value)
    return settings


def with_defaults(raw: Any, known: Collection[str]) -> Any:
    """Return a configuration whose pipelines have what they do not say from `defaults`; `known`: keys of a pipeline.

    `{pipeline}` in a text stands for the name. Raises ValueError for a key that no pipeline has.
    """
    defaults = raw.get("defaults") if isinstance(raw, dict) else None
    if not isinstance(defaults, dict) or not isinstance(raw.get("pipelines"), dict):
        return raw
    unknown = [f"unknown key {key!r}{did_you_mean(str(key), list(known))}" for key in defaults if key not in known]
    if unknown:
        raise ValueError(f"defaults: {' and '.join(unknown)}")
    pipelines = {
        name: overlay_settings(_insert_name(defaults, str(name)), one or {}) if isinstance(one, dict | None) else one
        for name, one in raw["pipelines"].items()
    }
    return {**raw, "pipelines": pipelines}


def _insert_name(value: Any, pipeline: str) -> Any:
    if isinstance(value, dict):
        return {key: _insert_name(item, pipeline) for key, item in value.items()}
    if isinstance(value, list):
        return [_insert_name(item, pipeline) for item in value]
    return value.replace("{pipeline}", pipeline) if isinstance(value, str) else value
