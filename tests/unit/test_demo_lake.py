"""Where the demo may put its tables, and what it refuses before anything starts."""

from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError
from headrace.writer.demo import remove_lake
from headrace.writer.demo.devstack.lake import MARKER, Lake, parse_lake
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import Workspace
from headrace.writer.demo.interactive import query_command, removal_command
from headrace.writer.demo.mixed_topic import MixedTopic
from headrace.writer.demo.table_reader import LakeReader
from headrace.writer.demo.value_formats import JSON
from headrace.writer.demo.workload import configuration


@pytest.mark.parametrize(
    "location",
    [
        "s3://lake/demo",
        "gs://lake/a/demo",
        "az://lake/demo",
        "abfss://lake@account.dfs.core.windows.net/demo",
        "/lake/demo",
    ],
)
def test_a_location_is_one_that_a_table_may_have(location: str) -> None:
    assert parse_lake(f"{location}/") == location


def test_a_path_may_be_relative_to_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_lake("lake") == f"{tmp_path}/lake"


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("s3://lake", "s3://lake names no bucket and folder; write it as s3://bucket/folder"),
        ("az://lake/", "az://lake/ names no container and folder; write it as az://container/folder"),
        ("s3a://lake/demo", "s3a://lake/demo: write it as s3://lake/demo; headrace tells Spark the rest"),
        ("hdfs://lake/demo", "only paths, s3://, gs://, az:// and abfss:// are supported, not hdfs://"),
        ("s3://lake/{demo}", "has { } in it, which readers take for a pattern or an escape; rename it"),
    ],
)
def test_a_location_that_no_table_may_have_is_refused(location: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"^--lake cannot be used: ") as refused:
        parse_lake(location)
    assert reason in str(refused.value)
    assert str(refused.value).endswith(".")


def test_an_iceberg_table_in_azure_names_its_account() -> None:
    with pytest.raises(ConfigError) as refused:
        Workspace(None, "iceberg", "az://lake/a/demo")
    assert str(refused.value) == (
        "--lake cannot be used: clients of Iceberg know no az://; write az://lake/a/demo as "
        "abfss://lake@<account>.dfs.core.windows.net/a/demo."
    )


def test_a_bucket_given_to_keep_is_sent_to_the_option_for_it() -> None:
    with pytest.raises(ConfigError) as refused:
        Workspace(Path("s3://lake/demo"))
    assert str(refused.value) == (
        "--keep takes a directory of this machine, and not s3:/lake/demo: the tables go to a bucket by "
        "--lake s3://lake/demo."
    )


def test_settings_of_a_store_need_a_lake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="says how the store of --lake is reached; give --lake, too"):
        Workspace(None, stores=tmp_path / "pipelines.yaml")


def configure(workspace: Workspace) -> str:
    stack = Stack(workspace.directory / "servers", has_registry=False)
    return configuration(1_000, JSON, stack, workspace, MixedTopic(1_000, JSON, workspace))


def test_all_tables_lie_in_the_bucket_and_all_else_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "pipelines.yaml"
    store = {"endpoint": "http://minio:9000", "region": "eu-central-1", "path_style": True}
    file.write_text(yaml.safe_dump({"s3": store, "kafka": {"bootstrap_servers": "broker-1:9092"}}))
    workspace = Workspace(tmp_path / "kept", lake_location="s3://bucket/demo", stores=file)
    path = tmp_path / "headrace.yaml"
    path.write_text(configure(workspace))
    settings = load(path)
    assert settings.pipelines["events"].table.location == "s3://bucket/demo/events"
    assert settings.pipelines["events"].dead_letters == workspace.dead_letters == "s3://bucket/demo/events_dead_letters"
    assert settings.pipelines["app"].of_target("*", "Click").table.location == "s3://bucket/demo/app/Click"
    assert settings.checkpoints == f"{tmp_path}/kept/checkpoints"
    assert (settings.stores.s3.endpoint, settings.stores.s3.path_style) == ("http://minio:9000", True)
    assert "broker-1" not in path.read_text()
    assert removal_command(workspace).plain.endswith(f" s3://bucket/demo --stores {file}")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(("form", "words"), [("delta", "storage_options"), ("parquet", "store_at"), ("iceberg", "s3.")])
def test_the_query_of_a_bucket_holds_its_address_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, words: str
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio:9000")
    workspace = Workspace(tmp_path / "kept", form, "s3://bucket/demo")
    query = query_command(workspace).plain
    assert words in query
    assert "a-secret" not in query
    assert removal_command(workspace).plain.endswith(" -m headrace.writer.demo.remove_lake s3://bucket/demo")


# A directory takes the same way as a bucket


def test_a_directory_is_marked_and_emptied(tmp_path: Path) -> None:
    lake = Lake(f"{tmp_path}/lake")
    lake.claim()
    assert [path.name for path in Path(lake.location).iterdir()] == [MARKER]
    (tmp_path / "lake" / "events" / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "events" / "_delta_log" / "0.json").touch()
    (tmp_path / "lake" / "events" / "a.parquet").touch()
    assert lake.remove() == 3
    assert not (tmp_path / "lake").exists()
    assert not lake.is_claimed


def test_a_directory_that_holds_something_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    lake = Lake(str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        lake.claim()
    assert str(refused.value) == f"{tmp_path} is not empty. Give --lake a folder that is new."
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert not lake.is_claimed


def test_a_directory_inside_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "table" / "_delta_log" / "00000000000000000000.json").touch()
    with pytest.raises(ConfigError, match=f"is inside the table at {tmp_path}/table"):
        Lake(f"{tmp_path}/table/demo").claim()
    assert not (tmp_path / "table" / "demo").exists()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"^{tmp_path}/file/lake cannot be used: cannot write "):
        Lake(f"{tmp_path}/file/lake").claim()


def test_a_workspace_that_cannot_be_made_leaves_no_mark(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    workspace = Workspace(tmp_path / "file" / "kept", lake_location=f"{tmp_path}/lake")
    workspace.lake.claim()
    with pytest.raises(ConfigError, match="cannot create"):
        workspace.make()
    workspace.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# The command that removes the tables


def run_removal(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(remove_lake.main)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_lake_of_a_demo_is_removed(tmp_path: Path) -> None:
    lake = Lake(f"{tmp_path}/lake")
    lake.claim()
    (tmp_path / "lake" / "a.parquet").touch()
    shown = f"2 objects of 73 B in {tmp_path}/lake; --yes removes them\n"
    assert run_removal(lake.location) == (0, shown)
    assert lake.is_marked()
    assert run_removal(lake.location, "--yes") == (0, f"2 objects removed from {tmp_path}/lake\n")
    assert list(tmp_path.iterdir()) == []


def test_what_no_demo_has_marked_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    code, output = run_removal(str(tmp_path), "--yes")
    assert (code, output.startswith(f"remove_lake: {tmp_path} has no object {MARKER}, so it is no demo's")) == (1, True)
    assert (tmp_path / "a.parquet").exists()
    assert run_removal("s3://bucket")[0] == 1


# The tables, as DuckDB gets them


def test_files_of_a_directory_are_read_where_they_are(tmp_path: Path) -> None:
    for name in ("hour=1/a.parquet", "hour=2/b c.parquet", "_headrace/c.parquet", "hour=1/d.txt", ".staged/e.parquet"):
        path = tmp_path / "table" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    table = LakeReader(tmp_path / "copies").open(f"{tmp_path}/table")
    assert [(file.name, file.folder, file.bytes) for file in table.files] == [
        ("hour=1/a.parquet", "hour=1", 5),
        ("hour=2/b c.parquet", "hour=2", 5),
    ]
    assert table.directory == tmp_path / "table"
