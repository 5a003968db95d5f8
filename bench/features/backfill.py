"""Measures a backfill beside a live stream: its speed, and the live writer's lag. Counts every event.

By itself:
    python -m headrace.bench.features.backfill [--events 5M] [--live 2000] [--rate N] [--chunk-rows 500K] [--json FILE]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from headrace.bench.cli import number
from headrace.bench.data.dataset import DataSet, dataset
from headrace.bench.features.live import Figures, LiveWriter, fill_topic, run_command, write_configuration
from headrace.bench.figures import BenchFailed
from headrace.bench.job import PARTITIONS, Job
from headrace.writer.demo.devstack.stack import Stack

# Events that the table has before the gap.
FIRST = 2_000


@dataclass
class BackfillFigures(Figures):
    """What was seen."""

    skipped: int = 0
    chunks: int = 0

    def sentence(self) -> str:
        """Say the figures."""
        return (
            f"{self.skipped:,} events of a gap in {self.seconds:.0f} s ({self.skipped / max(self.seconds, 1):,.0f} a "
            f"second) in {self.chunks} chunks {self.beside('the backfill')}"
        )


def measure(
    events: int, live: float, flags: Sequence[str], directory: Path, progress: Callable[[str], None]
) -> BackfillFigures:
    """Skip `events`, then fill the gap while `live` events a second come. Raises BenchFailed."""
    data = dataset("200B")
    with Stack(directory / "servers") as stack:
        job = fill_topic(stack, "backfill", data, FIRST, directory / "writer")
        path = write_configuration(job)
        run_command("run", str(path), "--once")
        progress(f"sending {events:,} events")
        _send(job, data, events)
        run_command("gaps", "open", str(path), "--reason", "a bench", "--yes")
        figures = BackfillFigures(live, skipped=events)
        with LiveWriter(job, path, data, FIRST + events, live) as writer:
            figures.lag_before_s = writer.lag_alone()
            progress("filling the gap")
            command = writer.beside("backfill", str(path), "--yes", *flags)
            if command.lines[-1]["gaps"][0]["state"] != "done":
                raise BenchFailed(f"the gap is not filled: {command.lines[-1]}")
            figures.add_command(command)
            figures.chunks = command.count("chunk")
            figures.events = writer.finish()
        figures.add_table(job, path)
    return figures


def _send(job: Job, data: DataSet, events: int) -> None:
    """Send events behind the first ones."""
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "log_level": 0,
            "enable.idempotence": True,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 400_000,
        }
    )
    block = 20_000
    for turn, start in enumerate(range(0, events, block)):
        count = min(block, events - start)
        values = data.encode(FIRST + start, count, schema_id=job.schema_id).to_pylist()
        while len(producer) > 10 * block:
            producer.poll(0.05)
        producer.produce_batch(job.topic, [{"value": value} for value in values], partition=turn % PARTITIONS)
    if producer.flush(120):
        raise BenchFailed(f"the broker {job.bootstrap} did not take all events within 120 s")


def main(arguments: Sequence[str]) -> int:
    """Measure, and say what was seen. Returns 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.backfill", description=__doc__)
    parser.add_argument("--events", type=number, default=5_000_000, help="how many are skipped")
    parser.add_argument("--live", type=float, default=2_000, help="live events a second meanwhile")
    parser.add_argument("--rate", help="rows a second that the backfill may bring")
    parser.add_argument("--chunk-rows", default="500000", help="offsets of one of its commits")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    flags = ["--chunk-rows", options.chunk_rows, *(["--rate", options.rate] if options.rate else [])]
    with tempfile.TemporaryDirectory(prefix="headrace-backfill-", ignore_cleanup_errors=True) as directory:
        figures = measure(options.events, options.live, flags, Path(directory), lambda line: print(line, flush=True))
    return figures.show(options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
