"""Chapters of a history add up however they are cut, and files are counted as a plain loop counts them."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.audit.offset_count import FileSet, count_file_offsets
from headrace.writer.audit.reconciliation import reconcile
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import OffsetRange, OffsetSet, TopicPartition
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.ledger.segment import (
    CommittedRange,
    CutRange,
    LedgerSegment,
    RewoundRange,
    merge_runs,
    merge_segments,
)
from headrace.writer.table.ledger.segment_reader import read_segments
from headrace.writer.table.ledger.segment_store import LedgerUnreadable, from_json, to_json
from tests.support.example_counts import share
from tests.support.sample_records import GAP_FACTS

AT = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1000)
PARTS = [TopicPartition("a.b", 1, 0), TopicPartition("a.b", 2, 0), TopicPartition("c@x", 1, 7)]


def entry(about, txn=()):
    moved = [
        {"txn": {"appId": f"p/{part.topic}@{part.incarnation}/{part.partition}", "version": at}} for part, at in txn
    ]
    return [{"commitInfo": {"timestamp": AT, "operation": "WRITE", "headrace": json.dumps(about)}}, *moved]


@st.composite
def histories(draw):
    """Entries that add up, and the frontier after them."""
    begins = {part: draw(st.integers(0, 5)) for part in PARTS}
    entries, frontier = [entry({"kind": "start"}, begins.items())], dict(begins)
    dead_letters, waiting = Counter(), []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["batch", "batch", "gap", "fill", "lost", "replay", "start", "foreign"]))
        part = draw(st.sampled_from(PARTS))
        place = {"topic": part.topic, "incarnation": part.incarnation, "partition": part.partition}
        start = frontier[part]
        if kind == "batch":
            sizes = [draw(st.integers(0, 4)) for _ in range(6)]
            rows, tombstones, dead, quarantined, filtered, without_records = sizes
            about = {**place, "start": start, "end": start + sum(sizes), "read": sum(sizes) - without_records,
            "rows": rows,
                     "tombstones": tombstones, "dead_letters": dead, "quarantined": quarantined}  # fmt: skip
            about |= {"filtered": filtered} if filtered else {}
            about |= {"without_records": {"offsets": without_records, "spans": []}} if without_records else {}
            dead_letters[part] += dead
            frontier[part] += sum(sizes)
            rules = {"specs": {"filtered": {"T": {"where": filtered}}}} if filtered else {}
            entries.append(entry({"kind": "batch", "ranges": [about], **rules}, [(part, frontier[part])]))
        elif kind == "gap":
            frontier[part] += draw(st.integers(0, 3))
            skipped = {**place, "start": start, "end": frontier[part]}
            name = f"gap{len(entries)}"
            entries.append(entry({**GAP_FACTS, "kind": "gap", "id": name, "cause": "retention", "ranges": [skipped]}))
            waiting.append((name, part, start, frontier[part]))
        elif kind == "fill" and waiting:
            gap, part, first, end = waiting.pop()
            at = draw(st.integers(first, end))
            without_records = draw(st.integers(0, at - first))
            dead = draw(st.integers(0, at - first - without_records))
            about = {"topic": part.topic, "incarnation": part.incarnation, "partition": part.partition,
                     "spans": [[first, at]] if first < at else [], "read": at - first - without_records,
                     "dead_letters": dead, "rows": at - first - without_records - dead}  # fmt: skip
            about |= {"without_records": {"offsets": without_records, "spans": []}} if without_records else {}
            told = {"gap": gap, "source": "kafka", "left": end - at, "done": at == end, "files": 1}
            dead_letters[part] += dead
            waiting += [(gap, part, at, end)] if at < end else []
            entries.append(entry({"kind": "fill", "ranges": [about], **told}))
        elif kind == "lost" and waiting:
            gap, _, first, end = waiting.pop(0)
            told = {"gap": gap, "by": "somebody", "reason": "nobody has it", "left": end - first}
            entries.append(entry({"kind": "lost", **told}))
        elif kind in ("fill", "lost"):
            pass
        elif kind == "replay":
            moved = draw(st.integers(0, dead_letters[part]))
            dead_letters[part] -= moved
            entries.append(entry({"kind": "replay", "moves": [{**place, "rows": moved, "dead_letters": -moved}]}))
        elif kind == "start":
            entries.append(entry({"kind": "start"}))
        else:
            entries.append([{"commitInfo": {"timestamp": AT, "operation": "OPTIMIZE"}}])
    return list(enumerate(entries)), frontier


def stated(found, frontier, last):
    return reconcile(found, frontier, last, -1)


@given(histories(), st.data())
def test_a_history_adds_up_however_it_is_cut_into_pages(history, data):
    entries, frontier = history
    last = len(entries) - 1
    each = list(read_segments(entries, "p"))
    whole = stated(each, frontier, last)
    assert whole.problems == ()
    cuts = sorted({0, len(each), *data.draw(st.sets(st.integers(0, len(each)), max_size=4))})
    pages = [merge_segments(each[a:b]) for a, b in pairwise(cuts)]
    again = [from_json(json.loads(json.dumps(to_json(page, "p", "id"))), "page") for page in pages]
    assert again == pages
    assert stated(again, frontier, last) == whole
    assert merge_runs(each) == [merge_segments(each)]


@given(histories(), st.data())
def test_a_version_that_is_missing_never_adds_up(history, data):
    entries, frontier = history
    gone = data.draw(st.integers(0, len(entries) - 1))
    left = list(read_segments([one for one in entries if one[0] != gone], "p"))
    assert stated(left, frontier, len(entries) - 1).problems


@given(histories(), st.data())
def test_an_entry_that_lies_about_a_count_is_found(history, data):
    entries, frontier = history
    each = list(read_segments(entries, "p"))
    batches = [i for i, one in enumerate(each) if one.committed_ranges and not one.committed_ranges[0].gap]
    if not batches:
        return
    at = data.draw(st.sampled_from(batches))
    (stretch,) = each[at].committed_ranges
    name = data.draw(st.sampled_from(["read", "rows", "tombstones", "dead_letters", "quarantined", "filtered"]))
    lie = {**stretch.outcomes, name: stretch.outcomes.get(name, 0) + data.draw(st.sampled_from([1, 3]))}
    each[at] = replace(each[at], committed_ranges=(replace(stretch, outcomes=lie),))
    found = stated([merge_segments(each)], frontier, len(entries) - 1)
    assert stretch.range.span in [span for problem in found.problems for span in problem.spans]


def test_a_page_of_another_format_is_refused():
    (one,) = read_segments([(0, entry({"kind": "start"}))], "p")
    page = to_json(one, "p", "id")
    with pytest.raises(LedgerUnreadable, match="has the format 2, this headrace knows"):
        from_json({**page, "format": 2}, "page 0")
    del page["begins"]
    with pytest.raises(LedgerUnreadable, match="is not a page of the ledger"):
        from_json(page, "page 0")


def test_an_entry_of_a_kind_that_a_newer_version_writes_is_strange():
    (one,) = read_segments([(4, entry({"kind": "columns"}))], "p")
    assert one.violations == (), "it moves neither rows nor offsets"
    (one,) = read_segments([(4, entry({"kind": "later"}, [(PARTS[0], 7)]))], "p")
    assert one.violations == ("version 4 is of the kind 'later', which a newer headrace writes",)


def test_an_entry_whose_range_ends_before_it_begins_is_named():
    place = {"topic": "a.b", "incarnation": 1, "partition": 0}
    (segment,) = read_segments([(4, entry({"kind": "batch", "ranges": [{**place, "start": 9, "end": 5}]}))], "p")
    (violation,) = segment.violations
    assert violation.startswith("version 4 says nothing that can be read: ValueError")
    assert "a range needs 0 <= start <= end, got [9, 5)" in violation


def test_a_page_has_the_parts_of_ranges_beside_their_offsets():
    part = PARTS[2]
    offset_range = OffsetRange(part, 5, 9)
    segment = LedgerSegment(
        2,
        7,
        committed_ranges=(CommittedRange(offset_range, 2, 3, {"read": 4, "rows": 4}),),
        rewound_ranges=(RewoundRange(offset_range, 6),),
        cut_ranges=(CutRange(offset_range, 7, 2, is_proven=True),),
    )
    page = to_json(segment, "p", "id")
    place = '"topic": "c@x", "incarnation": 1, "partition": 7}'
    assert json.dumps(page["committed_ranges"]) == (
        '[{"part": null, "start": 5, "end": 9, "first": 2, "last": 3, "outcomes": {"read": 4, "rows": 4}, '
        f'"without_records": 0, "unexplained": 0, "gap": false, "specs": 0, {place}]'
    )
    assert json.dumps(page["backs"]) == f'[{{"version": 6, "start": 5, "end": 9, {place}]'
    assert json.dumps(page["cuts"]) == (
        f'[{{"version": 7, "start": 5, "end": 9, "successor": 2, "is_proven": true, {place}]'
    )
    assert from_json(page, "page 2") == segment


OFFSETS = st.lists(st.tuples(st.sampled_from(PARTS[:2]), st.integers(0, 36)), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share(150))
@given(files=st.lists(OFFSETS, max_size=3), dead_letters=OFFSETS, ends=st.tuples(st.integers(0, 38), st.integers(0,
38)),
       start=st.integers(0, 10), at_once=st.sampled_from([7, 20, 1000]), statistics=st.booleans())  # fmt: skip
def test_files_are_counted_as_a_plain_loop_counts_them(tmp_path, files, dead_letters, ends, start, at_once, statistics):
    file_sets = [
        file_set(tmp_path, "rows", files, statistics=statistics),
        file_set(tmp_path, "letters", [dead_letters], statistics=True),
    ]
    ranges = [OffsetRange(part, min(start, end), end) for part, end in zip(PARTS, ends, strict=False)]
    found = count_file_offsets(file_sets, ranges, OffsetSet(), below_is_known=False, at_once=at_once)
    rows = Counter(one for file in files for one in file)
    all_of_them = rows + Counter(dead_letters)
    for r in ranges:
        part = r.part
        inside = list(range(r.start, r.end))
        there = found[part]
        assert there.rows == sum(rows[part, at] for at in inside)
        assert sum(there.dead_letters.values()) == sum((p, at) in [(part, o) for o in inside] for p, at in dead_letters)
        assert there.distinct == sum(all_of_them[part, at] > 0 for at in inside)
        assert flat(there.nowhere) == {at for at in inside if all_of_them[part, at] == 0}
        assert flat(there.twice) == {at for at in inside if all_of_them[part, at] > 1}
        assert flat(there.astray) == {at for p, at in all_of_them if p == part and at not in inside}


def flat(spans):
    return {at for start, end in spans for at in range(start, end)}


def file_set(root: Path, name: str, files, *, statistics: bool) -> FileSet:
    folder = root / name
    folder.mkdir(exist_ok=True)
    made = []
    for number, offsets in enumerate(files):
        columns = {
            "_topic": pa.array([part.topic for part, _ in offsets], pa.string()),
            "_incarnation": pa.array([part.incarnation for part, _ in offsets], pa.int32()),
            "_partition": pa.array([part.partition for part, _ in offsets], pa.int32()),
            "_offset": pa.array([at for _, at in offsets], pa.int64()),
            "outcome": pa.array(["dead_letter"] * len(offsets), pa.string()),
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
        bounds = (
            (min(at for _, at in offsets), max(at for _, at in offsets)) if offsets and statistics else (None, None)
        )
        made.append(BucketFile(f"{number}.parquet", (), len(offsets), 0, None, None, *bounds))
    return FileSet(LocalStore(str(folder)), made, dead_letters=name == "letters")
