"""Gaps and archives for tests of backfills: a pipeline without Spark and Kafka whose writer skipped something."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recovery.backfill.archive_source import open_archive
from recovery.backfill.chunk_commit import BackfilledTable, ChunkCommit
from recovery.backfill.fill_gaps import BackfillRequest, GapOutcome, ProgressListener, fill_gaps
from recovery.backfill.source import Source
from tests.support import oracle
from tests.support.local_driver import Driver
from tests.support.sample_records import NOW, event
from tests.unit.test_start_offsets import Cluster
from writer.audit.audit import audit
from writer.offsets import skip_to_latest
from writer.table.gap_records import gap_records
from writer.table.ledger.gap_record import GapRecord

RAW = pa.schema(
    [
        pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")), pa.field("key", pa.binary()), pa.field("value", pa.binary()),
    ]
)  # fmt: skip


class Silent:
    """Nobody watches."""

    def on_begin(self, gap_record: GapRecord, offsets: int) -> None: ...
    def on_chunk(self, gap_record: GapRecord, chunk: ChunkCommit) -> None: ...
    def on_wait(self, why: str) -> None: ...


def values(start: int, end: int) -> dict[int, bytes | None]:
    """Of ten records one is cut for good, of twenty one is a tombstone."""
    made: dict[int, bytes | None] = {at: event(at) for at in range(start, end)}
    for at in range(start, end):
        if at % 10 == 5:
            made[at] = b"\0\0\0\0\1cut"
    return made


def skipped(
    driver: Driver,
    *ends: int,
    asker: skip_to_latest.Asker = "person",
    fence: bool = False,
    held: int = 0,
    now: datetime = NOW,
    topic_id: str = "uuid-1",
) -> str:
    """Skip to these ends of the partitions. Returns the ticket's id."""
    cluster = Cluster(*((held, end) for end in ends), id_=topic_id)
    found = skip_to_latest.look(driver.config, "clicks", cluster, asker)  # type: ignore[arg-type]
    done = skip_to_latest.skip(driver.config, "clicks", found, by="ann", reason="a test", now=now, fence=fence)
    assert done is not None
    return done[1].id


def archived(root: Path, records: Mapping[int, bytes | None], *, partition: int = 0, folder: str = "day=20") -> Path:
    """Write an archive of records, as a connector does. Returns where it lies."""
    place = root / "archive"
    (place / folder).mkdir(parents=True, exist_ok=True)
    rows = [
        {"topic": "clicks", "partition": partition, "offset": at, "timestamp": NOW, "key": f"k{at}".encode(),
         "value": value} for at, value in records.items()
    ]  # fmt: skip
    number = len(list(place.rglob("*.parquet")))
    pq.write_table(pa.Table.from_pylist(rows, RAW), place / folder / f"part-{number}.parquet")
    return place


def decoded(root: Path, ids: Sequence[int], *, folder: str, columns: Callable[[int], Mapping[str, object]]) -> Path:
    """Write an archive of rows that somebody else decoded."""
    place = root / "rows"
    (place / folder).mkdir(parents=True, exist_ok=True)
    rows = [{"id": n, "at": at_of(n), "note": None if n % 3 else f"note {n}", **columns(n)} for n in ids]
    pq.write_table(pa.Table.from_pylist(rows), place / folder / f"part-{len(list(place.rglob('*.parquet')))}.parquet")
    return place


def at_of(number: int) -> datetime:
    return NOW - timedelta(minutes=number)


def filled(
    driver: Driver, *places: Path | str, columns: str | None = None, by_time: str | None = None,
    rows_max: int = 500_000, by: str = "ann", board: ProgressListener | None = None,
) -> list[GapOutcome]:  # fmt: skip
    """Run a backfill from archives."""
    filling = BackfilledTable("clicks", driver.config, driver.schemas)

    def sources(gap_record: GapRecord) -> list[Source]:
        return [open_archive(filling, gap_record, [str(place) for place in places], columns, by_time)]

    return fill_gaps(filling, sources, BackfillRequest(rows_max=rows_max, by=by), board or Silent())


def only(driver: Driver) -> GapRecord:
    (found,) = gap_records(driver.table, "clicks").values()
    return found


def check(driver: Driver, rows: int, dead_letters: int) -> None:
    """Assert by the oracle and by the audit that each offset is there once, or open in a gap."""
    lake, aside = Path(driver.lake), Path(driver.dead_letters)
    assert (len(oracle.rows(lake, "_offset")), len(oracle.rows(aside, "_offset"))) == (rows, dead_letters)
    oracle.check(lake, "clicks")
    found = audit(driver.config, "clicks", since=None, deep=True)
    assert found.adds_up, found.problems
