"""What the end of a driver means, and when one that lives hangs."""

from datetime import UTC, datetime, timedelta

import pytest

from headrace.recovery.escalation.diagnosis import (
    DriverHealth,
    PipelineHealth,
    Timeouts,
    diagnose_exit,
    parse_health,
    stall_timeout,
    unresponsive_reason,
)
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.status.lag_sample import Lag, LagSample

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
RETRY_TIMEOUT = Timeouts(timedelta(minutes=10), timedelta(minutes=2), {"clicks": timedelta(minutes=30)})
RUNNING = PipelineHealth("running", since_s=3.0, run=1, version=7, waiting=10)


def found(level: RecoveryLevel | None, *, halt: bool = False) -> Verdict:
    return Verdict("row", level, halt, "said")


@pytest.mark.parametrize(
    ("code", "text", "row", "level", "halt"),
    [
        (-9, "", "killed", RecoveryLevel.RESTART, False),
        (137, "", "killed", RecoveryLevel.RESTART, False),
        (1, "", "silent", RecoveryLevel.RESTART, False),
        (2, "ConfigError: no such topic", "row", None, True),
        (2, "", "configuration", None, True),
        (4, "", "fenced", None, True),
        (5, "", "limit", None, True),
        (3, "", "checkpoint", RecoveryLevel.NEW_RUN, False),
        (99, "", "silent", RecoveryLevel.RESTART, False),
    ],
)
def test_an_exit_code_without_words(code: int, text: str, row: str, level: RecoveryLevel | None, halt: bool) -> None:
    said = diagnose_exit(code, text, lambda _: found(None, halt=True))
    assert (said.row, said.level, said.halt) == (row, level, halt)


def test_the_text_tells_more_than_the_code_but_a_checkpoint_that_is_refused_is_never_just_restarted() -> None:
    assert diagnose_exit(1, "some text", lambda _: found(RecoveryLevel.WAIT)).level == RecoveryLevel.WAIT
    assert diagnose_exit(3, "some text", lambda _: found(RecoveryLevel.WALK_BACK)).level == RecoveryLevel.WALK_BACK
    assert diagnose_exit(3, "some text", lambda _: found(RecoveryLevel.RESTART)).level == RecoveryLevel.NEW_RUN
    assert diagnose_exit(3, "some text", lambda _: found(None, halt=True)).halt
    assert diagnose_exit(2, "some text", lambda _: found(RecoveryLevel.RESTART)).halt, "2 is a contract: do not restart"


def test_the_catalogue_is_asked_by_default() -> None:
    assert diagnose_exit(1, "Fenced: another writer runs").halt


def test_a_driver_whose_main_thread_is_silent_hangs_and_one_that_starts_has_longer() -> None:
    def look(silent_s: float | None, state: str = "running", age_s: float = 5_000.0) -> str:
        one = PipelineHealth(state, age_s, 1, 7, 0)
        return unresponsive_reason(DriverHealth(age_s, silent_s, {"clicks": one} if state else {}), RETRY_TIMEOUT)

    assert look(119.0) == ""
    assert look(121.0) == "its main thread gave no sign for 121 s"
    assert look(599.0, "starting") == ""
    assert look(601.0, "starting") != ""
    assert look(None, "", age_s=599.0) == ""
    assert look(None, "", age_s=601.0) == "its main thread gave no sign for 601 s"


@pytest.mark.parametrize(
    ("one", "hangs"),
    [
        (RUNNING, False),
        (PipelineHealth("running", 1_801.0, 1, 7, 10), True),
        (PipelineHealth("running", 1_000.0, 1, None, 10), False),  # it has just begun with an old table
        (PipelineHealth("running", 90_000.0, 1, 7, 0), False),  # nothing waits
        (PipelineHealth("running", 90_000.0, 1, 7, None), False),  # Kafka has not said
        (PipelineHealth("paused", 90_000.0, 1, 7, 10), False),
        (PipelineHealth("running", 1_801.0, 1, None, 10), True),
        (PipelineHealth("running", 3_000.0, 1, 7, 10, free_s=-600.0), False),  # its rate limit holds the batch
        (PipelineHealth("running", 3_000.0, 1, 7, 10, free_s=60.0), False),  # which has begun a minute ago
        (PipelineHealth("running", 3_000.0, 1, 7, 10, free_s=1_801.0), True),
    ],
)
def test_a_driver_that_commits_nothing_while_records_wait_hangs(one: PipelineHealth, hangs: bool) -> None:
    assert bool(unresponsive_reason(DriverHealth(5_000.0, 1.0, {"clicks": one}), RETRY_TIMEOUT)) == hangs


def test_a_long_delay_of_commits_is_no_stall() -> None:
    half, hour = timedelta(minutes=30), timedelta(hours=1)
    assert stall_timeout(half, timedelta(minutes=10)) == half
    assert stall_timeout(half, hour) == 3 * hour


@pytest.mark.parametrize(("age_s", "waiting"), [(45, 12), (46, None)])
def test_a_lag_that_is_three_intervals_old_is_not_waiting(age_s: float, waiting: int | None) -> None:
    lag = LagSample(NOON - timedelta(seconds=age_s), partitions=(Lag("clicks", 0, 12, 3.0, 0, None),))
    told = {
        "state": "running", "run": 2, "last_commit": {"version": 4}, "error": "",
        "lag": lag.to_json(NOON), "totals": {"commits": {"size": 1}},
    }  # fmt: skip
    assert parse_health(told, NOON) == PipelineHealth("running", 0.0, 2, 4, waiting)
    assert parse_health({**told, "rate_limit": {"next_batch_in_seconds": -4.0}}, NOON).free_s == 4.0
    restarted = {**told, "totals": {"commits": {}}}
    assert parse_health(restarted, NOON).version is None, "the commit is of the driver before"
    assert not parse_health({**restarted, "last_commit": None, "lag": LagSample().to_json(NOON)}, NOON).is_well
    assert parse_health({**told, "last_commit": None}, NOON).version is None, "the table's log has no commit any more"
