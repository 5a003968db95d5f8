"""What can go wrong, and what the process says about it when it exits.

HeadraceError            1  crash: restart
├── LogMoved             1  a topic became another one while it was read: started again at once, inside the process
├── ConfigError          2  the configuration, or what it points at, is wrong: do not restart
│   └── TopicMissing     2  a topic is not there
├── LogChanged           2  Kafka's log is not the one that the table was filled from: a person must say how to go on
├── SchemaChanged        2  a schema id means another schema than rows were read by: a person must say how to go on
├── DiskFull             1  Spark found no room where the driver writes: make room
├── FileUnavailable      1  a file could not be read or written, for a reason that may pass
├── CheckpointUnusable   3  Spark's checkpoint disagrees with the table: run again with --new-run --yes
├── FrontierLost         3  the table does not say how far it has come: it must be put together anew
├── Fenced               4  another run owns the pipeline: do not restart this one
├── LibraryPanicked      1  a library of Rust came upon a bug of its own
├── Occupied             6  another process runs the pipeline: nothing was begun
└── LimitReached         5  stopped by a limit of the configuration

Every message says what happened, where, and what to do.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import ClassVar, Self

# Of pyo3, which builds the class anew in each library.
_PANIC = "PanicException"


class ExitCode(IntEnum):
    """How a process ends, by rising severity: of several pipelines the most severe code is that of the process."""

    DONE = 0
    # A start may help. Any other code counts as this one, such as that of a signal.
    CRASH = 1
    LIMIT = 5
    CONFIGURATION = 2
    # A start with a new run helps.
    CHECKPOINT = 3
    # Nothing was begun.
    OCCUPIED = 6
    # The most severe: any start takes the pipeline away from the writer that runs.
    FENCED = 4

    @classmethod
    def _missing_(cls, _: object) -> Self:
        return cls(1)


def exit_code(error: BaseException | None) -> ExitCode:
    """Return the exit code for a pipeline's error; None: it ended without one."""
    if error is None:
        return ExitCode.DONE
    if isinstance(error, HeadraceError):
        return error.exit_code
    return ExitCode.CRASH


def most_severe(codes: Iterable[int]) -> ExitCode:
    """Return the most severe of these codes, for the process."""
    return max(map(ExitCode, codes), key=list(ExitCode).index, default=ExitCode.DONE)


class HeadraceError(Exception):
    """A failure of this run. Its message is a sentence for the operator."""

    exit_code: ClassVar[ExitCode] = ExitCode.CRASH


class LogMoved(HeadraceError):
    """A log is not what the run began with. Nothing was committed of it; a new start finds out what it is now."""


class ConfigError(HeadraceError):
    """The configuration or something it names is wrong; a restart changes nothing."""

    exit_code = ExitCode.CONFIGURATION


class TopicMissing(ConfigError):
    """A topic is not there. It may be on its way: deleted, and not yet created again."""


class LogChanged(HeadraceError):
    """Kafka's log is not the one that the table was filled from, or holds less of it than may be lost."""

    exit_code = ExitCode.CONFIGURATION


class SchemaChanged(HeadraceError):
    """A schema id means another schema than the one by which the table's rows were read."""

    exit_code = ExitCode.CONFIGURATION


class DiskFull(HeadraceError):
    """Spark found no space on a disk of the driver."""


class FileUnavailable(HeadraceError):
    """A file could not be read or written, for a reason that may pass: the disk is full, read-only, or in error."""


# A disk may have room, be mounted to be written, or answer again a moment later; so may a process have files or memory
# again, and the server behind a mount be reached.
_PASSING = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE,
    errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ENOLCK, errno.ECONNABORTED, errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
})  # fmt: skip
_PASSING_TEXTS = tuple(os.strerror(number) for number in sorted(_PASSING))


def may_pass(error: OSError) -> bool:
    """Return whether the same operation on a disk may succeed later. Libraries give its text without a number."""
    if error.errno is None:
        return any(text in str(error) for text in _PASSING_TEXTS)
    return error.errno in _PASSING


def file_error(text: str, error: Exception) -> HeadraceError:
    """Return the error for a file that cannot be used: a ConfigError, unless what is wrong with it may pass."""
    if isinstance(error, OSError) and may_pass(error):
        return FileUnavailable(text)
    return ConfigError(text)


class CheckpointUnusable(HeadraceError):
    """Spark's checkpoint cannot be continued without losing or doubting records."""

    exit_code = ExitCode.CHECKPOINT

    def __init__(self, reason: str) -> None:
        """Add the fix to the reason."""
        fix = "`headrace run --new-run --yes` begins a new checkpoint from the table's frontier"
        super().__init__(f"{reason}. {fix}; nothing is lost or doubled.")


class FrontierLost(HeadraceError):
    """The table knows a topic, but of none of its partitions how far it was read."""

    exit_code = ExitCode.CHECKPOINT


class Fenced(HeadraceError):
    """Another writer has taken this pipeline over."""

    exit_code = ExitCode.FENCED


class Occupied(HeadraceError):
    """Another process holds the lease of this pipeline; a run by hand has to say `--take-over`."""

    exit_code = ExitCode.OCCUPIED


class LimitReached(HeadraceError):
    """A limit of the configuration stopped the pipeline."""

    exit_code = ExitCode.LIMIT


class Draining(HeadraceError):
    """Work that is left to the next start, because a stop was asked for."""

    exit_code = ExitCode.DONE


class LibraryPanicked(HeadraceError):
    """A library of Rust panicked, which is a bug of it. The process goes on."""


@contextmanager
def panics_as_errors(library: str = "a library of Rust") -> Iterator[None]:
    """Raise LibraryPanicked for a panic, which is no Exception, so that `except Exception` would miss it.

    Its text stays out of the message: it may quote a value of a record.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise LibraryPanicked(
            f"{library} panicked, which is a bug of it; standard error says where. Report it to its authors, and try "
            "the version before."
        ) from None
