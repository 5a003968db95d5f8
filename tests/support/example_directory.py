"""A directory where the examples of the documentation run as they stand, with records and tables of their kind."""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from confluent_kafka import Producer
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.clients.kafka import Cluster
from headrace.writer.config.loader import load
from headrace.writer.core.errors import HeadraceError
from tests.support import spark_jvm
from tests.support.doc_examples import ROOT
from tests.support.local_driver import Driver, log
from tests.support.process import Process
from tests.support.sample_records import NOW, Schemas, value
from tests.support.writer_process import Site

MakeTopic = Callable[..., str]
HOUR = timedelta(hours=1)
# The first hour of which there are records: the examples name buckets from here on.
FIRST_HOUR = datetime(2026, 11, 20, 5, tzinfo=UTC)
HOURS = 4
PARTITIONS = 2
_TIME = {"type": "long", "logicalType": "timestamp-millis"}
CLICK: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "namespace": "com.shop",
    "fields": [
        {"name": "event_id", "type": "string"},
        {"name": "event_time", "type": _TIME},
        {"name": "user_id", "type": "long"},
        {"name": "country", "type": "string"},
    ],
}
NEXT_CLICK = {**CLICK, "fields": [*CLICK["fields"], {"name": "city", "type": ["null", "string"], "default": None}]}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "com.shop",
    "fields": [
        {"name": "event_time", "type": _TIME},
        {"name": "cents", "type": "long"},
        {
            "name": "user",
            "type": {"type": "record", "name": "User", "fields": [{"name": "email", "type": "string"}]},
        },
    ],
}
# Ids that the examples name: of clicks, of clicks with a city, and of orders.
CLICK_ID = 7
NEXT_CLICK_ID = 4711
ORDER_ID = 8


def clicks(count: int, *, first: int = 0, schema_id: int = CLICK_ID) -> list[bytes]:
    """Return values of clicks, spread evenly over the hours."""
    schema = CLICK if schema_id == CLICK_ID else NEXT_CLICK
    values = []
    for number in range(first, first + count):
        event_time = FIRST_HOUR + number % HOURS * HOUR + timedelta(seconds=number)
        country = "DE" if number % 2 else "FR"
        row = {"event_id": f"e-{number}", "event_time": event_time, "user_id": number % 50, "country": country}
        values.append(value(schema_id, schema, {"city": None, **row}))
    return values


def orders(count: int) -> list[bytes]:
    """Return values of orders of the first hour."""
    row = {"event_time": FIRST_HOUR, "cents": 250, "user": {"email": "ann@shop.example"}}
    return [value(ORDER_ID, ORDER, row)] * count


@dataclass(frozen=True)
class Record:
    """A record of the topic."""

    partition: int
    offset: int
    value: bytes


@dataclass
class ExampleDirectory:
    """The directory. Pages have other places, and other words: what stands there, and what stands here for it."""

    site: Site
    topic: str
    # Of a server that takes what a hook delivers.
    hook_url: str
    records: list[Record] = field(default_factory=list)
    local_places: dict[str, str] = field(default_factory=dict)
    local_words: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.local_places |= {
            "/etc/headrace/": "",
            "/config/": "",
            "/lake/": f"{self.root}/lake/",
            "s3://lake/": f"{self.root}/lake/",
            "s3://archive/clicks": f"{self.root}/archive/clicks",
            "broker-1:9092": self.site.bootstrap,
            "broker-9:9092/clicks": f"{self.site.bootstrap}/{self.topic}",
            "http://registry:8081": self.site.registry_url,
            "docs/examples/": f"{ROOT}/docs/examples/",
        }
        # An offset and a batch that there are. What waits in vain ends soon.
        self.local_words |= {"app/0:1234": f"{self.topic}/0:12", "41": "0", "2h": "20 s"}
        self.site.overrides["registry"] = {"files": self._write_schemas()}
        for name in ("new", "next", "click-v2"):
            (self.root / f"{name}.avsc").write_text(json.dumps(NEXT_CLICK))

    @property
    def root(self) -> Path:
        return self.site.root

    @property
    def lake(self) -> Path:
        return self.root / "lake" / "clicks"

    def _write_schemas(self) -> dict[int, str]:
        files = {}
        for schema_id, schema in ((CLICK_ID, CLICK), (ORDER_ID, ORDER)):
            path = self.root / f"{schema_id}.avsc"
            path.write_text(json.dumps(schema))
            files[schema_id] = str(path)
        return files

    def write_config(self, name: str = "pipelines.yaml", **changes: Any) -> None:
        """Write the site's configuration under the name that the examples have; `changes`: of its pipeline clicks."""
        document = yaml.safe_load(self.site.config.read_text())
        document["pipelines"]["clicks"] |= changes
        (self.root / name).write_text(yaml.safe_dump(document))

    def produce(self, values: Sequence[bytes]) -> None:
        """Send values to the partitions of the topic in turn."""
        producer = Producer({"bootstrap.servers": self.site.bootstrap})
        for record in values:
            partition = len(self.records) % PARTITIONS
            offset = len(self.records) // PARTITIONS
            producer.produce(self.topic, record, f"k{offset}", partition, timestamp=int(NOW.timestamp() * 1000))
            self.records.append(Record(partition, offset, record))
        assert producer.flush(30) == 0

    def commit(self, name: str = "pipelines.yaml") -> None:
        """Carry the topic's records to its end and commit them, as the writer does, without Spark."""
        config = load(self.root / name)
        topic_id = Cluster(self.site.bootstrap, timedelta(seconds=30)).topics([self.topic])[self.topic].id
        schemas = Schemas({CLICK_ID: CLICK, ORDER_ID: ORDER}, [CLICK_ID, ORDER_ID])
        driver = Driver(self.root, configuration=config, schemas=schemas, topic=self.topic, topic_id=topic_id)
        driver.start(PARTITIONS)
        batches = []
        ends = {}
        for partition in range(PARTITIONS):
            values = {record.offset: record.value for record in self.records if record.partition == partition}
            batches.append(log(values, partition, topic=self.topic))
            ends[partition] = len(values)
        driver.carry(batches, ends)

    def write_archive(self, folder: Path, names: Sequence[str]) -> None:
        """Write the records of the topic to files. `names`: of topic, partition, offset, time and value there."""
        rows = [
            dict(zip(names, (self.topic, r.partition, r.offset, FIRST_HOUR, r.value), strict=True))
            for r in self.records
        ]
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")

    def call_well(self, line: str) -> str:
        """Run a command of a step between examples. Returns what it printed."""
        code, output = self.call(line)
        assert code == 0, f"$ {line}\n{output}"
        return output

    def adapt(self, line: str) -> list[str]:
        """Return the words of an example behind `headrace`, with what stands here in place of some."""
        return [self._adapt_word(word) for word in shlex.split(line)[1:]]

    def _adapt_word(self, word: str) -> str:
        if word in self.local_words:
            return self.local_words[word]
        # The longest first, as one may contain another.
        for documented in sorted(self.local_places, key=len, reverse=True):
            if documented in word:
                return word.replace(documented, self.local_places[documented])
        return word

    def call(self, line: str) -> tuple[int, str]:
        """Run an example in this process, by the command's own entry. Returns its exit code, and what it printed."""
        root_logger = logging.getLogger()
        handlers = list(root_logger.handlers)
        try:
            result = CliRunner().invoke(app, self.adapt(line), env={"COLUMNS": "120"})
        finally:
            # A command logs to the standard error of its process, which ends here with the command.
            root_logger.handlers[:] = handlers
        error = result.exception
        if isinstance(error, HeadraceError):
            return error.exit_code, f"{result.output}headrace: {error}"
        if error is not None and not isinstance(error, SystemExit):
            raise error
        return result.exit_code, result.output

    @contextmanager
    def start(self, line: str) -> Iterator[Process]:
        """Run an example in a process of its own. Its driver takes the JVM that tests share."""
        log = self.root / f"process-{len(list(self.root.glob('process-*.log')))}.log"
        with spark_jvm.SHARED.lend() as jvm, log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.writer.cli", *self.adapt(line)],
                cwd=self.root,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **jvm},
            )
            with Process(process, log) as running:
                yield running


@dataclass(frozen=True)
class Example:
    """A command of the documentation as a step, with the exit code that it is to have.

    `has_process`: it runs in a process of its own, as what starts Spark, or changes its process. `sign`: what a command
    prints that runs for ever; it is stopped then, by the signal `stop`.
    """

    line: str
    code: int = 0
    has_process: bool = False
    sign: str = ""
    stop: signal.Signals = signal.SIGTERM
    # Taken after the sign, while it runs.
    meanwhile: Sequence["Step"] = ()

    def take(self, directory: ExampleDirectory) -> str:
        """Run it. Returns what is wrong with it, and with what is taken meanwhile; empty: nothing."""
        problems: list[str] = []
        if not self.has_process:
            code, output = directory.call(self.line)
        else:
            with directory.start(self.line) as running:
                if self.sign:
                    running.until(lambda: self.sign in running.output())
                    problems = take_steps(self.meanwhile, directory)
                    running.process.send_signal(self.stop)
                code = running.wait(240)
                output = running.output()
        if code != self.code or "Traceback" in output:
            problems.append(f"$ {self.line}\nexit {code}, expected {self.code}:\n{output}")
        return "\n\n".join(problems)


# An example that is to end with exit 0, another one, or what is done between examples.
Step = str | Example | Callable[[ExampleDirectory], None]


def take_steps(steps: Sequence[Step], directory: ExampleDirectory) -> list[str]:
    """Take the steps one after another. Returns what is wrong with examples."""
    problems: list[str] = []
    for step in steps:
        if isinstance(step, str):
            problems.append(Example(step).take(directory))
        elif isinstance(step, Example):
            problems.append(step.take(directory))
        else:
            step(directory)
    return [problem for problem in problems if problem]
