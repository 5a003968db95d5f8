"""Puts a wrong event-time unit right beside a live stream, and measures it: its speed, and the live writer's lag.

A writer takes milliseconds for microseconds for a while, so its rows lie in a bucket of 1970. It is corrected and goes
on; `headrace reprocess` makes the rows anew meanwhile. Counts every event.

By itself:
    python -m headrace.bench.features.reprocess [--events 2M] [--live 2000] [--from raw|kafka] [--rate N] [--json FILE]
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from headrace.bench.cli import number
from headrace.bench.data.dataset import TIME_FIELD, DataSet, dataset
from headrace.bench.features.live import Figures, LiveWriter, fill_topic, run_command, write_configuration
from headrace.bench.figures import BenchFailed
from headrace.bench.job import BUCKET, Job
from headrace.writer.demo.devstack.stack import Stack

# Milliseconds of 2026 that are taken for microseconds lie in these buckets.
_WRONG = "1970-01-21T00..1970-01-21T23"


@dataclass
class ReprocessedRows(Figures):
    """What was seen."""

    source: str = "raw"
    # Rows in the bucket of 1970 before the command.
    wrong: int = 0
    moved: int = 0
    # Rows that are not in the bucket of their event time after the command.
    misplaced: int = 0

    def problems(self) -> list[str]:
        """What is not as it must be, each as a sentence."""
        problems = super().problems()
        if self.misplaced or self.moved != self.wrong:
            problems.append(
                f"of {self.wrong:,} rows {self.moved:,} were moved, {self.misplaced:,} lie in a wrong bucket"
            )
        return problems

    def sentence(self) -> str:
        """Say the figures."""
        return (
            f"{self.wrong:,} rows of a wrong bucket made anew from {self.source} in {self.seconds:.0f} s "
            f"({self.wrong / max(self.seconds, 1):,.0f} a second) {self.beside('the reprocess')}, {self.misplaced:,} "
            "in a wrong bucket"
        )


def measure(
    events: int, live: float, source: str, flags: Sequence[str], directory: Path, progress: Callable[[str], None]
) -> ReprocessedRows:
    """Write `events` by a wrong unit, then put them right while `live` events a second come. Raises BenchFailed."""
    data = _without_unit(dataset("200B"))
    with Stack(directory / "servers") as stack:
        progress(f"sending {events:,} events")
        job = fill_topic(stack, "reprocess", data, events, directory / "writer")
        table = {"raw": f"{job.directory}/raw"} if source == "raw" else {}
        progress("writing them with event_time.unit: us, which are milliseconds")
        run_command("run", str(write_configuration(job, table=table, event_time={"unit": "us"})), "--once")
        path = write_configuration(job, table=table, event_time={"unit": "ms"})
        figures = ReprocessedRows(live, source=source, wrong=_misplaced_rows(job))
        with LiveWriter(job, path, data, events, live) as writer:
            figures.lag_before_s = writer.lag_alone()
            progress("the corrected writer is running; reprocessing beside it")
            command = writer.beside("reprocess", str(path), "--buckets", _WRONG, "--from", source, "--yes", *flags)
            if command.lines[-1]["absent"]:
                raise BenchFailed(f"records of rows were not there: {command.lines[-1]}")
            figures.add_command(command)
            figures.moved = sum(line.get("moved", 0) for line in command.lines)
            figures.events = writer.finish()
        figures.add_table(job, path)
        figures.misplaced = _misplaced_rows(job)
    return figures


def _without_unit(data: DataSet) -> DataSet:
    """Return the set with an event time that says no unit: a plain long. Its bytes are the same."""
    fields = [replace(field, kind="long") if field.name == TIME_FIELD else field for field in data.fields]
    return replace(data, fields=fields)


def _misplaced_rows(job: Job) -> int:
    """Count the rows that readers see in another bucket than that of their event time."""
    files = DeltaTable(str(job.table)).file_uris()
    with duckdb.connect() as connection:
        rows = connection.read_parquet(files, hive_partitioning=True)
        hour = f"strftime(make_timestamp({TIME_FIELD} * 1000), '%Y-%m-%dT%H')"
        return len(rows.filter(f"{BUCKET}::VARCHAR <> {hour}"))


def main(arguments: Sequence[str]) -> int:
    """Measure, and say what was seen. Returns 1 when something is not as it must be."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace.bench.features.reprocess", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--events", type=number, default=2_000_000, help="how many land in a wrong bucket")
    parser.add_argument("--live", type=float, default=2_000, help="live events a second meanwhile")
    parser.add_argument("--from", dest="source", choices=["raw", "kafka"], default="raw", help="of the records")
    parser.add_argument("--rate", help="rows a second that the reprocess may make")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    flags = ["--rate", options.rate] if options.rate else []
    with tempfile.TemporaryDirectory(prefix="headrace-reprocess-", ignore_cleanup_errors=True) as directory:
        figures = measure(
            options.events, options.live, options.source, flags, Path(directory), lambda line: print(line, flush=True)
        )
    return figures.show(options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
