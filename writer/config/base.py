"""What all configuration sections share: a base that refuses unknown keys, short forms, defaults."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


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


def check_type(*sections: type[BaseModel]) -> BeforeValidator:
    """Return a check of the key `type` of a section that is one of several, which says what it may be."""
    names = [name for section in sections for name in get_args(section.model_fields["type"].annotation)]

    def check(raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        if "type" not in raw:
            raise ValueError(f"'type' is missing; known here: {', '.join(names)}")
        if not isinstance(raw["type"], str) or raw["type"] not in names:
            # What stands there is not shown: it may be a secret in the wrong place.
            raise ValueError(f"'type' is none of: {', '.join(names)}")
        return raw

    return BeforeValidator(check)


def did_you_mean(name: str, names: list[str]) -> str:
    """Name the closest of the names that can be used, or list them all; '' where there is none."""
    if not names:
        return ""
    close = difflib.get_close_matches(name, names, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known here: {', '.join(names)}"


class ShortForm(Strict):
    """A section that may be written as the value of one of its keys alone."""

    # Name of the key.
    short: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, raw: Any) -> Any:
        if isinstance(raw, str):
            return {cls.short: raw}
        return raw

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
            if is_other:
                lower = {}
            settings[key] = overlay_settings(lower, value)
    return settings


def with_defaults(raw: Any, keys: Collection[str]) -> Any:
    """Return a configuration whose pipelines have what they do not say from `defaults`; `keys`: of a pipeline.

    `{pipeline}` in a text stands for the name. Raises ValueError for a key that no pipeline has.
    """
    defaults = None
    if isinstance(raw, dict):
        defaults = raw.get("defaults")
    if not isinstance(defaults, dict) or not isinstance(raw.get("pipelines"), dict):
        return raw
    unknown = [f"unknown key {key!r}{did_you_mean(str(key), list(keys))}" for key in defaults if key not in keys]
    if unknown:
        raise ValueError(f"defaults: {' and '.join(unknown)}")
    pipelines = dict(raw["pipelines"])
    for name, pipeline in pipelines.items():
        # What is no section, its own check refuses.
        if isinstance(pipeline, dict | None):
            pipelines[name] = overlay_settings(_insert_name(defaults, str(name)), pipeline or {})
    return {**raw, "pipelines": pipelines}


def _insert_name(value: Any, pipeline: str) -> Any:
    if isinstance(value, dict):
        return {key: _insert_name(item, pipeline) for key, item in value.items()}
    if isinstance(value, list):
        return [_insert_name(item, pipeline) for item in value]
    if isinstance(value, str):
        return value.replace("{pipeline}", pipeline)
    return value
