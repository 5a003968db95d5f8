"""The catalogue of metrics, and what a scrape says."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from headrace.writer.columns.schema_plan import RejectedSchema
from headrace.writer.sealing.bucket_states import BucketCounts
from headrace.writer.sealing.watermark import Watermark
from headrace.writer.status.model import Sample
from headrace.writer.status.progress import Progress
from headrace.writer.status.table_facts import GapFacts
from headrace.writer.table.ledger.gap_record import GapOpening, GapRecord
from headrace.writer.web.metrics_catalogue import CATALOGUE
from headrace.writer.web.metrics_export import exposition, families
from tests.support import commits

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
A, B = ("clicks", 0), ("clicks", 1)


def committed(progress: Progress) -> None:
    account = {
        "topic": "clicks", "incarnation": 1, "partition": 0, "start": 0, "end": 100,
        "read": 98, "rows": 90, "dead_letters": 5, "quarantined": 2, "tombstones": 1,
    }  # fmt: skip
    facts = {
        **commits.facts(0, 100),
        "reason": "size", "ranges": [account], "files": 3, "bytes": 6_000, "dead_letter_bytes": 500,
        "spilled_bytes": 40, "seconds": {"decode": 0.5}, "event_time_max": "2026-11-20T11:00:00+00:00",
    }  # fmt: skip
    progress.begin_batch(0, "look")
    progress.enter_phase("tasks")
    progress.enter_phase("commit")
    progress.enter_phase("redo")
    progress.record_commit(5, facts, {A: 100}, [("x",), ("y",)])


@pytest.fixture
def board():
    progress = Progress("clicks", now=lambda: NOON, seconds=lambda: 0.0)
    gaps = GapFacts(0, 0, 0, ())
    progress.record_start(epoch=2, run=1, frontier={A: 0, B: 50}, limits={}, buckets=[], recent=[], gaps=gaps)
    progress.set(bucket_counts=BucketCounts(NOON, Watermark(None), None, open=2, closed=0, reopened=0))
    progress.set_running()
    progress.set_schemas({1: RejectedSchema("no")})
    progress.add_sample(Sample(NOON - timedelta(seconds=20), {A: 100, B: 50}), {A: 0, B: 10})
    progress.add_sample(Sample(NOON - timedelta(seconds=10), {A: 200, B: 50}), {A: 0, B: 10})
    progress.set_retention({"clicks": timedelta(hours=1)})
    committed(progress)
    return {"clicks": progress}


def scraped(board) -> dict[tuple[str, ...], float]:
    """Values of a scrape at noon, by name and labels in alphabetical order of their names."""
    samples = [sample for family in families(board, NOON) for sample in family.samples]
    return {
        (s.name, *(v for k, v in sorted(s.labels.items()) if k != "pipeline")): s.value
        for s in samples
        if "build" not in s.name
    }


def test_a_scrape_gives_exactly_the_names_and_types_of_the_catalogue(board):
    text = exposition(board, "")[0].decode()
    given = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert given == {metric.name: metric.kind for metric in CATALOGUE}


def test_a_pipeline_that_has_just_begun_gives_the_same_names():
    text = exposition({"clicks": Progress("clicks")}, "")[0].decode()
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == {metric.name for metric in CATALOGUE}


def test_every_label_is_of_the_catalogue_and_none_is_a_bucket_or_an_offset(board):
    labels = {metric.name: set(metric.labels) for metric in CATALOGUE}
    for family in plain(exposition(board, "")[0].decode()):
        for sample in family.samples:
            name = re.sub(r"_(bucket|sum|count)$", "", sample.name) if family.type == "histogram" else sample.name
            assert set(sample.labels) - {"le"} == labels[name], sample
    assert {label for names in labels.values() for label in names} == {
        "pipeline", "topic", "partition", "outcome", "reason", "step", "phase", "decoder", "became", "cause", "version",
        "state", "python", "kind", "hook", "receiver", "target", "spec", "rule", "policy",
        "store", "purpose",
    }  # fmt: skip


def test_gaps_are_counted_by_the_driver_and_over_the_table_s_life(board):
    part = {"topic": "clicks", "incarnation": 1, "partition": 0}
    lost = {"ranges": [{**part, "start": 5, "end": 25}, {**part, "start": 0, "end": 2}], "cause": "retention"}
    before = scraped(board)
    assert (before["headrace_gaps_total", "retention"], before["headrace_gaps_open",]) == (0, 0)
    board["clicks"].record_restart("a topic was created again")
    board["clicks"].record_start(
        epoch=3, run=2, frontier={A: 25}, limits={}, buckets=[], recent=[], gaps=GapFacts(4, 90), gap=lost
    )
    found = scraped(board)
    assert (found["headrace_gaps_total", "retention"], found["headrace_gap_offsets_total", "retention"]) == (1, 22)
    assert (found["headrace_gaps_open",], found["headrace_gap_offsets_open",]) == (4, 90)
    assert found["headrace_restarts_total",] == 1


def test_a_gap_has_an_age_while_one_is_open_and_what_is_settled_is_known_from_the_start(board):
    def told() -> tuple[object, ...]:
        found = scraped(board)
        names = ("headrace_gap_offsets_open", "headrace_gap_offsets_closed_total", "headrace_gap_oldest_age_seconds")
        return tuple(found.get((name,)) for name in names)

    board["clicks"].set(gaps=None)
    assert told() == (None, None, None), "a counter that begins at 0 and jumps would look like a rate"
    start = {"epoch": 3, "run": 2, "frontier": {A: 25}, "limits": {}, "buckets": [], "recent": []}
    board["clicks"].record_start(**start, gaps=GapFacts(2, 90, 700))
    assert told() == (90, 700, None)
    opened = GapOpening(3, NOON - timedelta(hours=2), "latest", (), (), "", "", {})
    board["clicks"].set(gaps=GapFacts(2, 40, 750, (GapRecord("g1", opened), GapRecord("g2"))))
    assert told() == (40, 750, 7200)
    board["clicks"].set(gaps=GapFacts(0, 0, 790, ()))
    assert told() == (0, 790, None)


def test_a_topic_that_says_how_long_it_keeps_records_is_passed_on(board):
    board["clicks"].set_retention({"clicks": timedelta(hours=1), "views": None})
    assert {k: v for k, v in scraped(board).items() if "topic_retention" in k[0]} == {
        ("headrace_topic_retention_seconds", "clicks"): 3600,
    }  # fmt: skip


def test_values_are_those_of_the_pipeline(board):
    found = scraped(board)
    assert {outcome: found["headrace_records_total", outcome] for outcome in ("rows", "dead_letters")} == {
        "rows": 90, "dead_letters": 5,
    }  # fmt: skip
    assert found["headrace_records_read_total",] == 98
    assert found["headrace_offsets_without_records_total",] == 2
    assert found["headrace_dead_letter_table_rows_total",] == 7
    assert found["headrace_staged_bytes_total",] == 6_500
    assert found["headrace_lag_offsets", "0", "clicks"] == 100
    assert found["headrace_lag_seconds", "0", "clicks"] == pytest.approx(19.9)
    assert found["headrace_lag_seconds", "1", "clicks"] == 0
    assert found["headrace_lag_source_age_seconds",] == 10
    assert found["headrace_retention_headroom_seconds", "0", "clicks"] == pytest.approx(3600 - 19.9)
    assert ("headrace_retention_headroom_seconds", "1", "clicks") not in found, "nothing waits there"
    assert found["headrace_retention_headroom_offsets", "1", "clicks"] == 40
    assert found["headrace_newest_event_age_seconds",] == 3600
    assert found["headrace_commits_total", "size"] == 1
    assert found["headrace_step_cpu_seconds_total", "decode"] == 0.5
    assert found["headrace_open_buckets",] == 2
    assert found["headrace_schemas", "rejected"] == 1
    assert (found["headrace_epoch",], found["headrace_run_id",]) == (2, 1)
    assert found["headrace_batch_duration_seconds_bucket", "+Inf"] == 1


def test_outcomes_are_there_from_the_beginning_so_that_a_rate_can_be_taken():
    found = scraped({"clicks": Progress("clicks")})
    assert [key[1] for key in found if key[0] == "headrace_records_total"] == [
        "rows", "late_table", "dead_letters", "quarantined", "tombstones", "filtered",
    ]  # fmt: skip
    assert sum(value for key, value in found.items() if key[0] == "headrace_records_total") == 0


def test_kafka_that_never_answered_is_as_old_as_the_driver():
    silent = Progress("clicks", now=lambda: NOON - timedelta(minutes=3))
    assert scraped({"clicks": silent})["headrace_lag_source_age_seconds",] == 180


@pytest.mark.parametrize(("state", "alive"), [("running", 1), ("draining", 1), ("stopped", 0), ("failed", 0)])
def test_a_pipeline_that_ended_is_not_alive(board, state, alive):
    progress = board["clicks"]
    events = {
        "running": progress.set_running,
        "draining": progress.set_draining,
        "stopped": progress.record_stop,
        "failed": lambda: progress.record_failure("why"),
    }
    events[state]()
    assert scraped(board)["headrace_pipeline_alive",] == alive


def test_the_format_is_the_one_that_is_asked_for(board):
    body, content_type = exposition(board, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert list(openmetrics(body.decode()))
    body, content_type = exposition(board, "*/*")
    assert content_type.startswith("text/plain; version=0.0.4")
    assert list(plain(body.decode()))


def test_pipelines_stand_beside_each_other(board):
    text = exposition({**board, "views": Progress("views")}, "")[0].decode()
    assert 'headrace_open_buckets{pipeline="clicks"} 2.0' in text
    assert 'headrace_open_buckets{pipeline="views"}' not in text, "nobody looked at them yet"
