"""Measures the cost of failed records: the same events twice, once with one in a thousand damaged.

Every damaged record must be in the dead-letter table, and no other; what is carried is the events of a CPU-second.

    python -m headrace.bench.features.failed_records [--events 1M] [--repeats 1]    exit 1 below 70 % of the clean run
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable

from headrace.bench.cli import number
from headrace.bench.contenders import race
from headrace.bench.contenders.contenders import CONTENDERS
from headrace.bench.data.dataset import TIME_FIELD, DataSet, dataset
from headrace.bench.data.fill import FilledTopic, block, fill
from headrace.bench.figures import BenchFailed, Run, WrittenTable, warm, whole
from headrace.bench.job import PARTITIONS, Job
from headrace.bench.rounds import Setting
from headrace.writer.clients import java_artifacts
from headrace.writer.core.errors import HeadraceError
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.framing.wire_format import CONFLUENT

SHARE = 0.001
RATIO_MIN = 0.7
_SEED = 21
_HEAD = CONFLUENT.header_bytes
_CUT_BYTES_MAX = 40
_SURPLUS_BYTES_MAX = 20


@dataclass(frozen=True)
class DamagedDataSet(DataSet):
    """A data set of which some events, always the same, are not what their schema says."""

    def encode(self, start: int, count: int, *, schema_id: int = 1, older_ids: Sequence[int] = ()) -> pa.BinaryArray:
        """Encode as the clean set does, then damage: cut, extended, bytes that end no number, or no UTF-8."""
        values = super().encode(start, count, schema_id=schema_id, older_ids=older_ids).to_pylist()
        for index in np.flatnonzero(damage_mask(start, count)):
            values[index] = _damage(values[index], np.random.default_rng((_SEED, start + int(index))))
        return pa.array(values, pa.binary())


def damage_mask(start: int, count: int) -> npt.NDArray[np.bool_]:
    """Tell which of the events [start, start + count) are damaged."""
    numbers = np.arange(start, start + count, dtype=np.uint64)
    # The function is splitmix64: its output looks random, and is always the same.
    bits = (numbers + np.uint64(_SEED)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))) < np.uint64(SHARE * 2**64)


def _damage(value: bytes, rng: np.random.Generator) -> bytes:
    match rng.integers(4):
        case 0:
            return value[: -int(rng.integers(1, _CUT_BYTES_MAX))]
        case 1:
            return value + rng.bytes(int(rng.integers(1, _SURPLUS_BYTES_MAX)))
        case 2:
            return value[:_HEAD] + b"\xff" * 11 + value[_HEAD + 11 :]
        case _:
            # The first field is a text of 32 bytes; 0xff is part of no UTF-8 text.
            return value[: _HEAD + 1] + b"\xff" + value[_HEAD + 2 :]


def run(stack: Stack, directory: Path, filled: FilledTopic, data: DataSet) -> Run:
    """Run the writer over a topic. Raises BenchFailed unless every event is a row or, if damaged, a dead letter."""
    contender = CONTENDERS["a"]
    job = Job(
        bootstrap=stack.broker.bootstrap,
        registry_url=stack.registry.url,
        topic=filled.topic,
        schema_id=filled.schema_id,
        schema_text=data.schema_text,
        events=filled.events,
        batch_events=Setting([data], filled.events, [contender], 1).batch_events,
        time_field=TIME_FIELD,
        directory=str(directory),
    )
    mask = np.zeros(filled.events, np.bool_)
    if isinstance(data, DamagedDataSet):
        mask = damage_mask(0, filled.events)
    checked_contender = replace(contender, name=filled.topic, count_rows=lambda job: _count_rows(job, mask))
    return race.run(checked_contender, job, repeat=1, value_bytes=filled.bytes)


def _count_rows(job: Job, mask: npt.NDArray[np.bool_]) -> WrittenTable:
    """Count rows and dead letters, once each was found where its event belongs."""
    numbers = np.arange(len(mask))
    block_events = block(len(mask), PARTITIONS)
    # This is the order in which `fill` sends blocks to partitions.
    turn = numbers // block_events
    within = numbers % block_events
    expected_numbers = (turn % PARTITIONS) * 2**40 + turn // PARTITIONS * block_events + within
    dead_letters = job.table.with_name(job.table.name + "_dead_letters")
    for table, expected, kind in (
        (job.table, expected_numbers[~mask], "rows"),
        (dead_letters, expected_numbers[mask], "dead letters"),
    ):
        actual = _record_numbers(table)
        if not np.array_equal(actual, np.sort(expected)):
            lost = np.setdiff1d(expected, actual)
            foreign = np.setdiff1d(actual, expected)
            raise BenchFailed(
                f"{job.topic}: {len(actual):,} {kind} where {len(expected):,} belong: {len(lost):,} are missing, "
                f"{len(foreign):,} do not belong there, {len(actual) - len(np.unique(actual)):,} are there twice"
            )
    files = DeltaTable(str(job.table)).get_add_actions(flatten=True).column("size_bytes").to_pylist()
    return WrittenTable(len(files), sum(files), len(mask))


def _record_numbers(table: Path) -> npt.NDArray[np.int64]:
    """Return partition and offset of each row that a table's newest version holds, as one number, sorted."""
    files = DeltaTable(str(table)).file_uris() if table.exists() else []
    if not files:
        return np.empty(0, np.int64)
    query = "SELECT _partition::BIGINT * (1::BIGINT << 40) + _offset AS place FROM read_parquet($1) ORDER BY place"
    numbers: npt.NDArray[np.int64] = duckdb.execute(query, [files]).fetchnumpy()["place"]
    return numbers


def main(events: int, repeats: int) -> int:
    """Measure, and say so. Returns the exit code."""
    for name in java_artifacts.DEMO_BUNDLES:
        java_artifacts.fetch(name, progress=print)
    clean = dataset("200B")
    sets: Sequence[DataSet] = [clean, DamagedDataSet(clean.name, clean.about, clean.fields)]
    ratios = []
    with (
        tempfile.TemporaryDirectory(prefix="headrace-poison-") as directory,
        Stack(Path(directory) / "servers") as stack,
    ):
        topics = [
            fill(stack.broker.bootstrap, stack.registry.url, f"events-{index}", data, events)
            for index, data in enumerate(sets)
        ]
        damaged = int(damage_mask(0, events).sum())
        print(
            f"{events:,} events of {topics[0].bytes / events:.0f} bytes, and the same with {damaged:,} damaged",
            flush=True,
        )
        for repeat in range(repeats):
            # The sets take turns at being first, because the first one warms the caches for the second.
            order = [0, 1] if repeat % 2 == 0 else [1, 0]
            runs = {
                index: run(stack, Path(directory) / f"{repeat}-{index}", topics[index], sets[index]) for index in order
            }
            for index, kind in enumerate(("clean", "poisoned")):
                warm_range = warm(runs[index])
                whole_range = whole(runs[index])
                print(
                    f"{kind:9} {warm_range.events_per_cpu_s:9,.0f} events/CPU-s warm "
                    f"{warm_range.events_per_s:9,.0f} events/s warm {whole_range.events_per_s:9,.0f} events/s whole",
                    flush=True,
                )
            ratios.append(warm(runs[1]).events_per_cpu_s / warm(runs[0]).events_per_cpu_s)
    share_left = median(ratios)
    print(
        f"poison of {SHARE:.1%} leaves {share_left:.2f} of the clean run's events in a CPU-second; "
        f"{RATIO_MIN} must be left"
    )
    print(f"each of the {damaged:,} damaged events is a dead letter, and no other event is")
    return 0 if share_left >= RATIO_MIN else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.failed_records", description=__doc__)
    parser.add_argument("--events", type=number, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    try:
        sys.exit(main(options.events, options.repeats))
    except HeadraceError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
