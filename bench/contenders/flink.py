"""Flink's FileSink, as a team would set it up: exactly once, checkpoints every ten seconds, Parquet in hourly folders.

By itself: python -m headrace.bench.contenders.flink JOB.json [--tuned]
"""

import os
import subprocess
import sys
from pathlib import Path

from headrace.bench.contenders.plain import DRIVER_MEMORY
from headrace.bench.job import BUCKET, Job, load
from headrace.writer.clients import java_artifacts
from headrace.writer.clients.java_artifacts import Bundle, Module
from headrace.writer.core.errors import HeadraceError

_VERSION = "2.1.1"
_FLINK = (
    Module("org.apache.flink", "flink-clients", _VERSION, transitive=True),
    Module("org.apache.flink", "flink-connector-files", _VERSION, transitive=True),
    Module("org.apache.flink", "flink-connector-base", _VERSION, transitive=True),
    Module("org.apache.flink", "flink-connector-kafka", "4.0.1-2.0"),
    Module("org.apache.flink", "flink-avro", _VERSION, transitive=True),
    Module("org.apache.flink", "flink-parquet", _VERSION),
    # pyspark has the same version of Parquet.
    Module("org.apache.parquet", "parquet-avro", "1.15.2"),
    Module("org.slf4j", "slf4j-simple", "1.7.36"),
)
FLINK = Bundle("flink", _VERSION, _FLINK, files=49, megabytes=66)
# Of pyspark's jars and of Spark's Kafka source: what Flink's pom calls provided.
_PROVIDED = ("hadoop-client-*.jar", "parquet-[cefhj]*.jar", "zstd-jni-*.jar")
# The job, and the marks that it prints at complete checkpoints.
SOURCES = tuple(Path(__file__).with_name(name) for name in ("FlinkFileSink.java", "CheckpointMarks.java"))
# Flink's own scripts open the same packages.
_OPENS = ("java.base/java.lang", "java.base/java.util", "java.base/java.time")


class CannotCompile(HeadraceError):
    """The Java source of the contender does not compile."""


def command(job: Job, *, tuned: bool) -> list[str]:
    """Fetch Flink, compile the job, and return the command that runs it.

    `tuned`: objects are handed on without copies, and zstd's level is that of the other contenders. Raises
    ArtifactError, CannotCompile.
    """
    java = str(java_artifacts.java())
    jars = [*java_artifacts.fetch(FLINK, progress=print).glob("*.jar"), *java_artifacts.spark_jars(), *_provided_jars()]
    classes = job.scratch / "classes"
    schema = job.scratch / "schema.avsc"
    classpath = os.pathsep.join(map(str, [classes, *jars]))
    compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", str(classes), "-cp", classpath]
    done = subprocess.run([*compiler, *map(str, SOURCES)], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise CannotCompile(f"{SOURCES[0].name} does not compile (is {java} a JDK?): {done.stderr or done.stdout}")
    schema.write_text(job.schema_text, encoding="utf-8")
    opens = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS]
    return [
        java,
        f"-Xmx{DRIVER_MEMORY}",
        f"-Djava.io.tmpdir={job.scratch}",
        "-XX:-UsePerfData",
        *opens,
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp",
        classpath,
        "FlinkFileSink",
        job.bootstrap,
        job.topic,
        str(schema),
        job.time_field,
        BUCKET,
        str(job.table),
        f"{job.directory}/checkpoints",
        str(job.slots),
        str(tuned).lower(),
    ]


def _provided_jars() -> list[Path]:
    return [jar for pattern in _PROVIDED for jar in java_artifacts.pyspark_jars(pattern)]


if __name__ == "__main__":
    wanted = command(load(Path(sys.argv[1])), tuned="--tuned" in sys.argv)
    os.execv(wanted[0], wanted)  # noqa: S606 - the contender is this process
