"""Gaps and archives for tests of backfills: a pipeline without Spark and Kafka whose writer skipped something."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.recovery.backfill.archive_source import open_archive
from headrace.recovery.backfill.chunk_commit import ChunkCommit
from headrace.recovery.backfill.fill_gaps import BackfillRequest, GapOutcome, ProgressListener, fill_gaps
from headrace.recovery.backfill.source import Source
from headrace.writer.audit.audit import audit
from headrace.writer.batch.task import Piece
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.maintenance.task_pool import TaskPool
from headrace.writer.offsets import skip_to_latest
from headrace.writer.table.gap_records import gap_records
from headrace.writer.table.ledger.gap_record import GapRecord
from tests.support import oracle
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event
from tests.support.simulated_cluster import Cluster

RAW = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)


class Silent:
    """Takes the events of a backfill and shows none."""

    def on_begin(self, gap_record: GapRecord, offsets: int) -> None: ...
    def on_chunk(self, gap_record: GapRecord, chunk: ChunkCommit) -> None: ...
    def on_wait(self, why: str) -> None: ...


@dataclass(frozen=True)
class GivenRead:
    """Reads the records of one partition that a test gives: a value or none by offset."""

    values: Mapping[int, bytes | None]

    def __call__(self, _: SchemaPlan) -> Iterator[Piece]:
        yield Piece(log(self.values))


def task_processes() -> list[psutil.Process]:
    """Return the processes of tasks that this one has started."""
    processes = psutil.Process().children()
    return [process for process in processes if "spawn_main" in " ".join(process.cmdline())]


def values(start: int, end: int) -> dict[int, bytes | None]:
    """Of ten records one is cut for good, of twenty one is a tombstone."""
    values: dict[int, bytes | None] = {offset: event(offset) for offset in range(start, end)}
    for offset in range(start, end):
        if offset % 10 == 5:
            values[offset] = b"\0\0\0\0\1cut"
    return values


def skip_offsets(
    driver: Driver,
    *ends: int,
    asker: skip_to_latest.Asker = "person",
    fence: bool = False,
    log_start: int = 0,
    now: datetime = NOW,
    topic_id: str = "uuid-1",
) -> str:
    """Skip to these ends of the partitions. Returns the id of the gap."""
    cluster = Cluster(*((log_start, end) for end in ends), id_=topic_id)
    preview = skip_to_latest.preview_skip(driver.config, "clicks", cluster, asker)  # type: ignore[arg-type]
    done = skip_to_latest.skip(driver.config, "clicks", preview, by="ann", reason="a test", now=now, fence=fence)
    assert done is not None
    return done[1].id


def write_archive(
    root: Path,
    records: Mapping[int, bytes | None],
    *,
    partition: int = 0,
    folder: str = "day=20",
    topic: str = "clicks",
) -> Path:
    """Write an archive of records, as a connector does. Returns where it lies."""
    archive = root / "archive"
    rows = []
    for offset, value in records.items():
        source = {"topic": topic, "partition": partition, "offset": offset}
        rows.append({**source, "timestamp": NOW, "key": f"k{offset}".encode(), "value": value})
    _write_part(archive, folder, pa.Table.from_pylist(rows, RAW))
    return archive


def write_decoded_archive(
    root: Path, ids: Sequence[int], *, folder: str, columns: Callable[[int], Mapping[str, object]]
) -> Path:
    """Write an archive of rows that somebody else decoded."""
    archive = root / "rows"
    rows = [{"id": n, "at": event_time_of(n), "note": None if n % 3 else f"note {n}", **columns(n)} for n in ids]
    _write_part(archive, folder, pa.Table.from_pylist(rows))
    return archive


def _write_part(archive: Path, folder: str, rows: pa.Table) -> None:
    """Add a file to a folder of an archive, with the next number of the archive."""
    (archive / folder).mkdir(parents=True, exist_ok=True)
    number = len(list(archive.rglob("*.parquet")))
    pq.write_table(rows, archive / folder / f"part-{number}.parquet")


def event_time_of(number: int) -> datetime:
    return NOW - timedelta(minutes=number)


def fill_from_archives(
    driver: Driver,
    *archives: Path | str,
    columns: str | None = None,
    by_time: str | None = None,
    rows_max: int = 500_000,
    by: str = "ann",
    listener: ProgressListener | None = None,
    pool: TaskPool | None = None,
) -> list[GapOutcome]:
    """Run a backfill from archives."""
    table = RecordTable("clicks", driver.config, driver.schemas, pool)

    def sources(gap_record: GapRecord) -> list[Source]:
        return [open_archive(table, gap_record, [str(archive) for archive in archives], columns, by_time)]

    return fill_gaps(table, sources, BackfillRequest(rows_max=rows_max, by=by), listener or Silent())


def only_gap(driver: Driver) -> GapRecord:
    """Return the gap of a table that has one."""
    (gap,) = gap_records(driver.table, "clicks").values()
    return gap


def check(driver: Driver, rows: int, dead_letters: int) -> None:
    """Assert by the oracle and by the audit that each offset is there once, or open in a gap."""
    location = Path(driver.lake)
    assert len(oracle.rows(location, "_offset")) == rows
    assert len(oracle.rows(Path(driver.dead_letters), "_offset")) == dead_letters
    oracle.check(location, "clicks")
    result = audit(driver.config, "clicks", since=None, deep=True)
    assert result.adds_up, result.problems
