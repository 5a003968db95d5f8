"""Lists the files of a table version, bucket by bucket, from its log alone.

Unlike delta-rs's list it knows the event times that our entries tell of a file, and it takes one bucket's files out of
a large checkpoint without making an object of any other.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from writer.core.files import BucketFile, BucketKey
from writer.storage.damage import naming_damage
from writer.table.log.entries import named
from writer.table.log.log import Action, Log, LogUnreadable, State

_ENTRIES_AT_ONCE = 16  # of a store, each of which takes a round trip to answer


@dataclass(frozen=True)
class Listing:
    """All files of one version of a table, by path."""

    place: tuple[str, int]  # id and version of the table
    files: dict[str, BucketFile]


def followed(log: Log, state: State, known: Listing | None) -> Listing:
    """Return the listing at a state, from what is known of an older version on. Raises LogUnreadable, OSError."""
    table, version = state.place
    columns = state.metadata["partitionColumns"]
    if known is None or known.place[0] != table or known.place[1] > version:
        at, adds = log.added(version)
        known = Listing((table, at), {file.path: file for file in _named(log, at, columns, adds)})
    files = dict(known.files)
    for actions in _entries(log, known.place[1], version):
        _apply(files, actions, columns)
    return Listing((table, version), files)


def after_checkpoint(log: Log, state: State, bucket: BucketKey | None) -> list[BucketFile]:
    """List the files at a state, of one bucket or of all, from the newest checkpoint on that names files.

    Raises LogUnreadable, OSError.
    """
    columns, version = state.metadata["partitionColumns"], state.version
    at, adds = log.added(version)
    if bucket is not None:
        adds = adds.filter(_lies_in(adds, columns, bucket))
    files = {file.path: file for file in _named(log, at, columns, adds)}
    for actions in _entries(log, at, version):
        _apply(files, actions, columns)
    return [file for file in files.values() if bucket in (None, file.bucket)]


def adds(log: Log, state: State) -> list[Action]:
    """Return the actions that add the files of a state, as the log has them. Raises LogUnreadable, OSError."""
    at, found = log.added(state.version)
    files = {path_of(add): add for add in found.column("add").to_pylist()}
    for actions in _entries(log, at, state.version):
        for action in actions:
            match action:
                case {"remove": {"path": path}}:
                    files.pop(unquote(path), None)
                case {"add": add}:
                    files[path_of(add)] = add
    return [files[path] for path in sorted(files)]


def path_of(add: Action) -> str:
    """Return the path of the file that an action adds, below the table's location."""
    return unquote(add["path"])


def _named(log: Log, version: int, columns: Sequence[str], adds: pa.Table) -> list[BucketFile]:
    """Return the files that the actions of a checkpoint add. Raises FileDamaged."""
    with naming_damage(f"checkpoint {version} of {log.location}", "one of a table's log"):
        return [named(columns, add) for add in adds.column("add").to_pylist()]


def _lies_in(adds: pa.Table, columns: Sequence[str], bucket: BucketKey) -> pa.ChunkedArray | pa.Array:
    """Return for each action whether the file that it adds lies in a bucket."""
    inside: pa.Array = pa.repeat(True, adds.num_rows)
    values = pc.struct_field(adds.column("add"), "partitionValues")
    for column, value in zip(columns, bucket, strict=True):
        found = pc.map_lookup(values, column, "first")
        inside = pc.and_(inside, pc.is_null(found) if value is None else pc.fill_null(pc.equal(found, value), False))
    return inside


def _entries(log: Log, since: int, until: int) -> Iterable[Sequence[Action]]:
    wanted = range(since + 1, until + 1)
    with ThreadPoolExecutor(_ENTRIES_AT_ONCE) as threads:
        for version, actions in zip(wanted, threads.map(log.entry, wanted), strict=True):
            if actions is None:
                raise LogUnreadable(f"{log.location} has no entry {version} any more; read the newest version instead")
            yield actions


def _apply(files: dict[str, BucketFile], actions: Sequence[Action], columns: Sequence[str]) -> None:
    for action in actions:
        match action:
            case {"remove": {"path": path}}:
                files.pop(unquote(path), None)
            case {"add": add}:
                file = named(columns, add)
                files[file.path] = file
