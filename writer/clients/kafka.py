"""Asks Kafka for topic ids, partitions, log ends, retention and groups' offsets."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from headrace.writer.config.base import did_you_mean
from headrace.writer.config.sections.topic_selection import TopicChoice, TopicSelection
from headrace.writer.core.errors import ConfigError, HeadraceError, TopicMissing
from headrace.writer.core.offsets import Source, source_name
from headrace.writer.core.text import plural
from headrace.writer.kafka_reader.broker_client import BrokerClient, GroupRefused, SilentLeader, SlowLeader
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.kafka_reader.errors import AccessDenied, ReadFailed
from headrace.writer.kafka_reader.protocol import ErrorCode, error_name
from headrace.writer.kafka_reader.requests import group_offsets, topic_configs
from headrace.writer.kafka_reader.requests.list_offsets import EARLIEST, LATEST, LogOffset
from headrace.writer.kafka_reader.requests.metadata import NO_ID, Metadata, is_gone

# The user of `kafka.security` may not ask.
_NO_RIGHTS = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
# Members of a group hold its offsets.
_GROUP_IN_USE = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
_SETTINGS = ("retention.ms", "cleanup.policy")
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
    """Questions to one Kafka cluster, each with a deadline. May be shared by threads.

    What is asked about a topic that is not there raises TopicMissing; silence raises BrokerUnreachable.
    """

    def __init__(self, address: ClusterAddress | str, timeout: timedelta) -> None:
        """Take where the cluster is; a plain `host:port` has no security. Raises ConfigError."""
        if isinstance(address, str):
            try:
                address = ClusterAddress(addresses(address))
            except ValueError as error:
                raise ConfigError(str(error)) from error
        try:
            # So that files that cannot be used are a fault of the configuration, and no silence.
            address.security.context()
        except AccessDenied as error:
            raise ConfigError(str(error)) from error
        self._bootstrap = str(address)
        self._seconds = timeout.total_seconds()
        self._client = BrokerClient(replace(address, timeout_s=self._seconds))

    def brokers(self) -> int:
        """How many brokers the cluster has now. Raises BrokerUnreachable."""
        return len(self._describe([]).brokers)

    def topic_names(self) -> list[str]:
        """Return the names of the topics that the cluster has now and the user may see. Raises BrokerUnreachable."""
        described = self._describe(None)
        return [*described.partitions, *described.errors]

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Describe topics. Raises TopicMissing for the first that is not there, BrokerUnreachable."""
        topic_names = list(names)
        described = self._describe(topic_names)
        if gone := [name for name in topic_names if is_gone(described.errors.get(name, 0))]:
            existing = self.topic_names()
            for name in gone:
                if name not in existing:
                    near = did_you_mean(name, sorted(topic for topic in existing if not topic.startswith("__")))
                    raise self._topic_missing(f"topic {name!r}", near)
            # They were created between the questions.
            described = self._describe(topic_names)
        self._check_topics(described)
        return {
            name: Topic(name, _id_text(described.topic_ids.get(name, NO_ID).bytes), described.partitions[name])
            for name in topic_names
        }

    def earliest(self, sources: Iterable[Source]) -> dict[Source, int]:
        """First offset still held, by partition."""
        return self._offsets(dict.fromkeys(sources, EARLIEST))

    def latest(self, sources: Iterable[Source]) -> dict[Source, int]:
        """End of the log (the next offset to be written), by partition."""
        return self._offsets(dict.fromkeys(sources, LATEST))

    def readable(self, sources: Iterable[Source]) -> dict[Source, int]:
        """Up to where committed records can be read: the first offset of the oldest open transaction, or the end."""
        return self._offsets(dict.fromkeys(sources, LATEST), committed=True)

    def offsets_at(self, instant: datetime, sources: Iterable[Source]) -> dict[Source, int]:
        """First offset with a broker timestamp at or after `instant`; the end of the log where there is none."""
        milliseconds = int(instant.timestamp() * 1000)
        # Below 0 are words of the protocol, such as LATEST.
        offsets = self._offsets(dict.fromkeys(sources, max(0, milliseconds)))
        missing = [source for source, offset in offsets.items() if offset < 0]
        return offsets | self.latest(missing)

    def first_records(self, instants_ms: Mapping[Source, int]) -> dict[Source, tuple[int, int]]:
        """First record at or after each instant: its offset and timestamp (ms); -1 and -1 when there is none."""
        answers = self._log_offsets({source: max(0, instant_ms) for source, instant_ms in instants_ms.items()})
        return {source: (answer.offset, answer.time_ms) for source, answer in answers.items()}

    def sources(self, topics: Iterable[str]) -> list[Source]:
        """Every partition that the topics have now."""
        described = self._describe(topics)
        self._check_topics(described)
        return [(name, partition) for name, count in described.partitions.items() for partition in range(count)]

    def retention(self, topics: Iterable[str]) -> dict[str, timedelta | None]:
        """How long each topic keeps its records (`retention.ms`); None when it deletes none by their age."""
        return {name: _retention(settings) for name, settings in self._topic_settings(topics).items()}

    def cleanup(self, topics: Iterable[str]) -> dict[str, str]:
        """How each topic lets go of records (`cleanup.policy`): delete, compact, or both with a comma."""
        return {name: settings["cleanup.policy"] for name, settings in self._topic_settings(topics).items()}

    def committed_offsets(self, group: str, sources: Iterable[Source]) -> dict[Source, int]:
        """Offsets that a consumer group has committed, where it has. Raises BrokerUnreachable."""
        requested = list(sources)
        if not requested:
            return {}
        question = group_offsets.fetch_question(group, requested)
        with self._group_errors(group):
            answer = self._client.ask_coordinator(group, question, lambda answer: [answer.error])
        if answer.error:
            raise self._refusal(f"group {group!r}", answer.error)
        return dict(answer.offsets)

    def mirror(self, group: str, frontier: Mapping[Source, int]) -> None:
        """Write the offsets to a consumer group, for tools that show its lag. Raises HeadraceError for a refusal."""
        if not frontier:
            return
        question = group_offsets.commit_question(group, frontier)
        with self._group_errors(group):
            errors = self._client.ask_coordinator(group, question, dict.values)
        refused = {source: error for source, error in errors.items() if error}
        if not refused:
            return
        source, error = next(iter(refused.items()))
        if is_gone(error):
            raise self._topic_missing(source_name(source))
        if error in _GROUP_IN_USE:
            raise HeadraceError(
                f"consumer group {group!r} takes no offsets ({_error_text(error)}). Nothing may consume as this group; "
                "give commit_offsets_to_group a name of its own."
            )
        raise HeadraceError(
            f"consumer group {group!r} refuses offsets of {plural(len(refused), 'partition')}, the first "
            f"{source_name(source)} ({_error_text(error)}). Give the user of kafka.security the right Read on the "
            "group and on the topic."
        )

    def _describe(self, topics: Iterable[str] | None) -> Metadata:
        with self._broker_errors():
            return self._client.describe_topics(topics)

    def _check_topics(self, described: Metadata) -> None:
        """Raise for the first topic that the cluster says nothing of."""
        for name, error in described.errors.items():
            raise self._refusal(f"topic {name!r}", error)

    def _topic_settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        names = list(topics)
        if not names:
            return {}
        with self._broker_errors():
            configs = self._client.ask_any(topic_configs.question(names, _SETTINGS))
        for name in names:
            if error := configs[name].error:
                raise self._refusal(f"topic {name!r}", error, "DescribeConfigs")
        return {name: {key: value or "" for key, value in configs[name].settings.items()} for name in names}

    def _offsets(self, times_ms: Mapping[Source, int], *, committed: bool = False) -> dict[Source, int]:
        answers = self._log_offsets(times_ms, committed=committed)
        return {source: answer.offset for source, answer in answers.items()}

    def _log_offsets(self, times_ms: Mapping[Source, int], *, committed: bool = False) -> dict[Source, LogOffset]:
        if not times_ms:
            return {}
        with self._broker_errors():
            answers = self._client.log_offsets(times_ms, committed=committed)
        for source in times_ms:
            if error := answers[source].error:
                raise self._refusal(source_name(source), error)
        return {source: answers[source] for source in times_ms}

    @contextmanager
    def _broker_errors(self) -> Iterator[None]:
        """Say what a question failed by as BrokerUnreachable."""
        try:
            yield
        except SilentLeader as error:
            raise BrokerUnreachable(
                f"{_leader_text(error)} does not answer within {self._seconds:g} s, while others of "
                f"{self._bootstrap} do. Check that it is up and that this machine reaches it."
            ) from error
        except SlowLeader as error:
            raise BrokerUnreachable(
                f"brokers of {self._bootstrap} do not tell offsets within {self._seconds:g} s ({error}), while each "
                "leader answers other questions. Where it stays so, give kafka.request_timeout more."
            ) from error
        except ReadFailed as error:
            raise BrokerUnreachable(str(error)) from error

    @contextmanager
    def _group_errors(self, group: str) -> Iterator[None]:
        """Say what a question about a group failed by as BrokerUnreachable."""
        try:
            with self._broker_errors():
                yield
        except GroupRefused as error:
            raise self._refusal(f"group {group!r}", error.error) from error

    def _refusal(self, subject: str, error: int, right: str = "Describe") -> HeadraceError:
        """Return the error for an answer about `subject`. `right`: of Kafka's authorizer, that the question needs."""
        if is_gone(error):
            return self._topic_missing(subject)
        if error in _NO_RIGHTS:
            return BrokerUnreachable(
                f"brokers of {self._bootstrap} refuse an answer about {subject} ({_error_text(error)}). Give the "
                f"user of kafka.security the right {right} on it."
            )
        return BrokerUnreachable(
            f"brokers of {self._bootstrap} give no answer about {subject} ({_error_text(error)}). Try again; "
            "where it stays so, look at the logs of the brokers."
        )

    def _topic_missing(self, subject: str, hint: str = "") -> TopicMissing:
        stop = "" if hint.endswith("?") else "."
        return TopicMissing(
            f"{subject} does not exist on {self._bootstrap}: it was deleted, was never created, or the user of "
            "kafka.security may not describe it; create it (one that is created again is read from its beginning, or "
            f"refused with on_topic_recreated: stop), or take it out of `topics`{hint}{stop}"
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


def _retention(settings: Mapping[str, str]) -> timedelta | None:
    milliseconds = int(settings["retention.ms"])
    if not 0 <= milliseconds < _FOREVER_MS or "delete" not in settings["cleanup.policy"]:
        return None
    return timedelta(milliseconds=milliseconds)


def _id_text(topic_id: bytes) -> str:
    """Write a topic id as tables keep it: in base64 without padding; `+` and `/` are in it, not `-` and `_`."""
    return base64.b64encode(topic_id).decode().rstrip("=")


def _leader_text(leader: SilentLeader) -> str:
    """Name a leader by a partition that it leads, and say how many more it leads."""
    name = source_name(leader.sources[0])
    others = len(leader.sources) - 1
    more = f" and {plural(others, 'more partition')}" if others else ""
    if leader.broker is None:
        return f"the leader of {name}{more}"
    return f"{leader.broker}, which leads {name}{more},"


def _error_text(error: int) -> str:
    """Write a broker's error as a sentence does."""
    return error_name(error).replace("_", " ").capitalize()
