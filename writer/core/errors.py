"""What can go wrong, and what the process says about it when it exits.

HeadraceError            1  crash: restart
├── LogMoved             1  a topic became another one while it was read: started again at once, inside the process
├── ConfigError          2  the configuration, or what it points at, is wrong: do not restart
│   └── TopicMissing     2  a topic is not there
├── LogChanged           2  Kafka's log is not the one that the table was filled from: somebody must say how to go on
├── SchemaChanged        2  a schema id means another schema than rows were read by: somebody must say how to go on
├── DiskFull             1  Spark found no room where the driver writes: make room
├── CheckpointUnusable   3  Spark's checkpoint disagrees with the table: run again with --new-run
├── FrontierLost         3  the table does not say how far it has come: it must be put together anew
├── Fenced               4  another run owns the pipeline: do not restart this one
└── LimitReached         5  stopped by a limit of the configuration

Every message says what happened, where, and what to do.
"""

from typing import ClassVar


class HeadraceError(Exception):
    """A failure of this run. Its message is a sentence for the operator."""

    exit_code: ClassVar[int] = 1


class LogMoved(HeadraceError):
    """A log is not what the run began with. Nothing was committed of it; a new start finds out what it is now."""


class ConfigError(HeadraceError):
    """The configuration or something it names is wrong; a restart changes nothing."""

    exit_code = 2


class TopicMissing(ConfigError):
    """A topic is not there. It may be on its way: deleted, and not yet created again."""


class LogChanged(HeadraceError):
    """Kafka's log is not the one that the table was filled from, or holds less of it than may be lost."""

    exit_code = 2


class SchemaChanged(HeadraceError):
    """A schema id means another schema than the one by which the table's rows were read."""

    exit_code = 2


class DiskFull(HeadraceError):
    """Spark found no room on a disk of the driver's."""


class CheckpointUnusable(HeadraceError):
    """Spark's checkpoint cannot be continued without losing or doubting records."""

    exit_code = 3

    def __init__(self, why: str) -> None:
        """Add the fix to the reason."""
        fix = "`headrace run --new-run` begins a new checkpoint from the table's frontier; nothing is lost or doubled"
        super().__init__(f"{why}. {fix}.")


class FrontierLost(HeadraceError):
    """The table knows a topic, but of none of its partitions how far it was read."""

    exit_code = 3


class Fenced(HeadraceError):
    """Another writer has taken this pipeline over."""

    exit_code = 4


class LimitReached(HeadraceError):
    """A limit of the configuration stopped the pipeline."""

    exit_code = 5


class Draining(HeadraceError):
    """Work that is left to the next start, because a stop was asked for."""

    exit_code = 0
