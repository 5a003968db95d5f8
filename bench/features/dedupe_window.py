"""Measures dedupe across buckets: what the seal of one bucket takes with a window, and without.

Buckets of so many rows, whose keys are random texts of 19 characters, lie before one that is to be sealed: that one in
twelve small files, as commits leave them, the others in one each. One row in a hundred repeats an earlier one.

    python -m headrace.bench.features.dedupe_window [--rows 200K] [--buckets 24] [--repeats 3]
"""

import argparse
import resource
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bench.cli import number
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.staging.key_window import ComparedBucket
from headrace.writer.batch.staging.sorting import Dedupe
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.maintenance.rewrite import Job, Source, Window, rewrite

_HOUR_US = 3_600_000_000
_START = datetime(2026, 11, 20, tzinfo=UTC)
_FILES = 12
_COLUMNS = pa.schema(
    [
        pa.field("event_id", pa.string()),
        pa.field("user_id", pa.int64()),
        pa.field("price", pa.float64()),
        pa.field("page", pa.string()),
        *PROVENANCE,
    ]
)


def rows(hour: int, ids: pa.Array, rng: np.random.Generator) -> pa.Table:
    """Return rows of one bucket, in the order in which they came."""
    count = len(ids)
    came = _HOUR_US * hour + np.sort(rng.integers(0, _HOUR_US, count)) + int(_START.timestamp()) * 1_000_000
    pages = pa.array([f"/shop/{rng.bytes(12).hex()}" for _ in range(500)])
    return pa.table(
        [
            ids,
            pa.array(rng.integers(0, 10**6, count)),
            pa.array(rng.random(count)),
            pages.take(pa.array(rng.integers(0, 500, count))),
            pa.repeat("clicks", count),
            pa.repeat(pa.scalar(1, pa.int32()), count),
            pa.repeat(pa.scalar(0, pa.int32()), count),
            pa.array(np.arange(hour * count, (hour + 1) * count)),
            pa.array(came, pa.timestamp("us", "UTC")),
        ],
        schema=_COLUMNS,
    )


def write_buckets(directory: Path, count: int, buckets: int) -> Job:
    """Write the buckets. Returns the job that seals the last one, with a window that reaches all."""
    rng = np.random.default_rng(1)
    paths = list[str]()
    before = pa.nulls(count, pa.string())
    for hour in range(buckets + 1):
        ids = pa.array(rng.integers(10**18, 2**62, count)).cast(pa.string())
        repeats = pc.and_(pa.array(rng.permutation(count) < count // 100), pc.is_valid(before))
        before = ids = pc.if_else(repeats, before, ids)
        table = rows(hour, ids, rng)
        pieces = np.array_split(np.arange(count), _FILES if hour == buckets else 1)
        for n, piece in enumerate(pieces):
            path = f"hour={hour:02}/{n}.parquet"
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.slice(int(piece[0]), len(piece)), directory / path, compression="zstd")
            paths.append(path)
    sources = tuple(Source(path, None) for path in paths[buckets:])
    spans = tuple(ComparedBucket(h * _HOUR_US, (h + 1) * _HOUR_US, sealed=True) for h in (buckets, *range(buckets)))
    window_files = tuple((n + 1, str(directory), path) for n, path in enumerate(paths[:buckets]))
    return Job(
        str(directory),
        (f"{buckets:02}",),
        ("hour",),
        _COLUMNS,
        sources,
        128 * 2**20,
        256 * 2**20,
        TimeRule("_kafka_time", "auto", timedelta(days=36_500), timedelta(days=1)),
        dedupe=Dedupe(("event_id",)),
        window=Window(buckets * _HOUR_US, spans, window_files),
    )


def main() -> int:
    """Run it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.dedupe_window", description=__doc__)
    parser.add_argument("--rows", type=number, default=200_000)
    parser.add_argument("--buckets", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        window_job = write_buckets(Path(directory), options.rows, options.buckets)
        spent: dict[str, float] = {}
        for name, job in (("without a window", replace(window_job, window=None)), ("with a window", window_job)):
            times = []
            for _ in range(options.repeats):
                began = time.process_time()
                result = rewrite(job)
                times.append(time.process_time() - began)
                for file in result.files:
                    Path(directory, file.path).unlink()
            spent[name] = median(times)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            print(f"{name:17} {spent[name]:6.2f} CPU-s, {result.taken:,} rows taken, peak {peak:,.0f} MiB", flush=True)
        print(f"ratio {spent['with a window'] / spent['without a window']:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
