"""Columns of a block that are made of the slices of its values: maps, JSON text, and the members without a column."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.json.members import (
    ERRORS,
    NULL,
    check_column_names,
    check_map_names,
    check_names,
    check_nesting,
    name_texts,
    read_items,
    read_members,
    write_members,
)
from headrace.writer.json.typed_decoder import closed_decoder, is_struct_name, python_type
from headrace.writer.json.value_reader import AnyMembers, Items, JsonText, Node, NoRow, ObjectMembers, Single, step

# Texts of `rest`, by the identity of the node of their objects, in the order in which Arrow has the objects.
Rests = Mapping[int, pa.Array]
_BINARY = pa.binary()
_MINUS_ZERO = re.compile(rb"-0[\s,}]")
# Names of members without a column that are remembered; producers choose them.
_KNOWN_MAX = 64


@dataclass(frozen=True)
class Slices:
    """What slices give of a block: columns by name, the texts of `rest`, and whether any member has no column."""

    columns: Mapping[str, pa.Array]
    rests: Rests
    has_others: bool = False


NO_SLICES = Slices({}, {})


class _BlockTexts:
    """What values of a block have so far: the texts of `rest`, and whether any member has no column."""

    def __init__(self) -> None:
        self.texts = defaultdict[int, list[bytes | None]](list)
        self.has_others = False
        self.has_inner_others = False


def needs_slices(node: Node) -> bool:
    """Return whether Arrow cannot read such a column: it has a map, JSON text, or Connect's decimals in it."""
    match node:
        case Single():
            return node.type.is_sliced
        case JsonText() | AnyMembers():
            return True
        case Items():
            return needs_slices(node.item)
        case ObjectMembers():
            return any(needs_slices(column) for column in node.columns.values())


class SliceColumns:
    """Makes the columns of a record schema that are made of slices."""

    def __init__(self, root: ObjectMembers, schema: pa.Schema) -> None:
        special = {name: node for name, node in root.columns.items() if needs_slices(node)}
        self.special = [_SpecialColumn(name, node, schema.field(name).type) for name, node in special.items()]
        self._names = list(special)
        self._root = root
        self._object = _ObjectSlices(root, frozenset(special))
        # Names of members without a column that values had so far, and whether objects inside had some.
        self._others: tuple[str, ...] = ()
        self._has_inner_others = not all(map(is_struct_name, special))
        self._decode_names = closed_decoder(root, self._names)

    def read(self, values: Sequence[bytes]) -> Slices:
        """Make the columns. Raises ValueError, RecursionError, pa.ArrowException for a bad value."""
        if not self._has_inner_others:
            # Where this fails, a value has a member that none had before, or is bad, which shows below.
            with suppress(*ERRORS):
                return self._cut_by_names(values)
        return self._cut_all(values)

    def _cut_by_names(self, values: Sequence[bytes]) -> Slices:
        """Make the columns of values whose members were all met before. Raises ValueError for another."""
        names = [*self._names, *self._others]
        texts: list[list[bytes | None]] = [[] for _ in names]
        appends = [(f"f{index}", member_texts.append) for index, member_texts in enumerate(texts)]
        decode = self._decode_names
        unset = msgspec.UNSET
        for value in values:
            check_nesting(value)
            members = decode(value)
            for name, append in appends:
                member = getattr(members, name)
                append(None if member is unset else bytes(member))
        counts = {name: len(cells) - cells.count(None) for name, cells in zip(names, texts, strict=True)}
        check_column_names(values, counts)
        columns = self._build(texts[: len(self._names)])
        others_count = sum(counts[name] for name in self._others)
        rests: dict[int, pa.Array] = {}
        if others_count and self._object.keeps:
            rests[id(self._root)] = _join_members(self._others, texts[len(self._names) :])
        elif others_count:
            self._object.refuse_others(others_count)
        return Slices(columns, rests, has_others=bool(others_count))

    def _cut_all(self, values: Sequence[bytes]) -> Slices:
        block_texts = _BlockTexts()
        texts: list[list[bytes | None]] = [[] for _ in self.special]
        appends = [(name, column_texts.append) for name, column_texts in zip(self._names, texts, strict=True)]
        # Most values have the same others.
        others_counts = Counter[tuple[str, ...]]()
        for value in values:
            check_nesting(value)
            members, others = self._object.read(value, block_texts)
            others_counts[others] += 1
            for name, append in appends:
                member = members.get(name)
                append(None if member is None else bytes(member))
        counts = self._count_special(texts)
        for others, count in others_counts.items():
            counts.update(dict.fromkeys(others, count))
        check_column_names(values, counts)
        rests = {key: pa.array(cells, _BINARY).cast(pa.string()) for key, cells in block_texts.texts.items()}
        self._learn(set(chain.from_iterable(others_counts)), has_inner_others=block_texts.has_inner_others)
        return Slices(self._build(texts), rests, block_texts.has_others)

    def _learn(self, others: set[str], *, has_inner_others: bool) -> None:
        """Remember the members without a column, so that the next block is cut faster."""
        names = others.union(self._others)
        self._has_inner_others = has_inner_others or len(names) > _KNOWN_MAX or not all(map(is_struct_name, names))
        if not self._has_inner_others:
            self._others = tuple(sorted(names))
            self._decode_names = closed_decoder(self._root, [*self._names, *self._others])

    def _count_special(self, texts: Sequence[list[bytes | None]]) -> Counter[str]:
        """Return how many values have each of the columns."""
        pairs = zip(self._names, texts, strict=True)
        return Counter({name: len(cells) - cells.count(None) for name, cells in pairs})

    def _build(self, texts: Sequence[list[bytes | None]]) -> dict[str, pa.Array]:
        return {column.name: column.build(cells) for column, cells in zip(self.special, texts, strict=True)}

    def is_cuttable(self, value: bytes) -> bool:
        """Return whether a value can be cut into its members, and its columns be made."""
        try:
            check_nesting(value)
            members, others = self._object.read(value, _BlockTexts())
            check_names(value, [*others, *self._names])
            for column in self.special:
                member = members.get(column.name)
                if member is not None:
                    column.build([bytes(member)])
        except (*ERRORS, pa.ArrowException, OverflowError):
            return False
        return True


@dataclass(frozen=True)
class _SpecialColumn:
    """A column of maps, of JSON text, or with such a column inside."""

    name: str
    node: Node
    type: pa.DataType

    @property
    def is_plain_map(self) -> bool:
        """Whether msgspec reads it as strictly as the judge does."""
        if not isinstance(self.node, AnyMembers) or not isinstance(self.node.value, Single):
            return False
        native = self.node.value.type.native
        # Numbers that are times have another type in the table.
        is_plain = self.node.value.type.table == native
        return is_plain and native in (pa.string(), pa.int64(), pa.int32(), pa.float64(), pa.bool_())

    @cached_property
    def _decode_map(self) -> Callable[[bytes], dict[str, Any] | None]:
        return msgspec.json.Decoder(python_type(self.node)).decode

    def _has_minus_zero(self, texts: list[bytes | None]) -> bool:
        """Return whether a number may be `-0`, which msgspec reads as an integer, without its sign."""
        if not pa.types.is_floating(self.type.item_type):
            return False
        return any(text is not None and _MINUS_ZERO.search(text) for text in texts)

    def build(self, texts: list[bytes | None]) -> pa.Array:
        """Return the column of the JSON texts of its values. Raises ValueError, pa.ArrowException."""
        if self.is_plain_map and not self._has_minus_zero(texts):
            decode = self._decode_map
            maps = [None if text is None else decode(text) for text in texts]
            check_map_names(texts, maps)
            return _build_maps(maps, self.type)
        if isinstance(self.node, JsonText):
            return pa.array([None if text == NULL else text for text in texts], _BINARY).cast(pa.string())
        path = f"${step(self.name)}"
        rows = [None if text is None or text == NULL else self.node.read(text, path) for text in texts]
        return pa.array(rows, self.type)


class _ObjectSlices:
    """Finds the members without a column of objects, and of those inside them."""

    def __init__(self, node: ObjectMembers, special: frozenset[str] = frozenset()) -> None:
        self._node = node
        self._key = id(node)
        self._declared = frozenset(node.columns)
        self._has_rest = node.rest_name is not None
        self.keeps = node.rules.undeclared == "rest"
        parts = {name: column for name, column in node.columns.items() if name not in special}
        self._parts = [(name, part) for name, column in parts.items() if (part := _part_slices(column)) is not None]

    def read(self, value: bytes, block_texts: _BlockTexts) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the members of an object, and the names of those without a column.

        Add the texts of `rest`: of its own, and of objects inside.
        """
        members = read_members(value)
        declared = self._declared
        others = tuple(sorted([name for name in members if name not in declared]))
        text = None
        if others:
            block_texts.has_others = True
            if self.keeps:
                text = write_members(members, others)
            else:
                self.refuse_others(len(others))
        if self._has_rest:
            block_texts.texts[self._key].append(text)
        for name, part in self._parts:
            member = members.get(name)
            part.read_part(NULL if member is None else bytes(member), block_texts)
        return members, others

    def read_part(self, value: bytes, block_texts: _BlockTexts) -> None:
        """Add the texts of an object inside another, or of none."""
        if value != NULL:
            _, others = self.read(value, block_texts)
            if others:
                block_texts.has_inner_others = True
                check_names(value, others)
            return
        if self._has_rest:
            block_texts.texts[self._key].append(None)
        for _, part in self._parts:
            part.read_part(NULL, block_texts)

    def refuse_others(self, count: int) -> None:
        """Count members without a column, which are left out. Raises NoRow where there may be none."""
        if self._node.rules.undeclared == "dead_letter":
            raise NoRow("$", "a member is not declared")
        self._node.unfit.counts["dropped"] += count


class _ItemSlices:
    """Finds the members without a column of the objects in an array."""

    def __init__(self, item: "_ObjectSlices | _ItemSlices") -> None:
        self._item = item

    def read_part(self, value: bytes, block_texts: _BlockTexts) -> None:
        """Add the texts of the objects of an array, or of none."""
        if value == NULL:
            return
        for item in read_items(value):
            self._item.read_part(bytes(item), block_texts)


def _part_slices(node: Node) -> _ObjectSlices | _ItemSlices | None:
    """Return what finds the members without a column in a column; None where there are no objects."""
    match node:
        case ObjectMembers():
            return _ObjectSlices(node)
        case Items():
            item = _part_slices(node.item)
            return item and _ItemSlices(item)
    return None


def _join_members(names: Sequence[str], texts: Sequence[list[bytes | None]]) -> pa.Array:
    """Return the texts of objects of some members, null for one of none. `texts`: of each member, in all values.

    Of `a` with the texts 1, none, none and `b` with 2, 3, none these are `{"a":1,"b":2}`, `{"b":3}` and null.
    """
    prefixes = [text for _, text in name_texts(tuple(names))]
    rests: list[bytes | None] = []
    for row in zip(*texts, strict=True):
        parts = [prefix + text for prefix, text in zip(prefixes, row, strict=True) if text is not None]
        rests.append(b"{" + b",".join(parts) + b"}" if parts else None)
    return pa.array(rests, _BINARY).cast(pa.string())


def _build_maps(cells: list[Any], kind: pa.MapType) -> pa.Array:
    """Return a column of maps. Raises ValueError, pa.ArrowException.

    The cells `{"a": 1, "b": None}`, None, `{}` give a map of two entries, null, and one of none.
    """
    maps = [cell or None for cell in cells]
    sizes = np.fromiter((len(cell) if cell else 0 for cell in maps), np.int32, len(maps))
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    full = [cell for cell in maps if cell]
    keys = pa.array(list(chain.from_iterable(full)), kind.key_type)
    items = pa.array(list(chain.from_iterable(cell.values() for cell in full)), kind.item_type)
    if pa.types.is_floating(kind.item_type) and pc.all(pc.is_finite(items)).as_py() is False:
        raise ValueError("a number is too large")
    is_null = pa.array([cell is None for cell in cells], pa.bool_())
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=is_null)
