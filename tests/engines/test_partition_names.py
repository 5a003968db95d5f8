"""DuckDB with its own reader of Avro finds the rows of tables whose bucket columns have odd names."""

from pathlib import Path

import pytest

from tests.servers import duckdb_extensions
from tests.support.partition_names import NAMES, VALUES, write_table
from tests.support.tables import iceberg_table_of

pytestmark = [pytest.mark.slow, pytest.mark.engines]


def test_duckdb_reads_an_iceberg_table_whatever_its_bucket_column_is_called(tmp_path: Path) -> None:
    for number, column in enumerate(NAMES):
        location = str(tmp_path / f"lake{number}")
        write_table(location, "iceberg", column)
        metadata = iceberg_table_of(location).metadata_location
        rows = duckdb_extensions.ask([f"SELECT * FROM iceberg_scan('{metadata}')"])
        assert sorted((value for _, value in rows), key=str) == sorted(VALUES, key=str), column
