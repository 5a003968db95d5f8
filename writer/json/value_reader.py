"""Reads one JSON value by a record schema, alone and strictly: the judge of what a block refuses.

The members of each object are slices of the value, so `rest` and columns of JSON text keep what was sent.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.writer.avro import schema as avro
from headrace.writer.json.members import (
    NULL,
    Members,
    RepeatedName,
    TooDeep,
    check_names,
    check_nesting,
    read_items,
    read_members,
    write_members,
)
from headrace.writer.json.value_types import Unfit, ValueType, kind_of, value_type

TEXT = "text"
REST = "rest"
_BYTE_POSITION = re.compile(r" \(byte \d+\)")
# Of an undeclared name in a message.
_NAME_CHARACTERS_MAX = 80
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Reads one value from its JSON text; the path to it is for messages.
ReadValue = Callable[[bytes, str], Any]


class NoRow(ValueError):
    """A value becomes no row; the message names the place and the kinds, and no value."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class Misfit(NoRow):
    """A member does not fit its column."""


@dataclass(frozen=True)
class Rules:
    """What becomes of members that no column takes, as a record schema says."""

    undeclared: str
    misfit: str


@dataclass
class UnfitCounts:
    """How many members of values fit no column, by what became of them."""

    counts: Counter[str] = field(default_factory=Counter)

    def take(self) -> dict[str, int]:
        """Return the counts, and begin anew."""
        counts = {name: count for name, count in self.counts.items() if count}
        self.counts.clear()
        return counts


@dataclass(frozen=True)
class JsonText:
    """A column of the JSON text of any value."""

    def read(self, token: bytes, _: str) -> str:
        """Return the text as it was sent."""
        return token.decode()


@dataclass(frozen=True)
class Single:
    """A column of single values."""

    type: ValueType

    def read(self, token: bytes, path: str) -> Any:
        """Return the value. Raises Misfit."""
        try:
            return self.type.read(token)
        except Unfit as error:
            raise Misfit(path, str(error)) from None


@dataclass(frozen=True)
class Items:
    """A column of arrays."""

    item: "Node"

    def read(self, token: bytes, path: str) -> list[Any]:
        """Return the items. Raises Misfit."""
        if kind_of(token) != "an array":
            raise Misfit(path, f"expected an array, not {kind_of(token)}")
        items = map(bytes, read_items(token))
        return [
            None if item == NULL else self.item.read(item, f"{path}[{position}]") for position, item in enumerate(items)
        ]


@dataclass(frozen=True)
class AnyMembers:
    """A column of objects with members of any name, as a map."""

    value: "Node"

    def read(self, token: bytes, path: str) -> list[tuple[str, Any]]:
        """Return the members, in their order. Raises Misfit. The names may be anybody's, so no message has them."""
        members = _members_of(token, path, shows_names=False)
        entries: list[tuple[str, Any]] = []
        for name, member in members.items():
            value = bytes(member)
            entries.append((name, None if value == NULL else self.value.read(value, f"{path}.*")))
        return entries


@dataclass(frozen=True)
class ObjectMembers:
    """A column of objects with declared members, or a whole value. `rest_name`: of its column of other members."""

    columns: Mapping[str, "Node"]
    rest_name: str | None
    rules: Rules
    unfit: UnfitCounts

    def read(self, token: bytes, path: str) -> dict[str, Any]:
        """Return the columns. Raises Misfit."""
        members = _members_of(token, path)
        row: dict[str, Any] = {}
        nulled: list[str] = []
        for name, node in self.columns.items():
            value = bytes(members.get(name, NULL))
            counts = dict(self.unfit.counts)
            try:
                row[name] = None if value == NULL else node.read(value, f"{path}{step(name)}")
            except Misfit:
                if self.rules.misfit != "null":
                    raise
                row[name] = None
                nulled.append(name)
                # What was counted inside goes to `rest` with the member.
                self.unfit.counts = Counter(counts)
        undeclared = [name for name in members if name not in self.columns]
        self._check_other_members(undeclared, path)
        self.unfit.counts["nulled"] += len(nulled)
        if self.rest_name is not None:
            names = [*nulled]
            if self.rules.undeclared != "drop":
                names += undeclared
            text = write_members(members, tuple(sorted(names)))
            row[self.rest_name] = text and text.decode()
        return row

    def _check_other_members(self, undeclared: list[str], path: str) -> None:
        if not undeclared:
            return
        if self.rules.undeclared == "dead_letter":
            raise NoRow(f"{path}{step(undeclared[0])}", "no column is declared for it")
        if self.rules.undeclared == "drop":
            self.unfit.counts["dropped"] += len(undeclared)


Node = JsonText | Single | Items | AnyMembers | ObjectMembers


def compile_nodes(record: avro.Record, unfit: UnfitCounts) -> ObjectMembers:
    """Return what reads values of a record schema of JSON. `unfit` counts the members that fit no column."""
    root = record.root
    rules = Rules(str(root.get("headrace.undeclared", "rest")), str(root.get("headrace.misfit", "dead_letter")))

    def node_of(schema: avro.Schema) -> Node:
        schema = record.resolve(schema)
        if isinstance(schema, list):
            (inner,) = (branch for branch in schema if avro.type_name(record.resolve(branch)) != "null")
            return node_of(inner)
        match avro.type_name(schema):
            case "record":
                return object_of(schema)
            case "array":
                return Items(node_of(schema["items"]))
            case "map":
                return AnyMembers(node_of(schema["values"]))
        if isinstance(schema, Mapping) and schema.get("headrace.json") == TEXT:
            return JsonText()
        return Single(value_type(schema))

    def object_of(schema: Mapping[str, Any]) -> ObjectMembers:
        columns: dict[str, Node] = {}
        rest_name = None
        for column in schema["fields"]:
            if is_rest(record, column["type"]):
                rest_name = column["name"]
            else:
                columns[column["name"]] = node_of(column["type"])
        return ObjectMembers(columns, rest_name, rules, unfit)

    return object_of(root)


def is_rest(record: avro.Record, schema: avro.Schema) -> bool:
    """Return whether a field is the column of the members that no other column takes."""
    branches = schema if isinstance(schema, list) else [schema]
    resolved = (record.resolve(branch) for branch in branches)
    return any(isinstance(branch, Mapping) and branch.get("headrace.json") == REST for branch in resolved)


def read_value(node: ObjectMembers, value: bytes) -> dict[str, Any]:
    """Return the row of one value. Raises ValueError, RecursionError; a message names no value."""
    try:
        value.decode()
    except UnicodeDecodeError:
        raise Misfit("$", "it is not UTF-8") from None
    check_nesting(value)
    return node.read(value.strip(b" \t\r\n"), "$")


def step(name: str) -> str:
    """Return the step to a member in a path. Of a long name, which a producer chose, it has the beginning."""
    if len(name) > _NAME_CHARACTERS_MAX:
        return f"[{name[:_NAME_CHARACTERS_MAX] + '…'!r}]"
    return f".{name}" if _WORD.fullmatch(name) else f"[{name!r}]"


def reason_of(error: Exception) -> str:
    """Return why a value is no row."""
    if isinstance(error, NoRow):
        return str(error)
    if isinstance(error, TooDeep | RecursionError):
        return f"$: {TooDeep()}"
    # Reasons group records, and the position of a byte would tell each from the others.
    return f"it is no JSON: {_BYTE_POSITION.sub('', str(error))}"


def iterate_objects(node: Node) -> Iterator[ObjectMembers]:
    """Yield an object's node and those inside it, outside of maps."""
    match node:
        case ObjectMembers():
            yield node
            for column in node.columns.values():
                yield from iterate_objects(column)
        case Items():
            yield from iterate_objects(node.item)


def _members_of(token: bytes, path: str, *, shows_names: bool = True) -> Members:
    """Return the members of an object. Raises Misfit, NoRow where a name stands twice, msgspec.DecodeError."""
    if not token:
        raise Misfit(path, "the value is empty")
    if kind_of(token) != "an object":
        # What is no JSON at all has a better reason.
        read_items(b"[%b]" % token)
        raise Misfit(path, f"expected an object, not {kind_of(token)}")
    members = read_members(token)
    try:
        check_names(token, members)
    except RepeatedName as error:
        name = ".*"
        if shows_names:
            name = step(error.name)
        # Whatever becomes of misfits: which of the two counts is not known.
        raise NoRow(f"{path}{name}", "the member stands there twice") from None
    return members
