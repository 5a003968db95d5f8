"""Slices of a gap: each offset once, none outside, about as many as asked for, and older ones first."""

from collections import Counter

from hypothesis import given, strategies as st

from headrace.recovery.backfill.read_order import cut_into_chunks, cut_into_slices
from headrace.recovery.backfill.source_factory import mirror_segments
from headrace.writer.core.offsets import OffsetRange, TopicPartition, subtract_spans

PARTS = [TopicPartition("t", 1, p) for p in range(3)]


@st.composite
def cases(draw):
    wanted = []
    for part in PARTS:
        at = draw(st.integers(0, 50))
        for _ in range(draw(st.integers(0, 3))):
            end = at + draw(st.integers(1, 60))
            wanted.append(OffsetRange(part, at, end))
            at = end + draw(st.integers(1, 20))
    marks = []
    for _ in range(draw(st.integers(0, 6))):
        before = marks[-1] if marks else dict.fromkeys(PARTS, 0)
        marks.append({part: before[part] + draw(st.integers(0, 60)) for part in PARTS})
    return wanted, marks, draw(st.integers(1, 80))


def _each(chunks):
    return Counter((r.part, at) for chunk in chunks for r in chunk for at in range(r.start, r.end))


@given(cases())
def test_each_offset_is_in_one_chunk_and_a_part_has_one_range_in_each(case):
    wanted, marks, rows_max = case
    chunks = cut_into_chunks(wanted, marks, rows_max)
    assert _each(chunks) == _each([wanted])
    for chunk in chunks:
        parts = [r.part for r in chunk]
        assert len(parts) == len(set(parts))
        assert sum(r.end - r.start for r in chunk) <= rows_max + len(PARTS) * 3


@given(cases())
def test_offsets_before_a_mark_come_in_earlier_slices_than_those_after_it(case):
    wanted, marks, _ = case
    chunks = cut_into_chunks(wanted, marks, 1)  # no two windows share a chunk
    for mark in marks:
        sides = [[at < mark[r.part] for r in chunk for at in range(r.start, r.end)] for chunk in chunks]
        flat = [side for chunk in sides for side in chunk]
        assert flat == sorted(flat, reverse=True)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda s: (min(s), max(s))), max_size=5)


@given(SPANS, SPANS)
def test_spans_without_others_hold_exactly_the_remaining_offsets(spans, taken):
    offsets = {at for start, end in spans for at in range(start, end)}
    gone = {at for start, end in taken for at in range(start, end)}
    assert {at for start, end in subtract_spans(spans, taken) for at in range(start, end)} == offsets - gone


@given(st.integers(0, 100), st.integers(1, 100), st.dictionaries(st.integers(0, 200), st.integers(0, 300), min_size=1))
def test_pairs_of_a_mirror_map_each_offset_once_and_none_below_its_beginning(start, size, pairs):
    r = OffsetRange(PARTS[0], start, start + size)
    found = mirror_segments([r], [f"0:{here}={there}" for here, there in pairs.items()], "copy")
    seen = Counter(at for s in found for at in range(s.range.start, s.range.end))
    assert all(count == 1 and r.start <= at < r.end for at, count in seen.items())
    assert all(s.range.start + s.shift >= 0 and s.source == ("copy", 0) for s in found)


@given(cases(), st.integers(1, 9))
def test_slices_have_each_offset_once_equal_shares_of_each_range_and_rise_with_their_number(case, count):
    wanted, _, _ = case
    slices = cut_into_slices(wanted, count)
    assert _each(slices) == _each([wanted])
    assert len(slices) <= count
    for r in wanted:
        shares = [other for part in slices for other in part if other.part == r.part and r.has_offset(other.start)]
        assert shares == sorted(shares, key=lambda share: share.start)
        assert max(share.count for share in shares) - min(share.count for share in shares) <= 1
