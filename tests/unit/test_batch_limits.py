"""When a batch ends, and why one did."""

from dataclasses import replace
from datetime import timedelta

import pytest

from headrace.writer.commit.batch_limits import (
    BatchEndings,
    Limits,
    is_full,
    limits,
    reason,
    route_spread_max,
    takes_every_slot,
    task_count,
)
from headrace.writer.commit.rate_limit import RateLimit
from headrace.writer.config.sections.resource_limits import Commit

A, B = ("clicks", 0), ("clicks", 1)
WAITS = Limits(1_000, "commit.min_offsets", 5_000, timedelta(minutes=10))
ONCE = Limits(None, "--once", 5_000, None)


@pytest.mark.parametrize(
    ("offsets", "waiting", "expected"),
    [
        (1_000, 1_000, "size"),
        (1_200, 1_300, "size"),  # some came while the driver looked
        (999, 999, "timeout"),
        (5_000, 9_000, "backlog"),
        (4_997, 9_000, "backlog"),  # Spark rounds the share of each partition down
        (5_002, 9_000, "backlog"),  # or up, for a small one
        (4_996, 9_000, "size"),  # all that there was: the rest came after
        (5_000, 5_000, "size"),  # full to the brim, nothing is left
        (5_000, None, "backlog"),
        (1_000, None, "size"),
        (7, None, "timeout"),
    ],
)
def test_a_batch_ends_for_its_size_a_backlog_or_the_delay(offsets, waiting, expected):
    assert reason(offsets, waiting, 3, WAITS, first=False, replay=False) == expected


def test_the_first_batch_does_not_wait_for_the_delay_but_may_be_large():
    found = [reason(n, n, 3, WAITS, first=True, replay=False) for n in (5, 1_000)]
    assert found == ["start", "size"]
    assert reason(5_000, 9_000, 3, WAITS, first=True, replay=False) == "backlog"


def test_a_minimum_that_is_the_maximum_still_tells_a_backlog_apart():
    tight = Limits(5_000, "commit.max_offsets", 5_000, timedelta(minutes=10))
    assert reason(4_999, 6_000, 3, tight, first=False, replay=False) == "backlog"
    assert reason(5_000, 5_000, 3, tight, first=False, replay=False) == "size"


@pytest.mark.parametrize("offsets", [5, 5_000])
def test_once_takes_what_is_there(offsets):
    assert reason(offsets, offsets, 3, ONCE, first=True, replay=False) == "once"


@pytest.mark.parametrize("given", [WAITS, ONCE])
def test_a_batch_that_an_earlier_start_planned_is_read_again_at_any_size(given):
    assert reason(5_000, 9_000, 3, given, first=True, replay=True) == "replay"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (2_048, "roll.target_file_size")),  # 128 KiB at 64 bytes a row
        ({"min_offsets": 70}, (70, "commit.min_offsets")),
        ({"max_offsets": 100}, (100, "commit.max_offsets")),
        ({"min_offsets": 700, "max_offsets": 100}, (100, "commit.max_offsets")),
    ],
)
def test_the_minimum_is_configured_or_enough_for_one_file(settings, expected):
    given = Commit.model_validate(settings)
    found = limits(given, 128 * 2**10, 64.0, once=False)
    assert (found.offsets_min, found.offsets_min_from) == expected
    assert (found.offsets_max, found.max_delay) == (given.max_offsets, timedelta(minutes=10))
    assert limits(given, 128 * 2**10, 64.0, once=True).offsets_min is None


def test_a_row_larger_than_a_file_asks_for_one_record():
    assert limits(Commit.model_validate({}), 10, 64.0, once=False).offsets_min == 1


@pytest.mark.parametrize("given", [WAITS, ONCE])
@pytest.mark.parametrize(
    ("offsets", "waiting", "expected"),
    [(5_000, 9_000, True), (4_998, 9_000, True), (5_000, None, True), (5_000, 5_000, False), (4_000, 9_000, False)],
)
def test_a_batch_is_full_also_in_a_run_that_ends_by_itself(given, offsets, waiting, expected):
    assert is_full(offsets, waiting, 3, given) == expected


@pytest.mark.parametrize(
    ("given", "offsets", "expected"),
    [(ONCE, 2_500, True), (ONCE, 2_499, False), (WAITS, 4_000, False), (WAITS, 5_000, False)],
)
def test_the_last_batch_of_a_run_takes_every_slot_when_it_is_half_full(given, offsets, expected):
    assert takes_every_slot(offsets, offsets, 3, given) == expected


def test_a_full_batch_takes_every_slot_but_at_a_rate_limit():
    assert takes_every_slot(5_000, 9_000, 3, WAITS)
    assert not takes_every_slot(5_000, 9_000, 3, replace(WAITS, rate_limit=RateLimit(100)))
    assert not takes_every_slot(5_000, 9_000, 3, replace(ONCE, rate_limit=RateLimit(100)))


@pytest.mark.parametrize("once", [True, False])
def test_a_task_has_records_for_an_eighth_of_a_file_at_least(once):
    found = limits(Commit.model_validate({}), 128 * 2**20, 64.0, once=once, offsets_per_range=7)
    assert (found.offsets_per_task, found.offsets_per_range) == (2**18, 7)


@pytest.mark.parametrize(
    ("partitions", "slots", "tasks"),
    [
        (1, 8, 1), (100, 8, 1), (101, 8, 2), (1_000, 64, 10),
        (1_000, 2, 10),  # one after the other: what a task holds of its partitions it holds to its end
        (0, 8, 1),  # all of it was read before
    ],
)  # fmt: skip
def test_tiny_records_on_many_partitions_are_shared_out_but_not_to_a_task_each(partitions, slots, tasks):
    assert task_count(1_000, 128 * 2**20, slots, partitions=partitions) == tasks
    assert task_count(1_000, 128 * 2**20, slots, partitions=partitions, behind=True) == tasks


def test_of_files_and_partitions_what_asks_for_more_tasks_counts():
    assert task_count(5 * 2**27, 2**27, 64, partitions=300) == 5
    assert task_count(5 * 2**27, 2**27, 64, partitions=700) == 7


@pytest.mark.parametrize(
    ("offsets", "tables", "tasks"),
    [
        (5_000_000, 1, 8),  # as without a route
        (5_000_000, 5, 5),  # each table has 200,000 records of each task
        (5_000_000, 50, 1),  # a second task would make as many small files again
        (5_000_000, 0, 1),  # the first batch: no table is known
        (300_000, 1, 1),
    ],
)
def test_a_batch_of_a_route_is_spread_as_far_as_its_tables_keep_large_files(offsets, tables, tasks):
    spread_max = route_spread_max(offsets, tables)
    assert task_count(2**27, 2**27, 8, partitions=4, behind=True, spread_max=spread_max) == tasks


def test_a_route_takes_a_task_for_each_file_of_the_target_size_however_many_tables_it_has():
    assert task_count(5 * 2**27, 2**27, 8, partitions=4, behind=True, spread_max=route_spread_max(10**6, 500)) == 5


def test_limits_are_written_with_their_units():
    assert WAITS.facts() == {
        "offsets_min": 1_000, "offsets_min_from": "commit.min_offsets",
        "offsets_max": 5_000, "delay_max_seconds": 600.0, "offsets_per_task": None, "offsets_per_range": None,
        "partitions_per_task": 100,
    }  # fmt: skip
    assert ONCE.facts()["delay_max_seconds"] is None


# --- the batches of one query -----------------------------------------------------------------------------------

BEGUN_S = 1_000.0
SOON_S, LATE_S = BEGUN_S + 599, BEGUN_S + 600  # before, and when, the delay of WAITS is over


def test_the_first_batch_that_is_not_a_replay_is_a_start_until_the_delay_is_over():
    endings = BatchEndings(WAITS, {A: 9, B: 2}, BEGUN_S)
    told = [
        endings.end_facts(4, {A: 5, B: 2}, {A: 9, B: 2}, {A: 9, B: 2}, SOON_S),  # an earlier start had planned it
        endings.end_facts(5, {A: 9, B: 2}, {A: 12, B: 2}, {A: 12, B: 3}, SOON_S),
        endings.end_facts(6, {A: 12, B: 2}, {A: 12, B: 3}, {A: 12, B: 3}, SOON_S),
    ]
    assert [(one["reason"], one["offsets"], one["waiting"]) for one in told] == [
        ("replay", 4, 4), ("start", 3, 4), ("timeout", 1, 1)
    ]  # fmt: skip
    assert all(one["limits"] == WAITS.facts() for one in told)


def test_a_first_batch_that_waited_for_the_delay_says_so_and_the_batch_0_of_a_run_never_does():
    whys = [BatchEndings(WAITS, None, BEGUN_S).end_facts(batch, {A: 5}, {A: 9}, {A: 9}, LATE_S) for batch in (0, 1)]
    assert [one["reason"] for one in whys] == ["start", "timeout"]


def test_where_kafka_does_not_say_what_waits_nothing_is_said_of_it():
    told = BatchEndings(WAITS, None, BEGUN_S).end_facts(7, {A: 0}, {A: 5_000}, None, SOON_S)
    assert (told["waiting"], told["reason"]) == (None, "backlog")


def test_only_the_very_batch_that_was_planned_is_a_replay_and_only_the_first():
    endings = BatchEndings(WAITS, {A: 9}, BEGUN_S)
    assert endings.end_facts(4, {A: 5}, {A: 8}, None, LATE_S)["reason"] == "timeout"
    assert endings.end_facts(5, {A: 5}, {A: 9}, None, LATE_S)["reason"] == "timeout"
