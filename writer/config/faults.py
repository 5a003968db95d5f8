"""Describes what is wrong with a document that a model refuses: one line for each mistake of the person who wrote it.

A mistake has one line however often it counts: in the `defaults` of many pipelines, behind an alias of YAML, or for
each of the types that a value may have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from headrace.writer.config.base import with_defaults
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.text import join_first

_KeyPath = tuple[str | int, ...]
# Further pipelines with the same mistake that a line names.
_NAMED = 3
# Pydantic's own sentences name classes.
_TEXTS = {
    "model_type": "Input should be a mapping of keys to values",
    "model_attributes_type": "Input should be a mapping of keys to values",
    "string_type": "Input should be text; a number, yes and no need quotes",
    "dict_type": "Input should be a mapping of keys to values",
}


@dataclass(frozen=True)
class _Fault:
    """What is wrong with the value at a place."""

    key_path: _KeyPath
    message: str
    # Whether only the type of the value is wrong, for one of the types that it may have.
    is_other_type: bool


def describe_faults(error: ValidationError, document: Any = None, *above: str) -> list[str]:
    """Return a line for each fault: its key, below the keys `above`, and what is wrong with it.

    `document`: what was refused, as it is written.
    """
    effective = _effective(document)
    details = [_fault(detail, effective) for detail in error.errors()]
    return [
        f"  {'.'.join(map(str, (*above, *key_path))) or 'file'}: {message}"
        for key_path, message in _merge_pipelines(_merge_types(details), document)
    ]


def _effective(document: Any) -> Any:
    """Return the document whose pipelines have what `defaults` say."""
    try:
        return with_defaults(document, list(Pipeline.model_fields))
    # Then this is the fault.
    except ValueError:
        return document


def _fault(detail: Any, document: Any) -> _Fault:
    message = _TEXTS.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    if detail["type"] == "too_short" and detail["ctx"].get("field_type") == "Value":
        message = _describe_short_secret(detail["ctx"]["min_length"])
    key_path = detail["loc"]
    if document is None:
        return _Fault(key_path, message, is_other_type=False)
    written = _written_path(key_path, document, is_missing=detail["type"] == "missing")
    has_types = len(written) < len(key_path)
    is_mismatch = detail["type"].endswith("_type") or detail["type"] == "literal_error"
    return _Fault(written, message, is_other_type=has_types and is_mismatch)


def _describe_short_secret(shortest: int) -> str:
    """Return what is wrong with a secret that is too short; pydantic's sentence counts items, and tells its length."""
    if shortest == 1:
        return "is empty; give it a value, or correct what it is taken from"
    return f"should have at least {shortest} characters; make it longer"


def _written_path(key_path: _KeyPath, document: Any, *, is_missing: bool) -> _KeyPath:
    """Return a place without the steps that pydantic adds for the type that it tried.

    `is_missing`: the last step is a key that should be there.
    """
    steps = list[str | int]()
    value = document
    for step in key_path:
        is_key = isinstance(value, Mapping) and step in value
        is_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_key or is_index:
            value = value[step]
            steps.append(step)
    if is_missing:
        steps.append(key_path[-1])
    return tuple(steps)


def _merge_types(faults: Sequence[_Fault]) -> dict[_KeyPath, str]:
    """Return one message for each place: where a value fits one of its types so far, only what is wrong with that."""
    by_path = dict[_KeyPath, list[_Fault]]()
    for fault in faults:
        by_path.setdefault(fault.key_path, []).append(fault)
    messages = dict[_KeyPath, str]()
    for key_path, faults_there in by_path.items():
        has_deeper = any(len(other) > len(key_path) and other[: len(key_path)] == key_path for other in by_path)
        precise = [fault for fault in faults_there if not fault.is_other_type]
        if not precise and has_deeper:
            continue
        texts = dict.fromkeys(fault.message for fault in precise or faults_there)
        messages[key_path] = "; or: ".join(texts)
    return messages


def _merge_pipelines(messages: Mapping[_KeyPath, str], document: Any) -> list[tuple[_KeyPath, str]]:
    """Return places and messages, those that several pipelines have once."""
    pipelines = dict[tuple[_KeyPath, str], list[str]]()
    for key_path, message in messages.items():
        if _is_of_pipeline(key_path):
            pipelines.setdefault((key_path[2:], message), []).append(str(key_path[1]))
    merged = dict[tuple[_KeyPath, str], None]()
    for key_path, message in messages.items():
        if not _is_of_pipeline(key_path):
            merged[key_path, message] = None
            continue
        names = pipelines[key_path[2:], message]
        if _stands_in_defaults(key_path[2:], names, document):
            merged[("defaults", *key_path[2:]), message] = None
        elif str(key_path[1]) == names[0]:
            others = ""
            if names[1:]:
                others = f" (the same in {join_first(names[1:], _NAMED)})"
            merged[key_path, message + others] = None
    return list(merged)


def _is_of_pipeline(key_path: _KeyPath) -> bool:
    return len(key_path) > 1 and key_path[0] == "pipelines"


def _stands_in_defaults(key_path: _KeyPath, names: Sequence[str], document: Any) -> bool:
    """Return whether `defaults` hold more of the way to a place than one of the pipelines itself."""
    if not isinstance(document, Mapping) or not isinstance(document.get("defaults"), Mapping):
        return False
    depth = _depth(document["defaults"], key_path)
    pipelines = document["pipelines"]
    return any(_depth(pipelines.get(name), key_path) < depth for name in names)


def _depth(value: Any, key_path: _KeyPath) -> int:
    """Return how many steps of a place a value has."""
    for depth, step in enumerate(key_path):
        if not isinstance(value, Mapping) or step not in value:
            return depth
        value = value[step]
    return len(key_path)
