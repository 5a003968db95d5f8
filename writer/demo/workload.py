"""Produces the demo's events, and records what was produced."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import yaml

from writer.clients.driver_endpoint import announced
from writer.core.offsets import Source
from writer.core.text import plural
from writer.demo import mixed_topic
from writer.demo.devstack.events import NEW_FIELD, Produced, produce
from writer.demo.devstack.stack import Stack
from writer.demo.devstack.workspace import Interruption, Workspace, Writer
from writer.demo.mixed_topic import MixedTopic
from writer.demo.progress_monitor import ProgressMonitor
from writer.demo.terminal import Screen


@dataclass
class ProducedMessages:
    """Messages of each partition, as the broker acknowledged them; each is counted once."""

    since: datetime  # event times of all but the delayed events lie at or after this
    good: Counter[Source] = field(default_factory=Counter)
    delayed: Counter[Source] = field(default_factory=Counter)
    ahead: Counter[Source] = field(default_factory=Counter)
    broken: Counter[Source] = field(default_factory=Counter)
    new_field: int = 0  # of the good and delayed ones

    @property
    def ends(self) -> Counter[Source]:
        """Ends of the logs."""
        return self.good + self.delayed + self.ahead + self.broken

    def add(self, topic: str, made: Produced, *, new_field: bool) -> None:
        """Record what one call has produced; `new_field`: whether its schema had the field."""
        for mine, counts in (
            (self.good, made.good), (self.delayed, made.late), (self.ahead, made.ahead), (self.broken, made.broken)
        ):  # fmt: skip
            mine.update({(topic, partition): count for partition, count in counts.items()})
        if new_field:
            self.new_field += sum(made.good.values()) + sum(made.late.values())


TOPICS = {"clicks": 4, "installs": 2}  # partitions
PIPELINE = "events"
INSTALLS_SHARE = 0.2  # of the events
HOURS = 6  # of event time
SLICE = 5_000  # events between two looks at the panel and the writer
BROKEN = 3  # values in every fourth slice of a topic: one of each kind
AHEAD = 2  # events in every fourth slice of a topic, with a clock that is wrong
LATE_ONE_IN = 200  # events of every fourth slice, from phones that were offline
LATE_BY = timedelta(hours=8)  # at least, before all other events; up to three hours more
HEAD_START = 0.3  # of the events are in the log before the writer reads
PACE_FIRST = timedelta(seconds=1)  # between two slices before the first commit: Spark warms up on the same cores
PACE = timedelta(milliseconds=430)  # and after it, so that several commits are seen
PACE_EVENTS = 200_000  # with fewer the pace is quicker
COMMITS = (5, 8)  # about so many, by size
SLACK = 1.05  # so that rounding leaves no tail of a few records, which would wait for the delay
COMMIT_MIN = 5_000  # records; a smaller one takes as long
DELAY_MAX = timedelta(seconds=4)
READY_WITHIN = timedelta(seconds=120)  # seen: 8 s; a crowded CI machine is ten times slower
COMMITTED_WITHIN = timedelta(seconds=180)  # seen: 6 s after the last event
PER_EVENT = timedelta(microseconds=200)  # more for each: the writer carries 5,000/s on any machine


class Flow:
    """Produces all events while the writer runs."""

    def __init__(
        self, events: int, stack: Stack, watch: ProgressMonitor, screen: Screen, interruption: Interruption,
        page: Callable[[], str | None],
    ) -> None:  # fmt: skip
        """`page`: the URL of the writer's page, once it answers."""
        self._page = page
        self._events, self._stack, self._watch, self._screen = events, stack, watch, screen
        self._interruption = interruption
        now = datetime.now(UTC).replace(microsecond=0)
        self.given = ProducedMessages(now - timedelta(hours=HOURS))
        self._slices = max(HOURS, -(-events // SLICE))
        self._new_from = max(round(self._slices * HEAD_START) + 1, self._slices // 2)
        self._ends_before: Counter[Source] | None = None  # where the logs ended when the schema changed
        self._commits_before = 0
        self._column_seen = False

    def run(self, writer: Writer) -> None:
        """Produce everything, and return when the frontier has reached the ends of the logs."""
        first = round(self._slices * HEAD_START)
        for i in range(first):
            self._slice(i)
            writer.wait_until(self._look, within=READY_WITHIN)
        writer.wait_until(
            lambda: self._look() and self._watch.started and self._page() is not None, within=READY_WITHIN
        )
        self._screen.done("writer started: Spark is up, the table is created")
        self._screen.write(f"  its page: {self._page()}")
        self._watch.title = "the writer runs"
        for i in range(first, self._slices):
            pause = (PACE if self._watch.commits else PACE_FIRST) * min(1.0, self._events / PACE_EVENTS)
            until = time.monotonic() + pause.total_seconds()
            self._slice(i)
            writer.wait_until(lambda: self._look() and time.monotonic() >= until, within=READY_WITHIN)  # noqa: B023
        given = self.given
        self._screen.done(
            f"{self._events:,} produced: {given.delayed.total():,} delayed, {given.ahead.total():,} from the future, "
            f"{given.broken.total():,} broken"
        )
        within = COMMITTED_WITHIN + self._events * PER_EVENT
        writer.wait_until(lambda: self._look() and self._watch.reached(given.ends), within=within)
        self._watch.rest("all committed")
        self._screen.done(f"all committed, in {plural(self._watch.commits, 'commit')}")

    def _slice(self, i: int) -> None:
        """Produce the i-th part of the events; its hour of event time ends a little later than the last one's."""
        size = self._events * (i + 1) // self._slices - self._events * i // self._slices
        installs = round(size * INSTALLS_SHARE)
        until = self.given.since + timedelta(hours=1) + timedelta(hours=HOURS - 1) * i / (self._slices - 1)
        if i == self._new_from:
            self._ends_before, self._commits_before = self.given.ends, self._watch.commits
        for topic, count in (("clicks", size - installs), ("installs", installs)):
            new = topic == "clicks" and i >= self._new_from
            broken, late, ahead = 0, 0, 0
            match i % 4:
                case 0:
                    broken = BROKEN
                case 1:
                    late = max(1, count // LATE_ONE_IN)
                case 2:
                    ahead = AHEAD
            with self._interruption.later():
                made = produce(
                    self._stack.broker.bootstrap, self._stack.registry.url, topic, count - broken,
                    kind="clicks_2" if new else topic, now=until, hours=1, seed=i, broken=broken, ahead=ahead,
                    late=late, late_by=until - self.given.since + LATE_BY + timedelta(hours=i // 4 % 3),
                )  # fmt: skip
            self.given.add(topic, made, new_field=new)
        if i == self._new_from:
            self._screen.done(f"clicks schema 2 registered: one more field, {NEW_FIELD}")

    def _look(self) -> bool:
        """Read the progress, and print when the new column has arrived."""
        self._interruption.check()
        if self._watch.look(self.given.ends, total=self._events):
            self._show_new_column()
        return True

    def _show_new_column(self) -> None:
        """Show once which commit was the first to carry records of the new schema, and that it has their column."""
        before = self._ends_before
        if before is None or self._column_seen:
            return
        clicks = {source: end for source, end in before.items() if source[0] == "clicks"}
        for commit in self._watch.since(self._commits_before):
            if any(commit.frontier.get(self._watch.name(source), 0) > end for source, end in clicks.items()):
                self._column_seen = True
                there = NEW_FIELD in commit.columns
                found = "the table has its column" if there else "but the table has no such column"
                self._screen.done(f"commit {commit.number} is the first to carry it: {found}", good=there)
                return


def page(workspace: Workspace) -> str | None:
    """Return the URL of the writer's page; None before it answers."""
    driver = announced(str(workspace.directory / "checkpoints"), PIPELINE)
    return None if driver is None else f"{driver.url}/"


def configuration(events: int, stack: Stack, workspace: Workspace, mixed: MixedTopic) -> str:
    """Return the configuration file: what a user would write, with small limits."""
    return yaml.safe_dump(
        {
            "kafka": {"bootstrap_servers": stack.broker.bootstrap},
            "registry": {"url": stack.registry.url},
            "checkpoints": str(workspace.directory / "checkpoints"),
            "http": {"port": 0},  # any free one
            **({"catalog": workspace.catalog} if workspace.format == "iceberg" else {}),
            "pipelines": {
                PIPELINE: {
                    "topics": list(TOPICS),
                    "table": {"location": str(workspace.lake), "format": workspace.format},
                    "columns": {"key": "string", "headers": "_headers"},
                    "event_time": {"field": "event_time"},
                    "bucket": {"type": "event_time", "width": "1 h"},
                    "commit": {
                        "max_delay": f"{DELAY_MAX.total_seconds():g} s",
                        "min_records": max(COMMIT_MIN, events // max(COMMITS)),
                        "max_records": max(COMMIT_MIN, round(events / min(COMMITS) * SLACK)),
                    },
                    "roll": {"target_file_size": "4 MiB"},
                },
                mixed_topic.PIPELINE: mixed.settings(),
            },
        },
        sort_keys=False,
    )
