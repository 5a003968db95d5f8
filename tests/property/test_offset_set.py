"""A set of offsets behaves as a plain Python set of the offsets of each part."""

import json

import numpy as np
from hypothesis import given, strategies as st

from headrace.writer.core.offsets import OffsetRange, OffsetSet, TopicPartition, cut_ranges
from headrace.writer.table.row_removal import mask_spans, spans_of

OFFSETS_MAX = 24
PARTS = [TopicPartition("clicks", 1, 0), TopicPartition("clicks", 2, 0), TopicPartition("orders", 1, 7)]
Offset = tuple[TopicPartition, int]


@st.composite
def offset_ranges(draw: st.DrawFn) -> OffsetRange:
    """Draw a range, which may be empty."""
    start = draw(st.integers(0, OFFSETS_MAX))
    return OffsetRange(draw(st.sampled_from(PARTS)), start, draw(st.integers(start, OFFSETS_MAX)))


range_lists = st.lists(offset_ranges(), max_size=8)


def offsets_of(ranges: list[OffsetRange]) -> set[Offset]:
    """Return each offset of ranges."""
    return {(r.part, offset) for r in ranges for offset in range(r.start, r.end)}


@given(range_lists)
def test_a_set_has_the_offsets_of_its_ranges_in_the_fewest_ranges(ranges: list[OffsetRange]) -> None:
    offsets = OffsetSet.of(ranges)
    expected = offsets_of(ranges)
    run_starts = [(part, offset) for part, offset in expected if (part, offset - 1) not in expected]

    assert offsets_of(offsets.ranges()) == expected
    assert offsets.count == len(expected)
    assert bool(offsets) == bool(expected)
    assert set(offsets) == {part for part, _ in expected}
    assert sorted((r.part, r.start) for r in offsets.ranges()) == sorted(run_starts)


@given(range_lists, range_lists)
def test_union_difference_and_intersection_are_those_of_plain_sets(
    left: list[OffsetRange], right: list[OffsetRange]
) -> None:
    left_offsets = OffsetSet.of(left)
    right_offsets = OffsetSet.of(right)

    assert offsets_of((left_offsets | right_offsets).ranges()) == offsets_of(left) | offsets_of(right)
    assert offsets_of((left_offsets - right_offsets).ranges()) == offsets_of(left) - offsets_of(right)
    assert offsets_of((left_offsets & right_offsets).ranges()) == offsets_of(left) & offsets_of(right)
    assert (left_offsets == right_offsets) == (offsets_of(left) == offsets_of(right))


@given(st.lists(range_lists, max_size=4))
def test_a_union_of_many_is_that_of_plain_sets(many: list[list[OffsetRange]]) -> None:
    union = OffsetSet.union(map(OffsetSet.of, many))

    assert offsets_of(union.ranges()) == set().union(*map(offsets_of, many))


@given(range_lists)
def test_json_and_the_order_of_ranges_change_nothing(ranges: list[OffsetRange]) -> None:
    offsets = OffsetSet.of(ranges)

    assert OffsetSet.from_json(json.loads(json.dumps(offsets.to_json()))) == offsets
    assert OffsetSet.of(reversed(ranges)) == offsets


@given(offset_ranges(), st.integers(0, OFFSETS_MAX), st.integers(0, OFFSETS_MAX))
def test_a_clipped_range_holds_what_lies_within(offset_range: OffsetRange, start: int, end: int) -> None:
    clip = offset_range.clip((start, end))

    assert offsets_of([clip]) == {
        (part, offset) for part, offset in offsets_of([offset_range]) if start <= offset < end
    }


def test_its_json_names_each_part_once_in_the_order_in_which_parts_came() -> None:
    last, _, first = PARTS
    offsets = OffsetSet.of([OffsetRange(first, 5, 9), OffsetRange(last, 0, 2), OffsetRange(first, 9, 10)])

    assert offsets.to_json() == [["orders", 1, 7, [[5, 10]]], ["clicks", 1, 0, [[0, 2]]]]


@given(range_lists, st.integers(1, OFFSETS_MAX))
def test_ranges_are_cut_into_full_groups_in_their_order(ranges: list[OffsetRange], size: int) -> None:
    groups = cut_ranges(ranges, size)

    pieces = [(r.part, offset) for group in groups for r in group for offset in range(r.start, r.end)]
    assert pieces == [(r.part, offset) for r in ranges for offset in range(r.start, r.end)]
    assert all(sum(r.count for r in group) == size for group in groups[:-1])
    assert all(0 < sum(r.count for r in group) <= size for group in groups)


@given(range_lists)
def test_masks_and_spans_of_arrays_are_those_of_plain_sets(ranges: list[OffsetRange]) -> None:
    part = PARTS[0]
    spans = OffsetSet.of(ranges).get(part, ())
    expected = {offset for p, offset in offsets_of(ranges) if p == part}
    offsets = np.arange(OFFSETS_MAX)[::-1]

    mask = mask_spans(offsets, spans)
    assert {int(offset) for offset in offsets[mask]} == expected
    assert spans_of(offsets[mask]) == list(spans)
