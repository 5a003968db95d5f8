"""The log of an Iceberg table: an entry counts from the moment on that the catalog names it.

An entry is put as a draft. One commit in the catalog moves the table to its snapshot and names the draft and its
version. Then the draft becomes `<version>.json`: the next process does that where the writer died. So the catalog alone
decides, and recovery is one entry long. What other clients commit becomes an entry, too, before ours follows it.
(docs/adr/0038-iceberg.md)
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

from headrace.writer.core import fault_points
from headrace.writer.core.files import BucketFile
from headrace.writer.storage.base import OutcomeUnknown, Store
from headrace.writer.table.iceberg import compatibility, foreign_snapshots
from headrace.writer.table.iceberg.catalog.catalog_client import CatalogClient
from headrace.writer.table.iceberg.catalog.catalog_errors import CatalogUnanswered, CommitRefused
from headrace.writer.table.iceberg.metadata.offset_bounds import OFFSET
from headrace.writer.table.iceberg.metadata.schema import column_paths, columns_of, schema_of, spec_of
from headrace.writer.table.iceberg.metadata.snapshots import (
    DRAFT,
    LOG_LOCATION,
    SNAPSHOT,
    VERSION,
    PreparedCommit,
    column_changes,
    prepare_commit,
    prepare_takeover,
    require_columns,
)
from headrace.writer.table.log import file_listing
from headrace.writer.table.log.entries import answered_changes, metadata_actions, parse_commit_info
from headrace.writer.table.log.foreign_writes import FilesGone, ForeignChange, one_line
from headrace.writer.table.log.log import Action, Log, State, TableVersion, entry_lines, entry_name
from headrace.writer.table.schema_evolution import ColumnTypeMismatch, merge_columns

_DRAFTS = "drafts"
# The name of the draft where the entry lay here before the catalog knew the table.
_CONVERTED = f"{_DRAFTS}/converted"
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # Other clients' deletes leave no delete files, which a rewrite would undo.
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
}
# Bounds tell rows of ours from other clients'.
_OFFSET_PROPERTIES = {f"write.metadata.metrics.column.{OFFSET}": "full"}


class Journal(Log):
    """The log of a table that a catalog knows. Not for several threads."""

    def __init__(self, store: Store, client: CatalogClient) -> None:
        super().__init__(store)
        self._client = client
        # Draft of the newest entry that is known to be at its version.
        self._placed_draft = ""
        # Ids of schema and partition spec that agree with the log.
        self._layout: tuple[int, int] | None = None
        # Version of the newest state, and its table.
        self._loaded: tuple[TableVersion, Table] | None = None

    def metadata_file(self) -> str:
        """Return the location of the table's newest metadata file."""
        return self.table().metadata_location

    def exists(self) -> bool:
        """Return whether the catalog knows the table."""
        return self._client.load() is not None

    def has_entries(self) -> bool:
        """Return whether entries lie there, whatever the catalog knows."""
        return super().exists()

    def load_table(self) -> Table:
        """Return the table as the catalog has it, any client's.

        Raises FileNotFoundError where there is none, ForeignChange where there was one of ours.
        """
        table = self._client.load()
        if table is not None:
            return table
        if self.has_entries():
            raise ForeignChange(
                f"another client dropped or renamed table {self._client.catalog_table}: the catalog does not know it "
                "any more. Name it so again, or register the newest metadata file of "
                f"{self._client.location}/metadata there."
            )
        raise FileNotFoundError(f"the catalog knows no table {self._client.catalog_table}")

    def take(self, table: Table, actions: Sequence[Action]) -> bool:
        """Begin the log of a table that another client made: its first entry names the files of its current snapshot.

        False when another commit came before. Raises OutcomeUnknown, OSError.
        """
        draft = self._put_draft(actions)
        properties = {**self._properties(), **_OFFSET_PROPERTIES}
        # The table has its format version already.
        del properties["format-version"]
        prepared = prepare_takeover(table, actions, draft, properties)
        fault_points.point("before_catalog")
        is_committed = self._commit(table, prepared, 0, draft, actions)
        fault_points.point("after_catalog")
        if not is_committed:
            self._withdraw(table, draft, ())
            return False
        # It is committed all the same: the next process places the entry.
        with suppress(OSError):
            self._place_entry(0, draft)
        return True

    def was_in_catalog(self, has_metadata: bool) -> bool:
        """Return whether the entries are those of an Iceberg table, and not of one that is to become it.

        `has_metadata`: a metadata file of Iceberg lies beside them, which a conversion that broke off may have left.
        """
        state = self._newest_state()
        last_versions = [version for name, version in state.transactions.items() if name.endswith("/converted")]
        return has_metadata and state.version not in last_versions

    def table(self) -> Table:
        """Return the table as the catalog has it, once the log says all of it.

        Raises FileNotFoundError where there is none, ForeignChange.
        """
        return self._follow_catalog()[0]

    def state(self) -> State:
        """Return the newest state. Raises FileNotFoundError when there is no table, LogUnreadable, ForeignChange."""
        table, state = self._follow_catalog()
        self._loaded = (state.table_version, table)
        return state

    def _follow_catalog(self) -> tuple[Table, State]:
        """Return the table and the newest state of the log, which says all that others committed.

        The table is loaded after the log was read: an older one would say less than the log, as if a client had taken
        something back.
        """
        while True:
            read_version = self._state.version if self._state else -1
            table = self.load_table()
            version, draft = compatibility.check_properties(table)
            self._place_entry(version, draft)
            state = super().state()
            if state.version <= max(read_version, version) and not self._log_foreign_changes(table, state, version):
                return table, state

    def create(self, actions: Sequence[Action]) -> bool:
        """Make the table in the catalog; its first entry goes with it. False when there is one."""
        draft = self._put_draft(actions)
        state = State(-1).apply(0, actions)
        fault_points.point("before_catalog")
        schema = schema_of(state.columns())
        spec = spec_of(schema, state.metadata["partitionColumns"])
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
        state = self._newest_state()
        actions = [{"add": add} for add in adds]
        schema = schema_of(state.columns())
        spec = spec_of(schema, state.metadata["partitionColumns"])

        def add_snapshot(table: Table) -> tuple[TableUpdate, ...]:
            return prepare_commit(table, actions, self._client.location, state.version, _CONVERTED).updates

        fault_points.point("before_catalog")
        self._client.create_with_snapshot(schema, spec, self._properties(schema), add_snapshot)
        fault_points.point("after_catalog")

    def map_columns(self) -> None:
        """Let the name mapping name all columns. Where the catalog does not take it now, the next commit does it."""
        with suppress(CatalogUnanswered):
            table = self._loaded[1] if self._loaded else self.table()
            updates = column_changes(table)
            if updates:
                requirements = (AssertTableUUID(uuid=table.metadata.table_uuid), require_columns(table))
                self._client.commit(table, requirements, updates)

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
        table = self._loaded[1]
        version = after.version + 1
        compatibility.check_format(table)
        self._check_undo(table, actions)
        # Mostly there is none: a read tells by one request that it is not the bucket that is missing.
        if self._store.read(entry_name(version)) is not None:
            # A client changed something and took it back: the catalog is where it was, and the log has both.
            return False
        draft = self._put_draft(actions)
        try:
            prepared = prepare_commit(table, actions, self._client.location, version, draft)
        except (FilesGone, ForeignChange):
            self._withdraw(table, draft, ())
            raise
        fault_points.point("before_catalog")
        is_committed = self._commit(table, prepared, version, draft, actions)
        fault_points.point("after_catalog")
        if not is_committed:
            self._withdraw(table, draft, prepared.written)
            return False
        # It is committed all the same: the next process places the entry.
        with suppress(OSError):
            self._store.put_if_absent(entry_name(version), entry_lines(actions))
            self._store.delete(draft)
            self._placed_draft = draft
        return True

    def _commit(
        self, table: Table, prepared: PreparedCommit, version: int, draft: str, actions: Sequence[Action]
    ) -> bool:
        """Ask the catalog until it has the commit, or another one came before. Returns whether it has ours.

        Whatever it answers, a look at it decides: what had no answer may be committed, and so may what was refused,
        where a request came twice. To ask again is safe, because only one request finds the table as required. Raises
        OutcomeUnknown, and ForeignChange where the table is gone.
        """
        try:
            if self._commit_with_retries(table, prepared, version, draft):
                return True
            # Our entry may be placed, and have followers already: then the catalog names theirs.
            stored = self._store.read(entry_name(version))
            return stored is not None and stored.content == entry_lines(actions)
        except OSError as error:
            fix = "What became of it, the next look shows."
            text = one_line(error).rstrip(".")
            raise OutcomeUnknown("commit to", str(self._client.catalog_table), text, fix) from error

    def _commit_with_retries(self, table: Table, prepared: PreparedCommit, version: int, draft: str) -> bool:
        """As `_commit`, but False also where entries follow ours."""
        retries = self._client.retries()
        while True:
            refusal = None
            try:
                self._client.commit(table, prepared.requirements, prepared.updates)
            except CommitRefused as error:
                refusal = error
            except CatalogUnanswered as error:
                # A catalog that asks for time is not looked at meanwhile.
                retries.pause(error)
            else:
                return True
            latest = self.load_table()
            if latest.properties.get(DRAFT) == draft:
                return True
            is_moved = _snapshot_and_schema(latest) != _snapshot_and_schema(table)
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
        for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{_DRAFTS}", allow_not_found=True)):
            draft = f"{_DRAFTS}/{info.base_name}"
            if info.is_file and info.mtime.timestamp() < before and draft != self._placed_draft:
                self._store.delete(draft)

    def _put_draft(self, actions: Sequence[Action]) -> str:
        draft = f"{_DRAFTS}/{uuid4().hex}"
        self._store.put(draft, entry_lines(actions))
        return draft

    def _place_entry(self, version: int, draft: str) -> None:
        """Put the draft that the catalog names at its version, if the entry is not there yet."""
        if draft == self._placed_draft:
            return
        if self._store.mark(entry_name(version)) is None:
            stored = self._store.read(draft)
            if stored is not None:
                self._store.put_if_absent(entry_name(version), stored.content)
            elif self._store.mark(entry_name(version)) is None:
                raise FileNotFoundError(
                    f"the catalog names entry {version} of {self._client.catalog_table}, but neither it nor {draft} is "
                    f"in {self.location}"
                )
        self._store.delete(draft)
        self._placed_draft = draft

    def _log_foreign_changes(self, table: Table, state: State, version: int) -> bool:
        """Write entries about what other clients changed that the log lacks. Returns whether it lacked any.

        `version`: of the entry that the table names. Raises ForeignChange where headrace cannot go on with a change.
        """
        entries = [self.entry(after) or [] for after in range(version + 1, state.version + 1)]
        infos = [parse_commit_info(actions) for actions in entries]
        if any(facts for _, facts in infos):
            raise ForeignChange(
                f"table {self._client.catalog_table} at {self._client.location} went back: the catalog has version "
                f"{version}, and the log version {state.version}. Another client registered an older metadata file, or "
                "its catalog was restored. Register the newest metadata file of "
                f"{self._client.location}/metadata there."
            )
        own_snapshot = table.properties.get(SNAPSHOT)
        logged_id = int(own_snapshot) if own_snapshot else None
        for info, _ in infos:
            logged_id = info.get(foreign_snapshots.SNAPSHOT, logged_id)
        metadata = table.metadata
        if logged_id != metadata.current_snapshot_id:
            self._put_entries(state.version + 1, self._describe_commits(table, state, logged_id))
            return True
        layout = (metadata.current_schema_id, metadata.default_spec_id)
        if layout == self._layout and not entries:
            return False
        entry = self._describe_columns(table, state)
        if entry is not None:
            self._put_entries(state.version + 1, [entry])
            return True
        compatibility.check_partitions(table, state.metadata["partitionColumns"])
        compatibility.check_files(table, entries)
        self._layout = layout
        return False

    def _describe_commits(self, table: Table, state: State, logged_id: int | None) -> Iterable[list[Action]]:
        """Return entries about what other clients committed after the snapshot that the log knows."""
        columns = state.metadata["partitionColumns"]

        def list_files() -> Mapping[str, BucketFile]:
            return file_listing.list_files(self, state, None).files

        return foreign_snapshots.describe_commits(table, logged_id, self._client.location, columns, list_files)

    def _put_entries(self, version: int, entries: Iterable[Sequence[Action]]) -> None:
        """Put entries from a version on, until another process has put one: it writes the same."""
        for entry_version, actions in enumerate(entries, version):
            if not self._store.put_if_absent(entry_name(entry_version), entry_lines(actions)):
                return

    def _newest_state(self) -> State:
        """Return the state at the last entry that lies here, whatever the catalog knows."""
        return super().state()

    def _describe_columns(self, table: Table, state: State) -> list[Action] | None:
        """Return the entry that says how another client changed the columns; None: not at all. Raises ForeignChange."""
        columns = list(columns_of(table.schema()))
        try:
            schema, changes = merge_columns(state.metadata["schemaString"], columns)
            missing = sorted(column_paths(state.columns()) - column_paths(pa.schema(columns)))
        except ColumnTypeMismatch as error:
            raise self._column_conflict(str(error)) from error
        if missing:
            raise self._column_conflict(f"column {missing[0]} was dropped or renamed")
        if not changes:
            return None
        no_facts: Mapping[str, Any] = {}
        info, *actions = metadata_actions("ADD COLUMNS", no_facts, state.metadata, {}, schemaString=schema)
        # Without the key of headrace's facts: the entry is another client's.
        foreign_info = {key: value for key, value in info["commitInfo"].items() if key != "headrace"}
        return [{"commitInfo": foreign_info}, *actions]

    def _check_undo(self, table: Table, actions: Sequence[Action]) -> None:
        """Raise ForeignChange where an entry takes back what other clients did, and their delete files forbid it."""
        facts = parse_commit_info(actions)[1]
        changes = answered_changes(facts) if facts.get("kind") == "rewind" else []
        if not changes:
            return
        delete_snapshots = list[int]()
        for change in changes:
            delete_snapshots += foreign_snapshots.delete_snapshot_ids(self.entry(change.version) or [])
        first_version = changes[0].version
        adds_files = any("add" in action for action in actions)
        had_deletes = adds_files and self._has_deletes_before(first_version)
        before = self._snapshot_at(table, first_version - 1) if had_deletes else None
        compatibility.check_undo(table, delete_snapshots, before, had_deletes=had_deletes)

    def _has_deletes_before(self, version: int) -> bool:
        """Return whether an entry before a version is about delete files."""
        entries = (entry for entry_version, entry in self.entries_after(-1) if entry_version < version)
        return any(foreign_snapshots.delete_snapshot_ids(entry) for entry in entries)

    def _snapshot_at(self, table: Table, version: int) -> Snapshot | None:
        """Return the snapshot that a version of the log stands for; None where it expired."""
        for earlier in range(version, -1, -1):
            info, facts = parse_commit_info(self.entry(earlier) or [])
            snapshot_id = info.get(foreign_snapshots.SNAPSHOT)
            if snapshot_id is not None:
                return table.metadata.snapshot_by_id(snapshot_id)
            if facts:
                return _own_snapshot(table, earlier)
        return None

    def _column_conflict(self, change: str) -> ForeignChange:
        return ForeignChange(
            f"another client changed the columns of table {self._client.catalog_table} at {self._client.location}: "
            f"{change}. Change them back, then start again."
        )

    def _properties(self, schema: Schema | None = None) -> dict[str, str]:
        """Return the properties of a new table; a catalog may refuse one that names a column that is not there."""
        properties = dict(_PROPERTIES)
        if schema is not None and any(field.name == OFFSET for field in schema.fields):
            properties |= _OFFSET_PROPERTIES
        log_location = self._client.catalog_table.log_location
        if log_location:
            properties[LOG_LOCATION] = log_location
        return properties


def _own_snapshot(table: Table, version: int) -> Snapshot | None:
    """Return the snapshot of an entry of ours; None where it expired."""
    for snapshot in table.metadata.snapshots:
        if snapshot.summary and snapshot.summary[VERSION] == str(version):
            return snapshot
    return None


def _snapshot_and_schema(table: Table) -> tuple[int | None, int]:
    """Return what a commit requires to be as it was: the ids of snapshot and columns."""
    return table.metadata.current_snapshot_id, table.metadata.current_schema_id
