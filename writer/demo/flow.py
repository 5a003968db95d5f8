"""The demo's events on their way from the log to the lake, and what a person sees of it."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from writer.demo.ground import Ground, Interruption, Writer
from writer.embedded import Stack
from writer.embedded.events import produce
from writer.rooms.report import Source
from writer.tables.base import CommitFailed, Part
from writer.tables.delta import DeltaLake

TOPICS = {"clicks": 4, "installs": 2}  # partitions
PIPELINE = "events"
INSTALLS_SHARE = 0.2  # of the events
HOURS = 6  # of event time
SLICE = 5_000  # events between two looks at the bars and the writer
BROKEN = 3  # values in every fourth slice of a topic: one of each kind
HEAD_START = 0.3  # of the events are in the log before the writer reads
PACE = timedelta(seconds=12)  # the other 200,000 arrive over this long, so that several commits are seen
PACE_EVENTS = 200_000
COMMITS = (5, 8)  # about so many, by size
COMMIT_MIN = 5_000  # records; a smaller one takes as long
DELAY_MAX = timedelta(seconds=5)
READY_WITHIN = timedelta(seconds=120)  # seen: 8 s; a crowded CI machine is ten times slower
COMMITTED_WITHIN = timedelta(seconds=180)  # seen: 6 s after the last event
PER_EVENT = timedelta(microseconds=200)  # more for each: the writer carries 5,000/s on any machine


class Steps:
    """One line for each thing that is done, with the seconds that it took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    @contextmanager
    def step(self, doing: str, done: str) -> Iterator[None]:
        """Say what goes on (on a terminal), then that it is done."""
        self._began = time.monotonic()
        with self._console.status(doing):
            yield
        self.done(done)

    def done(self, label: str) -> None:
        """Print a line; its seconds count from the line before."""
        now = time.monotonic()
        self._console.print(f"{mark(self._console)} {label:<58}[dim]{now - self._began:6.1f} s[/]")
        self._began = now


class Flow:
    """Events on their way from the log to the lake, and two bars that tell how far they are."""

    def __init__(self, events: int, stack: Stack, ground: Ground, interruption: Interruption) -> None:
        self._events, self._stack, self._interruption = events, stack, interruption
        self._lake = DeltaLake(str(ground.lake), PIPELINE)
        self._location = str(ground.lake)
        self.good: Counter[Source] = Counter()
        self.broken: Counter[Source] = Counter()
        self.bars = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            BarColumn(34),
            TextColumn("{task.completed:>9,.0f} of {task.total:,.0f}"),
        )
        self._produced = self.bars.add_task("in Kafka", total=events)
        self._committed = self.bars.add_task("in the lake", total=events)

    def run(self, writer: Writer, steps: Steps) -> None:
        """Produce all events while the writer runs; return when its frontier has reached the ends of the logs."""
        slices = max(HOURS, -(-self._events // SLICE))
        first = round(slices * HEAD_START)
        began = datetime.now(UTC) - timedelta(hours=HOURS)
        for i in range(first):
            self._slice(i, slices, began)
            writer.wait_until(self._look, within=READY_WITHIN)
        writer.wait_until(lambda: self._look() and self._started(), within=READY_WITHIN)
        steps.done("writer started: Spark is up, the table is created")
        pause = PACE / (slices - first) * min(1.0, self._events / PACE_EVENTS)
        for i in range(first, slices):
            until = time.monotonic() + pause.total_seconds()
            self._slice(i, slices, began)
            writer.wait_until(lambda: self._look() and time.monotonic() >= until, within=READY_WITHIN)  # noqa: B023
        steps.done(f"{self._events:,} events produced, {self.broken.total()} of them broken on purpose")
        writer.wait_until(
            lambda: self._look() and self._caught_up(), within=COMMITTED_WITHIN + self._events * PER_EVENT
        )
        steps.done(f"all committed, in {len(self._lake.commits_since(-1))} commits")

    def _slice(self, i: int, slices: int, began: datetime) -> None:
        """Produce the i-th part of the events; its hour of event time ends a little later than the last one's."""
        size = self._events * (i + 1) // slices - self._events * i // slices
        installs = round(size * INSTALLS_SHARE)
        until = began + timedelta(hours=1) + timedelta(hours=HOURS - 1) * i / (slices - 1)
        for topic, count in (("clicks", size - installs), ("installs", installs)):
            broken = 0 if i % 4 else BROKEN
            with self._interruption.later():
                made = produce(
                    self._stack.broker.bootstrap, self._stack.registry.url, topic, count - broken,
                    now=until, hours=1, seed=i, broken=broken,
                )  # fmt: skip
            self.good.update({(topic, partition): n for partition, n in made.good.items()})
            self.broken.update({(topic, partition): n for partition, n in made.broken.items()})

    def _look(self) -> bool:
        """Move the bars."""
        self._interruption.check()
        self.bars.update(self._produced, completed=(self.good + self.broken).total())
        self.bars.update(self._committed, completed=sum(self._frontier().values()))
        return True

    def _frontier(self) -> dict[Source, int]:
        """How far each partition is committed; empty before the writer has made the table."""
        with suppress(CommitFailed):  # not whole yet
            if DeltaTable.is_deltatable(self._location):
                snapshot = self._lake.snapshot()
                sources = [(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
                return {s: snapshot.frontier(Part(s[0], 1, s[1])) or 0 for s in sources}
        return {}

    def _started(self) -> bool:
        return bool(self._frontier()) and self._lake.snapshot().epoch > 0

    def _caught_up(self) -> bool:
        ends = self.good + self.broken
        frontier = self._frontier()
        return all(frontier.get(source, 0) >= end for source, end in ends.items())


def create_topics(bootstrap: str) -> None:
    """Create both topics. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = [NewTopic(name, num_partitions=partitions, replication_factor=1) for name, partitions in TOPICS.items()]
    for created in admin.create_topics(new).values():
        created.result(timeout=30)


def configuration(events: int, stack: Stack, ground: Ground) -> str:
    """Return the configuration file: what a user would write, with small limits."""
    return yaml.safe_dump(
        {
            "kafka": {"bootstrap_servers": stack.broker.bootstrap},
            "registry": {"url": stack.registry.url},
            "checkpoints": str(ground.directory / "checkpoints"),
            "pipelines": {
                PIPELINE: {
                    "topics": list(TOPICS),
                    "table": {"location": str(ground.lake)},
                    "event_time": {"field": "event_time"},
                    "bucket": {"type": "event_time", "width": "1 h"},
                    "commit": {
                        "max_delay": f"{DELAY_MAX.total_seconds():g} s",
                        "min_records": max(COMMIT_MIN, events // max(COMMITS)),
                        "max_records": max(COMMIT_MIN, events // min(COMMITS)),
                    },
                    "roll": {"target_file_size": "4 MiB"},
                }
            },
        },
        sort_keys=False,
    )


def mark(console: Console) -> str:
    """Return the sign of what is done."""
    return "[green]✓[/]" if console.encoding.startswith("utf") else "[green]ok[/]"
