"""Commits one small file after the other to a table in a catalog, and checks that neither time nor metadata grows.

By itself: python -m headrace.bench.features.catalog_commits [--commits 2000] [--format iceberg] [--json FILE]
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import pyarrow as pa

from headrace.bench.contenders.contenders import PIPELINE
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.files import StagedFile, staged_name
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.storage.locations import store_at
from headrace.writer.table.factory import table_at
from headrace.writer.table.log.operations.rows import Batch

# So many of the first commits are compared with as many of the last.
WINDOW = 100
CPU_RATIO_MAX = 1.5
# The limit in bytes of the metadata file, which each reader loads and each commit writes anew.
METADATA_MAX = 64 * 2**10
_HOUR = datetime(2026, 11, 20, 12, tzinfo=UTC)
_PARTITION = TopicPartition("clicks", 1, 0)


@dataclass(frozen=True)
class CommitSamples:
    """What each commit took, in seconds, and the bytes of the table's metadata file after it."""

    cpu_s: Sequence[float]
    wall_s: Sequence[float]
    # The bytes of the metadata file after each commit. A Delta table has none.
    metadata: Sequence[int]

    def cpu(self) -> tuple[float, float, float]:
        """Return the mean CPU seconds of the first commits, of the last ones, and of the dearest hundred."""
        windows = [
            fmean(self.cpu_s[start : start + WINDOW]) for start in range(0, len(self.cpu_s) - WINDOW + 1, WINDOW)
        ]
        return windows[0], fmean(self.cpu_s[-WINDOW:]), max(windows)

    def problems(self) -> list[str]:
        """What is beyond its limit, each as a sentence."""
        first, last, _ = self.cpu()
        metadata_bytes = max(self.metadata, default=0)
        problems = []
        if last > CPU_RATIO_MAX * first:
            problems.append(f"a commit took {last / first:.2f} times the CPU at the end, {CPU_RATIO_MAX} is the limit")
        if metadata_bytes >= METADATA_MAX:
            problems.append(f"the metadata file had {metadata_bytes:,} bytes, {METADATA_MAX:,} is the limit")
        return problems

    def sentence(self) -> str:
        """Say the figures."""
        first, last, most = (1000 * seconds for seconds in self.cpu())
        size = ""
        if self.metadata:
            size = f"; the metadata file has {max(self.metadata) / 1024:.1f} KiB at most"
        return (
            f"{len(self.cpu_s):,} commits: {first:.1f} ms of a processor each in the first {WINDOW}, {last:.1f} in the "
            f"last (x {last / first:.2f}), {most:.1f} at most in any; {1000 * fmean(self.wall_s):.0f} ms by the "
            f"clock{size}"
        )


def commit(commits: int, table_format: str, directory: Path, progress: Callable[[str], None]) -> CommitSamples:
    """Commit files of one row each. Iceberg's catalog is an SQLite file in the directory."""
    settings = (("type", "sql"), ("uri", f"sqlite:///{directory}/catalog.db"))
    catalog_table = None
    if table_format == "iceberg":
        catalog_table = CatalogTable("headrace", ("bench",), "clicks", settings)
    table = table_at(table_format, f"{directory}/clicks", PIPELINE, catalog=catalog_table)
    store = store_at(table.location)
    table.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
    epoch = table.begin({_PARTITION: 0}, {"clicks": ["uuid-1"]})
    cpu_s = list[float]()
    wall_s = list[float]()
    metadata = list[int]()
    for number in range(commits):
        path = f"hour={number // 500}/{number}.parquet"
        bucket = (str(number // 500),)
        store.put(staged_name(path), b"")
        stats = {"numRecords": 1, "minValues": {"id": number}, "maxValues": {"id": number}, "nullCount": {"id": 0}}
        file = StagedFile(path, bucket, 1, 50, json.dumps(stats), _HOUR, _HOUR, {("clicks", 0): 1})
        account = {
            "topic": "clicks",
            "incarnation": 1,
            "partition": 0,
            "start": number,
            "end": number + 1,
            "read": 1,
            "rows": 1,
        }
        facts = {"offsets": 1, "rows": 1, "files": 1, "ranges": [account]}
        batch = Batch(str(number), epoch, [OffsetRange(_PARTITION, number, number + 1)], [file], facts=facts)
        cpu = time.process_time()
        wall = time.monotonic()
        table.append(batch, table.snapshot())
        cpu = time.process_time() - cpu
        wall = time.monotonic() - wall
        if catalog_table:
            metadata.append(Path(table.metadata_file()).stat().st_size)
        begun = time.process_time()
        begun_wall = time.monotonic()
        # The driver tidies the table after each commit, too.
        table.tidy()
        cpu_s.append(cpu + time.process_time() - begun)
        wall_s.append(wall + time.monotonic() - begun_wall)
        if (number + 1) % WINDOW == 0:
            progress(f"{number + 1} commits")
    return CommitSamples(cpu_s, wall_s, metadata)


def main(arguments: Sequence[str]) -> int:
    """Commit, and say what was seen. Returns 1 when a limit is passed."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.catalog_commits", description=__doc__)
    parser.add_argument("--commits", type=int, default=2000, help=f"at least {2 * WINDOW}")
    parser.add_argument("--format", choices=["iceberg", "delta"], default="iceberg")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.commits < 2 * WINDOW:
        parser.error(f"--commits {options.commits} is below {2 * WINDOW}, of which the first and the last are compared")
    with tempfile.TemporaryDirectory(prefix="headrace-commits-", ignore_cleanup_errors=True) as directory:
        samples = commit(options.commits, options.format, Path(directory), lambda line: print(line, flush=True))
    if options.json:
        options.json.write_text(json.dumps(asdict(samples)), encoding="utf-8")
    print(samples.sentence())
    for problem in samples.problems():
        print(problem)
    return 1 if samples.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
