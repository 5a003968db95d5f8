"""Decoders of msgspec for values of a record schema: strict in what they look at, and fast."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from headrace.writer.json.value_reader import AnyMembers, Items, JsonText, Node, ObjectMembers, Single

_NO_STRUCT_NAME = re.compile(r'["\\\x00-\x1f]')


def typed_decoder(root: ObjectMembers, *, only_numbers: bool = False) -> Callable[[bytes], Any]:
    """Return what decodes a value by the types of its columns, and raises ValueError for one that has others.

    It says nothing about the formats of text, and nothing about members that are not declared. `only_numbers`: columns
    without integers and decimals are not looked at.
    """
    fields = {name: python_type(node) for name, node in root.columns.items() if not only_numbers or _has_numbers(node)}
    return msgspec.json.Decoder(_struct(fields)).decode


def _has_numbers(node: Node) -> bool:
    match node:
        case Single():
            return bool(pa.types.is_integer(node.type.native) or pa.types.is_decimal(node.type.native))
        case Items():
            return _has_numbers(node.item)
        case ObjectMembers():
            return any(map(_has_numbers, node.columns.values()))
    return False


def closed_decoder(root: ObjectMembers, special: Sequence[str]) -> Callable[[bytes], Any]:
    """Return what cuts some members out of a value, and raises ValueError for a value with other members.

    The attributes `f0`, `f1`, … have the members of `special`, in their order; UNSET where there is none. Other members
    are not looked into, but objects inside, for members that are not declared.
    """
    fields: dict[str, Any] = dict.fromkeys(special, msgspec.Raw)
    fields |= {name: _closed_type(node) for name, node in root.columns.items() if name not in fields}
    return msgspec.json.Decoder(_struct(fields, forbids_others=True)).decode


def is_struct_name(name: str) -> bool:
    """Return whether a type of msgspec can have a member of this name."""
    return _NO_STRUCT_NAME.search(name) is None


def python_type(node: Node) -> Any:
    """Return the type of a column's values for msgspec."""
    match node:
        case Single() if node.type.is_sliced:
            return msgspec.Raw
        case JsonText():
            # In a union, Raw would take null alone.
            return msgspec.Raw
        case Items():
            return list[python_type(node.item)] | None  # type: ignore[misc]
        case AnyMembers():
            return dict[str, python_type(node.value)] | None  # type: ignore[misc]
        case ObjectMembers():
            return _struct({name: python_type(column) for name, column in node.columns.items()}) | None
        case Single():
            return _single_type(node.type.native) | None


def _closed_type(node: Node) -> Any:
    match node:
        case ObjectMembers():
            fields = {name: _closed_type(column) for name, column in node.columns.items()}
            return _struct(fields, forbids_others=True) | None
        case Items():
            item = _closed_type(node.item)
            return msgspec.Raw if item is msgspec.Raw else list[item] | None  # type: ignore[valid-type]
    return msgspec.Raw


def _struct(fields: Mapping[str, Any], *, forbids_others: bool = False) -> Any:
    """Return a type of objects with these members, without those whose names no type can have."""
    fields = {name: kind for name, kind in fields.items() if is_struct_name(name)}
    # Names of members may be no identifiers.
    aliases = {f"f{index}": name for index, name in enumerate(fields)}
    members = [(alias, fields[name], msgspec.UNSET) for alias, name in aliases.items()]
    return msgspec.defstruct("Value", members, rename=aliases, gc=False, forbid_unknown_fields=forbids_others)


def _single_type(native: pa.DataType) -> Any:
    if pa.types.is_integer(native):
        bound = 1 << (native.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_floating(native):
        return float
    if pa.types.is_boolean(native):
        return bool
    if pa.types.is_decimal(native):
        return Decimal
    return str
