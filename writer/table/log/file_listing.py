"""Lists the files of a table version, bucket by bucket, from its log alone.

Unlike delta-rs's list it knows the event times that our entries tell of a file, and it takes one bucket's files out of
a large checkpoint without making an object of any other.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.storage.damage import naming_damage
from headrace.writer.table.log.entries import added_file
from headrace.writer.table.log.log import Action, Log, LogUnreadable, State, TableVersion

# Requests to a store, each of which takes a round trip.
_REQUESTS_AT_ONCE = 16


@dataclass(frozen=True)
class Listing:
    """All files of one version of a table, by path."""

    table_version: TableVersion
    files: dict[str, BucketFile]


def list_files(log: Log, state: State, earlier: Listing | None) -> Listing:
    """Return the listing at a state, from that of an earlier version on. Raises LogUnreadable, OSError."""
    table_version = state.table_version
    columns = state.metadata["partitionColumns"]
    if (
        earlier is None
        or earlier.table_version.table_id != table_version.table_id
        or earlier.table_version.version > table_version.version
    ):
        checkpoint_version, adds = log.checkpoint_adds(table_version.version)
        checkpoint_files = _added_files(log, checkpoint_version, columns, adds)
        earlier = Listing(
            TableVersion(table_version.table_id, checkpoint_version), {file.path: file for file in checkpoint_files}
        )
    files = dict(earlier.files)
    for actions in _read_entries(log, earlier.table_version.version, table_version.version):
        _apply(files, actions, columns)
    return Listing(table_version, files)


def list_bucket_files(log: Log, state: State, bucket: BucketKey | None) -> list[BucketFile]:
    """List the files at a state, of one bucket or of all, from the newest checkpoint on that names files.

    Raises LogUnreadable, OSError.
    """
    columns = state.metadata["partitionColumns"]
    checkpoint_version, adds = log.checkpoint_adds(state.version)
    if bucket is not None:
        adds = adds.filter(_is_in_bucket(adds, columns, bucket))
    files = {file.path: file for file in _added_files(log, checkpoint_version, columns, adds)}
    for actions in _read_entries(log, checkpoint_version, state.version):
        _apply(files, actions, columns)
    return [file for file in files.values() if bucket in (None, file.bucket)]


def list_adds(log: Log, state: State) -> list[Action]:
    """Return the actions that add the files of a state, as the log has them. Raises LogUnreadable, OSError."""
    checkpoint_version, checkpoint_adds = log.checkpoint_adds(state.version)
    adds = {path_of(add): add for add in checkpoint_adds.column("add").to_pylist()}
    for actions in _read_entries(log, checkpoint_version, state.version):
        for action in actions:
            match action:
                case {"remove": {"path": path}}:
                    adds.pop(unquote(path), None)
                case {"add": add}:
                    adds[path_of(add)] = add
    return [adds[path] for path in sorted(adds)]


def path_of(add: Action) -> str:
    """Return the path of the file that an action adds, below the table's location."""
    return unquote(add["path"])


def _added_files(log: Log, version: int, columns: Sequence[str], adds: pa.Table) -> list[BucketFile]:
    """Return the files that the actions of a checkpoint add. Raises FileDamaged."""
    with naming_damage(f"checkpoint {version} of {log.location}", "one of a table's log"):
        return [added_file(columns, add) for add in adds.column("add").to_pylist()]


def _is_in_bucket(adds: pa.Table, columns: Sequence[str], bucket: BucketKey) -> pa.ChunkedArray | pa.Array:
    """Return for each action whether the file that it adds lies in a bucket."""
    mask: pa.Array = pa.repeat(True, adds.num_rows)
    partition_values = pc.struct_field(adds.column("add"), "partitionValues")
    for column, value in zip(columns, bucket, strict=True):
        column_values = pc.map_lookup(partition_values, column, "first")
        is_equal = pc.fill_null(pc.equal(column_values, value), False)
        mask = pc.and_(mask, pc.is_null(column_values) if value is None else is_equal)
    return mask


def _read_entries(log: Log, since: int, until: int) -> Iterator[Sequence[Action]]:
    """Yield the actions of the entries after version `since`, up to `until`. Raises LogUnreadable, OSError."""
    versions = range(since + 1, until + 1)
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        for version, actions in zip(versions, threads.map(log.entry, versions), strict=True):
            if actions is None:
                raise LogUnreadable(f"{log.location} has no entry {version} any more; read the newest version instead")
            yield actions


def _apply(files: dict[str, BucketFile], actions: Sequence[Action], columns: Sequence[str]) -> None:
    """Add and remove files, by their paths, as the actions of an entry say."""
    for action in actions:
        match action:
            case {"remove": {"path": path}}:
                files.pop(unquote(path), None)
            case {"add": add}:
                file = added_file(columns, add)
                files[file.path] = file
