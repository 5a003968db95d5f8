"""Delta Lake: files, ranges and counts in one log entry, through delta-rs.

Progress is kept as Delta's `txn` actions, one for each part (`<pipeline>/<topic>@<incarnation>/<partition>` → end
offset) and one for the epoch (`<pipeline>/epoch`). Every commit writes the epoch again, so a start that happens in
between is a conflict on that id, whatever else the two touch.
"""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from writer import faults
from writer.errors import ConfigError, Fenced
from writer.rooms.columnar import StagedFile
from writer.rooms.report import file_from_json, file_to_json
from writer.tables.base import Batch, CommitFailed, Committed, ForeignChange, Part, Snapshot

_INCARNATIONS = "headrace.incarnations"
_OWNER = "headrace/"  # with the pipeline's name: the table's name
_T = TypeVar("_T")
# Operations that leave our rows and txn actions as they are, or take rows away and leave the offsets true.
_HARMLESS = {
    "OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN", "ADD COLUMNS", "SET TBLPROPERTIES", "DELETE",
    "ADD CONSTRAINT", "UPDATE FIELD METADATA", "UPDATE TABLE METADATA", "CREATE TABLE", "REORG",
}  # fmt: skip


class DeltaSnapshot:
    """One version of a Delta table."""

    def __init__(self, table: DeltaTable, pipeline: str) -> None:
        self.table, self._pipeline = table, pipeline

    @property
    def version(self) -> int:
        """Version of the table."""
        return int(self.table.version())

    @property
    def epoch(self) -> int:
        """Number of starts that this pipeline has had."""
        return int(self.table.transaction_version(f"{self._pipeline}/epoch") or 0)

    def frontier(self, part: Part) -> int | None:
        """Return the first offset of this part that is not committed."""
        found = self.table.transaction_version(app_id(self._pipeline, part))
        return None if found is None else int(found)

    @property
    def settled(self) -> int:
        """Version up to which side files are known to be applied; -1 when nothing is known."""
        found = self.table.transaction_version(f"{self._pipeline}/settled")
        return -1 if found is None else int(found)

    @property
    def applied(self) -> int:
        """For a side table: newest main version whose files it has; -1 when none."""
        found = self.table.transaction_version(f"{self._pipeline}/main")
        return -1 if found is None else int(found)

    def columns(self) -> pa.Schema:
        """Columns with their Arrow types."""
        return _arrow(self.table.schema())

    def incarnations(self) -> dict[str, list[str]]:
        """Topic → ids of its incarnations, in order."""
        return dict(json.loads(self.table.metadata().configuration.get(_INCARNATIONS, "{}")))


class DeltaLake:
    """A Delta table that belongs to one pipeline."""

    def __init__(
        self, location: str, pipeline: str, *, patience: timedelta = timedelta(minutes=2), checkpoint_interval: int = 50
    ) -> None:
        """Open or make the handle; `patience` is how long a commit is tried before CommitFailed."""
        self._location, self._pipeline, self._patience = location, pipeline, patience
        self._interval = checkpoint_interval

    def create(self, columns: pa.Schema, bucket_columns: Sequence[str], layout: str = "") -> None:
        """Create the table if there is none. `layout` says in words how rows map to buckets.

        Raises ConfigError when the table is another pipeline's, or is bucketed in another way.
        """
        try:
            if not DeltaTable.is_deltatable(self._location):
                self._create(columns, bucket_columns, layout)
            metadata = self.snapshot().table.metadata()
        except (DeltaError, OSError) as error:
            raise ConfigError(f"cannot open or create a table at {self._location}: {_one_line(error)}") from error
        owner, known = metadata.name or "", metadata.description or ""
        if owner != _OWNER + self._pipeline:
            made = owner.startswith(_OWNER)
            whose = f"belongs to pipeline {owner.removeprefix(_OWNER)!r}" if made else "was not made by headrace"
            raise ConfigError(
                f"the table at {self._location} {whose}; pipeline {self._pipeline!r} needs a location of its own"
            )
        if metadata.partition_columns != list(bucket_columns) or known != layout:
            raise ConfigError(
                f"the table at {self._location} is bucketed by {known or ', '.join(metadata.partition_columns)}, the "
                f"configuration says {layout or ', '.join(bucket_columns)}; keep 'bucket' as it was, or choose a new "
                "location"
            )

    def snapshot(self) -> DeltaSnapshot:
        """Read the newest version."""
        try:
            return DeltaSnapshot(DeltaTable(self._location), self._pipeline)
        except (DeltaError, OSError) as error:
            raise CommitFailed(f"cannot read the table at {self._location}: {_one_line(error)}") from error

    def begin(self, starts: Mapping[Part, int], incarnations: Mapping[str, Sequence[str]]) -> int:
        """Take the pipeline over with the next epoch."""
        wanted = {topic: list(ids) for topic, ids in incarnations.items()}

        def start(snapshot: DeltaSnapshot) -> int:
            new = {part: offset for part, offset in starts.items() if snapshot.frontier(part) is None}
            values = {app_id(self._pipeline, part): offset for part, offset in new.items()}
            self._write(snapshot, [], {**values, f"{self._pipeline}/epoch": snapshot.epoch + 1}, {"kind": "start"})
            return snapshot.epoch + 1

        def remember(snapshot: DeltaSnapshot) -> None:
            if snapshot.incarnations() != wanted:
                _set_properties(snapshot, {_INCARNATIONS: json.dumps(wanted)})

        # The offsets first: a start that dies in between finds the topics new once more, and numbers them the same.
        epoch = self._retried(start)
        self._retried(remember)
        return epoch

    def commit(self, snapshot: Snapshot, batch: Batch) -> int:
        """Add the files and move the frontier, atomically."""
        assert isinstance(snapshot, DeltaSnapshot)
        deadline = time.monotonic() + self._patience.total_seconds()
        pause = 0.1
        values = {app_id(self._pipeline, r.part): r.end for r in batch.ranges} | {
            f"{self._pipeline}/epoch": batch.epoch
        }
        side = {place: [file_to_json(file) for file in files] for place, files in batch.side_files.items()}
        about = {"kind": "batch", "id": batch.id, "side_files": side, **batch.facts}
        base = snapshot.version
        while True:
            self._check(snapshot, batch)
            try:
                faults.point("before_commit")
                settled = {f"{self._pipeline}/settled": batch.settled}
                self._write(snapshot, [_add(snapshot, file) for file in batch.files], values | settled, about)
                faults.point("after_commit")
            except (DeltaError, OSError) as error:
                problem: Exception = error
            else:
                problem = CommitFailed("the answer was lost")
            # Whatever was answered, the log decides: an entry with our id is our commit.
            with suppress(CommitFailed):
                snapshot = self.snapshot()
                found = next((c for c in self._ours(base, snapshot) if c.id == batch.id), None)
                if found is not None:
                    return found.version
            if time.monotonic() > deadline:
                raise CommitFailed(
                    f"the table at {self._location} took no commit for {self._patience.total_seconds():.0f} s: "
                    f"{_one_line(problem)}. The next start looks what became of it, and reads it again if need be."
                )
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter
            pause = min(pause * 2, 5)

    def check_owner(self, snapshot: Snapshot, epoch: int) -> None:
        """Raise Fenced when the pipeline was started again since `epoch`."""
        if snapshot.epoch != epoch:
            raise Fenced(
                f"pipeline {self._pipeline!r} was started again (start {snapshot.epoch}, this is start {epoch}): "
                "another writer runs. Stop one of them."
            )

    def _check(self, snapshot: DeltaSnapshot, batch: Batch) -> None:
        """Raise Fenced unless the snapshot is still the batch's, with its frontier where the ranges begin."""
        self.check_owner(snapshot, batch.epoch)
        for r in batch.ranges:
            at = snapshot.frontier(r.part)
            if at is not None and at != r.start:
                raise Fenced(
                    f"offset {at} of {r.part.topic}/{r.part.partition} is committed, this batch starts at {r.start}: "
                    f"another writer runs as {self._pipeline!r}. Stop one of them."
                )

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add nullable columns; those that another client added meanwhile are left as they are."""

        def add(snapshot: DeltaSnapshot) -> None:
            have = {name.lower() for name in snapshot.columns().names}
            missing = [column for column in columns if column.name.lower() not in have]
            if missing:
                fields = Schema.from_arrow(pa.schema(missing)).fields
                snapshot.table.alter.add_columns([Field(f.name, f.type, nullable=True) for f in fields])

        self._retried(add)

    def commits_since(self, version: int) -> list[Committed]:
        """Commits of this pipeline after `version`, oldest first."""
        return self._ours(version, self.snapshot())

    def recent(self, count: int) -> list[Mapping[str, Any]]:
        """Facts of this pipeline's commits among the table's last `count`, newest first."""
        found = [json.loads(e["headrace"]) for e in self.snapshot().table.history(count) if "headrace" in e]
        return [about for about in found if about.get("kind") == "batch"]

    def apply_side(self, version: int, files: Sequence[StagedFile]) -> None:
        """Add the files that main commit `version` listed for this table, once; a second time does nothing."""

        def apply(snapshot: DeltaSnapshot) -> None:
            if snapshot.applied < version:
                about = {"kind": "side", "main_version": version}
                self._write(snapshot, [_add(snapshot, f) for f in files], {f"{self._pipeline}/main": version}, about)

        self._retried(apply)

    def _retried(self, action: Callable[[DeltaSnapshot], _T]) -> _T:
        """Run an action that may lose a race, on a newer snapshot each time."""
        for _ in range(10):
            with suppress(CommitFailedError):
                return action(self.snapshot())
        raise CommitFailed(f"the table at {self._location} changes too fast to write to; ten tries lost the race")

    def _ours(self, since: int, snapshot: DeltaSnapshot) -> list[Committed]:
        found = []
        for entry in reversed(snapshot.table.history(snapshot.version - since) if snapshot.version > since else []):
            if entry["version"] <= since:
                continue
            about = json.loads(entry["headrace"]) if "headrace" in entry else {}
            if about.get("kind") == "batch":
                side = {place: [file_from_json(f) for f in files] for place, files in about["side_files"].items()}
                found.append(Committed(entry["version"], about["id"], about, side))
            elif not about and entry.get("operation") not in _HARMLESS:
                raise ForeignChange(
                    f"another client ran {entry.get('operation')} on the table at {self._location} (version "
                    f"{entry['version']}). That does not move the offsets with the rows, so going on could lose or "
                    "double records. Start a new pipeline name on a new location, and keep this table as it is."
                )
        return found

    def _write(
        self, snapshot: DeltaSnapshot, actions: list[AddAction], values: Mapping[str, int], about: Mapping[str, Any]
    ) -> None:
        now = int(time.time() * 1000)
        properties = CommitProperties(
            custom_metadata={"headrace": json.dumps(about)},
            app_transactions=[Transaction(name, value, now) for name, value in values.items()],
        )
        table = snapshot.table
        columns = table.metadata().partition_columns
        table.create_write_transaction(actions, "append", table.schema(), columns, commit_properties=properties)

    def _create(self, columns: pa.Schema, bucket_columns: Sequence[str], layout: str) -> None:
        # Owner and layout stand in the first entry, not in a property set later: of two starts that create the table
        # at once, the second may write its entry over what the first has set meanwhile.
        DeltaTable.create(
            self._location,
            schema=Schema.from_arrow(columns),
            partition_by=list(bucket_columns),
            mode="ignore",
            name=_OWNER + self._pipeline,
            description=layout,
            configuration={"delta.checkpointInterval": str(self._interval)},
        )


def _set_properties(snapshot: DeltaSnapshot, properties: dict[str, str]) -> None:
    snapshot.table.alter.set_table_properties(properties, raise_if_not_exists=False)


def app_id(pipeline: str, part: Part) -> str:
    """Name of a part's `txn` in the table."""
    return f"{pipeline}/{part.topic}@{part.incarnation}/{part.partition}"


def _add(snapshot: DeltaSnapshot, file: StagedFile) -> AddAction:
    columns = snapshot.table.metadata().partition_columns
    values = dict(zip(columns, file.bucket, strict=True))
    return AddAction(
        path=quote(file.path, safe="/=-_.~"), size=file.bytes, partition_values=values,
        modification_time=int(time.time() * 1000), data_change=True, stats=file.statistics,
    )  # fmt: skip


def _arrow(schema: Schema) -> pa.Schema:
    return pa.schema(pa.schema(schema.to_arrow()))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
