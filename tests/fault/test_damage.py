"""Every damage of the catalogue that files can have, done to a checkpoint that real Spark wrote.

Each time: what plain Spark makes of it, what the doctor finds, how headrace ends or goes on, which recovery level
makes it right, and whether each record is there once.
"""

import json
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from typer.testing import CliRunner

from headrace.recovery.checkpoints.checks import Check, leads_to, preflight
from headrace.recovery.checkpoints.facts import collect_pipeline_facts
from headrace.recovery.escalation.diagnosis import diagnose_exit
from headrace.recovery.escalation.error_catalogue import Damage, catalogue, classify
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.cli.main import app
from headrace.writer.clients.java_artifacts import spark_release
from headrace.writer.offsets.spark_checkpoint import parse_offsets
from tests.support import oracle
from tests.support.checkpoint_damages import CASES, Case
from tests.support.damaged_checkpoint import (
    PIPELINE,
    PipelineCopy,
    QueryResult,
    blank,
    die_in_a_batch,
    fill_golden,
    rewrite,
    run_plain_query,
    session,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
RecordOutcome = Callable[..., None]
BETWEEN = "between two starts"
ROWS = {damage.row: damage for damage in catalogue()}


@dataclass(frozen=True)
class Ground:
    """Spark, and two checkpoints to damage: one with all batches done, one with a batch that was only planned."""

    spark: Any
    done: PipelineCopy
    planned: PipelineCopy


@pytest.fixture(scope="module")
def workspace(
    tmp_path_factory: pytest.TempPathFactory, bootstrap: str, registry_url: str, topic: MakeTopic
) -> Iterator[Ground]:
    root = tmp_path_factory.mktemp("damage")

    name = topic(2)
    pipeline_copy = blank(root / "done", bootstrap, registry_url, name)
    with session(pipeline_copy.config) as spark:
        fill_golden(pipeline_copy, spark)
        planned = pipeline_copy.copy(root / "planned")
        die_in_a_batch(spark, planned)
        pipeline_copy.site.fill(name, 20, seed=13)  # what is still to be read
        yield Ground(spark, pipeline_copy, planned)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.long] if index % 5 else [])  # one in five in `make test`
        for index, case in enumerate(CASES)
    ],
)
def test_a_damaged_checkpoint_costs_nothing(
    workspace: Ground, tmp_path: Path, record_outcome: RecordOutcome, case: Case
) -> None:
    pipeline_copy = (workspace.planned if case.half else workspace.done).copy(tmp_path / "headrace")
    case.damage(pipeline_copy)
    row = ROWS[case.row]
    spark = _run_plain_spark(workspace, pipeline_copy.copy(tmp_path / "plain"), case, row)
    checks = preflight(collect_pipeline_facts(pipeline_copy.config, PIPELINE).facts)
    bad = [check for check in checks if check.ok is False]
    _check_findings(case, row, bad)
    before = time.monotonic()
    level, ended = "", "goes on by itself"
    if case.asked:
        assert leads_to(checks) is RecoveryLevel.NEW_RUN
        ended, level, code = "not started", _begin_new_run(workspace, pipeline_copy), 0
    else:
        code, text = pipeline_copy.carry(workspace.spark)
        assert code == case.ended, text
    if code:
        ended = f"exit {code}"
        verdict = diagnose_exit(code, text)
        assert _is_alike(verdict.row, row), f"{verdict.row}: {text}"
        assert verdict.halt or verdict.level is RecoveryLevel.NEW_RUN, verdict
        level = _begin_new_run(workspace, pipeline_copy, halt=verdict.halt)
    seconds = time.monotonic() - before
    assert level == case.level
    oracle.check_rows(pipeline_copy.lake, PIPELINE)
    oracle.check(pipeline_copy.lake, PIPELINE, pipeline_copy.site.ends(pipeline_copy.topic))
    assert preflight_is_clean(pipeline_copy)
    moment = "a batch is planned" if case.half else "all batches are done"
    record_outcome(case.row, f"{row.damage} ({case.detail})", moment, spark, ended, bad, level, seconds)


def test_a_checkpoint_that_is_torn_again_in_each_run_costs_nothing(
    workspace: Ground, tmp_path: Path, record_outcome: RecordOutcome
) -> None:
    """Each new run dies in a batch whose plan is torn then, or after the batch is committed."""
    pipeline_copy = workspace.planned.copy(tmp_path / "headrace")
    before = time.monotonic()
    for seed in range(20, 23):
        rewrite(pipeline_copy.newest(), b"")
        code, text = pipeline_copy.carry(workspace.spark)
        assert (code, diagnose_exit(code, text).level) == (3, RecoveryLevel.NEW_RUN), text
        _begin_new_run(workspace, pipeline_copy)
        if seed % 2:
            pipeline_copy.site.fill(pipeline_copy.topic, 20, seed=seed)
        else:
            die_in_a_batch(workspace.spark, pipeline_copy)
        oracle.check_rows(pipeline_copy.lake, PIPELINE)
    seconds = (time.monotonic() - before) / 3
    rewrite(pipeline_copy.newest(), b"")
    seen, bad = _examine_copy(workspace, pipeline_copy, tmp_path)
    _begin_new_run(workspace, pipeline_copy)
    oracle.check(pipeline_copy.lake, PIPELINE, pipeline_copy.site.ends(pipeline_copy.topic))
    spark = f"`{_first_words(seen.text)}`"
    record_outcome("1", "offsets/N is empty (in each run)", "a batch is planned", spark, "exit 3", bad, "L3", seconds)


def test_a_torn_plan_of_a_batch_that_the_table_has_costs_nothing(
    workspace: Ground, tmp_path: Path, record_outcome: RecordOutcome
) -> None:
    """Without its commit file the batch looks as after a driver that died behind the table's commit."""
    pipeline_copy = workspace.done.copy(tmp_path / "headrace")
    commit = pipeline_copy.newest("commits")
    rewrite(commit, b"")
    commit.unlink()
    rewrite(pipeline_copy.newest(), b"")
    seen, bad = _examine_copy(workspace, pipeline_copy, tmp_path)
    before = time.monotonic()
    code, text = pipeline_copy.carry(workspace.spark)
    assert (code, diagnose_exit(code, text).level) == (3, RecoveryLevel.NEW_RUN), text
    _begin_new_run(workspace, pipeline_copy)
    seconds = time.monotonic() - before
    oracle.check(pipeline_copy.lake, PIPELINE, pipeline_copy.site.ends(pipeline_copy.topic))
    spark = f"`{_first_words(seen.text)}`"
    record_outcome(
        "1", "offsets/N is empty (its batch is in the table)", "a batch is planned", spark, "exit 3", bad, "L3", seconds
    )


@pytest.mark.parametrize("gone", [0, 5])
def test_a_torn_plan_with_a_partition_that_the_table_does_not_have_costs_nothing(
    workspace: Ground, tmp_path: Path, pipeline_copy: PipelineCopy, record_outcome: RecordOutcome, gone: int
) -> None:
    """Only the torn plan had the new partition. With `gone`, Kafka loses its first records before the new run."""
    _add_partition(pipeline_copy)
    die_in_a_batch(workspace.spark, pipeline_copy)
    assert (pipeline_copy.topic, 2) in parse_offsets(pipeline_copy.newest().read_text().splitlines()[2])
    rewrite(pipeline_copy.newest(), b"")
    seen, bad = _examine_copy(workspace, pipeline_copy, tmp_path)
    assert leads_to(bad) is RecoveryLevel.NEW_RUN
    if gone:
        pipeline_copy.site.forget(pipeline_copy.topic, {2: gone})
    before = time.monotonic()
    _begin_new_run(workspace, pipeline_copy)
    seconds = time.monotonic() - before
    oracle.check(pipeline_copy.lake, PIPELINE, pipeline_copy.site.ends(pipeline_copy.topic))
    lost = oracle.gaps(pipeline_copy.lake).get((pipeline_copy.topic, 2), [])
    assert list(lost) == list(range(gone))
    what = f"offsets/N is empty (with a new partition{', of which Kafka lost the first records' if gone else ''})"
    spark = f"`{_first_words(seen.text)}`"
    record_outcome("1", what, "a batch is planned", spark, "not started", bad, "L3", seconds)


def test_the_verb_says_of_a_pipeline_what_the_checks_found(workspace: Ground, tmp_path: Path) -> None:
    pipeline_copy = workspace.planned.copy(tmp_path / "own")
    result = CliRunner().invoke(app, ["doctor", str(pipeline_copy.site.config)], catch_exceptions=False)
    assert (result.exit_code, "All is well." in result.output) == (0, True), result.output
    rewrite(pipeline_copy.newest(), b"")
    result = CliRunner().invoke(app, ["doctor", str(pipeline_copy.site.config), "--json"], catch_exceptions=False)
    (document,) = json.loads(result.output)["checkpoints"]
    assert result.exit_code == 1
    assert (document["pipeline"], document["run"], document["leads_to"]) == (PIPELINE, 1, "L3")
    assert [check["name"] for check in document["checks"] if check["ok"] is None] == ["lease"]


def preflight_is_clean(pipeline_copy: PipelineCopy) -> bool:
    """The doctor finds nothing any more, in what headrace goes on with."""
    return leads_to(preflight(collect_pipeline_facts(pipeline_copy.config, PIPELINE).facts)) is None


def _run_plain_spark(workspace: Ground, copy: PipelineCopy, case: Case, row: Damage) -> str:
    """Let plain Spark go on from the damaged checkpoint. Returns what it does, in words."""
    had = oracle.offsets(copy.lake)
    # headrace's session has it off, and Spark's default is on.
    configuration = {"spark.sql.streaming.checkpoint.verifyMetadataExists.enabled": "true"}
    seen = run_plain_query(
        workspace.spark, copy.site.bootstrap, copy.checkpoint, topics=copy.topic, configuration=configuration
    )
    lost, twice = _count_offsets(had, seen, copy.site.ends(copy.topic))
    later = case.later_of(spark_release().minor)
    if later is not None:
        assert re.fullmatch(later.text, seen.text, re.DOTALL), seen.text
        assert twice == later.twice
        if seen.text:
            return f"`{_first_words(seen.text)}`"
        assert lost == 0
        return "starts; nothing lost"
    if row.symptom is not None:
        assert row.symptom.search(seen.text), seen.text
        assert twice == case.twice
        also = f", after it read {twice} records again" if twice else ""
        return f"`{_first_words(seen.text)}`{also}"
    if case.row == "10":
        assert ROWS["9"].symptom is not None
        assert ROWS["9"].symptom.search(seen.text), seen.text
        assert twice == case.twice
        return f"reads {twice} records again, then `CONCURRENT_STREAM_LOG_UPDATE`"
    if case.row == "34":
        assert ROWS["28"].symptom is not None
        assert ROWS["28"].symptom.search(seen.text), seen.text
        return "`PARTITION_OFFSET_CHANGED`"
    assert not seen.text
    assert (lost, twice) == (case.lost, case.twice)
    said = [f"loses {lost} records"] if lost else []
    said += [f"reads {twice} records again"] if twice else []
    return "starts; " + (" and ".join(said) or "nothing lost")


def _first_words(text: str) -> str:
    """The first sentence of what Spark says, without places that are this test's alone."""
    reason = re.search(r"^\s*Reason: ((?:Partition|Added|Could not read)[^\n]*)", text, re.MULTILINE)
    said = reason[1] if reason else text.rsplit("terminated with exception: ", maxsplit=1)[-1]
    said = said.removeprefix("Py4JJavaError: ")
    line = next(line for line in said.splitlines() if not line.startswith("An error occurred"))
    line = re.sub(r"(?:file:)?/\S*/(offsets|commits|sources|metadata)", r"\1", line.lstrip(": "))
    line = re.sub(r"(?<=offsets/\.).*(?=\.tmp)", "…", re.sub(r"topic-[0-9a-f]{8}", "clicks", line))
    return re.sub(r" SQLSTATE: \w+.*", "", line)[:120].strip()


def _count_offsets(
    had: dict[oracle.Source, list[int]], seen: QueryResult, ends: dict[oracle.Source, int]
) -> tuple[int, int]:
    """How many records are in neither table nor stream, and how many are there once more."""
    lost = twice = 0
    for source, end in ends.items():
        times = Counter(had.get(source, ())) + seen.offsets.get(source, Counter())
        lost += sum(offset not in times for offset in range(end))
        twice += sum(count - 1 for count in times.values())
    return lost, twice


def _check_findings(case: Case, row: Damage, bad: list[Check]) -> None:
    """The doctor finds what the catalogue says, and it leads to the rung that the catalogue says."""
    if case.row in ("13", "21", "18p"):
        assert not bad, "it costs nothing"
        return
    assert bad
    if case.row == "34":
        assert leads_to(bad) is RecoveryLevel.NEW_RUN
        return
    assert row.finding in {check.name for check in bad}, bad
    if row.halt:
        assert any(check.halt for check in bad)
    else:
        wanted = RecoveryLevel.NEW_RUN if case.level == "L3" else row.level
        assert leads_to(bad) == wanted, bad


def _is_alike(found: str, row: Damage) -> bool:
    """Texts of ours do not tell every damage apart: what they lead to is the same."""
    return found == row.row or (ROWS[found].level, ROWS[found].halt) == (row.level, row.halt) or row.row in ("34", "1")


def _begin_new_run(workspace: Ground, pipeline_copy: PipelineCopy, *, halt: bool = False) -> str:
    """Begin a new run, as the supervisor does, or a person if it halts. Returns the level."""
    code, text = pipeline_copy.carry(workspace.spark, new_run=True)
    assert code == 0, text
    return "a person, then L3" if halt else "L3"


# --- damages that Kafka does -------------------------------------------------------------------------------------


@pytest.fixture
def pipeline_copy(workspace: Ground, tmp_path: Path, topic: MakeTopic) -> PipelineCopy:
    """A pipeline of its own, with 60 records in the table and 40 that are still to be read."""
    made = blank(tmp_path / "own", workspace.done.site.bootstrap, workspace.done.site.registry_url, topic(2))
    made.site.fill(made.topic, 60)
    code, text = made.carry(workspace.spark)
    assert code == 0, text
    made.site.fill(made.topic, 40, seed=8)
    return made


def _examine_copy(workspace: Ground, pipeline_copy: PipelineCopy, tmp_path: Path) -> tuple[QueryResult, list[Check]]:
    """What plain Spark sees, from a copy of the checkpoint, and what the doctor finds."""
    copy = pipeline_copy.copy(tmp_path / "plain")
    seen = run_plain_query(workspace.spark, pipeline_copy.site.bootstrap, copy.checkpoint, topics=pipeline_copy.topic)
    checks = preflight(collect_pipeline_facts(pipeline_copy.config, PIPELINE).facts)
    return seen, [check for check in checks if check.ok is False]


def _add_partition(pipeline_copy: PipelineCopy) -> None:
    """Add partition 2 to the topic, with 20 records."""
    admin = AdminClient({"bootstrap.servers": pipeline_copy.site.bootstrap})
    admin.create_partitions([NewPartitions(pipeline_copy.topic, 3)])[pipeline_copy.topic].result(30)
    sender = Producer({"bootstrap.servers": pipeline_copy.site.bootstrap})
    for key, value in pipeline_copy.site.values(pipeline_copy.topic, 20, seed=10):
        sender.produce(pipeline_copy.topic, value, key, partition=2)
    assert sender.flush(30) == 0


def _check_recovery(
    workspace: Ground,
    pipeline_copy: PipelineCopy,
    row: str,
    spark: str,
    bad: list[Check],
    record_outcome: RecordOutcome,
    *,
    lost: bool = False,
) -> None:
    """Start headrace, which goes on by itself; with `lost`, some records are a gap now."""
    before = time.monotonic()
    code, text = pipeline_copy.carry(workspace.spark)
    assert code == 0, text
    seconds = time.monotonic() - before
    oracle.check(pipeline_copy.lake, PIPELINE, pipeline_copy.site.ends(pipeline_copy.topic))
    gone = sum(map(len, oracle.gaps(pipeline_copy.lake).values()))
    assert bool(gone) == lost
    ended = f"goes on by itself; {gone} offsets are a gap" if gone else "goes on by itself"
    waits = ROWS[row].level is RecoveryLevel.WAIT
    ended = "exit 1 as long as it lasts" if waits else ended
    record_outcome(row, ROWS[row].damage, BETWEEN, spark, ended, bad, "L0" if waits else "", seconds)


def test_records_that_aged_out_are_a_gap_and_no_more(
    workspace: Ground, tmp_path: Path, pipeline_copy: PipelineCopy, record_outcome: RecordOutcome
) -> None:
    pipeline_copy.site.forget(
        pipeline_copy.topic, {p: end - 5 for (_, p), end in pipeline_copy.site.ends(pipeline_copy.topic).items()}
    )
    seen, bad = _examine_copy(workspace, pipeline_copy, tmp_path)
    assert classify(seen.text).level is RecoveryLevel.RESTART, seen.text
    assert {check.name: check.level for check in bad} == {"log": RecoveryLevel.RESTART}
    oracle.check_rows(pipeline_copy.lake, PIPELINE)
    _check_recovery(workspace, pipeline_copy, "27", f"`{_first_words(seen.text)}`", bad, record_outcome, lost=True)


@pytest.mark.parametrize(("row", "count"), [("28", 20), ("29", 200)])
def test_a_topic_that_was_created_again_is_read_from_its_beginning(
    workspace: Ground, tmp_path: Path, pipeline_copy: PipelineCopy, record_outcome: RecordOutcome, row: str, count: int
) -> None:
    before = oracle.by_part(pipeline_copy.lake)
    pipeline_copy.site.again(pipeline_copy.topic, 2)
    pipeline_copy.site.fill(pipeline_copy.topic, count, seed=9)
    seen, bad = _examine_copy(workspace, pipeline_copy, tmp_path)
    if row == "28":
        assert classify(seen.text).level is RecoveryLevel.RESTART, seen.text
        spark = f"`{_first_words(seen.text)}`"
    else:
        assert not seen.text
        assert seen.rows == count - 60
        spark = f"starts; loses {count - seen.rows} records"
    assert {check.name: check.level for check in bad} == {"topics": RecoveryLevel.RESTART}
    code, text = pipeline_copy.carry(workspace.spark)
    assert code == 0, text
    ends = pipeline_copy.site.ends(pipeline_copy.topic)
    again = {(pipeline_copy.topic, 2, p): range(end) for (_, p), end in ends.items()}
    oracle.check_rows(pipeline_copy.lake, PIPELINE)
    oracle.check_exactly(pipeline_copy.lake, {**before, **again})
    record_outcome(row, ROWS[row].damage, BETWEEN, spark, "goes on by itself", bad, "", 0.0)


def test_a_topic_that_is_gone_waits_for_a_person(
    workspace: Ground, tmp_path: Path, pipeline_copy: PipelineCopy, record_outcome: RecordOutcome
) -> None:
    admin = AdminClient({"bootstrap.servers": pipeline_copy.site.bootstrap})
    admin.delete_topics([pipeline_copy.topic])[pipeline_copy.topic].result(30)
    seen, bad = _examine_copy(workspace, pipeline_copy, tmp_path)
    assert classify(seen.text).row == "30", seen.text
    assert [check.name for check in bad if check.halt] == ["topics"]
    code, text = pipeline_copy.carry(workspace.spark)
    assert (code, classify(text).row) == (2, "30")
    assert classify(text).halt
    oracle.check_rows(pipeline_copy.lake, PIPELINE)
    had = oracle.by_part(pipeline_copy.lake)
    admin.create_topics([NewTopic(pipeline_copy.topic, 2, 1)])[pipeline_copy.topic].result(30)
    pipeline_copy.site.fill(pipeline_copy.topic, 30, seed=9)
    code, text = pipeline_copy.carry(workspace.spark)
    assert code == 0, text
    again = {
        (pipeline_copy.topic, 2, p): range(end) for (_, p), end in pipeline_copy.site.ends(pipeline_copy.topic).items()
    }
    oracle.check_exactly(pipeline_copy.lake, {**had, **again})
    record_outcome("30", ROWS["30"].damage, BETWEEN, f"`{_first_words(seen.text)}`", "exit 2", bad, "a person", 0.0)


def test_a_checkpoint_of_another_topic_is_left_aside(
    workspace: Ground, tmp_path: Path, pipeline_copy: PipelineCopy, record_outcome: RecordOutcome
) -> None:
    own = pipeline_copy.checkpoint
    shutil.rmtree(own)
    shutil.copytree(workspace.done.checkpoint, own)
    seen, bad = _examine_copy(workspace, pipeline_copy, tmp_path)
    assert ROWS["31"].symptom is not None
    assert ROWS["31"].symptom.search(seen.text), seen.text
    assert "partitions" in {check.name for check in bad}
    assert leads_to(bad) is RecoveryLevel.NEW_RUN
    _check_recovery(workspace, pipeline_copy, "31", f"`{_first_words(seen.text)}`", bad, record_outcome)


@pytest.mark.parametrize(("row", "gone"), [("32", 5), ("33", 0)])
def test_partitions_that_were_added_are_read_from_what_there_is(
    workspace: Ground, tmp_path: Path, pipeline_copy: PipelineCopy, record_outcome: RecordOutcome, row: str, gone: int
) -> None:
    _add_partition(pipeline_copy)
    if gone:
        pipeline_copy.site.forget(pipeline_copy.topic, {2: gone})
    seen, bad = _examine_copy(workspace, pipeline_copy, tmp_path)
    symptom = ROWS[row].symptom
    if symptom is None:
        assert not seen.text
        spark = "starts; nothing lost"
    else:
        assert symptom.search(seen.text), seen.text
        spark = f"`{_first_words(seen.text)}`"
    _check_recovery(workspace, pipeline_copy, row, spark, bad, record_outcome, lost=bool(gone))


def test_a_broker_that_is_down_is_waited_for(
    workspace: Ground, tmp_path: Path, pipeline_copy: PipelineCopy, record_outcome: RecordOutcome
) -> None:
    nobody, copy = "127.0.0.1:9", pipeline_copy.copy(tmp_path / "plain")
    fast = {"kafka.default.api.timeout.ms": "4000", "kafka.request.timeout.ms": "2000"}
    seen = run_plain_query(workspace.spark, nobody, copy.checkpoint, topics=pipeline_copy.topic, options=fast)
    assert classify(seen.text).row == "26", seen.text
    pipeline_copy.site.overrides["kafka"] = {"bootstrap_servers": nobody, "request_timeout": "2 s"}
    bad = [
        check for check in preflight(collect_pipeline_facts(pipeline_copy.config, PIPELINE).facts) if check.ok is False
    ]
    assert leads_to(bad) is RecoveryLevel.WAIT
    code, text = pipeline_copy.carry(workspace.spark)
    assert (code, classify(text).level) == (1, RecoveryLevel.WAIT), text
    oracle.check_rows(pipeline_copy.lake, PIPELINE)
    pipeline_copy.site.overrides.pop("kafka")
    spark = f"`{_first_words(seen.text)}`"
    _check_recovery(workspace, pipeline_copy, "26", spark, bad, record_outcome)


def test_a_storage_that_refuses_offsets_is_waited_for(
    workspace: Ground, tmp_path: Path, pipeline_copy: PipelineCopy, record_outcome: RecordOutcome
) -> None:
    copy = pipeline_copy.copy(tmp_path / "plain")
    with _refuse_files(copy.checkpoint / "offsets"):
        seen = run_plain_query(
            workspace.spark, pipeline_copy.site.bootstrap, copy.checkpoint, topics=pipeline_copy.topic
        )
    assert classify(seen.text).row == "23", seen.text
    with _refuse_files(pipeline_copy.checkpoint / "commits"):
        code, text = pipeline_copy.carry(workspace.spark)
    assert (code, classify(text).level) == (1, RecoveryLevel.WAIT), text
    oracle.check_rows(pipeline_copy.lake, PIPELINE)
    spark = f"`{_first_words(seen.text)}`"
    _check_recovery(workspace, pipeline_copy, "23", spark, [], record_outcome)


@contextmanager
def _refuse_files(folder: Path) -> Iterator[None]:
    """Let a directory take no new files. Root may write anywhere, except where the file system itself says no."""
    done = subprocess.run(["chattr", "+i", folder], capture_output=True, text=True, check=False)
    assert not done.returncode, f"{done.stderr.strip()}: run it as root on a file system with that flag, such as ext4"
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)
