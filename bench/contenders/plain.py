"""The baseline: the PySpark job that a team writes first, with Kafka, from_avro and a partitioned Delta table.

By itself: python -m headrace.bench.contenders.plain JOB.json [--repartition]
"""

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812 - as everybody calls it
)
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.bench.job import BUCKET, Job, load, mark, plain_bundles
from headrace.writer.clients import java_artifacts

# This is twice what headrace gives its JVM, because everything runs in this one.
DRIVER_MEMORY = "2g"


class BatchEnds(StreamingQueryListener):  # type: ignore[misc]
    """Says that a batch is finished when Spark does."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is finished yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Mark a batch that read something."""
        if event.progress.numInputRows:
            mark(event.progress.batchId, event.progress.numInputRows)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing is finished."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The end of the process says so."""


def run(job: Job, *, repartition: bool) -> None:
    """Carry the topic into the table, and end."""
    spark = session(job)
    spark.streams.addListener(BatchEnds())
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("subscribe", job.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", job.batch_events)
        .load()
    )
    confluent_header = 5
    avro = F.expr(f"substring(value, {confluent_header + 1})")
    rows = records.select(from_avro(avro, job.schema_text).alias("event")).select("event.*")
    rows = rows.withColumn(BUCKET, F.date_trunc("hour", job.time_field))
    if repartition:
        rows = rows.repartition(BUCKET)
    query = (
        rows.writeStream.format("delta")
        .partitionBy(BUCKET)
        .option("checkpointLocation", f"{job.directory}/checkpoint")
        .trigger(availableNow=True)
        .start(str(job.table))
    )
    query.awaitTermination()
    # Stopping delivers the remaining events to the listeners.
    spark.stop()


def session(job: Job) -> Any:
    """Start Spark as its documentation and Delta's say; otherwise everything is the default."""
    bundles = [java_artifacts.fetch(bundle, progress=print) for bundle in plain_bundles()]
    jars = [*java_artifacts.spark_jars(), *(jar for bundle in bundles for jar in sorted(bundle.glob("*.jar")))]
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # headrace writes zstd, too.
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(job.scratch),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("bench").master(f"local[{job.slots}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    run(load(Path(sys.argv[1])), repartition="--repartition" in sys.argv)
