"""Counts what a commit sends to an object store, for each format, and reckons it for a million events.

By itself: python -m headrace.bench.features.store_requests --location gs://bucket/folder --endpoint URL [--commits 60]
[--events-per-second 1000] [--row-bytes 67.4] [--formats delta,parquet,iceberg] [--prices FILE] [--json FILE]

The location is one of s3://, gs:// or abfss:// (az:// for tables that are not Iceberg's), and the endpoint is the
store's, over plain HTTP; an Azure's ends with the account. Credentials are found where a pipeline finds them.

A commit is the look at the table, the entry in its log, and the tidying after it. Its data file is a true upload of as
many bytes as the events of a commit have. What the driver asks between commits is not in it.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from headrace.bench.contenders.contenders import PIPELINE
from headrace.bench.features.catalog_commits import FORMATS, TableOfCommits
from headrace.bench.features.request_counter import RequestCounter
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.preflight.capacity.prices import Prices, read_prices, request_dollars
from headrace.writer.storage.settings import AzureSettings, GcsSettings, S3Settings, StoreSettings
from headrace.writer.table.factory import table_at
from headrace.writer.table.table import CHECKPOINT_INTERVAL, PipelineTable

DELAYS = (timedelta(minutes=10), timedelta(minutes=1))
# Of the bench's data set 200B, staged as Parquet.
ROW_BYTES = 67.4
EVENTS_PER_SECOND = 1_000
_MILLION = 10**6
_CHUNK = 2**20
_TB = 10**12
_READS = ("GET", "HEAD")
# Stores do not charge for them.
_FREE = ("DELETE",)


@dataclass(frozen=True)
class Requests:
    """Requests by kind, and the bytes of their bodies."""

    counts: Mapping[str, float]
    sent: float = 0.0
    received: float = 0.0

    def plus(self, other: "Requests") -> "Requests":
        """Add others."""
        counts = Counter[str]()
        for each in (self.counts, other.counts):
            for kind, count in each.items():
                # `update` of a Counter takes whole numbers only.
                counts[kind] += count  # type: ignore[assignment]
        return Requests(dict(counts), self.sent + other.sent, self.received + other.received)

    def dollars(self, prices: Prices) -> float:
        """Return what they cost."""
        reads = sum(self.counts.get(kind, 0) for kind in _READS)
        free = sum(self.counts.get(kind, 0) for kind in _FREE)
        return request_dollars(sum(self.counts.values()) - reads - free, reads, prices)

    def times(self, factor: float) -> "Requests":
        """Multiply them."""
        counts = {kind: count * factor for kind, count in self.counts.items()}
        return Requests(counts, self.sent * factor, self.received * factor)


@dataclass(frozen=True)
class CommitRequests:
    """What one commit of a format sends: to the log with the tidying, and for the data file, by the delay."""

    table_format: str
    of_log: Requests
    of_data: Mapping[float, Requests]

    def per_commit(self, delay: timedelta) -> Requests:
        """Return what one commit sends that has the events of a delay."""
        return self.of_log.plus(self.of_data[delay.total_seconds()])

    def per_million(self, delay: timedelta, events_per_second: float) -> Requests:
        """Return what a million events send that are committed with a delay."""
        return self.per_commit(delay).times(_MILLION / (events_per_second * delay.total_seconds()))


def count_requests(
    table_format: str,
    location: str,
    counter: RequestCounter,
    commits: int,
    file_bytes: Mapping[float, int],
    progress: Callable[[str], None],
) -> CommitRequests:
    """Commit to an empty folder of a bucket. Returns the mean of the last commits, as many as share one checkpoint.

    `file_bytes`: of the data file of a commit, by the seconds of its delay.
    """
    stores = _settings_at(location, counter.url)
    with tempfile.TemporaryDirectory(prefix="headrace-requests-", ignore_cleanup_errors=True) as directory:
        catalog = None
        if table_format == "iceberg":
            settings = (("type", "sql"), ("uri", f"sqlite:///{directory}/catalog.db"))
            catalog = CatalogTable("headrace", ("bench",), "clicks", settings)
        table = table_at(table_format, location, PIPELINE, catalog=catalog, stores=stores)
        writer = TableOfCommits(table)
        samples = list[Requests]()
        for number in range(commits):
            batch = writer.stage(number)
            counter.clear()
            table.append(batch, table.snapshot())
            table.tidy()
            samples.append(_taken(counter))
        measured = samples[-CHECKPOINT_INTERVAL:]
        total = Requests({})
        for sample in measured:
            total = total.plus(sample)
        progress(f"{table_format}: {len(measured)} of {commits} commits")
        of_data = {delay: _upload(table, counter, size) for delay, size in file_bytes.items()}
        return CommitRequests(table_format, total.times(1 / len(measured)), of_data)


def _settings_at(location: str, url: str) -> StoreSettings:
    """Return the settings by which a location is reached at a URL."""
    match location.partition("://")[0]:
        case "gs":
            return StoreSettings(gcs=GcsSettings(url))
        case "az" | "abfss":
            account = urlsplit(url).path.strip("/")
            return StoreSettings(azure=AzureSettings(account or None, url))
    return StoreSettings(S3Settings(url))


def _upload(table: PipelineTable, counter: RequestCounter, size: int) -> Requests:
    """Write a file of so many bytes as a task does."""
    filesystem, root = table.store.files()
    counter.clear()
    with filesystem.open_output_stream(f"{root}/upload-{size}") as stream:
        for start in range(0, size, _CHUNK):
            stream.write(bytes(min(_CHUNK, size - start)))
    return _taken(counter)


def _taken(counter: RequestCounter) -> Requests:
    sent, received = counter.body_bytes()
    return Requests(counter.counts(), sent, received)


def table_lines(
    seen: Sequence[CommitRequests], events_per_second: float, row_bytes: float = ROW_BYTES, prices: Prices | None = None
) -> list[str]:
    """Return a table in Markdown: requests by kind and megabytes, for a million events, by format and delay.

    With prices also dollars, for a TB of rows that is written. `row_bytes`: of a row in Parquet.
    """
    kinds = sorted({kind for each in seen for found in (each.of_log, *each.of_data.values()) for kind in found.counts})
    columns = ["format", "`commit.max_delay`", "commits", "all", *kinds, "MB sent", "MB received"]
    if prices is not None:
        columns.append("dollars a TB")
    aligned = ["---", "---", *("---:" for _ in columns[2:])]
    lines = [f"| {' | '.join(columns)} |", f"| {' | '.join(aligned)} |"]
    for each in seen:
        for delay in DELAYS:
            found = each.per_million(delay, events_per_second)
            minutes = delay.total_seconds() / 60
            commits = _MILLION / (events_per_second * delay.total_seconds())
            cells = [f"{found.counts.get(kind, 0):.1f}" if kind in found.counts else "" for kind in kinds]
            numbers = [f"{commits:.1f}", f"{sum(found.counts.values()):.0f}", *cells]
            cells = [*numbers, f"{found.sent / 1e6:.1f}", f"{found.received / 1e6:.1f}"]
            if prices is not None:
                cells.append(f"{found.dollars(prices) * _TB / (_MILLION * row_bytes):.2f}")
            lines.append(f"| {each.table_format} | {minutes:g} min | {' | '.join(cells)} |")
    return lines


def commit_lines(seen: Sequence[CommitRequests]) -> list[str]:
    """Say what one commit sends to the log and the metadata, by kind, and what its data file adds."""
    return [_commit_line(each) for each in seen]


def _commit_line(commit: CommitRequests) -> str:
    of_log = commit.of_log
    kinds = ", ".join(f"{kind} {count:.2f}" for kind, count in sorted(of_log.counts.items()))
    kilobytes = f"{of_log.sent / 1e3:.1f} kB sent, {of_log.received / 1e3:.1f} kB received"
    files = ", ".join(f"{sum(data.counts.values()):g} ({data.sent / 1e6:.1f} MB)" for data in commit.of_data.values())
    count = sum(of_log.counts.values())
    return f"{commit.table_format}: {count:.1f} requests a commit: {kinds}; {kilobytes}; and for its data file {files}"


def main(arguments: Sequence[str]) -> int:
    """Count, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.store_requests", description=__doc__)
    parser.add_argument("--location", required=True, help="an empty folder of a bucket")
    parser.add_argument("--endpoint", metavar="URL", required=True, help="of the store, over plain HTTP")
    parser.add_argument("--commits", type=int, default=CHECKPOINT_INTERVAL + 10, help="of each format")
    parser.add_argument("--events-per-second", type=float, default=EVENTS_PER_SECOND)
    parser.add_argument("--row-bytes", type=float, default=ROW_BYTES, help="of a row in Parquet")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--prices", type=Path, metavar="FILE", help="also dollars, by these prices")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.commits < CHECKPOINT_INTERVAL:
        parser.error(f"--commits {options.commits} is below {CHECKPOINT_INTERVAL}, which share a checkpoint of the log")
    formats = options.formats.split(",")
    if unknown := sorted(set(formats) - set(FORMATS)):
        parser.error(f"--formats {', '.join(unknown)}: known are {', '.join(FORMATS)}")
    prices = read_prices(options.prices) if options.prices else None
    file_bytes = {
        delay.total_seconds(): round(options.events_per_second * delay.total_seconds() * options.row_bytes)
        for delay in DELAYS
    }
    with RequestCounter(options.endpoint) as counter:
        seen = [
            count_requests(
                name,
                f"{options.location}/{name}",
                counter,
                options.commits,
                file_bytes,
                lambda line: print(line, flush=True),
            )
            for name in formats
        ]
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in seen]), encoding="utf-8")
    table = table_lines(seen, options.events_per_second, options.row_bytes, prices)
    for line in [*commit_lines(seen), "", *table]:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
