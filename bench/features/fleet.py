"""Measures many tables from one topic, and many pipelines in one driver, against one of each.

    python -m headrace.bench.features.fleet --tables 1,50,500 --events 4M  # one topic of so many record types
    python -m headrace.bench.features.fleet --pipelines 1,60 --events 4M  # so many topics, a pipeline each
    python -m headrace.bench.features.fleet --tables 1,10,50 --format iceberg  # the same in Iceberg, by SQLite

Every event has to be a row of the right table. What is measured is in bench/README.md.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from pyarrow import parquet
from rich.console import Console

from headrace.bench.cli import number
from headrace.bench.contenders import race
from headrace.bench.contenders.contenders import CONTENDERS, PIPELINE, configuration
from headrace.bench.data.dataset import TIME_FIELD, DataSet, dataset
from headrace.bench.figures import BenchFailed, Run, WrittenTable, warm
from headrace.bench.job import PARTITIONS, Job
from headrace.writer.clients import java_artifacts
from headrace.writer.config.loader import load
from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.errors import HeadraceError
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.output.tables import NumberTable
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.entries import CommittedEntry

# The most events, of all types in turn, that go to one partition before the next.
_BLOCK = 20_000
# One commit warms the writer, and three are measured.
_COMMITS = 4
_TOPIC = "events"
_CONFIG = "headrace.yaml"


@dataclass(frozen=True)
class Fleet:
    """What is run: `tables` from one topic, or `pipelines` with a table each; one of the two is 1."""

    tables: int
    pipelines: int
    events: int
    data: DataSet
    table_format: TableFormat = "delta"
    # The partitions of each topic.
    partitions: int = PARTITIONS

    @property
    def name(self) -> str:
        """How it is called in the output."""
        if self.pipelines == 1:
            return f"{self.tables} tables"
        return f"{self.pipelines} pipelines"

    @property
    def topics(self) -> list[str]:
        """The topic of each pipeline."""
        return [f"{_TOPIC}-{self.tables}-{self.pipelines}-{index}" for index in range(self.pipelines)]

    def type_of(self, index: int) -> DataSet:
        """Return the events of one type: the same fields, and a record of another name."""
        return replace(self.data, name=f"{self.data.name}_{index}")

    def event_count(self) -> int:
        """Return the number of events: as many for each type, topic and partition."""
        each = self.tables * self.pipelines * self.partitions
        return self.events // each * each


def fill(stack: Stack, fleet: Fleet) -> int:
    """Send the events, all types in turn, to the partitions of each topic in turn. Returns the bytes of the values."""
    admin = AdminClient({"bootstrap.servers": stack.broker.bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, fleet.partitions, 1) for name in fleet.topics]).values():
        created.result(60)
    with SchemaRegistryClient({"url": stack.registry.url}) as registry:
        ids = [
            registry.register_schema(f"{_TOPIC}-{index}", Schema(fleet.type_of(index).schema_text, "AVRO"))
            for index in range(fleet.tables)
        ]
    producer = Producer(
        {
            "bootstrap.servers": stack.broker.bootstrap,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 2**20,
            "queue.buffering.max.messages": 500_000,
            "log_level": 3,
        }
    )
    topic_events = fleet.event_count() // fleet.pipelines
    size = 0
    block = min(_BLOCK, topic_events // fleet.partitions) // fleet.tables * fleet.tables
    for index, topic in enumerate(fleet.topics):
        for turn, start in enumerate(range(0, topic_events, block)):
            count = min(block, topic_events - start)
            values = list(_mix_types(fleet, ids, index * topic_events + start, count))
            size += sum(map(len, values))
            records = [{"value": value} for value in values]
            queued = producer.produce_batch(topic, records, partition=turn % fleet.partitions)
            if queued != count or producer.flush(120):
                raise BenchFailed(f"the broker did not take the events of {topic}")
    return size


def _mix_types(fleet: Fleet, ids: Sequence[int], start: int, count: int) -> Iterator[bytes]:
    """Yield events of all types in turn; event number i is the same but for its type's name."""
    type_events = count // fleet.tables
    values_by_type = [
        fleet.data.encode(start + index * type_events, type_events, schema_id=schema_id).to_pylist()
        for index, schema_id in enumerate(ids)
    ]
    for values in zip(*values_by_type, strict=True):
        yield from values


def config(job: Job, fleet: Fleet) -> dict[str, Any]:
    """Return the writer's configuration: that of the bench, with a route or several pipelines."""
    document: dict[str, Any] = yaml.safe_load(configuration(job))
    pipeline = document["pipelines"].pop(PIPELINE)
    if fleet.tables > 1:
        pipeline |= {"table": {"location": f"{job.directory}/log"}}
        pipeline |= {"route": {"targets": {"*": f"{job.table}/{{name}}"}, "max_targets": 1_000}}
    for index, topic in enumerate(fleet.topics):
        location = pipeline["table"] if fleet.pipelines == 1 else {"location": f"{job.table}/{index}"}
        table = {**location, "format": fleet.table_format}
        document["pipelines"][f"{PIPELINE}-{index}"] = {**pipeline, "topics": [topic], "table": table}
    return {**document, "catalog": {"type": "sql", "uri": f"sqlite:///{job.directory}/catalog.db"}}


def run(stack: Stack, directory: Path, fleet: Fleet, value_bytes: int) -> Run:
    """Run the writer over all topics. Raises BenchFailed unless every event is a row of its table."""

    def command(job: Job) -> list[str]:
        path = Path(job.directory) / _CONFIG
        path.write_text(yaml.safe_dump(config(job, fleet)), encoding="utf-8")
        return [sys.executable, "-m", "headrace.writer.cli", "run", str(path), "--once"]

    def count_rows(job: Job) -> WrittenTable:
        parts_by_file = {file: file.relative_to(job.table).parts for file in sorted(job.table.rglob("*.parquet"))}
        files = [file for file, parts in parts_by_file.items() if "_delta_log" not in parts]
        rows = [parquet.read_metadata(file).num_rows for file in files]
        several = fleet.tables * fleet.pipelines > 1
        tables = {parts_by_file[file][0] for file in files} if several else {""}
        if len(tables) != fleet.tables * fleet.pipelines:
            raise BenchFailed(f"{len(tables)} tables have rows, and {fleet.tables * fleet.pipelines} should")
        return WrittenTable(len(files), sum(file.stat().st_size for file in files), sum(rows))

    events = fleet.event_count()
    job = Job(
        bootstrap=stack.broker.bootstrap,
        registry_url=stack.registry.url,
        topic=fleet.topics[0],
        schema_id=0,
        schema_text="",
        events=events,
        batch_events=-(-events // fleet.pipelines // _COMMITS) + 16,
        time_field=TIME_FIELD,
        directory=str(directory),
        partitions=fleet.partitions,
    )
    contender = replace(CONTENDERS["a"], name=fleet.name, command=command, count_rows=count_rows)
    return race.run(contender, job, repeat=1, value_bytes=value_bytes, warm_from=1 / _COMMITS - 0.01)


def driver_seconds(directory: Path, fleet: Fleet) -> Mapping[str, float]:
    """Return the mean seconds of a batch outside of its tasks, by phase, as the commits after the first have them."""
    samples: dict[str, list[float]] = {}
    for index in range(fleet.pipelines):
        for commit in _commits(directory, index)[1:]:
            former = (commit.facts["former"] or {"phases": {}})["phases"]
            for phase, seconds in {**commit.facts["phases"], **former}.items():
                samples.setdefault(phase, []).append(seconds)
    return {phase: mean(seconds) for phase, seconds in samples.items() if phase not in ("tasks", "wait", "queue")}


def step_seconds(directory: Path, fleet: Fleet) -> Mapping[str, float]:
    """Return the processor seconds of each step of all tasks, as the commits have them."""
    seconds = Counter[str]()
    for index in range(fleet.pipelines):
        for commit in _commits(directory, index):
            seconds.update(commit.facts["seconds"])
    return seconds


def _commits(directory: Path, index: int) -> list[CommittedEntry]:
    commits = main_table(f"{PIPELINE}-{index}", load(directory / _CONFIG)).commits_since(-1)
    return [commit for commit in commits if commit.facts["kind"] == "batch"]


def main(
    tables: Sequence[int], pipelines: Sequence[int], events: int, table_format: TableFormat, partitions: int
) -> None:
    """Measure, and say so."""
    for name in java_artifacts.DEMO_BUNDLES:
        java_artifacts.fetch(name, progress=print)
    data = dataset("200B")
    sizes = [*((n, 1) for n in tables), *((1, n) for n in pipelines)]
    fleets = [Fleet(*size, events, data, table_format, partitions) for size in sizes]
    table = NumberTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("")
    for title in ("events", "warm\nevents\n/CPU-s", "of the\nfirst", "driver\ns/batch", "peak RSS\nGiB", "files"):
        table.add_column(title, justify="right")
    first = 0.0
    with tempfile.TemporaryDirectory(prefix="headrace-fleet-") as parent, Stack(Path(parent) / "servers") as stack:
        for fleet in fleets:
            directory = Path(parent) / fleet.name.replace(" ", "-")
            value_bytes = fill(stack, fleet)
            result = run(stack, directory, fleet, value_bytes)
            events_per_cpu_s = warm(result).events_per_cpu_s
            phases = driver_seconds(directory, fleet)
            first = first or events_per_cpu_s
            steps = step_seconds(directory, fleet)
            line = {"name": fleet.name, "warm": events_per_cpu_s, "rss": result.rss_peak_bytes, "phases": phases}
            print(
                json.dumps({**line, "microseconds": {k: round(v / result.events * 1e6, 2) for k, v in steps.items()}})
            )
            table.add_row(
                fleet.name,
                f"{result.events:,}",
                f"{events_per_cpu_s:,.0f}",
                f"{events_per_cpu_s / first:.2f}",
                f"{sum(phases.values()):.2f}",
                f"{result.rss_peak_bytes / 2**30:.2f}",
                f"{result.written.files:,}",
            )
    Console(highlight=False).print(table)


def _counts(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.fleet", description=__doc__)
    parser.add_argument("--tables", type=_counts, default=[])
    parser.add_argument("--pipelines", type=_counts, default=[])
    parser.add_argument("--events", type=number, default=4_000_000)
    parser.add_argument("--format", choices=get_args(TableFormat), default="delta")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of each topic")
    options = parser.parse_args()
    try:
        main(options.tables, options.pipelines, options.events, options.format, options.partitions)
    except HeadraceError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
