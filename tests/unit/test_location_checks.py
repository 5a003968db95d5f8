"""What `validate` says of places: tables, this machine, a driver that runs; it leaves nothing behind."""

import os
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.writer.clients import driver_endpoint, java_artifacts
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Http
from headrace.writer.config.sections.table import layout
from headrace.writer.preflight.checks import host_checks
from headrace.writer.storage.local import LocalStore
from headrace.writer.storage.probe import ProbeFailed, probe
from tests.support.sample_records import config, tree
from tests.support.table_formats import delta_table, parquet_table


def renamed(settings: Config) -> Config:
    """Return the same configuration of a pipeline that is called other."""
    return settings.model_copy(update={"pipelines": {"other": settings.pipelines["clicks"]}})


def test_a_probe_leaves_nothing(tmp_path):
    probe(LocalStore(str(tmp_path)), exclusive=True)
    assert tree(tmp_path) == []


def test_a_location_that_takes_no_files_is_named(tmp_path):
    with pytest.raises(ProbeFailed, match=r"/proc cannot be used: cannot write /proc/_headrace-probe-"):
        probe(LocalStore("/proc"), exclusive=True)
    (tmp_path / "file").write_text("")
    table = delta_table(f"{tmp_path}/file/t", "clicks")
    assert (
        "is a file" in host_checks._table("table", "clicks", table, (), "", host_checks.ProbedLocations(None)).message
    )


def test_a_location_that_takes_no_files_is_reported_once(tmp_path):
    settings = config(tmp_path, table={"location": "/proc/headrace/clicks"})
    settings = settings.model_copy(update={"checkpoints": "/proc/headrace/checkpoints"})
    places = host_checks.ProbedLocations(None)
    seen = [
        *host_checks.machine(settings, [], places), *host_checks.tables("clicks", settings, places)
    ]  # fmt: skip
    named = {finding.check: finding for finding in seen if "/proc" in finding.message}
    assert {check: finding.status for check, finding in named.items()} == {
        "checkpoints": "failed", "table": "not_checked", "dead_letters": "not_checked",
    }  # fmt: skip
    assert named["table"].message == "not checked: /proc cannot be used: see checkpoints"


def test_locations_that_do_not_exist_pass_and_are_not_created(tmp_path):
    settings = config(tmp_path)
    places = host_checks.ProbedLocations(None)
    seen = [
        *host_checks.machine(settings, [], places), *host_checks.tables("clicks", settings, places)
    ]  # fmt: skip
    assert {finding.status for finding in seen if finding.check in ("checkpoints", "table", "dead_letters")} == {"ok"}
    assert tree(tmp_path) == []


def test_a_table_of_another_pipeline_or_another_bucketing_is_wrong(tmp_path):
    settings = config(tmp_path)
    pipeline = settings.pipelines["clicks"]
    columns = pa.schema([("id", pa.int64()), ("hour", pa.string())])
    delta_table(pipeline.table.location, "clicks").create(columns, ["hour"], layout(pipeline.bucket))
    before = tree(tmp_path)
    table, *_ = host_checks.tables("clicks", settings, host_checks.ProbedLocations(None))
    assert (table.status, "is the table of clicks, at version 0" in table.message) == ("ok", True)
    stranger, *_ = host_checks.tables("other", renamed(settings), host_checks.ProbedLocations(None))
    assert (stranger.status, stranger.fix) == ("failed", "Pipeline 'other' needs a location of its own.")
    days = config(tmp_path, bucket={"type": "event_time", "width": "1 d", "column": "hour"})
    wider, *_ = host_checks.tables("clicks", days, host_checks.ProbedLocations(None))
    assert (wider.status, wider.fix) == ("failed", "Keep 'bucket' as it was, or choose a new location.")
    assert tree(tmp_path) == before


def test_files_where_a_table_should_be_are_a_warning(tmp_path):
    settings = config(tmp_path)
    pipeline = settings.pipelines["clicks"]
    place = Path(pipeline.table.location)
    place.mkdir(parents=True)
    (place / "notes.txt").write_text("")
    table, *_ = host_checks.tables("clicks", settings, host_checks.ProbedLocations(None))
    assert (table.status, "holds files, but no table" in table.message) == ("warning", True)


def test_a_table_of_another_format_is_wrong(tmp_path):
    settings = config(tmp_path)
    pipeline = settings.pipelines["clicks"]
    parquet_table(pipeline.table.location, "clicks").create(pa.schema([("hour", pa.string())]), ["hour"])
    before = tree(tmp_path)
    table, *_ = host_checks.tables("clicks", settings, host_checks.ProbedLocations(None))
    assert (table.status, "holds a table in Parquet format" in table.message) == ("failed", True)
    assert table.fix == "Choose a new location, or correct table.format."
    assert tree(tmp_path) == before


def test_a_parquet_table_is_looked_at_where_its_log_lies(tmp_path):
    settings = config(tmp_path, table={"location": str(tmp_path / "lake"), "format": "parquet"})
    pipeline = settings.pipelines["clicks"]
    columns = pa.schema([("hour", pa.string())])
    parquet_table(pipeline.table.location, "clicks").create(columns, ["hour"], layout(pipeline.bucket))
    table, *_ = host_checks.tables("clicks", settings, host_checks.ProbedLocations(None))
    assert (table.status, "is the table of clicks, at version 0" in table.message) == ("ok", True)
    stranger, *_ = host_checks.tables("other", renamed(settings), host_checks.ProbedLocations(None))
    assert stranger.status == "failed"


def test_a_port_that_is_taken_is_wrong_unless_a_driver_of_ours_runs():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = Http(host="127.0.0.1", port=other.getsockname()[1])
        assert host_checks._http(taken, []).status == "failed"
        assert host_checks._http(taken, ["clicks"]).status == "not_checked"
    assert host_checks._http(Http(port=0), []).status == "ok"
    assert host_checks._http(Http(enabled=False), []).status == "ok"


def test_jars_that_are_not_there_are_fetched_or_wrong(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_JARS", raising=False)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert host_checks._jars().status == "warning"
    bundle = java_artifacts.find_bundle("spark-kafka")
    kept = tmp_path / f"{bundle.name}-{bundle.version}"
    kept.mkdir()
    (kept / "a.jar").write_text("")
    assert host_checks._jars().status == "ok"
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    assert host_checks._jars().status == "failed"


def test_a_driver_that_is_gone_is_fine(tmp_path):
    settings = config(tmp_path)
    assert host_checks.running_driver(settings, "clicks", offline=False).message == "none runs"
    driver_endpoint.announce(
        settings.checkpoints,
        "clicks",
        driver_endpoint.Driver("http://127.0.0.1:1", os.getpid(), "2026-11-20T12:00:00.000Z", 3),
    )
    assert host_checks.running_driver(settings, "clicks", offline=False).status == "ok"
    assert host_checks.running_driver(settings, "clicks", offline=True).status == "not_checked"
