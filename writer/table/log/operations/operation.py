"""What an operation says about its log entry, and what it may ask the log that its entry is to join."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from headrace.writer.core.files import BucketFile, StagedFile
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.table.log.foreign_writes import CommitFailed, PrivacyChanged
from headrace.writer.table.log.log import Action
from headrace.writer.table.log.snapshot import PipelineSnapshot


class CheckedLog(Protocol):
    """The log of a table, as the check of an operation reads it."""

    location: str

    def entries(self, since: int) -> list[tuple[int, list[Action]]]:
        """Return the entries after version `since`, of any writer, oldest first. Raises CommitFailed."""

    def check_owner(self, snapshot: PipelineSnapshot, epoch: int, ranges: Sequence[OffsetRange] = ()) -> None:
        """Raise Fenced if the pipeline was started again since `epoch`, or a range does not begin at its frontier."""

    def check_deletes(self, files: Sequence[BucketFile]) -> None:
        """Raise LiveDeleteFiles where other clients deleted rows that these files still have, CommitFailed."""


class Operation(ABC):
    """What one entry of a table's log does. The entry is found by its id when an append gets no answer."""

    # One of KINDS.
    kind: ClassVar[str]
    # Names the fault points before and after the append.
    fault_point: ClassVar[str] = "commit"
    # Unique; the same when the entry is tried again.
    id: str
    # JSON values that the entry has beside those of the fields.
    facts: Mapping[str, Any]

    @property
    def added_files(self) -> Sequence[StagedFile]:
        """Files that the entry adds to the table."""
        return ()

    @property
    def removed_files(self) -> Sequence[BucketFile]:
        """Files that the entry removes from the table."""
        return ()

    @property
    def moves_only(self) -> bool:
        """Whether the rows that it adds are those that it removes."""
        return False

    def entry_facts(self) -> dict[str, Any]:
        """Return the facts of the entry as JSON values: its kind, what the fields say, its id, further facts."""
        facts = {"kind": self.kind, **self.field_facts()}
        assert facts.keys().isdisjoint(self.facts), "a fact would hide what the entry says itself"
        return {**facts, "id": self.id, **self.facts}

    @abstractmethod
    def field_facts(self) -> dict[str, Any]:
        """Return the facts that the fields say, as JSON values, in the order of the entry."""

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:  # noqa: ARG002 - most read the version
        """Return the `txn` values that the entry sets where it follows this version of the table."""
        return {}

    @abstractmethod
    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:
        """Raise where the entry may not follow the newest version.

        `previous`: the version that the operation was made for, later the one that was checked last.
        """


def check_privacy(location: str, snapshot: PipelineSnapshot, version: int | None) -> None:
    """Raise PrivacyChanged where a version of the table has newer privacy entries than those by which rows were made.

    `version`: of these entries; None where no rows were made of records. A version of the table from before them is
    passed: the entry of the rows cannot follow it.
    """
    if version is not None and snapshot.privacy > version:
        raise PrivacyChanged(
            f"the log of the table at {location} has privacy version {snapshot.privacy} by now, rows were "
            f"made by version {version}: they are made anew"
        )


def check_same_version(newest: PipelineSnapshot, previous: PipelineSnapshot, location: str, outcome: str) -> None:
    """Raise CommitFailed where any entry follows the previous version. `outcome`: what was not done, and the fix."""
    if newest.state.table_version != previous.state.table_version:
        raise CommitFailed(f"the table at {location} was written to meanwhile (version {newest.version}); {outcome}")
