"""A table with real files and sealed buckets, for tests of who reads on: no broker, no Spark."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from headrace import bucketers
from headrace.writer.batch.lateness import Lateness
from headrace.writer.batch.staging.parquet_files import BucketFiles, Destination
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import layout
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.core.units import microseconds
from headrace.writer.sealing.manifest import Manifest
from headrace.writer.sealing.rules import SealNow
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.storage.locations import store_at
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.log.operations.seals import Sealing
from tests.support.sample_records import config as configuration

PART = TopicPartition("clicks", 1, 0)
DAY = datetime(2026, 11, 20, tzinfo=UTC)
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("user", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("amount", pa.float64()),
        ("clean", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("attrs", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("on", pa.date32()),
        ("raw", pa.binary()),
        ("scores", pa.map_(pa.string(), pa.int64())),
        ("_topic", pa.string()),
        ("_incarnation", pa.int32()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_kafka_time", pa.timestamp("us", "UTC")),
    ]
)


class SealedLake:
    """A table of hourly buckets, written and sealed as the writer does it."""

    def __init__(self, root: Path, form: str = "delta", location: str | None = None, **pipeline: Any) -> None:
        table = {"location": location or str(root / "lake" / "clicks"), "format": form}
        self.config: Config = configuration(root, table=table, **pipeline)
        self.settings = self.config.pipelines["clicks"]
        self.bucketer = bucketers.build(self.settings.bucket)
        self.table = main_table("clicks", self.config)
        names = self.bucketer.columns
        columns = pa.schema([*COLUMNS, *(pa.field(name, pa.string()) for name in names)])
        self.table.create(columns, names, layout(self.settings.bucket))
        self.epoch = self.table.begin({PART: 0}, {"clicks": ["uuid-1"]})
        self.offset = 0
        self.extra = False  # rows have a further column, the same as `id`
        self.sealer = Sealer("clicks", self.config)

    def add(self, hour: int, rows: int, *, minute: int = 0) -> int:
        """Commit rows of one hour; each has its own offset and microsecond. Returns the version."""
        first = DAY + timedelta(hours=hour, minutes=minute)
        values = [_row(self.offset + n, first + timedelta(milliseconds=n, microseconds=7)) for n in range(rows)]
        data = pa.Table.from_pylist(values, COLUMNS)
        if self.extra:
            data = data.append_column("extra", data.column("id"))
        buckets = self.bucketer.assign(data, data.column("at"))
        (key,) = buckets.values
        to = Destination(store_at(self.table.location), self.bucketer.columns, "test", 2**24, hidden=self.table.hidden)
        files = BucketFiles(to, key)
        files.add(data)
        staged = files.close(values[0]["at"], values[-1]["at"])
        late = Lateness()
        start = self.offset
        self.offset += rows
        snapshot = self.table.snapshot()
        until = snapshot.closed_until
        if until is not None and first < until:
            late.buckets[key] += rows
        facts = {"ranges": [], "rows": rows, "files": 1, "bytes": 1, "time_unit": "logical", "late": late.to_json()}
        ranges = [OffsetRange(PART, start, self.offset)]
        batch = Batch(
            uuid4().hex,
            self.epoch,
            ranges,
            staged,
            facts=facts,
            closed_until=until,
            newest_event_times={PART: microseconds(values[-1]["at"])},
        )
        return self.table.append(batch, snapshot)

    def close(self, hour: int) -> datetime:
        """Close the hours up to this one. Returns its end."""
        end = DAY + timedelta(hours=hour + 1)
        self.sealer.close(self.sealer.follow(), end, "watermark", end)
        return end

    def seal(self, hour: int, *, put: bool = True) -> Manifest:
        """Close an hour and seal it as it is. `put`: also what follows from its entry."""
        end = self.close(hour)
        ready = SealNow((f"{end - timedelta(hours=1):%Y-%m-%dT%H}",))
        if put:
            assert not self.sealer.seal([ready], end + timedelta(minutes=1))
            return self.sealer.sealed[-1]
        snapshot = self.sealer.follow()
        ((manifest,), _) = self.sealer.build_manifests(snapshot, [ready], end)
        sealing = Sealing(uuid4().hex, [manifest.to_json()], {"at": end.isoformat()})
        return manifest.with_table_version(self.table.append(sealing, snapshot.table_snapshot))


def _row(offset: int, event_time: datetime) -> dict[str, Any]:
    return {
        "id": offset,
        "at": event_time,
        "user": f"u{offset % 7}",
        "price": None if offset % 5 == 0 else offset,
        "amount": offset / 4,
        "clean": offset % 2 == 0,
        "tags": ["a", f"t{offset % 3}"],
        "attrs": {"x": offset % 11, "y": "ü'" if offset % 2 else None},
        "on": event_time.date(),
        "raw": bytes([offset % 256]),
        "scores": [("k", offset)],
        "_topic": "clicks",
        "_incarnation": 1,
        "_partition": 0,
        "_offset": offset,
        "_kafka_time": event_time,
    }
