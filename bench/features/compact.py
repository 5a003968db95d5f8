"""Measures compaction: rows in a CPU-second, bytes, a query before and after, and the stream beside it.

Events of 200B go through the writer's steps into a table of many small files, as short commits leave them. The largest
bucket is then rewritten, each time from the same files.

    python -m headrace.bench.features.compact [--events 1M] [--commits 60] [--beside]

`--beside` ends with 1 below 85 % of the stream alone.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import duckdb
import numpy as np
import pyarrow as pa

from headrace.bench.cli import number
from headrace.bench.data.dataset import TIME_FIELD, dataset
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.staging.sorting import Dedupe
from headrace.writer.batch.task import Task
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.bucket_upkeep import Compact
from headrace.writer.config.sections.resource_limits import Memory
from headrace.writer.config.sections.table import Roll
from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.driver.spark import session
from headrace.writer.maintenance.compaction.compactor import in_spark
from headrace.writer.maintenance.compaction.plan import RewritePace
from headrace.writer.maintenance.rewrite import Job, Source, rewrite
from headrace.writer.table.factory import table_at
from headrace.writer.table.log.operations.rows import Batch

BUCKET = "hour"
RATIO_MIN = 0.85
_SET = "200B"
_PARTITION = 0
_ARROW_ROWS = 20_000
_EVER = timedelta(days=36_500)
_KINDS: dict[str, dict[str, Any]] = {
    "merged": {},
    "by event time": {"sort_by": (TIME_FIELD,)},
    "by user": {"sort_by": ("user_id",)},
    "deduped": {"dedupe": Dedupe(("event_id",))},
}
_QUESTIONS = {
    "counted by country": "SELECT country, count(*), sum(revenue) FROM rows GROUP BY ALL",
    "one user": "SELECT count(*) FROM rows WHERE user_id = (SELECT min(user_id) FROM rows)",
}
_ROUND_S = 20.0
_ROUNDS = 3
_SLOTS = 2


def records(start: int, count: int) -> pa.RecordBatch:
    """Events as Spark hands them to a task."""
    columns = {
        "topic": pa.repeat("bench", count),
        "partition": pa.repeat(pa.scalar(_PARTITION, pa.int32()), count),
        "offset": pa.array(np.arange(start, start + count)),
        "timestamp": pa.repeat(pa.scalar(1_763_600_000_000 + start, pa.timestamp("ms", "UTC")), count),
        "key": pa.nulls(count, pa.binary()),
        "value": dataset(_SET).encode(start, count),
    }
    return pa.RecordBatch.from_pydict(columns)


def task_plan(table: str) -> TaskPlan:
    """Return what the steps are told."""
    schemas = SchemaPlan(pa.schema([]), frozenset(c.lower() for c in (*PROVENANCE.names, BUCKET)))
    return TaskPlan(
        now=datetime.now(UTC),
        frontier={},
        incarnations={"bench": 1},
        schemas=schemas.extend(1, dataset(_SET).schema_text),
        time_rule=TimeRule(TIME_FIELD, "auto", _EVER, _EVER),
        bucket={"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"},
        table=table,
        dead_letters=f"{table}_dead_letters",
        prefix="bench",
        budget=Memory.model_validate({}).buffer,
        target_file_size=Roll.model_validate({}).target_file_size,
    )


def run_task(plan: TaskPlan, start: int, count: int) -> Any:
    """Carry events through the steps. Returns the report."""
    task = Task(plan)
    for offset in range(start, start + count, _ARROW_ROWS):
        task.take(records(offset, min(_ARROW_ROWS, start + count - offset)))
    return task.finish()


def fill_table(location: str, events: int, commits: int) -> tuple[Job, Sequence[BucketFile], float]:
    """Make the table. Returns the job that merges its largest bucket, that bucket's files, and CPU-s of the steps."""
    plan = task_plan(location)
    partition = TopicPartition("bench", 1, _PARTITION)
    table = table_at("delta", location, "bench")
    table.create(pa.schema([*plan.schemas.columns, *PROVENANCE, pa.field(BUCKET, pa.string())]), [BUCKET])
    epoch = table.begin({partition: 0}, {"bench": ["bench"]})
    began = time.process_time()
    for commit in range(commits):
        start = commit * events // commits
        stop = (commit + 1) * events // commits
        report = run_task(plan, start, stop - start)
        table.append(Batch(uuid4().hex, epoch, [OffsetRange(partition, start, stop)], report.files), table.snapshot())
    cpu_s = time.process_time() - began
    snapshot = table.snapshot()
    rows: dict[BucketKey, int] = {}
    for file in table.bucket_files(snapshot):
        rows[file.bucket] = rows.get(file.bucket, 0) + (file.rows or 0)
    files = table.bucket_files(snapshot, max(rows, key=lambda bucket: rows[bucket]))
    columns = pa.schema([column for column in snapshot.columns() if column.name != BUCKET])
    sources = tuple(Source(file.path, None) for file in files)
    job = Job(
        location, files[0].bucket, (BUCKET,), columns, sources, plan.target_file_size, plan.budget, plan.time_rule
    )
    return job, files, cpu_s


def query_times(paths: Sequence[str], question: str) -> tuple[float, float]:
    """Ask DuckDB about files, five times. Returns seconds, and CPU-seconds, of the median."""
    spent = []
    for _ in range(5):
        with duckdb.connect() as engine:
            engine.read_parquet(list(paths)).create_view("rows")
            began = time.perf_counter()
            cpu = time.process_time()
            engine.execute(question).fetchall()
            spent.append((time.perf_counter() - began, time.process_time() - cpu))
    return median(wall for wall, _ in spent), median(cpu for _, cpu in spent)


def show_bucket(name: str, paths: Sequence[Path], rate: float | None, before: Sequence[float] = ()) -> list[float]:
    """Print how a bucket is, what it took to make it so, and what queries take, also as a ratio to `before`.

    Returns CPU-seconds of each query.
    """
    size = sum(path.stat().st_size for path in paths) / 2**20
    times = [query_times([str(path) for path in paths], question) for question in _QUESTIONS.values()]
    ratios = [f" x {cpu / cpu_before:.2f}" for (_, cpu), cpu_before in zip(times, before, strict=False)]
    if not ratios:
        ratios = [" " * 7] * len(times)
    query_cells = "  ".join(
        f"{1000 * wall:6.0f} ms ({1000 * cpu:5.0f}){ratio}" for (wall, cpu), ratio in zip(times, ratios, strict=True)
    )
    rate_cell = "" if rate is None else f"{rate / 1000:7.0f} K/CPU-s"
    print(f"{name:14} {len(paths):4} files {size:7.1f} MiB  {rate_cell:15}  {query_cells}", flush=True)
    return [cpu for _, cpu in times]


@contextmanager
def _beside(run: Callable[[threading.Event], None]) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run, args=[stop], daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def stream_share(job: Job, share: float) -> float:
    """Run the steps in both slots of a Spark application, alone and beside compaction, in turn. Returns the ratio."""
    pace = RewritePace(share)
    config = Config.model_validate(
        {
            "kafka": {"bootstrap_servers": "unused:1"},
            "registry": {"url": "http://unused"},
            "http": {"enabled": False},
            "checkpoints": "/unused",
            "spark": {"master": f"local[{_SLOTS}]"},
            "pipelines": {
                "bench": {
                    "topics": ["bench"],
                    "table": {"location": job.table},
                    "event_time": {"field": TIME_FIELD},
                }
            },
        }
    )
    spark = session(config)
    with tempfile.TemporaryDirectory() as aside:
        plan = replace(task_plan(f"{aside}/stream"), target_file_size=2**20)
        run_batch = partial(_batch, plan)
        jobs = [job] * 1000

        def rewrite_files(stop: threading.Event) -> None:
            rewrites = in_spark(spark, "rewrites", pace, wait=stop.wait)
            for result in rewrites(jobs):
                for file in result.files:
                    Path(job.table, file.path).unlink()
                if stop.is_set():
                    return

        def events_per_s() -> float:
            began = time.perf_counter()
            count = 0
            while time.perf_counter() - began < _ROUND_S:
                spark.sparkContext.setLocalProperty("spark.scheduler.pool", "stream")
                count += sum(spark.sparkContext.parallelize(range(_SLOTS), _SLOTS).map(run_batch).collect())
            return count / (time.perf_counter() - began)

        # The first round only warms the JVM and the workers.
        events_per_s()
        alone = []
        beside = []
        beside_s = 0.0
        for _ in range(_ROUNDS):
            alone.append(events_per_s())
            began = time.perf_counter()
            with _beside(rewrite_files):
                beside.append(events_per_s())
            beside_s += time.perf_counter() - began
        slot_share = pace.busy_s / (beside_s * _SLOTS)
        print(f"stream alone {median(alone) / 1000:.0f} K/s, beside compaction {median(beside) / 1000:.0f} K/s")
        print(f"compaction took {slot_share:.3f} of all slots, of {share:g} that it may")
    spark.stop()
    return median(beside) / median(alone)


def _batch(plan: TaskPlan, slot: int) -> int:
    count = 200_000
    run_task(plan, slot * count, count)
    return count


def main() -> int:
    """Run it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.compact", description=__doc__)
    parser.add_argument("--events", type=number, default=1_000_000)
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--beside", action="store_true", help="measure the stream beside compaction, too")
    parser.add_argument("--share", type=float, default=Compact.model_validate({}).share, help="compact.share")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        table = Path(directory, "lake")
        job, files, cpu_s = fill_table(str(table), options.events, options.commits)
        rows = sum(file.rows or 0 for file in files)
        k_per_cpu_s = options.events / cpu_s / 1000
        print(f"{options.events:,} events in {options.commits} commits: {k_per_cpu_s:.0f} K/CPU-s, encoding")
        print(f"the largest bucket has {rows:,} rows; ms (CPU) x ratio to before, of: {', '.join(_QUESTIONS)}")
        before = show_bucket("as committed", [table / file.path for file in files], None)
        for name, changes in _KINDS.items():
            began = time.process_time()
            result = rewrite(replace(job, **changes))
            rate = rows / (time.process_time() - began)
            show_bucket(
                name,
                [table / file.path for file in result.files] or [table / file.path for file in files],
                rate,
                before,
            )
            for file in result.files:
                (table / file.path).unlink()
        if not options.beside:
            return 0
        ratio = stream_share(job, options.share)
        print(f"ratio {ratio:.2f}, at least {RATIO_MIN}")
        return int(ratio < RATIO_MIN)


if __name__ == "__main__":
    sys.exit(main())
