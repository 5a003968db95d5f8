"""Finds the values of a block with decimals that must not come to Arrow's reader."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.decoding.block import Mask
from headrace.writer.json.decimal_texts import inexact_pattern
from headrace.writer.json.members import ERRORS, NULL, read_items, read_members
from headrace.writer.json.value_reader import Items, Node, ObjectMembers, Single


class DecimalGuard:
    """Looks at the decimals of values, whose other numbers may be any."""

    def __init__(self, columns: Mapping[str, Node]) -> None:
        """`columns`: those that Arrow reads."""
        self._columns = _with_decimals(columns)
        self._pattern = inexact_pattern(_scales(columns.values()))

    def find_inexact(self, values: pa.Array) -> Mask | None:
        """Return which values have a decimal that Arrow may not read exactly, and may end the process; None: none.

        Nearly all are told by one look at the block.
        """
        if self._pattern is None:
            return None
        is_inexact = pc.match_substring_regex(values, self._pattern).to_numpy(zero_copy_only=False)
        for position in is_inexact.nonzero()[0].tolist():
            is_inexact[position] = self._has_inexact(values[position].as_py())
        return is_inexact if is_inexact.any() else None

    def _has_inexact(self, value: bytes) -> bool:
        try:
            tokens = list(_tokens_of_object(self._columns, value))
        except ERRORS:
            return True
        # Python's own expressions would take hours for a number of a million digits; Arrow's take steps by its length.
        is_inexact = pc.match_substring_regex(pa.array(tokens, pa.binary()), self._pattern)
        return pc.any(is_inexact).as_py() is True


def _tokens_of_object(columns: Mapping[str, Node], text: bytes) -> Iterator[bytes]:
    """Yield the decimals of an object, at any depth, each between a colon and a comma."""
    members = read_members(text)
    for name, node in columns.items():
        if name in members:
            yield from _tokens(node, bytes(members[name]))


def _tokens(node: Node, text: bytes) -> Iterator[bytes]:
    if text == NULL:
        return
    match node:
        case Items():
            for item in read_items(text):
                yield from _tokens(node.item, bytes(item))
        case ObjectMembers():
            yield from _tokens_of_object(_with_decimals(node.columns), text)
        case _:
            yield b":" + text + b","


def _with_decimals(columns: Mapping[str, Node]) -> dict[str, Node]:
    return {name: node for name, node in columns.items() if any(True for _ in _scales([node]))}


def _scales(nodes: Iterable[Node]) -> Iterator[int]:
    """Yield the scales of the decimals in columns that Arrow reads."""
    for node in nodes:
        match node:
            case Single() if pa.types.is_decimal(node.type.table):
                yield node.type.table.scale
            case Items():
                yield from _scales([node.item])
            case ObjectMembers():
                yield from _scales(node.columns.values())
