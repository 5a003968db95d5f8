"""Which partitions are idle: Kafka is asked, so that a silent one does not hold the watermark back, nor seem to.

A partition is idle when the end of its log has not moved for `idle_timeout`, by the monotonic clock of this process.
Timestamps of records, which producers may set as they like, count at the first look alone: they shorten the wait.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Protocol

from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.core.offsets import Source
from headrace.writer.core.units import shift_instant
from headrace.writer.sealing.sealer import BucketSnapshot
from headrace.writer.sealing.watermark import KafkaEnds, Watermark

# An answer counts as recent for so long, where it is only shown.
_RECENT_S = 30.0
# A timestamp of 1970 is no date: so look seconds that a producer takes for milliseconds.
_FIRST_DATE_MS = int(datetime(1971, 1, 1, tzinfo=UTC).timestamp() * 1000)


class ClusterQuestions(Protocol):
    """What sealing asks of a cluster."""

    def sources(self, topics: Sequence[str]) -> list[Source]:
        """Return every partition that there is now."""

    def earliest(self, sources: Collection[Source]) -> Mapping[Source, int]:
        """Return the first offset still there, by partition."""

    def latest(self, sources: Collection[Source]) -> Mapping[Source, int]:
        """Return the end of the log, by partition."""

    def first_records(self, instants_ms: Mapping[Source, int]) -> Mapping[Source, tuple[int, int]]:
        """Return offset and timestamp (ms) of the first record at or after each instant; -1 and -1 without any."""


@dataclass
class LogEndWatch:
    """Asks Kafka whether all is read and which partitions are quiet, and remembers when it last saw an end move."""

    cluster: ClusterQuestions
    topics: Sequence[str]
    # An answer counts for so long, where several tables ask one after the other.
    young_s: float = 0.0
    seconds: Callable[[], float] = time.monotonic
    _ends: dict[Source, int] = field(default_factory=dict)
    _moved_s: dict[Source, float] = field(default_factory=dict)
    _last: tuple[float, KafkaEnds] | None = None

    def fetch_recent(self, idle_timeout: timedelta, now: datetime) -> KafkaEnds:
        """Return the last answer if it is young, or ask again. Raises BrokerUnreachable."""
        return self._younger_than(_RECENT_S) or self.fetch(idle_timeout, now)

    def fetch(self, idle_timeout: timedelta, now: datetime) -> KafkaEnds:
        """Ask. Raises BrokerUnreachable.

        The end of a log, not of what can be read: records of an open transaction are still to come.
        """
        last_answer = self._younger_than(self.young_s)
        if last_answer is not None:
            return last_answer
        sources = self.cluster.sources(self.topics)
        silent = self._silent([source for source in sources if source not in self._ends], now - idle_timeout)
        # After the other questions: what came in between counts.
        ends = dict(self.cluster.latest(sources))
        now_s = self.seconds()
        for source, log_end in ends.items():
            is_silent = source not in self._ends and silent.get(source) == log_end
            if is_silent:
                self._moved_s[source] = -inf
            elif self._ends.get(source) != log_end:
                self._moved_s[source] = now_s
        self._ends = ends
        since_s = now_s - idle_timeout.total_seconds()
        quiet = frozenset(source for source in ends if self._moved_s[source] <= since_s)
        kafka_ends = KafkaEnds(now, ends, quiet)
        self._last = (now_s, kafka_ends)
        return kafka_ends

    def _younger_than(self, age_s: float) -> KafkaEnds | None:
        if self._last is None or self.seconds() - self._last[0] >= age_s:
            return None
        return self._last[1]

    def _silent(self, sources: Collection[Source], since: datetime) -> dict[Source, int]:
        """Return the ends of partitions that are empty, or whose records are all dated before an instant.

        Where a record is dated in the future, or all of them in 1970 or not at all, their dates say nothing.
        """
        if not sources:
            return {}
        ends = self.cluster.latest(sources)
        starts = self.cluster.earliest(sources)
        since_ms = int(since.timestamp() * 1000)
        young = self.cluster.first_records(dict.fromkeys(sources, since_ms))
        old = [source for source in sources if young[source][0] < 0]
        with_records = [source for source in old if starts[source] < ends[source]]
        dated: Mapping[Source, tuple[int, int]] = {}
        if with_records:
            dated = self.cluster.first_records(dict.fromkeys(with_records, _FIRST_DATE_MS))
        return {source: ends[source] for source in old if source not in dated or dated[source][0] >= 0}


def is_held_back(mark: Watermark, policy: Seal, now: datetime) -> bool:
    """Return whether an idle partition may hold the watermark: it has no event time of the last `idle_timeout`."""
    return mark.instant is None or shift_instant(mark.instant, policy.out_of_orderness) <= now - policy.idle_timeout


def frontier_by_source(snapshot: BucketSnapshot, numbers: Mapping[str, int]) -> dict[Source, int]:
    """Return the frontier of the incarnations that are read, by source."""
    return {
        (part.topic, part.partition): offset
        for part, offset in snapshot.progress.parts().items()
        if numbers.get(part.topic) == part.incarnation
    }
