"""Produces the demo's events, and records what was produced."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from headrace.writer.clients.driver_endpoint import Driver, ask_driver, find_announcement
from headrace.writer.core.offsets import Source
from headrace.writer.core.text import plural
from headrace.writer.demo import mixed_topic
from headrace.writer.demo.devstack.events import Produced, produce
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import Interruption, Workspace, Writer
from headrace.writer.demo.mixed_topic import MixedTopic
from headrace.writer.demo.progress_monitor import ProgressMonitor
from headrace.writer.demo.row_digest import RowDigest
from headrace.writer.demo.terminal import Screen
from headrace.writer.demo.value_formats import ValueFormat


@dataclass
class ProducedMessages:
    """Messages of each partition, as the broker acknowledged them; each is counted once."""

    # Event times of all but the delayed events lie at or after this.
    since: datetime
    good: Counter[Source] = field(default_factory=Counter)
    delayed: Counter[Source] = field(default_factory=Counter)
    ahead: Counter[Source] = field(default_factory=Counter)
    broken: Counter[Source] = field(default_factory=Counter)
    # Of the good and delayed ones.
    new_field: int = 0
    # Of the good and delayed ones; None: their values are not compared.
    row_digest: RowDigest | None = None

    @property
    def ends(self) -> Counter[Source]:
        """Ends of the logs."""
        return self.good + self.delayed + self.ahead + self.broken

    def add(self, topic: str, produced: Produced, *, new_field: bool) -> None:
        """Record what one call has produced; `new_field`: whether its events had the field."""
        for mine, counts in (
            (self.good, produced.good),
            (self.delayed, produced.late),
            (self.ahead, produced.ahead),
            (self.broken, produced.broken),
        ):
            mine.update({(topic, partition): count for partition, count in counts.items()})
        if new_field:
            self.new_field += sum(produced.good.values()) + sum(produced.late.values())


# The number of partitions of each topic.
TOPICS = {"clicks": 4, "installs": 2}
PIPELINE = "events"
# The share of the events.
INSTALLS_SHARE = 0.2
# The hours of event time.
HOURS = 6
# Events between two looks at the writer.
SLICE = 5_000
# Broken values in every fourth slice of a topic: one of each kind.
BROKEN = 3
# Events with a wrong clock in every fourth slice of a topic.
AHEAD = 2
# Of every fourth slice one event in so many comes from a phone that was offline.
LATE_ONE_IN = 200
# At least this much before all other events; up to three hours more.
LATE_BY = timedelta(hours=8)
# This share of the events is in the log before the writer reads.
HEAD_START = 0.3
# The pause between two slices before the first commit: Spark warms up on the same cores.
PACE_FIRST = timedelta(seconds=1)
# The pause after the first commit, so that several commits are seen.
PACE = timedelta(milliseconds=430)
# With fewer events the pauses are shorter.
PACE_EVENTS = 200_000
# The number of commits lies about between these, by size.
COMMITS = (5, 8)
# Rounding leaves no rest of a few records, which would wait for the delay.
SLACK = 1.05
# A smaller commit takes as long.
COMMIT_MIN = 5_000
MAX_DELAY = timedelta(seconds=4)
# A demo is over in less than a minute, so the lag is to be seen as it is now.
LAG_INTERVAL = timedelta(seconds=1)
# A start takes 8 s; on a crowded machine ten times as long.
READY_WITHIN = timedelta(seconds=120)
# The last commit comes 6 s after the last event on a quiet machine.
COMMITTED_WITHIN = timedelta(seconds=180)
# More time for each event: any machine carries 5,000 events a second.
PER_EVENT = timedelta(microseconds=200)


class Flow:
    """Produces all events while the writer runs."""

    def __init__(
        self,
        events: int,
        value_format: ValueFormat,
        stack: Stack,
        monitor: ProgressMonitor,
        screen: Screen,
        interruption: Interruption,
        page: Callable[[], str | None],
    ) -> None:
        """`page`: the URL of the writer's page, once it answers."""
        self._page = page
        self._events = events
        self._value_format = value_format
        self._encoding = value_format.open_encoding(stack, "")
        self._stack = stack
        self._monitor = monitor
        self._screen = screen
        self._interruption = interruption
        now = datetime.now(UTC).replace(microsecond=0)
        self._row_digest = RowDigest()
        self.produced = ProducedMessages(now - timedelta(hours=HOURS), row_digest=self._row_digest)
        self._slices = max(HOURS, -(-events // SLICE))
        self._new_from = max(round(self._slices * HEAD_START) + 1, self._slices // 2)
        # Where the logs ended when the events changed.
        self._ends_before: Counter[Source] | None = None
        self._commits_before = 0
        self._has_shown_column = False

    def run(self, writer: Writer) -> None:
        """Produce everything, and return when the frontier has reached the ends of the logs."""
        first = round(self._slices * HEAD_START)
        for i in range(first):
            self._produce_slice(i)
            writer.wait_until(self._check_progress, within=READY_WITHIN)
        writer.wait_until(
            lambda: self._check_progress() and self._monitor.is_started and self._page() is not None,
            within=READY_WITHIN,
        )
        self._screen.finish_step("writer started: Spark is up, the table is created")
        self._screen.write(f"  its page: {self._page()}")
        self._monitor.title = "the writer runs"
        for i in range(first, self._slices):
            pause = (PACE if self._monitor.commits else PACE_FIRST) * min(1.0, self._events / PACE_EVENTS)
            until = time.monotonic() + pause.total_seconds()
            self._produce_slice(i)
            writer.wait_until(lambda: self._check_progress() and time.monotonic() >= until, within=READY_WITHIN)  # noqa: B023
        produced = self.produced
        self._screen.finish_step(
            f"{self._events:,} produced: {produced.delayed.total():,} delayed, "
            f"{produced.ahead.total():,} from the future, {produced.broken.total():,} broken"
        )
        within = COMMITTED_WITHIN + self._events * PER_EVENT
        writer.wait_until(lambda: self._check_progress() and self._monitor.has_committed(produced.ends), within=within)
        self._monitor.show_final("all committed", self._events)
        self._screen.finish_step(f"all committed, in {plural(self._monitor.commits, 'commit')}")

    def _produce_slice(self, i: int) -> None:
        """Produce the i-th part of the events; its hour of event time ends a little later than the last one's."""
        size = self._events * (i + 1) // self._slices - self._events * i // self._slices
        installs = round(size * INSTALLS_SHARE)
        until = self.produced.since + timedelta(hours=1) + timedelta(hours=HOURS - 1) * i / (self._slices - 1)
        if i == self._new_from:
            self._ends_before = self.produced.ends
            self._commits_before = self._monitor.commits
        for topic, count in (("clicks", size - installs), ("installs", installs)):
            new = topic == "clicks" and i >= self._new_from
            broken = 0
            late = 0
            ahead = 0
            match i % 4:
                case 0:
                    broken = BROKEN
                case 1:
                    late = max(1, count // LATE_ONE_IN)
                case 2:
                    ahead = AHEAD
            with self._interruption.later():
                slice_counts = produce(
                    self._stack.broker.bootstrap,
                    self._encoding,
                    topic,
                    count - broken,
                    kind="clicks_2" if new else topic,
                    now=until,
                    hours=1,
                    seed=i,
                    broken=broken,
                    ahead=ahead,
                    late=late,
                    late_by=until - self.produced.since + LATE_BY + timedelta(hours=i // 4 % 3),
                    on_row=self._row_digest.add,
                )
            self.produced.add(topic, slice_counts, new_field=new)
        if i == self._new_from:
            self._screen.finish_step(self._value_format.change)

    def _check_progress(self) -> bool:
        """Read the progress, and print when the new column has arrived."""
        self._interruption.check()
        if self._monitor.update(self.produced.ends.total(), total=self._events):
            self._show_new_column()
        return True

    def _show_new_column(self) -> None:
        """Show once which commit was the first to carry the new field, and that the table has a column for it."""
        before = self._ends_before
        if before is None or self._has_shown_column:
            return
        clicks = {source: log_end for source, log_end in before.items() if source[0] == "clicks"}
        for commit in self._monitor.since(self._commits_before):
            if any(commit.frontier.get(self._monitor.name(source), 0) > log_end for source, log_end in clicks.items()):
                self._has_shown_column = True
                column = self._value_format.change_column
                has_column = column in commit.columns
                result = self._value_format.arrival if has_column else f"but the table has no column {column}"
                self._screen.finish_step(
                    f"version {commit.version} is the first to carry it: {result}", good=has_column
                )
                return


def page(workspace: Workspace) -> str | None:
    """Return the URL of the writer's page; None before it answers."""
    driver = _find_driver(workspace)
    return None if driver is None else f"{driver.url}/"


def writer_status(workspace: Workspace) -> dict[str, Any] | None:
    """Return the pipeline's part of the writer's `/status`; None while it does not answer."""
    driver = _find_driver(workspace)
    return None if driver is None else ask_driver(driver, PIPELINE)


def _find_driver(workspace: Workspace) -> Driver | None:
    return find_announcement(str(workspace.directory / "checkpoints"), PIPELINE)


def configuration(events: int, value_format: ValueFormat, stack: Stack, workspace: Workspace, mixed: MixedTopic) -> str:
    """Return the configuration file: what a user would write, with small limits."""
    registry = {"registry": {"url": stack.registry.url}} if value_format.has_registry else {}
    columns = {"key": "string", "headers": "_headers", **value_format.settings.get("columns", {})}
    catalog = {"catalog": workspace.catalog} if workspace.format == "iceberg" else {}
    return yaml.safe_dump(
        {
            "kafka": {
                "bootstrap_servers": stack.broker.bootstrap,
                "lag_interval": f"{LAG_INTERVAL.total_seconds():g} s",
            },
            **registry,
            "checkpoints": str(workspace.directory / "checkpoints"),
            # Any free port.
            "http": {"port": 0},
            **catalog,
            **workspace.store_sections,
            "pipelines": {
                PIPELINE: {
                    "topics": list(TOPICS),
                    "table": {"location": workspace.table, "format": workspace.format},
                    **value_format.settings,
                    "columns": columns,
                    "event_time": {"field": "event_time"},
                    "bucket": {"type": "event_time", "width": "1 h"},
                    "commit": {
                        "max_delay": f"{MAX_DELAY.total_seconds():g} s",
                        "min_offsets": max(COMMIT_MIN, events // max(COMMITS)),
                        "max_offsets": max(COMMIT_MIN, round(events / min(COMMITS) * SLACK)),
                    },
                    "roll": {"target_file_size": "4 MiB"},
                },
                mixed_topic.PIPELINE: mixed.settings(),
            },
        },
        sort_keys=False,
    )
