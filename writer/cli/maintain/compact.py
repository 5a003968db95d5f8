"""`headrace compact`: what it did, or would do."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console

from headrace import bucketers
from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import BucketKey
from headrace.writer.core.text import plural
from headrace.writer.core.units import show_size
from headrace.writer.maintenance.compaction.compactor import CompactionResult
from headrace.writer.maintenance.compaction.request import CompactionRun
from headrace.writer.output.cli_options import OnlyBuckets
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import TableOrRaw
from headrace.writer.output.report import SCREEN_ONLY, Report, Screen
from headrace.writer.output.tables import Column, TextTable, numbers, sentence
from headrace.writer.sealing.bucket_selection import parse_buckets
from headrace.writer.sealing.manifest import bucket_path

_BUCKET_COLUMN = Column("bucket", width_max=48)
_NOTHING_TO_DO = "the files are as they should be"


@dataclass(frozen=True)
class FilesToRewrite:
    """The files of a bucket that are worth a rewrite. `files`: their paths; `taken`: rows that dedupe would take."""

    bucket: BucketKey
    files: Sequence[str]
    bytes: int
    taken: int


@dataclass(frozen=True)
class CompactionPreview(Report):
    """What a compaction would look at."""

    pipeline: str
    buckets: Sequence[FilesToRewrite]
    columns: Sequence[str] = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether a file is worth a rewrite."""
        return bool(self.buckets)

    def render(self, out: Console) -> None:
        """Draw the files of each bucket."""
        scope = _NOTHING_TO_DO
        if self.buckets:
            files = plural(sum(len(bucket.files) for bucket in self.buckets), "file")
            scope = f"would look at {files} of {plural(len(self.buckets), 'bucket')}"
            taken = sum(bucket.taken for bucket in self.buckets)
            if taken:
                scope += f"; dedupe would take {plural(taken, 'row')}"
        sentence(out, f"{self.pipeline}: {scope}", "bold")
        table = TextTable(out, [_BUCKET_COLUMN, *numbers("files", "size", "taken")])
        for bucket in self.buckets:
            name = bucket_path(self.columns, bucket.bucket)
            table.add([[name, f"{len(bucket.files):,}", show_size(bucket.bytes), f"{bucket.taken:,}"]])


@dataclass(frozen=True)
class CompactionReport(Report):
    """What became of each rewrite. Its page is a sentence: the buckets were shown as each was done."""

    pipeline: str
    buckets: Sequence[CompactionResult]

    def render(self, out: Console) -> None:
        """Draw the sums."""
        sentence(out, f"{self.pipeline}: {self._describe_sums()}", "bold")

    def _describe_sums(self) -> str:
        if not self.buckets:
            return _NOTHING_TO_DO
        committed = [result for result in self.buckets if result.version is not None]
        text = f"{plural(sum(result.removed - result.files for result in committed), 'file')} fewer"
        duplicates = sum(result.taken for result in committed)
        if duplicates:
            text += f", {plural(duplicates, 'row')} taken by dedupe"
        return text


@command(exits={0: "done or shown", 1: "a file is gone or the storage does not answer", 2: "configuration"})
def compact(
    table: TableOrRaw, bucket: OnlyBuckets = None, *, write: bool, screen: Screen
) -> CompactionPreview | CompactionReport:
    """Merge the small files of buckets, in this process. Closed buckets are also sorted and deduped, if configured.

    May be killed, repeated, and run beside the writer: of two rewrites of one file one stands. Readers of a Delta table
    see the same rows at every moment; those of a Parquet table may miss some while files are swapped.
    """
    run = open_compaction(table.pipeline, table.config, bucket)
    if not write:
        return _preview(table.pipeline, run)
    return _carry_out(table.pipeline, run, screen)


def open_compaction(name: str, config: Config, bucket_names: Sequence[str] | None) -> CompactionRun:
    """Prepare the compaction of a pipeline's table. `bucket_names`: as `parse_buckets` reads; None: all."""
    bucketer = bucketers.build(config.pipelines[name].bucket)
    return CompactionRun(name, config, [parse_buckets(text, bucketer) for text in bucket_names or ()])


def _preview(pipeline: str, run: CompactionRun) -> CompactionPreview:
    buckets = [
        FilesToRewrite(
            bucket, [file.path for file in files], sum(file.bytes for file in files), run.count_taken(bucket)
        )
        for bucket, files in run.list_files().items()
    ]
    return CompactionPreview(pipeline, buckets, run.columns)


def _carry_out(pipeline: str, run: CompactionRun, screen: Screen) -> CompactionReport:
    """Rewrite what is worth it, in this process, and show each bucket as soon as it is done."""
    results: list[CompactionResult] = []
    titles = numbers("files", "then", "size", "then", "rows", "taken", "version")
    table = TextTable(screen.out, [_BUCKET_COLUMN, *titles])
    for result in run.carry_out():
        results.append(result)
        if not screen.as_json:
            table.add([_cells(result, run.columns)])
    return CompactionReport(pipeline, results)


def _cells(result: CompactionResult, columns: Sequence[str]) -> list[str]:
    return [
        bucket_path(columns, result.bucket),
        f"{result.removed:,}",
        f"{result.files:,}",
        show_size(result.bytes_before),
        show_size(result.bytes),
        f"{result.rows - result.taken:,}",
        f"{result.taken:,}",
        "overtaken" if result.version is None else str(result.version),
    ]
