"""Writes docs/VERSIONS.md: which versions of Spark, Java and Python ran together, and what came out.

`make test-versions` records the runs; `make reference` writes the page.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.writer.clients.java_artifacts import SPARK_RELEASES
from headrace.writer.preflight.checks.version_runs import RUNS_FILE
from tests.versions.combinations import COMBINATIONS, Combination
from tests.versions.run import SUITES

_INTRODUCTION = """# Versions that were run

Written by `make reference` from `writer/preflight/checks/version_runs.json`; do not edit. `make test-versions` makes an
environment for each combination, with the packages of `requirements.lock` beside its pyspark, and records what came
out. The full suite (`make test`, `make test-long`) runs on the locked versions only.

`headrace validate` says which versions are installed, and whether they were run. Why these:
[ADR 65](adr/0065-a-range-of-spark.md).

## Combinations

*Demo*: events that it sent, and how many were lost or there twice. *Crash*: drivers and workers killed with `kill -9`,
and checkpoints that are gone, old or edited. *Damage*: [the catalogue of damages](RECOVERY.md), done to checkpoints
that this Spark wrote. *Sources*: Spark's own Kafka source, checkpoints in S3, and executors that come and go. *Bench*:
events in a processor second, by those of the locked versions, measured one after the other.

| combination | Spark | Java | Python | demo | crash | damage | sources | bench | commit |
| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |"""
_EXPECTED = """
## Expected to work

Not run: other patches of these minor versions, other pairs of them, and each Java between those of the table below."""
_RELEASES = """
## What each Spark takes

| Spark | Kafka source | kafka-clients | Hadoop | spark-hadoop-cloud | Java |
| --- | --- | --- | --- | --- | --- |"""
_NEWER = """
The Kafka source and its token provider are not published for each patch: the newest that can be fetched is used with
all patches of its minor version. Of Spark 4.3 none could be fetched, so a start with it ends with a sentence. Spark 4.2
takes the spark-hadoop-cloud of 4.1, of which it uses one class. On Java 25 Spark 4.0 ends
in its Hadoop, and Spark 4.1 in its Arrow."""


def text() -> str:
    """Return the whole page."""
    runs = {run["name"]: run for run in json.loads(RUNS_FILE.read_text(encoding="utf-8"))["runs"]}
    lines = [_INTRODUCTION]
    lines += [_row(runs[combination.name]) for combination in COMBINATIONS if combination.name in runs]
    lines += ["", *_reasons(runs), _EXPECTED, *_not_run(runs), _RELEASES]
    for release in SPARK_RELEASES.values():
        lines.append(
            f"| {release.minor} | {release.kafka_source} | {release.kafka_clients} | {release.hadoop} | "
            f"{release.hadoop_cloud} | 17 to {release.java_max} |"
        )
    return "\n".join([*lines, _NEWER]) + "\n"


def _row(run: Mapping[str, Any]) -> str:
    demo = run["demo"]
    suites = " | ".join(f"{run[suite]['passed']} tests" for suite in SUITES)
    ratio = "not measured"
    if "bench" in run:
        ratio = f"{run['bench']['ratio'] / run['bench']['ratio_locked']:.2f}"
    return (
        f"| {run['name']} | {run['spark']} | {run['java']} | {run['python']} | "
        f"{demo['events']:,}: {demo['lost']} lost, {demo['twice']} twice | {suites} | {ratio} | `{run['commit'][:8]}` |"
    )


def _reasons(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for combination in COMBINATIONS:
        if combination.name in runs:
            yield f"- *{combination.name}*: {combination.reason}."


def _not_run(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for combination in COMBINATIONS:
        if combination.name not in runs:
            yield f"- *{combination.name}*: {_versions(combination)}: {combination.reason}."


def _versions(combination: Combination) -> str:
    return f"Spark {combination.spark}, Java {combination.java}, Python {combination.python}"


if __name__ == "__main__":
    (Path(__file__).parent / "VERSIONS.md").write_text(text(), encoding="utf-8")
