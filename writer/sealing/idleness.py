"""Which partitions are idle: Kafka is asked, so that a silent one does not hold the watermark back, nor seem to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from writer.config.pipeline_sections import Seal
from writer.core.offsets import Source
from writer.core.units import shifted
from writer.sealing.sealer import BucketSnapshot
from writer.sealing.watermark import KafkaEnds, Watermark

_ASKED_EVERY = timedelta(seconds=30)  # where the answer is only shown


class ClusterQuestions(Protocol):
    """What sealing asks of a cluster."""

    def sources(self, topics: Sequence[str]) -> list[Source]:
        """Every partition that there is now."""

    def latest(self, sources: Sequence[Source]) -> Mapping[Source, int]:
        """End of the log, by partition."""

    def found(self, instants_ms: Mapping[Source, int]) -> Mapping[Source, tuple[int, int]]:
        """First record at or after each instant: its offset and timestamp (ms); -1 and -1 when there is none."""


@dataclass
class Listener:
    """Asks Kafka whether all is read and which partitions are quiet, and remembers when it last saw an end move."""

    cluster: ClusterQuestions
    topics: Sequence[str]
    young_s: float = 0.0  # an answer counts for so long, where several tables ask one after the other
    _ends: dict[Source, int] = field(default_factory=dict)
    _moved: dict[Source, datetime] = field(default_factory=dict)
    _last: KafkaEnds | None = None

    def recent(self, idle_timeout: timedelta, now: datetime) -> KafkaEnds:
        """Return the last answer if it is young, or ask again. Raises BrokerUnreachable."""
        if self._last is not None and now - self._last.at < _ASKED_EVERY:
            return self._last
        return self.look(idle_timeout, now)

    def look(self, idle_timeout: timedelta, now: datetime) -> KafkaEnds:
        """Ask. Raises BrokerUnreachable.

        The end of a log, not of what can be read: records of an open transaction are still to come.
        """
        if self._last is not None and now - self._last.at < timedelta(seconds=self.young_s):
            return self._last
        sources = self.cluster.sources(self.topics)
        since = now - idle_timeout
        young = self.cluster.found(dict.fromkeys(sources, int(since.timestamp() * 1000)))
        ends = dict(self.cluster.latest(sources))  # after the other question: what came in between counts
        for source, end in ends.items():
            if source in self._ends and self._ends[source] != end:
                self._moved[source] = now
        self._ends = ends
        quiet = {s for s in sources if young[s][0] < 0 and (s not in self._moved or self._moved[s] <= since)}
        self._last = KafkaEnds(now, ends, frozenset(quiet))
        return self._last


def held_back(mark: Watermark, policy: Seal, now: datetime) -> bool:
    """Return whether an idle partition may hold the watermark: it has no event time of the last `idle_timeout`."""
    return mark.instant is None or shifted(mark.instant, policy.out_of_orderness) <= now - policy.idle_timeout


def frontier_of(standing: BucketSnapshot, numbers: Mapping[str, int]) -> dict[Source, int]:
    """Return the frontier of the incarnations that are read, by source."""
    parts = standing.progress.parts().items()
    return {(p.topic, p.partition): at for p, at in parts if numbers.get(p.topic) == p.incarnation}
