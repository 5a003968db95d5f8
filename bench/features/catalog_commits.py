"""Commits one small file after the other to a table, and checks that neither time nor metadata grows.

By itself: python -m headrace.bench.features.catalog_commits [--commits 2000] [--format iceberg] [--minutes 15]
[--checkpoint-interval 50] [--s3 s3://bucket/folder --endpoint URL] [--json FILE]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa

from headrace.bench.contenders.contenders import PIPELINE
from headrace.bench.features.request_counter import RequestCounter
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.files import StagedFile, staged_name
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.storage.settings import S3Settings, StoreSettings
from headrace.writer.table.factory import table_at
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.table import CHECKPOINT_INTERVAL, PipelineTable

FORMATS = ("iceberg", "delta", "parquet")
# So many of the first commits are compared with as many of the last, or as many as lie between two checkpoints of the
# log.
WINDOW = 100
CPU_RATIO_MAX = 1.5
# The limit in bytes of the metadata file, which each reader loads and each commit writes anew.
METADATA_MAX = 64 * 2**10
_HOUR = datetime(2026, 11, 20, 12, tzinfo=UTC)
_PARTITION = TopicPartition("clicks", 1, 0)
_FILES_OF_A_BUCKET = 500
# The table's folder is looked through so many times.
_LOOKS = 10


@dataclass(frozen=True)
class FolderSize:
    """What lies in a table's folder after so many commits."""

    commits: int
    data_files: int
    # Entries and checkpoints of the log, manifests, pages of the ledger, with their bytes.
    metadata_files: int
    metadata_bytes: int


@dataclass(frozen=True)
class CommitSamples:
    """What each commit took, in seconds, and the bytes of the table's metadata file after it."""

    # Of commits with the tidying after each.
    cpu_s: Sequence[float]
    wall_s: Sequence[float]
    # The bytes of the metadata file after each commit. Tables of other formats than Iceberg have none.
    metadata: Sequence[int]
    # The tidying alone.
    tidy_cpu_s: Sequence[float] = ()
    folder: Sequence[FolderSize] = ()
    # By kind, of the first commits and of the last ones, each of a window. Nothing is known of a local table.
    requests: Sequence[Mapping[str, int]] = ()
    # Commits of the first and the last ones: a checkpoint of the log falls into each.
    window: int = WINDOW

    def cpu(self) -> tuple[float, float, float]:
        """Return the mean CPU seconds of the first commits, of the last ones, and of the dearest window."""
        size = min(self.window, len(self.cpu_s))
        starts = range(0, len(self.cpu_s) - size + 1, size)
        windows = [fmean(self.cpu_s[start : start + size]) for start in starts]
        return windows[0], fmean(self.cpu_s[-size:]), max(windows)

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

    def sentences(self) -> list[str]:
        """Say the figures."""
        first, last, most = (1000 * seconds for seconds in self.cpu())
        size = ""
        if self.metadata:
            size = f"; the metadata file has {max(self.metadata) / 1024:.1f} KiB at most"
        commits = (
            f"{len(self.cpu_s):,} commits: {first:.1f} ms of a processor each in the first {self.window}, {last:.1f} "
            f"in the last (x {last / first:.2f}), {most:.1f} at most in any; {1000 * fmean(self.wall_s):.0f} ms by the "
            f"clock{size}"
        )
        sentences = [commits]
        if self.tidy_cpu_s:
            early = 1000 * fmean(self.tidy_cpu_s[: self.window])
            late = 1000 * fmean(self.tidy_cpu_s[-self.window :])
            sentences.append(
                f"the tidying alone: {early:.2f} ms of each in the first {self.window}, {late:.2f} in the last"
            )
        sentences += [
            f"after {size.commits:,} commits the folder has {size.data_files:,} data files, and "
            f"{size.metadata_files:,} others of {size.metadata_bytes / 2**20:.1f} MiB"
            for size in self.folder[-1:]
        ]
        for about, requests in zip((f"first {self.window}", f"last {self.window}"), self.requests, strict=False):
            counts = ", ".join(f"{kind} {count / self.window:g}" for kind, count in sorted(requests.items()))
            sentences.append(
                f"requests of a commit, in the {about}: {sum(requests.values()) / self.window:g}: {counts}"
            )
        return sentences


class TableOfCommits:
    """A table that gets one file of one row in each commit."""

    def __init__(self, table: PipelineTable) -> None:
        self.table = table
        table.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
        self._epoch = table.begin({_PARTITION: 0}, {"clicks": ["uuid-1"]})

    def stage(self, number: int) -> Batch:
        """Put the file of a commit, and return what is to be committed."""
        hour = str(number // _FILES_OF_A_BUCKET)
        path = f"hour={hour}/{number}.parquet"
        self.table.store.put(staged_name(path) if self.table.hidden else path, b"\0")
        stats = {"numRecords": 1, "minValues": {"id": number}, "maxValues": {"id": number}, "nullCount": {"id": 0}}
        file = StagedFile(path, (hour,), 1, 50, json.dumps(stats), _HOUR, _HOUR, {("clicks", 0): 1})
        account = {
            "topic": "clicks",
            "incarnation": 1,
            "partition": 0,
            "start": number,
            "end": number + 1,
            "read": 1,
            "rows": 1,
        }
        facts: dict[str, Any] = {"offsets": 1, "rows": 1, "files": 1, "ranges": [account]}
        return Batch(str(number), self._epoch, [OffsetRange(_PARTITION, number, number + 1)], [file], facts=facts)


def commit(
    commits: int,
    table_format: str,
    directory: Path,
    progress: Callable[[str], None],
    *,
    checkpoint_interval: int = CHECKPOINT_INTERVAL,
    minutes: float | None = None,
    location: str | None = None,
    counter: RequestCounter | None = None,
) -> CommitSamples:
    """Commit files of one row each. Iceberg's catalog is an SQLite file in the directory.

    `checkpoint_interval`: commits between two checkpoints of the log. `minutes`: when to end before all commits are
    made. `location`: in S3, whose requests `counter` passes on; None: in the directory.
    """
    settings = (("type", "sql"), ("uri", f"sqlite:///{directory}/catalog.db"))
    catalog_table = None
    if table_format == "iceberg":
        catalog_table = CatalogTable("headrace", ("bench",), "clicks", settings)
    stores = StoreSettings(S3Settings(counter.url)) if counter else None
    table = table_at(
        table_format,
        location or f"{directory}/clicks",
        PIPELINE,
        checkpoint_interval=checkpoint_interval,
        catalog=catalog_table,
        stores=stores,
    )
    writer = TableOfCommits(table)
    samples = _Samples(max(WINDOW, checkpoint_interval))
    deadline = time.monotonic() + timedelta(minutes=minutes or 24 * 60).total_seconds()
    for number in range(commits):
        batch = writer.stage(number)
        if counter:
            counter.clear()
        samples.measure(table, batch)
        if catalog_table and not counter:
            samples.metadata.append(Path(table.metadata_file()).stat().st_size)
        if counter:
            samples.requests.append(counter.counts())
        is_last = number + 1 == commits or time.monotonic() > deadline
        if not counter and (is_last or (number + 1) % max(1, commits // _LOOKS) == 0):
            samples.folder.append(_folder_size(directory / "clicks", number + 1))
        if (number + 1) % WINDOW == 0:
            progress(f"{number + 1} commits, {1000 * fmean(samples.cpu_s[-WINDOW:]):.2f} CPU-ms each")
        if is_last:
            break
    return samples.result()


class _Samples:
    """What was measured so far."""

    def __init__(self, window: int) -> None:
        self._window = window
        self.cpu_s = list[float]()
        self.tidy_cpu_s = list[float]()
        self.wall_s = list[float]()
        self.metadata = list[int]()
        self.folder = list[FolderSize]()
        self.requests = list[Mapping[str, int]]()

    def measure(self, table: PipelineTable, batch: Batch) -> None:
        """Commit a batch, and tidy as the driver does after each commit."""
        wall = time.monotonic()
        cpu = time.process_time()
        table.append(batch, table.snapshot())
        tidy_cpu = time.process_time()
        table.tidy()
        end_cpu = time.process_time()
        self.cpu_s.append(end_cpu - cpu)
        self.tidy_cpu_s.append(end_cpu - tidy_cpu)
        self.wall_s.append(time.monotonic() - wall)

    def result(self) -> CommitSamples:
        """Return the samples, with the requests of the first and of the last commits."""
        requests = list[Mapping[str, int]]()
        if self.requests:
            requests = [_add_up(self.requests[: self._window]), _add_up(self.requests[-self._window :])]
        return CommitSamples(
            self.cpu_s, self.wall_s, self.metadata, self.tidy_cpu_s, self.folder, requests, self._window
        )


def _add_up(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)


def _folder_size(folder: Path, commits: int) -> FolderSize:
    """Look through a table's folder."""
    data_files = 0
    sizes = list[int]()
    for parent, _, names in os.walk(folder):
        data = [name for name in names if name.endswith(".parquet") and Path(parent).name.startswith("hour=")]
        data_files += len(data)
        sizes += [(Path(parent) / name).stat().st_size for name in set(names) - set(data)]
    return FolderSize(commits, data_files, len(sizes), sum(sizes))


def main(arguments: Sequence[str]) -> int:
    """Commit, and say what was seen. Returns 1 when a limit is passed."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.catalog_commits", description=__doc__)
    parser.add_argument("--commits", type=int, default=2000, help=f"at least {2 * WINDOW}")
    parser.add_argument("--format", choices=FORMATS, default="iceberg")
    parser.add_argument("--checkpoint-interval", type=int, default=CHECKPOINT_INTERVAL, help="as of the configuration")
    parser.add_argument("--minutes", type=float, help="end after so long with the commits that there are")
    parser.add_argument("--s3", metavar="LOCATION", help="an empty folder of a bucket; requests are counted by kind")
    parser.add_argument("--endpoint", metavar="URL", help="of the S3 that has the bucket, over plain HTTP")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    commits_min = 2 * max(WINDOW, options.checkpoint_interval)
    if options.commits < commits_min:
        parser.error(
            f"--commits {options.commits} is below {commits_min}, of which the first and the last are compared"
        )
    if bool(options.s3) != bool(options.endpoint):
        parser.error("--s3 and --endpoint belong together")
    counting = RequestCounter(options.endpoint) if options.endpoint else nullcontext(None)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-commits-", ignore_cleanup_errors=True) as directory,
        counting as counter,
    ):
        samples = commit(
            options.commits,
            options.format,
            Path(directory),
            lambda line: print(line, flush=True),
            checkpoint_interval=options.checkpoint_interval,
            minutes=options.minutes,
            location=options.s3,
            counter=counter,
        )
    if options.json:
        options.json.write_text(json.dumps(asdict(samples)), encoding="utf-8")
    for sentence in samples.sentences():
        print(sentence)
    for problem in samples.problems():
        print(problem)
    return 1 if samples.problems() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
