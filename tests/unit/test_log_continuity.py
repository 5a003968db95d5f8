"""What is decided of a log that may have been cut: from marks, from leaders' answers, from earlier commits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headrace.writer.batch.task_report import RangeRead, Report
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.requests.epoch_ends import EpochEnd
from headrace.writer.offsets.log_continuity import (
    Continues,
    DivergencePoint,
    Diverges,
    EarlierCommit,
    PartHistory,
    SoundCommit,
    Unproven,
    candidate_commits,
    divergence_point,
    find_break,
    judge,
    last_marks,
    read_part_history,
)
from headrace.writer.table.log.snapshot import NO_MARK, app_id, mark_names

KNOWN = LogMark(5, 77 << 32 | 11)
OTHER_RECORDS = LogMark(5, 77 << 32 | 12)
OTHER_SHAPE = LogMark(5, 78 << 32 | 11)
OTHER_EPOCH = LogMark(6, 77 << 32 | 11)
COMPACTED = LogMark(5, 77 << 32 | 12, is_compacted=True)
PART = TopicPartition("clicks", 1, 0)


def end(epoch: int, offset: int) -> EpochEnd:
    return EpochEnd(0, epoch, offset)


@pytest.mark.parametrize(("there", "answer", "decision"), [
    # The same log, with the leader's epoch of then or newer ones behind it.
    (KNOWN, end(5, 1_000), Continues()), (KNOWN, end(5, 1_900), Continues()), (KNOWN, None, Continues()),
    (COMPACTED, end(5, 1_000), Continues()),
    # Cut below, at and above the frontier under a new epoch.
    (OTHER_EPOCH, end(5, 700), Diverges(700, 700)), (None, end(5, 999), Diverges(999, 999)),
    (None, end(5, 0), Diverges(0, 0)), (KNOWN, end(5, 1_001), Continues()),
    # The epoch is not the leader's: an older one ends before, or all of its are older.
    (OTHER_EPOCH, end(3, 700), Diverges(700)), (OTHER_EPOCH, end(-1, -1), Diverges(1_000)),
    (None, end(-1, -1), Diverges(1_000)), (OTHER_EPOCH, end(3, 1_000), Diverges(999)),
    # A restored volume repeats its epochs.
    (OTHER_RECORDS, end(5, 1_900), Diverges(999)), (OTHER_SHAPE, end(5, 1_900), Diverges(999)),
    (OTHER_SHAPE, None, Diverges(999)),
    # An epoch that was compacted away before the leader copied the log.
    (None, end(3, 1_000), Unproven("compaction removed the record before the frontier")),
    (None, end(5, 1_000), Unproven("compaction removed the record before the frontier")),
])  # fmt: skip
def test_a_log_is_judged_by_its_batch_before_the_frontier_and_by_the_end_of_its_epoch(
    there: LogMark | None, answer: EpochEnd | None, decision: object
) -> None:
    assert judge(1_000, 0, KNOWN, there, answer) == decision


def test_continuity_is_unproven_without_a_mark_and_behind_retention() -> None:
    assert judge(1_000, 0, None, KNOWN, end(5, 10)) == Unproven("the table does not say what the log was known by")
    gone = Unproven("Kafka no longer holds the record before the frontier")
    assert judge(1_000, 1_000, KNOWN, None, end(5, 1_000)) == gone
    assert judge(1_000, 1_500, KNOWN, None, end(5, 1_500)) == gone
    assert judge(1_000, 1_000, KNOWN, None, end(-1, -1)) == Diverges(1_000)


EARLIER = [EarlierCommit(900, LogMark(5, 9)), EarlierCommit(600, LogMark(5, 6)), EarlierCommit(300, LogMark(4, 3))]
HISTORY = PartHistory(EARLIER, 0)


NEWEST = [SoundCommit(end, is_newest=True) for end in EARLIER]


@pytest.mark.parametrize(("diverges", "sound", "point"), [
    # The epoch's end is exact where the newest commit of the same epoch below it is sound.
    (Diverges(700, 700), NEWEST[1], DivergencePoint(700, is_proven=True)),
    (Diverges(700, 700), NEWEST[2], DivergencePoint(300, is_proven=False)),
    # A volume that took records under the epoch of before: a newer commit below the end is another batch.
    (Diverges(950, 950), SoundCommit(EARLIER[1], is_newest=False), DivergencePoint(600, is_proven=False)),
    (Diverges(700), NEWEST[1], DivergencePoint(600, is_proven=False)),
    (Diverges(999), NEWEST[0], DivergencePoint(900, is_proven=False)),
    (Diverges(999), None, DivergencePoint(0, is_proven=False)),
])  # fmt: skip
def test_a_divergence_lies_where_the_epoch_ends_or_behind_the_last_commit_that_is_sound(
    diverges: Diverges, sound: SoundCommit | None, point: DivergencePoint
) -> None:
    assert divergence_point(diverges, HISTORY, sound, 0, 2_000, KNOWN) == point


def test_a_log_that_ends_before_is_read_on_where_it_ends() -> None:
    unproven = DivergencePoint(500, is_proven=False)
    assert divergence_point(Diverges(700, 700), HISTORY, NEWEST[1], 0, 500, KNOWN) == unproven
    whole_part = DivergencePoint(50, is_proven=False)
    assert divergence_point(Diverges(700), PartHistory(EARLIER, 80), None, 100, 50, KNOWN) == whole_part


def test_without_a_sound_commit_and_without_the_part_s_beginning_nothing_says_where() -> None:
    assert divergence_point(Diverges(999), PartHistory(EARLIER, None), None, 0, 2_000, KNOWN) is None
    assert divergence_point(Diverges(999), PartHistory(EARLIER, 50), None, 0, 2_000, KNOWN) is None


@pytest.mark.parametrize("diverges", [Diverges(999), Diverges(700), Diverges(700, 700)])
def test_without_a_sound_commit_the_loss_to_retention_counts_from_the_start_of_the_partition(
    diverges: Diverges,
) -> None:
    from_its_beginning = DivergencePoint(50, is_proven=False)
    assert divergence_point(diverges, PartHistory(EARLIER, 50), None, 600, 2_000, KNOWN) == from_its_beginning


def test_candidates_are_the_commits_that_kafka_holds_below_the_divergence() -> None:
    assert candidate_commits(HISTORY, Diverges(700), 0) == EARLIER[1:]
    assert candidate_commits(HISTORY, Diverges(999), 300) == EARLIER[:2]


def entry(kind: str, frontier: int | None, mark: LogMark | None = None, part: TopicPartition = PART) -> list[Any]:
    values = {} if frontier is None else {app_id("events", part): frontier}
    if mark is not None:
        values |= dict(zip(mark_names("events", part), mark[:2], strict=True))
    txns = [{"txn": {"appId": name, "version": value}} for name, value in values.items()]
    return [{"commitInfo": {"headrace": f'{{"kind": "{kind}"}}'}}, *txns]


def history(*entries: list[Any], frontier: int, part: TopicPartition = PART) -> PartHistory:
    predecessors = [replace(part, incarnation=number) for number in range(part.incarnation - 1, 0, -1)]
    return read_part_history(list(enumerate(entries)), "events", part, frontier, predecessors)


def test_a_history_has_the_ends_of_commits_and_where_the_part_began() -> None:
    marks = [LogMark(1, n) for n in range(4)]
    found = history(
        entry("start", 10), entry("batch", 20, marks[1]), entry("seal", None), entry("batch", 30, marks[2]),
        entry("batch", 35, part=TopicPartition("clicks", 2, 0)), entry("batch", 40, marks[3]), frontier=40,
    )  # fmt: skip
    assert found == PartHistory((EarlierCommit(30, marks[2]), EarlierCommit(20, marks[1])), 10)


def test_a_history_passes_over_gaps_commits_without_a_mark_and_what_a_rewind_took_back() -> None:
    marks = [LogMark(1, n) for n in range(9)]
    found = history(
        entry("batch", 20, marks[1]), entry("batch", 50, marks[2]), entry("batch", 90, marks[3]),
        entry("rewind", 20, marks[1]), entry("batch", 30, marks[4]), entry("gap", 45), entry("batch", 60),
        entry("batch", 70, LogMark(NO_MARK, NO_MARK)), entry("batch", 80, marks[5]), frontier=80,
    )  # fmt: skip
    assert found == PartHistory((EarlierCommit(30, marks[4]), EarlierCommit(20, marks[1])), None)


NEXT = replace(PART, incarnation=2)
LATER = replace(PART, incarnation=3)


def test_a_history_follows_a_part_that_went_on_uncut_into_the_incarnation_before() -> None:
    marks = [LogMark(1, n) for n in range(5)]
    known = history(
        entry("start", 10), entry("batch", 20, marks[1]), entry("batch", 30, marks[2]),
        entry("start", 30, marks[2], NEXT), entry("batch", 40, marks[3], NEXT), frontier=40, part=NEXT,
    )  # fmt: skip
    assert known == PartHistory((EarlierCommit(30, marks[2]), EarlierCommit(20, marks[1])), 10)
    at_once = history(entry("start", 10), entry("batch", 20, marks[1]), entry("batch", 30, marks[2]),
                      entry("start", 30, marks[2], NEXT), entry("start", 30, marks[2], LATER),
                      frontier=30, part=LATER)  # fmt: skip
    assert at_once == PartHistory((EarlierCommit(20, marks[1]),), 10)


def test_a_history_has_of_the_incarnation_before_what_lies_below_the_cut() -> None:
    marks = [LogMark(1, n) for n in range(5)]
    known = history(
        entry("start", 0), entry("batch", 20, marks[1]), entry("batch", 30, marks[2]), entry("batch", 40, marks[3]),
        entry("start", 30, part=NEXT), entry("batch", 50, marks[4], NEXT), entry("batch", 60, part=NEXT), frontier=60,
        part=NEXT,
    )  # fmt: skip
    assert known.commits == (EarlierCommit(50, marks[4]), EarlierCommit(30, marks[2]), EarlierCommit(20, marks[1]))
    assert known.begin == 0


@pytest.mark.parametrize(("entries", "begin"), [
    # An adoption says nothing of the records before; a further partition begins with its first record; the entries
    # of the incarnation before are gone.
    ([entry("start", 0), entry("batch", 20, KNOWN), entry("adopt", 30, part=NEXT)], 30),
    ([entry("start", 0, part=NEXT)], 0),
    ([entry("start", 30, part=NEXT)], None),
])  # fmt: skip
def test_a_history_ends_where_nothing_is_known_of_the_incarnation_before(
    entries: Sequence[list[Any]], begin: int | None
) -> None:
    assert history(*entries, entry("batch", 50, KNOWN, NEXT), frontier=50, part=NEXT) == PartHistory((), begin)


def read(start: int, stop: int, before: LogMark | None, last: LogMark | None, partition: int = 0) -> RangeRead:
    return RangeRead(OffsetRange(TopicPartition("clicks", 1, partition), start, stop), stop - start, {}, before, last)


A, B, C, D = (LogMark(1, n << 32) for n in range(4))


@pytest.mark.parametrize(("ranges", "why"), [
    ([read(10, 20, A, B)], ""),
    ([read(10, 20, B, C)], "the log of clicks/0 has other records before offset 10"),
    ([read(20, 30, B, C), read(10, 20, A, B)], ""),
    ([read(20, 30, D, C), read(10, 20, A, B)], "the log of clicks/0 has other records before offset 20"),
    ([read(10, 20, None, B), read(20, 30, None, C)], ""),
    ([read(10, 20, A, None), read(20, 30, B, C)], ""),
    ([read(10, 20, A, B), read(10, 20, D, C, partition=1)], ""),
])  # fmt: skip
def test_ranges_continue_the_table_and_each_other(ranges: Sequence[RangeRead], why: str) -> None:
    found = find_break(ranges, {("clicks", 0): A})
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_the_marks_of_a_batch_are_those_of_the_last_ranges() -> None:
    ranges = [read(20, 30, B, C), read(10, 20, A, B), read(5, 9, None, D, partition=1)]
    assert last_marks(ranges) == {("clicks", 0): C, ("clicks", 1): D}
    assert last_marks([read(20, 30, B, None), read(10, 20, A, B)]) == {}


def test_a_report_carries_marks() -> None:
    report = Report(ranges_read=[read(10, 20, None, LogMark(3, 2**62 + 1, is_compacted=True))])
    assert Report.from_json(report.to_json()).ranges_read == report.ranges_read
