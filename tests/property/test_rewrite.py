"""Files of a bucket written anew, against the rows they held: plain Python is the oracle."""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.batch.staging.parquet_files import parquet_writer
from headrace.writer.batch.staging.sorting import Dedupe, RowBits
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.maintenance.rewrite import RewriteResult, Source, rewrite
from tests.support.example_counts import share
from tests.support.rewrite_job import COLUMNS, job

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TIMES = (NOON, NOON + timedelta(minutes=1))
Row = dict[str, Any]


def row(offset: int, **values: Any) -> Row:
    return {
        "id": offset, "user": {"name": f"u{offset % 3}", "age": 7}, "tags": ["a"], "price": None,
        "_topic": "clicks", "_incarnation": 1, "_partition": 0, "_offset": offset,
        "_kafka_time": NOON + timedelta(seconds=offset), **values,
    }  # fmt: skip


def put(lake: Path, rows: Sequence[Row], columns: pa.Schema = COLUMNS) -> Source:
    """A file of the bucket, as an older or a newer writer left it."""
    path = f"hour=x/{len(list(lake.rglob('*.parquet')))}.parquet"
    (lake / "hour=x").mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(lake / path), "wb") as sink:
        writer = parquet_writer(sink, columns)
        writer.write_table(pa.Table.from_pylist([{k: r[k] for k in columns.names} for r in rows], schema=columns))
        writer.close()
    return Source(path, TIMES)


def read(lake: Path, done: RewriteResult) -> list[Row]:
    found = [one for file in done.files for one in pq.read_table(lake / file.path, partitioning=None).to_pylist()]
    return [{**one, "_kafka_time": one["_kafka_time"].astimezone(UTC)} for one in found]


def offsets(rows: Sequence[Row]) -> list[int]:
    return [one["_offset"] for one in rows]


VALUES = st.one_of(st.none(), st.integers(0, 3))
FILE = st.lists(st.tuples(VALUES, VALUES, st.integers(0, 4)), min_size=1, max_size=12)
FILES = st.lists(FILE, min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share(60))
@given(files=FILES, keep=st.sampled_from(["first", "last", None]), ordered=st.booleans())
def test_rows_are_what_python_says(tmp_path_factory, files, keep, ordered) -> None:
    """Keys with nulls, equal times, every file touched or not."""
    lake = tmp_path_factory.mktemp("lake")
    rows, sources, n = [], [], 0
    for made in files:
        mine = []
        for a, b, second in made:
            came = NOON + timedelta(seconds=second)
            mine.append(row(n, id=a, user={"name": None if b is None else str(b), "age": n}, _kafka_time=came))
            n += 1
        rows += mine
        sources.append(put(lake, mine))
    rule = Dedupe(("id", "user.name"), keep) if keep else None
    done = rewrite(job(lake, sources, dedupe=rule, sort_by=("id",) if ordered else ()))
    by_place = sorted(rows, key=lambda r: (r["_kafka_time"], r["_offset"]), reverse=keep == "last")
    seen, expected = set(), []
    for one in by_place:
        key = (one["id"], one["user"]["name"])
        if keep is None or None in key or key not in seen:
            expected.append(one)
            seen.add(key)
    assert done.taken == len(rows) - len(expected)
    if not done.removed:
        assert done.taken == 0
        assert len(files) < 2
        return
    assert done.rows == len(rows)
    found = read(lake, done)
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    if ordered:
        key = [(one["id"] is None, one["id"] or 0, one["_kafka_time"], one["_offset"]) for one in found]
        assert key == sorted(key)


def test_files_are_merged_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    sources = [put(tmp_path, [row(n) for n in range(a, a + 5)]) for a in (10, 0, 5)]
    done = rewrite(job(tmp_path, sources))
    assert offsets(read(tmp_path, done)) == list(range(15))
    assert sorted(done.removed) == sorted(source.path for source in sources)
    (file,) = done.files
    assert (file.bucket, file.rows, file.event_time_min, file.event_time_max) == (("x",), 15, *TIMES)
    stats = json.loads(file.statistics)
    assert (stats["numRecords"], stats["minValues"]["_offset"], stats["maxValues"]["_offset"]) == (15, 0, 14)
    assert file.bytes == (tmp_path / file.path).stat().st_size


def test_one_file_alone_is_left_as_it_is(tmp_path: Path) -> None:
    assert rewrite(job(tmp_path, [put(tmp_path, [row(0), row(1)])])) == RewriteResult()


def test_a_whole_file_without_a_repeated_row_stays(tmp_path: Path) -> None:
    first, second = put(tmp_path, [row(0), row(1)]), put(tmp_path, [row(2), row(3)])
    third = put(tmp_path, [row(4, id=3)])
    sources = [Source(s.path, TIMES, is_well_sized=True) for s in (first, second, third)]
    done = rewrite(job(tmp_path, sources, dedupe=Dedupe(("id",), "last")))
    assert (done.removed, done.taken, offsets(read(tmp_path, done))) == ((second.path,), 1, [2])


def test_a_file_in_order_is_not_sorted_again(tmp_path: Path) -> None:
    source = put(tmp_path, [row(n, id=9 - n) for n in range(5)])
    sort = {"sort_by": ("id", "price")}
    done = rewrite(job(tmp_path, [Source(source.path, TIMES, is_well_sized=True)], **sort))
    assert offsets(read(tmp_path, done)) == [4, 3, 2, 1, 0]
    again = Source(done.files[0].path, TIMES, is_well_sized=True)
    assert rewrite(job(tmp_path, [again], **sort)) == RewriteResult()
    assert rewrite(job(tmp_path, [again], sort_by=("price",))).files


def test_files_from_before_the_columns_grew_are_read_as_the_table_reads_them(tmp_path: Path) -> None:
    old = pa.schema([
        pa.field("id", pa.int32()), pa.field("user", pa.struct({"name": pa.string()})),
        pa.field("price", pa.decimal128(8, 2)), *PROVENANCE,
    ])  # fmt: skip
    narrow = put(tmp_path, [row(0, user={"name": "a"})], old)
    done = rewrite(job(tmp_path, [narrow, put(tmp_path, [row(1)])]))
    (file,) = done.files
    assert pq.read_schema(tmp_path / file.path).types[:4] == COLUMNS.types[:4]
    assert [(r["id"], r["user"], r["tags"]) for r in read(tmp_path, done)] == [
        (0, {"name": "a", "age": None}, None), (1, {"name": "u1", "age": 7}, ["a"]),
    ]  # fmt: skip


def test_files_that_delta_rs_compacted_are_read(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    columns = COLUMNS.append(pa.field("hour", pa.string()))
    rows = pa.Table.from_pylist([{**row(n), "hour": "x"} for n in range(4)], schema=columns)
    for _ in range(2):
        write_deltalake(str(tmp_path), rows, partition_by=["hour"], mode="append")
    DeltaTable(str(tmp_path)).optimize.compact()
    (theirs,) = [Path(uri).relative_to(tmp_path) for uri in DeltaTable(str(tmp_path)).file_uris()]
    done = rewrite(job(tmp_path, [Source(str(theirs), None), put(tmp_path, [row(9)])]))
    assert sorted(offsets(read(tmp_path, done))) == [0, 0, 1, 1, 2, 2, 3, 3, 9]
    assert (done.files[0].event_time_min, done.files[0].event_time_max) == (NOON, TIMES[1])


def test_a_column_that_cannot_be_sorted_or_deduped_by_is_named(tmp_path: Path) -> None:
    source = put(tmp_path, [row(0)])
    wrong = ({"sort_by": ("gone",)}, {"sort_by": ("user",)}, *({"dedupe": Dedupe((k,))} for k in ("user.gone", "tags")))
    for changes in wrong:
        with pytest.raises(ValueError, match="no plain column of the table"):
            rewrite(job(tmp_path, [source], **changes))


def test_a_rewrite_that_fails_leaves_no_file(tmp_path: Path) -> None:
    sources = [put(tmp_path, [row(0)]), put(tmp_path, [row(1)])]
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / sources[1].path).write_bytes((tmp_path / sources[0].path).read_bytes()[:-400] + b"x" * 400)
    with pytest.raises((OSError, pa.ArrowException)):
        rewrite(job(tmp_path, sources))
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(FileNotFoundError):
        rewrite(job(tmp_path, [sources[0], Source("hour=x/gone.parquet", TIMES)]))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("rows", [50_000, 100_000, 130_000])
def test_files_are_alike_and_near_the_target(tmp_path: Path, rows: int) -> None:
    rng = np.random.default_rng(rows)
    pieces = np.array_split(np.arange(rows), 20)
    sources = [
        put(tmp_path, [row(int(n), tags=[rng.bytes(12).hex()]) for n in piece]) for piece in pieces
    ]  # fmt: skip
    done = rewrite(job(tmp_path, sources, target_file_size=512 * 2**10))
    sizes = [file.bytes for file in done.files]
    assert sum(file.rows for file in done.files) == rows
    assert len(sizes) > 1
    assert all(0.7 * 512 * 2**10 < size < 1.3 * 512 * 2**10 for size in sizes), sizes


def test_marks_are_bits() -> None:
    marks, chosen = RowBits(1000), np.array([0, 7, 8, 63, 64, 999])
    marks.set(chosen)
    marks.set(np.array([7]))
    whole = marks.of(0, 1000)
    assert np.flatnonzero(whole).tolist() == chosen.tolist()
    for start, count in ((0, 0), (3, 9), (8, 8), (5, 995), (999, 1)):
        assert marks.of(start, count).tolist() == whole[start : start + count].tolist()


MEASURED = """
import resource, sys, pyarrow as pa
from pathlib import Path
from tests.support.rewrite_job import job
from headrace.writer.batch.staging.sorting import Dedupe
from headrace.writer.maintenance.rewrite import Source, rewrite
lake, kind = Path(sys.argv[1]), sys.argv[2]
asked = {"sort": {"sort_by": ("id",)}, "dedupe": {"dedupe": Dedupe(("id",))}, "merge": {}}[kind]
sources = [Source(str(p.relative_to(lake)), None) for p in lake.rglob("*.parquet")]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
done = rewrite(job(lake, sources, budget=64 * 2**20, target_file_size=64 * 2**20, **asked))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, done.rows, done.taken)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["merge", "sort", "dedupe"])
def test_a_bucket_larger_than_memory_is_rewritten_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    rng, size, held = np.random.default_rng(3), 60_000, 0
    (tmp_path / "hour=x").mkdir(parents=True)
    texts = pa.array([[rng.bytes(80).hex()] for _ in range(size)])
    for n in range(64):
        rows = pa.table(
            [
                pa.array(rng.integers(0, 10**6, size)), pa.nulls(size, COLUMNS.field("user").type), texts,
                pa.nulls(size, pa.decimal128(20, 2)), pa.repeat("clicks", size),
                pa.repeat(pa.scalar(1, pa.int32()), size), pa.repeat(pa.scalar(0, pa.int32()), size),
                pa.array(np.arange(n * size, (n + 1) * size)),
                pa.repeat(pa.scalar(NOON, pa.timestamp("us", "UTC")), size),
            ],
            schema=COLUMNS,
        )  # fmt: skip
        pq.write_table(rows, tmp_path / "hour=x" / f"{n}.parquet", compression="zstd", store_schema=False)
        held += rows.nbytes
    command = [sys.executable, "-c", MEASURED, str(tmp_path), kind]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    grown_kib, rows_read, _ = map(int, told.split())
    assert rows_read == 64 * size
    assert held > 800 * 2**20
    assert grown_kib < 700 * 2**10, f"{grown_kib / 2**10:.0f} MiB with a budget of 64 MiB"
