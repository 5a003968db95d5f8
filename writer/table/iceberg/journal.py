"""The log of an Iceberg table: an entry counts from the moment on that the catalog names it.

An entry is put as a draft. One commit in the catalog moves the table to its snapshot and names the draft and its
version. Then the draft takes its place, `<version>.json`: the next process does that where the writer died. So there is
one truth, the catalog's, and recovery is one entry long. What other clients commit becomes an entry, too, before ours
follows it. (docs/adr/0038-iceberg.md)
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID, TableUpdate

from writer.core import fault_points
from writer.storage.base import OutcomeUnknown, Store
from writer.table.iceberg import compatibility, foreign_snapshots
from writer.table.iceberg.catalog.catalog_client import CatalogClient
from writer.table.iceberg.catalog.catalog_errors import CatalogUnanswered, CommitRefused
from writer.table.iceberg.metadata.offset_bounds import OFFSET
from writer.table.iceberg.metadata.schema import columns_of, paths, schema_of, spec_of
from writer.table.iceberg.metadata.snapshots import (
    DRAFT,
    LOG_LOCATION,
    SNAPSHOT,
    VERSION,
    PreparedCommit,
    as_columns_are,
    column_changes,
    prepare,
    takeover,
)
from writer.table.log import file_listing
from writer.table.log.entries import answered_changes, metadata_actions, parse_commit_info
from writer.table.log.foreign_writes import FilesGone, ForeignChange, one_line
from writer.table.log.log import Action, Log, State, TableVersion, entry_lines, entry_name
from writer.table.schema_evolution import ColumnTypeMismatch, merge_columns

_DRAFTS = "drafts"
_CONVERTED = f"{_DRAFTS}/converted"  # stands for a draft where the entry lay here before the catalog knew the table
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.delete.mode": "copy-on-write",  # other clients' deletes leave no delete files, which a rewrite would undo
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
}
_OF_OFFSETS = {f"write.metadata.metrics.column.{OFFSET}": "full"}  # bounds tell rows of ours from other clients'


class Journal(Log):
    """The log of a table that a catalog knows. Not for several threads."""

    def __init__(self, store: Store, client: CatalogClient) -> None:
        super().__init__(store)
        self._client = client
        self._placed = ""  # draft of the newest entry that is known to be in its place
        self._layout: tuple[int, int] | None = None  # ids of schema and partition spec that agree with the log
        self._loaded: tuple[TableVersion, Table] | None = None  # the version of the newest state, and its table

    def metadata_file(self) -> str:
        """Return the location of the table's newest metadata file."""
        return self.table().metadata_location

    def exists(self) -> bool:
        """Return whether the catalog knows the table."""
        return self._client.load() is not None

    def has_entries(self) -> bool:
        """Return whether entries lie there, whatever the catalog knows."""
        return super().exists()

    def loaded(self) -> Table:
        """Return the table as the catalog has it, any client's.

        Raises FileNotFoundError where there is none, ForeignChange where there was one of ours.
        """
        table = self._client.load()
        if table is None and self.has_entries():
            raise ForeignChange(
                f"another client dropped or renamed table {self._client.place}: the catalog does not know it any more. "
                f"Name it so again, or register the newest metadata file of {self._client.location}/metadata there."
            )
        if table is None:
            raise FileNotFoundError(f"the catalog knows no table {self._client.place}")
        return table

    def take(self, table: Table, actions: Sequence[Action]) -> bool:
        """Begin the log of a table that another client made: its first entry names the files of its current snapshot.

        False when another commit came before. Raises OutcomeUnknown, OSError.
        """
        draft = self._put_draft(actions)
        properties = {**self._properties(), **_OF_OFFSETS}
        del properties["format-version"]  # it is of this one
        prepared = takeover(table, actions, draft, properties)
        fault_points.point("before_catalog")
        is_committed = self._commit(table, prepared, 0, draft)
        fault_points.point("after_catalog")
        if not is_committed:
            self._withdraw(table, draft, ())
            return False
        with suppress(OSError):  # committed all the same: the next process puts it there
            self._place(0, draft)
        return True

    def was_in_catalog(self, has_metadata: bool) -> bool:
        """Return whether the entries are those of an Iceberg table, and not of one that is to become it.

        `has_metadata`: a metadata file of Iceberg lies beside them, which a conversion that broke off may have left.
        """
        state = self._at_end()
        ended = any(name.endswith("/converted") and at == state.version for name, at in state.transactions.items())
        return has_metadata and not ended

    def table(self) -> Table:
        """Return the table as the catalog has it, once the log says all of it.

        Raises FileNotFoundError where there is none, ForeignChange.
        """
        return self._agreed()[0]

    def state(self) -> State:
        """Return the newest state. Raises FileNotFoundError when there is no table, LogUnreadable, ForeignChange."""
        table, found = self._agreed()
        self._loaded = found.table_version, table
        return found

    def _agreed(self) -> tuple[Table, State]:
        """Return the table and the newest state of the log, which says all that others committed.

        The table is loaded after the log was read: an older one would say less than the log, as if a client had taken
        something back.
        """
        while True:
            read = self._state.version if self._state else -1
            table = self.loaded()
            version, draft = compatibility.check_properties(table)
            self._place(version, draft)
            state = super().state()
            if state.version <= max(read, version) and self._is_described(table, state, version):
                return table, state

    def create(self, actions: Sequence[Action]) -> bool:
        """Make the table in the catalog; its first entry goes with it. False when there is one."""
        draft, first = self._put_draft(actions), State(-1).apply(0, actions)
        fault_points.point("before_catalog")
        schema = schema_of(first.columns())
        spec = spec_of(schema, first.metadata["partitionColumns"])
        self._client.create(schema, spec, {**self._properties(schema), VERSION: "0", DRAFT: draft})
        fault_points.point("after_catalog")
        is_ours = self.table().properties[DRAFT] == draft
        if not is_ours:
            self._store.delete(draft)
        return is_ours

    def register(self, adds: Sequence[Action]) -> None:
        """Make the table in the catalog for the entries that lie here, with one snapshot of the files that `adds` name.

        Raises CommitRefused where the catalog has a table of that name, OSError.
        """
        state, actions = self._at_end(), [{"add": add} for add in adds]
        schema = schema_of(state.columns())
        spec = spec_of(schema, state.metadata["partitionColumns"])

        def filled(table: Table) -> tuple[TableUpdate, ...]:
            return prepare(table, actions, self._client.location, state.version, _CONVERTED).updates

        fault_points.point("before_catalog")
        self._client.create_filled(schema, spec, self._properties(schema), filled)
        fault_points.point("after_catalog")

    def map_columns(self) -> None:
        """Let the name mapping name all columns. Where the catalog does not take it now, the next commit does it."""
        with suppress(CatalogUnanswered):
            table = self._loaded[1] if self._loaded else self.table()
            if updates := column_changes(table):
                is_table = AssertTableUUID(uuid=table.metadata.table_uuid)
                self._client.commit(table, (is_table, as_columns_are(table)), updates)

    def append(self, after: State, actions: Sequence[Action]) -> bool:
        """Commit the entry that follows `after`. False when another entry, or another client's commit, came before.

        The table is not loaded again for it: the catalog refuses what does not follow its snapshot and its columns of
        `after`. Raises FilesGone, OutcomeUnknown, OSError.
        """
        if (
            self._loaded is None or self._loaded[0] != after.table_version
        ) and self.state().table_version != after.table_version:
            return False
        assert self._loaded is not None, "the state was read"
        table, version = self._loaded[1], after.version + 1
        compatibility.check_format(table)
        self._check_undo(table, actions)
        if self._store.mark(entry_name(version)) is not None:
            return False  # what a client did and took back: the catalog is where it was, and the log has both
        draft = self._put_draft(actions)
        try:
            prepared = prepare(table, actions, self._client.location, version, draft)
        except (FilesGone, ForeignChange):
            self._withdraw(table, draft, ())
            raise
        fault_points.point("before_catalog")
        is_committed = self._commit(table, prepared, version, draft)
        fault_points.point("after_catalog")
        if not is_committed:
            placed = self._store.read(entry_name(version))
            if placed is None or placed.content != entry_lines(actions):  # ours may have followers already
                self._withdraw(table, draft, prepared.written)
            return False
        with suppress(OSError):  # committed all the same: the next process puts it there
            self._store.put_if_absent(entry_name(version), entry_lines(actions))
            self._store.delete(draft)
            self._placed = draft
        return True

    def _commit(self, table: Table, prepared: PreparedCommit, version: int, draft: str) -> bool:
        """Ask the catalog until it has the commit, or has another one in its place.

        Whatever it answers, a look at it decides: what had no answer may be committed, and so may what was refused,
        where a request came twice. To ask again is safe, because only one request finds the table as required. Raises
        OutcomeUnknown, and ForeignChange where the table is gone.
        """
        try:
            return self._asked(table, prepared, version, draft)
        except OSError as error:
            fix = "What became of it, the next look shows."
            raise OutcomeUnknown("commit to", str(self._client.place), one_line(error).rstrip("."), fix) from error

    def _asked(self, table: Table, prepared: PreparedCommit, version: int, draft: str) -> bool:
        retries = self._client.retries()
        while True:
            refusal = None
            try:
                self._client.commit(table, prepared.requirements, prepared.updates)
            except CommitRefused as error:
                refusal = error
            except CatalogUnanswered as error:
                retries.pause(error)  # a catalog that asks for time is not looked at meanwhile
            else:
                return True
            latest = self.loaded()
            if latest.properties.get(DRAFT) == draft:
                return True
            is_moved = _required(latest) != _required(table)
            if self._store.mark(entry_name(version)) is not None or (refusal is not None and is_moved):
                return False
            if refusal is not None:
                retries.pause(refusal)

    def _withdraw(self, table: Table, draft: str, written: Sequence[str]) -> None:
        """Remove what a commit that cannot land any more has written; what stays is an orphan."""
        with suppress(OSError):
            for path in written:
                table.io.delete(path)
            self._store.delete(draft)

    def sweep(self, before: float) -> None:
        """Remove drafts of writers that died; `before`: when they were put, in seconds since 1970."""
        super().sweep(before)
        filesystem, root = self._store.files()
        for found in filesystem.get_file_info(fs.FileSelector(f"{root}/{_DRAFTS}", allow_not_found=True)):
            if found.is_file and found.mtime.timestamp() < before and f"{_DRAFTS}/{found.base_name}" != self._placed:
                self._store.delete(f"{_DRAFTS}/{found.base_name}")

    def _put_draft(self, actions: Sequence[Action]) -> str:
        name = f"{_DRAFTS}/{uuid4().hex}"
        self._store.put(name, entry_lines(actions))
        return name

    def _place(self, version: int, draft: str) -> None:
        """Put the entry that the catalog names in its place, if it is not there yet."""
        if draft == self._placed:
            return
        if self._store.mark(entry_name(version)) is None:
            found = self._store.read(draft)
            if found is not None:
                self._store.put_if_absent(entry_name(version), found.content)
            elif self._store.mark(entry_name(version)) is None:
                raise FileNotFoundError(
                    f"the catalog names entry {version} of {self._client.place}, but neither it nor {draft} is in "
                    f"{self.location}"
                )
        self._store.delete(draft)
        self._placed = draft

    def _is_described(self, table: Table, state: State, version: int) -> bool:
        """Return whether the log says all of the table, which names entry `version`; else write entries about it."""
        entries = [self.entry(at) or [] for at in range(version + 1, state.version + 1)]
        since = [parse_commit_info(actions) for actions in entries]
        if any(about for _, about in since):
            raise ForeignChange(
                f"table {self._client.place} at {self._client.location} went back: the catalog has version {version}, "
                f"and the log version {state.version}. Another client registered an older metadata file, or its "
                f"catalog was restored. Register the newest metadata file of {self._client.location}/metadata there."
            )
        ours, metadata = table.properties.get(SNAPSHOT), table.metadata
        known, layout = int(ours) if ours else None, (metadata.current_schema_id, metadata.default_spec_id)
        for info, _ in since:
            known = info.get(foreign_snapshots.SNAPSHOT, known)
        columns = state.metadata["partitionColumns"]
        if known != metadata.current_snapshot_id:
            listed = lambda: file_listing.list_files(self, state, None).files  # noqa: E731
            changes: Iterable[list[Action]] = foreign_snapshots.entries(
                table, known, self._client.location, columns, listed
            )
        elif layout == self._layout and not since:
            return True
        elif (found := self._column_changes(table, state)) is None:
            compatibility.check_partitions(table, columns)
            compatibility.check_files(table, entries)
            self._layout = layout
            return True
        else:
            changes = [found]
        for at, actions in enumerate(changes, state.version + 1):
            if not self._store.put_if_absent(entry_name(at), entry_lines(actions)):
                break  # another process writes the same
        return False

    def _at_end(self) -> State:
        return super().state()

    def _column_changes(self, table: Table, state: State) -> list[Action] | None:
        """Return the entry that says how another client changed the columns; None: not at all. Raises ForeignChange."""
        theirs = list(columns_of(table.schema()))
        try:
            schema, changes = merge_columns(state.metadata["schemaString"], theirs)
            missing = sorted(paths(state.columns()) - paths(pa.schema(theirs)))
        except ColumnTypeMismatch as error:
            raise self._changed(str(error)) from error
        if missing:
            raise self._changed(f"column {missing[0]} was dropped or renamed")
        if not changes:
            return None
        about: Mapping[str, Any] = {}
        (info, *rest) = metadata_actions("ADD COLUMNS", about, state.metadata, {}, schemaString=schema)
        return [{"commitInfo": {k: v for k, v in info["commitInfo"].items() if k != "headrace"}}, *rest]

    def _check_undo(self, table: Table, actions: Sequence[Action]) -> None:
        """Raise ForeignChange where an entry takes back what other clients did, and their delete files forbid it."""
        facts = parse_commit_info(actions)[1]
        changes = answered_changes(facts) if facts.get("kind") == "rewind" else []
        if not changes:
            return
        ids = [of for one in changes for of in foreign_snapshots.deleters(self.entry(one.version) or [])]
        first = changes[0].version
        brings = any("add" in action for action in actions)
        went = brings and any(foreign_snapshots.deleters(entry) for at, entry in self.entries_after(-1) if at < first)
        before = self._snapshot_at(table, first - 1) if went else None
        compatibility.check_undo(table, ids, before, rows_went=went)

    def _snapshot_at(self, table: Table, version: int) -> Snapshot | None:
        """Return the snapshot that a version of the log stands for; None where it expired."""
        for at in range(version, -1, -1):
            info, about = parse_commit_info(self.entry(at) or [])
            if (known := info.get(foreign_snapshots.SNAPSHOT)) is not None:
                return table.metadata.snapshot_by_id(known)
            if about:
                return next(
                    (one for one in table.metadata.snapshots if one.summary and one.summary[VERSION] == str(at)), None
                )
        return None

    def _changed(self, how: str) -> ForeignChange:
        return ForeignChange(
            f"another client changed the columns of table {self._client.place} at {self._client.location}: {how}. "
            "Change them back, then start again."
        )

    def _properties(self, schema: Schema | None = None) -> dict[str, str]:
        """Return the properties of a new table; a catalog may refuse one that names a column that is not there."""
        log, fields = self._client.place.log_location, schema.fields if schema else ()
        of_offsets = _OF_OFFSETS if any(field.name == OFFSET for field in fields) else {}
        return {**_PROPERTIES, **of_offsets, **({LOG_LOCATION: log} if log else {})}


def _required(table: Table) -> tuple[int | None, int]:
    """Return what a commit requires to be as it was: snapshot and columns."""
    return table.metadata.current_snapshot_id, table.metadata.current_schema_id
