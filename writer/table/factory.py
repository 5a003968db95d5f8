"""Creates a table from the configuration. Only this module knows the formats."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from functools import cache, partial
from typing import Literal

from writer.config.pipelines import Config
from writer.core.files import StagedFile
from writer.storage.base import S3Settings
from writer.storage.locations import store_at
from writer.table.delta import Delta
from writer.table.log.appender import RETRY_TIMEOUT
from writer.table.log.table_format import Format
from writer.table.parquet import LOG, Parquet
from writer.table.table import CHECKPOINT_INTERVAL, PipelineTable


class Tables:
    """All tables of one pipeline, each opened once, so that it follows its log."""

    def __init__(self, main: PipelineTable, opened: Callable[[str], PipelineTable]) -> None:
        """`opened` opens the side table at a location."""
        self.main, self.side = main, cache(opened)
        self.settled = -1  # version up to which side files are known to be applied

    def apply_side_files(self, despite: Collection[int] = ()) -> None:
        """End what commits began: let readers see their files, and apply to the side tables what newer ones list.

        Safe to run again, at any time. Raises ForeignChange when another client did what the ledger does not survive,
        but at the versions `despite` which the caller is about to answer it; CommitFailed.
        """
        snapshot = self.main.snapshot()
        self.main.publish(snapshot.state.place)
        since = max(self.settled, snapshot.settled)
        settled = max(since, snapshot.version)
        for committed in self.main.commits_since(since, despite):
            settled = max(settled, committed.version)
            for location in {**committed.side_files, **committed.withdrawn}:
                files, withdrawn = committed.side_files.get(location, ()), committed.withdrawn.get(location, {})
                why = "rewind" if committed.facts.get("kind") == "rewind" else ""
                self.side(location).apply_side(committed.version, files, withdrawn, why)
        self.settled = settled

    def discard(self, files: Iterable[StagedFile], side_files: Mapping[str, Iterable[StagedFile]]) -> None:
        """Remove staged files that no commit will name; what stays is an orphan. Raises OSError."""
        self.main.discard(files)
        for location, found in side_files.items():
            self.side(location).discard(found)

    def tidy(self, sides: Iterable[str]) -> None:
        """Tidy the logs of the main table and of these side tables. Raises CommitFailed."""
        for table in (self.main, *map(self.side, sides)):
            table.tidy()


def table_at(
    format_: Literal["delta", "parquet"], location: str, pipeline: str, *, retry_timeout: timedelta = RETRY_TIMEOUT,
    checkpoint_interval: int = CHECKPOINT_INTERVAL, s3: S3Settings | None = None,
) -> PipelineTable:  # fmt: skip
    """Return the handle of a table; it need not be there yet."""
    if format_ == "delta":
        form: Format = Delta(location, checkpoint_interval, s3)
    else:
        form = Parquet(store_at(location, s3), store_at(f"{location}/{LOG}", s3))
    return PipelineTable(form, pipeline, retry_timeout=retry_timeout, checkpoint_interval=checkpoint_interval)


def main_table(name: str, config: Config) -> PipelineTable:
    """Return the table of a pipeline."""
    settings = config.pipelines[name].table
    interval, s3 = settings.checkpoint_interval, config.s3.settings
    return table_at(settings.format, settings.location, name, checkpoint_interval=interval, s3=s3)


def existing_table(name: str, config: Config) -> PipelineTable:
    """Return the table of a pipeline. Raises HeadraceError when there is none."""
    table = main_table(name, config)
    table.check_exists()
    return table


def side_table(name: str, config: Config, location: str) -> PipelineTable:
    """Return a table that rides along with a pipeline's, in the same format."""
    return table_at(config.pipelines[name].table.format, location, name, s3=config.s3.settings)


def all_tables(name: str, config: Config) -> Tables:
    """Return the table of a pipeline with those that ride along."""
    return Tables(main_table(name, config), partial(side_table, name, config))
