"""Describes what is wrong with a document that a model refuses: one line for each mistake of the person who wrote it.

A mistake has one line however often it counts: in the `defaults` of many pipelines, behind an alias of YAML, or for
each of the types that a value may have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from writer.config.base import with_defaults
from writer.config.pipeline import Pipeline
from writer.core.text import join_first

_Place = tuple[str | int, ...]
# Further pipelines with the same mistake that a line names.
_NAMED = 3
# Pydantic's own sentences name classes.
_TEXTS = {
    "model_type": "Input should be a mapping of keys to values",
    "dict_type": "Input should be a mapping of keys to values",
}


@dataclass(frozen=True)
class _Fault:
    """What is wrong with the value at a place."""

    place: _Place
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
        f"  {'.'.join(map(str, (*above, *place))) or 'file'}: {message}"
        for place, message in _merge_pipelines(_merge_types(details), document)
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
    place = detail["loc"]
    if document is None:
        return _Fault(place, message, is_other_type=False)
    written = _written_place(place, document, is_missing=detail["type"] == "missing")
    has_types = len(written) < len(place)
    is_mismatch = detail["type"].endswith("_type") or detail["type"] == "literal_error"
    return _Fault(written, message, is_other_type=has_types and is_mismatch)


def _written_place(place: _Place, document: Any, *, is_missing: bool) -> _Place:
    """Return a place without the steps that pydantic adds for the type that it tried.

    `is_missing`: the last step is a key that should be there.
    """
    steps = list[str | int]()
    value = document
    for step in place:
        is_key = isinstance(value, Mapping) and step in value
        is_index = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if is_key or is_index:
            value = value[step]
            steps.append(step)
    if is_missing:
        steps.append(place[-1])
    return tuple(steps)


def _merge_types(faults: Sequence[_Fault]) -> dict[_Place, str]:
    """Return one message for each place: where a value fits one of its types so far, only what is wrong with that."""
    by_place = dict[_Place, list[_Fault]]()
    for fault in faults:
        by_place.setdefault(fault.place, []).append(fault)
    messages = dict[_Place, str]()
    for place, at_place in by_place.items():
        has_deeper = any(len(other) > len(place) and other[: len(place)] == place for other in by_place)
        precise = [fault for fault in at_place if not fault.is_other_type]
        if not precise and has_deeper:
            continue
        texts = dict.fromkeys(fault.message for fault in precise or at_place)
        messages[place] = "; or: ".join(texts)
    return messages


def _merge_pipelines(messages: Mapping[_Place, str], document: Any) -> list[tuple[_Place, str]]:
    """Return places and messages, those that several pipelines have once."""
    pipelines = dict[tuple[_Place, str], list[str]]()
    for place, message in messages.items():
        if _is_of_pipeline(place):
            pipelines.setdefault((place[2:], message), []).append(str(place[1]))
    merged = dict[tuple[_Place, str], None]()
    for place, message in messages.items():
        if not _is_of_pipeline(place):
            merged[place, message] = None
            continue
        names = pipelines[place[2:], message]
        if _stands_in_defaults(place[2:], names, document):
            merged[("defaults", *place[2:]), message] = None
        elif str(place[1]) == names[0]:
            others = f" (the same in {join_first(names[1:], _NAMED)})" if names[1:] else ""
            merged[place, message + others] = None
    return list(merged)


def _is_of_pipeline(place: _Place) -> bool:
    return len(place) > 1 and place[0] == "pipelines"


def _stands_in_defaults(place: _Place, names: Sequence[str], document: Any) -> bool:
    """Return whether `defaults` hold more of the way to a place than one of the pipelines itself."""
    if not isinstance(document, Mapping) or not isinstance(document.get("defaults"), Mapping):
        return False
    depth = _depth(document["defaults"], place)
    pipelines = document["pipelines"]
    return any(_depth(pipelines.get(name), place) < depth for name in names)


def _depth(value: Any, place: _Place) -> int:
    """Return how many steps of a place a value has."""
    for depth, step in enumerate(place):
        if not isinstance(value, Mapping) or step not in value:
            return depth
        value = value[step]
    return len(place)
