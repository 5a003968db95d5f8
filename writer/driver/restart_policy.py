"""Decides whether a failed pipeline is restarted inside the driver.

Pure. What a start then finds, a gap or a new incarnation, `writer/offsets/start_decision.py` decides.
"""

import re
from collections.abc import Iterator, Sequence

from headrace.writer.clients.java_client import java_reason
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import HeadraceError

# Within the window. Their pauses take a minute, enough for a topic to be deleted and created again.
RESTARTS_MAX = 6
WINDOW_S = 600.0
_BACKOFF = Backoff(1, 30)
_TRACE = "Traceback (most recent call last):"
# The messages of errors in this package are sentences.
_OWN_PACKAGE = "headrace."
# What Spark and Kafka's clients say, anywhere in the chain of causes, when offsets that a query counts on are gone.
_DATA_LOSS_SIGNS = (
    "KAFKA_DATA_LOSS",
    "data may have been lost",
    "data may have been missed",
    "OffsetOutOfRangeException",
    "UnknownTopicOrPartitionException",
    "UnknownTopicIdException",
    "InconsistentTopicIdException",
    "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED",
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW",
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN",
)
# An added partition: Spark 4.0's report of a trigger without a batch fails over it (`KafkaMicroBatchStream.metrics`),
# and so does its start, when the driver knows another number.
_NEW_PARTITION = re.compile(
    r"NoSuchElementException: key not found: \S+-\d+\s*$|you must specify all TopicPartitions", re.MULTILINE
)
_TRACE_LINES_MAX = 20
# What Java's client of Kafka says where it has no login.
_LOGIN_SIGNS = ("SaslAuthenticationException", "javax.security.auth.login.LoginException")


def pause_s(earlier_s: Sequence[float], now_s: float) -> float | None:
    """Return the pause before a pipeline whose log changed is restarted; None if that happened too often.

    `earlier_s`: the times of its earlier restarts.
    """
    recent = sum(now_s - restart_s < WINDOW_S for restart_s in earlier_s)
    return None if recent >= RESTARTS_MAX else _BACKOFF.delay_s(recent)


def means_data_loss(text: str) -> bool:
    """Return whether an error or one of its causes means that Kafka lacks expected offsets."""
    return any(sign in text for sign in _DATA_LOSS_SIGNS)


def means_new_partition(text: str) -> bool:
    """Return whether an error or one of its causes means that a partition appeared while Spark planned a batch."""
    return _NEW_PARTITION.search(text) is not None


def means_no_login(text: str) -> bool:
    """Return whether an error or one of its causes means that Java's client of Kafka could not log in."""
    return any(sign in text for sign in _LOGIN_SIGNS)


def sentence(error: BaseException | None) -> str:
    """Return a sentence of ours whole; of any other error its kind and first line, below what Spark wraps around it."""
    if isinstance(error, HeadraceError):
        return str(error)
    text = str(error).strip()
    first_line = next(iter(text.splitlines()), "")
    return task_error(text) or java_reason(text) or f"{type(error).__name__}: {first_line}"


def task_error(text: str) -> str:
    """Return what Python raised in a task, or in a call from the JVM: the line below the last trace; '' without one."""
    _, trace, below = text.rpartition(_TRACE)
    if not trace:
        return ""
    line = next((line for line in below.splitlines() if line[:1].strip()), "")
    kind, _, message = line.partition(": ")
    if message and kind.startswith(_OWN_PACKAGE):
        return message
    class_name = kind.rpartition(".")[2]
    return f"{class_name}: {message}" if message else class_name


def causes(error: BaseException | None) -> str:
    """Write out an error and all its causes. Spark keeps them in an attribute of its own, with traces of the JVM."""
    return "\n".join(f"{type(cause).__name__}: {cause}" for cause in _chain(error))


def java_trace(error: BaseException | None) -> str:
    """Return the first lines of the JVM's trace of the last cause that has one, which Spark leaves out; '' without."""
    traces = [getattr(cause, "_stackTrace", "") for cause in _chain(error)]
    last_trace = next((trace for trace in reversed(traces) if trace), "")
    return "\n".join(last_trace.splitlines()[:_TRACE_LINES_MAX])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    ids: set[int] = set()
    while error is not None and id(error) not in ids:
        ids.add(id(error))
        yield error
        error = getattr(error, "_cause", None) or error.__cause__ or error.__context__
