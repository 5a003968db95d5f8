"""Lists of files that would make an entry of a route's log too long: objects beside it, named by their hash.

An entry of a route lists the files of all its tables, and is read by each reader of the log. A long list is put below
`_headrace/lists` before the entry is written; the entry then has the tables without their files, and the hash.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from headrace.writer.storage.base import Store
from headrace.writer.table.log.foreign_writes import CommitFailed

FOLDER = "_headrace/lists"
# Bytes of JSON in the entry itself.
INLINE_MAX = 256 * 1024
# Facts of an entry.
_LIST = "side_files"
_LIST_OBJECT = "side_files_at"


def store_long_list(store: Store, facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of an entry; put its list of files into an object if that is long. Raises OSError."""
    content = json.dumps(facts.get(_LIST, {})).encode()
    if len(content) <= INLINE_MAX:
        return facts
    digest = hashlib.sha256(content).hexdigest()
    store.put(_object_name(digest), content)
    tables: dict[str, list[Any]] = {location: [] for location in facts[_LIST]}
    return {**facts, _LIST: tables, _LIST_OBJECT: {"sha256": digest, "bytes": len(content)}}


def read_side_files(store: Store, facts: Mapping[str, Any]) -> Mapping[str, list[Any]]:
    """Return the files that an entry lists, by the tables' locations. Raises CommitFailed if the list is damaged."""
    inline_files: Mapping[str, list[Any]] = facts.get(_LIST, {})
    if _LIST_OBJECT not in facts:
        return inline_files
    digest = facts[_LIST_OBJECT]["sha256"]
    name = _object_name(digest)
    try:
        list_object = store.read(name)
    except OSError as error:
        raise CommitFailed(f"the list {store.path(name)} cannot be read: {error}") from error
    if list_object is None or hashlib.sha256(list_object.content).hexdigest() != digest:
        damage = "is not there" if list_object is None else "is not what was written"
        raise CommitFailed(
            f"the list of files {store.path(name)} {damage}, and a commit of the log needs it. Restore the object."
        )
    side_files: Mapping[str, list[Any]] = json.loads(list_object.content)
    return side_files


def list_object_name(facts: Mapping[str, Any]) -> str | None:
    """Return where the list of an entry lies, relative to the table; None: in the entry."""
    return _object_name(facts[_LIST_OBJECT]["sha256"]) if _LIST_OBJECT in facts else None


def _object_name(digest: str) -> str:
    return f"{FOLDER}/{digest}.json"
