"""Routes to several tables, some of which refuse commits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema
from headrace.writer.commit.targets import Targets
from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.driver.start.pipeline_start import make_tables
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.log.snapshot import TargetRecord
from headrace.writer.table.pipeline_tables import Tables
from tests.support import commits

PART = TopicPartition("t", 1, 0)


BY_HEADER = {"by": {"header": "type"}}


class SchemaStub:
    """As much of what the driver knows of schemas as targets ask for."""

    def __init__(self, texts: dict[int, str]) -> None:
        schemas = {schema_id: WriterSchema(text, True, {}) for schema_id, text in texts.items()}
        self.plan = SchemaPlan(pa.schema([]), schemas=schemas)
        self.record_columns = RecordColumns()


class RouteTables:
    """A pipeline with a route, started."""

    def __init__(
        self,
        root: Path,
        route: dict[str, Any],
        texts: dict[int, str] | None = None,
        form: str = "delta",
        parts: Sequence[TopicPartition] = (PART,),
        schemas: SchemaStub | None = None,
        topic_id: str = "id",
        **more: Any,
    ) -> None:
        """`texts`: of schemas that it knows; or `schemas`, which learn. `beside`: other pipelines of the file."""
        beside = more.pop("beside", {})
        bootstrap = more.pop("bootstrap", "x:1")
        topics = sorted({part.topic for part in parts})
        catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", **more.pop("catalog", {})}
        pipeline = {
            "topics": topics,
            "table": {"location": str(root / "log"), "format": form, **more.pop("table", {})},
            "event_time": {"field": "at"},
            "route": route,
            **more,
        }
        self.config = Config.model_validate(
            {
                "kafka": {"bootstrap_servers": bootstrap},
                "registry": {"url": "http://x"},
                "catalog": catalog,
                "checkpoints": str(root / "checkpoints"),
                "pipelines": {"p": pipeline, **beside},
            }
        )
        self.tables: Tables = all_tables("p", self.config)
        make_tables(self.config.pipelines["p"], self.tables, pa.schema([]), [])
        self.epoch = self.tables.main.begin(dict.fromkeys(parts, 0), {topic: [topic_id] for topic in topics})
        self.known = schemas or SchemaStub(texts or {})
        self.targets = Targets("p", self.config, self.tables, self.known)  # type: ignore[arg-type]
        self.targets.begin(self.epoch)
        self.tables.apply_side_files()
        self.targets.grow()

    def commit(self, *places: str) -> None:
        """Commit one offset, with a row for each of these tables."""
        offset = self.tables.main.snapshot().frontier(PART) or 0
        moved = OffsetRange(PART, offset, offset + 1)
        side = {location: [row(location, offset)] for location in places}
        facts = {"ranges": [moved.to_json()]}
        entry = Batch(uuid4().hex, self.epoch, [moved], side_files=side, facts=facts, settled=self.tables.settled)
        self.tables.main.append(entry, self.tables.main.snapshot())

    def hold(self, numbers: Mapping[str, int], *, age: timedelta = timedelta(0)) -> None:
        """Commit one offset, with a row that waits at the log for each of these tables, by their numbers."""
        offset = self.tables.main.snapshot().frontier(PART) or 0
        side = {}
        about = {}
        for location, number in numbers.items():
            folder = f"_headrace/held/{number}"
            path = Path(self.tables.main.store.path(folder))
            path.mkdir(parents=True, exist_ok=True)
            file = row(str(path), offset)
            file = replace(file, bytes=(path / file.path).stat().st_size)
            side[location] = [file]
            about[str(number)] = {"number": number, "rows": 1, "bytes": file.bytes, "files": 1, "held": folder}
        assembled = (datetime.now(UTC) - age).isoformat()
        facts = {**commits.facts(0, 0), "targets": about, "ranges": [], "bytes": 0, "assembled": assembled}
        entry = Batch(uuid4().hex, self.epoch, [OffsetRange(PART, offset, offset + 1)], side_files=side, facts=facts)
        self.tables.main.append(entry, self.tables.main.snapshot())

    def learn(self, *names: str) -> dict[int, TargetRecord]:
        report = Report()
        report.unknown_names = set(names)
        self.targets.learn_from(report)
        return self.tables.main.snapshot().targets()


def row(location: str, offset: int) -> StagedFile:
    name = f"000001-{uuid4().hex}.parquet"
    now = datetime.now(UTC)
    Path(location).mkdir(exist_ok=True)
    pq.write_table(pa.table({"_offset": [offset]}), f"{location}/{name}")
    return StagedFile(name, ("2026",), 1, 100, '{"numRecords":1}', now, now, {("t", 0): 1})


def refusing_tables(route: RouteTables) -> dict[str, str]:
    """Which tables refuse, by name, and why."""
    return {name: state.why for name, state in route.targets.states().items() if state.why}


def files(location: str) -> int:
    return len(DeltaTable(location).file_uris())


TEXT = '{"type": "record", "name": "R", "fields": [{"name": "at", "type": "string"}, {"name": "x", "type": "int"}]}'


def take_away(location: str) -> None:
    """Take a table away, as a mount that is gone."""
    Path(location).rename(f"{location}.away")
    Path(location).write_text("no folder")


def put_back(location: str) -> None:
    Path(location).unlink()
    Path(f"{location}.away").rename(location)


def hold_row(route: RouteTables, location: str, number: int) -> None:
    route.hold({location: number})


def list_files(root: Path) -> list[Path]:
    return sorted((root / "log" / "_headrace" / "lists").glob("*.json"))
