"""The demo's folder in a bucket: it is taken, read and emptied, or refused by a sentence before anything is there."""

import re
import shlex
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.errors import ConfigError
from headrace.writer.demo import remove_lake, verification
from headrace.writer.demo.devstack.lake import MARKER, Lake
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import Workspace
from headrace.writer.demo.interactive import query_command
from headrace.writer.demo.mixed_topic import MixedTopic
from headrace.writer.demo.table_reader import TableLog
from headrace.writer.demo.value_formats import JSON
from headrace.writer.demo.workload import configuration
from headrace.writer.storage.locations import store_at
from tests.support.lake_stores import BUCKETS, full_azure_name
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, Schemas, value

pytestmark = pytest.mark.slow

FIXTURES = {"s3": "on_s3", "gs": "on_gcs", "az": "on_azure"}
TIMED = {**EVENT, "fields": [{**field, "name": field["name"].replace("at", "event_time")} for field in EVENT["fields"]]}


@pytest.fixture(params=BUCKETS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(request: pytest.FixtureRequest, kind: str) -> Any:
    """A server that plays the cloud, which clients find by the environment alone."""
    return request.getfixturevalue(FIXTURES[kind])


def run_removal(location: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(remove_lake.main)
    result = CliRunner().invoke(app, [location, "--yes"])
    return result.exit_code, result.output


def test_a_folder_is_marked_and_emptied_and_its_neighbours_stay(server: Any) -> None:
    bucket = server.bucket()
    store_at(f"{bucket}/other").put("demo2/notes.txt", b"mine")
    lake = Lake(f"{bucket}/other/demo")
    lake.claim()
    assert server.keys(bucket) == [f"other/demo/{MARKER}", "other/demo2/notes.txt"]
    store = store_at(lake.location)
    for name in ("events/_delta_log/0.json", "events/hour=2026-11-20T05/a.parquet", "app/Click/b c%.parquet"):
        store.put(name, b"1")
    assert run_removal(lake.location) == (0, f"4 objects removed from {lake.location}\n")
    assert server.keys(bucket) == ["other/demo2/notes.txt"]


def test_a_folder_that_holds_something_is_refused_and_not_removed(server: Any) -> None:
    bucket = server.bucket()
    store_at(f"{bucket}/demo").put("deep/below/notes.txt", b"mine")
    lake = Lake(f"{bucket}/demo")
    with pytest.raises(ConfigError) as refused:
        lake.claim()
    assert str(refused.value) == f"{bucket}/demo is not empty. Give --lake a folder that is new."
    code, output = run_removal(lake.location)
    assert (code, output.count("\n")) == (1, 1)
    assert output.startswith(f"remove_lake: {lake.location} has no object {MARKER}, so it is no demo's; ")
    assert server.keys(bucket) == ["demo/deep/below/notes.txt"]


def test_a_folder_inside_a_table_is_refused(server: Any) -> None:
    bucket = server.bucket()
    store_at(f"{bucket}/clicks").put("_delta_log/00000000000000000000.json", b"{}")
    with pytest.raises(ConfigError, match=f"is inside the table at {bucket}/clicks"):
        Lake(f"{bucket}/clicks/demo").claim()
    assert server.keys(bucket) == ["clicks/_delta_log/00000000000000000000.json"]


def test_a_bucket_that_is_missing_is_named(server: Any, kind: str) -> None:
    noun = "container" if kind == "az" else "bucket"
    with pytest.raises(ConfigError, match=rf"cannot list .*404 .*Make the {noun}"):
        Lake(f"{server.bucket()}0/demo").claim()


def test_a_demo_without_credentials_ends_before_anything_starts(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = server.bucket()
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    settings = tmp_path / "stores.yaml"
    settings.write_text("{s3: {retry_timeout: 1 s}, gcs: {retry_timeout: 1 s}, azure: {retry_timeout: 1 s}}")
    command = [sys.executable, "-m", "headrace.writer.cli", "demo", "--lake", f"{bucket}/demo"]
    command += ["--keep", str(tmp_path / "kept"), "--stores", str(settings)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 2, told.stderr
    assert told.stdout == ""
    assert told.stderr.startswith(f"headrace: --lake cannot be used: cannot list {bucket}/demo: "), told.stderr
    assert told.stderr.count("\n") == 1
    assert not (tmp_path / "kept").exists()


def test_why_a_folder_could_not_be_emptied_is_kept(on_s3: Any) -> None:
    bucket = on_s3.bucket()
    workspace = Workspace(None, lake_location=f"{bucket}/demo")
    workspace.lake.claim()
    name = bucket.removeprefix("s3://")
    on_s3.client().delete_object(Bucket=name, Key=f"demo/{MARKER}")
    on_s3.client().delete_bucket(Bucket=name)
    workspace.clear()
    assert workspace.lake.is_claimed
    assert workspace.lake_failure.startswith(f"cannot delete {bucket}/demo/{MARKER}: there is no bucket ")


@pytest.mark.parametrize("options", [[], ["--keep", "kept"]], ids=["removed", "kept"])
def test_a_demo_whose_servers_cannot_start_leaves_its_folder_empty(
    server: Any, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is in the repository that the servers come from."""
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="disk"/><resolvers>'
        f'<ibiblio name="disk" m2compatible="true" root="file://{tmp_path}/nothing/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(settings))
    bucket = server.bucket()
    command = [sys.executable, "-m", "headrace.writer.cli", "demo", "--lake", f"{bucket}/demo", *options]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 2, told.stderr
    assert "everything on this machine but the lake" in told.stdout
    assert f" {bucket}/demo/events\n" in told.stdout
    assert told.stdout.endswith(f"{bucket}/demo is empty again\n")
    assert server.keys(bucket) == []


def fill_table(location: str, form: str, root: Path) -> Driver:
    """Write sixteen rows in two batches, and a value that is broken."""
    schemas = Schemas({1: TIMED}, [1])
    driver = Driver(root, form, schemas=schemas, table={"location": location}, event_time={"field": "event_time"})
    driver.start()
    values = {
        n: value(1, TIMED, {"id": n, "event_time": NOW - timedelta(hours=n % 2), "note": None}) for n in range(17)
    }
    values[11] = values[11][:-1]
    driver.carry([log({n: values[n] for n in range(10)})], {0: 10})
    driver.carry([log({n: values[n] for n in range(10, 17)})], {0: 17})
    return driver


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_duckdb_counts_the_tables_of_a_bucket(server: Any, kind: str, form: str, tmp_path: Path) -> None:
    location = f"{server.bucket()}/demo/events"
    if kind == "az" and form == "iceberg":
        location = full_azure_name(location, server.account)
    driver = fill_table(location, form, tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    report = verification.committed_account(
        driver.config, "clicks", {("clicks", 0): 17}, since=NOW - timedelta(minutes=1), scratch=scratch
    )
    assert verification.sentence(report) == "17 produced = 16 rows + 0 quarantined + 1 dead letters + 0 lost, 0 twice"
    assert report.damage() == []
    assert [(bucket.rows, bucket.files) for bucket in report.buckets] == [(7, 2), (9, 2)]
    assert report.delayed == 7
    assert all(bucket.bytes > 0 for bucket in report.buckets)
    assert list(scratch.iterdir()) == []
    table_log = TableLog(location, driver.config.stores)
    assert table_log.follow()
    assert [commit.facts["kind"] for commit in table_log.commits] == ["batch", "batch"]
    assert not table_log.follow()


@pytest.mark.parametrize(("kind", "form"), [("s3", "parquet"), ("gs", "delta"), ("az", "parquet")])
def test_the_query_that_the_demo_shows_answers(
    request: pytest.FixtureRequest, kind: str, form: TableFormat, tmp_path: Path
) -> None:
    bucket = request.getfixturevalue(FIXTURES[kind]).bucket()
    workspace = Workspace(tmp_path / "kept", form, f"{bucket}/demo")
    fill_table(workspace.table, form, tmp_path)
    workspace.make()
    stack = Stack(workspace.directory / "servers", has_registry=False)
    workspace.config.write_text(configuration(1_000, JSON, stack, workspace, MixedTopic(1_000, JSON, workspace)))
    command = query_command(workspace).plain.split("\n", 1)[1].strip()
    told = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    hours = [f"{NOW - timedelta(hours=age):%Y-%m-%dT%H}" for age in (1, 0)]
    rows = re.findall(r"│ (\S+) +│ clicks +│ +(\d+) │", told.stdout)
    assert rows == [(hours[0], "7"), (hours[1], "9")], told.stdout
