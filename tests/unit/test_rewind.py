"""What a rewind takes back, and what is in its way: facts in, a plan out."""

from dataclasses import replace

import pytest

from headrace.recovery.rewind.plan import (
    EarlierVersion,
    LaterEntries,
    RewindFacts,
    RewindPlan,
    plan_rewind,
    read_later_entries,
)
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.offsets.start_decision import LogRange
from headrace.writer.table.ledger.gap_record import BackfilledOffsets, GapRecord, parse_gap
from headrace.writer.table.log.foreign_writes import Change
from tests.support.sample_records import GAP_FACTS

A, B, NEW, OLD = (
    TopicPartition("clicks", 1, 0),
    TopicPartition("clicks", 1, 1),
    TopicPartition("clicks", 1, 2),
    TopicPartition("views", 1, 0),
)
FACTS = RewindFacts(
    EarlierVersion(7, 2, {A: 10, B: 20}), LaterEntries(), {A: 15, B: 20}, {"clicks": 1},
    {("clicks", 0): LogRange(0, 50), ("clicks", 1): LogRange(0, 20)},
)  # fmt: skip


def test_only_parts_that_moved_go_back() -> None:
    assert plan_rewind(FACTS) == RewindPlan(7, (OffsetRange(A, 10, 15),))
    assert plan_rewind(FACTS).offsets == 5
    assert plan_rewind(replace(FACTS, frontier={A: 10, B: 20})).ranges == ()


def test_a_log_that_was_cut_is_in_the_way_of_its_own_parts_alone() -> None:
    assert plan_rewind(replace(FACTS, cut_parts=[B])).obstacles == ()


def test_a_part_that_was_new_since_goes_back_to_its_beginning() -> None:
    grown = replace(
        FACTS, frontier={A: 15, B: 20, NEW: 8}, later=LaterEntries(first_offsets={NEW: 3, A: 12}),
        log_ranges={**FACTS.log_ranges, ("clicks", 2): LogRange(0, 9)},
    )  # fmt: skip
    assert plan_rewind(grown).ranges == (OffsetRange(A, 10, 15), OffsetRange(NEW, 3, 8))


@pytest.mark.parametrize(
    ("held", "lost"),
    [
        (LogRange(10, 15), []), (LogRange(12, 50), [(10, 12)]), (LogRange(40, 50), [(10, 15)]), (LogRange(0, 13), [(13,
        15)]), (LogRange(12, 13), [(10, 12), (13, 15)]),
    ],
)  # fmt: skip
def test_offsets_that_kafka_does_not_hold_are_named_exactly(held: LogRange, lost: list[tuple[int, int]]) -> None:
    found = plan_rewind(replace(FACTS, log_ranges={**FACTS.log_ranges, ("clicks", 0): held}))
    assert [(r.start, r.end) for r in found.unreadable] == lost
    assert bool(found.losses) == bool(lost)
    assert found.obstacles == ()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(FACTS, earlier=replace(FACTS.earlier, epoch=0)), "before the pipeline's first start"),
        (replace(FACTS, frontier={A: 9, B: 20}), "it was rewound since"),
        (replace(FACTS, incarnations={"clicks": 2}), "deleted and created again, or its log was cut"),
        (replace(FACTS, cut_parts=[A]), "cut below what the table has of clicks/0 [10, 15), and is another one now"),
        (replace(FACTS, incarnations={}), "does not read the topic any more"),
        (replace(FACTS, later=LaterEntries(adoption=9)), "version 9 gave topics other ids"),
        (
            replace(FACTS, later=LaterEntries(foreign_changes=(Change(8, "UPDATE"),), later_change=9)),
            "and version 9 changed files after it",
        ),
        (
            replace(FACTS, later=LaterEntries(foreign_changes=(Change(8, "RESTORE"),)), missing_files=["a", "b"]),
            "are gone (a and 1 more): a VACUUM removed them",
        ),
    ],
)
def test_an_impossible_rewind_is_refused_with_the_reason(facts: RewindFacts, words: str) -> None:
    assert words in " ".join(plan_rewind(facts).obstacles)


def test_a_topic_that_did_not_move_holds_up_no_rewind() -> None:
    quiet = replace(
        FACTS, frontier={A: 15, B: 20, OLD: 4}, earlier=replace(FACTS.earlier, frontier={A: 10, B: 20, OLD: 4})
    )
    assert plan_rewind(quiet).obstacles == ()


def test_gaps_that_opened_since_are_over_unless_they_were_filled() -> None:
    entry = {**GAP_FACTS, "kind": "gap", "id": "g1", "cause": "retention", "ranges": [
        {"topic": "clicks", "incarnation": 1, "partition": 0, "start": 12, "end": 14},
    ]}  # fmt: skip
    gap_record = parse_gap(8, entry)
    assert isinstance(gap_record, GapRecord)
    open_ = replace(FACTS, later=LaterEntries(gaps=("g1",)), gap_records={"g1": gap_record})
    assert plan_rewind(open_).gaps == {"g1": 2}
    filled = replace(gap_record, backfilled={A: BackfilledOffsets(((12, 13),), 1, {"read": 1, "rows": 1})})
    assert "filled since" in plan_rewind(replace(open_, gap_records={"g1": filled})).obstacles[0]


def test_dedupe_since_then_is_a_loss_that_must_be_accepted() -> None:
    assert "dedupe took 4 rows" in plan_rewind(replace(FACTS, later=LaterEntries(removed_rows={"dedupe": 4}))).losses
    assert plan_rewind(replace(FACTS, later=LaterEntries(removed_rows={"delete": 4}))).losses == ""


def test_the_log_is_read_for_what_happened_since() -> None:
    def entry(**about: object) -> list[dict[str, object]]:
        import json

        return [{"commitInfo": {"timestamp": 1, "headrace": json.dumps(about)}}]

    r = {"topic": "clicks", "incarnation": 1, "partition": 2, "start": 3, "end": 5}
    begun = [*entry(kind="start"), {"txn": {"appId": "p/clicks@1/0", "version": 1}}]
    found = read_later_entries(
        [
            (1, begun), (2, entry(kind="batch", ranges=[r])), (3, entry(kind="gap", id="g", ranges=[r])),
            (4, entry(kind="seal", manifests=[{"bucket": ["x"]}])),
            (5, entry(kind="rewrite", taken={"why": "delete", "rows": 2})),
            (6, entry(kind="rewrite", taken={"why": "delete", "rows": 1})),
            (7, entry(kind="rewrite")), (8, entry(kind="replay")),
            (9, [{"commitInfo": {"timestamp": 1, "operation": "RESTORE"}}]), (10, entry(kind="adopt")),
            (11, [{"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE"}}]),
        ],
        {"p/clicks@1/0": A},
    )  # fmt: skip
    assert found == LaterEntries(
        {A: 1, NEW: 3}, ("g",), frozenset({("x",)}), {"delete": 3}, 1, 10, (Change(9, "RESTORE"),),
    )  # fmt: skip
