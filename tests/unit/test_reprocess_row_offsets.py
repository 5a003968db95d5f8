"""Which buckets a reprocess means, and which offsets it reads: each once."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bucketers import Composite, EventTime, Field
from recovery.backfill.source import Chunk, confirm_every_record
from recovery.reprocess.row_offsets import RecordsAtOffsets, RowOffsets, find_positions
from recovery.reprocess.run import select_buckets
from tests.support.local_driver import log
from tests.support.sample_records import event
from writer.avro.schema_plan import SchemaPlan
from writer.core.errors import ConfigError
from writer.core.offsets import OffsetSet, TopicPartition
from writer.maintenance.local_pipeline import Piece

HOURS = EventTime(timedelta(hours=1))
BOTH = Composite(Field("country"), HOURS)
P0, P1, OLD = TopicPartition("clicks", 1, 0), TopicPartition("clicks", 1, 1), TopicPartition("clicks", 0, 0)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("2026-11-20T05", ["05"]), ("hour=2026-11-20T05", ["05"]), ("2026-11-20T05..2026-11-20T06", ["05", "06"]),
        ("2026-11-20T06..2026-11-21T00", ["06", "07"]), ("hour=2026-11-20T04..hour=2026-11-20T05", ["05"]),
        ("2026-11-20T08", []), ("2026-11-20T08..2026-11-20T09", []),
    ],
)  # fmt: skip
def test_buckets_from_one_to_another_are_meant(wanted: str, found: list[str]) -> None:
    there = [(f"2026-11-20T{hour}",) for hour in ("07", "05", "06")]
    assert [bucket[0][-2:] for bucket in select_buckets(there, wanted, HOURS)] == found


def test_of_buckets_of_two_columns_all_of_an_hour_are_meant_or_one() -> None:
    there = [(country, f"2026-11-20T{hour}") for country in ("DE", None, "FR") for hour in ("05", "06")]
    assert len(select_buckets(there, "2026-11-20T05", BOTH)) == 3
    assert len(select_buckets(there, "2026-11-20T05..2026-11-20T06", BOTH)) == 6
    assert select_buckets(there, "country=DE/hour=2026-11-20T06", BOTH) == [("DE", "2026-11-20T06")]
    with pytest.raises(ConfigError, match="country_bucket=…/hour=…"):
        select_buckets(there, "country=DE..country=FR", BOTH)
    with pytest.raises(ConfigError, match="is no bucket of time"):
        select_buckets([("DE",)], "DE..FR", Field("country"))
    assert select_buckets([], "2026-11-20T05..2026-11-20T06", HOURS) == []


def test_far_offsets_are_read_apart_and_near_ones_in_one_go() -> None:
    offsets = np.array([3, 5, 9, 50_000, 50_002])
    assert RowOffsets({P0: offsets}).near_offsets() == OffsetSet({P0: [(3, 10), (50_000, 50_003)]})
    assert RowOffsets({P0: offsets, P1: np.array([7])}).hull() == OffsetSet({P0: [(3, 50_003)], P1: [(7, 8)]})
    assert find_positions(np.array([2, 3, 9, 60_000]), offsets).tolist() == [-1, 0, 2, -1]
    assert find_positions(np.array([2]), np.array([], np.int64)).tolist() == [-1]
    assert list(RowOffsets({P0: offsets, OLD: offsets}).by_incarnation()) == [1, 0]


def test_rows_are_found_by_all_four_columns_of_their_place() -> None:
    rows = pa.record_batch(
        {
            "_topic": ["clicks", "clicks", "other", None], "_incarnation": pa.array([1, 0, 1, None], pa.int32()),
            "_partition": pa.array([0, 0, 0, None], pa.int32()), "_offset": pa.array([5, 5, 5, None], pa.int64()),
        }
    )  # fmt: skip
    assert RowOffsets({P0: np.array([5])}).mask(rows).tolist() == [True, False, False, False]


class Twice:
    """A source that gives each record twice, in pieces, and those around them."""

    name = "twice"

    def available(self, wanted: OffsetSet) -> OffsetSet:
        return wanted

    def chunks(self, left: Callable[[], OffsetSet], rows_max: int) -> Iterator[Chunk]:  # noqa: ARG002
        batch = log({n: event(n) for n in range(20)})
        both = pa.concat_batches([batch, batch])
        for at in (0, 15):
            yield Chunk(OffsetSet(), lambda _, at=at: iter([Piece(both.slice(at, 25))]), confirm_every_record)


def test_a_record_that_a_source_gives_often_is_read_once() -> None:
    plan: Any = SchemaPlan(pa.schema([]), ())
    records = RecordsAtOffsets([Twice(), Twice()], RowOffsets({P0: np.array([2, 4, 6, 30])}))
    for _ in range(2):  # a task may ask again
        found = pa.Table.from_batches([piece.records for piece in records.pieces(plan)])
        assert sorted(found.column("offset").to_pylist()) == [2, 4, 6]
        assert {part: offsets.tolist() for part, offsets in records.read_offsets().items()} == {P0: [2, 4, 6]}
