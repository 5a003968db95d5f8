"""Spark's settings: the driver's session, a streaming query for each pipeline, checkpoints in S3."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.writer.clients import java_artifacts, spark_login
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections import kafka_client
from headrace.writer.config.sections.logins import MskIamSection
from headrace.writer.core import logging
from headrace.writer.driver import child_processes
from headrace.writer.driver.pipeline import PipelineRun
from headrace.writer.driver.readers.spark_reader import KAFKA_OPTIONS, kafka_timeouts
from headrace.writer.driver.start.pipeline_takeover import Start
from headrace.writer.offsets.spark_checkpoint import offsets_by_topic
from headrace.writer.scaling import spark_settings
from headrace.writer.storage.locations import for_spark, on_s3
from headrace.writer.storage.settings import S3Settings

# Blocks come and go by the megabyte. One heap for Arrow and the decoder, which keeps what is freed for the next block,
# spares the kernel handing out cleared pages over and over: an eighth of a task's processor time. glibc's names.
WORKER_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    # No module comes from the working directory.
    "PYTHONSAFEPATH": "1",
}
# How often Spark asks Kafka for new offsets, at most. A shorter interval burdens the broker.
_TRIGGER_INTERVAL = "1 second"
# So long Spark rests beside that where it was told of too little for a batch.
_POLLING_DELAY = "spark.sql.streaming.pollingDelay"
_REST_MAX = timedelta(seconds=5)
# A share of `commit.max_delay`, which a record waits for anyway.
_REST_SHARE = 100
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
_REDACTION = "spark.redaction.regex"
# A JVM writes its warnings to stdout, which is for what a command answers.
_JVM_LOG_OPTIONS = "-Xlog:disable -Xlog:all=warning:stderr -XX:+DisplayVMOutputToStderr"
# Where tasks fetch their records, Spark plans a scan for each micro-batch and reads no row of it. So it generates and
# compiles no code for that.
_NO_ROWS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
# Writes a checkpoint's files on a local disk, where a rename is atomic: in Spark 4.0, and since 4.1. Spark's own choice
# asks by a process of its own, `readlink`, whether a name is a link: sixteen for each micro-batch.
_LOCAL_FILE_MANAGERS = (
    "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
# To these settings the values of the file are added, with a separator; they do not replace ours.
_SEPARATORS = {_JAVA_OPTIONS: " ", _EXECUTOR_JAVA_OPTIONS: " ", _REDACTION: "|"}


def session(config: Config, pipelines: Sequence[str] = ()) -> Any:
    """Start Spark with the settings that the data plane needs; those of the file come last.

    `pipelines`: those that will run, for their pools. Raises ArtifactError, JavaMissing, SparkUnsupported.
    """
    java = java_artifacts.spark_java()
    os.environ.setdefault("JAVA_HOME", str(java.parent.parent))
    # Workers import what the driver imports.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    settings = _default_settings(config)
    builder = SparkSession.builder.appName("headrace").master(config.spark.master)
    logging.event("spark_starting", master=config.spark.master, pipelines=len(pipelines))
    # Spark reads the file of pools once, when it starts.
    with tempfile.TemporaryDirectory(prefix="headrace-pools-") as folder:
        pools = Path(folder) / "pools.xml"
        pools.write_text(spark_settings.pools({name: config.pipelines[name].scheduling for name in pipelines}))
        # Hadoop decodes no %20.
        settings["spark.scheduler.allocation.file"] = f"file://{pools}"
        for key, value in (settings | config.spark.conf).items():
            prefix = ""
            if key in _SEPARATORS and key in settings and key in config.spark.conf:
                prefix = f"{settings[key]}{_SEPARATORS[key]}"
            builder = builder.config(key, prefix + value)
        with child_processes.stops_reach_the_driver():
            spark = builder.getOrCreate()
    if not on_s3(config.checkpoints) and _FILE_MANAGER not in config.spark.conf:
        _choose_file_manager(spark)
    return spark


def _choose_file_manager(spark: Any) -> None:
    """Choose what writes checkpoints on a local disk. Where a Spark has neither class, its own choice stays."""
    from py4j.protocol import Py4JJavaError

    for name in _LOCAL_FILE_MANAGERS:
        # Which of them this Spark has, no setting of it says.
        with suppress(Py4JJavaError):
            spark.sparkContext._jvm.java.lang.Class.forName(name)  # noqa: SLF001 - PySpark shows no classes
            spark.conf.set(_FILE_MANAGER, name)
            return


def stop_session(spark: Any) -> None:
    """Stop Spark. Where its JVM was killed, its pipelines have failed with that already."""
    from py4j.protocol import Py4JError

    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        logging.warning("spark_not_stopped", reason=str(error))


def _default_settings(config: Config) -> dict[str, str]:
    """Return the settings that the data plane needs."""
    jars = java_artifacts.spark_jars(
        progress=lambda line: logging.event("fetching", what=line),
        s3=on_s3(config.checkpoints),
        msk_iam=isinstance(config.kafka.security.login, MskIamSection),
    )
    log_settings = Path(__file__).parents[1] / "log4j2.properties"
    java_options = [f'-Dlog4j2.configurationFile="{log_settings}"', _JVM_LOG_OPTIONS]
    login_options = spark_login.jvm_options(config.kafka.security)
    java_options += [*_jvm_options(config), *login_options]
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.daemon.module": child_processes.DAEMON_MODULE,
        **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
        # Nothing here shuffles.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "20",
        # Since Spark 4.2 a query without its metadata does not start. The table does not know a query by its id.
        "spark.sql.streaming.checkpoint.verifyMetadataExists.enabled": "false",
        # Records that a task has read stay in memory so long, thousands of each partition; five minutes by default.
        "spark.kafka.consumer.fetchedData.cache.timeout": "1s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        _REDACTION: "(?i)secret|password|token|jaas|access[.]?key|credential",
        _JAVA_OPTIONS: " ".join(java_options),
        "spark.driver.memory": "1g",
        **spark_settings.settings(config.spark.master, config.autoscaler),
    }
    if config.kafka.reader == "native":
        settings |= _NO_ROWS
    # There the consumers of Spark's source log in, too.
    elif login_options:
        settings[_EXECUTOR_JAVA_OPTIONS] = " ".join(login_options)
    if on_s3(config.checkpoints):
        settings |= s3a(config.s3.settings)
    if config.spark.master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _jvm_options(config: Config) -> list[str]:
    """Return options for a driver that only plans batches, unless the file chooses a collector of its own.

    It allocates little: one thread collects it, and code that is compiled well would not run often enough to pay.
    """
    configured = config.spark.conf.get(_JAVA_OPTIONS, "")
    if config.kafka.reader != "native" or "-XX:+Use" in configured:
        return []
    return ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def s3a(s3: S3Settings) -> dict[str, str]:
    """Return Spark's settings for checkpoints in S3. An object appears there whole, without a rename."""
    properties = {
        "endpoint": s3.endpoint,
        "endpoint.region": s3.region,
        "path.style.access": str(bool(s3.path_style)).lower(),
    }
    return {
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
        ),
        # The standard chain, as elsewhere.
        "spark.hadoop.fs.s3a.aws.credentials.provider": (
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
        ),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in properties.items() if value},
    }


def rest_without_batch(max_delay: timedelta) -> timedelta:
    """Return how long a query rests after it asked Kafka in vain. `max_delay`: that a record may wait for its commit.

    Each question is two requests, and a millisecond of a processor. After a batch nothing rests, so a backlog is read
    without a pause.
    """
    return min(max_delay / _REST_SHARE, _REST_MAX)


def query(spark: Any, config: Config, pipeline: PipelineRun, start: Start, *, once: bool) -> Any:
    """Start the query that gives a pipeline its micro-batches, from its start position."""
    settings = pipeline.config
    options = {
        "kafka.bootstrap.servers": config.kafka.bootstrap_servers,
        **spark_login.source_options(config.kafka.security),
        "subscribe": ",".join(pipeline.topic_ids),
        "startingOffsets": json.dumps(offsets_by_topic(start.offsets)),
        # A loss is accepted only by a recorded gap, never by an option.
        "failOnDataLoss": "true",
        **KAFKA_OPTIONS,
        **kafka_client.options_of_spark(config.kafka.options),
        "kafka.fetch.max.wait.ms": str(config.kafka.fetch_max_wait // timedelta(milliseconds=1)),
        **kafka_timeouts(config.kafka.request_timeout),
        "maxOffsetsPerTrigger": str(pipeline.limits.offsets_max),
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    offsets_per_range = spark_settings.offsets_per_range(config, settings.commit.max_offsets)
    # Executors may come: a full batch is to have work for all of them.
    if offsets_per_range is not None:
        options["maxRecordsPerPartition"] = str(offsets_per_range)
    if pipeline.needs_headers():
        options["includeHeaders"] = "true"
    # Without a minimum, maxTriggerDelay does nothing. With one, `--once` would leave the tail unread.
    if not once:
        options["minOffsetsPerTrigger"] = str(pipeline.limits.offsets_min or 1)
        options["maxTriggerDelay"] = f"{int(settings.commit.max_delay.total_seconds() * 1000)}ms"
    if _POLLING_DELAY not in config.spark.conf:
        # The query takes it over when it starts.
        spark.conf.set(
            _POLLING_DELAY, f"{rest_without_batch(settings.commit.max_delay) // timedelta(milliseconds=1)}ms"
        )
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pipeline.name)
    stream = spark.readStream.format("kafka").options(**options).load().writeStream
    trigger: Mapping[str, Any] = {"availableNow": True} if once else {"processingTime": _TRIGGER_INTERVAL}
    return (
        stream.queryName(pipeline.name)
        .option("checkpointLocation", for_spark(start.checkpoint))
        .trigger(**trigger)
        .foreachBatch(pipeline.process)
        .start()
    )
