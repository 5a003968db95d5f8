"""Protects members of JSON texts: hashes, masks, encrypts or drops what is at some paths. All else stays verbatim.

A path goes through arrays to each of their items. A member's name counts in any case and Unicode form: `Email` and
`email` are one. What stands where a path expects an object is protected as all that the path leads to.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from headrace.writer.privacy.policy import Action, policy_of_text, strictest

# Attribute of a type of a record schema: how JSON fills it.
_JSON = "headrace.json"
# JSON text of whatever a value is.
_TEXT = "text"
# JSON text of the members of an object that no other field takes.
_REST = "rest"

# Names of members, which may be data.
_NAMES_CACHED = 4_096
_BLANKS = b" \t\n\r"
_BLANK = rb"[ \t\n\r]*"
_MEMBER = re.compile(rb'(%b[{,])(?:%b"[^"\\]*(?:\\.[^"\\]*)*"%b:%b)' % ((_BLANK,) * 4), re.DOTALL)
_OBJECT_END = re.compile(rb"[ {\t\n\r]*}")
_ITEM = re.compile(rb"%b[\[,]%b" % (_BLANK, _BLANK))
_NULL = b"null"

_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_string = msgspec.json.Decoder(str).decode
# Returns what is left of texts by a policy, which is none that drops them.
ProtectTexts = Callable[[pa.StringArray, Action], pa.StringArray]


class _UnclearText(ValueError):
    """A text that is no JSON, or that names a member twice."""


def is_rest(schema: Any) -> bool:
    """Return whether a type takes the members of an object that no other field takes."""
    return isinstance(schema, Mapping) and schema.get("type") == "string" and schema.get(_JSON) == _REST


def is_json_text(schema: Any) -> bool:
    """Return whether values of a type are JSON texts."""
    return is_rest(schema) or (
        isinstance(schema, Mapping) and schema.get("type") == "string" and schema.get(_JSON) == _TEXT
    )


def protect_members(
    texts: pa.StringArray, actions: Mapping[tuple[str, ...], Action], protect: ProtectTexts
) -> pa.StringArray:
    """Protect the members of JSON texts at some paths, none of which is empty. Null stays null.

    With `email` to be hashed and `card` to be dropped: '{"id": 1.00, "email": "x", "card": 5}', null →
    '{"id": 1.00, "email": "2d71…"}', null. A text that is no JSON, or that names a member twice in an object that a
    path leads through, becomes one value by the policy of a text that holds all of these.
    """
    root = _member_tree(actions)
    splitter = _Splitter()
    splits = [None if text is None else splitter.split(text.encode(), root) for text in texts.to_pylist()]
    replacements = {
        action: [msgspec.json.encode(text) for text in protect(pa.array(values, pa.string()), action).to_pylist()]
        for action, values in splitter.values.items()
    }
    return pa.array([None if parts is None else _join_parts(parts, replacements) for parts in splits], pa.string())


@dataclass
class _Member:
    """A member that a path leads to, or through."""

    # None: only something inside it is protected.
    action: Action | None = None
    # By their folded names.
    members: dict[str, "_Member"] = field(default_factory=dict)

    @property
    def policy_of_all(self) -> Action:
        """The policy of a text that may hold any of what is protected here."""
        return policy_of_text(self._actions())

    def _actions(self) -> Iterator[Action]:
        if self.action is not None:
            yield self.action
        for member in self.members.values():
            yield from member._actions()  # noqa: SLF001 - of this class


@dataclass(frozen=True)
class _Replaced:
    """The position of a value among those of its policy."""

    action: Action
    position: int


_Part = bytes | _Replaced


def _member_tree(actions: Mapping[tuple[str, ...], Action]) -> _Member:
    root = _Member()
    for path, action in actions.items():
        member = root
        for step in path:
            member = member.members.setdefault(_fold_name(step), _Member())
        member.action = strictest([action, member.action or action])
    return root


@lru_cache(maxsize=_NAMES_CACHED)
def _fold_name(name: str) -> str:
    """Return what all spellings of a name have in common."""
    return unicodedata.normalize("NFKC", name).casefold()


class _Splitter:
    """Splits texts into what stays, and values to protect, which it collects by their policies."""

    def __init__(self) -> None:
        self.values = dict[Action, list[str]]()

    def split(self, text: bytes, root: _Member) -> list[_Part] | None:
        """Return the parts of a text; None: nothing is left."""
        try:
            return self._split_value(text.strip(_BLANKS), root)
        except (_UnclearText, msgspec.MsgspecError, RecursionError):
            return self._replace_text(text.decode(), root.policy_of_all)

    def _split_value(self, value: bytes, member: _Member) -> list[_Part] | None:
        if value == _NULL and (member.action is None or member.action.kind != "drop"):
            return [value]
        if member.action is not None:
            return self._replace_value(value, member.action)
        match value[:1]:
            case b"{":
                return self._split_object(value, member)
            case b"[":
                return self._split_array(value, member)
        return self._replace_value(value, member.policy_of_all)

    def _split_object(self, text: bytes, member: _Member) -> list[_Part]:
        """Split an object.

        '{"a": 1, "b": 2, "c": 3}' with `a` to be dropped and `c` to be hashed → '{', ' "b": 2, "c": ', its place, '}'.
        """
        parts = list[_Part]()
        # Of what stays, and is no part yet.
        start = 0
        position = 0
        is_opened = True
        for name, raw in _read_object(text).items():
            head = _MEMBER.match(text, position)
            # The value of another member stands here where this one is named twice.
            if head is None or not text.startswith(raw, head.end()):
                raise _UnclearText
            value_start = head.end()
            inner = member.members.get(_fold_name(name))
            left: list[_Part] | None = []
            if inner is not None:
                left = self._split_value(bytes(raw), inner)
            if left is None:
                parts.append(text[start:position])
                is_opened = is_opened and position > 0
                position = start = value_start + len(raw)
                continue
            if not is_opened:
                parts.append(b"{")
                start = head.end(1)
                is_opened = True
            position = value_start + len(raw)
            if left:
                parts += [text[start:value_start], *left]
                start = position
        if _OBJECT_END.fullmatch(text, position) is None:
            raise _UnclearText
        if not is_opened:
            parts.append(b"{")
        return [*parts, text[start:]]

    def _split_array(self, text: bytes, member: _Member) -> list[_Part]:
        parts = list[_Part]()
        position = 0
        for raw in _read_array(text):
            value = bytes(raw)
            head = _ITEM.match(text, position)
            assert head is not None, "msgspec found an item here"
            # An item that is dropped leaves its position to the next one otherwise.
            parts += [head[0], *(self._split_value(value, member) or [_NULL])]
            position = head.end() + len(value)
        return [*parts, text[position:]]

    def _replace_value(self, value: bytes, action: Action) -> list[_Part] | None:
        """Return a value of JSON by its policy: of a string its content, of all else its text."""
        if value[:1] == b'"':
            return self._replace_text(_read_string(value), action)
        if value[:1] in (b"{", b"["):
            action = policy_of_text([action])
        return self._replace_text(value.decode(), action)

    def _replace_text(self, text: str, action: Action) -> list[_Part] | None:
        if action.kind == "drop":
            return None
        values = self.values.setdefault(action, [])
        values.append(text)
        return [_Replaced(action, len(values) - 1)]


def _join_parts(parts: list[_Part], replacements: Mapping[Action, list[bytes]]) -> str:
    pieces = [part if isinstance(part, bytes) else replacements[part.action][part.position] for part in parts]
    return b"".join(pieces).decode()
