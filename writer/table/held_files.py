"""Files of a route's table that wait at the pipeline's log while the table refuses, and how they come to it later.

They lie below `_headrace/held/<number of the table>` under the names that they will have. An entry of the log that
lists files says in which folder they wait. What is brought twice is there once: names are unique.
"""

from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from writer.avro.union_members import UnionMemberConflict, join_members, union_members, with_members
from writer.batch.staging.parquet_files import HELD_LATE, staged_name
from writer.core.files import StagedFile
from writer.storage.base import Store
from writer.table.log.entries import SideEntry
from writer.table.log.foreign_writes import CommitFailed, reading
from writer.table.table import PipelineTable

FOLDER = "_headrace/held"


def folder(number: int) -> str:
    """Return the folder of a table's files, relative to the pipeline's log."""
    return f"{FOLDER}/{number}"


def keep_columns(log: Store, number: int, columns: pa.Schema) -> None:
    """Keep the columns that rows of a table have, beside those that are kept. Raises CommitFailed, OSError."""
    known = kept_columns(log, number) or pa.schema([])
    others = [field for field in known if field.name not in columns.names]  # that a command kept meanwhile
    try:
        members = join_members(union_members(known), union_members(columns))
    except UnionMemberConflict as error:
        raise CommitFailed(f"table {number} of the route: {error}. Start again: the next start looks.") from error
    log.put(_columns(number), with_members(pa.schema([*columns, *others]), members).serialize().to_pybytes())


def kept_columns(log: Store, number: int) -> pa.Schema | None:
    """Return the columns that were kept; None where none were. Raises OSError."""
    found = log.read(_columns(number))
    return None if found is None else pa.ipc.read_schema(pa.py_buffer(found.content))


def names(entry_folder: str, file: StagedFile, *, hidden: bool) -> tuple[str, str]:
    """Return where a file waits, relative to the log, and where it goes, relative to its table."""
    name = staged_name(file.path) if hidden else file.path
    return f"{entry_folder}/{name}", name


def bring(log: Store, table: PipelineTable, entry: SideEntry) -> None:
    """Copy the files of an entry to their table, and give it their columns before. Raises CommitFailed, OSError."""
    number = int(entry.held.removeprefix(f"{FOLDER}/").removesuffix(HELD_LATE))
    if (columns := kept_columns(log, number)) is not None:
        table.grow(list(columns))
    (here, root), (there, to) = log.files(FOLDER), table.store.files()
    for file in entry.files:
        source, target = names(entry.held, file, hidden=table.hidden)
        if any(_bytes(there, f"{to}/{name}") == file.bytes for name in (target, file.path)):
            continue
        copied = target  # an object is there whole or not at all
        if isinstance(there, fs.LocalFileSystem):
            folder_, _, name = target.rpartition("/")
            there.create_dir(f"{to}/{folder_}", recursive=True)
            copied = f"{folder_}/.{name}.{uuid4().hex}.tmp".lstrip("/")  # another process may copy the same
        fs.copy_files(f"{root}/{source}", f"{to}/{copied}", source_filesystem=here, destination_filesystem=there)
        if _bytes(there, f"{to}/{copied}") != file.bytes:
            raise CommitFailed(f"{log.path(source)} was not copied whole to {table.location}; it is tried again")
        if copied != target:
            table.store.move(copied, target)


def check_there(table: PipelineTable, entry: SideEntry) -> None:
    """Raise CommitFailed where a file of an entry is gone, as when a table that was away comes back over it."""
    with reading(table.location):
        for file in entry.files if entry.version > table.snapshot().applied else ():
            if not any(map(table.store.mark, {file.path, staged_name(file.path)})):
                raise CommitFailed(
                    f"the file {file.path} that was written to {table.location} for version {entry.version} of the "
                    "pipeline's log is gone. Restore it"
                )


def remove(log: Store, table: PipelineTable, entry: SideEntry) -> None:
    """Remove the files of an entry that all processes know to be applied. Raises OSError."""
    for file in entry.files:
        log.delete(names(entry.held, file, hidden=table.hidden)[0])


def _columns(number: int) -> str:
    return f"{FOLDER}/{number}.columns"


def _bytes(files: fs.FileSystem, path: str) -> int | None:
    size: int | None = files.get_file_info(path).size
    return size
