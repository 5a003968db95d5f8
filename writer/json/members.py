"""The members of one JSON object as slices of its bytes, and the text of those that no column takes."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from headrace.writer.decoding.block import Mask

Members = Mapping[str, msgspec.Raw]
# Slices keep numbers and text as they were sent. Raises msgspec.DecodeError for what is no JSON object.
read_members: Callable[[bytes], dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
read_items: Callable[[bytes], list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw]).decode
# What msgspec raises for a value; its own errors are ValueErrors.
ERRORS = (ValueError, RecursionError)
NULL = b"null"
# Of arrays and objects inside one another.
NESTING_MAX = 500
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
# Names of which each is looked for.
_COUNTED_MAX = 64
_SPACED = re.compile(rb'"\s')
# A backslash, and then the end of a name.
_ESCAPED_NAME = re.compile(rb'\\.[^"\\]*"\s*:', re.DOTALL)


class TooDeep(ValueError):
    """A value has more levels than any reader promises to read."""

    def __init__(self) -> None:
        super().__init__("it has too many levels inside one another")


class RepeatedName(ValueError):
    """A name stands twice in one object."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it has two members {name!r}")
        self.name = name


def check_nesting(value: bytes) -> None:
    """Raise TooDeep for more than NESTING_MAX levels: how many can be read depends on the stack around the call."""
    # Each level has two brackets.
    if len(value) <= 2 * NESTING_MAX or value.count(b"[") + value.count(b"{") <= NESTING_MAX:
        return
    brackets = np.frombuffer(_STRING.sub(b"", value), np.uint8)
    begins = np.isin(brackets, np.frombuffer(b"[{", np.uint8)).astype(np.int64)
    ends = np.isin(brackets, np.frombuffer(b"]}", np.uint8)).astype(np.int64)
    if np.cumsum(begins - ends).max(initial=0) > NESTING_MAX:
        raise TooDeep


def find_repeated_name(text: bytes) -> str | None:
    """Return a name that stands twice in an object itself, not in those inside; None without one."""
    # The hook is called for the outermost object last, whose pairs are what is returned.
    # Python refuses numbers of more than 4,300 digits, so they stay text.
    pairs = json.loads(text, object_pairs_hook=lambda pairs: pairs, parse_int=str, parse_float=str)
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            return str(name)
        names.add(name)
    return None


@lru_cache(maxsize=4096)
def quote_name(name: str) -> bytes:
    """Return a name as it usually stands in JSON."""
    return b'"%b"' % name.encode()


@lru_cache(maxsize=4096)
def name_texts(names: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """Return each name with its JSON text and a colon."""
    return tuple((name, msgspec.json.encode(name) + b":") for name in names)


def check_names(text: bytes, names: Collection[str]) -> None:
    """Raise RepeatedName where one of the names, of an object that has them, stands twice.

    Few objects are looked at closely: those in which a name is written twice anywhere, or a name may be escaped.
    """
    # With more names, one look at all members costs less than one at the text for each.
    is_clear = len(names) <= _COUNTED_MAX and (b"\\" not in text or _ESCAPED_NAME.search(text) is None)
    if not (is_clear and all(text.count(quote_name(name)) <= 1 for name in names)):
        repeated = find_repeated_name(text)
        if repeated is not None:
            raise RepeatedName(repeated)


def check_column_names(values: Sequence[bytes], counts: Mapping[str, int]) -> None:
    """Raise RepeatedName where one of the names stands twice in a value. `counts`: how many values have each name.

    As `check_names`, with one look at all values for each name: where it is written as often as values have it, none
    has it twice.
    """
    block = b"".join(values)
    is_clear = len(counts) <= _COUNTED_MAX and b"\\" not in block
    if not (is_clear and all(block.count(quote_name(name)) == count for name, count in counts.items())):
        for value in values:
            check_names(value, counts)


def check_map_names(texts: Sequence[bytes | None], maps: Sequence[Mapping[str, Any] | None]) -> None:
    """Raise RepeatedName where a name of a map stands twice in its text.

    In usual writing a colon stands right behind a name. Where there are as many of these as names, none stands twice.
    """
    block = b"".join(filter(None, texts))
    if block.count(b'":') == sum(len(members) for members in maps if members) and not _SPACED.search(block):
        return
    for text in texts:
        repeated = None if text is None or text == NULL else find_repeated_name(text)
        if repeated is not None:
            raise RepeatedName(repeated)


def write_members(members: Mapping[str, Any], names: tuple[str, ...]) -> bytes | None:
    """Return the JSON text of an object of the members with these names, as they were sent; None without any."""
    if not names:
        return None
    return b"{" + b",".join([text + bytes(members[name]) for name, text in name_texts(names)]) + b"}"


def mask_unsound(values: Sequence[bytes], is_sound: Callable[[bytes], object]) -> Mask:
    """Return which values are not sound: for which a function returns False, or raises ValueError."""
    is_unsound = np.zeros(len(values), dtype=bool)
    for position, value in enumerate(values):
        try:
            if is_sound(value) is False:
                is_unsound[position] = True
        except ERRORS:
            is_unsound[position] = True
    return is_unsound
