"""What a location and the settings of S3 become for each of those who use them."""

import inspect
import re
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.clients import java_artifacts
from headrace.writer.config.sections.connections import S3, Azure, Gcs
from headrace.writer.core.errors import ConfigError
from headrace.writer.driver.spark import s3a
from headrace.writer.storage.base import StoreError
from headrace.writer.storage.local import LocalStore
from headrace.writer.storage.locations import delta_options, for_spark, parse_location, store_at
from headrace.writer.storage.settings import AzureSettings, GcsSettings, S3Settings, StoreSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"),
        *("GOOGLE_BASE_URL", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    ):
        monkeypatch.delenv(name, raising=False)


def test_settings_of_a_file_win_over_the_environment() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://b", "AWS_ENDPOINT_URL_S3": "http://a", "AWS_DEFAULT_REGION": "eu-west-1"}
    assert S3Settings().with_environment({}) == S3Settings(path_style=False)
    assert S3Settings().with_environment(environment) == S3Settings("http://a", "eu-west-1", path_style=True)
    given = S3Settings("http://c", "us-west-2", path_style=False)
    assert given.with_environment(environment) == given


def test_the_section_of_the_file_is_completed_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    section = S3.model_validate({"endpoint": "https://minio:9000/", "retry_timeout": "5 s"})
    assert section.settings == S3Settings("https://minio:9000", "eu-west-3", True, timedelta(seconds=5))


@pytest.mark.parametrize(
    "endpoint", ["minio:9000", "http://", "http://key:secret@minio", "http://minio/path", "s3://x"]
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is no URL of a host; write it as http://minio:9000, without user and path"):
        S3.model_validate({"endpoint": endpoint})


@pytest.mark.parametrize(
    ("name", "endpoint"),
    [
        (name, endpoint)
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT")
        for endpoint in ("minio:9000", "http://key:secret@minio", "http://minio?sig=secret", "s3://x", "http://a b")
    ],
)
def test_an_endpoint_of_the_environment_that_is_none_is_refused_and_not_shown(name: str, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} of the environment is no URL of a host") as refusal:
        StoreSettings().with_environment({name: endpoint})
    assert "secret" not in str(refusal.value)


def test_settings_of_google_and_azure_are_completed_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "GOOGLE_BASE_URL": "http://google:1",
        "AZURE_STORAGE_ACCOUNT_NAME": "lake1",
        "AZURE_ENDPOINT": "http://azure:1/lake1",
    }
    assert StoreSettings().with_environment(environment) == StoreSettings(
        S3Settings(path_style=False), GcsSettings("http://google:1"), AzureSettings("lake1", "http://azure:1/lake1")
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    google = Gcs.model_validate({"endpoint": "http://storage:2/", "service_account_file": "/keys/a.json"})
    assert google.settings == GcsSettings("http://storage:2", "/keys/a.json")
    azure = Azure.model_validate({"account": "lake2", "retry_timeout": "5 s"})
    assert azure.settings == AzureSettings("lake2", "http://azure:1/lake1", timedelta(seconds=5))


@pytest.mark.parametrize("endpoint", ["azure:10000", "http://key:secret@azure", "https://a/b/c", "https://a/b?sig=c"])
def test_an_endpoint_of_an_account_has_neither_user_nor_query(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is no URL of an account; write it as https://account"):
        Azure.model_validate({"endpoint": endpoint})


def test_a_name_of_an_account_is_checked() -> None:
    with pytest.raises(ValueError, match="3 to 24 lower-case letters and digits"):
        Azure.model_validate({"account": "My-Lake"})


def test_credentials_in_a_location_are_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match=r"s3://\*\*\*@lake/clicks names no bucket") as refused:
        parse_location("s3://key:sesame@lake/clicks")
    assert "sesame" not in str(refused.value)


def test_delta_is_told_to_put_its_own_entries_only_where_none_is() -> None:
    assert delta_options("/lake/clicks") is None
    told = delta_options("s3://lake/clicks", StoreSettings(S3Settings("http://minio:9000", "eu-west-1")))
    assert told is not None
    assert told["aws_conditional_put"] == "etag"
    assert (told["AWS_ENDPOINT_URL"], told["AWS_ALLOW_HTTP"]) == ("http://minio:9000", "true")
    assert (told["AWS_REGION"], told["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"]) == ("eu-west-1", "false")
    aws = delta_options("s3://lake/clicks", StoreSettings(S3Settings(region="eu-west-1")))
    assert aws is not None
    assert not {"AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"} & aws.keys()
    assert not any("KEY" in name or "SECRET" in name for name in {*told, *aws})


def test_spark_is_told_where_and_how_but_no_credentials() -> None:
    assert for_spark("s3://lake/checkpoints/clicks") == "s3a://lake/checkpoints/clicks"
    assert for_spark("/lake/s3://x") == "/lake/s3://x"
    told = s3a(S3Settings("http://minio:9000", None, path_style=True))
    assert told["spark.hadoop.fs.s3a.endpoint"] == "http://minio:9000"
    assert told["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert "spark.hadoop.fs.s3a.endpoint.region" not in told
    assert not any("key" in name or "secret" in name for name in told)


def test_jars_of_our_own_must_hold_the_s3_file_system_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    (tmp_path / "kafka.jar").write_text("")
    assert [jar.name for jar in java_artifacts.spark_jars()] == ["kafka.jar"]
    with pytest.raises(java_artifacts.ArtifactError, match="holds no hadoop-aws jar, and the checkpoints lie on S3"):
        java_artifacts.spark_jars(s3=True)
    (tmp_path / "hadoop-aws-3.4.1.jar").write_text("")
    assert len(java_artifacts.spark_jars(s3=True)) == 2


def test_entropy_stands_in_front_of_a_path_and_spreads_files(tmp_path: Path) -> None:
    to = Destination(LocalStore(str(tmp_path)), ("hour",), "000001", 1, entropy_bits=3)
    for _ in range(200):
        path, sink = to.open(("2026-11-20T05",))
        sink.close()
        assert re.fullmatch(r"[01]{3}/hour=2026-11-20T05/000001-[0-9a-f]{32}\.parquet", path)
        assert (tmp_path / path).exists()
    assert len({path.split("/")[0] for path in to.opened}) == 8
    to.remove()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_store_says_what_it_could_not_do_where_and_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as failed:
        store_at(f"{tmp_path}/file").put("a", b"")
    found = failed.value
    assert (found.operation, found.path) == ("write", f"{tmp_path}/file/a")
    assert str(found) == f"cannot write {tmp_path}/file/a: {found.answer}. {found.fix}"


@pytest.mark.parametrize("name", ["setup.sh", "docker/Dockerfile"])
def test_scripts_fetch_java_parts_by_the_names_of_the_parameters(name):
    calls = re.findall(r"java_artifacts\.fetch\(\w+, (\w+)=", (ROOT / name).read_text())
    assert calls
    assert set(calls) <= inspect.signature(java_artifacts.fetch).parameters.keys()
