"""What an event spec costs: CPU time per event of a task, from values in memory to Parquet files, without and with one.

By itself: python -m headrace.bench.features.specs [EVENTS]
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.bench.data.dataset import TIME_FIELD, dataset
from headrace.bench.job import BUCKET
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task import Task
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan
from headrace.writer.config.sections.record_rules import EventSpec
from headrace.writer.config.sections.resource_limits import Memory
from headrace.writer.config.sections.table import Roll
from headrace.writer.driver.spark import WORKER_ENVIRONMENT

_SET = "200B"
_ROUNDS = 3
_EVER = timedelta(days=36_500)
_COLUMNS_TO_KEEP = ["event_id", "event_name", "app_id", "user_id", "country", "revenue", "duration_ms", TIME_FIELD]
SECTIONS: Mapping[str, Mapping[str, Any] | None] = {
    "off": None,
    "identity": {"where": "true"},
    "where, all stay": {"where": "duration_ms >= 0"},
    "where, a sixth goes": {"where": "event_name <> 'view'"},
    "where + derive": {
        "where": "duration_ms >= 0",
        "derive": {"seconds": "duration_ms / 1000", "host": "lower(country)"},
    },
    "sample 100 %": {"sample": {"share": "100 %", "by": "user_id"}},
    "sample 10 %": {"sample": {"share": "10 %", "by": "user_id"}},
    "8 of 20 columns": {"columns": {"include": _COLUMNS_TO_KEEP}},
}


def enter_worker_environment(module: str) -> None:
    """Begin this process anew in the environment that Spark's workers have, which decides how memory is given back.

    `module`: that is run. The C library reads the environment when a process begins.
    """
    if any(os.environ.get(name) != value for name, value in WORKER_ENVIRONMENT.items()):
        os.execve(  # noqa: S606 - this program itself
            sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | WORKER_ENVIRONMENT
        )


def batches(events: int) -> list[pa.RecordBatch]:
    """Events as a task gets them."""
    size = Memory.model_validate({}).batch_records
    records = list[pa.RecordBatch]()
    for start in range(0, events, size):
        count = min(size, events - start)
        columns = {
            "topic": pa.repeat("bench", count),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": pa.array(np.arange(start, start + count)),
            "timestamp": pa.repeat(pa.scalar(1_763_600_000_000_000, pa.timestamp("us", "UTC")), count),
            "key": pa.nulls(count, pa.binary()),
            "value": dataset(_SET).encode(start, count),
        }
        records.append(pa.RecordBatch.from_pydict(columns))
    return records


def measure(section: Mapping[str, Any] | None, records: Sequence[pa.RecordBatch]) -> tuple[float, float]:
    """Carry the events once. Returns CPU nanoseconds of an event: of the task, and of conform and spec in it."""
    specs = () if section is None else (EventSpec.model_validate(section).spec("*"),)
    return run_task(records, ("shape", "conform"), specs=specs)


def run_task(records: Sequence[pa.RecordBatch], steps: Sequence[str], **rules: Any) -> tuple[float, float]:
    """Carry the events once. Returns CPU nanoseconds of an event: of the task, and of `steps`."""
    task_ns, by_step = run_task_by_step(records, **rules)
    return task_ns, sum(by_step.get(step, 0.0) for step in steps)


def run_task_by_step(
    records: Sequence[pa.RecordBatch], *, schemas: int = 1, **rules: Any
) -> tuple[float, dict[str, float]]:
    """Carry the events once, by `rules` of the schema plan. Returns CPU nanoseconds of an event: of the task, by step.

    `schemas`: so many ids have the schema.
    """
    reserved = frozenset(column.lower() for column in (*PROVENANCE.names, BUCKET))
    schema_plan = SchemaPlan(pa.schema([]), reserved, **rules)
    for schema_id in range(1, schemas + 1):
        schema_plan = schema_plan.extend(schema_id, dataset(_SET).schema_text)
    with tempfile.TemporaryDirectory() as folder:
        plan = TaskPlan(
            now=datetime.now(UTC),
            frontier={},
            incarnations={"bench": 1},
            schemas=schema_plan,
            time_rule=TimeRule(TIME_FIELD, "auto", _EVER, _EVER),
            bucket={"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"},
            table=f"{folder}/table",
            dead_letters=f"{folder}/dead",
            prefix="bench",
            budget=Memory.model_validate({}).buffer,
            target_file_size=Roll.model_validate({}).target_file_size,
        )
        task = Task(plan)
        began_s = time.process_time()
        report = task.run(records, task.take)
        spent_s = time.process_time() - began_s
    events = sum(batch.num_rows for batch in records)
    return spent_s / events * 1e9, {step: seconds / events * 1e9 for step, seconds in report.seconds.items()}


def rounds(events: int) -> Iterator[tuple[str, float, float]]:
    """Yield for each spec the best of some rounds, which take turns."""
    records = batches(events)
    times = dict[str, list[tuple[float, float]]]()
    for _ in range(_ROUNDS):
        for name, section in SECTIONS.items():
            times.setdefault(name, []).append(measure(section, records))
    for name, samples in times.items():
        yield name, min(task for task, _ in samples), min(step for _, step in samples)


if __name__ == "__main__":
    enter_worker_environment(__spec__.name)
    print(f"| spec over {_SET} | ns per event of the step | ns per event of the task |\n| --- | ---: | ---: |")
    for name, task_ns, step_ns in rounds(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000):
        print(f"| {name} | {step_ns:,.0f} | {task_ns:,.0f} |")
