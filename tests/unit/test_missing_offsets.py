"""Offsets that gave no record, and whether the broker holds one there."""

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.writer.batch.skip import _offset_spans
from headrace.writer.batch.task_report import SPANS_MAX, Counts, Report
from headrace.writer.commit import missing_offsets
from headrace.writer.commit.missing_offsets import ASKED_MAX, NONE_HELD, TOO_MANY, MissingOffsets, RecordsMissed
from headrace.writer.core.offsets import TopicPartition, merge_spans, subtract_spans

PART = TopicPartition("clicks", 1, 0)
SOURCE = ("clicks", 0)
OFFSETS = st.sets(st.integers(0, 60), max_size=50)


def without_records(start: int, end: int, counts: Counts) -> MissingOffsets | None:
    return missing_offsets.without_records(SOURCE, [(start, end)], Report(counts={SOURCE: counts}))


def counted(offsets: list[int]) -> Counts:
    counts = Counts(read=len(offsets))
    if offsets:
        counts.add_spans(_offset_spans(pa.chunked_array([offsets], pa.int64())))
    return counts


@given(OFFSETS)
def test_spans_are_the_offsets_and_gaps_are_the_others(offsets):
    shuffled = sorted(offsets, key=lambda at: at * 7919 % 61)
    counts = counted(shuffled)
    inside = [at for start, end in counts.spans for at in range(start, end)]
    assert inside == sorted(offsets)
    outside = [at for start, end in subtract_spans([(0, 61)], counts.spans) for at in range(start, end)]
    assert outside == sorted(set(range(61)) - offsets)


@given(OFFSETS, OFFSETS)
def test_the_spans_of_two_tasks_are_those_of_one(left, right):
    both = counted(sorted(left)).plus(counted(sorted(right - left)))
    assert both.spans == counted(sorted(left | right)).spans == merge_spans(both.spans)


def test_a_range_without_missing_offsets_has_none():
    assert without_records(5, 9, counted([5, 6, 7, 8])) is None


def test_holes_are_named_and_their_cause_is_said():
    found = without_records(0, 10, counted([1, 2, 5, 6]))
    assert found == MissingOffsets(SOURCE, 6, ((0, 1), (3, 5), (7, 10)), is_complete=True)
    assert found.to_dict() == {"offsets": 6, "reason": NONE_HELD, "spans": [[0, 1], [3, 5], [7, 10]]}


def test_a_log_full_of_missing_offsets_is_counted_and_not_looked_up():
    offsets = list(range(0, 4 * SPANS_MAX, 2))
    found = without_records(0, 4 * SPANS_MAX, counted(offsets))
    assert (found.offsets, found.is_complete) == (2 * SPANS_MAX, False)
    assert found.to_dict() == {"offsets": 2 * SPANS_MAX, "reason": TOO_MANY, "spans": []}
    assert missing_offsets.choose_questions([found]) == []


def test_more_records_than_offsets_are_a_bug():
    with pytest.raises(AssertionError, match="5 records were read from 4 offsets"):
        without_records(0, 4, Counts(read=5))
    with pytest.raises(AssertionError, match="1 offsets gave no record, but 2 were not seen"):
        without_records(0, 4, Counts(read=3, spans=[(0, 2)]))


def test_the_broker_is_asked_about_all_missing_offsets_or_some_from_everywhere():
    few = MissingOffsets(SOURCE, 2, ((3, 4), (8, 9)), is_complete=True)
    assert missing_offsets.choose_questions([few]) == [(SOURCE, (3, 4)), (SOURCE, (8, 9))]
    many = MissingOffsets(SOURCE, 1000, tuple((2 * i, 2 * i + 1) for i in range(1000)), is_complete=True)
    asked = missing_offsets.choose_questions([many])
    assert len(set(asked)) == ASKED_MAX
    assert asked[-1][1][0] > 1900


def test_a_record_at_a_missing_offset_stops_the_batch():
    missing_offsets.check_answers({(SOURCE, (3, 5)): 5, (SOURCE, (8, 9)): None})
    with pytest.raises(RecordsMissed, match=r"offset 4 of clicks/0, but the batch read none of \[3, 5\)"):
        missing_offsets.check_answers({(SOURCE, (3, 5)): 4, (SOURCE, (8, 9)): None})
