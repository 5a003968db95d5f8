"""Lists of files that would make an entry of a route's log too long: objects beside it, named by their hash.

An entry of a route lists the files of all its tables, and is read by each reader of the log. A long list is put below
`_headrace/lists` before the entry is written; the entry then has the tables without their files, and the hash.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from writer.storage.base import Store
from writer.table.log.foreign_writes import CommitFailed

FOLDER = "_headrace/lists"
INLINE_MAX = 256 * 1024  # bytes of JSON in the entry itself
_LIST, _AT = "side_files", "side_files_at"


def shortened(store: Store, about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of an entry, without their list of files where that is long. Raises OSError."""
    content = json.dumps(about.get(_LIST, {})).encode()
    if len(content) <= INLINE_MAX:
        return about
    digest = hashlib.sha256(content).hexdigest()
    store.put(_name(digest), content)
    return {**about, _LIST: {place: [] for place in about[_LIST]}, _AT: {"sha256": digest, "bytes": len(content)}}


def side_files(store: Store, about: Mapping[str, Any]) -> Mapping[str, list[Any]]:
    """Return the files that an entry lists, by the tables' locations. Raises CommitFailed where the list is damaged."""
    found: Mapping[str, list[Any]] = about.get(_LIST, {})
    if _AT not in about:
        return found
    digest = about[_AT]["sha256"]
    try:
        read = store.read(_name(digest))
    except OSError as error:
        raise CommitFailed(f"the list {store.path(_name(digest))} cannot be read: {error}") from error
    if read is None or hashlib.sha256(read.content).hexdigest() != digest:
        what = "is not there" if read is None else "is not what was written"
        raise CommitFailed(
            f"the list of files {store.path(_name(digest))} {what}, and a commit of the log needs it. Restore "
            "the object."
        )
    whole: Mapping[str, list[Any]] = json.loads(read.content)
    return whole


def name(about: Mapping[str, Any]) -> str | None:
    """Return where the list of an entry lies, relative to the table; None: in the entry."""
    return _name(about[_AT]["sha256"]) if _AT in about else None


def _name(digest: str) -> str:
    return f"{FOLDER}/{digest}.json"
