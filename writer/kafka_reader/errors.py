"""Why a range of a partition cannot be read.

ReadFailed              the task fails; another try may succeed
├── Unavailable         no broker gave the records in time
├── TopicGone           the topic, or its incarnation that the range is of, is not there
├── LostRecords         the log does not hold the offsets of the range; another try does not help
├── Corrupt             an answer or a record batch is damaged
├── OldRecordFormat     records in a format from before Kafka 0.11
├── UnsupportedBroker   the broker is too old for this reader
└── AccessDenied        the broker refuses the login, the certificate or the rights

Every message names topic, partition and offset where there are any. An error survives pickling with its fields.
"""

from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import Source, source_name

# The advice where this reader cannot read a log.
SPARK_READER = "set `kafka.reader: spark`"


class ReadFailed(HeadraceError):
    """A range cannot be read. `topic`, `partition` and `offset`: where, None where the failure is not about one."""

    def __init__(
        self, message: str, topic: str | None = None, partition: int | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message, topic, partition, offset)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __str__(self) -> str:
        return str(self.args[0])


class Unavailable(ReadFailed):
    """No broker gave the records in time."""


class TopicGone(ReadFailed):
    """The topic, or the incarnation of it that is asked for, is not there."""


class LostRecords(ReadFailed):
    """The log does not hold the offsets of the range: retention took them, or the log was truncated."""


class LogDiverged(ReadFailed):
    """The log has other records, or none, where records were read before: it was cut."""


class Corrupt(ReadFailed):
    """An answer or a record batch is damaged, or larger than what is allowed."""

    def __str__(self) -> str:
        if self.topic is None:
            return f"{self.args[0]}. Look at what lies between this machine and the brokers."
        return (
            f"{self.args[0]}. Let a replica whose copy is sound lead the partition. Where there is none, "
            f"`headrace topic adopt --offsets {self.topic}:{self.partition}=OFFSET`, with an offset for each "
            "partition, reads on behind the batch: its records are left out."
        )


def damaged_batch(source: Source, offset: int, reason: str) -> Corrupt:
    """Return the error for a record batch that cannot be read. `offset`: its first."""
    topic, partition = source
    return Corrupt(f"{source_name(source)} at offset {offset}: {reason}", topic, partition, offset)


class OldRecordFormat(ReadFailed):
    """Records in a message format from before Kafka 0.11."""


class UnsupportedBroker(ReadFailed):
    """The broker does not know the versions of requests that this reader sends."""


class AccessDenied(ReadFailed):
    """The broker refuses the login, the certificate or the rights of the user."""


class BrokerClosed(OSError):
    """The connection to a broker ended or gives nonsense: it is opened again."""


class NoLogin(BrokerClosed):
    """Who gives tokens or tickets for the login does not answer now: it is asked again."""
