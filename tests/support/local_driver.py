"""A pipeline's batches carried by its own steps and committed to its own table, without Spark and without Kafka."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import bucketers
from headrace.writer.batch import task
from headrace.writer.batch.task_report import Report
from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.commit import builder
from headrace.writer.commit.batch_limits import limits
from headrace.writer.commit.closed_buckets import slowest_event_time
from headrace.writer.commit.privacy import RecordedPrivacy, record_privacy
from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.driver.start.pipeline_start import check_rules, make_tables, set_rules
from headrace.writer.framing.wire_format import HEADERS
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.operations.rows import Batch
from tests.support.sample_records import EVENT, NOW, Schemas, config


class Died(Exception):
    """The driver is gone, at this moment."""


def log(
    values: Mapping[int, bytes | None],
    partition: int = 0,
    *,
    topic: str = "clicks",
    kafka_time: datetime = NOW,
    headers: Mapping[int, Mapping[str, bytes]] | None = None,
    keys: Mapping[int, bytes | None] | None = None,
) -> pa.RecordBatch:
    """Records of one partition, by offset, as a task gets them; `headers`: Kafka's, of those that have some.

    `keys`: of all records; by default k and the offset.
    """
    rows = sorted(values.items())
    kafka_headers = [
        [{"key": k, "value": v} for k, v in (headers or {}).get(offset, {}).items()] or None for offset, _ in rows
    ]
    return pa.record_batch(
        [
            pa.array([topic] * len(rows), pa.string()),
            pa.array([partition] * len(rows), pa.int32()),
            pa.array([offset for offset, _ in rows], pa.int64()),
            pa.array([kafka_time] * len(rows), pa.timestamp("us", "UTC")),
            pa.array([f"k{offset}".encode() if keys is None else keys[offset] for offset, _ in rows], pa.binary()),
            pa.array([value for _, value in rows], pa.binary()),
            pa.array(kafka_headers, HEADERS),
        ],
        schema=RECORDS,
    )


def pipeline_config(root: Path, form: str, *, interval: int = 50, **settings: Any) -> Config:
    """Return the configuration of pipeline `clicks`."""
    table = {"location": str(root / "lake" / "clicks"), **settings.pop("table", {})}
    return config(root, table={**table, "format": form, "checkpoint_interval": interval}, **settings)


class Driver:
    """One start of pipeline `clicks`. `die` names the moment at which a batch ends with Died."""

    def __init__(
        self,
        root: Path,
        form: str = "delta",
        *,
        schemas: Schemas | None = None,
        interval: int = 50,
        configuration: Config | None = None,
        name: str = "clicks",
        topic: str = "clicks",
        topic_id: str = "uuid-1",
        budget: int = 2**20,
        **settings: Any,
    ) -> None:
        """`configuration`: in place of one that is made from the rest, with a pipeline of this `name`.

        `budget`: bytes before rows spill.
        """
        self.name = name
        self.budget = budget
        self.topic = topic
        self.topic_id = topic_id
        self.config = configuration or pipeline_config(root, form, interval=interval, **settings)
        self.settings = self.config.pipelines[name]
        self.schemas = schemas or Schemas({1: EVENT}, [1])
        self.lake = self.settings.table.location
        self.dead_letters = self.settings.dead_letters
        self.tables = all_tables(name, self.config)
        self.table = self.tables.main
        self.side = self.tables.side
        self.columns = bucketers.build(self.settings.bucket).columns
        self._pipeline = open_local_pipeline(name, self.config, self.schemas)
        self._side_table_ids = make_tables(self.settings, self.tables, self._pipeline.schemas.columns(), self.columns)

    def start(self, partitions: int = 1, offset: int = 0) -> None:
        check_rules(self.name, self.settings, self._pipeline.schemas, RecordedPrivacy.of(self.table.snapshot()))
        self.epoch = self.table.begin(
            {TopicPartition(self.topic, 1, p): offset for p in range(partitions)},
            {self.topic: [self.topic_id]},
            side_table_ids=self._side_table_ids,
        )
        self.tables.enter_raw(self.epoch, self.settings.raw_place)
        self.tables.apply_side_files()
        self.specs = set_rules(self.table, self.epoch, self.settings, self._pipeline.schemas)

    def row_columns(self) -> pa.Schema:
        """Columns that rows have by now, those of buckets apart."""
        return self._pipeline.schemas.columns()

    def carry(
        self, records: Sequence[pa.RecordBatch], ends: Mapping[int, int], *, now: datetime = NOW, die: str = ""
    ) -> int | None:
        """Commit all up to these ends of the partitions. Returns the version; None when the table had it."""
        snapshot = self.table.snapshot()
        self.tables.apply_side_files()
        parts = {(self.topic, p): TopicPartition(self.topic, 1, p) for p in ends}
        frontier = {part: snapshot.frontier(part) for part in parts.values()}
        start = dict.fromkeys(parts, 0)
        committing = builder.ranges(start, {(self.topic, p): end for p, end in ends.items()}, frontier, parts)
        if not committing:
            return None
        starts = {source: frontier[part] or 0 for source, part in parts.items()}
        closed = {"closed_until": snapshot.closed_until, "seen": slowest_event_time(snapshot, parts.values())}
        report = self._tasks(records, starts, now, closed)
        if die == "after_stage":
            raise Died
        offsets = sum(r.end - r.start for r in committing)
        facts = {
            "run": 1,
            "batch": 0,
            "started": now.isoformat(),
            "assembled": now.isoformat(),
            "reason": "size",
            "offsets": offsets,
            "waiting": offsets,
            "limits": limits(self.settings.commit, 2**20, 64.0, once=False).facts(),
            "tasks": 1,
            "phases": {},
            "former": None,
            "wire": self._pipeline.wire and self._pipeline.wire.facts(),
            "key_wire": self._pipeline.key_wire and self._pipeline.key_wire.facts(),
            **builder.spec_facts(report, self.specs),
        }
        event_times = {}
        for part in parts.values():
            event_time = snapshot.newest_event_time(part)
            if event_time is not None:
                event_times[part] = event_time
        planned: Batch = builder.batch(
            report,
            committing,
            epoch=self.epoch,
            settled=self.tables.settled,
            side=builder.side_files(self.settings, report),
            seen=event_times,
            closed=(snapshot.closed_until, {}),
            facts=facts,
            meanings=self._pipeline.schemas.id_meanings(report),
            privacy=self._pipeline.schemas.privacy_version,
        )
        version = self.table.append(planned, snapshot)
        if die == "after_commit":
            raise Died
        self.tables.apply_side_files()
        self.table.tidy()
        return version

    def _tasks(
        self, records: Sequence[pa.RecordBatch], frontier: Mapping[Any, int], now: datetime, closed: Mapping[str, Any]
    ) -> Report:
        pipeline = self._pipeline
        while True:
            plan = replace(
                pipeline.task_plan(now, "000001", {self.topic: 1}),
                frontier=frontier,
                budget=self.budget,
                target_file_size=2**20,
                raw=self.settings.raw_place,
                **closed,
            )
            (out,) = task.run(iter(records), plan)
            report = builder.merge_reports([Report.from_json(out["report"][0].as_py())])
            if not report.lacks_schemas:
                return report
            pipeline.schemas.learn_from(report)
            record_privacy(self.table, pipeline.schemas, self.epoch)
            self.table.grow(list(pipeline.schemas.columns()))
