"""Files of a route's table that wait at the pipeline's log while the table refuses, and how they come to it later.

They lie below `_headrace/held/<number of the table>` under the names that they will have. An entry of the log that
lists files says in which folder they wait. To copy a file twice leaves one file, because names are unique.
"""

from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from headrace.writer.columns.union_members import UnionMemberConflict, join_members, union_members, with_members
from headrace.writer.core.files import HELD_LATE, StagedFile, staged_name
from headrace.writer.storage.base import Store
from headrace.writer.table.log.entries import SideEntry
from headrace.writer.table.log.foreign_writes import CommitFailed, reading
from headrace.writer.table.table import PipelineTable

FOLDER = "_headrace/held"


def held_folder(number: int) -> str:
    """Return the folder of a table's files, relative to the pipeline's log."""
    return f"{FOLDER}/{number}"


def save_columns(log: Store, number: int, columns: pa.Schema) -> None:
    """Save the columns that rows of a table have, beside those that are saved. Raises CommitFailed, OSError."""
    saved = saved_columns(log, number) or pa.schema([])
    # A command saved these meanwhile.
    others = [field for field in saved if field.name not in columns.names]
    try:
        members = join_members(union_members(saved), union_members(columns))
    except UnionMemberConflict as error:
        raise CommitFailed(f"table {number} of the route: {error}. Start again: the next start looks.") from error
    joined_columns = with_members(pa.schema([*columns, *others]), members)
    log.put(_columns_name(number), joined_columns.serialize().to_pybytes())


def saved_columns(log: Store, number: int) -> pa.Schema | None:
    """Return the columns that were saved; None where none were. Raises OSError."""
    stored = log.read(_columns_name(number))
    return None if stored is None else pa.ipc.read_schema(pa.py_buffer(stored.content))


def source_and_target(folder: str, file: StagedFile, *, hidden: bool) -> tuple[str, str]:
    """Return where a file waits, relative to the log, and where it goes, relative to its table."""
    name = staged_name(file.path) if hidden else file.path
    return f"{folder}/{name}", name


def copy_to_table(log: Store, table: PipelineTable, entry: SideEntry) -> None:
    """Copy the files of an entry to their table, and give it their columns before. Raises CommitFailed, OSError."""
    number = int(entry.held_folder.removeprefix(f"{FOLDER}/").removesuffix(HELD_LATE))
    columns = saved_columns(log, number)
    if columns is not None:
        table.grow(list(columns))
    log_files, log_root = log.files(FOLDER)
    table_files, table_root = table.store.files()
    for file in entry.files:
        source, target = source_and_target(entry.held_folder, file, hidden=table.hidden)
        if any(_size(table_files, f"{table_root}/{name}") == file.bytes for name in (target, file.path)):
            continue
        # An object is there in full or not at all.
        copy_name = target
        if isinstance(table_files, fs.LocalFileSystem):
            folder, _, name = target.rpartition("/")
            table_files.create_dir(f"{table_root}/{folder}", recursive=True)
            # Another process may copy the same file.
            copy_name = f"{folder}/.{name}.{uuid4().hex}.tmp".lstrip("/")
        fs.copy_files(
            f"{log_root}/{source}",
            f"{table_root}/{copy_name}",
            source_filesystem=log_files,
            destination_filesystem=table_files,
        )
        if _size(table_files, f"{table_root}/{copy_name}") != file.bytes:
            raise CommitFailed(f"{log.path(source)} was not copied whole to {table.location}; it is tried again")
        if copy_name != target:
            table.store.move(copy_name, target)


def check_files_exist(table: PipelineTable, entry: SideEntry) -> None:
    """Raise CommitFailed where a file of an entry is gone, as when a table that was away comes back over it."""
    with reading(table.location):
        if entry.version <= table.snapshot().applied:
            return
        for file in entry.files:
            if not any(map(table.store.mark, {file.path, staged_name(file.path)})):
                raise CommitFailed(
                    f"the file {file.path} that was written to {table.location} for version {entry.version} of the "
                    "pipeline's log is gone. Restore it"
                )


def remove_held_files(log: Store, table: PipelineTable, entry: SideEntry) -> None:
    """Remove the files of an entry that all processes know to be applied. Raises OSError."""
    for file in entry.files:
        source, _ = source_and_target(entry.held_folder, file, hidden=table.hidden)
        log.delete(source)


def _columns_name(number: int) -> str:
    return f"{FOLDER}/{number}.columns"


def _size(files: fs.FileSystem, path: str) -> int | None:
    size: int | None = files.get_file_info(path).size
    return size
