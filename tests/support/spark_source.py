"""Spark's Kafka source as a driver has it, with the login of a configuration: in a process of its own.

A JVM keeps the options that it was started with, so that a running one cannot be taken.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from headrace.writer.clients import spark_login
from headrace.writer.driver import spark as driver_spark
from tests.support.sample_records import config

_END_WITHIN_S = 120


class SparkSource:
    """A query that counts the records of a topic."""

    def __init__(self, kafka: Mapping[str, Any], topic: str, folder: Path) -> None:
        self._log = folder / "source.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark_source", json.dumps(kafka), topic, str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def wait_for_start(self) -> None:
        """Return once it has counted a first batch."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "begun\n", self._log.read_text()

    def finish(self) -> int:
        """Let it read what there is, and end. Returns how many records it has counted."""
        output, _ = self._process.communicate(timeout=_END_WITHIN_S)
        assert self._process.returncode == 0, self._log.read_text()
        return int(output)

    def kill(self) -> None:
        """End it, however it is."""
        self._process.kill()
        self._process.wait()


@contextmanager
def spark_source(kafka: Mapping[str, Any], topic: str, folder: Path) -> Iterator[SparkSource]:
    """Run a query. `kafka`: section of a configuration; `folder`: for its checkpoint."""
    source = SparkSource(kafka, topic, folder)
    try:
        yield source
    finally:
        source.kill()


def send_for(seconds: float, bootstrap: str, topic: str) -> int:
    """Send four records a second. Returns how many."""
    producer = Producer({"bootstrap.servers": bootstrap})
    end_s = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end_s:
        producer.produce(topic, b"x", partition=0)
        assert producer.flush(30) == 0
        count += 1
        time.sleep(0.25)
    return count


def main(kafka: str, topic: str, folder: str) -> None:
    """Count the records of a topic until the standard input ends; then print how many there are."""
    settings = config(Path(folder), sections={"kafka": json.loads(kafka), "spark": {"master": "local[2]"}})
    spark = driver_spark.session(settings)
    counts = list[int]()
    begun = threading.Event()

    def count(batch: Any, _: int) -> None:
        counts.append(batch.count())
        begun.set()

    options = {
        "kafka.bootstrap.servers": settings.kafka.bootstrap_servers,
        **spark_login.source_options(settings.kafka.security),
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    stream = spark.readStream.format("kafka").options(**options).load().writeStream
    query = (
        stream.option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="1 second")
        .foreachBatch(count)
        .start()
    )
    while not begun.wait(0.1):
        if not query.isActive:
            raise RuntimeError(str(query.exception()))
    print("begun", flush=True)
    sys.stdin.read()
    query.processAllAvailable()
    query.stop()
    spark.stop()
    print(sum(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
