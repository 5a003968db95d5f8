"""Makes an Iceberg table of a Delta or Parquet table of headrace, where it lies: files, log and account stay.

The old log takes a last entry, after which no writer follows; the journal gets all its entries; then one commit makes
the table in the catalog, with one snapshot of all files. Each step is safe to run again. (docs/adr/0039-convert.md)
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from headrace.writer.batch.staging.table_file import read_footer
from headrace.writer.config.sections.table import ICEBERG_RESERVED
from headrace.writer.core import fault_points
from headrace.writer.storage.base import Store
from headrace.writer.table.iceberg.catalog.catalog_errors import CommitRefused
from headrace.writer.table.iceberg.iceberg import Iceberg
from headrace.writer.table.iceberg.metadata.schema import columns_of, schema_of
from headrace.writer.table.log import file_listing
from headrace.writer.table.log.entries import parse_commit_info
from headrace.writer.table.log.foreign_writes import CommitFailed, reading, unwritable_protocol
from headrace.writer.table.log.log import Action, Log, State
from headrace.writer.table.schema_evolution import ColumnTypeMismatch, merge_columns
from headrace.writer.table.table import PipelineTable
from headrace.writer.table.takeover import find_outside_path

# That read footers.
_THREADS = 16
# Other clients of Delta read the old log on, and neither write to it nor vacuum the files that it does not name.
_READ_ONLY = {
    "protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["headrace.convertedToIceberg"]}
}
_RETENTION = "delta.deletedFileRetentionDuration"
_FOREVER = "interval 5000 weeks"
# Key of the last entry's facts: the table's own retention, for the journal.
_OWN_RETENTION = "retention_before"
# Types that headrace widens others to and Iceberg does not.
_WIDER_TYPES = ('"double"', '"decimal(')
_UNREGISTERED = (
    "It was an Iceberg table already, and the catalog does not know it any more. Register its newest metadata file "
    "there again."
)


class Conversion:
    """One table: as it is, and as it is to be."""

    def __init__(self, old: PipelineTable, log: Log, new: Iceberg) -> None:
        """`log`: of the old table, which may be the journal of the new one."""
        self.old = old
        self._log = log
        self._new = new
        self.is_delta = log.location != new.log.location

    @property
    def name(self) -> str:
        """What the table is called in the catalog."""
        return str(self._new.catalog_table)

    @property
    def is_done(self) -> bool:
        """Whether the catalog knows the table. Raises ConfigError where it knows the name at another location."""
        with reading(self.old.location):
            return self._new.log.exists()

    @property
    def is_begun(self) -> bool:
        """Whether the old log has its last entry."""
        return self.old.snapshot().converted >= 0

    def obstacles(self) -> list[str]:
        """Return what keeps the table from being converted, each as a sentence with its fix. Raises CommitFailed."""
        if self._new.catalog_table.log_location:
            return ["Its log stays where it is: take catalog.log_location away, or keep the format."]
        with reading(self.old.location):
            state = self._log.state()
            if self._was_iceberg(state):
                return [_UNREGISTERED]
            if self.is_begun:
                return []
            foreign_paths = self.old.foreign_paths()
            if foreign_paths:
                path = foreign_paths[0]
                return [f"Its file {path} was never committed: readers of the catalog would not see it. Move it."]
            return _state_obstacles(state) or list(_file_obstacles(self.old.store, self._adds(state), state))

    def _was_iceberg(self, state: State) -> bool:
        """Return whether entries follow that only an Iceberg table has."""
        if self.is_delta:
            return self._new.log.entry(state.version + 1) is not None
        return self._new.was_in_catalog()

    def end_log(self, facts: Mapping[str, Any], properties: Mapping[str, str] | None = None) -> int:
        """Append the last entry of the old log, which sets properties of the table. Returns its version.

        Raises ForeignChange, CommitFailed.
        """
        if not self.is_delta:
            return self.old.convert(facts, properties or {}, [])
        retention = self.old.snapshot().state.configuration.get(_RETENTION)
        last_facts = {**facts, _OWN_RETENTION: retention}
        return self.old.convert(last_facts, {**(properties or {}), _RETENTION: _FOREVER}, [_READ_ONLY])

    def register(self) -> None:
        """Copy the ended log, and make the table in the catalog, unless it is there. Raises CommitFailed.

        Where the catalog gives no answer, the next look shows what it did.
        """
        with reading(self.old.location):
            state = self._log.state()
            if self.is_delta:
                last_entry = self._log.entry(state.version) or []
                self._log.copy_to(self._new.log_store, _journal_entry(last_entry))
            fault_points.point("after_copy")
            try:
                self._new.register([_with_row_count(self.old.store, add) for add in self._adds(state)])
            except CommitRefused as error:
                if not self._new.log.exists():
                    raise CommitFailed(f"the catalog refused the table at {self.old.location}: {error}") from error

    def _adds(self, state: State) -> list[Action]:
        return file_listing.list_adds(self._log, state)


def _journal_entry(last_entry: Sequence[Action]) -> list[Action]:
    """Return the last entry of a Delta log without what it says to Delta's clients alone."""
    retention = parse_commit_info(last_entry)[1].get(_OWN_RETENTION)
    actions = list[Action]()
    for action in last_entry:
        metadata = action.get("metaData")
        if metadata is not None:
            configuration = {key: value for key, value in metadata["configuration"].items() if key != _RETENTION}
            if retention:
                configuration[_RETENTION] = retention
            actions.append({"metaData": {**metadata, "configuration": configuration}})
        elif "protocol" not in action:
            actions.append(action)
    return actions


def _state_obstacles(state: State) -> list[str]:
    """Return what of a table's protocol and columns Iceberg's format 2 does not have. Pure."""
    obstacles = []
    protocol = unwritable_protocol(state)
    if protocol:
        obstacles.append(f"Its protocol is {protocol}: what that allows, such as deletion vectors, is not converted.")
    columns = state.columns()
    reserved = sorted(ICEBERG_RESERVED & {name.lower() for name in columns.names})
    if reserved:
        obstacles.append(f"Its column {reserved[0]} has a name that Iceberg keeps for itself. Keep the format.")
    try:
        _, changes = merge_columns(state.metadata["schemaString"], list(columns_of(schema_of(columns))))
        mismatch = ", ".join(f"{name} ({change})" for name, change in changes.items())
    except (ColumnTypeMismatch, TypeError, ValueError) as error:
        mismatch = str(error)
    if mismatch:
        obstacles.append(f"Iceberg has not the type of a column: {mismatch}. Keep the format.")
    return obstacles


def _file_obstacles(store: Store, adds: Sequence[Action], state: State) -> Iterator[str]:
    """Yield what of a table's files Iceberg does not read. Opens them only where a column may have been widened."""
    outside_path = find_outside_path([add["path"] for add in adds])
    if outside_path:
        yield f"Its file {outside_path} lies elsewhere, as those of a shallow clone do. Clone it whole."
        return
    if not any(name in state.metadata["schemaString"] for name in _WIDER_TYPES):
        return
    columns = state.columns()
    with ThreadPoolExecutor(_THREADS) as threads:
        narrow_columns = threads.map(lambda add: _find_narrow_column(store, add, columns), adds)
        for add, name in zip(adds, narrow_columns, strict=True):
            if name:
                yield (
                    f"Its file {file_listing.path_of(add)} is older than the type that column {name} has now, and "
                    "Iceberg does not widen a column so. `headrace compact` writes such files anew, but for one that "
                    "is alone in its bucket: keep the format then."
                )
                return


def _find_narrow_column(store: Store, add: Action, columns: pa.Schema) -> str:
    """Return the first column of a file that Iceberg does not read as the table's type; empty where there is none."""
    file_columns = read_footer(store, file_listing.path_of(add)).schema.to_arrow_schema()
    for column in columns:
        if column.name in file_columns.names and _is_unreadable(file_columns.field(column.name).type, column.type):
            return str(column.name)
    return ""


def _is_unreadable(file_type: pa.DataType, table_type: pa.DataType) -> bool:
    """Return whether Iceberg refuses to read a type as another: integers as double, decimals of another scale."""
    types = pa.types
    if types.is_struct(table_type):
        indices = [(file_type.get_field_index(field.name), field.type) for field in table_type]
        return any(index >= 0 and _is_unreadable(file_type.field(index).type, type_) for index, type_ in indices)
    if types.is_list(table_type):
        return _is_unreadable(file_type.value_type, table_type.value_type)
    if types.is_map(table_type):
        return _is_unreadable(file_type.item_type, table_type.item_type)
    if types.is_floating(table_type):
        return not types.is_floating(file_type)
    return types.is_decimal(table_type) and (not types.is_decimal(file_type) or file_type.scale != table_type.scale)


def _with_row_count(store: Store, add: Action) -> Action:
    """Return an action that says how many rows its file has: of another client's checkpoint it may not."""
    if "numRecords" in json.loads(add.get("stats") or "{}"):
        return add
    rows = read_footer(store, file_listing.path_of(add)).num_rows
    return {**add, "stats": json.dumps({"numRecords": rows})}
