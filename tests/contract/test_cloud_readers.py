"""Tables in stores of Google and Azure, as readers in Python find them, with credentials and names of their own."""

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from tests.servers.cloud_stores import AzureStore, GcsStore
from tests.support.cloud_lake import (
    BY_BUCKET,
    SUMS,
    CloudLake,
    expected_by_bucket,
    expected_sums,
    fill_cloud_lake,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["gs", "az"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudLake]:
    server: GcsStore | AzureStore = request.getfixturevalue({"gs": "gcs", "az": "azure"}[request.param])
    with pytest.MonkeyPatch.context() as patch:
        for variable, text in server.environment.items():
            patch.setenv(variable, text)
        yield fill_cloud_lake(server, tmp_path_factory.mktemp(request.param))


def check_answers(rows: Any) -> None:
    """Ask DuckDB about rows that another client reads."""
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        assert connection.execute(SUMS.format("rows")).fetchall() == expected_sums()
        assert connection.execute(BY_BUCKET.format("rows")).fetchall() == expected_by_bucket()


def test_delta_rs_reads_a_delta_table_for_duckdb(lake: CloudLake) -> None:
    table = DeltaTable(lake.location("delta"), storage_options=lake.server.delta_options)
    check_answers(pa.table(table.to_pyarrow_dataset().to_table()))


def test_arrow_reads_the_folders_of_a_parquet_table(lake: CloudLake) -> None:
    bucket_path = lake.location("parquet").partition("://")[2]
    columns = lake.drivers["parquet"].table.snapshot().columns()
    folders = ds.partitioning(pa.schema([columns.field("hour"), columns.field("note_bucket")]), flavor="hive")
    files = ds.dataset(bucket_path, columns, filesystem=lake.server.arrow(), format="parquet", partitioning=folders)
    check_answers(files.to_table())


@pytest.mark.parametrize("lake", ["gs"], indirect=True)
def test_pyiceberg_reads_a_table_at_google_with_arrows_file_system(lake: CloudLake) -> None:
    check_answers(lake.iceberg_table(lake.server.iceberg_options).scan().to_arrow())


@pytest.mark.parametrize("lake", ["az"], indirect=True)
def test_pyiceberg_reads_a_table_in_azure_as_the_writer_does_and_not_with_arrows_file_system(lake: CloudLake) -> None:
    # It takes `container@account.…` for the container (apache/iceberg-python 2698).
    with pytest.raises(FileNotFoundError, match="@headracetest"):
        lake.iceberg_table(lake.server.iceberg_options)
    check_answers(lake.iceberg_table(lake.own_properties()).scan().to_arrow())
