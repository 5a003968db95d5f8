"""`headrace validate` asks the servers of hooks, and none of them makes a configuration wrong."""

from pathlib import Path
from typing import Any

import pytest

from headrace.writer.preflight.checks.finding import Finding
from headrace.writer.preflight.checks.hook_check import check_hooks
from tests.servers.scripted import Reply, serve_script
from tests.support.airflow_api import ASSET, PASSWORD, USER, AirflowApi
from tests.support.dagster_api import DagsterApi
from tests.support.sample_records import config


def check(tmp_path: Path, *hooks: dict[str, Any], offline: bool = False) -> list[Finding]:
    return list(check_hooks("clicks", config(tmp_path, hooks=list(hooks)), offline=offline))


def test_a_hook_whose_server_has_its_asset_is_fine(tmp_path: Path):
    with serve_script(AirflowApi()) as airflow, serve_script(DagsterApi()) as dagster:
        login = {"user": USER, "password": PASSWORD}
        findings = check(
            tmp_path,
            {"type": "airflow", "url": airflow.url, "asset": ASSET, **login},
            {"type": "dagster", "url": dagster.url, "asset": "lake/clicks"},
            {"type": "airflow", "name": "wrong", "url": airflow.url, "asset": "elsewhere", **login},
            {"type": "dagster", "name": "other", "url": airflow.url, "asset": "lake/clicks"},
        )
        assert [request.method for request in dagster.asked] == ["POST"]
    assert [(finding.check, finding.status) for finding in findings] == [
        ("hook airflow", "ok"),
        ("hook dagster", "ok"),
        ("hook wrong", "warning"),
        ("hook other", "warning"),
    ]
    assert findings[0].message == f"{airflow.url}, asset {ASSET}"
    assert "no active asset with the URI or name 'elsewhere'" in findings[2].message
    assert PASSWORD not in repr(findings)


@pytest.mark.parametrize(
    "hook",
    [
        {"type": "airflow", "asset": "clicks", "token": "t0ken"},
        {"type": "dagster", "asset": "clicks"},
        {"type": "druid"},
        {"type": "trino", "table": "delta.lake.clicks"},
        {"type": "presto", "table": "hive.lake.clicks"},
    ],
    ids=lambda hook: hook["type"],
)
def test_a_server_that_does_not_answer_is_a_warning(tmp_path: Path, hook: dict[str, Any]):
    (away,) = check(tmp_path, {"url": "http://127.0.0.1:9", **hook})
    with serve_script(lambda _: Reply(401, b"who are you")) as server:
        (refusal,) = check(tmp_path, {"url": server.url, **hook})
    assert [away.status, refusal.status] == ["warning", "warning"]
    assert "cannot reach http://127.0.0.1:9" in away.message
    assert "401: who are you" in refusal.message


def test_what_cannot_be_asked_is_not_checked(tmp_path: Path):
    webhook = {"type": "webhook", "url": "http://127.0.0.1:9/secret-path"}
    (finding,) = check(tmp_path, webhook)
    assert finding == Finding("hook webhook", "not_checked", "not checked: http://127.0.0.1:9 takes deliveries alone")
    (offline,) = check(tmp_path, {"type": "dagster", "url": "http://127.0.0.1:9", "asset": "clicks"}, offline=True)
    assert (offline.status, offline.message) == ("not_checked", "not checked: --offline")
    assert check(tmp_path) == []
