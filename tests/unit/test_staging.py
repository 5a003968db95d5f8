"""Where rows wait, when files are closed, and how much memory that takes."""

import json
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.bucketers import Buckets
from headrace.writer.batch.staging.parquet_files import GROUP_BYTES_MAX, BucketFiles, Destination, distinct_columns
from headrace.writer.batch.staging.spill_buffer import Stage
from headrace.writer.storage.local import LocalStore

MIB = 2**20
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def lake(folder: Path, target: int = 2**30) -> Destination:
    return Destination(LocalStore(str(folder)), ("hour",), "part", target)


def rows_of(payload: list[bytes], first_id: int = 0) -> pa.Table:
    size = len(payload)
    return pa.table(
        {
            "id": pa.array(range(first_id, first_id + size), pa.int64()),
            "payload": pa.array(payload, pa.binary()),
            "_topic": pa.array(["clicks"] * size),
            "_partition": pa.array([0] * size, pa.int32()),
        }
    )


def buckets_of(codes: list[int], count: int) -> Buckets:
    return Buckets(pa.array(codes, pa.int32()), tuple((f"h{i}",) for i in range(count)), (None,) * count)


def add(stage: Stage, payload: list[bytes], codes: list[int], count: int) -> None:
    stage.add(rows_of(payload), pa.array([NOON] * len(payload), pa.timestamp("us", "UTC")), buckets_of(codes, count))


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# --- rolling ----------------------------------------------------------------------------------------------------


def payload(kind: str, size: int, rng: random.Random) -> list[bytes]:
    match kind:
        case "random":
            return [rng.randbytes(200) for _ in range(size)]
        case "repeating":
            return [b"the same words again and again %d" % rng.randrange(1000) * 6 for _ in range(size)]
        case _:
            return [b"z" * 200 if i // 50 % 2 else rng.randbytes(200) for i in range(size)]


@pytest.mark.parametrize("budget", [MIB, 8 * MIB, 256 * MIB], ids=["spilling", "tight", "ample"])
@pytest.mark.parametrize("target", [256 * 1024, MIB])
@pytest.mark.parametrize(("kind", "adds"), [("random", 12), ("repeating", 40), ("changing", 12)])
def test_files_are_closed_near_the_target_size(tmp_path, budget, target, kind, adds):
    rng = random.Random(kind)
    stage = Stage(lake(tmp_path, target), budget=budget)
    for _ in range(adds):
        body = payload(kind, 2_000, rng)
        codes = [0 if rng.random() < 0.8 else rng.randrange(1, 4) for _ in body]
        add(stage, body, codes, 4)
    files = stage.finish()
    assert sum(file.rows for file in files) == adds * 2_000
    for bucket in {file.bucket for file in files}:
        *full, rest = [file.bytes for file in files if file.bucket == bucket]
        assert all(0.7 * target <= size <= 1.3 * target for size in full), full
        assert rest <= 1.3 * target
    assert len(files) > 4 or kind == "repeating"


def test_a_row_larger_than_the_target_gets_a_file_of_its_own(tmp_path):
    stage = Stage(lake(tmp_path, 10_000), budget=2**30)
    add(stage, [random.Random(i).randbytes(50_000) for i in range(5)], [0] * 5, 1)
    assert [file.rows for file in stage.finish()] == [1] * 5


# --- waiting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distinct", "encoding"), [(100, "RLE_DICTIONARY"), (20_000, "RLE_DICTIONARY"), (10**6, "PLAIN")]
)
def test_a_column_that_hardly_repeats_itself_gets_no_dictionary(tmp_path, distinct, encoding):
    rng = random.Random(7)
    stage = Stage(lake(tmp_path), budget=2**30)
    add(stage, [str(rng.randrange(distinct)).encode() for _ in range(50_000)], [0] * 50_000, 1)
    (file,) = stage.finish()
    payload = pq.read_metadata(tmp_path / file.path).row_group(0).column(1)
    assert payload.path_in_schema == "payload"
    assert encoding in payload.encodings
    assert payload.has_dictionary_page == (encoding != "PLAIN")


def test_every_flat_type_of_the_table_can_be_looked_at_for_a_dictionary():
    kinds = [
        pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(),
        pa.timestamp("us", "UTC"), pa.decimal128(38, 4),
    ]  # fmt: skip
    rows = pa.table({str(kind): pa.nulls(3, kind) for kind in kinds} | {"nested": pa.array([{"a": 1}] * 3)})
    assert distinct_columns(rows) == {str(kind) for kind in kinds}, "an empty dictionary keeps Presto from asking"
    assert distinct_columns(pa.table({"id": [1, 2, None], "same": [1, 1, None]})) == {"id"}


def test_within_the_budget_nothing_is_written_before_the_end(tmp_path):
    stage = Stage(lake(tmp_path), budget=MIB)
    add(stage, [b"x" * 100] * 1000, [i % 10 for i in range(1000)], 10)
    assert stage.spilled_bytes == 0
    assert not files_below(tmp_path)
    assert len(stage.finish()) == 10


def test_over_the_budget_rows_spill_below_the_scratch_directory_and_leave_with_the_stage(tmp_path):
    scratch, table = tmp_path / "scratch", tmp_path / "table"
    scratch.mkdir()
    table.mkdir()
    for end in (Stage.finish, Stage.abandon):
        stage = Stage(lake(table), budget=10_000, scratch=str(scratch))
        add(stage, [random.Random(i).randbytes(100) for i in range(1000)], [i % 10 for i in range(1000)], 10)
        assert [path.name for path in files_below(scratch)] == ["run-0.arrow"]
        assert stage.spilled_bytes == files_below(scratch)[0].stat().st_size > 100_000
        assert not files_below(table)
        end(stage)
        assert not list(scratch.iterdir())
        for path in files_below(table):
            path.unlink()


def test_a_bucket_with_most_of_the_rows_skips_the_spill(tmp_path):
    stage = Stage(lake(tmp_path), budget=10_000)
    add(stage, [b"x" * 100] * 1000, [0] * 990 + [1] * 10, 2)
    spilled = stage.spilled_bytes
    assert len(files_below(tmp_path)) == 1
    add(stage, [b"x" * 100] * 1000, [0] * 1000, 2)
    assert stage.spilled_bytes == spilled < 10_000
    files = stage.finish()
    assert [(file.bucket, file.rows) for file in files] == [(("h0",), 1990), (("h1",), 10)]
    assert pq.read_metadata(tmp_path / files[0].path).num_row_groups == 2


def test_two_stages_of_one_task_share_no_file_name(tmp_path):
    paths = []
    for _ in range(2):
        stage = Stage(lake(tmp_path), budget=MIB)
        add(stage, [b"x"], [0], 1)
        paths += [file.path for file in stage.finish()]
    assert len(set(paths)) == 2


def test_an_empty_stage_makes_no_file(tmp_path):
    stage = Stage(lake(tmp_path), budget=MIB)
    add(stage, [], [], 0)
    assert stage.finish() == []
    assert not files_below(tmp_path)


def test_a_bucket_value_becomes_a_safe_directory(tmp_path):
    stage = Stage(lake(tmp_path), budget=MIB)
    values = ((None,), ("",), ("../up",), ("a b/c=d",), ("é" * 300,))
    buckets = Buckets(pa.array(range(5), pa.int32()), values, (None,) * 5)
    stage.add(rows_of([b""] * 5), pa.array([NOON] * 5, pa.timestamp("us", "UTC")), buckets)
    files = stage.finish()
    assert [file.bucket for file in files] == list(values)
    folders = [file.path.rsplit("/", 1)[0] for file in files]
    assert folders == [
        "hour=__HIVE_DEFAULT_PARTITION__", "hour=_", "hour=.._up", "hour=a_b_c_d", f"hour={'_' * 80}",
    ]  # fmt: skip


# --- memory -----------------------------------------------------------------------------------------------------

BUDGET = 64 * MIB
ROWS_BYTES = 400 * MIB
MEASURE = """
import json, random, sys, threading, time
from pathlib import Path
import numpy as np, pyarrow as pa
from headrace.writer.storage.local import LocalStore
from headrace.bucketers import Buckets
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.batch.staging.spill_buffer import Stage

folder, shape = sys.argv[1:3]
buckets, budget, total = map(int, sys.argv[3:])
SIZE, WIDTH = 8_000, 2_000
rng = np.random.default_rng(1)

def batch(size, width):
    offsets = pa.array(np.arange(size + 1, dtype=np.int32) * width)
    body = pa.py_buffer(rng.bytes(size * width))
    payload = pa.Array.from_buffers(pa.binary(), size, [None, offsets.buffers()[1], body])
    codes = rng.integers(0, buckets, size).astype(np.int32)
    if shape == "hot":
        codes[rng.random(size) < 0.9] = 0
    rows = pa.table({
        "payload": payload, "n": pa.array(rng.integers(0, 99, size)), "_topic": pa.repeat("t", size),
        "_partition": pa.repeat(pa.scalar(0, pa.int32()), size), "_offset": pa.array(np.arange(size)),
    })
    times = pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), size)
    return rows, times, Buckets(pa.array(codes), tuple((f"h{i}",) for i in range(buckets)), (None,) * buckets)

def stage(name, budget):
    return Stage(Destination(LocalStore(f"{folder}/{name}"), ("hour",), "part", 128 * 2**20), budget=budget)

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

warm = stage("warm", 1)  # loads code, not data
warm.add(*batch(100, 10))
warm.finish()
base, peak, done = resident(), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, resident())

watcher = threading.Thread(target=watch)
watcher.start()
stage, added = stage("table", budget), 0
while added < total:
    rows, times, found = batch(SIZE, WIDTH)
    added += rows.nbytes
    stage.add(rows, times, found)
    del rows
files = stage.finish()
done.set()
watcher.join()
print(json.dumps({
    "base": base, "growth": peak - base, "spilled": stage.spilled_bytes, "files": len(files),
    "rows": sum(file.rows for file in files), "added": added,
}))
"""


@pytest.mark.slow
def test_memory_is_the_budget_and_one_row_group_however_many_buckets_are_open(tmp_path):
    cases = {
        "10 buckets": (10, "even", ROWS_BYTES),
        "2,000 buckets": (2_000, "even", ROWS_BYTES),
        "10 buckets, one hot": (10, "hot", ROWS_BYTES // 2),
    }
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", MEASURE, str(tmp_path / name), shape, str(buckets), str(BUDGET), str(added)],
            stdout=subprocess.PIPE, text=True,
        )
        for name, (buckets, shape, added) in cases.items()
    }  # fmt: skip
    found = {name: json.loads(process.communicate(timeout=400)[0]) for name, process in started.items()}
    for name, facts in found.items():
        print(f"{name}:", ", ".join(f"{k} {v / MIB:.0f} MiB" if v > 10**6 else f"{k} {v}" for k, v in facts.items()))
    bound = 1.2 * (BUDGET + GROUP_BYTES_MAX)
    assert all(facts["growth"] <= bound for facts in found.values()), found
    few, many = found["10 buckets"]["growth"], found["2,000 buckets"]["growth"]
    assert abs(few - many) <= 0.2 * max(few, many) + 16 * MIB


@pytest.mark.parametrize(
    ("rows", "small_file_rows", "codec", "has_dictionaries"),
    [(10, 512, "SNAPPY", False), (600, 512, "ZSTD", False), (3_000, 512, "ZSTD", True), (10, 0, "ZSTD", True)],
)
def test_a_file_of_few_rows_is_written_the_cheap_way(tmp_path, rows, small_file_rows, codec, has_dictionaries):
    destination = Destination(LocalStore(str(tmp_path)), (), "a", 2**20, small_file_rows=small_file_rows)
    files = BucketFiles(destination, ())
    columns = {"_topic": ["t"] * rows, "_partition": [0] * rows, "n": [1] * rows}
    files.add(pa.table(columns))
    (file,) = files.close(NOON, NOON)
    metadata = pq.read_metadata(tmp_path / file.path)
    assert {metadata.row_group(0).column(i).compression for i in range(3)} == {codec}
    assert metadata.row_group(0).column(2).has_dictionary_page == has_dictionaries
    assert pq.read_table(tmp_path / file.path).to_pydict() == columns
    assert file.rows_by_source == {("t", 0): rows}


def test_files_with_the_same_columns_are_written_by_one_look_at_them(tmp_path):
    destination = Destination(LocalStore(str(tmp_path)), (), "a", 2**20, unmeasured=frozenset({"n"}))
    columns = destination.columns_of(pa.schema({"n": pa.int64(), "x": pa.float64(), "_offset": pa.int64()}))
    assert columns.paths == ["n", "x", "_offset"]
    assert columns.measured_paths == ["_offset"]
    assert columns.encodings == {"_offset": "DELTA_BINARY_PACKED"}
    assert destination.columns_of(pa.schema({"n": pa.int64(), "x": pa.float64(), "_offset": pa.int64()})) is columns
    assert destination.columns_of(pa.schema({"n": pa.int64()})).paths == ["n"]


def test_the_pages_of_a_small_file_reach_the_disk_in_one_write(tmp_path):
    destination = Destination(LocalStore(str(tmp_path)), ("hour",), "a", 2**20)
    for _ in range(2):
        path, stream = destination.open(("10",))
        stream.write(b"page")
        stream.write(b"another")
        assert stream.tell() == 11
        assert (tmp_path / path).stat().st_size == 0
        destination.close(path, stream)
        assert (tmp_path / path).read_bytes() == b"pageanother"
