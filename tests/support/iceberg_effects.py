"""Effects of commits to an Iceberg table, at each of which a process may die."""

from collections.abc import Iterator

import pytest
from pyiceberg.catalog import Catalog

from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.table import PipelineTable
from tests.support.effect_failures import die_after
from tests.support.table_formats import in_catalog


def _client_key(table: PipelineTable) -> tuple[str, tuple[tuple[str, str], ...]]:
    catalog_table = in_catalog(table.location)
    return catalog_table.catalog, tuple(sorted(catalog_table.settings))


def die_after_effects(
    monkeypatch: pytest.MonkeyPatch, table: PipelineTable, after: int, client: Catalog | None = None
) -> Iterator[None]:
    """Let the process die after so many effects on the store of the table's log and on its catalog."""
    client = client or catalog_client.open_catalog(*_client_key(table))
    of_log = ("put", "put_if_absent", "delete")
    of_catalog = ("create_table", "commit_table")
    return die_after(monkeypatch, after, {table._log._store: of_log, client: of_catalog})
