"""A live writer beside which another command is measured: its stream of events, its lag, its rows."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE, run
from typing import Any, Self

import duckdb
import yaml
from confluent_kafka import Producer
from deltalake import DeltaTable

from headrace.bench.contenders.contenders import PIPELINE, configuration
from headrace.bench.contenders.race import ContenderProcess
from headrace.bench.data.dataset import TIME_FIELD, DataSet
from headrace.bench.data.fill import fill
from headrace.bench.figures import BenchFailed
from headrace.bench.job import PARTITIONS, Job
from headrace.writer.clients.driver_endpoint import find_announcement, status_at
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import ProcessGroup

# The greatest delay of the live writer's commits.
MAX_DELAY = timedelta(seconds=10)
# The objective of the live writer: its delay, and time for a batch.
LAG_MAX = MAX_DELAY + timedelta(seconds=30)
_GRACE = timedelta(seconds=60)
_STARTED_WITHIN_S = 300
_CAUGHT_UP_WITHIN_S = 300
_LOOK_S = 1.0


class LiveStream:
    """Live events, so many a second, until it is stopped."""

    def __init__(self, job: Job, data: DataSet, first: int, a_second: float) -> None:
        self._job = job
        self._data = data
        self.sent = first
        self._rate = a_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> int:
        """End. Returns how many events the topic has."""
        self._stop.set()
        self._thread.join()
        return self.sent

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self._job.bootstrap, "log_level": 0, "enable.idempotence": True})
        count = max(1, round(self._rate / 2))
        while not self._stop.wait(0.5):
            values = self._data.encode(self.sent, count, schema_id=self._job.schema_id).to_pylist()
            for i, value in enumerate(values):
                producer.produce(self._job.topic, value, partition=i % PARTITIONS)
                producer.poll(0)
            producer.flush(30)
            self.sent += count


class LiveWriter:
    """The real writer, and events that come while it runs; as a context, which ends both."""

    def __init__(self, job: Job, path: Path, data: DataSet, first: int, a_second: float) -> None:
        """`path`: of the configuration; `first`: how many events the topic has."""
        command = [sys.executable, "-m", "headrace.writer.cli", "run", str(path)]
        env = {"TMPDIR": str(job.scratch)}
        self._job = job
        self._stream = LiveStream(job, data, first, a_second)
        self._process = ContenderProcess("the writer", command, cwd=job.scratch, log=job.log, env=env)
        self._process_group = ProcessGroup()

    def __enter__(self) -> Self:
        """Start, and wait until it has caught up. Raises BenchFailed."""
        self._process_group.adopt()
        try:
            self._process.launch()
            self._stream.start()
            self._until(lambda: _is_warm(self._job), _STARTED_WITHIN_S, "the live writer does not catch up")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def lag_alone(self) -> list[float]:
        """Return the lag of the writer, second by second, for two of its delays."""
        return self._sample_lag(lambda: False, seconds=2 * MAX_DELAY.total_seconds())

    def beside(self, *arguments: str) -> "CommandFigures":
        """Run a verb of the command to its end, and look at the writer meanwhile. Raises BenchFailed."""
        outputs: list[str] = []
        began = time.monotonic()
        thread = threading.Thread(target=lambda: outputs.append(run_command(*arguments, "--json", codes=(0, 1))))
        thread.start()
        lag_s = self._sample_lag(lambda: not thread.is_alive(), seconds=24 * 3600)
        thread.join()
        seconds = time.monotonic() - began
        if not outputs:
            raise BenchFailed(f"headrace {arguments[0]} failed; what it said stands above")
        return CommandFigures(
            seconds, lag_s, [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]
        )

    def finish(self) -> int:
        """End the stream, and wait until its events are rows. Returns how many events the topic has."""
        events = self._stream.stop()
        self._until(lambda: rows(self._job)[0] >= events, _CAUGHT_UP_WITHIN_S, "the live writer is not done")
        return events

    def _end(self) -> None:
        self._stream.stop()
        self._process.stop(grace=_GRACE)
        self._process_group.end(grace=_GRACE)

    def _sample_lag(self, is_enough: Callable[[], bool], *, seconds: float) -> list[float]:
        """Look at the lag of the writer until it is enough, or the time is over."""
        samples: list[float] = []
        deadline = time.monotonic() + seconds
        while not is_enough() and time.monotonic() < deadline:
            if self._process.has_ended():
                raise BenchFailed(f"the live writer ended; look at {self._job.log}")
            samples += _lag(self._job)
            time.sleep(_LOOK_S)
        return samples

    def _until(self, condition: Callable[[], bool], seconds: float, problem: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self._process.has_ended() or time.monotonic() > deadline:
                raise BenchFailed(f"{problem} within {seconds:.0f} s")
            time.sleep(_LOOK_S)


@dataclass(frozen=True)
class CommandFigures:
    """What was seen of a command beside a live writer."""

    # The duration of the command, from its start to its end.
    seconds: float
    # The lag of the live writer, sample by sample.
    lag_s: Sequence[float]
    # The JSON lines that the command printed.
    lines: Sequence[Mapping[str, Any]]

    def count(self, event: str) -> int:
        """How many lines are such events."""
        return sum(line.get("event") == event for line in self.lines)


@dataclass
class Figures:
    """What was seen of a command beside a live writer, and of its table afterwards."""

    live_a_second: float
    seconds: float = 0.0
    # How often the command waited for the live writer.
    waited: int = 0
    lag_before_s: Sequence[float] = ()
    # The lag while the command ran.
    lag_s: Sequence[float] = ()
    # Events of the topic.
    events: int = 0
    rows: int = 0
    distinct: int = 0
    audit_adds_up: bool = False

    def add_command(self, command: CommandFigures) -> None:
        """Take what was seen while it ran."""
        self.seconds = command.seconds
        self.lag_s = list(command.lag_s)
        self.waited = command.count("waits")

    def add_table(self, job: Job, path: Path) -> None:
        """Count the rows, and audit them."""
        self.rows, self.distinct = rows(job)
        report = json.loads(run_command("audit", str(path), "--deep", "--json", codes=(0, 1)))
        self.audit_adds_up = report["pipelines"][PIPELINE]["adds_up"]

    def show(self, path: Path | None) -> int:
        """Say what was seen, and write it to a file of JSON. Returns 1 when something is not as it must be."""
        if path:
            path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        print(self.sentence())
        problems = self.problems()
        for problem in problems:
            print(problem)
        return int(bool(problems))

    def sentence(self) -> str:
        """Say the figures."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        """What is not as it must be, each as a sentence."""
        problems = []
        if (self.rows, self.distinct) != (self.events, self.events):
            problems.append(f"{self.events:,} events were sent; {self.rows:,} rows, {self.distinct:,} distinct")
        if not self.audit_adds_up:
            problems.append("the deep audit does not add up")
        if max(self.lag_s, default=0) > LAG_MAX.total_seconds():
            problems.append(
                f"the live writer was {max(self.lag_s):.0f} s behind, {LAG_MAX.total_seconds():.0f} is the limit"
            )
        return problems

    def beside(self, command: str) -> str:
        """Say how the live writer did beside a command."""
        before = max(self.lag_before_s, default=0)
        beside = max(self.lag_s, default=0)
        return (
            f"beside {self.live_a_second:,.0f} live events a second; the live writer was at most {beside:.0f} s behind "
            f"({before:.0f} s before; its aim is {LAG_MAX.total_seconds():.0f} s), {command} waited {self.waited} "
            f"times; {self.rows:,} rows, {self.distinct:,} distinct"
        )


def write_configuration(job: Job, **pipeline: Any) -> Path:
    """Write the configuration of a writer that commits often. `pipeline`: more of its section."""
    settings = yaml.safe_load(configuration(job))
    section = settings["pipelines"][PIPELINE]
    section["commit"] |= {"max_delay": f"{MAX_DELAY.total_seconds():.0f} s"}
    for key, values in pipeline.items():
        section.setdefault(key, {}).update(values)
    path = Path(job.directory) / "headrace.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def fill_topic(stack: Stack, topic: str, data: DataSet, events: int, directory: Path) -> Job:
    """Fill a topic with events, and make the writer's directories."""
    filled = fill(stack.broker.bootstrap, stack.registry.url, topic, data, events)
    job = Job(
        stack.broker.bootstrap,
        stack.registry.url,
        topic,
        filled.schema_id,
        data.schema_text,
        0,
        500_000,
        TIME_FIELD,
        str(directory),
    )
    job.scratch.mkdir(parents=True)
    job.log.touch()
    return job


def rows(job: Job) -> tuple[int, int]:
    """Let DuckDB count the rows that readers see, and the distinct ones."""
    files = DeltaTable(str(job.table)).file_uris()
    counts = duckdb.execute(
        "SELECT count(*), count(DISTINCT (_topic, _incarnation, _partition, _offset)) FROM read_parquet($1)", [files]
    ).fetchone()
    assert counts is not None
    return int(counts[0]), int(counts[1])


def run_command(*arguments: str, codes: Sequence[int] = (0,)) -> str:
    """Run a verb of the command to its end. Returns what it said."""
    command = [sys.executable, "-m", "headrace.writer.cli", *arguments]
    process = run(command, stdout=PIPE, env=dict(os.environ), check=False)  # noqa: S603
    if process.returncode not in codes:
        raise BenchFailed(f"headrace {arguments[0]} ended with code {process.returncode}")
    return process.stdout.decode()


def _is_warm(job: Job) -> bool:
    """Return whether the live writer has committed some batches and is not behind: what its start cost is over."""
    behind = max(_lag(job), default=float("inf"))
    return job.log.read_bytes().count(b"batch_committed") > 1 and behind <= LAG_MAX.total_seconds()


def _lag(job: Job) -> list[float]:
    """Ask the live writer how many seconds it is behind; nothing while it does not say."""
    driver = find_announcement(f"{job.directory}/checkpoints", PIPELINE)
    if driver is None:
        return []
    with suppress(LookupError):
        pipeline = (status_at(driver.url) or {})["pipelines"][PIPELINE]
        seconds = pipeline["lag"]["seconds"]
        if seconds is not None and pipeline["state"] == "running":
            return [float(seconds)]
    return []
