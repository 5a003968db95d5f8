"""What is looked at before a start, and where it leads. Directories are written by hand."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zlib import crc32

import pytest

from headrace.recovery.checkpoints.checks import CheckFacts, TopicIds, leads_to, preflight
from headrace.recovery.checkpoints.reader import read_checkpoint
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.offsets import checkpoint_backups, run_record
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.offsets.start_decision import LogRange
from headrace.writer.storage.local import LocalStore
from tests.support.checkpoint_files import METADATA, CheckpointRun, offsets

A, B = ("clicks", 0), ("clicks", 1)
ID = "a76f7e84-306b-4262-ab49-81df29c41119"
AT = datetime(2026, 11, 22, 1, tzinfo=UTC)


@pytest.fixture
def run(tmp_path):
    """Batches 0 and 1 are done, 2 is planned."""
    made = (
        CheckpointRun(tmp_path)
        .started(0, 0)
        .planned(0, 5, 4)
        .committed(0)
        .planned(1, 6, 4)
        .committed(1)
        .planned(2, 9, 9)
    )
    (made.path / "metadata").write_text(json.dumps({"id": ID}))
    return made


def reading(run):
    return read_checkpoint(LocalStore(str(run.path)))


def facts(run, **changes):
    about = {
        "frontier": {A: 6, B: 4}, "topics": {"clicks": TopicIds("u1", "u1")},
        "log_ranges": {A: LogRange(0, 9), B: LogRange(0, 9)}, "lease": "held", **changes,
    }  # fmt: skip
    return CheckFacts(reading(run), **about)


def bad(found):
    return {check.name: (check.level, check.message) for check in preflight(found) if check.ok is False}


def test_a_checkpoint_that_can_be_gone_on_from_has_nothing(run):
    checks = preflight(facts(run))
    assert [check.name for check in checks if check.ok is not True] == ["witness"]
    assert leads_to(checks) is None


def test_the_order_is_that_in_which_a_start_needs_it(run):
    names = [check.name for check in preflight(facts(run))]
    assert names == [
        "lease", "spark", "metadata", "files", "checksums", "witness", "commits", "partitions", "frontier", "topics",
        "log",
    ]  # fmt: skip


def test_no_checkpoint_is_no_trouble(tmp_path):
    found = preflight(CheckFacts(read_checkpoint(LocalStore(str(tmp_path / "none"))), frontier={A: 5}))
    assert leads_to(found) is None
    assert "begins a new run" in found[1].message


def test_a_run_that_is_over_is_not_held_against_the_table(run):
    found = facts(run, frontier={A: 2, B: 1}, closed_run=1)
    assert bad(found) == {}
    assert "run 1 is over" in preflight(found)[1].message


@pytest.mark.parametrize(
    ("changes", "name", "level"),
    [
        ({"frontier": {A: 5, B: 4}}, "frontier", RecoveryLevel.NEW_RUN),
        ({"frontier": {A: 7, B: 4}}, "frontier", RecoveryLevel.NEW_RUN),
        ({"frontier": {A: 6}}, "partitions", RecoveryLevel.NEW_RUN),
        ({"frontier": {A: 6, B: 4, ("clicks", 2): 0}}, "partitions", RecoveryLevel.NEW_RUN),
        ({"lost_topic": "clicks"}, "frontier", RecoveryLevel.WALK_BACK),
        ({"topics": {"clicks": TopicIds("u1", None)}}, "topics", None),
        ({"topics": {"clicks": TopicIds("u1", "u2")}}, "topics", RecoveryLevel.RESTART),
        ({"log_ranges": {A: LogRange(7, 9), B: LogRange(0, 9)}}, "log", RecoveryLevel.RESTART),
        ({"log_ranges": {A: LogRange(0, 5), B: LogRange(0, 9)}}, "log", None),
        ({"log_ranges": None, "unanswered": {"kafka": "no broker answers."}}, "log", RecoveryLevel.WAIT),
        ({"frontier": None, "unanswered": {"table": "no answer."}}, "frontier", RecoveryLevel.WAIT),
    ],
)
def test_a_finding_leads_to_its_level(run, changes, name, level):
    found = bad(facts(run, **changes))
    assert found[name][0] == level
    assert leads_to(preflight(facts(run, **changes))) == level


def test_a_table_that_forgot_is_found_without_a_checkpoint_too(tmp_path):
    found = CheckFacts(read_checkpoint(LocalStore(str(tmp_path / "none"))), frontier={}, lost_topic="clicks")
    assert leads_to(preflight(found)) is RecoveryLevel.WALK_BACK


def test_a_topic_that_is_gone_is_told_in_kafkas_words(run):
    message = "topic 'clicks' does not exist on b:9092: it was deleted. Create it, or take it out of `topics`."
    (found,) = [
        c for c in preflight(facts(run, topics={"clicks": TopicIds("u1", None, message)})) if c.name == "topics"
    ]
    assert found.message == message.removesuffix(".")
    gone = {"clicks": TopicIds("u1", None, message), "views": TopicIds("u2", None, message)}
    (found,) = [check for check in preflight(facts(run, topics=gone)) if check.name == "topics"]
    assert found.message.startswith("clicks, views is not there.")


def test_a_topic_that_was_created_again_is_not_held_against_its_old_offsets(run):
    found = facts(run, topics={"clicks": TopicIds("u1", "u2")}, log_ranges={A: LogRange(0, 1), B: LogRange(0, 1)})
    assert set(bad(found)) == {"topics"}


def test_a_planned_batch_that_is_in_the_table_is_well(run):
    assert not bad(facts(run, frontier={A: 9, B: 9}))


def test_a_run_record_shows_an_edited_file_and_another_id(run):
    content = (run.path / "offsets/1").read_bytes()
    seen = run_record.new_run_record(1, "test", AT, {A: 0, B: 0}).with_batch(1, run_record.Stamp(crc32(content), 5), ID)
    assert not bad(facts(run, run_record=seen))
    assert bad(facts(run, run_record=replace(seen, query_id="other")))["metadata"][0] is RecoveryLevel.NEW_RUN
    (run.path / "offsets/1").write_text(f"v1\n{METADATA}\n{offsets(6, 3)}")
    assert bad(facts(run, run_record=seen))["witness"] == (
        RecoveryLevel.NEW_RUN, "offsets/1 is not what the writer acted on: it was edited",
    )  # fmt: skip


def test_a_run_record_is_read_as_it_was_written(tmp_path):
    store = LocalStore(str(tmp_path))
    seen = run_record.new_run_record(7, "there is no checkpoint", AT, {A: 5, B: 0})
    for batch in range(25):
        seen = seen.with_batch(batch, run_record.Stamp(batch, None if batch == 24 else batch), ID)
    run_record.write_run_record(store, seen)
    assert run_record.read_run_record(store, 7) == seen
    assert sorted(seen.batches) == list(range(5, 25))
    assert run_record.read_run_record(store, 8) is None
    (tmp_path / "witness/000007.json").write_text("{")
    assert run_record.read_run_record(store, 7) is None


# --- a checkpoint that headrace did not write ---------------------------------------------------------------------


def test_several_sources_are_told_apart(run):
    other = json.dumps({"installs": {"0": 3}})
    (run.path / "offsets/2").write_text(f'v1\n{METADATA}\n{offsets(9, 9)}\n{{"logOffset":4}}\n-\n{other}')
    found = reading(run)
    assert found.batches[2].sources == [{A: 9, B: 9}, None, None, {("installs", 0): 3}]
    assert found.end_offsets() == {A: 9, B: 9, ("installs", 0): 3}


def test_of_a_stranger_no_table_is_asked(run):
    found = preflight(
        replace(facts(run), is_foreign=True, frontier=None, log_ranges={A: LogRange(7, 9), B: LogRange(0, 9)})
    )
    message = {check.name: check for check in found}
    assert message["frontier"].ok is None
    assert message["log"].level is RecoveryLevel.LATEST


# --- files that cannot be read ------------------------------------------------------------------------------------


def corrupt(run, name, content=b""):
    (run.path / name).write_bytes(content)
    return run


FRONTIERS = [{A: 6, B: 4}, {A: 9, B: 9}, {A: 7, B: 4}, {A: 6, B: 4, ("clicks", 2): 0}, None]


@pytest.mark.parametrize("frontier", FRONTIERS, ids=["before", "after", "between", "more partitions", "unknown"])
@pytest.mark.parametrize("content", [b"", b"v1", b"v1\n{", b"\0\xff"])
@pytest.mark.parametrize("name", ["offsets/2", "offsets/1", "commits/1", "metadata"])
def test_a_corrupt_file_that_spark_reads_leads_to_a_new_run_whatever_the_table_says(run, name, content, frontier):
    assert leads_to(preflight(facts(corrupt(run, name, content), frontier=frontier))) is RecoveryLevel.NEW_RUN


@pytest.mark.parametrize("name", ["offsets/0", "commits/0", "sources/0/0"])
def test_a_corrupt_file_that_spark_does_not_read_again_leads_to_no_new_run(run, name):
    found = bad(facts(corrupt(run, name)))
    assert {check: level for check, (level, _) in found.items()} == {"files": RecoveryLevel.RESTART}


def test_the_beginning_of_a_first_batch_that_is_corrupt_leads_to_a_new_run(tmp_path):
    first = CheckpointRun(tmp_path).started(0, 0).planned(0, 5, 4)
    (first.path / "metadata").write_text(json.dumps({"id": ID}))
    level, message = bad(facts(corrupt(first, "sources/0/0"), frontier={A: 0, B: 0}))["files"]
    assert level is RecoveryLevel.NEW_RUN
    assert "sources/0/0" in message


def test_a_checksum_in_the_way_is_found_and_others_are_not(run):
    (run.path / "offsets/.0.crc").write_bytes(b"crc")
    (run.path / "offsets/0").unlink()
    assert not bad(facts(run))
    (run.path / "offsets/.3.crc").write_bytes(b"crc")
    level, message = bad(facts(run))["checksums"]
    assert level is RecoveryLevel.NEW_RUN
    assert message.startswith("offsets/.3.crc of files")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("offsets/2", "It may be removed by hand only where your sink has nothing of batch 2"),
        ("offsets/1", ""),
        ("commits/1", ""),
    ],
)
def test_of_a_stranger_only_files_of_the_newest_batch_may_be_removed_by_hand(run, name, hint):
    found = facts(corrupt(run, name), is_foreign=True, frontier=None)
    _, message = bad(found)["files"]
    assert message.partition(". ")[2] == hint


def directory(run, name):
    """Put a directory, with a file in it, where Spark has a file."""
    (run.path / name).unlink(missing_ok=True)
    (run.path / name / "below").mkdir(parents=True)
    (run.path / name / "below/kept").write_bytes(b"kept")
    return run


@pytest.mark.parametrize(
    ("name", "check", "level"),
    [
        ("offsets/3", "files", RecoveryLevel.NEW_RUN),
        ("commits/2", "files", RecoveryLevel.NEW_RUN),
        ("commits/99", "files", RecoveryLevel.NEW_RUN),
        ("offsets/.3.crc", "checksums", RecoveryLevel.NEW_RUN),
        ("offsets/1", "files", RecoveryLevel.NEW_RUN),
        ("metadata", "metadata", RecoveryLevel.NEW_RUN),
        ("sources/0/0", "files", RecoveryLevel.RESTART),
    ],
)
def test_a_directory_where_spark_has_a_file_is_found(run, name, check, level):
    assert bad(facts(directory(run, name)))[check][0] is level


@pytest.mark.parametrize("name", ["offsets", "commits", "sources", "state"])
def test_a_file_where_spark_has_a_directory_is_found(run, name):
    shutil.rmtree(run.path / name, ignore_errors=True)
    (run.path / name).write_bytes(b"")
    level, message = bad(facts(run))["files"]
    assert level is RecoveryLevel.NEW_RUN
    assert f"{name}: it is a file, where Spark has a directory" in message


# --- copies -------------------------------------------------------------------------------------------------------


def test_a_copy_has_what_spark_needs_and_no_more(run, tmp_path):
    store = Checkpoints(str(tmp_path), "clicks").store
    copy = checkpoint_backups.back_up(store, 1, 2, AT)
    assert checkpoint_backups.list_backups(store) == [copy]
    found = read_checkpoint(LocalStore(f"{store.location}/{copy.folder}"))
    assert found.planned == [1, 2]
    assert (found.start_offsets(), found.end_offsets()) == (reading(run).start_offsets(), reading(run).end_offsets())
    checkpoint_backups.remove_backup(store, copy)
    assert checkpoint_backups.list_backups(store) == []


def test_copies_beyond_the_policy_go_and_the_newest_stays():
    made = [checkpoint_backups.CheckpointBackup(1, n, AT - timedelta(hours=n)) for n in range(5)]
    assert checkpoint_backups.expired_backups(made, 3, timedelta(days=1), AT) == made[3:]
    assert checkpoint_backups.expired_backups(made, 10, timedelta(minutes=90), AT) == made[2:]
    assert checkpoint_backups.expired_backups(made, 10, timedelta(0), AT + timedelta(days=9)) == made[1:]
