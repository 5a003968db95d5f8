"""The lake that the engines are asked about: the real writer fills it, in both formats, on a disk and in a bucket."""

import shutil
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable

from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.config.sections.connections import S3
from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.maintenance.rewrite import Job, Source, rewrite
from headrace.writer.storage.locations import delta_options
from headrace.writer.storage.settings import S3Settings, StoreSettings
from headrace.writer.table.log.operations.rows import Rewrite
from tests.engines.events import WAVE, Produced, Row
from tests.servers.objects import ObjectServer
from tests.support import oracle
from tests.support.table_formats import OPENED, delta_table
from tests.support.writer_process import Site, Writer

FORMATS = ("delta", "parquet")
REWRITTEN = "rewritten"  # a copy of the Delta table, every bucket of it compacted, and rows deleted by another client
DELETED = "id < 30"
_BUCKET: dict[str, Any] = {
    "type": "composite",
    "parts": [{"type": "event_time", "width": "1 h"}, {"type": "field", "field": "kind"}],
}

_COLUMNS: dict[str, Any] = {
    "key": {"type": "avro", "name": "owner"}, "headers": "headers",
    "header_columns": {"attempt": {"header": "n", "type": "long"}},
}  # fmt: skip


@dataclass(frozen=True)
class Lake:
    """A written lake: `root/<format>` on this disk, `bucket/<format>` on S3 where there is one, and its rows."""

    root: Path
    bucket: str | None
    rows: list[Row]

    def location(self, format_: str, *, s3: bool = False) -> str:
        """Where a table lies."""
        return f"{self.bucket if s3 else self.root}/{format_}"

    def rows_of(self, table: str) -> list[Row]:
        """The rows that a table must show."""
        return [row for row in self.rows if table != REWRITTEN or row["id"] >= 30]


def write(site: Site, topic: str, s3: ObjectServer | None = None) -> Lake:
    """Fill tables of both formats from one topic: three waves, three hours, and a wider schema for the last wave."""
    root = site.root / "lake"
    bucket = None if s3 is None else s3.bucket()
    places = {format_: f"{root}/{format_}" for format_ in FORMATS}
    if bucket is not None and s3 is not None:
        places |= {f"{format_}-s3": f"{bucket}/{format_}" for format_ in FORMATS}
        site.overrides = {"s3": {"endpoint": s3.url}}
    for pipeline, location in places.items():
        table = {"location": location, "format": pipeline.partition("-")[0]}
        site.pipeline(
            pipeline, [topic], table=table, bucket=_BUCKET, commit={"max_delay": "1 s"}, seal={"enabled": False},
            columns=_COLUMNS,
        )  # fmt: skip
    produced, writer = Produced(), None
    for wave in range(3):
        numbers = range(wave * WAVE, (wave + 1) * WAVE)
        produced.send(site.bootstrap, site.registry_url, topic, numbers, later=wave == 2)
        writer = writer or site.start()
        _carried(writer, site, topic, places)
    assert writer is not None
    writer.stop()
    for format_ in FORMATS:
        oracle.check(root / format_, format_, site.ends(topic))
    _rewrite(root)
    if bucket is not None and s3 is not None:  # Presto waits seconds for it with each query where there is none
        DeltaTable(
            f"{bucket}/delta", storage_options=delta_options(bucket, StoreSettings(S3Settings(s3.url)))
        ).create_checkpoint()
    return Lake(root, bucket, produced.rows)


def _rewrite(root: Path) -> None:
    """Copy the Delta table, compact each bucket of the copy, and delete rows of it with delta-rs."""
    copy = root / REWRITTEN
    shutil.copytree(root / "delta", copy)
    table = delta_table(str(copy), "delta")
    snapshot = table.snapshot()
    columns = pa.schema([field for field in snapshot.columns() if field.name not in ("hour", "kind_bucket")])
    files: dict[BucketKey, list[BucketFile]] = defaultdict(list)
    for file in table.bucket_files(snapshot):
        files[file.bucket].append(file)
    for bucket, bucket_files in files.items():
        sources = tuple(Source(file.path, None) for file in bucket_files)
        job = Job(
            str(copy), bucket, ("hour", "kind_bucket"), columns, sources, 2**24, 2**24,
            TimeRule("event_time", "auto", timedelta(days=36_500), timedelta(days=36_500)),
        )  # fmt: skip
        done = rewrite(job)
        gone = [file for file in bucket_files if file.path in done.removed]
        table.append(Rewrite(uuid4().hex, gone, done.files), table.snapshot())
    assert len(table.bucket_files(table.snapshot())) == len(files), "one file a bucket"
    DeltaTable(str(copy)).delete(DELETED)


def _carried(writer: Writer, site: Site, topic: str, places: dict[str, str]) -> None:
    """Wait until all tables have what the topic has."""
    ends = sum(site.ends(topic).values())
    stores = StoreSettings(S3.model_validate(site.overrides.get("s3", {})).settings)
    tables = [OPENED[location.rpartition("/")[2]](location, name, stores=stores) for name, location in places.items()]  # type: ignore[index]
    for table in tables:
        writer.until(lambda table=table: table.exists(), seconds=240)  # type: ignore[misc]
        writer.until(lambda table=table: sum(table.snapshot().parts().values()) == ends, seconds=240)  # type: ignore[misc]
