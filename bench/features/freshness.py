"""Measures how old an event is when a query first sees it: from the producer to DuckDB and to Trino.

By itself:
    python -m headrace.bench.features.freshness [--delays "5 s,15 s,1 min"] [--engines duckdb,trino] [--rate 4]
    [--json FILE]
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from math import ceil
from pathlib import Path
from statistics import median

import duckdb
import yaml
from confluent_kafka import KafkaError, Message, Producer
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from headrace.bench.contenders.contenders import PIPELINE, configuration
from headrace.bench.contenders.race import ContenderProcess
from headrace.bench.data.dataset import DataSet, dataset
from headrace.bench.engines.statement import Coordinator
from headrace.bench.engines.trino import register, trino, trino_home
from headrace.bench.features.live import fill_topic
from headrace.bench.figures import BenchFailed
from headrace.bench.job import PARTITIONS, Job
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.units import duration
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import ProcessGroup
from headrace.writer.output import tables
from headrace.writer.output.tables import NumberTable

ENGINES = ("duckdb", "trino")
DELAYS = "5 s,15 s,1 min"
# Events a second. An event is one figure of the result.
RATE = 4.0
# Events are sent for this long at least, and for whole delays, so that they come evenly between two commits.
_SEND_FOR_MIN = timedelta(minutes=1)
_DELAYS_MIN = 2
# Events that the table has before the measurement.
_FIRST = 1_000
# The pause between two queries of an engine.
_PAUSE = timedelta(milliseconds=100)
_STARTED_WITHIN_S = 180
# The time of a batch and a query, on a machine that does other work.
_SEEN_WITHIN_S = 120
_GRACE = timedelta(seconds=60)
# Number of a partition → its newest offset that a query sees.
Frontier = Mapping[int, int]


@dataclass(frozen=True)
class Freshness:
    """How old events were when one engine first saw them. Seconds."""

    max_delay_s: float
    engine: str
    events: int
    commits: int
    median_s: float
    p95_s: float
    max_s: float
    # The median of one query; an event that is there waits for one at most.
    query_s: float


class SentEvents:
    """When each event was given to the producer, by partition and offset. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent_s: dict[tuple[int, int], float] = {}
        self.failures: list[KafkaError] = []

    def add(self, partition: int, offset: int, sent_s: float) -> None:
        """Take an event that the broker has."""
        with self._lock:
            self._sent_s[partition, offset] = sent_s

    def up_to(self, frontier: Frontier) -> dict[tuple[int, int], float]:
        """Return the events that a query sees, with the time of each."""
        with self._lock:
            return {key: sent_s for key, sent_s in self._sent_s.items() if key[1] <= frontier.get(key[0], -1)}

    def __len__(self) -> int:
        with self._lock:
            return len(self._sent_s)


class Watch:
    """Asks one engine again and again which events it sees, in a thread of its own."""

    def __init__(self, engine: str, ask: Callable[[], Frontier], events: SentEvents) -> None:
        """`ask`: the query, which returns the newest offsets."""
        self.engine = engine
        self._ask = ask
        self._events = events
        self._ages_s: dict[tuple[int, int], float] = {}
        self._query_s: list[float] = []
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=engine, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def count(self) -> int:
        """Return how many events were seen. Raises BenchFailed when the engine failed."""
        if self._error is not None:
            raise BenchFailed(f"{self.engine} failed: {self._error}") from self._error
        return len(self._ages_s)

    def result(self, max_delay: timedelta, commits: int) -> Freshness:
        """Return the figures of all events that were seen."""
        ages_s = sorted(self._ages_s.values())
        return Freshness(
            max_delay.total_seconds(),
            self.engine,
            len(ages_s),
            commits,
            median(ages_s),
            percentile(ages_s, 0.95),
            ages_s[-1],
            median(self._query_s),
        )

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE.total_seconds()):
            began = time.monotonic()
            try:
                frontier = self._ask()
            except (HeadraceError, OSError, duckdb.Error) as error:
                self._error = error
                return
            # The events are seen when the answer is there.
            answered = time.monotonic()
            self._query_s.append(answered - began)
            for key, sent_s in self._events.up_to(frontier).items():
                self._ages_s.setdefault(key, answered - sent_s)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least of the sorted values that `share` of them do not exceed.

    >>> percentile([1, 2, 3, 4], 0.5)
    2
    """
    return values[max(0, ceil(share * len(values)) - 1)]


def measure_freshness(
    delays: Sequence[timedelta],
    engines: Sequence[str],
    rate: float,
    directory: Path,
    progress: Callable[[str], None],
) -> list[Freshness]:
    """Run the real writer once for each delay, and send it `rate` events a second. Raises BenchFailed, ServerFailed."""
    lake = directory / "lake"
    lake.mkdir()
    home = trino_home(progress) if "trino" in engines else None
    data = dataset("200B")
    results = list[Freshness]()
    with Stack(directory / "servers") as stack, _coordinator(home, directory, lake) as coordinator:
        for number, delay in enumerate(delays):
            job = fill_topic(stack, f"fresh-{number}", data, _FIRST, lake / f"delay-{number}")
            with _writer(job, delay):
                results += _measure_delay(job, data, delay, engines, coordinator, rate)
            for result in results[-len(engines) :]:
                progress(
                    f"max_delay {delay.total_seconds():g} s, {result.engine}: median {result.median_s:.1f} s, "
                    f"95 % within {result.p95_s:.1f} s, of {result.events} events in {result.commits} commits"
                )
    return results


@contextmanager
def _coordinator(home: Path | None, directory: Path, lake: Path) -> Iterator[Coordinator | None]:
    """Run Trino, if its home is given."""
    if home is None:
        yield None
        return
    with trino(home, directory / "trino", lake) as coordinator:
        yield coordinator


@contextmanager
def _writer(job: Job, delay: timedelta) -> Iterator[None]:
    """Run the writer until the end of the block, from the moment on that it has committed what was there."""
    settings = yaml.safe_load(configuration(job))
    settings["pipelines"][PIPELINE]["commit"]["max_delay"] = f"{delay.total_seconds():g} s"
    path = Path(job.directory) / "headrace.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = [sys.executable, "-m", "headrace.writer.cli", "run", str(path)]
    process = ContenderProcess("the writer", command, cwd=job.scratch, log=job.log, env={"TMPDIR": str(job.scratch)})
    process_group = ProcessGroup()
    process_group.adopt()
    try:
        process.launch()
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while _commits(job) == 0:
            if process.has_ended() or time.monotonic() > deadline:
                raise BenchFailed(f"the writer committed nothing within {_STARTED_WITHIN_S} s; look at {job.log}")
            time.sleep(_PAUSE.total_seconds())
        yield
    finally:
        process.stop(grace=_GRACE)
        process_group.end(grace=_GRACE)


def _measure_delay(
    job: Job, data: DataSet, delay: timedelta, engines: Sequence[str], coordinator: Coordinator | None, rate: float
) -> list[Freshness]:
    """Send events to a running writer until every engine has seen all of them."""
    queries = {"duckdb": _duckdb_query(job)}
    if coordinator is not None:
        queries["trino"] = _trino_query(job, coordinator)
    for engine in engines:
        # The first query of a table takes longer than all later ones.
        queries[engine]()
    events = SentEvents()
    watches = [Watch(engine, queries[engine], events) for engine in engines]
    commits = _commits(job)
    for watch in watches:
        watch.start()
    try:
        seconds = send_seconds(delay)
        count = int(rate * seconds.total_seconds())
        _send(job, data, count, rate, events)
        deadline = time.monotonic() + delay.total_seconds() + _SEEN_WITHIN_S
        while any(watch.count() < count for watch in watches):
            if time.monotonic() > deadline:
                seen = ", ".join(f"{watch.engine} {watch.count()}" for watch in watches)
                raise BenchFailed(f"{count} events were sent, and seen are: {seen}. Look at {job.log}")
            time.sleep(_PAUSE.total_seconds())
    finally:
        for watch in watches:
            watch.stop()
    return [watch.result(delay, _commits(job) - commits) for watch in watches]


def send_seconds(delay: timedelta) -> timedelta:
    """Return how long events are sent: whole delays, two at least, and a minute at least.

    >>> send_seconds(timedelta(seconds=25))
    datetime.timedelta(seconds=75)
    """
    return delay * max(_DELAYS_MIN, ceil(_SEND_FOR_MIN / delay))


def _send(job: Job, data: DataSet, count: int, rate: float, events: SentEvents) -> None:
    """Send events at an even pace, the partitions in turn. Raises BenchFailed."""
    producer = Producer({"bootstrap.servers": job.bootstrap, "log_level": 0, "enable.idempotence": True})
    values = data.encode(_FIRST, count, schema_id=job.schema_id).to_pylist()
    began = time.monotonic()
    for i, value in enumerate(values):
        time.sleep(max(0.0, began + i / rate - time.monotonic()))
        sent_s = time.monotonic()

        def note(error: KafkaError | None, message: Message, sent_s: float = sent_s) -> None:
            if error is not None:
                events.failures.append(error)
                return
            partition = message.partition()
            offset = message.offset()
            assert partition is not None
            assert offset is not None
            events.add(partition, offset, sent_s)

        producer.produce(job.topic, value, partition=i % PARTITIONS, on_delivery=note)
        producer.flush(30)
    if events.failures or len(events) < count:
        raise BenchFailed(f"the broker {job.bootstrap} took {len(events)} of {count} events")


def _duckdb_query(job: Job) -> Callable[[], Frontier]:
    """Return the query of DuckDB over the files that the newest version of the Delta table names."""
    location = str(job.table)

    def ask() -> Frontier:
        files = DeltaTable(location).file_uris()
        with duckdb.connect() as connection:
            query = "SELECT _partition, max(_offset) FROM read_parquet($1, hive_partitioning = false) GROUP BY 1"
            return dict(connection.execute(query, [files]).fetchall())

    return ask


def _trino_query(job: Job, coordinator: Coordinator) -> Callable[[], Frontier]:
    """Make the table known to Trino, and return its query."""
    folder = Path(job.directory).name
    name = folder.replace("-", "_")
    register(coordinator, name, f"local:///{folder}/{job.table.name}")
    query = f"SELECT _partition, max(_offset) FROM delta.lake.{name} GROUP BY 1"  # noqa: S608 - a name of ours
    return lambda: dict(coordinator.ask(query).rows)


def _commits(job: Job) -> int:
    return job.log.read_bytes().count(b"batch_committed")


def results_table(results: Sequence[Freshness]) -> Table:
    """Tabulate the figures."""
    table = NumberTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.title = "seconds from the producer until a query sees an event"
    table.title_justify = "left"
    table.title_style = "bold"
    table.add_column("commit.\nmax_delay", justify="right")
    table.add_column("\nengine")
    for title in ("\nmedian", "95th\npercentile", "\nmost", "of it one\nquery", "\nevents", "\ncommits"):
        table.add_column(title, justify="right")
    for result in results:
        table.add_row(
            f"{result.max_delay_s:g} s",
            result.engine,
            f"{result.median_s:.1f}",
            f"{result.p95_s:.1f}",
            f"{result.max_s:.1f}",
            f"{result.query_s:.2f}",
            f"{result.events:,}",
            f"{result.commits:,}",
        )
    return table


def _delays(text: str) -> list[timedelta]:
    return [duration(each.strip()) for each in text.split(",")]


def _engines(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= set(ENGINES) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be: name each once, of {', '.join(ENGINES)}")
    return names


def main(arguments: Sequence[str]) -> int:
    """Measure, and say what was seen. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.freshness", description=__doc__)
    parser.add_argument("--delays", type=_delays, default=DELAYS, help="commit.max_delay of each run of the writer")
    parser.add_argument("--engines", type=_engines, default="duckdb,trino", help="Trino is fetched once: 821 MB")
    parser.add_argument("--rate", type=float, default=RATE, help="events a second")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="headrace-freshness-", ignore_cleanup_errors=True) as directory:
        results = measure_freshness(
            options.delays, options.engines, options.rate, Path(directory), lambda line: print(line, flush=True)
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n", encoding="utf-8")
    print()
    tables.show(results_table(results), Console(highlight=False))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HeadraceError as error:
        print(f"freshness: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
