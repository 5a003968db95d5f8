"""`headrace audit --report`: what the audit found is a check of the asset at each hook of type dagster."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from headrace.writer.cli.look.audit import run_audit
from headrace.writer.core.errors import HeadraceError
from headrace.writer.output.command_inputs import ChosenPipelines
from tests.servers.scripted import Reply, Scripted, serve_script
from tests.support.audits import mixed_values
from tests.support.dagster_api import ASSET, DagsterApi
from tests.support.local_driver import Driver, log


@pytest.fixture
def api() -> DagsterApi:
    return DagsterApi()


@pytest.fixture
def server(api: DagsterApi) -> Iterator[Scripted]:
    with serve_script(api) as server:
        yield server


def write_table(tmp_path: Path, *assets: str, url: str) -> ChosenPipelines:
    """Commit forty records. Returns the pipeline, with a hook of each asset."""
    hooks = [{"type": "dagster", "name": f"hook-{n}", "url": url, "asset": asset} for n, asset in enumerate(assets)]
    hooks.append({"type": "webhook", "url": url})
    driver = Driver(tmp_path, hooks=hooks)
    driver.start(1)
    driver.carry([log(mixed_values(0, 40))], {0: 40})
    return ChosenPipelines(["clicks"], driver.config)


def test_an_audit_that_adds_up_is_a_check_that_passed(tmp_path: Path, server: Scripted, api: DagsterApi):
    pipelines = write_table(tmp_path, ASSET, url=server.url)
    assert run_audit(pipelines).exit_code == 0
    assert not server.asked
    report = run_audit(pipelines, deep=True, report=True)
    assert (report.exit_code, report.failure) == (0, None)
    (check,) = api.checks
    assert (check["asset"], check["check_name"], check["passed"]) == (ASSET, "headrace_audit", True)
    pipeline_audit = report.pipelines["clicks"]
    assert check["metadata"] == {
        "pipeline": "clicks",
        "from_version": 0,
        "to_version": pipeline_audit.versions[1],
        "deep": True,
        "records": 40,
        "rows": pipeline_audit.records["rows"],
        "problems": 0,
    }
    assert not api.materializations


def test_an_audit_that_does_not_add_up_is_a_check_that_failed(tmp_path: Path, server: Scripted, api: DagsterApi):
    pipelines = write_table(tmp_path, ASSET, url=server.url)
    (file, *_) = (tmp_path / "lake" / "clicks").glob("hour=*/*.parquet")
    pq.write_table(pq.ParquetFile(file).read().slice(1), file)
    report = run_audit(pipelines, deep=True, report=True)
    assert report.exit_code == 1
    (check,) = api.checks
    assert check["passed"] is False
    assert check["metadata"]["problems"] == len(report.pipelines["clicks"].problems) > 0


def test_a_hook_that_fails_is_named_and_keeps_no_other_from_its_check(
    tmp_path: Path, server: Scripted, api: DagsterApi
):
    api.assets["lake/other"] = None
    report = run_audit(write_table(tmp_path, "lake/cliks", "lake/other", url=server.url), report=True)
    assert "hook hook-0 of clicks" in str(report.failure)
    assert "has no asset lake/cliks" in str(report.failure)
    assert [check["asset"] for check in api.checks] == ["lake/other"]
    assert report.pipelines["clicks"].adds_up


def test_a_server_that_is_away_is_a_failure_after_the_audit(tmp_path: Path):
    with serve_script(lambda _: Reply(503, b"later")) as server:
        report = run_audit(write_table(tmp_path, ASSET, url=server.url), report=True)
    assert "503: later" in str(report.failure)
    assert isinstance(report.failure, HeadraceError)
    assert report.pipelines["clicks"].adds_up


def test_a_pipeline_without_a_hook_of_dagster_is_told(tmp_path: Path, server: Scripted):
    report = run_audit(write_table(tmp_path, url=server.url), report=True)
    assert "'clicks' has no hook of type dagster" in str(report.failure)
    assert not server.asked
