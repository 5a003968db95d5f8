"""Creates the tables of a pipeline from the configuration. Only this module knows the formats."""

from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import Table
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.delta import LOG as DELTA_LOG, Delta
from headrace.writer.table.log.appender import RETRY_TIMEOUT
from headrace.writer.table.log.foreign_writes import reading
from headrace.writer.table.log.log import Log
from headrace.writer.table.log.snapshot import TargetRecord
from headrace.writer.table.log.table_format import Format
from headrace.writer.table.parquet import LOG, Parquet
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.table import CHECKPOINT_INTERVAL, PipelineTable

# Functions import Iceberg's modules when they need them: pyiceberg takes a second.
if TYPE_CHECKING:
    from headrace.writer.table.iceberg.adoption import ForeignTable
    from headrace.writer.table.iceberg.conversion import Conversion
    from headrace.writer.table.iceberg.table_names import TableNames


def table_at(
    format_: str,
    location: str,
    pipeline: str,
    *,
    retry_timeout: timedelta = RETRY_TIMEOUT,
    checkpoint_interval: int = CHECKPOINT_INTERVAL,
    stores: StoreSettings | None = None,
    catalog: CatalogTable | None = None,
) -> PipelineTable:
    """Return the handle of a table; it need not be there yet. `catalog`: an Iceberg table's name in its catalog."""
    if format_ == "delta":
        form: Format = Delta(location, checkpoint_interval, stores)
    elif format_ == "iceberg":
        from headrace.writer.table.iceberg.iceberg import Iceberg

        assert catalog is not None, "the configuration has a catalog where a table is Iceberg's"
        form = Iceberg(location, catalog, stores)
    else:
        form = Parquet(store_at(location, stores), store_at(f"{location}/{LOG}", stores))
    return PipelineTable(form, pipeline, retry_timeout=retry_timeout, checkpoint_interval=checkpoint_interval)


def main_table(name: str, config: Config) -> PipelineTable:
    """Return the table of a pipeline."""
    settings = config.pipelines[name].table
    return table_at(
        settings.format,
        settings.location,
        name,
        checkpoint_interval=settings.checkpoint_interval,
        stores=config.stores,
        catalog=config.catalog_place(name, settings.location),
    )


def existing_table(name: str, config: Config) -> PipelineTable:
    """Return the table of a pipeline. Raises HeadraceError when there is none."""
    table = main_table(name, config)
    table.check_exists()
    return table


def side_table(name: str, config: Config, location: str) -> PipelineTable:
    """Return a table beside a pipeline's log, such as its dead letters, or one that its route names."""
    settings = config.pipelines[name].table_at(location)
    catalog_table = config.in_catalog(settings, location)
    return table_at(settings.format, location, name, stores=config.stores, catalog=catalog_table)


def all_tables(name: str, config: Config) -> Tables:
    """Return the table of a pipeline with those beside its log."""
    main = main_table(name, config)

    def open_side(location: str, record: TargetRecord | None) -> PipelineTable:
        target = main.snapshot().targets_by_location.get(location, record) if main.exists() else record
        if target is None:
            return side_table(name, config, location)
        changes = {"location": target.location, "format": target.format, "name": target.table or None}
        settings = config.pipelines[name].table.model_copy(update=changes)
        catalog_table = config.in_catalog(settings, location)
        return table_at(target.format, location, name, stores=config.stores, catalog=catalog_table)

    return Tables(main, open_side)


def conversion(name: str, config: Config, location: str, table: Table | None = None) -> "Conversion | None":
    """Return how a table of the pipeline becomes Iceberg's, as its settings say; None: there is no table.

    `table`: settings of a target of the route; None: as the configuration has them for the location.
    """
    from headrace.writer.table.iceberg.conversion import Conversion
    from headrace.writer.table.iceberg.iceberg import Iceberg

    stores = config.stores
    catalog_table = config.in_catalog(table, location) if table else config.catalog_place(name, location)
    assert catalog_table is not None, "the configuration has a catalog where a table is Iceberg's"
    with reading(location):
        old_format = "delta" if any(store_at(f"{location}/{DELTA_LOG}", stores).list()) else "parquet"
        old = table_at(old_format, location, name, stores=stores)
        if not old.exists():
            return None
        return Conversion(old, Log(store_at(old.log_location, stores)), Iceberg(location, catalog_table, stores))


def table_names(name: str, config: Config) -> "TableNames | None":
    """Return the names by which a catalog knows a pipeline's table and its shadows; None of another format."""
    location = config.pipelines[name].table.location
    catalog_table = config.catalog_place(name, location)
    if catalog_table is None:
        return None
    from headrace.writer.table.iceberg.table_names import TableNames

    return TableNames(catalog_table, location, config.stores)


def foreign_table(name: str, config: Config) -> "ForeignTable":
    """Return the Iceberg table that a pipeline is to adopt."""
    from headrace.writer.table.iceberg.adoption import ForeignTable
    from headrace.writer.table.iceberg.iceberg import Iceberg

    location = config.pipelines[name].table.location
    catalog_table = config.catalog_place(name, location)
    assert catalog_table is not None, "the configuration has a catalog where a table is Iceberg's"
    return ForeignTable(Iceberg(location, catalog_table, config.stores), name)
