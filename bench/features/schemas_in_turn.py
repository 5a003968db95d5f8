"""What schemas cost that alternate record by record: CPU time per event of a task, from values to Parquet files.

By itself: python -m headrace.bench.features.schemas_in_turn [EVENTS]

The events are those of 200B, all columns in each schema, so that only the number of schemas differs.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import pyarrow as pa

from headrace.bench.data.dataset import dataset
from headrace.bench.features.specs import batches, run_task
from headrace.writer.core.freed_memory import keep_freed_memory

SCHEMAS = (1, 3, 12, 50)
_ROUNDS = 5


def batches_in_turn(events: int, schemas: int) -> list[pa.RecordBatch]:
    """Return events as a task gets them, by so many schemas in turn."""
    data = replace(dataset("200B"), missing_fields=[()] * (schemas - 1))
    records = list[pa.RecordBatch]()
    start = 0
    for batch in batches(events):
        values = data.encode(start, batch.num_rows, schema_id=1, older_ids=range(2, schemas + 1))
        records.append(batch.set_column(batch.schema.get_field_index("value"), "value", values))
        start += batch.num_rows
    return records


def rounds(events: int, counts: Sequence[int] = SCHEMAS) -> Iterator[tuple[int, float, float]]:
    """Yield each number of schemas, the nanoseconds of an event, and how many times those of the first number.

    Medians of some rounds, which take turns.
    """
    records = {count: batches_in_turn(events, count) for count in counts}
    times: Mapping[int, list[float]] = {count: [] for count in counts}
    for _ in range(_ROUNDS):
        for count in counts:
            task_ns, _ = run_task(records[count], (), schemas=count)
            times[count].append(task_ns)
    for count, samples in times.items():
        ratios = [ns / first for ns, first in zip(samples, times[counts[0]], strict=True)]
        yield count, median(samples), median(ratios)


if __name__ == "__main__":
    keep_freed_memory()
    print("| schemas in turn | ns per event of the task | x |\n| ---: | ---: | ---: |")
    for count, task_ns, times in rounds(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000):
        print(f"| {count} | {task_ns:,.0f} | {times:.2f} |")
