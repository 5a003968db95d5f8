"""What a JSON Schema says beside its types, as attributes of a field: tags, and words that policies may name. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.writer.privacy.policy import CONFLUENT_TAGS

# Words that a field of a record schema has itself, or that JSON Schema and OpenAPI define.
_KNOWN_WORDS = frozenset(
    (
        # Of fields.
        "name",
        "doc",
        "aliases",
        "order",
        "logicalType",
        "namespace",
        # Of JSON Schema.
        "type",
        "title",
        "description",
        "default",
        "examples",
        "enum",
        "const",
        "format",
        "pattern",
        "id",
        "contentEncoding",
        "contentMediaType",
        "uniqueItems",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "required",
        "additionalProperties",
        "additionalItems",
        "unevaluatedProperties",
        "unevaluatedItems",
        "properties",
        "patternProperties",
        "definitions",
        "dependencies",
        "dependentSchemas",
        "dependentRequired",
        "items",
        "contains",
        "propertyNames",
        "contentSchema",
        "if",
        "then",
        "else",
        "not",
        "deprecated",
        "readOnly",
        "writeOnly",
        # Of OpenAPI.
        "example",
        "nullable",
        "discriminator",
        "xml",
        "externalDocs",
    )
)
_FOREIGN_PREFIXES = ("$", "connect.", "headrace.")
_MASK = ["mask"]


def read_attributes(sources: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attributes that schemas say of one field together: all tags, and settings of other words.

    A word with several settings has a list of them, which no policy is: it is refused rather than obeyed in part.
    """
    tags: dict[str, None] = {}
    # Each once, by its JSON.
    settings: dict[str, dict[str, Any]] = {}
    for schema in sources:
        tags |= dict.fromkeys(_tags_of(schema))
        for word, setting in schema.items():
            if _is_setting(word, setting):
                settings.setdefault(word, {})[json.dumps(setting)] = setting
    attributes: dict[str, Any] = {word: _one_or_all(list(values.values())) for word, values in settings.items()}
    if tags:
        attributes[CONFLUENT_TAGS] = list(tags)
    return attributes


def _tags_of(schema: Mapping[str, Any]) -> list[str]:
    tags = schema.get(CONFLUENT_TAGS)
    if tags is None:
        return []
    if not isinstance(tags, list):
        tags = [tags]
    # What is no text has no policy, and is named as it stands.
    return [tag if isinstance(tag, str) else json.dumps(tag) for tag in tags]


def _is_setting(word: str, setting: Any) -> bool:
    """Return whether a word is none of JSON Schema, and says what a policy may be: `true`, a text, `{"mask": 4}`."""
    if word == CONFLUENT_TAGS or word in _KNOWN_WORDS or word.startswith(_FOREIGN_PREFIXES):
        return False
    return setting is True or isinstance(setting, str) or (isinstance(setting, dict) and list(setting) == _MASK)


def _one_or_all(settings: list[Any]) -> Any:
    return settings[0] if len(settings) == 1 else settings
