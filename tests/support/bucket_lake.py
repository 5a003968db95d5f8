"""A pipeline whose batches are made by hand: what seals its buckets finds a real table, and neither Kafka nor Spark."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from headrace.writer.batch.staging.parquet_files import Destination, delta_statistics
from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.core.units import microseconds
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.operations.rows import Batch
from tests.support import hive_readers, oracle

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PARTS = [TopicPartition("clicks", 1, 0), TopicPartition("clicks", 1, 1)]


def label(hour: datetime) -> tuple[str]:
    return (f"{hour:%Y-%m-%dT%H}",)


class SilentTopics:
    """A broker whose topics have no records that wait, and no new ones."""

    def __init__(self, ends: dict[tuple[str, int], int]) -> None:
        self.ends = ends

    def sources(self, _: Any) -> list[tuple[str, int]]:
        return list(self.ends)

    def earliest(self, _: Any) -> dict[tuple[str, int], int]:
        return self.ends

    def latest(self, _: Any) -> dict[tuple[str, int], int]:
        return self.ends

    def first_records(self, instants_ms: Any) -> dict[tuple[str, int], tuple[int, int]]:
        return dict.fromkeys(instants_ms, (-1, -1))


@dataclass
class Lake:
    """A pipeline without Kafka and Spark: its batches are made here."""

    root: Path
    form: str
    seal: dict[str, Any] = field(default_factory=dict)
    offset: int = 0

    def __post_init__(self) -> None:
        self.raw = {
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "registry": {"files": {1: "/none.avsc"}},
            "checkpoints": str(self.root / "checkpoints"),
            "catalog": {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db"},
            "pipelines": {
                "events": {
                    "topics": ["clicks"],
                    "event_time": {"field": "at"},
                    "seal": self.seal,
                    "table": {"location": str(self.root / "lake"), "format": self.form},
                }
            },
        }
        self.config = Config.model_validate(self.raw)
        self.table = main_table("events", self.config)
        self.table.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
        self.epoch = self.table.begin(dict.fromkeys(PARTS, 0), {"clicks": ["uuid-1"]})

    @property
    def file(self) -> Path:
        """The configuration as a file."""
        path = self.root / "headrace.yaml"
        path.write_text(yaml.safe_dump(self.raw))
        return path

    def sealer(self) -> Sealer:
        """A process that was just started."""
        return Sealer("events", self.config)

    def stage(self, hour: datetime, rows: int) -> StagedFile:
        destination = Destination(self.table.store, ("hour",), "test", 2**20, hidden=self.table.hidden)
        path, sink = destination.open(label(hour))
        with pq.ParquetWriter(sink, pa.schema([("id", pa.int64())])) as out:
            out.write_table(pa.table({"id": list(range(rows))}))
        metadata = out.writer.metadata
        size = sink.tell()
        sink.close()
        last = hour + 59 * MINUTE
        stats = delta_statistics(metadata)
        return StagedFile(path, label(hour), rows, size, stats, hour, last, {("clicks", 0): rows})

    def batch(
        self, *hours: datetime, rows: int = 10, seen: dict[TopicPartition, datetime] | None = None, late: int = 0
    ) -> Batch:
        start = self.offset
        self.offset += rows * len(hours)
        closed = self.table.snapshot().closed_until
        facts = {
            "ranges": [],
            "rows": rows * len(hours),
            "late": {"behind": [], "beyond": [], "buckets": [[list(label(hours[0])), late]] if late else []},
        }
        return Batch(
            uuid4().hex,
            self.epoch,
            [OffsetRange(PARTS[0], start, self.offset)],
            [self.stage(h, rows) for h in hours],
            facts=facts,
            closed_until=closed,
            newest_event_times={part: microseconds(event_time) for part, event_time in (seen or {}).items()},
        )

    def write(self, *hours: datetime, **given: Any) -> int:
        return self.table.append(self.batch(*hours, **given), self.table.snapshot())

    def rows(self) -> int:
        """What a reader counts."""
        if self.form == "parquet":
            return hive_readers.read_rows(self.table.location).num_rows
        return self.table.rows().count_rows() if self.form == "delta" else oracle.count(Path(self.table.location))
