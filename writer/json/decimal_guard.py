"""Finds the values of a block with decimals that must not come to Arrow's reader."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
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
        positions = is_inexact.nonzero()[0]
        if not len(positions):
            return None
        # One by one: only values with a number of many digits, a large exponent or an escape, in any of their members.
        is_inexact[positions] = self._have_inexact(values.take(pa.array(positions)).to_pylist())
        return is_inexact if is_inexact.any() else None

    def _have_inexact(self, values: Sequence[bytes]) -> Mask:
        """Return which values have such a decimal, whatever their other numbers are; of no JSON, that it may."""
        tokens = list[bytes]()
        value_of_token = list[int]()
        have_inexact = np.zeros(len(values), np.bool_)
        for position, value in enumerate(values):
            try:
                decimals = list(_tokens_of_object(self._columns, value))
            except ERRORS:
                have_inexact[position] = True
                continue
            tokens += decimals
            value_of_token += [position] * len(decimals)
        # Python's own expressions would take hours for a number of a million digits; Arrow's take steps by its length.
        matches = pc.match_substring_regex(pa.array(tokens, pa.large_binary()), self._pattern)
        is_match: Mask = matches.to_numpy(zero_copy_only=False)
        have_inexact[np.array(value_of_token, np.int64)[is_match]] = True
        return have_inexact


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
