"""Whatever is added, in whatever order and under whatever budget, is in the files once, in its bucket."""

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings, strategies as st

from headrace.bucketers import Buckets
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.batch.staging.spill_buffer import Stage
from headrace.writer.core.files import StagedFile
from headrace.writer.storage.local import LocalStore
from tests.support.example_counts import share

TIME = pa.timestamp("us", "UTC")
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEYS = [("2026-11-20T11", "de"), ("2026-11-20T11", None), ("2026-11-20T12", "a/b"), (None, ""), ("x", "é")]


@dataclass
class Piece:
    """One call of `add`: for each row its bucket, minute, source and weight in bytes."""

    rows: list[tuple[int, int, int, int]]
    keys: list[tuple[str | None, ...]]  # as the bucketer happened to number them

    def arrays(self, first_id: int) -> tuple[pa.Table, pa.Array, Buckets]:
        times = pa.array([NOON + timedelta(minutes=minute) for _, minute, _, _ in self.rows], TIME)
        table = pa.table(
            {
                "id": pa.array(range(first_id, first_id + len(self.rows)), pa.int64()),
                "at": times,
                "bucket": pa.array([json.dumps(self.keys[code]) for code, *_ in self.rows], pa.string()),
                "weight": pa.array(["w" * weight for *_, weight in self.rows], pa.string()),
                "_topic": pa.array([f"t{source % 2}" for _, _, source, _ in self.rows], pa.string()),
                "_partition": pa.array([source // 2 for _, _, source, _ in self.rows], pa.int32()),
            }
        )
        codes = pa.array([code for code, *_ in self.rows], pa.int32())
        return table, times, Buckets(codes, tuple(self.keys), tuple(None for _ in self.keys))


ROW = st.tuples(st.integers(0, 4), st.integers(-500, 500), st.integers(0, 5), st.integers(0, 300))
HOT = st.tuples(st.just(2), st.integers(-500, 500), st.integers(0, 5), st.integers(0, 300))
PIECES = st.lists(
    st.builds(
        Piece, st.lists(ROW, max_size=40) | st.lists(HOT, max_size=40) | st.lists(ROW | HOT, max_size=200),
        st.permutations(KEYS),
    ),
    max_size=12,
)  # fmt: skip
BUDGETS = st.sampled_from([1, 1_000, 10_000, 2**30])
TARGETS = st.sampled_from([1, 2_000, 20_000, 2**30])


def read(folder: Path, file: StagedFile) -> pa.Table:
    return pq.ParquetFile(folder / file.path).read()


@settings(max_examples=share(80))
@given(PIECES, BUDGETS, TARGETS)
def test_the_files_hold_exactly_what_was_added(pieces, budget, target):
    with TemporaryDirectory() as name, TemporaryDirectory() as scratch:
        folder = Path(name)
        lake = Destination(LocalStore(name), ("hour", "country"), "part", target)
        stage = Stage(lake, budget=budget, scratch=scratch)
        added: list[pa.Table] = []
        for piece in pieces:
            rows, times, buckets = piece.arrays(sum(table.num_rows for table in added))
            stage.add(rows, times, buckets)
            added.append(rows)
        files = stage.finish()

        assert not list(Path(scratch).iterdir())
        assert {file.path for file in files} == {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        everything = pa.concat_tables(added) if added else None
        written = [read(folder, file) for file in files]
        if everything is None or not everything.num_rows:
            assert files == []
            return
        assert pa.concat_tables(written).sort_by("id").equals(everything)
        for file, rows in zip(files, written, strict=True):
            check(file, rows, (folder / file.path).stat().st_size)
        for key in {file.bucket for file in files}:
            here = [(file, rows) for file, rows in zip(files, written, strict=True) if file.bucket == key]
            times = [time for _, rows in here for time in rows["at"].to_pylist()]
            assert min(file.event_time_min for file, _ in here) == min(times)
            assert max(file.event_time_max for file, _ in here) == max(times)


def check(file: StagedFile, rows: pa.Table, size: int) -> None:
    assert rows.num_rows > 0
    assert (file.rows, file.bytes) == (rows.num_rows, size)
    assert set(rows["bucket"].to_pylist()) == {json.dumps(file.bucket)}
    assert json.loads(file.statistics)["numRecords"] == rows.num_rows
    sources = zip(rows["_topic"].to_pylist(), rows["_partition"].to_pylist(), strict=True)
    assert file.rows_by_source == Counter(sources)
    assert file.event_time_min <= min(rows["at"].to_pylist())
    assert file.event_time_max >= max(rows["at"].to_pylist())


@settings(max_examples=share(30))
@given(PIECES, BUDGETS, TARGETS)
def test_an_abandoned_stage_leaves_no_file(pieces, budget, target):
    with TemporaryDirectory() as name, TemporaryDirectory() as scratch:
        lake = Destination(LocalStore(name), ("hour", "country"), "part", target)
        stage = Stage(lake, budget=budget, scratch=scratch)
        for piece in pieces:
            stage.add(*piece.arrays(0))
        stage.abandon()
        assert not list(Path(scratch).iterdir())
        assert not [path for path in Path(name).rglob("*") if path.is_file()]
