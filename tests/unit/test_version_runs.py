"""Which versions were run: what `validate` says of those that are installed, and how they are run."""

import json
import re
from datetime import date, timedelta
from pathlib import Path

import pytest

from headrace.writer.clients.java_artifacts import SPARK_RELEASES, spark_release
from headrace.writer.preflight.checks.version_runs import Versions, judge_versions, read_runs
from tests.versions.combinations import COMBINATIONS, LOCKED, SPARK_HASHES, choose_by_day, choose_by_name
from tests.versions.environment import LOCK, lock_with_spark
from tests.versions.run import count_tests

RUNS = [Versions("4.0.2", 17, "3.11"), Versions("4.2.1", 25, "3.13")]


@pytest.mark.parametrize(
    ("installed", "status", "words"),
    [
        (Versions("4.0.2", 17, "3.11"), "ok", "they were run together"),
        (Versions("4.0.9", 17, "3.11"), "ok", "they were run together"),
        (Versions("4.2.1", 17, "3.11"), "ok", "each was run, not these together"),
        (Versions("4.2.1", 18, "3.11"), "warning", "expected to work; Java 18 not run with this release"),
        (Versions("4.1.0", 18, "3.14"), "warning", "expected to work; Spark 4.1, Java 18, Python 3.14 not run"),
    ],
)
def test_validate_says_whether_the_versions_were_run(installed: Versions, status: str, words: str) -> None:
    finding = judge_versions(installed, RUNS)
    assert (finding.check, finding.status) == ("versions", status)
    assert finding.message.startswith(f"Spark {installed.spark}, Java {installed.java}, Python {installed.python}: ")
    assert words in finding.message
    if status == "warning":
        assert "Spark 4.2.1, Java 25, Python 3.13" in finding.fix


def test_what_was_recorded_is_of_the_combinations_and_lost_nothing() -> None:
    runs = json.loads((Path(__file__).parents[2] / "writer/preflight/checks/version_runs.json").read_text())["runs"]
    assert len(read_runs()) == len(runs)
    for run in runs:
        (combination,) = choose_by_name([run["name"]])
        assert run["spark"] == run["packages"]["pyspark"] == combination.spark
        assert run["java"].split(".")[0] == str(combination.java)
        assert run["python"].startswith(f"{combination.python}.")
        assert (run["demo"]["lost"], run["demo"]["twice"]) == (0, 0)
        assert min(run[suite]["passed"] for suite in ("crash", "damage", "sources")) > 0


def test_each_combination_has_a_spark_of_the_table_a_java_that_it_runs_on_and_an_archive() -> None:
    for combination in COMBINATIONS:
        assert combination.java <= spark_release(combination.spark).java_max
        assert re.fullmatch(r"[0-9a-f]{64}", SPARK_HASHES[combination.spark])
    assert {spark_release(combination.spark).minor for combination in COMBINATIONS} == set(SPARK_RELEASES)


def test_turns_take_each_combination_that_is_not_locked() -> None:
    first = date(2026, 11, 27)
    turns = [choose_by_day(first + timedelta(days=day)) for day in range(4)]
    assert {turn.name for turn in turns} == {one.name for one in COMBINATIONS if one.spark != LOCKED}
    assert choose_by_day(first) == turns[0]


def test_a_name_that_is_no_combination_is_said() -> None:
    assert choose_by_name([]) == list(COMBINATIONS)
    with pytest.raises(ValueError, match="'oldest' is no combination; there are locked, "):
        choose_by_name(["oldest"])


def test_the_lock_changes_by_its_spark_alone() -> None:
    lock = LOCK.read_text()
    assert lock_with_spark(lock, LOCKED) == lock
    before = set(lock.splitlines())
    after = set(lock_with_spark(lock, "4.2.1").splitlines())
    assert after - before == {"pyspark==4.2.1 \\", f"    --hash=sha256:{SPARK_HASHES['4.2.1']}"}
    assert {line.split("==")[0] for line in before - after if "==" in line} == {"pyspark"}
    assert len(before - after) == 2


def test_skipped_tests_are_counted() -> None:
    report = '<testsuites><testsuite tests="3" skipped="1"/><testsuite tests="2" skipped="0"/></testsuites>'
    assert count_tests(report) == {"tests": 5, "skipped": 1}
