"""One window for all rates, the time to catch up that follows from them, and no rate where none is known."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.writer.schemas.registry_hold import RegistryWait
from headrace.writer.status.document import document
from headrace.writer.status.lag import lag_sample
from headrace.writer.status.model import Commit, Logs, Sample, View
from headrace.writer.status.pause import Pause
from headrace.writer.status.rates import Rates, rates
from tests.support.commits import account, facts

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
A = ("clicks", 0)
MINUTE = timedelta(minutes=1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def view(ends: dict[float, int], commits: dict[float, int], *, frontier: int, delay_s: float = 5) -> View:
    """`ends`: seconds after noon → end of the log; `commits`: seconds after noon → records of the commit."""
    samples = [Sample(at(seconds), {A: end}) for seconds, end in ends.items()]
    logs = replace(Logs().with_history(samples), samples=tuple(samples))
    made = tuple(
        Commit(version, at(seconds), facts(0, read)) for version, (seconds, read) in enumerate(commits.items())
    )
    return View(
        "clicks", NOON, state="running", frontier={A: frontier}, logs=logs, commits=made[::-1],
        limits={"delay_max_seconds": delay_s},
    )  # fmt: skip


def seen(one: View, now: datetime) -> Rates:
    return rates(one, lag_sample(one.logs, one.frontier, now), now)


def every(step: int, until: int, per_second: int) -> dict[float, int]:
    return {seconds: per_second * seconds for seconds in range(0, until + 1, step)}


def test_a_drain_of_half_a_minute_reads_as_half_a_minute() -> None:
    """Nothing came for an hour and 600,000 records wait; 20,000/s are committed, in a commit every five seconds."""
    for now in (15, 20, 25):
        done = {-3000: 7} | dict.fromkeys(range(5, now + 1, 5), 100000)
        one = view(dict.fromkeys(range(-90, now + 1, 15), 600_000), done, frontier=20_000 * now)
        found = seen(replace(one, logs=replace(one.logs, dated={A: (20_000 * now, at(-3000))})), at(now))
        assert (found.committed_per_s, found.catch_up_seconds) == (20_000, pytest.approx(30 - now))


def test_a_pipeline_that_does_not_catch_up_has_no_time_to_catch_up() -> None:
    one = view(every(15, 600, 100), {560: 1_000, 590: 1_000}, frontier=5_000)
    found = seen(one, at(600))
    assert (found.arriving_per_s, found.committed_per_s, found.catch_up_seconds) == (100, 25, None)


def test_offsets_that_gave_no_record_are_committed_as_others_are() -> None:
    """Kafka's log grows by markers of transactions, too: a pipeline that keeps up would never seem to."""
    one = view(every(15, 600, 100), {560: 1_000, 590: 4_000}, frontier=55_000)
    half = {**facts(0, 4_000), "ranges": [account(0, 4_000, read=2_000)]}
    newest, *others = one.commits
    found = seen(replace(one, commits=(replace(newest, facts=half), *others)), at(600))
    assert (found.committed_per_s, found.catch_up_seconds) == (100, None)


@pytest.mark.parametrize(
    "hold",
    [{"registry_wait": RegistryWait(("schema id 11",))}, {"pause": Pause("2026-11-20T12:00:00Z", "ada", "")}],
    ids=["by a schema", "by a pause"],
)
def test_a_batch_that_is_held_has_no_time_to_catch_up(hold: dict[str, Any]) -> None:
    one = view(every(15, 600, 100), {560: 1_000, 590: 50_000}, frontier=5_000)
    assert seen(one, at(600)).catch_up_seconds is not None
    assert seen(replace(one, **hold), at(600)).catch_up_seconds is None


def test_arriving_and_committed_rates_are_of_the_same_minute() -> None:
    one = view(every(15, 600, 100), dict.fromkeys(range(0, 601, 10), 1000), frontier=60_000)
    assert seen(one, at(600)) == Rates(MINUTE, 100.0, 100.0)


@pytest.mark.parametrize(("after", "arriving"), [(15, 75), (30, 50), (60, 0), (120, 0)])
def test_a_minute_after_the_last_record_nothing_arrives(after: int, arriving: float) -> None:
    ends = every(15, 600, 100) | dict.fromkeys(range(615, 601 + after, 15), 60_000)
    found = seen(view(ends, {598: 1_000}, frontier=60_000), at(600 + after))
    assert found.arriving_per_s == arriving
    assert found.committed_per_s == (0.0 if after >= 60 else pytest.approx(1_000 / 60))


def test_a_rate_that_kafka_has_not_confirmed_is_not_shown() -> None:
    assert seen(view(every(15, 600, 100), {}, frontier=0), at(646)).arriving_per_s is None
    assert seen(view({0: 5, 45: 9}, {}, frontier=0), at(45)).arriving_per_s is None, "less than the window is known"


def test_the_window_is_no_shorter_than_the_interval_of_the_samples() -> None:
    one = view(every(120, 600, 100), {}, frontier=0)
    one = replace(one, logs=replace(one.logs, interval=timedelta(minutes=2)))
    assert seen(one, at(600)) == Rates(timedelta(minutes=2), 100.0, 0.0)


def test_without_a_driver_there_is_no_rate() -> None:
    one = view(every(15, 600, 100), {590: 1_000, 595: 1_000}, frontier=0)
    shown: Sequence[object] = [
        document([one], at(600), source)["pipelines"]["clicks"]["rates"] for source in ("driver", "lake")
    ]
    assert shown == [
        {"window_seconds": 60, "arriving_per_second": 100, "committed_per_second": 100, "catch_up_seconds": None},
        {"window_seconds": 60, "arriving_per_second": None, "committed_per_second": None, "catch_up_seconds": None},
    ]
