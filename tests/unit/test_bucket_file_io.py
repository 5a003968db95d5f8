"""How pyiceberg reaches files in Google's and Azure's stores, and how clients name them."""

from datetime import timedelta

import pytest

from headrace.writer.storage.clouds.data_files import DataFiles
from headrace.writer.storage.settings import AzureSettings, GcsSettings, StoreSettings
from headrace.writer.table.iceberg.catalog.bucket_file_io import BucketFileIO, bucket_properties
from headrace.writer.table.iceberg.catalog.catalog_client import file_settings
from headrace.writer.table.iceberg.metadata.data_files import canonical_path

STORES = StoreSettings(
    gcs=GcsSettings("http://storage:4443", retry_timeout=timedelta(seconds=5)),
    azure=AzureSettings("shop1", "http://azurite:10000/shop1"),
)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("file:///lake/a", "/lake/a"),
        ("/lake/a:b", "/lake/a:b"),
        ("s3a://lake/a", "s3://lake/a"),
        ("gs://lake/a?b", "gs://lake/a?b"),
        ("wasbs://lake@shop1.blob.core.windows.net/a", "abfss://lake@shop1.dfs.core.windows.net/a"),
        ("abfs://lake@shop1.dfs.core.windows.net/a", "abfss://lake@shop1.dfs.core.windows.net/a"),
        ("abfss://lake@shop1.dfs.core.windows.net/a", "abfss://lake@shop1.dfs.core.windows.net/a"),
    ],
)
def test_a_path_has_one_form_however_a_client_wrote_it(written: str, canonical: str) -> None:
    assert canonical_path(written) == canonical


def test_files_of_a_bucket_are_those_of_its_store() -> None:
    files = BucketFileIO(bucket_properties(STORES))
    azure = files.new_input("wasbs://lake@shop1.blob.core.windows.net/clicks/a b.parquet")
    assert azure._path == "lake/clicks/a b.parquet"
    assert isinstance(azure._filesystem, DataFiles)
    google = files.new_input("gs://lake/clicks/a.parquet")
    assert google._path == "lake/clicks/a.parquet"
    assert isinstance(google._filesystem, DataFiles)
    assert not isinstance(files.new_input("/lake/a.parquet")._filesystem, DataFiles)


def test_settings_of_a_catalog_hold_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "canary")
    settings = file_settings("gs://lake/clicks", STORES)
    assert settings["py-io-impl"].endswith("bucket_file_io.BucketFileIO")
    assert "http://storage:4443" in settings["headrace.stores"]
    assert '"retry_timeout": 5.0' in settings["headrace.stores"]
    assert "canary" not in str(settings)
    assert file_settings("/lake/clicks", STORES) == {}
