"""A supervisor before a start, while a broker or a storage does not answer for long."""

from pathlib import Path

import pytest

from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.supervisor import recovery_actions
from tests.support.sample_records import config
from tests.support.simulated_supervisor import release

SILENCE = Verdict("preflight kafka", RecoveryLevel.WAIT, halt=False, message="Before the start: it is silent.")


def test_a_check_before_a_start_is_made_again_within_half_a_minute_and_no_driver_starts(tmp_path: Path) -> None:
    with release(tmp_path, {"clicks": 1}) as one:
        one.obstacles["clicks"] = SILENCE
        one.go(1_200)
        # Pauses of 0.5, 1, 2, 4 and 8 s, and then of 15 s: here each is as short as it may be.
        assert 600 / 30 < one.checks < 50
        assert one.drivers == []
        supervised = one.supervisor.supervised_pipelines["clicks"]
        assert supervised.memory.state.attempts == ()
        assert supervised.level == RecoveryLevel.WAIT
        one.obstacles.clear()
        one.go(32)
        assert one.running == {"clicks": 1}


def test_a_driver_that_ended_for_the_outage_is_started_with_longer_and_longer_pauses(tmp_path: Path) -> None:
    with release(tmp_path, {"clicks": 1}) as one:
        supervised = one.supervisor.supervised_pipelines["clicks"]
        supervised.note_lease(1, supervised.memory)
        pauses_s = []
        for _ in range(12):
            supervised.up = True
            one.supervisor._on_failure(supervised, 0, SILENCE, None)
            assert supervised.due_s is not None
            pauses_s.append(supervised.due_s - one.clock.now_s)
        assert pauses_s[-1] == 150, "half of five minutes"


def test_a_driver_that_fails_once_after_a_long_outage_is_started_again_at_once(tmp_path: Path) -> None:
    """A process of its own learns a moment later than the supervisor that a server answers again."""
    with release(tmp_path, {"clicks": 1}) as one:
        one.obstacles["clicks"] = SILENCE
        one.go(1_200)
        one.obstacles.clear()
        one.go(32)
        supervised = one.supervisor.supervised_pipelines["clicks"]
        assert supervised.up
        one.supervisor._on_failure(supervised, 0, SILENCE, None)
        assert supervised.due_s is not None
        assert supervised.due_s - one.clock.now_s == 0.5, "half of a second"


def test_credentials_that_do_not_come_now_hold_a_start_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_actions, "find_missing_credentials", lambda _: "STS does not answer.")
    verdict = recovery_actions.check_before_start(config(tmp_path), "clicks")
    assert verdict is not None
    assert (verdict.level, verdict.halt) == (RecoveryLevel.WAIT, False)
    assert verdict.message == "Before the start: STS does not answer."
