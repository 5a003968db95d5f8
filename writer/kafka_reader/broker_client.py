"""Asks brokers from any thread, within a deadline: any broker, the leaders of partitions, a group's coordinator."""

import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import BrokerAddress
from headrace.writer.kafka_reader.connection_pool import ConnectionPool, Deadline
from headrace.writer.kafka_reader.errors import Unavailable
from headrace.writer.kafka_reader.protocol import ErrorCode, error_name
from headrace.writer.kafka_reader.requests import group_offsets, list_offsets, metadata
from headrace.writer.kafka_reader.requests.list_offsets import LogOffset, OffsetQuestion
from headrace.writer.kafka_reader.requests.metadata import Metadata, merge_metadata
from headrace.writer.kafka_reader.requests.question import Question

Answer = TypeVar("Answer")
# What an election, a start of a broker or a move of a partition leaves behind for a moment.
_LEADER_MOVES = (
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)
# While a group's coordinator starts or moves, it refuses for some seconds.
_COORDINATOR_MOVES = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
# A broker that is asked in the place of others has so long at least.
_SHARE_S_MIN = 1.0
# For a sign of life of a broker that was silent, or of the others.
_PROBE_S = 4.0
_LEADERS_AT_ONCE = 16


class SilentLeader(Exception):
    """A leader of partitions does not answer, or there is none, while other brokers of the cluster answer.

    `broker`: its id and address; None where nobody says which broker it is. `sources`: what it leads of what was asked.
    """

    def __init__(self, broker: str | None, sources: Sequence[Source]) -> None:
        super().__init__(broker, sources)
        self.broker = broker
        self.sources = sources


class SlowLeader(Exception):
    """A leader of partitions does not answer in time, and answers another question."""


class GroupRefused(Exception):
    """No broker coordinates a group for this user. `error`: of the brokers."""

    def __init__(self, error: int) -> None:
        super().__init__(error)
        self.error = error


class BrokerClient:
    """Questions to the brokers of one cluster. May be shared by threads.

    Each question is asked again, of the brokers that the cluster names then, until the time-out of the address is over.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address
        self._pool = ConnectionPool(address.security, address.client_id)
        self._lock = threading.Lock()
        # Partitions and leaders of all topics that were asked about.
        self._metadata = Metadata()
        # The broker that answered last.
        self._answering: BrokerAddress | None = None

    def ask_any(self, question: Question[Answer]) -> Answer:
        """Ask any broker. Raises Unavailable, AccessDenied, UnsupportedBroker, Corrupt."""
        return self._ask_any(question, Deadline(self._address.timeout_s))

    def describe_topics(self, topics: Iterable[str] | None) -> Metadata:
        """Return the brokers, and partitions, ids and leaders of topics, None: of all. Raises as `ask_any` does.

        Errors of topics stand in it. Of topics that were named, those that may pass are waited for.
        """
        deadline = Deadline(self._address.timeout_s)
        if topics is None:
            return self._learn_leaders(None, deadline)
        names = list(topics)
        answer = self._learn_leaders(names, deadline)
        while any(error in _LEADER_MOVES for error in answer.errors.values()) and deadline.pause():
            # Where none answers any more, the last answer stays.
            with suppress(Unavailable):
                answer = self._learn_leaders(names, deadline)
        return answer

    def log_offsets(self, times_ms: Mapping[Source, int], *, committed: bool) -> dict[Source, LogOffset]:
        """Ask the leaders of partitions for offsets, side by side. `times_ms`: instants, EARLIEST or LATEST.

        `committed`: LATEST is the end of what readers of committed records see. An error stands in the answer where a
        partition is not there, where the user may not ask, and where it does not pass. Raises SilentLeader, SlowLeader,
        and as `ask_any` does.
        """
        deadline = Deadline(self._address.timeout_s)
        answers = dict[Source, LogOffset]()
        # Why there is no answer yet, and answers that may be others soon.
        failures = dict[Source, OSError | None]()
        passing = dict[Source, LogOffset]()
        is_stale = not times_ms.keys() <= self._metadata.leaders.keys()
        while missing := [source for source in times_ms if source not in answers]:
            if is_stale:
                try:
                    described = self._learn_leaders({topic for topic, _ in missing}, deadline)
                except Unavailable:
                    if not failures and not passing:
                        raise
                    break
                answers |= _refusals(missing, described)
            unanswered = [source for source in missing if source not in answers]
            failures = {}
            passing = {}
            for source, answer in self._ask_leaders(unanswered, times_ms, deadline, committed=committed):
                if not isinstance(answer, LogOffset):
                    failures[source] = answer
                elif _may_pass(answer.error):
                    passing[source] = answer
                else:
                    answers[source] = answer
            is_stale = True
            if (failures or passing) and not deadline.pause():
                break
        if failures:
            raise self._explain_silence(failures)
        return answers | {source: answer for source, answer in passing.items() if source not in answers}

    def ask_coordinator(
        self, group: str, question: Question[Answer], find_errors: Callable[[Answer], Collection[int]]
    ) -> Answer:
        """Ask the broker that coordinates a group. `find_errors`: of an answer.

        Raises GroupRefused, Unavailable where no broker coordinates the group in time, and as `ask_any` does.
        """
        deadline = Deadline(self._address.timeout_s)
        reason = ""
        while not reason or deadline.pause():
            try:
                coordinator = self._ask_any(group_offsets.coordinator_question(group), deadline)
            except Unavailable:
                if not reason:
                    raise
                break
            reason = error_name(coordinator.error)
            if coordinator.error in _COORDINATOR_MOVES:
                continue
            if coordinator.error:
                raise GroupRefused(coordinator.error)
            try:
                answer = self._pool.ask(coordinator.address, question, deadline)
            except OSError as error:
                reason = str(error)
                continue
            moves = [error for error in find_errors(answer) if error in _COORDINATOR_MOVES]
            if not moves:
                return answer
            reason = error_name(moves[0])
        raise Unavailable(
            f"no broker of {self._address} coordinates the group {group!r} within {self._address.timeout_s:g} s "
            f"({reason}). Check that all brokers are up."
        )

    def _ask_any(self, question: Question[Answer], deadline: Deadline) -> Answer:
        """Ask brokers one after the other, each for a share of the time, until one answers."""
        while True:
            brokers = self._brokers()
            for index, broker in enumerate(brokers):
                share_s = max(deadline.left_s / (len(brokers) - index), _SHARE_S_MIN)
                try:
                    answer = self._pool.ask(broker, question, Deadline(min(share_s, deadline.left_s)))
                except OSError as error:
                    failure = error
                    continue
                self._answering = broker
                return answer
            if not deadline.pause():
                raise Unavailable(
                    f"no Kafka broker answers at {self._address} within {self._address.timeout_s:g} s ({failure}). "
                    "Check kafka.bootstrap_servers, kafka.security and that the cluster is up."
                ) from failure

    def _brokers(self) -> list[BrokerAddress]:
        """Return all brokers that are known: first the one that answered last."""
        answering = [] if self._answering is None else [self._answering]
        brokers = list(self._metadata.brokers.values())
        # So that no broker gets the questions of all clients.
        random.shuffle(brokers)
        return list(dict.fromkeys([*answering, *brokers, *self._address.bootstrap]))

    def _learn_leaders(self, topics: Iterable[str] | None, deadline: Deadline) -> Metadata:
        """Ask any broker about topics, and remember their leaders. Returns what it says."""
        answer = self._ask_any(metadata.question(topics), deadline)
        with self._lock:
            cached = self._metadata
            others = {
                source: leader
                for source, leader in cached.leaders.items()
                if leader.node in answer.brokers
                and source[0] not in answer.partitions
                and source[0] not in answer.errors
            }
            merged = merge_metadata(cached, answer)
            self._metadata = replace(
                merged, leaders=others | dict(merged.leaders), topic_ids={**cached.topic_ids, **merged.topic_ids}
            )
        return answer

    def _ask_leaders(
        self, sources: Iterable[Source], times_ms: Mapping[Source, int], deadline: Deadline, *, committed: bool
    ) -> Iterator[tuple[Source, LogOffset | OSError | None]]:
        """Ask each leader once, side by side. Yields why there is no answer, None where there is no leader."""
        cached = self._metadata
        by_broker = dict[BrokerAddress, list[OffsetQuestion]]()
        for source in sources:
            leader = cached.leaders.get(source)
            if leader is None:
                yield source, None
            else:
                question = OffsetQuestion(*source, leader.epoch, times_ms[source])
                by_broker.setdefault(cached.brokers[leader.node], []).append(question)
        ask = partial(self._ask_leader, deadline, committed)
        if len(by_broker) <= 1:
            results = [ask(*group) for group in by_broker.items()]
        else:
            with ThreadPoolExecutor(_LEADERS_AT_ONCE, thread_name_prefix="leader") as pool:
                results = list(pool.map(ask, by_broker.keys(), by_broker.values()))
        for questions, result in zip(by_broker.values(), results, strict=True):
            for question in questions:
                source = (question.topic, question.partition)
                yield source, result if isinstance(result, OSError) else result.get(source, _NOTHING)

    def _ask_leader(
        self, deadline: Deadline, committed: bool, broker: BrokerAddress, questions: Sequence[OffsetQuestion]
    ) -> Mapping[Source, LogOffset] | OSError:
        """Ask a leader. Returns the error where no answer comes in time."""
        try:
            return self._pool.ask(broker, list_offsets.question(questions, committed=committed), deadline)
        except OSError as error:
            return error

    def _explain_silence(self, failures: Mapping[Source, OSError | None]) -> Exception:
        """Find out about the leader of the first partition without an answer. Raises Unavailable where none answers."""
        first = min(failures)
        error = failures[first]
        cached = self._metadata
        leader = cached.leaders.get(first)
        probe_s = min(_PROBE_S, self._address.timeout_s)
        sign_of_life = metadata.question([])
        if leader is not None and isinstance(error, TimeoutError):
            with suppress(OSError):
                self._pool.ask(cached.brokers[leader.node], sign_of_life, Deadline(probe_s))
                return SlowLeader(str(error))
        self._ask_any(sign_of_life, Deadline(probe_s))
        if leader is None or error is None:
            return SilentLeader(None, sorted(source for source, reason in failures.items() if reason is None))
        led = sorted(source for source in failures if cached.leaders.get(source, leader).node == leader.node)
        return SilentLeader(f"broker {leader.node} at {cached.brokers[leader.node]}", led)


# An answer that leaves a partition out.
_NOTHING = LogOffset(ErrorCode.UNKNOWN, -1, -1)


def _may_pass(error: int) -> bool:
    """Return whether a leader may answer otherwise soon. A broker that lags does not know a new partition yet."""
    return error in _LEADER_MOVES or error in (ErrorCode.UNKNOWN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _refusals(sources: Collection[Source], described: Metadata) -> dict[Source, LogOffset]:
    """Return answers for the partitions that the cluster does not name, or that the user may not ask about."""
    refusals = dict[Source, LogOffset]()
    for topic, partition in sources:
        error = described.errors.get(topic, 0)
        if topic in described.partitions and partition >= described.partitions[topic]:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if error and error not in _LEADER_MOVES:
            refusals[topic, partition] = LogOffset(error, -1, -1)
    return refusals
