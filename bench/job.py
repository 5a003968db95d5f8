"""The job of a contender: the same topic and batches for all, a directory for each."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from writer.clients.java_artifacts import Bundle, Module

# The partition column in every contender's table.
BUCKET = "hour"
# The partitions of a topic by default.
PARTITIONS = 4
# The cores of Spark; the limit is one process without Spark.
CORES = 2
# What the plain jobs run on. Not transitive: pyspark carries the rest.
_AVRO = (Module("org.apache.spark", "spark-avro_2.13", "4.0.2"),)
_DELTA = (
    Module("io.delta", "delta-spark_4.0_2.13", "4.3.1"),
    Module("io.delta", "delta-storage", "4.3.1"),
    Module("io.delta", "delta-kernel-api", "4.3.1"),
    Module("io.delta", "delta-kernel-defaults", "4.3.1"),
    Module("io.unitycatalog", "unitycatalog-client", "0.5.0"),
)
DELTA = Bundle("delta-spark", "4.3.1", _DELTA, files=5, megabytes=13)
PLAIN_BUNDLES = (Bundle("spark-avro", "4.0.2", _AVRO, files=1, megabytes=1), DELTA)


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
    return Job(**json.loads(path.read_text(encoding="utf-8")))


def mark(batch: int, read: int, steps: Mapping[str, float] | None = None) -> None:
    """Say that a batch is finished, in the words of the writer's own log, so that all are measured alike.

    `steps`: the processor seconds that each step took.
    """
    print(f"batch_committed batch={batch} read={read} steps={json.dumps(steps or {})}", flush=True)
