"""Measures many tables from one topic, and many pipelines in one driver, against one of each.

    python -m bench.features.fleet --tables 1,50,500 --events 4M  # one topic of so many record types
    python -m bench.features.fleet --pipelines 1,60 --events 4M  # so many topics, a pipeline each
    python -m bench.features.fleet --tables 1,10,50 --format iceberg  # the same in Iceberg, by an SQLite catalog

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

from bench.cli import number
from bench.contenders import race
from bench.contenders.contenders import CONTENDERS, PIPELINE, configuration
from bench.data.dataset import TIME_FIELD, DataSet, dataset
from bench.figures import BenchFailed, Run, WrittenTable, warm
from bench.job import PARTITIONS, Job
from writer.clients import java_artifacts
from writer.config.loader import load
from writer.config.table_sections import TableFormat
from writer.core.errors import HeadraceError
from writer.demo.devstack.stack import Stack
from writer.output.tables import NumberTable
from writer.table.factory import main_table
from writer.table.log.entries import CommittedEntry

_BLOCK = 20_000  # events, of all types in turn, that go to one partition at a time
_COMMITS = 4  # one to get warm, three to be measured
_TOPIC = "events"
_CONFIG = "headrace.yaml"


@dataclass(frozen=True)
class Fleet:
    """What is run: `tables` from one topic, or `pipelines` with a table each; one of the two is 1."""

    tables: int
    pipelines: int
    events: int
    data: DataSet
    form: TableFormat = "delta"
    partitions: int = PARTITIONS  # of each topic

    @property
    def name(self) -> str:
        """How it is called in the output."""
        return f"{self.tables} tables" if self.pipelines == 1 else f"{self.pipelines} pipelines"

    @property
    def topics(self) -> list[str]:
        """The topic of each pipeline."""
        return [f"{_TOPIC}-{self.tables}-{self.pipelines}-{at}" for at in range(self.pipelines)]

    def type_of(self, at: int) -> DataSet:
        """Return the events of one type: the same fields, and a record of another name."""
        return replace(self.data, name=f"{self.data.name}_{at}")

    def rounded(self) -> int:
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
            registry.register_schema(f"{_TOPIC}-{at}", Schema(fleet.type_of(at).schema_text, "AVRO"))
            for at in range(fleet.tables)
        ]
    producer = Producer(
        {"bootstrap.servers": stack.broker.bootstrap, "compression.type": "lz4", "linger.ms": 50,
         "batch.size": 2**20, "queue.buffering.max.messages": 500_000, "log_level": 3}
    )  # fmt: skip
    of_topic, size = fleet.rounded() // fleet.pipelines, 0
    block = min(_BLOCK, of_topic // fleet.partitions) // fleet.tables * fleet.tables
    for at, topic in enumerate(fleet.topics):
        for turn, start in enumerate(range(0, of_topic, block)):
            count = min(block, of_topic - start)
            values = list(_mixed(fleet, ids, at * of_topic + start, count))
            size += sum(map(len, values))
            records = [{"value": value} for value in values]
            sent = producer.produce_batch(topic, records, partition=turn % fleet.partitions)
            if sent != count or producer.flush(120):
                raise BenchFailed(f"the broker did not take the events of {topic}")
    return size


def _mixed(fleet: Fleet, ids: Sequence[int], start: int, count: int) -> Iterator[bytes]:
    """Yield events of all types in turn; event number i is the same but for its type's name."""
    each = count // fleet.tables
    of_types = [fleet.data.encode(start + at * each, each, schema_id=one).to_pylist() for at, one in enumerate(ids)]
    for some in zip(*of_types, strict=True):
        yield from some


def config(job: Job, fleet: Fleet) -> dict[str, Any]:
    """Return the writer's configuration: that of the bench, with a route or several pipelines."""
    found: dict[str, Any] = yaml.safe_load(configuration(job))
    one = found["pipelines"].pop(PIPELINE)
    if fleet.tables > 1:
        one |= {"table": {"location": f"{job.directory}/log"}}
        one |= {"route": {"targets": {"*": f"{job.table}/{{name}}"}, "max_targets": 1_000}}
    for at, topic in enumerate(fleet.topics):
        place = one["table"] if fleet.pipelines == 1 else {"location": f"{job.table}/{at}"}
        table = {**place, "format": fleet.form}
        found["pipelines"][f"{PIPELINE}-{at}"] = {**one, "topics": [topic], "table": table}
    return {**found, "catalog": {"type": "sql", "uri": f"sqlite:///{job.directory}/catalog.db"}}


def run(stack: Stack, directory: Path, fleet: Fleet, bytes_: int) -> Run:
    """Run the writer over all topics. Raises BenchFailed unless every event is a row of its table."""

    def command(job: Job) -> list[str]:
        path = Path(job.directory) / _CONFIG
        path.write_text(yaml.safe_dump(config(job, fleet)), encoding="utf-8")
        return [sys.executable, "-m", "writer.cli", "run", str(path), "--once"]

    def written(job: Job) -> WrittenTable:
        found = {file: file.relative_to(job.table).parts for file in sorted(job.table.rglob("*.parquet"))}
        files = [file for file, parts in found.items() if "_delta_log" not in parts]
        rows = [parquet.read_metadata(file).num_rows for file in files]
        several = fleet.tables * fleet.pipelines > 1
        tables = {found[file][0] for file in files} if several else {""}
        if len(tables) != fleet.tables * fleet.pipelines:
            raise BenchFailed(f"{len(tables)} tables have rows, and {fleet.tables * fleet.pipelines} should")
        return WrittenTable(len(files), sum(file.stat().st_size for file in files), sum(rows))

    events = fleet.rounded()
    job = Job(
        bootstrap=stack.broker.bootstrap, registry_url=stack.registry.url, topic=fleet.topics[0], schema_id=0,
        schema_text="", events=events, batch_events=-(-events // fleet.pipelines // _COMMITS) + 16,
        time_field=TIME_FIELD, directory=str(directory), partitions=fleet.partitions,
    )  # fmt: skip
    contender = replace(CONTENDERS["a"], name=fleet.name, command=command, written=written)
    return race.run(contender, job, repeat=1, avro_bytes=bytes_, warm_from=1 / _COMMITS - 0.01)


def driver_seconds(directory: Path, fleet: Fleet) -> Mapping[str, float]:
    """Return the mean seconds of a batch outside of its tasks, by phase, as the commits after the first have them."""
    found: dict[str, list[float]] = {}
    for at in range(fleet.pipelines):
        for one in _commits(directory, at)[1:]:
            former = (one.facts["former"] or {"phases": {}})["phases"]
            for phase, seconds in {**one.facts["phases"], **former}.items():
                found.setdefault(phase, []).append(seconds)
    return {phase: mean(seconds) for phase, seconds in found.items() if phase not in ("tasks", "wait", "queue")}


def step_seconds(directory: Path, fleet: Fleet) -> Mapping[str, float]:
    """Return the processor seconds of each step of all tasks, as the commits have them."""
    found = Counter[str]()
    for at in range(fleet.pipelines):
        for one in _commits(directory, at):
            found.update(one.facts["seconds"])
    return found


def _commits(directory: Path, at: int) -> list[CommittedEntry]:
    commits = main_table(f"{PIPELINE}-{at}", load(directory / _CONFIG)).commits_since(-1)
    return [one for one in commits if one.facts["kind"] == "batch"]


def main(tables: Sequence[int], pipelines: Sequence[int], events: int, form: TableFormat, partitions: int) -> None:
    """Measure, and say so."""
    for bundle in java_artifacts.BUNDLES:
        java_artifacts.fetch(bundle, progress=print)
    data = dataset("200B")
    sizes = [*((n, 1) for n in tables), *((1, n) for n in pipelines)]
    fleets = [Fleet(*size, events, data, form, partitions) for size in sizes]
    shown = NumberTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    shown.add_column("")
    for title in ("events", "warm\nevents\n/CPU-s", "of the\nfirst", "driver\ns/batch", "peak RSS\nGiB", "files"):
        shown.add_column(title, justify="right")
    first = 0.0
    with tempfile.TemporaryDirectory(prefix="headrace-fleet-") as place, Stack(Path(place) / "servers") as stack:
        for fleet in fleets:
            directory = Path(place) / fleet.name.replace(" ", "-")
            bytes_ = fill(stack, fleet)
            done = run(stack, directory, fleet, bytes_)
            carried, phases = warm(done).events_per_cpu_s, driver_seconds(directory, fleet)
            first = first or carried
            steps = step_seconds(directory, fleet)
            about = {"name": fleet.name, "warm": carried, "rss": done.rss_peak_bytes, "phases": phases}
            print(json.dumps({**about, "microseconds": {k: round(v / done.events * 1e6, 2) for k, v in steps.items()}}))
            shown.add_row(
                fleet.name, f"{done.events:,}", f"{carried:,.0f}", f"{carried / first:.2f}",
                f"{sum(phases.values()):.2f}", f"{done.rss_peak_bytes / 2**30:.2f}", f"{done.written.files:,}",
            )  # fmt: skip
    Console(highlight=False).print(shown)


def _counts(text: str) -> list[int]:
    return [int(one) for one in text.split(",") if one]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.features.fleet", description=__doc__)
    parser.add_argument("--tables", type=_counts, default=[])
    parser.add_argument("--pipelines", type=_counts, default=[])
    parser.add_argument("--events", type=number, default=4_000_000)
    parser.add_argument("--format", choices=get_args(TableFormat), default="delta")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of each topic")
    given = parser.parse_args()
    try:
        main(given.tables, given.pipelines, given.events, given.format, given.partitions)
    except HeadraceError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
