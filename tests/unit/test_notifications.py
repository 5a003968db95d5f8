"""Notices: what a server gets, what is sent again, and that nobody waits for it."""

import json
import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.supervisor.notifications import halt_event, level_event
from headrace.writer.clients.notifications import (
    Event,
    Notifier,
    gap_event,
    missing_offsets,
    open_notifier,
    topic_recreation,
)
from headrace.writer.config.sections.connections import Notifications
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import ConfigError
from tests.servers.scripted import HttpRequest, Reply, Scripted, serve_script

AT = datetime(2026, 11, 20, 5, tzinfo=UTC)
SOON = timedelta(seconds=60)  # nothing takes so long, but on a busy machine


def notifier(url: str, **settings: Any) -> Notifier:
    section = Notifications(**{"timeout": timedelta(seconds=2), "retry_timeout": timedelta(seconds=10), **settings})
    return Notifier(url, section, backoff=Backoff(0.01, 60))


def event(number: int = 1) -> Event:
    return missing_offsets("clicks", number, 7, AT)


def answering(*statuses: int, **headers: str) -> Any:
    left = list(statuses)

    def answer(_: HttpRequest) -> Reply:
        return Reply(left.pop(0) if left else 200, headers=headers)

    return answer


def sent(script: Scripted) -> list[int]:
    return [asked.json()["fields"]["offsets"] for asked in script.asked]


def test_a_slack_compatible_server_gets_a_text_and_the_facts_beside_it():
    gap = {"id": "g1", "cause": "retention", "ranges": [
        {"topic": "clicks", "incarnation": 1, "partition": 0, "start": 5, "end": 1_005},
    ]}  # fmt: skip
    with serve_script(answering(200)) as script:
        sender = notifier(f"{script.url}/services/T0/secret")
        sender.send(gap_event("clicks", gap, 12, AT))
        assert sender.close(SOON)
    (asked,) = script.asked
    told = asked.json()
    assert asked.method == "POST"
    assert asked.headers["idempotency-key"] == told["id"]
    assert told["text"].startswith("[critical] clicks: 1,000 offsets were skipped (retention): clicks/0 [5, 1005).")
    assert (told["event"], told["severity"], told["at"]) == ("gap_opened", "critical", "2026-11-20T05:00:00+00:00")
    assert told["fields"]["ranges"] == gap["ranges"]


def test_a_server_that_fails_first_gets_the_same_message_again_and_the_order_stays():
    with serve_script(answering(503, 429, 500)) as script:
        sender = notifier(script.url)
        for number in (1, 2, 3):
            sender.send(event(number))
        assert sender.close(SOON)
    assert sent(script) == [1, 1, 1, 1, 2, 3]
    assert len({asked.json()["id"] for asked in script.asked[:4]}) == 1


def test_a_message_that_is_refused_is_logged_and_does_not_hold_up_the_next(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "headrace"), serve_script(answering(404)) as script:
        sender = notifier(f"{script.url}/services/secret")
        sender.send(event(1))
        sender.send(event(2))
        assert sender.close(SOON)
    assert sent(script) == [1, 2]
    assert "notification_dropped pipeline=clicks kind=missing_offsets" in caplog.text
    assert "404" in caplog.text
    assert "secret" not in caplog.text


def test_no_caller_waits_for_a_server_that_does_not_answer():
    held = threading.Event()

    def hang(_: HttpRequest) -> Reply:
        held.wait(60)
        return Reply()

    with serve_script(hang) as script:
        sender = notifier(script.url)
        began = time.monotonic()
        for number in range(300):
            sender.send(event(number))
        assert not sender.close(timedelta(seconds=0.05))
        assert time.monotonic() - began < 150
        held.set()


def test_a_server_that_is_down_is_tried_until_patience_ends(caplog: pytest.LogCaptureFixture):
    with serve_script(answering()) as script:
        url = script.url
    with caplog.at_level(logging.INFO, "headrace"):
        sender = notifier(url, retry_timeout=timedelta(seconds=0.05))
        sender.send(event())
        assert sender.close(SOON)
    assert "cannot reach" in caplog.text


def test_the_end_of_the_process_does_not_wait_for_a_pause_that_is_longer():
    with serve_script(answering(503, **{"Retry-After": "30"})) as script:
        sender = notifier(script.url)
        sender.send(event())
        began = time.monotonic()
        assert not sender.close(timedelta(seconds=0.2))
        assert time.monotonic() - began < 15


def test_only_the_chosen_kinds_are_told():
    with serve_script(answering()) as script:
        sender = notifier(script.url, kinds=("topic_recreated",))
        sender.send(event())
        sender.send(topic_recreation("clicks", "clicks", "a", "b", AT))
        assert sender.close(SOON)
    assert [json.loads(asked.body)["event"] for asked in script.asked] == ["topic_recreated"]


def test_the_url_comes_from_the_environment_and_is_never_shown():
    silent = open_notifier(Notifications(), {})
    silent.send(event())
    assert silent.close(SOON), "without a variable nothing is sent, and nothing waits"
    section = Notifications(url_env="HOOK")
    with pytest.raises(ConfigError, match="HOOK, which is not set"):
        open_notifier(section, {})
    with pytest.raises(ConfigError) as refused:
        open_notifier(section, {"HOOK": "secret-without-scheme"})
    assert "secret-without" not in str(refused.value)
    assert isinstance(open_notifier(section, {"HOOK": "https://hooks.example/secret"}), Notifier)


@pytest.mark.parametrize("rung", RecoveryLevel)
def test_the_levels_that_lose_or_guess_are_notified_and_no_other(rung: RecoveryLevel):
    told = level_event("clicks", rung, "No checkpoint agrees.", time=AT)
    assert (told is not None) == (rung >= RecoveryLevel.WALK_BACK)
    if told is not None:
        assert told.severity == "critical"
        assert told.fields["level"] == rung.label


def test_a_pipeline_that_was_given_up_is_a_page():
    assert halt_event("clicks", "Six restarts failed.", time=AT).severity == "critical"
