"""Makes an Iceberg table of a Delta or Parquet table of headrace, where it lies: files, log and account stay.

The old log takes a last entry, after which no writer follows; the journal gets all its entries; then one commit makes
the table in the catalog, with one snapshot of all files. Each step is safe to run again. (docs/adr/0039-convert.md)
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from writer.batch.staging.table_file import read_footer
from writer.config.table_sections import ICEBERG_RESERVED
from writer.core import fault_points
from writer.storage.base import Store
from writer.table.iceberg.catalog.catalog_errors import CommitRefused
from writer.table.iceberg.iceberg import Iceberg
from writer.table.iceberg.metadata.schema import columns_of, schema_of
from writer.table.log import file_listing
from writer.table.log.entries import parse_commit_info
from writer.table.log.foreign_writes import CommitFailed, reading, unwritable_protocol
from writer.table.log.log import Action, Log, State
from writer.table.schema_evolution import ColumnTypeMismatch, merge_columns
from writer.table.table import PipelineTable
from writer.table.takeover import find_outside_path

_AT_ONCE = 16  # footers
# Other clients of Delta read the old log on, and neither write to it nor vacuum the files that it does not name.
_READ_ONLY = {
    "protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["headrace.convertedToIceberg"]}
}
_RETENTION, _EVER = "delta.deletedFileRetentionDuration", "interval 5000 weeks"
_OWN = "retention_before"  # what the last entry says of it, for the journal
_MAYBE_WIDENED = ('"double"', '"decimal(')  # types that headrace widens others to and Iceberg does not


class Conversion:
    """One table: as it is, and as it is to be."""

    def __init__(self, old: PipelineTable, log: Log, new: Iceberg) -> None:
        """`log`: of the old table, which may be the journal of the new one."""
        self.old, self._log, self._new = old, log, new
        self.is_delta = log.location != new.log.location

    @property
    def name(self) -> str:
        """What the table is called in the catalog."""
        return str(self._new.place)

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
        if self._new.place.log_location:
            return ["Its log stays where it is: take catalog.log_location away, or keep the format."]
        with reading(self.old.location):
            state = self._log.state()
            follows = self._new.log.entry(state.version + 1) is not None
            if follows if self.is_delta else self._new.was_in_catalog():
                return [_GONE]
            if self.is_begun:
                return []
            if strange := self.old.foreign_paths():
                return [f"Its file {strange[0]} was never committed: readers of the catalog would not see it. Move it."]
            return _of_state(state) or list(_of_files(self.old.store, self._adds(state), state))

    def end(self, facts: Mapping[str, Any], properties: Mapping[str, str] | None = None) -> int:
        """Append the last entry of the old log, which sets properties of the table. Returns its version.

        Raises ForeignChange, CommitFailed.
        """
        if not self.is_delta:
            return self.old.convert(facts, properties or {}, [])
        own = self.old.snapshot().state.configuration.get(_RETENTION)
        return self.old.convert({**facts, _OWN: own}, {**(properties or {}), _RETENTION: _EVER}, [_READ_ONLY])

    def register(self) -> None:
        """Copy the ended log, and make the table in the catalog, unless it is there. Raises CommitFailed.

        Where the catalog gives no answer, the next look shows what it did.
        """
        with reading(self.old.location):
            state = self._log.state()
            if self.is_delta:
                self._log.copy_to(self._new.log_store, _for_journal(self._log.entry(state.version) or []))
            fault_points.point("after_copy")
            try:
                self._new.register([_counted(self.old.store, add) for add in self._adds(state)])
            except CommitRefused as error:
                if not self._new.log.exists():
                    raise CommitFailed(f"the catalog refused the table at {self.old.location}: {error}") from error

    def _adds(self, state: State) -> list[Action]:
        return file_listing.list_adds(self._log, state)


def _for_journal(last: Sequence[Action]) -> list[Action]:
    """Return the last entry of a Delta log without what it says to Delta's clients alone."""
    own, found = parse_commit_info(last)[1].get(_OWN), list[Action]()
    for action in last:
        if (metadata := action.get("metaData")) is not None:
            kept = {key: value for key, value in metadata["configuration"].items() if key != _RETENTION}
            found.append({"metaData": {**metadata, "configuration": kept | ({_RETENTION: own} if own else {})}})
        elif "protocol" not in action:
            found.append(action)
    return found


_GONE = (
    "It was an Iceberg table already, and the catalog does not know it any more. Register its newest metadata file "
    "there again."
)


def _of_state(state: State) -> list[str]:
    """Return what of a table's protocol and columns Iceberg's format 2 does not have. Pure."""
    found = []
    if protocol := unwritable_protocol(state):
        found.append(f"Its protocol is {protocol}: what that allows, such as deletion vectors, is not converted.")
    columns = state.columns()
    if reserved := sorted(ICEBERG_RESERVED & {name.lower() for name in columns.names}):
        found.append(f"Its column {reserved[0]} has a name that Iceberg keeps for itself. Keep the format.")
    try:
        _, changes = merge_columns(state.metadata["schemaString"], list(columns_of(schema_of(columns))))
        odd = ", ".join(f"{name} ({how})" for name, how in changes.items())
    except (ColumnTypeMismatch, TypeError, ValueError) as error:
        odd = str(error)
    if odd:
        found.append(f"Iceberg has not the type of a column: {odd}. Keep the format.")
    return found


def _of_files(store: Store, adds: Sequence[Action], state: State) -> Iterator[str]:
    """Yield what of a table's files Iceberg does not read. Opens them only where a column may have been widened."""
    if path := find_outside_path([add["path"] for add in adds]):
        yield f"Its file {path} lies elsewhere, as those of a shallow clone do. Clone it whole."
        return
    if not any(name in state.metadata["schemaString"] for name in _MAYBE_WIDENED):
        return
    columns = state.columns()

    def narrow(add: Action) -> str:
        found = read_footer(store, file_listing.path_of(add)).schema.to_arrow_schema()
        there = [name for name in columns.names if name in found.names]
        return next((name for name in there if _is_unread(found.field(name).type, columns.field(name).type)), "")

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for add, name in zip(adds, threads.map(narrow, adds), strict=True):
            if name:
                yield (
                    f"Its file {file_listing.path_of(add)} is older than the type that column {name} has now, and "
                    "Iceberg does not widen a column so. `headrace compact` writes such files anew, but for one that "
                    "is alone in its bucket: keep the format then."
                )
                return


def _is_unread(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Iceberg refuses to read a type as another: integers as double, decimals of another scale."""
    kinds = pa.types
    if kinds.is_struct(wanted):
        inner = ((found.get_field_index(field.name), field.type) for field in wanted)
        return any(at >= 0 and _is_unread(found.field(at).type, to) for at, to in inner)
    if kinds.is_list(wanted):
        return _is_unread(found.value_type, wanted.value_type)
    if kinds.is_map(wanted):
        return _is_unread(found.item_type, wanted.item_type)
    if kinds.is_floating(wanted):
        return not kinds.is_floating(found)
    return kinds.is_decimal(wanted) and (not kinds.is_decimal(found) or found.scale != wanted.scale)


def _counted(store: Store, add: Action) -> Action:
    """Return an action that says how many rows its file has: of another client's checkpoint it may not."""
    if "numRecords" in json.loads(add.get("stats") or "{}"):
        return add
    rows = read_footer(store, file_listing.path_of(add)).num_rows
    return {**add, "stats": json.dumps({"numRecords": rows})}
