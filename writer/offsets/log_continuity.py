"""Decides whether Kafka's log still is the one that the table was filled from, and where it ceased to be.

A log that was cut, by an unclean election of a leader or a volume that was restored, and grew again has other records
at the same offsets, under the same topic id. What tells: the batch before the committed offset is another one, or the
leader says that its epoch ends before. Pure; `writer/offsets/log_check.py` asks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from headrace.writer.batch.task_report import RangeRead
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.kafka_reader.requests.epoch_ends import EpochEnd
from headrace.writer.table.log.entries import parse_commit_info
from headrace.writer.table.log.log import Action
from headrace.writer.table.log.snapshot import NO_MARK, app_id, mark_names


@dataclass(frozen=True)
class Continues:
    """The log is the one that was read."""


@dataclass(frozen=True)
class Unproven:
    """There is nothing by which the log could be compared. The reason is a phrase."""

    reason: str


@dataclass(frozen=True)
class Diverges:
    """The log is another one from some offset on."""

    # The offset lies at or below this one.
    below: int
    # Where the epoch of the last record ends in the log, if that is known.
    epoch_end: int | None = None


def judge(
    frontier: int, earliest: int, mark: LogMark | None, mark_now: LogMark | None, epoch_end: EpochEnd | None
) -> Continues | Unproven | Diverges:
    """Compare what a log was known by at the frontier with what it is known by now.

    `earliest`: first offset that the log holds. `mark`: as the table has it; `mark_now`: of the batch that holds the
    offset before the frontier now, None where no batch does. `epoch_end`: of the mark's epoch, as the leader says; None
    where nobody was asked.

    An epoch that the leader does not know, but that ends behind the frontier by what it does know, was compacted away
    as a whole before the leader copied the log: that is no divergence. An epoch that is newer than all of the leader's
    is one.
    """
    if mark is None:
        return Unproven("the table does not say what the log was known by")
    if epoch_end is not None and epoch_end.epoch < 0:
        return Diverges(frontier)
    if epoch_end is not None and epoch_end.offset < frontier:
        return Diverges(epoch_end.offset, epoch_end.offset if epoch_end.epoch == mark.leader_epoch else None)
    if mark_now is not None and mark_now.contradicts(mark):
        return Diverges(frontier - 1)
    if mark_now is not None and mark_now.continues(mark):
        return Continues()
    if mark_now is not None:
        return Unproven(f"the batch that holds offset {frontier - 1} is damaged")
    if frontier - 1 < earliest:
        return Unproven("Kafka no longer holds the record before the frontier")
    return Unproven("compaction removed the record before the frontier")


@dataclass(frozen=True)
class EarlierCommit:
    """Where an earlier commit of a part ends, and what the log was known by there."""

    offset: int
    mark: LogMark


@dataclass(frozen=True)
class SoundCommit:
    """The newest earlier commit before whose end a diverged log still has the same batch.

    `is_newest`: no commit after it ends below the offset that bounds the divergence, but for those whose batch
    compaction removed.
    """

    commit: EarlierCommit
    is_newest: bool


@dataclass(frozen=True)
class PartHistory:
    """What the table's log still says of a part, newest first."""

    commits: Sequence[EarlierCommit] = ()
    # Where the part began; None: that entry is gone.
    begin: int | None = None


def read_part_history(
    entries: Sequence[tuple[int, Sequence[Action]]],
    pipeline: str,
    part: TopicPartition,
    frontier: int,
    predecessors: Sequence[TopicPartition] = (),
) -> PartHistory:
    """Read from a log's entries, oldest first, where commits of a part ended below its frontier.

    `predecessors`: the part in earlier incarnations of the same topic id, newest first. A start began the later one
    where a log was cut: what the earlier one was up to there is of the same log. What a rewind took back is passed
    over: offsets fall from entry to entry.
    """
    commits = list[EarlierCommit]()
    below = frontier
    begin: int | None = None
    for incarnation in (part, *predecessors):
        begin = None
        begin_kind = ""
        for kind, offset, mark in _frontiers(entries, pipeline, incarnation):
            if kind in ("start", "adopt", "take"):
                begin = offset
                begin_kind = kind
            if offset < below and mark is not None:
                commits.append(EarlierCommit(offset, mark))
                below = offset
        # Only a start goes on with the log of an incarnation before; a further partition begins with its first record.
        if not begin or begin_kind != "start":
            break
        below = min(below, begin + 1)
    return PartHistory(tuple(commits), begin)


def _frontiers(
    entries: Sequence[tuple[int, Sequence[Action]]], pipeline: str, part: TopicPartition
) -> Iterator[tuple[str, int, LogMark | None]]:
    """Yield the kind of each entry that sets the frontier of a part, the frontier and the mark, newest first."""
    name = app_id(pipeline, part)
    epoch_name, fingerprint_name = mark_names(pipeline, part)
    for _, actions in reversed(entries):
        values = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if action.get("txn")}
        if name in values:
            fingerprint = values.get(fingerprint_name, NO_MARK)
            mark = None if fingerprint == NO_MARK else LogMark(values[epoch_name], fingerprint)
            yield parse_commit_info(actions)[1].get("kind", ""), values[name], mark


@dataclass(frozen=True)
class DivergencePoint:
    """The offset from which on a log is another one than the table was filled from."""

    offset: int
    # Exactly this one; else the last that is known to lie before it.
    is_proven: bool


def divergence_point(
    diverges: Diverges, history: PartHistory, sound: SoundCommit | None, earliest: int, end: int, mark: LogMark
) -> DivergencePoint | None:
    """Choose where a diverged log is read on; None where the table's log does not reach back far enough to say.

    `sound`: the newest earlier commit before whose end the log has the same batch; None: there is none. `earliest` and
    `end`: what the log holds. `mark`: of the last commit.

    Records of one epoch come from one leader. So where the newest commit below the end of this epoch is sound, and of
    this epoch, the log is the same up to that end. Where a newer one below it is another batch, the epoch was repeated,
    and its end says nothing. Else the log is known to be the same up to the sound commit only; without one, from where
    the part began: records that retention took since are a gap from there.
    """
    if sound is None:
        if history.begin is None or history.begin > earliest:
            return None
        return DivergencePoint(min(history.begin, end, diverges.below), is_proven=False)
    is_of_epoch = sound.is_newest and sound.commit.mark.leader_epoch == mark.leader_epoch
    if diverges.epoch_end is not None and is_of_epoch:
        return DivergencePoint(min(diverges.epoch_end, end), is_proven=diverges.epoch_end <= end)
    return DivergencePoint(min(sound.commit.offset, end), is_proven=False)


def candidate_commits(history: PartHistory, diverges: Diverges, earliest: int) -> list[EarlierCommit]:
    """Return the earlier commits that a divergent log may be the same before, newest first."""
    return [commit for commit in history.commits if earliest < commit.offset <= diverges.below]


def find_break(ranges: Sequence[RangeRead], marks: Mapping[Source, LogMark]) -> str:
    """Return where ranges that tasks read do not continue each other, or the table; empty where they do.

    `marks`: of the logs where the table ends, of the partitions that have one. Ranges that several tasks read must be
    of one log, too: it may have been cut in between.
    """
    in_order = sorted(ranges, key=attrgetter("range.part.source", "range.start"))
    for source, source_ranges in groupby(in_order, attrgetter("range.part.source")):
        mark = marks.get(source)
        for range_read in source_ranges:
            if mark is not None and range_read.before is not None and range_read.before.contradicts(mark):
                return (
                    f"the log of {source[0]}/{source[1]} has other records before offset {range_read.range.start} "
                    "than were read"
                )
            mark = range_read.last
    return ""


def last_marks(ranges: Sequence[RangeRead]) -> dict[Source, LogMark]:
    """Return what the logs are known by at the ends of the ranges, of each partition at the last one."""
    marks = dict[Source, LogMark | None]()
    for range_read in sorted(ranges, key=attrgetter("range.start")):
        marks[range_read.range.part.source] = range_read.last
    return {source: mark for source, mark in marks.items() if mark is not None}
