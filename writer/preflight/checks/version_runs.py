"""Compares the Spark, Java and Python that are installed with those that the project ran together.

`version_runs.json` is written by `make test-versions`; `docs/VERSIONS.md` shows it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.writer.preflight.checks.finding import Finding, doubtful, good

RUNS_FILE = Path(__file__).with_name("version_runs.json")
FORMAT = 1
_CHECK = "versions"


@dataclass(frozen=True)
class Versions:
    """A Spark, such as 4.1.4, a Java by its feature number, and a Python, such as 3.12."""

    spark: str
    java: int
    python: str

    @property
    def spark_minor(self) -> str:
        """The version of Spark without its patch."""
        return ".".join(self.spark.split(".")[:2])

    def __str__(self) -> str:
        return f"Spark {self.spark}, Java {self.java}, Python {self.python}"


def read_runs() -> list[Versions]:
    """Return the versions that ran together. Raises ValueError for a file of another format."""
    document = json.loads(RUNS_FILE.read_text(encoding="utf-8"))
    if document["format"] != FORMAT:
        raise ValueError(f"{RUNS_FILE} has format {document['format']}, this version reads {FORMAT}")
    return [_parse_run(run) for run in document["runs"]]


def _parse_run(run: dict[str, str]) -> Versions:
    return Versions(run["spark"], int(run["java"].split(".")[0]), ".".join(run["python"].split(".")[:2]))


def judge_versions(installed: Versions, runs: Sequence[Versions]) -> Finding:
    """Say whether the project ran these versions: together, each beside others, or not. A patch does not count."""
    pair = {(run.spark_minor, run.java, run.python) for run in runs}
    if (installed.spark_minor, installed.java, installed.python) in pair:
        return good(_CHECK, f"{installed}: they were run together")
    untried = list[str]()
    if installed.spark_minor not in {run.spark_minor for run in runs}:
        untried.append(f"Spark {installed.spark_minor}")
    if installed.java not in {run.java for run in runs}:
        untried.append(f"Java {installed.java}")
    if installed.python not in {run.python for run in runs}:
        untried.append(f"Python {installed.python}")
    if not untried:
        return good(_CHECK, f"{installed}: each was run, not these together")
    return doubtful(
        _CHECK,
        f"{installed}: expected to work; {', '.join(untried)} not run with this release",
        f"These were run: {'; '.join(map(str, runs))}.",
    )
