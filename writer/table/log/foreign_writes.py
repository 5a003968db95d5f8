"""Classifies changes by other clients: those that keep offsets valid, and those that stop the pipeline."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.writer.core.errors import ExitCode, HeadraceError
from headrace.writer.table.log.log import State


class ForeignChange(HeadraceError):
    """Another client changed the table in a way that makes its offset accounting invalid."""

    exit_code = ExitCode.CONFIGURATION


class TableUnwritable(ForeignChange):
    """Another client made the table one that takes no entry of headrace: no entry was written."""


class LiveDeleteFiles(ForeignChange):
    """Delete files of another client take rows of a file that was to be written anew, and that still has them."""


class CommitFailed(HeadraceError):
    """The storage gave no answer, or refused, for as long as we tried."""


class BucketsClosed(HeadraceError):
    """Buckets were closed after the batch's rows were found to be on time: classify the rows again."""


class Resealed(HeadraceError):
    """A bucket changed, or was sealed, since its manifest was drawn up."""


class NothingToClose(HeadraceError):
    """Buckets are closed up to that instant already, or the table was rewound meanwhile."""


class Overtaken(HeadraceError):
    """Another process replayed dead letters, changed a gap or rewound the table since it was read."""


class PrivacyChanged(Overtaken):
    """Other paths are to be protected than those by which rows were made: make them anew."""


class FilesGone(HeadraceError):
    """A file that was to be removed is not there any more: another process rewrote or removed it meanwhile."""


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Raise CommitFailed where the storage does not let the table at a location be read."""
    try:
        yield
    except OSError as error:
        raise CommitFailed(f"cannot read the table at {location}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


# Versions of the protocol, which every engine reads.
READER = 1
WRITER = 2
# A property by which a table forgets `txn` values, and with them offsets.
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
# Operations that leave our rows and txn actions as they are, or take rows away and leave the offsets true.
_OPERATIONS_THAT_KEEP_OFFSETS = {
    "OPTIMIZE",
    "VACUUM START",
    "VACUUM END",
    "ADD COLUMN",
    "ADD COLUMNS",
    "SET TBLPROPERTIES",
    "DELETE",
    "ADD CONSTRAINT",
    "UPDATE FIELD METADATA",
    "UPDATE TABLE METADATA",
    "CREATE TABLE",
    "REORG",
}


@dataclass(frozen=True)
class Change:
    """What another client did that moves rows and not offsets."""

    version: int
    operation: str

    def __str__(self) -> str:
        """Return it as a phrase."""
        return f"another client ran {self.operation} (version {self.version})"


def keeps_offsets(operation: str | None) -> bool:
    """Return whether another client's operation leaves rows where they are, or takes some away."""
    return operation in _OPERATIONS_THAT_KEEP_OFFSETS


def foreign_change(info: Mapping[str, Any], version: int) -> Change | None:
    """Return what an entry of another client did; None where offsets stay true: rows stay, or some are taken away."""
    if keeps_offsets(info.get("operation")):
        return None
    return Change(version, str(info.get("operation", "something that it did not name")))


def check_foreign(info: Mapping[str, Any], version: int, location: str) -> None:
    """Raise ForeignChange when what another client did moves rows and not offsets."""
    change = foreign_change(info, version)
    if change is not None:
        raise ForeignChange(
            f"{change} on the table at {location}. That does not move the offsets with the rows, so going on could "
            f"lose or double records. `headrace rewind --to {version - 1}` takes it back; or `headrace table accept` "
            "keeps the rows as they are, and says what can no longer be proven of them. Both only show it until --yes."
        )


def unwritable_protocol(state: State) -> str:
    """Return the table's protocol as a phrase, if headrace cannot write it; empty if it can."""
    reader = state.protocol["minReaderVersion"]
    writer = state.protocol["minWriterVersion"]
    if reader <= READER and writer <= WRITER:
        return ""
    return f"reader {reader}, writer {writer}"


def check_writable(state: State, location: str) -> None:
    """Raise TableUnwritable when another client made the table one that we must not write, or that forgets offsets."""
    if protocol := unwritable_protocol(state):
        raise TableUnwritable(
            f"another client raised the protocol of the table at {location} to {protocol}; headrace writes {READER}, "
            f"{WRITER}, which every engine reads. Start a new pipeline name on a new location."
        )
    if _TRANSACTION_RETENTION in state.configuration:
        raise TableUnwritable(
            f"another client set {_TRANSACTION_RETENTION} on the table at {location}: the next checkpoint forgets "
            "offsets that did not move for that long, and they would be read again. Unset it, then start again."
        )
