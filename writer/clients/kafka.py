"""Asks Kafka for topic ids, partitions, log ends and retention, and which record comes next."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from headrace.writer.clients.silent_leaders import (
    PROBE_S,
    SilentLeader,
    ask_each,
    find_silent_broker,
    find_silent_leader,
)
from headrace.writer.config.base import did_you_mean
from headrace.writer.config.sections.kafka_client import Address
from headrace.writer.config.sections.topic_selection import TopicChoice, TopicSelection
from headrace.writer.core.errors import ConfigError, HeadraceError, TopicMissing
from headrace.writer.core.offsets import Source, Span, source_name
from headrace.writer.core.text import plural

# librdkafka's own codes begin with an underscore, and are public all the same.
_GONE = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
)
# None of the partitions has a leader that is known; their topics may be gone.
_NO_LEADERS = KafkaError._NOENT  # noqa: SLF001
# What may mean that a leader is silent, or that there is none, while others answer.
_SILENCE = (
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError.REQUEST_TIMED_OUT,
    _NO_LEADERS,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
# The user of `kafka.security` may not ask.
_NO_RIGHTS = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
# While a group's coordinator starts or moves, it refuses for some seconds.
_COORDINATOR_STARTS = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
_COORDINATOR_PAUSE_S = 0.2
_ANY_BROKER_S = 2.0
# A longer retention counts as none.
_FOREVER_MS = 100 * 365 * 86_400_000


class BrokerUnreachable(HeadraceError):
    """No broker gave the answer: none did in time, or the user of `kafka.security` may not ask for it."""


@dataclass(frozen=True)
class Topic:
    """One topic as the cluster knows it now. `id` changes when a topic is deleted and created again (KIP-516)."""

    name: str
    id: str
    partitions: int


class Cluster:
    """Questions to one Kafka cluster, each with a deadline.

    What is asked about a topic that is not there raises TopicMissing; silence raises BrokerUnreachable.
    """

    def __init__(self, address: Address | str, timeout: timedelta) -> None:
        """Take where the cluster is; a plain `host:port` has no security. Raises ConfigError."""
        self._bootstrap = str(address)
        self._settings = client_settings(address)
        self._seconds = timeout.total_seconds()
        try:
            self._admin = AdminClient(dict(self._settings))
        except KafkaException as error:
            files = [path for key, path in self._settings.items() if key.endswith(".location")]
            raise ConfigError(
                f"kafka.security cannot be used with {' and '.join(dict.fromkeys(files))} ({_error_text(error)}). Give "
                "files that can be read: PEM certificates, and a key without a password."
            ) from error

    def brokers(self) -> int:
        """How many brokers the cluster has now. Raises BrokerUnreachable."""
        try:
            return len(self._admin.list_topics(timeout=self._seconds).brokers)
        except KafkaException as error:
            raise self._unreachable(error) from error

    def topic_names(self) -> list[str]:
        """Return the names of the topics that the cluster has now and the user may see. Raises BrokerUnreachable."""
        try:
            return list(self._admin.list_topics(timeout=self._seconds).topics)
        except KafkaException as error:
            raise self._unreachable(error) from error

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Describe topics. Raises TopicMissing for the first that is not there, BrokerUnreachable."""
        topic_names = list(names)
        try:
            described = self._describe(topic_names)
        except TopicMissing:
            existing = self.topic_names()
            for name in topic_names:
                if name not in existing:
                    near = did_you_mean(name, sorted(topic for topic in existing if not topic.startswith("__")))
                    raise self._topic_missing(f"topic {name!r}", near) from None
            raise
        return {name: Topic(name, str(d.topic_id), len(d.partitions)) for name, d in described.items()}

    def earliest(self, sources: Iterable[Source]) -> dict[Source, int]:
        """First offset still held, by partition."""
        return self._offsets({source: OffsetSpec.earliest() for source in sources})

    def latest(self, sources: Iterable[Source]) -> dict[Source, int]:
        """End of the log (the next offset to be written), by partition."""
        return self._offsets({source: OffsetSpec.latest() for source in sources})

    def readable(self, sources: Iterable[Source]) -> dict[Source, int]:
        """Up to where committed records can be read: the first offset of the oldest open transaction, or the end."""
        specs = {source: OffsetSpec.latest() for source in sources}
        return self._offsets(specs, isolation_level=IsolationLevel.READ_COMMITTED)

    def offsets_at(self, instant: datetime, sources: Iterable[Source]) -> dict[Source, int]:
        """First offset with a broker timestamp at or after `instant`; the end of the log where there is none."""
        requested = list(sources)
        milliseconds = int(instant.timestamp() * 1000)
        offsets = self._offsets({source: OffsetSpec.for_timestamp(milliseconds) for source in requested})
        missing = [source for source, offset in offsets.items() if offset < 0]
        if missing:
            offsets |= self.latest(missing)
        return offsets

    def first_records(self, instants_ms: Mapping[Source, int]) -> dict[Source, tuple[int, int]]:
        """First record at or after each instant: its offset and timestamp (ms); -1 and -1 when there is none."""
        answers = self._list_offsets(
            {source: OffsetSpec.for_timestamp(time_ms) for source, time_ms in instants_ms.items()}
        )
        return {source: (int(answer.offset), int(answer.timestamp)) for source, answer in answers.items()}

    def sources(self, topics: Iterable[str]) -> list[Source]:
        """Every partition that the topics have now."""
        return [(name, p.id) for name, description in self._describe(topics).items() for p in description.partitions]

    def retention(self, topics: Iterable[str]) -> dict[str, timedelta | None]:
        """How long each topic keeps its records (`retention.ms`); None when it deletes none by their age."""
        return {name: _retention(settings) for name, settings in self._topic_settings(topics).items()}

    def cleanup(self, topics: Iterable[str]) -> dict[str, str]:
        """How each topic lets go of records (`cleanup.policy`): delete, compact, or both with a comma."""
        return {name: str(settings["cleanup.policy"].value) for name, settings in self._topic_settings(topics).items()}

    def committed_offsets(self, group: str, sources: Iterable[Source]) -> dict[Source, int]:
        """Offsets that a consumer group has committed, where it has. Raises BrokerUnreachable."""
        request = [ConsumerGroupTopicPartitions(group, [TopicPartition(*source) for source in sources])]
        if not request[0].topic_partitions:
            return {}
        (answer,) = ask_client(self._admin.list_consumer_group_offsets, request, request_timeout=self._seconds).values()
        partitions = self._result(answer, f"group {group!r}").topic_partitions
        return {(tp.topic, tp.partition): int(tp.offset) for tp in partitions if tp.offset >= 0 and not tp.error}

    def _describe(self, topics: Iterable[str]) -> dict[str, Any]:
        """Describe topics; ask once more where the client waited for a broker that is gone while others answer."""
        names = TopicCollection(list(topics))
        try:
            return self._describe_once(names)
        except BrokerUnreachable as error:
            cause = error.__cause__
            is_refused = isinstance(cause, KafkaException) and cause.args[0].code() in _NO_RIGHTS
            if is_refused or (metadata := self._ask_metadata()) is None:
                raise
        # Another client chooses anew which broker it asks.
        self._admin = AdminClient(dict(self._settings))
        try:
            return self._describe_once(names)
        except BrokerUnreachable as error:
            if (broker := find_silent_broker(self._settings, metadata)) is None:
                raise
            raise self._silence_of(broker) from error

    def _describe_once(self, topics: TopicCollection) -> dict[str, Any]:
        answers = ask_client(self._admin.describe_topics, topics, request_timeout=self._seconds)
        return {name: self._result(future, f"topic {name!r}") for name, future in answers.items()}

    def _topic_settings(self, topics: Iterable[str]) -> dict[str, Any]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        answers = ask_client(self._admin.describe_configs, resources, request_timeout=self._seconds)
        right = "DescribeConfigs"
        return {r.name: self._result(future, f"topic {r.name!r}", right) for r, future in answers.items()}

    def _alter_group(self, group: str, offsets: Mapping[Source, int]) -> list[TopicPartition]:
        """Commit offsets as a consumer group. Returns the partitions whose offsets are refused."""
        wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, wanted)]
        (answer,) = ask_client(
            self._admin.alter_consumer_group_offsets, request, request_timeout=self._seconds
        ).values()
        try:
            return [tp for tp in answer.result(timeout=self._seconds + 5).topic_partitions if tp.error]
        except (KafkaException, TimeoutError) as error:
            raise HeadraceError(
                f"consumer group {group!r} takes no offsets ({error}). Nothing may consume as this group; "
                "give commit_offsets_to_group a name of its own."
            ) from error

    def mirror(self, group: str, frontier: Mapping[Source, int]) -> None:
        """Write the offsets to a consumer group, for tools that show its lag. Raises HeadraceError for a refusal."""
        deadline = time.monotonic() + self._seconds
        while (refused := self._alter_group(group, frontier)) and refused[0].error.code() in _COORDINATOR_STARTS:
            if time.monotonic() > deadline:
                break
            time.sleep(_COORDINATOR_PAUSE_S)
        if refused and refused[0].error.code() in _GONE:
            raise self._topic_missing(f"{refused[0].topic}/{refused[0].partition}")
        if refused:
            raise HeadraceError(
                f"consumer group {group!r} refuses offsets of {len(refused)} partitions, the first "
                f"{refused[0].topic}/{refused[0].partition} ({refused[0].error}). Check the rights on the group."
            )

    def _offsets(self, specs: Mapping[Source, Any], **options: Any) -> dict[Source, int]:
        return {source: int(answer.offset) for source, answer in self._list_offsets(specs, **options).items()}

    def _list_offsets(self, specs: Mapping[Source, Any], **options: Any) -> dict[Source, Any]:
        if not specs:
            return {}
        request = {TopicPartition(topic, partition): spec for (topic, partition), spec in specs.items()}
        futures = ask_client(self._admin.list_offsets, request, request_timeout=self._seconds, **options)
        try:
            answers = {
                (tp.topic, tp.partition): self._result(future, f"{tp.topic}/{tp.partition}")
                for tp, future in futures.items()
            }
        except BrokerUnreachable as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() == _NO_LEADERS:
                # It raises TopicMissing if a topic is gone.
                self.topics({topic for topic, _ in specs})
            if isinstance(cause, Exception) and _is_silence(cause):
                raise self._explain_silence(specs, cause) or error from cause
            raise
        # Beside leaders that answer, librdkafka gives no error for one that is silent, but an offset that is none.
        if any(answer.offset == OFFSET_INVALID for answer in answers.values()):
            silence = TimeoutError("timed out")
            raise self._explain_silence(specs, silence) or self._unreachable(silence)
        return answers

    def _ask_metadata(self) -> Any:
        """Ask any broker about the cluster, past those that are silent. None where all are.

        Each question waits no longer than any other of this client.
        """
        answers = ask_each(self._settings, self._bootstrap.split(","), min(PROBE_S, self._seconds))
        if answer := next((answer for answer in answers if answer is not None), None):
            return answer
        # This client may know brokers beyond those.
        with suppress(KafkaException):
            return self._admin.list_topics(timeout=min(_ANY_BROKER_S, self._seconds))
        return None

    def _explain_silence(self, sources: Iterable[Source], error: Exception) -> BrokerUnreachable | None:
        """Find out why a question about partitions failed. None where no broker answers at all."""
        if (metadata := self._ask_metadata()) is None:
            return None
        if leader := find_silent_leader(self._settings, metadata, sources):
            return self._silence_of(_leader_text(leader))
        return BrokerUnreachable(
            f"brokers of {self._bootstrap} do not tell offsets within {self._seconds:.0f} s ({_error_text(error)}), "
            "while each leader answers other questions. Where it stays so, give kafka.request_timeout more."
        )

    def _silence_of(self, broker: str) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"{broker} does not answer within {self._seconds:.0f} s, while others of {self._bootstrap} do. Check that "
            "it is up and that this machine reaches it."
        )

    def _result(self, future: Any, subject: str, right: str = "Describe") -> Any:
        """Wait for an answer about `subject`. `right`: of Kafka's authorizer, that the question needs."""
        try:
            return future.result(timeout=self._seconds + 5)
        except TimeoutError as error:
            raise self._unreachable(error) from error
        except KafkaException as error:
            code = error.args[0].code()
            if code in _GONE:
                raise self._topic_missing(subject) from error
            if code in _NO_RIGHTS:
                raise BrokerUnreachable(
                    f"brokers of {self._bootstrap} refuse an answer about {subject} ({_error_text(error)}). Give the "
                    f"user of kafka.security the right {right} on it."
                ) from error
            raise self._unreachable(error) from error

    def _topic_missing(self, subject: str, hint: str = "") -> TopicMissing:
        stop = "" if hint.endswith("?") else "."
        return TopicMissing(
            f"{subject} does not exist on {self._bootstrap}: it was deleted, was never created, or the user of "
            "kafka.security may not describe it; create it (one that is created again is read from its beginning, or "
            f"refused with on_topic_recreated: stop), or take it out of `topics`{hint}{stop}"
        )

    def _unreachable(self, error: Exception) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"no Kafka broker answers at {self._bootstrap} within {self._seconds:.0f} s ({_error_text(error)}). "
            "Check kafka.bootstrap_servers, kafka.security and that the cluster is up."
        )


def choose_topics(cluster: Cluster, selection: TopicSelection, preferred: Iterable[str] = ()) -> TopicChoice:
    """Return the topics that a pipeline reads; where they are more than it may, those `preferred` come first.

    Without a pattern nothing is asked. Raises TopicMissing where no topic matches, BrokerUnreachable.
    """
    if selection.pattern is None:
        return TopicChoice(list(selection.names), [])
    if not (choice := selection.choose(cluster.topic_names(), preferred)).names:
        raise TopicMissing(
            f"no topic of the cluster matches topics.pattern {selection.pattern!r}; create one, give the user of "
            "kafka.security the right to describe them, or correct the pattern"
        )
    return choice


def probe_cluster(cluster: Cluster) -> Cluster | BrokerUnreachable:
    """Ask once whether the cluster answers: readers that come one after the other share the wait for a silent one."""
    try:
        cluster.brokers()
    except BrokerUnreachable as error:
        return error
    return cluster


def _retention(settings: Mapping[str, Any]) -> timedelta | None:
    milliseconds = int(settings["retention.ms"].value)
    if not 0 <= milliseconds < _FOREVER_MS or "delete" not in settings["cleanup.policy"].value:
        return None
    return timedelta(milliseconds=milliseconds)


def ask_client(ask: Callable[..., Any], *questions: Any, **options: Any) -> Any:
    """Ask Confluent's client. Ctrl-C within one of its calls stays one: the client makes a SystemError of it."""
    try:
        return ask(*questions, **options)
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise


def _leader_text(leader: SilentLeader) -> str:
    """Name a leader by a partition that it leads, and say how many more it leads."""
    name = source_name(leader.sources[0])
    others = len(leader.sources) - 1
    more = f" and {plural(others, 'more partition')}" if others else ""
    if leader.broker is None:
        return f"the leader of {name}{more}"
    return f"{leader.broker}, which leads {name}{more},"


def _is_silence(error: Exception) -> bool:
    """Return whether an error may mean that nobody answered, rather than that somebody refused."""
    return isinstance(error, TimeoutError) or (isinstance(error, KafkaException) and error.args[0].code() in _SILENCE)


def _error_text(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return str(error.args[0].str()).rstrip(".")
    return str(error) or type(error).__name__


def client_settings(address: Address | str) -> dict[str, Any]:
    """Return the settings that every client of the cluster starts from. librdkafka logs nothing; failures raise."""
    import logging

    logger = logging.getLogger("headrace.librdkafka")
    logger.setLevel(logging.CRITICAL)
    settings = {"bootstrap.servers": str(address), "log_level": 0, "log.connection.close": False, "logger": logger}
    if isinstance(address, Address):
        settings |= address.settings
    return settings


@contextmanager
def consumer(address: Address | str, group: str, settings: Mapping[str, Any]) -> Iterator[Any]:
    """Open a consumer that reads committed records, as Spark's source does, and says where a log ends.

    `group`: a name that the client wants; no group is joined and no offset committed.
    """
    kafka_consumer = Consumer(
        {
            **client_settings(address),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **settings,
        }
    )
    try:
        yield kafka_consumer
    finally:
        kafka_consumer.close()


def next_records(
    address: Address | str, timeout: timedelta, questions: Sequence[tuple[Source, Span]]
) -> dict[tuple[Source, Span], int | None]:
    """Return the offset of the first committed record at or after the start of each span; None where the log ends.

    Raises BrokerUnreachable.
    """
    if not questions:
        return {}
    settings = {
        # Retention may have removed these offsets meanwhile; then none is left.
        "auto.offset.reset": "earliest",
        "queued.min.messages": 1,
        "fetch.message.max.bytes": 16_384,
        "fetch.wait.max.ms": 50,
    }
    with consumer(address, "headrace-audit", settings) as kafka_consumer:
        return {(source, span): _next(kafka_consumer, timeout, source, span[0]) for source, span in questions}


def _next(kafka_consumer: Any, timeout: timedelta, source: Source, start: int) -> int | None:
    topic, partition = source
    kafka_consumer.assign([TopicPartition(topic, partition, start)])
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        message = kafka_consumer.poll(0.2)
        if message is None or (message.topic(), message.partition()) != source:
            continue
        error = message.error()
        if error is None:
            return int(message.offset())
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            return None
        raise BrokerUnreachable(f"the broker does not say what {topic}/{partition} holds at {start}: {error.str()}")
    raise BrokerUnreachable(
        f"the broker does not say within {timeout.total_seconds():.0f} s what {topic}/{partition} holds at {start}. "
        "Check that the partition has a leader."
    )
