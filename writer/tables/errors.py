"""What can go wrong with a table, beside what its storage says."""

from collections.abc import Iterator
from contextlib import contextmanager

from writer.errors import HeadraceError


class ForeignChange(HeadraceError):
    """Somebody changed the table in a way that its ledger does not survive."""

    exit_code = 2


class CommitFailed(HeadraceError):
    """The storage gave no answer, or refused, for as long as we tried."""


class ClosedMeanwhile(HeadraceError):
    """Buckets were closed since the batch's rows were found to be on time: they are to be looked at again."""


class Resealed(HeadraceError):
    """A bucket changed, or was sealed, since its manifest was drawn up."""


class Overtaken(HeadraceError):
    """Since letters were read, or a gap looked at, somebody else replayed, changed that gap, or rewound the table."""


class FilesGone(HeadraceError):
    """A file that was to be removed is not there any more: somebody else rewrote or removed it meanwhile."""


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Raise CommitFailed where the storage does not let the table at a location be read."""
    try:
        yield
    except OSError as error:
        raise CommitFailed(f"cannot read the table at {location}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return what an error says, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
