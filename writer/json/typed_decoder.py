"""A decoder of msgspec that refuses, in a microsecond or two, most of the values that Arrow cannot convert."""

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from headrace.writer.json.value_reader import AnyMembers, Items, JsonText, Node, ObjectMembers, Single


def typed_decoder(root: ObjectMembers) -> Callable[[bytes], Any]:
    """Return what decodes a value by the types of its columns, and raises ValueError for one that has others.

    It says nothing about the formats of text, and nothing about members that are not declared.
    """
    return msgspec.json.Decoder(_struct(root)).decode


def _struct(node: ObjectMembers) -> type:
    # Names of members may be no identifiers.
    aliases = {f"f{index}": name for index, name in enumerate(node.columns)}
    fields = [
        (alias, _python_type(column), msgspec.UNSET)
        for alias, column in zip(aliases, node.columns.values(), strict=True)
    ]
    return msgspec.defstruct("Value", fields, rename=aliases, gc=False)


def _python_type(node: Node) -> Any:
    match node:
        case JsonText():
            # In a union, Raw would take null alone.
            return msgspec.Raw
        case Items():
            return list[_item_type(node.item)] | None  # type: ignore[misc]
        case AnyMembers():
            return dict[str, _item_type(node.value)] | None  # type: ignore[misc]
        case ObjectMembers():
            return _struct(node) | None
        case Single():
            return _single_type(node.type.native) | None


def _item_type(node: Node) -> Any:
    return msgspec.Raw if isinstance(node, JsonText) else _python_type(node)


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
