"""Asks the leaders of partitions what their logs are known by: marks at offsets, and where epochs of leaders end."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from headrace.writer.core.backoff import Backoff
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.kafka_reader.cluster import Cluster, ClusterAddress
from headrace.writer.kafka_reader.errors import AccessDenied, TopicGone, Unavailable
from headrace.writer.kafka_reader.protocol import ErrorCode, error_name
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.kafka_reader.requests.epoch_ends import EpochEnd, EpochQuestion
from headrace.writer.kafka_reader.requests.metadata import is_gone

_RETRIES = Backoff(first_s=0.05, max_s=2.0, jitter=0.2)
_NO_RIGHTS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True)
class LogMarks:
    """Questions about the logs of a cluster, over connections that each question opens."""

    address: ClusterAddress
    limits: ReadLimits

    def leader_epochs(self, topics: Mapping[str, UUID]) -> dict[Source, int]:
        """Return the epoch of each partition's leader; -1 where the cluster does not say. Raises ReadFailed."""
        with self.address.open() as cluster:
            return {source: leader.epoch for source, leader in cluster.ask_leaders(topics).leaders.items()}

    def marks_before(self, offsets: Mapping[Source, int], topic_ids: Mapping[str, UUID]) -> dict[Source, LogMark]:
        """Return the marks of the batches that hold the records before these offsets, where a batch does.

        Also records of transactions that are open or were aborted count. Only headers are read. Raises ReadFailed.
        """
        ranges = [
            OffsetRange(TopicPartition(topic, 1, partition), offset, offset)
            for (topic, partition), offset in offsets.items()
        ]
        with self.address.open() as cluster:
            reader = RangeReader(
                cluster, ranges, topic_ids=topic_ids, limits=self.limits, with_before=True, committed=False
            )
            # Empty ranges have no rows: the reader looks at the batches before them.
            for _ in reader:
                pass
        evidence = zip(offsets, reader.evidence, strict=True)
        return {source: each.before for source, each in evidence if each.before is not None}

    def epoch_ends(self, epochs: Mapping[Source, int]) -> dict[Source, EpochEnd]:
        """Ask where the epochs of leaders end. Tries again what may pass. Raises ReadFailed."""
        ends = dict[Source, EpochEnd]()
        with self.address.open() as cluster:
            deadline_s = time.monotonic() + self.limits.retry_timeout_s
            tries = 0
            while missing := {source: epoch for source, epoch in epochs.items() if source not in ends}:
                cluster.ask_leaders({topic for topic, _ in missing})
                failures = dict[Source, str]()
                for source, epoch_end in _ask_leaders(cluster, missing, failures):
                    if epoch_end.error:
                        failures[source] = _explain_error(source, epoch_end.error)
                    else:
                        ends[source] = epoch_end
                if failures and time.monotonic() > deadline_s:
                    source, reason = next(iter(failures.items()))
                    raise Unavailable(f"{source[0]}/{source[1]}: {reason}", *source)
                if failures:
                    time.sleep(_RETRIES.random_delay_s(tries))
                    tries += 1
        return ends


def _ask_leaders(
    cluster: Cluster, epochs: Mapping[Source, int], failures: dict[Source, str]
) -> Iterator[tuple[Source, EpochEnd]]:
    """Ask each leader once; what got no answer is put into `failures`."""
    by_node = dict[int, list[EpochQuestion]]()
    for source, epoch in epochs.items():
        leader = cluster.leader(source)
        if leader is None:
            failures[source] = "it has no leader"
        else:
            by_node.setdefault(leader.node, []).append(EpochQuestion(*source, leader.epoch, epoch))
    for node, questions in by_node.items():
        sources = [(question.topic, question.partition) for question in questions]
        try:
            ends = cluster.epoch_ends(node, questions)
        except OSError as error:
            failures |= dict.fromkeys(sources, f"no answer of broker {node} ({error})")
            continue
        for source in sources:
            if source in ends:
                yield source, ends[source]
            else:
                failures[source] = f"broker {node} does not speak of it"


def _explain_error(source: Source, error: int) -> str:
    """Return a text for an error that may pass. Raises AccessDenied, TopicGone for others."""
    name = error_name(error)
    if error in _NO_RIGHTS:
        raise AccessDenied(
            f"{source[0]}/{source[1]}: {name}: give the user of kafka.security DESCRIBE on topic {source[0]}", *source
        )
    if is_gone(error):
        raise TopicGone(f"{source[0]}/{source[1]}: {name}: the topic does not exist", *source)
    return f"the broker says {name}"
