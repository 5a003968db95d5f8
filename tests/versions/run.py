"""Runs the product on other versions of Spark, Java and Python, and records what came out.

    python -m tests.versions.run                     every combination
    python -m tests.versions.run newest middle       these
    python -m tests.versions.run --turn 2026-11-27   the small part of the one whose turn the day is; records nothing

Nothing is skipped: what is missing, and a test that skips, ends the run with exit code 1.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace.writer.preflight.checks.version_runs import FORMAT, RUNS_FILE
from tests.versions.combinations import Combination, choose_by_day, choose_by_name
from tests.versions.environment import ROOT, Environment, VersionMissing, make_environment

# What rests on Spark: the crash tests, its checkpoint and the words of its errors, its own Kafka source, S3A, and the
# calls into its JVM for executors.
SUITES: Mapping[str, Sequence[str]] = {
    "crash": ("tests/fault/test_kill.py", "tests/fault/test_checkpoint.py"),
    "damage": ("tests/fault/test_damage.py",),
    "sources": (
        "tests/cases/test_odd_records.py",
        "tests/spark/test_s3_run.py::test_a_table_in_a_bucket_survives_a_kill_and_a_bad_network_and_is_seen_by_all_verbs",
        "tests/spark/test_scale_run.py",
    ),
}
# Of a turn: minutes, not hours.
TURN_TESTS = (
    "tests/fault/test_kill.py::test_a_driver_killed_while_spark_writes_its_checkpoint_loses_nothing",
    "tests/fault/test_checkpoint.py::test_a_deleted_checkpoint_begins_a_new_run_from_the_frontier",
)
DEMO_EVENTS = 20_000
_SUM = re.compile(r"([\d,]+) produced = .*\+ ([\d,]+) lost, ([\d,]+) twice")
_VERSIONS = """
import json, platform
from importlib.metadata import version
from headrace.writer.clients import java_artifacts
import subprocess
java = subprocess.run([java_artifacts.spark_java(), "-version"], capture_output=True, text=True, check=True).stderr
names = ("pyspark", "pandas", "pyarrow", "numpy", "py4j", "deltalake", "datafusion", "confluent-kafka")
print(json.dumps({
    "packages": {name: version(name) for name in names},
    "kafka_source": java_artifacts.spark_release().kafka_source,
    "java": java.split('"')[1],
    "python": platform.python_version(),
}))
"""


class RunFailed(Exception):
    """A combination did not pass."""


@dataclass(frozen=True)
class Counts:
    """The tests of a suite, and how long it took."""

    passed: int
    seconds: int


def main(arguments: Sequence[str]) -> int:
    """Run what the command line names. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions.run")
    parser.add_argument("names", nargs="*", help="combinations; all without a name")
    parser.add_argument("--turn", type=date.fromisoformat, help="a day: the small part of the combination of its turn")
    parser.add_argument("--no-bench", action="store_true", help="without the ratio, for a machine that is busy")
    options = parser.parse_args(arguments)
    try:
        if options.turn is not None:
            run_turn(options.turn)
            return 0
        for combination in choose_by_name(options.names):
            record_run(run_combination(combination, with_bench=not options.no_bench))
    except (RunFailed, VersionMissing, ValueError) as error:
        print(f"test-versions: {error}", file=sys.stderr)
        return 1
    return 0


def run_turn(day: date) -> None:
    """Run demo and two crash tests on the combination whose turn a day is. Raises RunFailed, VersionMissing."""
    started_s = time.monotonic()
    combination = choose_by_day(day)
    _say(combination, f"the turn of {day}: {combination.reason}")
    environment = make_environment(combination)
    _say(combination, f"its environment is ready after {_seconds_since(started_s)} s")
    run_demo(environment)
    run_tests(environment, "turn", TURN_TESTS)
    _say(combination, f"all took {_seconds_since(started_s)} s")


def run_combination(combination: Combination, *, with_bench: bool) -> dict[str, Any]:
    """Run everything on a combination. Returns the record of it. Raises RunFailed, VersionMissing."""
    commit = _commit()
    environment = make_environment(combination)
    record = {
        "name": combination.name,
        "spark": combination.spark,
        "reason": combination.reason,
        **json.loads(environment.ask(_VERSIONS)),
        "commit": commit,
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "demo": run_demo(environment),
    }
    for suite, tests in SUITES.items():
        record[suite] = asdict(run_tests(environment, suite, tests))
    if with_bench:
        record["bench"] = measure_ratio(environment)
    return record


def run_demo(environment: Environment) -> dict[str, int]:
    """Run the demo. Returns what it counted. Raises RunFailed where an event is lost or there twice."""
    started_s = time.monotonic()
    command = [environment.python, "-m", "headrace.writer.cli", "demo", "--events", str(DEMO_EVENTS)]
    process = subprocess.run(
        command, env=environment.variables(), cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800
    )
    match = _SUM.search(process.stdout)
    counts = [] if match is None else [int(number.replace(",", "")) for number in match.groups()]
    if process.returncode != 0 or counts != [DEMO_EVENTS, 0, 0]:
        raise RunFailed(f"{environment.combination.name}: the demo failed\n{process.stdout}{process.stderr}")
    _say(environment.combination, f"demo: {counts[0]:,} events, 0 lost, 0 twice")
    return {"events": counts[0], "lost": counts[1], "twice": counts[2], "seconds": _seconds_since(started_s)}


def run_tests(environment: Environment, suite: str, tests: Sequence[str]) -> Counts:
    """Run tests in an environment. Raises RunFailed where one fails, and where one is skipped."""
    started_s = time.monotonic()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *tests]
        process = subprocess.run(command, env=environment.variables(), cwd=ROOT, check=False)
        if process.returncode != 0 or not report.exists():
            raise RunFailed(f"{environment.combination.name}: {suite} failed; the reason stands above")
        totals = count_tests(report.read_text(encoding="utf-8"))
    if totals["skipped"]:
        raise RunFailed(f"{environment.combination.name}: {suite} skipped {totals['skipped']} of its tests")
    _say(environment.combination, f"{suite}: {totals['tests']} tests passed")
    return Counts(totals["tests"], _seconds_since(started_s))


def count_tests(report: str) -> dict[str, int]:
    """Return how many tests a JUnit report has, and how many of them were skipped."""
    suites = list(ET.fromstring(report).iter("testsuite"))
    return {name: sum(int(suite.attrib[name]) for suite in suites) for name in ("tests", "skipped")}


def measure_ratio(environment: Environment) -> dict[str, float]:
    """Measure headrace against the limit of its design with what is locked, and here, one after the other.

    Raises RunFailed, VersionMissing.
    """
    locked = make_environment(choose_by_name(["locked"])[0])
    ratio_locked = _ratio(locked)
    ratio_here = _ratio(environment)
    _say(environment.combination, f"bench: {ratio_here / ratio_locked:.2f} of what the locked versions carry")
    return {"ratio": ratio_here, "ratio_locked": ratio_locked}


def _ratio(environment: Environment) -> float:
    command = [environment.python, "-m", "tests.versions.bench_ratio"]
    process = subprocess.run(
        command, env=environment.variables(), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if process.returncode != 0:
        raise RunFailed(f"{environment.combination.name}: the bench failed; the reason stands above")
    return float(json.loads(process.stdout.splitlines()[-1])["ratio"])


def record_run(record: Mapping[str, Any]) -> None:
    """Put the record of a combination in the place of its former one."""
    runs = []
    if RUNS_FILE.exists():
        runs = json.loads(RUNS_FILE.read_text(encoding="utf-8"))["runs"]
    names = [combination.name for combination in choose_by_name([])]
    runs = [run for run in runs if run["name"] != record["name"] and run["name"] in names]
    runs.append(record)
    runs.sort(key=lambda run: names.index(run["name"]))
    RUNS_FILE.write_text(json.dumps({"format": FORMAT, "runs": runs}, indent=1) + "\n", encoding="utf-8")


def _commit() -> str:
    process = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return process.stdout.strip()


def _say(combination: Combination, message: str) -> None:
    versions = f"Spark {combination.spark}, Java {combination.java}, Python {combination.python}"
    print(f"test-versions: {combination.name} ({versions}): {message}", flush=True)


def _seconds_since(started_s: float) -> int:
    return round(time.monotonic() - started_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
