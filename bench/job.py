"""The job of a contender: the same topic and batches for all, a directory for each."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.writer.clients.java_artifacts import Bundle, Module, spark_release

# The partition column in every contender's table.
BUCKET = "hour"
# The partitions of a topic by default.
PARTITIONS = 4
# Tasks that run at once, by default; the limit is one process without Spark.
SLOTS = 2
# What the plain jobs run on, by the minor version of Spark: the versions of spark-avro and of Delta.
_PLAIN_VERSIONS = {"4.0": ("4.0.2", "4.3.1"), "4.1": ("4.1.1", "4.3.1"), "4.2": ("4.2.0", "4.4.0")}


def plain_bundles() -> tuple[Bundle, Bundle]:
    """Return what plain jobs take beside the pyspark that is installed. Raises SparkUnsupported."""
    avro_version = _PLAIN_VERSIONS[spark_release().minor][0]
    avro = (Module("org.apache.spark", "spark-avro_2.13", avro_version),)
    return Bundle("spark-avro", avro_version, avro, files=1, megabytes=1), delta_bundle()


def delta_bundle() -> Bundle:
    """Return Delta for the pyspark that is installed. Not transitive: pyspark carries the rest.

    Raises SparkUnsupported.
    """
    minor = spark_release().minor
    version = _PLAIN_VERSIONS[minor][1]
    modules = (
        Module("io.delta", f"delta-spark_{minor}_2.13", version),
        Module("io.delta", "delta-storage", version),
        Module("io.delta", "delta-kernel-api", version),
        Module("io.delta", "delta-kernel-defaults", version),
        Module("io.unitycatalog", "unitycatalog-client", "0.5.0"),
    )
    return Bundle("delta-spark", f"{version}-spark{minor}", modules, files=len(modules), megabytes=13)


@dataclass(frozen=True)
class Job:
    """One run of one contender."""

    bootstrap: str
    registry_url: str
    topic: str
    schema_id: int
    schema_text: str
    events: int
    # The most events of one commit.
    batch_events: int
    time_field: str
    directory: str
    # Partitions of the topic.
    partitions: int = PARTITIONS
    # Format of the values: avro, json or protobuf.
    form: str = "avro"
    # The columns of events as JSON, for `columns.declared`.
    declared: Mapping[str, Any] | None = None
    # Of older producers, by their ids.
    older_schemas: tuple[tuple[int, str], ...] = ()
    # Tasks that run at once.
    slots: int = SLOTS

    @property
    def table(self) -> Path:
        """Where the Parquet files go."""
        return Path(self.directory) / "table"

    @property
    def scratch(self) -> Path:
        """Where temporary files go, of Spark too."""
        return Path(self.directory) / "scratch"

    @property
    def log(self) -> Path:
        """Where the contender's output goes, its marks among it."""
        return Path(self.directory) / "output.log"

    def save(self) -> Path:
        """Write the job to its directory."""
        path = Path(self.directory) / "job.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


def load(path: Path) -> Job:
    """Read what `save` wrote."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    older_schemas = tuple((schema_id, text) for schema_id, text in facts.pop("older_schemas"))
    return Job(**facts, older_schemas=older_schemas)


def mark(batch: int, read: int, steps: Mapping[str, float] | None = None) -> None:
    """Say that a batch is finished, in the words of the writer's own log, so that all are measured alike.

    `steps`: the processor seconds that each step took.
    """
    print(f"batch_committed batch={batch} read={read} steps={json.dumps(steps or {})}", flush=True)
