"""Asks Kafka whether its logs still are those that the table was filled from, and where they ceased to be."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from headrace.writer.clients import native_kafka
from headrace.writer.clients.kafka import Cluster
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core import logging
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.kafka_reader.errors import OldRecordFormat, UnsupportedBroker
from headrace.writer.kafka_reader.log_marks import LogMarks
from headrace.writer.kafka_reader.requests.epoch_ends import EpochEnd
from headrace.writer.offsets.log_continuity import (
    Continues,
    DivergencePoint,
    Diverges,
    PartHistory,
    SoundCommit,
    Unproven,
    candidate_commits,
    divergence_point,
    judge,
    read_part_history,
)
from headrace.writer.offsets.start_decision import LogRange, predecessors_of
from headrace.writer.table.log.log import Action
from headrace.writer.table.log.snapshot import PipelineSnapshot

Entries = Sequence[tuple[int, Sequence[Action]]]


class LogQuestions(Protocol):
    """What is asked of leaders. Each raises ReadFailed; `headrace.writer.kafka_reader.log_marks` asks real ones."""

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
    log_range: LogRange
    # The part in earlier incarnations of the same id, newest first.
    predecessors: Sequence[TopicPartition] = ()

    @property
    def source(self) -> Source:
        """Topic and partition."""
        return self.part.source

    @property
    def holds_frontier(self) -> bool:
        """Whether the log holds the offset before the frontier."""
        return self.log_range.earliest < self.frontier <= self.log_range.end


Judgement = Continues | Unproven | Diverges
Diverging = dict[TopicPartition, tuple[CommittedPart, Diverges]]


def committed_parts(snapshot: PipelineSnapshot, log_ranges: Mapping[TopicPartition, LogRange]) -> list[CommittedPart]:
    """Return the parts that the table has a mark of. `log_ranges`: what Kafka holds of them."""
    parts = list[CommittedPart]()
    ids = snapshot.incarnations()
    for part, log_range in log_ranges.items():
        frontier = snapshot.frontier(part)
        mark = snapshot.mark(part)
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
            frontiers = {part.source: part.frontier for part in parts if part.holds_frontier}
            marks = self.logs.marks_before(frontiers, native_kafka.topic_ids(topic_ids)) if frontiers else {}
        except (UnsupportedBroker, OldRecordFormat) as error:
            logging.warning("log_not_compared", pipeline=self.pipeline, reason=str(error))
            return {part.part: Unproven(str(error)) for part in parts}
        return {
            part.part: judge(
                part.frontier, part.log_range.earliest, part.mark, marks.get(part.source), ends.get(part.source)
            )
            for part in parts
        }

    def diverging_parts(
        self,
        snapshot: PipelineSnapshot,
        log_ranges: Mapping[TopicPartition, LogRange],
        topic_ids: Mapping[str, str],
    ) -> Diverging:
        """Return the parts whose log is not the one that the table was filled from. Raises ReadFailed."""
        parts = committed_parts(snapshot, log_ranges)
        judgements = self.judge(parts, topic_ids)
        diverging: Diverging = {}
        for part in parts:
            judgement = judgements[part.part]
            if isinstance(judgement, Diverges):
                diverging[part.part] = (part, judgement)
        return diverging

    def divergence_points(
        self, diverging_parts: Diverging, topic_ids: Mapping[str, str]
    ) -> dict[TopicPartition, DivergencePoint | None]:
        """Find where each log diverges, by the marks of earlier commits. None: nothing says it. Raises ReadFailed."""
        entries = self.entries()
        divergence_points = dict[TopicPartition, DivergencePoint | None]()
        for part, (committed, diverges) in diverging_parts.items():
            history = read_part_history(entries, self.pipeline, part, committed.frontier, committed.predecessors)
            sound = self._find_sound_commit(committed, diverges, history, native_kafka.topic_ids(topic_ids))
            log_range = committed.log_range
            divergence_points[part] = divergence_point(
                diverges, history, sound, log_range.earliest, log_range.end, committed.mark
            )
        return divergence_points

    def _find_sound_commit(
        self, committed: CommittedPart, diverges: Diverges, history: PartHistory, topic_ids: Mapping[str, UUID]
    ) -> SoundCommit | None:
        """Find the newest earlier commit before whose end the log has the same batch.

        Before a divergence all commits are sound, behind it none is. So it looks back in steps that double, to the
        first that is sound, and halves the last step. One whose batch compaction removed is none to go by.
        """
        log_range = committed.log_range
        source = committed.source
        commits = [
            commit
            for commit in candidate_commits(history, diverges, log_range.earliest)
            if commit.offset <= log_range.end
        ]
        marks = dict[int, LogMark | None]()

        def is_sound(index: int) -> bool:
            mark = self.logs.marks_before({source: commits[index].offset}, topic_ids).get(source)
            marks[index] = mark
            return mark is not None and mark.continues(commits[index].mark)

        unsound = -1
        sound = 0
        while sound < len(commits) and not is_sound(sound):
            unsound = sound
            sound = 2 * sound + 1
        sound = min(len(commits), sound)
        while sound - unsound > 1:
            middle = (sound + unsound) // 2
            if is_sound(middle):
                sound = middle
            else:
                unsound = middle
        if sound == len(commits):
            return None
        is_newest = all(index in marks and marks[index] is None for index in range(sound))
        return SoundCommit(commits[sound], is_newest)


class LogWatch:
    """Compares logs while a pipeline runs, each time the leader of a partition changes."""

    def __init__(
        self,
        check: LogCheck,
        cluster: Cluster,
        snapshot: Callable[[], PipelineSnapshot],
        topic_ids: Mapping[str, str],
        numbers: Mapping[str, int],
    ) -> None:
        """`snapshot` reads the table. `topic_ids`, `numbers`: of the incarnations that the pipeline reads, by topic."""
        self._check = check
        self._cluster = cluster
        self._snapshot = snapshot
        self._topic_ids = topic_ids
        self._numbers = numbers
        # Of leaders, when logs were compared last.
        self._epochs: Mapping[Source, int] | None = None

    def divergence(self) -> str:
        """Return why a log is not the one that the table was filled from; empty while all are.

        Raises ReadFailed, BrokerUnreachable, CommitFailed.
        """
        epochs = self._check.logs.leader_epochs(native_kafka.topic_ids(self._topic_ids))
        if self._epochs is not None:
            last_epochs = self._epochs
            changed = {source for source, epoch in epochs.items() if last_epochs.get(source) != epoch}
            diverging = self._compare_partitions(changed) if changed else {}
            if diverging:
                return f"the log of {min(diverging).name} was cut below what was read of it"
        self._epochs = epochs
        return ""

    def _compare_partitions(self, sources: Iterable[Source]) -> Diverging:
        """Compare the logs of some partitions."""
        snapshot = self._snapshot()
        parts = {source: TopicPartition(source[0], self._numbers[source[0]], source[1]) for source in sources}
        return self._check.diverging_parts(snapshot, fetch_log_ranges_of_parts(self._cluster, parts), self._topic_ids)


def fetch_log_ranges(cluster: Cluster, sources: Collection[Source]) -> dict[Source, LogRange]:
    """Ask what Kafka holds of some partitions. Raises BrokerUnreachable."""
    earliest = cluster.earliest(sources)
    ends = cluster.latest(sources)
    return {source: LogRange(earliest[source], ends[source]) for source in sources}


def fetch_log_ranges_of_parts(
    cluster: Cluster, parts: Mapping[Source, TopicPartition]
) -> dict[TopicPartition, LogRange]:
    """Ask what Kafka holds of some parts. Raises BrokerUnreachable."""
    log_ranges = fetch_log_ranges(cluster, parts)
    return {part: log_ranges[source] for source, part in parts.items()}


def log_check(pipeline: str, kafka: Kafka, entries: Callable[[], Entries]) -> LogCheck:
    """Return what compares the logs of a cluster with a table's marks. `entries` reads the table's log."""
    return LogCheck(pipeline, LogMarks(kafka.address, native_kafka.limits(kafka, 1)), entries)
