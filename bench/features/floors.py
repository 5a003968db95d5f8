"""What lies between headrace and its libraries: how much of each step of a task is in the libraries' own calls.

The calls are timed where a task makes them, on the same bytes; the rest of a step is headrace's own. It is processor
time of the whole process, so that threads of the libraries count.

By itself: python -m headrace.bench.features.floors [EVENTS]
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from statistics import median
from typing import Any, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bench.features.specs import batches, enter_worker_environment, run_task_by_step
from headrace.writer.avro.decoding import block_decoder
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.batch import task
from headrace.writer.batch.staging import parquet_files, spill_buffer

_EVENTS = 400_000
_ROUNDS = 7


class _Call(NamedTuple):
    """A function that is timed: of which step, whose it is, its name, and what it does."""

    step: str
    owner: Any
    name: str
    title: str
    of_library: bool = True


_CALLS = (
    _Call("decode", pc, "binary_join_element_wise", "Arrow: lay a nonce behind each value"),
    _Call("decode", NativeDecoder, "read", "DataFusion: read the container file, and write it into memory"),
    _Call("decode", block_decoder, "has_only", "Arrow: compare the nonces"),
    _Call("decode", block_decoder, "find_other_bytes", "compare bytes with the shortest encoding", of_library=False),
    _Call("decode", NativeDecoder, "convert_columns", "columns as a table has them", of_library=False),
    _Call("stage", spill_buffer.Stage, "add", "Arrow: sort and take rows by bucket"),
    _Call("stage", task, "_with_provenance", "provenance columns", of_library=False),
    _Call("stage", task, "follow_event_times", "newest event times, lateness", of_library=False),
    _Call("columnar", pq.ParquetWriter, "write_table", "Arrow: encode, compress and write columns"),
    _Call("columnar", pq.ParquetWriter, "close", "Arrow: write the footer"),
    _Call("columnar", parquet_files, "distinct_columns", "find columns without a dictionary", of_library=False),
    _Call("columnar", parquet_files, "_count_by_source", "count rows by partition", of_library=False),
)


@contextmanager
def _time_calls(owner: Any, name: str, spent_s: Callable[[float], None]) -> Iterator[None]:
    """Time the calls of a function of `owner` within the block."""
    function = getattr(owner, name)

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        began_s = time.process_time()
        try:
            return function(*arguments, **options)
        finally:
            spent_s(time.process_time() - began_s)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, function)


def measure(records: Sequence[pa.RecordBatch]) -> tuple[dict[str, float], dict[str, float]]:
    """Carry the events once. Returns CPU nanoseconds of an event: by step, and by what a library does."""
    events = sum(batch.num_rows for batch in records)
    calls_ns = defaultdict[str, float](float)
    with ExitStack() as stack:
        for call in _CALLS:

            def add(seconds: float, title: str = call.title) -> None:
                calls_ns[title] += seconds / events * 1e9

            stack.enter_context(_time_calls(call.owner, call.name, add))
        task_ns, steps_ns = run_task_by_step(records)
    return {**steps_ns, "beside the steps": task_ns - sum(steps_ns.values())}, dict(calls_ns)


def fetch_floor(records: Sequence[pa.RecordBatch]) -> Iterator[tuple[str, float]]:
    """Yield what a broker's batches cost the libraries before a task has their values, in ns of CPU time an event."""
    content = b"".join(value for batch in records[:4] for value in batch.column("value").to_pylist())
    events = sum(batch.num_rows for batch in records[:4])
    compressed = pa.compress(content, codec="lz4", asbytes=True)
    calls: Mapping[str, Callable[[], object]] = {
        "google-crc32c: checksum of the bytes as sent": lambda: google_crc32c.value(compressed),
        "lz4: decompress": lambda: pa.decompress(compressed, len(content), codec="lz4"),
    }
    for title, call in calls.items():
        times_ns = list[float]()
        for _ in range(_ROUNDS):
            began_s = time.process_time()
            call()
            times_ns.append((time.process_time() - began_s) / events * 1e9)
        yield title, median(times_ns)


def main(events: int) -> None:
    """Print a table of the steps, and of the calls within them."""
    records = batches(events)
    steps = defaultdict[str, list[float]](list)
    calls = defaultdict[str, list[float]](list)
    for _ in range(_ROUNDS):
        by_step, by_call = measure(records)
        for name, nanoseconds in by_step.items():
            steps[name].append(nanoseconds)
        for name, nanoseconds in by_call.items():
            calls[name].append(nanoseconds)
    medians = {title: median(samples) for title, samples in calls.items()}
    print("| step | ns of an event | of them in libraries | headrace's own |\n| --- | ---: | ---: | ---: |")
    for name, samples in sorted(steps.items(), key=lambda step: -median(step[1])):
        whole = median(samples)
        in_libraries = sum(medians[call.title] for call in _CALLS if call.step == name and call.of_library)
        print(f"| {name} | {whole:,.0f} | {in_libraries:,.0f} | {whole - in_libraries:,.0f} |")
    print("\n| step | within it | ns of an event |\n| --- | --- | ---: |")
    for call in _CALLS:
        print(f"| {call.step} | {call.title} | {medians[call.title]:,.0f} |")
    for name, nanoseconds in fetch_floor(records):
        print(f"| fetch | {name} | {nanoseconds:,.0f} |")


if __name__ == "__main__":
    enter_worker_environment(__spec__.name)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else _EVENTS)
