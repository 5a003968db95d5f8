"""Tables of old and of new rules, and a reprocess of one of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.recovery.backfill.source import Chunk, Source, share_reads
from headrace.recovery.reprocess.run import ReprocessRequest, ReprocessResult, ReprocessRun, SourceChoice
from headrace.writer.batch.task import Piece
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.maintenance.task_pool import TaskPool
from tests.support.audits import OLD, describe_problems, run_audit
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, event, value

HOUR = timedelta(hours=1)
ALL = "2026-11-01T00..2026-11-30T00"
ONE = Schemas({1: EVENT}, [1])
TWO = Schemas({1: EVENT, 2: WIDER}, [1, 2])
BERLIN: dict[str, Any] = {"event_time": {"field": "at", "max_age": "30 d", "clocks": [{"shift": "-3 h"}]}}


def wider(number: int) -> bytes:
    return value(2, WIDER, {"id": number, "at": NOW - number * HOUR / 6, "note": None, "extra": number})


def mixed_values(start: int, end: int, *, tombstones: bool = True) -> dict[int, bytes | None]:
    """Rows of four hours; of ten records one is a tombstone, one is cut, one too old, one of a schema yet unknown."""
    kinds: dict[int, Callable[[int], bytes | None]] = {
        3: lambda _: None,
        5: lambda _: b"\0\0\0\0\1cut",
        7: lambda offset: event(offset, event_time=OLD),
        8: wider,
    }
    other: Callable[[int], bytes | None] = lambda offset: event(offset, event_time=NOW - (offset % 4) * HOUR)  # noqa: E731
    if not tombstones:
        del kinds[3]
    return {offset: kinds.get(offset % 10, other)(offset) for offset in range(start, end)}


def start_writer(root: Path, form: str, *, schemas: Schemas = TWO, **settings: Any) -> Driver:
    table = {"raw": {"location": str(root / "lake" / "clicks_raw")}, **settings.pop("table", {})}
    limits = {"max_failed_ratio": 1}
    driver = Driver(root, form, schemas=schemas, table=table, limits=limits, **settings)
    driver.start(2)
    return driver


RAW = SourceChoice("raw")


def reprocess_run(driver: Driver, buckets: str = ALL, source: Any = RAW, pool: TaskPool | None = None) -> ReprocessRun:
    request = ReprocessRequest(buckets, source, by="ann")
    return ReprocessRun("clicks", driver.config, driver.schemas, request, pool)


def run_reprocess(driver: Driver, buckets: str = ALL, source: Any = RAW) -> ReprocessResult:
    return reprocess_run(driver, buckets, source).run(NOW)


@dataclass
class Between:
    """The raw table as a source; `do` happens once, after the first records were read and before the swap.

    `early`: it happens before any is read.
    """

    do: Callable[[], object]
    origin: str = "raw"
    early: bool = False
    done: bool = False

    def open(self, record_table: RecordTable) -> list[Source]:
        return [_Seam(source, self) for source in RAW.open(record_table)]


@dataclass
class _Seam:
    source: Source
    between: Between

    @property
    def name(self) -> str:
        return self.source.name

    def available(self, wanted: OffsetSet) -> OffsetSet:
        return self.source.available(wanted)

    def chunks(self, left: Callable[[], OffsetSet], rows_max: int) -> Iterator[Chunk]:
        for chunk in self.source.chunks(left, rows_max):
            yield Chunk(chunk.spans, share_reads([self._reading(chunk)]), chunk.confirm)

    def _reading(self, chunk: Chunk) -> Callable[[SchemaPlan], Iterator[Piece]]:
        def read(plan: SchemaPlan) -> Iterator[Piece]:
            if self.between.early and not self.between.done:
                self.between.done = True
                self.between.do()
            yield from chunk.pieces(plan)
            if not self.between.done:
                self.between.done = True
                self.between.do()

        return read


def rows(driver: Driver) -> list[dict[str, Any]]:
    """Return the rows that readers see, by offset, each with its bucket."""
    table_rows = driver.table.rows().to_table().to_pylist()
    return sorted(table_rows, key=offset_key)


def offset_key(row: Mapping[str, Any]) -> tuple[int, int]:
    """Return partition and offset; Iceberg has another name for the partition."""
    return row.get("_kafka_partition", row.get("_partition")), row["_offset"]


def dead_letter_rows(driver: Driver) -> list[tuple[Any, ...]]:
    names = ["_partition", "_offset", "outcome", "schema_id", "value"]
    table_rows = driver.side(driver.dead_letters).rows().to_table().to_pylist()
    return sorted(tuple(row.get(name, row.get("_kafka_partition")) for name in names) for row in table_rows)


def check_sound(driver: Driver) -> None:
    for deep in (False, True):
        result = run_audit(driver, deep=deep)
        assert result.adds_up, describe_problems(result)


def delete(driver: Driver, text: str) -> None:
    run_deletion(driver.config, DeletionRequest("clicks", where(text), NOW), driver.schemas, write=True)


def write_history(driver: Driver, start: int = 0, end: int = 60, *, tombstones: bool = True) -> None:
    for offset in range(start, end, 20):
        ends = {0: offset + 20, 1: (offset + 20) // 2}
        first, second = (
            mixed_values(*part, tombstones=tombstones)
            for part in ((offset, offset + 20), (offset // 2, offset // 2 + 10))
        )
        driver.carry([log(first), log(second, 1)], ends)


def table_pair(
    tmp_path: Path,
    form: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    during: Callable[[Driver], None],
    schemas: tuple[Schemas, Schemas] = (ONE, TWO),
) -> tuple[Driver, Driver]:
    """Return a table of old rules whose writer goes on by new ones, and one of the new rules from the start."""
    before = start_writer(tmp_path / "old", form, schemas=schemas[0], **old)
    during(before)
    after = start_writer(tmp_path / "old", form, schemas=schemas[1], **new)
    oracle_ = start_writer(tmp_path / "new", form, schemas=schemas[1], **new)
    during(oracle_)
    return after, oracle_


def check_equal(driver: Driver, wanted: Driver) -> None:
    assert rows(driver) == rows(wanted)
    assert dead_letter_rows(driver) == dead_letter_rows(wanted)
    check_sound(driver)
    check_sound(wanted)


def open_writer(root: Path, form: str) -> Driver:
    """Open the tables as another process does; its writer is not started."""
    raw = {"raw": {"location": str(root / "lake" / "clicks_raw")}}
    return Driver(root, form, schemas=TWO, table=raw, limits={"max_failed_ratio": 1}, **BERLIN)
