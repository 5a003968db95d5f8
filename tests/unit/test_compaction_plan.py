"""Which files of a bucket are worth writing anew."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.writer.batch.staging.sorting import Dedupe
from headrace.writer.commit.builder import StagedTooLongAgo, check_age
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.files import BucketFile
from headrace.writer.maintenance.compaction.plan import GROUP_FILES, Policy, RewritePace, pause_s, plan

TARGET = 1000
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def files(*sizes: int) -> list[BucketFile]:
    return [BucketFile(f"{n:04}", ("x",), 1, size, NOON + timedelta(minutes=n), NOON) for n, size in enumerate(sizes)]


def policy(**changes) -> Policy:
    return Policy(**{"target_file_size": TARGET, "max_open_files": 5, **changes})


def sizes(found: list[BucketFile], rules: Policy, *, closed: bool = True) -> list[list[int]]:
    return [[file.bytes for file in piece.files] for piece in plan(found, rules, closed=closed)]


def test_a_bucket_whose_files_are_right_is_not_touched() -> None:
    assert sizes(files(1000, 700, 1300, 5000), policy()) == []
    assert sizes(files(1000, 10), policy()) == []
    assert sizes([], policy(sort_by=("a",))) == []


def test_only_files_that_are_too_small_are_merged() -> None:
    assert sizes(files(10, 1000, 20, 699, 700), policy()) == [[10, 20, 699]]


def test_files_that_would_not_become_fewer_stay() -> None:
    assert sizes(files(690, 690), policy()) == []
    assert sizes(files(600, 690), policy()) == [[600, 690]]


def test_an_open_bucket_is_merged_only_when_it_has_too_many_small_files() -> None:
    assert sizes(files(*[10] * 5, *[1000] * 9), policy(), closed=False) == []
    assert sizes(files(*[10] * 6), policy(), closed=False) == [[10] * 6]
    assert sizes(files(*[10] * 600), policy(max_open_files=None), closed=False) == []


def test_a_closed_bucket_that_is_to_be_sorted_or_deduped_is_looked_at_whole() -> None:
    for rules in (policy(sort_by=("a",)), policy(dedupe=Dedupe(("id",)))):
        (piece,) = plan(files(10, 1000), rules, closed=True)
        assert [file.bytes for file in piece.files] == [10, 1000]
        assert piece.well_sized == {"0001"}
        assert (piece.sort_by, piece.dedupe) == (rules.sort_by, rules.dedupe)
        (merged,) = plan(files(*[10] * 6), rules, closed=False)
        assert (merged.sort_by, merged.dedupe) == ((), None)


@given(st.lists(st.integers(1, 3000), max_size=200))
def test_pieces_hold_each_small_file_at_most_once_and_are_bounded(found: list[int]) -> None:
    pieces = plan(files(*found), policy(), closed=True)
    paths = [file.path for piece in pieces for file in piece.files]
    assert len(paths) == len(set(paths))
    assert all(file.bytes < 0.7 * TARGET for piece in pieces for file in piece.files)
    assert all(len(piece.files) > 1 and piece.bytes <= (GROUP_FILES + 0.7) * TARGET for piece in pieces)


def test_rewriting_takes_its_share_of_all_slots() -> None:
    assert pause_s(10, 0.15, 2) == pytest.approx(10 / 0.3 - 10)
    assert pause_s(10, 0.15, 16) == 0
    busy, all_slots = 10, (10 + pause_s(10, 0.15, 4)) * 4
    assert busy / all_slots == pytest.approx(0.15)


def test_a_pause_is_owed_by_the_next_job_whichever_bucket_it_is_of() -> None:
    pace = RewritePace(0.25)
    assert pace.owed_s(0) == 0
    pace.took(10, 8, 2, now_s=100)
    assert [pace.owed_s(now) for now in (100, 104, 110, 200)] == [10, 6, 0, 0]
    pace.took(10, 16, 2, now_s=200)  # in several threads
    assert (pace.owed_s(200), pace.busy_s) == (16, 26)


def test_a_file_that_was_staged_half_the_orphan_age_ago_is_not_committed() -> None:
    age = timedelta(days=7)
    check_age(NOON, NOON + age / 2, age)
    with pytest.raises(
        StagedTooLongAgo, match=r"staged 302401 s ago, more than half of table\.orphan_retention \(7 d\)"
    ):
        check_age(NOON, NOON + age / 2 + timedelta(seconds=1), age)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compact": {"dedupe": {"window": "24 h"}}}, "key"),
        ({"compact": {"dedupe": {"key": ["id"], "window": "0 s"}}}, "must be longer than zero"),
        ({"compact": {"dedupe": {"key": ["id"], "window": "24 h", "keep": "last"}}}, "keeps the first row"),
        ({"bucket": {"type": "event_time", "width": "1 d"}}, "window 6 h is shorter than a bucket \\(1 d\\)"),
        (
            {"bucket": {"type": "composite", "parts": [
                {"type": "field", "field": "a"}, {"type": "event_time", "width": "12 h"},
            ]}},
            "window 6 h is shorter than a bucket \\(12 h\\)",
        ),
        ({"bucket": {"type": "field", "field": "a"}}, "do not go by time"),
        ({"seal": {"enabled": False}}, "leave seal.enabled at true"),
        ({"retention": "5 h", "event_time": {"field": "at", "max_age": "5 h"}}, "longer than retention 5 h"),
        ({"compact": {"at_seal": False, "dedupe": {"key": ["id"], "window": "6 h"}}}, "set compact.at_seal: true"),
    ],
)  # fmt: skip
def test_a_window_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    window = {"compact": {"dedupe": {"key": ["id"], "window": "6 h"}}}
    clicks = {"topics": ["clicks"], "table": {"location": "/lake"}, "event_time": {"field": "at"}}
    with pytest.raises(ValueError, match=said):
        Pipeline.model_validate({**clicks, **window, **settings})
    Pipeline.model_validate({**clicks, **window})
