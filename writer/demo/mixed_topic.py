"""The demo's second pipeline: one topic with events of two types, and a table for each."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.core.text import plural
from headrace.writer.demo.devstack.events import SCHEMAS, produce
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import Workspace
from headrace.writer.demo.table_reader import TableLog, open_lake
from headrace.writer.demo.value_formats import ValueFormat
from headrace.writer.table.log.snapshot import app_id

PIPELINE = "app"
TOPIC = "app"
PARTITIONS = 2
# The topic has one event for so many of the other pipeline, and of each type at least as many as the second number.
_SHARE = 20
_EVENTS_MIN = 100
_KINDS = ("clicks", "installs")
# The rule of the route: a table for each name.
_RULE = "*"


class MixedTopic:
    """The topic, what was sent to it, and its tables."""

    def __init__(self, events: int, value_format: ValueFormat, workspace: Workspace) -> None:
        """`events`: of the demo's other pipeline."""
        self._value_format = value_format
        self._each = max(_EVENTS_MIN, events // _SHARE // len(_KINDS))
        self._lake = workspace.lake
        self._format = workspace.format
        self._log = workspace.lake.table("app_log")
        self._targets = workspace.lake.table("app")
        # The log of the pipeline, and those of its tables; none before the store is known.
        self._logs: dict[str, TableLog] = {}
        self._ends: dict[tuple[str, int], int] = {}

    def settings(self) -> dict[str, Any]:
        """Return the pipeline as the configuration file has it: its own log, and a table for each type of events."""
        return {
            "topics": [TOPIC],
            "table": {"location": self._log, "format": self._format},
            **self._value_format.settings,
            "event_time": {"field": "event_time"},
            "commit": {"max_delay": "4 s"},
            "route": {"by": self._value_format.route_by, "targets": {_RULE: f"{self._targets}/{{name}}"}},
        }

    def fill(self, stack: Stack) -> None:
        """Send events of both types. Raises KafkaException, SchemaRegistryError."""
        for kind in _KINDS:
            produced = produce(
                stack.broker.bootstrap,
                self._value_format.open_encoding(stack, f"{TOPIC}-{kind}"),
                TOPIC,
                self._each,
                kind=kind,
                now=datetime.now(UTC) - timedelta(minutes=1),
            )
            for partition, count in produced.good.items():
                self._ends[TOPIC, partition] = self._ends.get((TOPIC, partition), 0) + count

    def is_applied(self) -> bool:
        """Return whether all of it is committed, and applied to each table."""
        log = self._follow(self._log)
        log_ends = {
            app_id(PIPELINE, TopicPartition(topic, 1, part)): log_end for (topic, part), log_end in self._ends.items()
        }
        if any(log.transactions.get(name, 0) < log_end for name, log_end in log_ends.items()):
            return False
        return all(self._applied_version(kind) >= log.commits[-1].version for kind in _KINDS)

    def _applied_version(self, kind: str) -> int:
        return self._follow(self._table(kind)).transactions.get(f"{PIPELINE}/main", -1)

    def _follow(self, location: str) -> TableLog:
        """Return the log of a table, read up to its end. What was read before is not read again."""
        if location not in self._logs:
            self._logs[location] = TableLog(location, self._lake.stores)
        log = self._logs[location]
        log.follow()
        return log

    def _table(self, kind: str) -> str:
        return f"{self._targets}/{SCHEMAS[kind]['name']}"

    def account(self, settings: Config, scratch: Path) -> tuple[str, bool]:
        """Ask DuckDB for the rows of each table. Returns a sentence, and whether they are what was produced.

        `scratch`: for copies of files that lie in a bucket.
        """
        import duckdb

        counts = {}
        for kind in _KINDS:
            table = settings.pipelines[PIPELINE].of_target(_RULE, str(SCHEMAS[kind]["name"])).table
            db = duckdb.connect()
            with open_lake(settings.stores, scratch) as reader:
                read_table = reader.open(table.location, settings.in_catalog(table))
                read_table.show_as(db, "events", {"_partition": "INT", "_offset": "BIGINT"})
                query = "SELECT count(*), count(DISTINCT (_partition, _offset)) FROM events"
                counts[kind] = db.execute(query).fetchall()[0]
        rows = " + ".join(f"{count:,} rows of {SCHEMAS[kind]['name']}" for kind, (count, _) in counts.items())
        produced = len(_KINDS) * self._each
        good = all(count == (self._each, self._each) for count in counts.values())
        return f"topic {TOPIC}, {plural(len(_KINDS), 'table')}: {produced:,} produced = {rows}", good
