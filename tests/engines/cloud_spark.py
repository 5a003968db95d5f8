"""Spark in a process of its own, with jars and settings of its own.

python -m tests.engines.cloud_spark < {"jars": […], "conf": {…}, "statements": […]}
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256M"
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


def ask_spark(jars: Sequence[Path], conf: Mapping[str, str], statements: Sequence[str]) -> list[list[tuple[Any, ...]]]:
    """Run statements. Returns the rows of each."""
    question = {
        "jars": [str(jar) for jar in jars],
        "conf": dict(conf),
        "statements": list(statements),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.engines.cloud_spark"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-8_000:]
    return [[tuple(row) for row in rows] for rows in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    """Answer the question of standard input."""
    from pyspark.sql import SparkSession

    question = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as directory:
        options = [_JVM, f"-Dderby.system.home={directory}"]
        builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(question["jars"]))
        builder = builder.config("spark.driver.extraJavaOptions", " ".join(options))
        builder = builder.config("spark.sql.warehouse.dir", directory)
        for key, value in {**_DELTA, **_QUIET, **question["conf"]}.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        answers = [[list(row) for row in session.sql(sql).collect()] for sql in question["statements"]]
        session.stop()
    print()
    print(json.dumps(answers, default=str))


if __name__ == "__main__":
    main()
