"""Asks Kafka whether its logs still are those that the table was filled from, and where they ceased to be."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from writer.clients import native_kafka
from writer.clients.kafka import Cluster
from writer.config.connections import Kafka
from writer.core import logging
from writer.core.offsets import LogMark, Source, TopicPartition
from writer.kafka_reader.errors import OldRecordFormat, UnsupportedBroker
from writer.kafka_reader.log_marks import LogMarks
from writer.kafka_reader.requests.epoch_ends import EpochEnd
from writer.offsets.log_continuity import (
    Continues,
    DivergencePoint,
    Diverges,
    PartHistory,
    SoundEnd,
    Unproven,
    candidates,
    divergence_point,
    history_of,
    judge,
)
from writer.offsets.start_decision import LogRange, predecessors_of
from writer.table.log.log import Action
from writer.table.log.snapshot import PipelineSnapshot

Entries = Sequence[tuple[int, Sequence[Action]]]


class LogQuestions(Protocol):
    """What is asked of leaders. Each raises ReadFailed; `writer.kafka_reader.log_marks` asks real ones."""

    def leader_epochs(self, topics: Mapping[str, UUID]) -> dict[Source, int]:
        """Return the epoch of each partition's leader."""

    def marks_before(self, offsets: Mapping[Source, int], topic_ids: Mapping[str, UUID]) -> dict[Source, LogMark]:
        """Return the marks of the batches that hold the records before these offsets, where a batch does."""

    def epoch_ends(self, epochs: Mapping[Source, int]) -> dict[Source, EpochEnd]:
        """Return where epochs of leaders end."""


@dataclass(frozen=True)
class CommittedPart:
    """A part as the table has it, and what Kafka holds of it."""

    part: TopicPartition
    frontier: int
    mark: LogMark
    held: LogRange
    predecessors: Sequence[TopicPartition] = ()  # the part in earlier incarnations of the same id, newest first

    @property
    def source(self) -> Source:
        """Topic and partition."""
        return self.part.topic, self.part.partition

    @property
    def is_held(self) -> bool:
        """Whether the log holds the offset before the frontier."""
        return self.held.earliest < self.frontier <= self.held.end


Judgement = Continues | Unproven | Diverges
Diverging = dict[TopicPartition, tuple[CommittedPart, Diverges]]


def committed_parts(snapshot: PipelineSnapshot, log_ranges: Mapping[TopicPartition, LogRange]) -> list[CommittedPart]:
    """Return the parts that the table has a mark of. `log_ranges`: what Kafka holds of them."""
    parts = list[CommittedPart]()
    ids = snapshot.incarnations()
    for part, log_range in log_ranges.items():
        frontier, mark = snapshot.frontier(part), snapshot.mark(part)
        if frontier is not None and mark is not None:
            parts.append(CommittedPart(part, frontier, mark, log_range, predecessors_of(part, ids)))
    return parts


@dataclass(frozen=True)
class LogCheck:
    """Compares the logs of a pipeline's topics with the table's marks. `entries` reads the table's log."""

    pipeline: str
    logs: LogQuestions
    entries: Callable[[], Entries]

    def judge(self, parts: Sequence[CommittedPart], topic_ids: Mapping[str, str]) -> dict[TopicPartition, Judgement]:
        """Compare logs at their frontiers. `topic_ids`: as Kafka's tools write them. Raises ReadFailed.

        Of brokers that know no such questions, and of logs in an older format, nothing is known.
        """
        if not parts:
            return {}
        try:
            # Some servers of Kafka's protocol write no epoch: a leader answers -1 as of one that it does not know.
            epochs = {part.source: part.mark.leader_epoch for part in parts if part.mark.leader_epoch >= 0}
            ends = self.logs.epoch_ends(epochs) if epochs else {}
            frontiers = {part.source: part.frontier for part in parts if part.is_held}
            marks = self.logs.marks_before(frontiers, native_kafka.topic_ids(topic_ids)) if frontiers else {}
        except (UnsupportedBroker, OldRecordFormat) as error:
            logging.warning("log_not_compared", pipeline=self.pipeline, reason=str(error))
            return {part.part: Unproven(str(error)) for part in parts}
        return {
            part.part: judge(
                part.frontier, part.held.earliest, part.mark, marks.get(part.source), ends.get(part.source)
            )
            for part in parts
        }

    def diverging(
        self,
        snapshot: PipelineSnapshot,
        log_ranges: Mapping[TopicPartition, LogRange],
        topic_ids: Mapping[str, str],
    ) -> Diverging:
        """Return the parts whose log is not the one that the table was filled from. Raises ReadFailed."""
        parts = committed_parts(snapshot, log_ranges)
        judgements = self.judge(parts, topic_ids)
        judged = ((part, judgements[part.part]) for part in parts)
        return {part.part: (part, judgement) for part, judgement in judged if isinstance(judgement, Diverges)}

    def points(
        self, diverging: Diverging, topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, DivergencePoint | None]:
        """Find where each log diverges, by the marks of earlier commits. None: nothing says it. Raises ReadFailed."""
        entries = self.entries()
        points = dict[TopicPartition, DivergencePoint | None]()
        for part, (committed, diverges) in diverging.items():
            history = history_of(entries, self.pipeline, part, committed.frontier, committed.predecessors)
            sound = self._newest_sound(committed, diverges, history, native_kafka.topic_ids(topic_ids))
            log_range = committed.held
            points[part] = divergence_point(diverges, history, sound, log_range.earliest, log_range.end, committed.mark)
        return points

    def _newest_sound(
        self, committed: CommittedPart, diverges: Diverges, history: PartHistory, topic_ids: Mapping[str, UUID]
    ) -> SoundEnd | None:
        """Find the newest earlier commit before whose end the log has the same batch.

        Before a divergence all commits are sound, behind it none is. So it looks back in steps that double, to the
        first that is sound, and halves the last step. One whose batch compaction removed is none to go by.
        """
        log_range, source = committed.held, committed.source
        ends = [end for end in candidates(history, diverges, log_range.earliest) if end.offset <= log_range.end]
        marks = dict[int, LogMark | None]()

        def is_sound(index: int) -> bool:
            mark = self.logs.marks_before({source: ends[index].offset}, topic_ids).get(source)
            marks[index] = mark
            return mark is not None and mark.continues(ends[index].mark)

        unsound = -1
        sound = 0
        while sound < len(ends) and not is_sound(sound):
            unsound = sound
            sound = 2 * sound + 1
        sound = min(len(ends), sound)
        while sound - unsound > 1:
            middle = (sound + unsound) // 2
            if is_sound(middle):
                sound = middle
            else:
                unsound = middle
        if sound == len(ends):
            return None
        is_newest = all(index in marks and marks[index] is None for index in range(sound))
        return SoundEnd(ends[sound], is_newest)


class LogWatch:
    """Compares logs while a pipeline runs, once the leader of a partition is another one, or came again."""

    def __init__(
        self,
        check: LogCheck,
        cluster: Cluster,
        snapshot: Callable[[], PipelineSnapshot],
        topic_ids: Mapping[str, str],
        numbers: Mapping[str, int],
    ) -> None:
        """`snapshot` reads the table. `topic_ids`, `numbers`: of the incarnations that the pipeline reads, by topic."""
        self._check, self._cluster, self._snapshot = check, cluster, snapshot
        self._topic_ids, self._numbers = topic_ids, numbers
        self._epochs: Mapping[Source, int] | None = None  # of leaders, when logs were compared last

    def broken(self) -> str:
        """Return why a log is not the one that the table was filled from; empty while all are.

        Raises ReadFailed, BrokerUnreachable, CommitFailed.
        """
        epochs = self._check.logs.leader_epochs(native_kafka.topic_ids(self._topic_ids))
        before, changed = self._epochs, set[Source]()
        if before is not None:
            changed = {source for source, epoch in epochs.items() if before.get(source) != epoch}
        if changed and (diverging := self._diverging(changed)):
            return f"the log of {min(diverging).name} was cut below what was read of it"
        self._epochs = epochs
        return ""

    def _diverging(self, sources: Iterable[Source]) -> Diverging:
        """Compare the logs of some partitions."""
        snapshot = self._snapshot()
        parts = {source: TopicPartition(source[0], self._numbers[source[0]], source[1]) for source in sources}
        earliest, ends = self._cluster.earliest(parts), self._cluster.latest(parts)
        log_ranges = {part: LogRange(earliest[source], ends[source]) for source, part in parts.items()}
        return self._check.diverging(snapshot, log_ranges, self._topic_ids)


def log_check(pipeline: str, kafka: Kafka, entries: Callable[[], Entries]) -> LogCheck:
    """Return what compares the logs of a cluster with a table's marks. `entries` reads the table's log."""
    return LogCheck(pipeline, LogMarks(native_kafka.address(kafka), native_kafka.limits(kafka, 1)), entries)
