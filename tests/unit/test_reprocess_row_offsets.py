"""Which offsets a reprocess reads: each once."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.recovery.backfill.source import Chunk, confirm_every_record, share_reads
from headrace.recovery.reprocess.row_offsets import RecordsAtOffsets, RowOffsets, find_positions
from headrace.writer.batch.task import Piece
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.core.offsets import OffsetSet, TopicPartition
from tests.support.local_driver import log
from tests.support.sample_records import event

P0, P1, OLD = TopicPartition("clicks", 1, 0), TopicPartition("clicks", 1, 1), TopicPartition("clicks", 0, 0)


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
            read = lambda _, at=at: iter([Piece(both.slice(at, 25))])  # noqa: E731
            yield Chunk(OffsetSet(), share_reads([read]), confirm_every_record)


def test_a_record_that_a_source_gives_often_is_read_once() -> None:
    plan: Any = SchemaPlan(pa.schema([]), ())
    records = RecordsAtOffsets([Twice(), Twice()], RowOffsets({P0: np.array([2, 4, 6, 30])}))
    for _ in range(2):  # a task may ask again
        pieces = [piece for read in records for piece in read(plan)]
        taken = [piece.filter(records.admit_records(piece.records)).records for piece in pieces]
        assert sorted(pa.Table.from_batches(taken).column("offset").to_pylist()) == [2, 4, 6]
        assert {part: offsets.tolist() for part, offsets in records.read_offsets().items()} == {P0: [2, 4, 6]}
