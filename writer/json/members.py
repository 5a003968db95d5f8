"""The members of one JSON object as slices of its bytes, and the text of those that no column takes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

Members = Mapping[str, msgspec.Raw]
# Slices keep numbers and text as they were sent. Raises msgspec.DecodeError for what is no JSON object.
read_members: Callable[[bytes], dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
read_items: Callable[[bytes], list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw]).decode
# What msgspec raises for a value; its own errors are ValueErrors.
ERRORS = (ValueError, RecursionError)
NULL = b"null"
# A backslash, and then the end of a name.
_ESCAPED_NAME = re.compile(rb'\\.[^"\\]*"\s*:', re.DOTALL)


class RepeatedName(ValueError):
    """A name stands twice in one object."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it has two members {name!r}")
        self.name = name


def find_repeated_name(text: bytes) -> str | None:
    """Return a name that stands twice in an object itself, not in those inside; None without one."""
    # The hook is called for the outermost object last, whose pairs are what is returned.
    pairs = json.loads(text, object_pairs_hook=lambda pairs: pairs)
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            return str(name)
        names.add(name)
    return None


def check_names(text: bytes, names: Iterable[str]) -> None:
    """Raise RepeatedName where one of the names, of an object that has them, stands twice.

    Few objects are looked at closely: those in which a name is written twice anywhere, or a name may be escaped.
    """
    has_escapes = b"\\" in text and _ESCAPED_NAME.search(text) is not None
    if has_escapes or any(text.count(b'"%b"' % name.encode()) > 1 for name in names):
        repeated = find_repeated_name(text)
        if repeated is not None:
            raise RepeatedName(repeated)


def write_members(members: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return the JSON text of an object of the members with these names, as they were sent; None without any."""
    parts = [f"{msgspec.json.encode(name).decode()}:{bytes(members[name]).decode()}" for name in names]
    return f"{{{','.join(parts)}}}" if parts else None
