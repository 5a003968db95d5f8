"""Sets entries of a YAML mapping in its text, so that all else keeps its layout, its numbers and its comments.

PyYAML's nodes say where a value begins and ends. Only a value that changes is written anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import yaml

from headrace.writer.config.yaml_text import TextDumper, dump_inline

_WIDTH = 120
_MERGE = "tag:yaml.org,2002:merge"


class EditRefused(ValueError):
    """A text in which the mapping cannot be told from what is around it."""


@dataclass(frozen=True)
class _Replacement:
    """Text in place of the characters from `start` up to `stop`."""

    start: int
    stop: int
    text: str


def set_entries(text: str, path: Sequence[str], entries: Mapping[str, Any]) -> str:
    """Return a YAML text whose mapping at `path` has these entries, and all others that it had. Raises EditRefused.

    A key of the path that is missing is added. An empty text is an empty mapping.
    """
    addition: Mapping[str, Any] = entries
    for key in reversed(path):
        addition = {key: addition}
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return f"{text}{_dump(addition)}"
    if not isinstance(node, yaml.MappingNode):
        raise EditRefused("it is no mapping")
    before = yaml.safe_load(text)
    after = _merge(before, path, entries)
    replacements = _edit_mapping(text, node, before, after)
    edited = text
    # From the last to the first, so that the places of the others hold.
    for replacement in sorted(replacements, key=lambda each: each.start, reverse=True):
        new_text = replacement.text
        if "\r\n" in text:
            new_text = new_text.replace("\n", "\r\n")
        edited = f"{edited[: replacement.start]}{new_text}{edited[replacement.stop :]}"
    if not _has_document(edited, after):
        raise EditRefused(f"{'.'.join(path) or 'the mapping'} cannot be told from what is around it")
    return edited


def _merge(document: Any, path: Sequence[str], entries: Mapping[str, Any]) -> dict[Any, Any]:
    """Return a document whose mapping at `path` has these entries, too."""
    mapping = document if isinstance(document, dict) else {}
    if not path:
        return {**mapping, **entries}
    key, *rest = path
    return {**mapping, key: _merge(mapping.get(key), rest, entries)}


def _edit_mapping(
    text: str, node: yaml.MappingNode, before: Mapping[Any, Any], after: Mapping[Any, Any]
) -> list[_Replacement]:
    """Return what makes one mapping of another that has all its keys. `before`: what the node holds."""
    replacements: list[_Replacement] = []
    if len(node.value) != len(before) or any(key.tag == _MERGE for key, _ in node.value):
        raise EditRefused("a key stands there twice, or keys are merged with <<")
    for key, (key_node, value_node) in zip(before, node.value, strict=True):
        if _canonical(before[key]) == _canonical(after[key]):
            continue
        if _is_extended(value_node, before[key], after[key]):
            replacements += _edit_mapping(text, value_node, before[key], after[key])
        else:
            replacements.append(_replace_value(text, node, key_node, value_node, after[key]))
    new_entries = {key: after[key] for key in after if key not in before}
    if new_entries:
        replacements.append(_add_entries(text, node, new_entries))
    return replacements


def _is_extended(node: yaml.Node, before: Any, after: Any) -> bool:
    """Return whether a mapping that is not empty keeps all its keys, so that it need not be written anew."""
    if not isinstance(node, yaml.MappingNode) or not isinstance(after, dict):
        return False
    return bool(before) and before.keys() <= after.keys()


def _replace_value(
    text: str, mapping: yaml.MappingNode, key_node: yaml.Node, value_node: yaml.Node, value: Any
) -> _Replacement:
    start = text.index(":", key_node.end_mark.index) + 1
    stop = max(start, _end_of(text, value_node))
    if mapping.flow_style or _is_flow_or_scalar(value_node, value):
        return _Replacement(start, stop, f" {dump_inline(value)}")
    document = _dump({"key": value}).removeprefix("key:").rstrip("\n")
    lines = document.split("\n")
    column = mapping.start_mark.column
    new_lines = [lines[0], *(indent(line, " " * column) for line in lines[1:])]
    return _Replacement(start, stop, "\n".join(new_lines))


def _is_flow_or_scalar(node: yaml.Node, value: Any) -> bool:
    """Return whether a value is to stand behind its key: it has no parts, or those before it did so."""
    if not isinstance(value, dict | list):
        return True
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def _add_entries(text: str, node: yaml.MappingNode, entries: Mapping[Any, Any]) -> _Replacement:
    """Return what adds entries behind the last one of a mapping that is not empty."""
    stop = _end_of(text, node.value[-1][1])
    if node.flow_style:
        return _Replacement(stop, stop, "".join(f", {dump_inline({key: entries[key]})[1:-1]}" for key in entries))
    # What stands behind the last value is a comment.
    line_end = text.find("\n", stop)
    if line_end < 0:
        line_end = len(text)
    elif text[line_end - 1] == "\r":
        line_end -= 1
    lines = indent(_dump(entries), " " * node.start_mark.column).rstrip("\n")
    return _Replacement(line_end, line_end, f"\n{lines}")


def _end_of(text: str, node: yaml.Node) -> int:
    """Return where a value ends, without the blanks and comments behind a block, which PyYAML counts to it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end_of(text, last[1] if isinstance(node, yaml.MappingNode) else last)
    start = node.start_mark.index
    return start + len(text[start : node.end_mark.index].rstrip())


def _dump(mapping: Mapping[Any, Any]) -> str:
    """Write a mapping with a line for each key at least; collections of scalars stand on one line."""
    text = yaml.dump(dict(mapping), Dumper=TextDumper, sort_keys=False, allow_unicode=True, default_flow_style=None)
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode), "a mapping was written"
    node.flow_style = not mapping
    return str(yaml.serialize(node, Dumper=yaml.SafeDumper, allow_unicode=True, width=_WIDTH))


def _has_document(text: str, document: Any) -> bool:
    try:
        return bool(_canonical(yaml.safe_load(text)) == _canonical(document))
    except yaml.YAMLError:
        return False


def _canonical(document: Any) -> Any:
    """Return what is the same for two documents of the same values and types. NaN is the same as itself."""
    if isinstance(document, dict):
        return dict(sorted((repr(key), _canonical(value)) for key, value in document.items()))
    if isinstance(document, list):
        return [_canonical(item) for item in document]
    return repr(document)
