"""Columns of a block that are made of the slices of its values: maps, JSON text, and the members without a column."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.writer.json.members import ERRORS, NULL, check_names, read_items, read_members, write_members
from headrace.writer.json.value_reader import AnyMembers, Items, JsonText, Node, NoRow, ObjectMembers, step

# Texts of `rest`, by the identity of the node of their objects, in the order in which Arrow has the objects.
Rests = Mapping[int, pa.Array]


@dataclass(frozen=True)
class Slices:
    """What slices give of a block: columns by name, and the texts of `rest`."""

    columns: Mapping[str, pa.Array]
    rests: Rests


NO_SLICES = Slices({}, {})


def needs_slices(node: Node) -> bool:
    """Return whether Arrow cannot read such a column: it has a map, or JSON text, in it."""
    match node:
        case JsonText() | AnyMembers():
            return True
        case Items():
            return needs_slices(node.item)
        case ObjectMembers():
            return any(needs_slices(column) for column in node.columns.values())
    return False


class SliceColumns:
    """Makes the columns of a record schema that are made of slices."""

    def __init__(self, root: ObjectMembers, schema: pa.Schema) -> None:
        self._root = root
        self.special = [name for name, node in root.columns.items() if needs_slices(node)]
        self._types = {name: schema.field(name).type for name in self.special}

    def read(self, values: Sequence[bytes]) -> Slices:
        """Cut each value into its members. Raises ValueError, RecursionError, pa.ArrowException for a bad value."""
        texts = defaultdict[int, list[str | None]](list)
        columns: dict[str, list[Any]] = {name: [] for name in self.special}
        for value in values:
            members = self._read_object(self._root, value, texts, self.special)
            for name in self.special:
                columns[name].append(self._read_member(name, members))
        arrays = {name: pa.array(cells, self._types[name]) for name, cells in columns.items()}
        return Slices(arrays, {key: pa.array(cells, pa.string()) for key, cells in texts.items()})

    def is_cuttable(self, value: bytes) -> bool:
        """Return whether a value can be cut into its members, and its columns be made."""
        try:
            self.read([value])
        except (*ERRORS, pa.ArrowException, OverflowError):
            return False
        return True

    def _read_member(self, name: str, members: Mapping[str, Any]) -> Any:
        if name not in members:
            return None
        value = bytes(members[name])
        if value == NULL:
            return None
        return self._root.columns[name].read(value, f"${step(name)}")

    def _read_object(
        self, node: ObjectMembers, value: bytes, texts: dict[int, list[str | None]], special: Sequence[str] = ()
    ) -> Mapping[str, Any]:
        """Return the members of an object, and add the texts of `rest`, of its own and of objects inside."""
        members = read_members(value)
        declared = node.columns
        others = [name for name in members if name not in declared]
        if others or special:
            check_names(value, [*others, *special])
        if others:
            self._note_others(node, others)
        if node.rest is not None:
            kept = others if node.rules.undeclared == "rest" else []
            texts[id(node)].append(write_members(members, kept))
        for name, column in declared.items():
            if name in special or not isinstance(column, ObjectMembers | Items):
                continue
            self._read_part(column, bytes(members[name]) if name in members else NULL, texts)
        return members

    def _read_part(self, node: Node, value: bytes, texts: dict[int, list[str | None]]) -> None:
        """Add the texts of `rest` of the objects in a column: as many as Arrow has places for."""
        match node:
            case ObjectMembers() if value == NULL:
                if node.rest is not None:
                    texts[id(node)].append(None)
                for column in node.columns.values():
                    if isinstance(column, ObjectMembers):
                        self._read_part(column, NULL, texts)
            case ObjectMembers():
                self._read_object(node, value, texts)
            case Items() if value != NULL and _has_objects(node.item):
                for item in read_items(value):
                    self._read_part(node.item, bytes(item), texts)

    @staticmethod
    def _note_others(node: ObjectMembers, others: Sequence[str]) -> None:
        if node.rules.undeclared == "dead_letter":
            raise NoRow("$", "a member is not declared")
        if node.rules.undeclared == "drop":
            node.unfit.counts["dropped"] += len(others)


def _has_objects(node: Node) -> bool:
    return isinstance(node, ObjectMembers) or (isinstance(node, Items) and _has_objects(node.item))
