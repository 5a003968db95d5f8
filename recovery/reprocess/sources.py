"""Opens the source of a reprocess: Kafka, the pipeline's raw tables, an archive of records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from recovery.backfill import archive_source, source_factory
from recovery.backfill.chunk_commit import BackfilledTable
from recovery.backfill.raw_source import RawTable
from recovery.backfill.source import Source
from writer.core.errors import ConfigError
from writer.table.factory import side_table

Origin = Literal["kafka", "raw", "archive"]


@dataclass(frozen=True)
class SourceChoice:
    """Where records are to come from. Raises ConfigError for options that do not go together."""

    origin: Origin
    archives: Sequence[str] = ()
    columns: str | None = None  # of an archive, by what they hold

    def __post_init__(self) -> None:
        if (self.origin == "archive") != bool(self.archives):
            raise ConfigError("--from archive needs --archive LOCATION, and --archive needs --from archive")
        if self.columns and not self.archives:
            raise ConfigError("--columns speaks of an archive; say which with --from archive --archive LOCATION")

    def opened(self, filling: BackfilledTable) -> list[Source]:
        """Open it for a pipeline. Raises ConfigError where there is none, or rows made of it would lack something."""
        match self.origin:
            case "kafka":
                return [source_factory.kafka(filling)]
            case "archive":
                return [archive_source.of_records(filling, self.archives, self.columns)]
        found = [side_table(filling.name, filling.config, place) for place in filling.table.snapshot().raw_places]
        tables: list[Source] = [RawTable(table, own=True) for table in reversed(found) if table.exists()]
        if not tables:
            raise ConfigError(
                f"--from raw: pipeline {filling.name!r} has no raw table. Take --from kafka, as far as Kafka holds the "
                "records, or --from archive; set table.raw to keep records from now on"
            )
        return tables
