"""From the configuration to a table. The one place that knows which formats there are."""

from datetime import timedelta
from functools import partial

from writer.config import Config
from writer.stores.base import S3Settings
from writer.stores.location import store_at
from writer.tables.append import PATIENCE
from writer.tables.delta import Delta
from writer.tables.parquet import LOG, Parquet
from writer.tables.table import CHECKPOINT_INTERVAL, PipelineTable
from writer.tables.together import Tables


def delta_table(
    location: str, pipeline: str, *, patience: timedelta = PATIENCE, checkpoint_interval: int = CHECKPOINT_INTERVAL,
    s3: S3Settings | None = None,
) -> PipelineTable:  # fmt: skip
    """Return the handle of a Delta table; it need not be there yet."""
    form = Delta(location, checkpoint_interval, s3)
    return PipelineTable(form, pipeline, patience=patience, checkpoint_interval=checkpoint_interval)


def parquet_table(
    location: str, pipeline: str, *, patience: timedelta = PATIENCE, checkpoint_interval: int = CHECKPOINT_INTERVAL,
    s3: S3Settings | None = None,
) -> PipelineTable:  # fmt: skip
    """Return the handle of a table of Parquet files; it need not be there yet."""
    form = Parquet(store_at(location, s3), store_at(f"{location}/{LOG}", s3))
    return PipelineTable(form, pipeline, patience=patience, checkpoint_interval=checkpoint_interval)


OPENED = {"delta": delta_table, "parquet": parquet_table}  # table.format → how it is opened


def main_table(name: str, config: Config) -> PipelineTable:
    """Return the table of a pipeline."""
    settings = config.pipelines[name].table
    return OPENED[settings.format](
        settings.location, name, checkpoint_interval=settings.checkpoint_interval, s3=config.s3.settings
    )


def side_table(name: str, config: Config, location: str) -> PipelineTable:
    """Return a table that rides along with a pipeline's, in the same format."""
    return OPENED[config.pipelines[name].table.format](location, name, s3=config.s3.settings)


def all_tables(name: str, config: Config) -> Tables:
    """Return the table of a pipeline with those that ride along."""
    return Tables(main_table(name, config), partial(side_table, name, config))
