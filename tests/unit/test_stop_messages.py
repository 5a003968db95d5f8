"""Stops that a person has to end: each sentence says where, and the way on; the supervisor knows it, and halts."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from headrace.recovery.escalation.error_catalogue import catalogue, classify
from headrace.writer.batch.task_report import Counts, FailedRecords, Report
from headrace.writer.clients.kafka import Topic
from headrace.writer.commit import builder, failed_records_limit, missing_offsets
from headrace.writer.config.sections.resource_limits import Limits
from headrace.writer.core.errors import CheckpointUnusable, ExitCode, HeadraceError, LogChanged
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.errors import damaged_batch
from headrace.writer.offsets import spark_checkpoint, start_decision, start_offsets
from headrace.writer.offsets.start_decision import LogRange, Refuse
from headrace.writer.table.log import foreign_writes, schema_ids
from headrace.writer.table.log.commits.starts import LogCut
from tests.support.sample_records import config

PART = TopicPartition("clicks", 1, 3)
SOURCE = ("clicks", 3)
PLACE = r"clicks/3"
COUNTS = {SOURCE: Counts(read=10, rows=1, dead_letters=9)}
FAILED = Report(counts=COUNTS, failed_records=[FailedRecords("dead_letter", 7, 9, "no schema", *SOURCE, 41)])


def refused(kind: Callable[[str], HeadraceError], decision: object) -> HeadraceError:
    """Return the error of a decision to refuse."""
    assert isinstance(decision, Refuse), decision
    return kind(decision.reason)


def raised(call: Callable[..., object], *arguments: Any) -> HeadraceError:
    """Return what a call raises."""
    with pytest.raises(HeadraceError) as stop:
        call(*arguments)
    return stop.value


def log_that_is_shorter(_: Any) -> HeadraceError:
    return refused(LogChanged, start_decision.decide({PART: 100}, {PART: LogRange(0, 40)}, "record"))


def loss_that_is_not_allowed(_: Any) -> HeadraceError:
    return refused(LogChanged, start_decision.decide({PART: 100}, {PART: LogRange(140, 200)}, "stop"))


def cut_that_is_not_allowed(_: Any) -> HeadraceError:
    why = start_decision.refusal([LogCut(OffsetRange(PART, 40, 100), 2, True)], (), "stop")
    return LogChanged(str(why))


def cut_at_an_unknown_offset(_: Any) -> HeadraceError:
    return LogChanged(str(start_decision.refusal([], [PART], "record")))


def topic_that_was_made_again(tmp_path: Any) -> HeadraceError:
    pipeline = config(tmp_path, on_topic_recreated="stop").pipelines["clicks"]
    return raised(start_offsets._check_topics, pipeline, {"clicks": ["old"]}, {"clicks": "new"})


def frontier_that_is_lost(_: Any) -> HeadraceError:
    topics = {"clicks": Topic("clicks", "id", 1)}
    return raised(start_offsets._check_frontiers, topics, {"clicks": ["id"]}, {("clicks", 0): None})


def checkpoint_that_is_ahead(_: Any) -> HeadraceError:
    planned = spark_checkpoint.NextBatch({SOURCE: 120}, None)
    return refused(CheckpointUnusable, spark_checkpoint.decide(2, planned, {SOURCE: 100}))


def batch_that_is_ahead(_: Any) -> HeadraceError:
    return raised(builder.ranges, {SOURCE: 120}, {SOURCE: 130}, {PART: 100}, {SOURCE: PART})


def too_many_failed_records(_: Any) -> HeadraceError:
    limits = Limits(max_failed_ratio=0.5, min_failed_records=1)
    return raised(failed_records_limit.check_failed_records, "clicks", FAILED, limits)


def id_with_another_schema(_: Any) -> HeadraceError:
    return schema_ids.schema_changed_error(["clicks/ids/registry:8081/confluent/7"])


def rows_that_were_updated(_: Any) -> HeadraceError:
    return raised(foreign_writes.check_foreign, {"operation": "UPDATE"}, 12, "/lake/clicks")


def records_that_were_missed(_: Any) -> HeadraceError:
    return raised(missing_offsets.check_answers, {(SOURCE, (40, 60)): 41})


def batch_that_is_damaged(_: Any) -> HeadraceError:
    return damaged_batch(SOURCE, 41, "the checksum of a record batch does not fit")


# What stops → its row in the catalogue, where it is, and the way on.
STOPS: dict[Callable[[Any], HeadraceError], tuple[str, str, str]] = {
    log_that_is_shorter: ("34", rf"{PLACE} ends at 40, the table at 100", r"Restore the log, .*headrace topic adopt"),
    loss_that_is_not_allowed: ("log", rf"\[100, 140\) of {PLACE}", "Set on_data_loss: record"),
    cut_that_is_not_allowed: ("log", rf"\[40, 100\) of {PLACE}", "on_data_loss: record"),
    cut_at_an_unknown_offset: ("log", PLACE, "headrace topic adopt --offsets"),
    topic_that_was_made_again: ("log", "topic 'clicks'", "Set on_topic_recreated: start"),
    frontier_that_is_lost: ("frontier", "topic 'clicks'", "headrace supervisor"),
    checkpoint_that_is_ahead: ("18", rf"{PLACE} at offset 120, .* ends at 100", "headrace run --new-run --yes"),
    batch_that_is_ahead: ("18", rf"offset 100 of {PLACE}", "headrace run --new-run --yes"),
    too_many_failed_records: ("limit", rf"{PLACE} at offset 41 \(no schema\)", "headrace preview"),
    id_with_another_schema: ("schema", "schema id 7 at registry:8081", "headrace schema accept --pipeline clicks"),
    rows_that_were_updated: ("foreign", "version 12.* at /lake/clicks", "headrace rewind --to 11"),
    records_that_were_missed: ("unknown", rf"offset 41 of {PLACE}", "the next start reads them again"),
    batch_that_is_damaged: ("unknown", rf"{PLACE} at offset 41", "headrace topic adopt --offsets clicks:3="),
}


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.__name__)
def test_a_stop_names_its_place_and_the_way_on(stop: Callable[[Any], HeadraceError], tmp_path: Any) -> None:
    error = stop(tmp_path)
    row, place, way = STOPS[stop]
    said = str(error)
    assert re.search(place, said), said
    assert len(re.findall(way, said)) == 1, said
    assert classify(f"{type(error).__name__}: {said}").row == row


def test_a_task_hands_the_whole_sentence_to_the_driver() -> None:
    error = batch_that_is_damaged(None)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_each_row_at_which_the_supervisor_halts_says_what_a_person_can_do() -> None:
    halting = [damage for damage in catalogue() if damage.halt]
    assert halting
    verbs = re.compile(r"\b([Ff]ind out|Restore|Set|Create|Correct|correct|corrected|raise|take it back|Use)\b")
    assert [damage.row for damage in halting if not verbs.search(damage.message)] == []


def test_each_stop_that_no_start_ends_is_one_at_which_the_supervisor_halts(tmp_path: Any) -> None:
    for stop in STOPS:
        error = stop(tmp_path)
        verdict = classify(f"{type(error).__name__}: {error}")
        is_for_good = error.exit_code in (ExitCode.CONFIGURATION, ExitCode.FENCED, ExitCode.LIMIT)
        assert verdict.halt == is_for_good, (stop.__name__, verdict)
