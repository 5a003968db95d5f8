"""What Airflow and Dagster have of sealed buckets, whatever failed: the real servers, and what stands in for them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.core.http import ask
from headrace.writer.hooks.base import HookFailed
from headrace.writer.hooks.delivery import HookDelivery
from headrace.writer.hooks.dispatcher import deliveries
from headrace.writer.maintenance.retention import Retention
from headrace.writer.sealing.bucket_selection import parse_buckets
from tests.servers.airflow import PASSWORD, USER, Airflow, airflow
from tests.servers.dagster import Dagster, dagster
from tests.servers.scripted import HttpRequest, Reply, serve_script
from tests.support import airflow_api, dagster_api
from tests.support.airflow_api import AirflowApi
from tests.support.dagster_api import DagsterApi
from tests.support.hook_rounds import HookRounds
from tests.support.sealed_lake import SealedLake

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
REAL = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
# Partition, reason, version, rows.
Record = tuple[str, str, int, int]


@dataclass(frozen=True)
class Orchestrator:
    """A server, and the section of a hook that delivers to an asset which nothing was delivered to."""

    hook: dict[str, Any]
    # What it has of the asset, oldest first.
    records: Callable[[], list[Record]]


@pytest.fixture(scope="module", name="real_airflow")
def _real_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    with airflow(tmp_path_factory.mktemp("airflow")) as server:
        yield server


@pytest.fixture(scope="module", name="real_dagster")
def _real_dagster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dagster]:
    with dagster(tmp_path_factory.mktemp("dagster")) as server:
        yield server


@pytest.fixture(
    params=["airflow", "dagster", pytest.param("real_airflow", marks=REAL), pytest.param("real_dagster", marks=REAL)]
)
def orchestrator(request: pytest.FixtureRequest) -> Iterator[Orchestrator]:
    match request.param:
        case "airflow":
            api = AirflowApi()
            with serve_script(api) as server:
                login = {"user": airflow_api.USER, "password": airflow_api.PASSWORD}
                hook = {"type": "airflow", "url": server.url, "asset": airflow_api.ASSET, **login}
                yield Orchestrator(hook, lambda: [_record(e["partition_key"], e["extra"]) for e in api.events])
        case "dagster":
            reports = DagsterApi()
            with serve_script(reports) as server:
                hook = {"type": "dagster", "url": server.url, "asset": dagster_api.ASSET}
                yield Orchestrator(
                    hook, lambda: [_record(m["partition"], m["metadata"]) for m in reports.materializations]
                )
        case name:
            real: Airflow | Dagster = request.getfixturevalue(name)
            asset = real.unused_asset()
            yield Orchestrator(real.hook(asset), lambda: [_record(*event) for event in real.events(asset)])


def _record(partition: str, facts: dict[str, Any]) -> Record:
    return partition, facts["reason"], facts["version"], facts["rows"]


def lake_with(tmp_path: Path, orchestrator: Orchestrator) -> tuple[SealedLake, HookDelivery]:
    lake = SealedLake(tmp_path, hooks=[{"timeout": "60 s", **orchestrator.hook}])
    (delivery,) = deliveries("clicks", lake.config)
    delivery.run_round(NOW)
    return lake, delivery


def test_each_version_of_each_bucket_is_there_once_and_in_order(tmp_path: Path, orchestrator: Orchestrator):
    lake, delivery = lake_with(tmp_path, orchestrator)
    assert delivery.hook.check()
    lake.add(5, 10)
    lake.seal(5)
    lake.add(6, 3)
    lake.seal(6)
    lake.add(5, 2, minute=30)
    lake.seal(5)
    delivery.run_round(NOW)
    content = delivery.run_round(NOW)
    assert (content.delivered, content.pending) == (3, ())
    expected = [("2026-11-20T05", "sealed", 1, 10), ("2026-11-20T06", "sealed", 1, 3)]
    expected.append(("2026-11-20T05", "sealed again", 2, 12))
    assert orchestrator.records() == expected
    # By hand, in a process that knows of nothing.
    (again,) = deliveries("clicks", lake.config)
    again.redeliver(parse_buckets("2026-11-20", lake.bucketer))
    content = again.run_round(NOW)
    assert (content.delivered, content.pending) == (5, ())
    assert content.last["what"].endswith("was there")
    assert orchestrator.records() == expected


def test_a_bucket_that_retention_took_is_there_as_retired(tmp_path: Path, orchestrator: Orchestrator):
    lake, delivery = lake_with(tmp_path, orchestrator)
    lake.add(5, 10)
    lake.add(6, 1)
    lake.seal(5)
    delivery.run_round(NOW)
    (dropped,) = Retention(lake.table, lake.bucketer, timedelta(days=1)).run(NOW.replace(day=21, hour=6))
    assert dropped.buckets == (("2026-11-20T05",),)
    assert delivery.run_round(NOW).pending == ()
    assert orchestrator.records() == [("2026-11-20T05", "sealed", 1, 10), ("2026-11-20T05", "retired", 1, 0)]


def test_an_asset_that_is_not_there_is_named_and_none_is_made(tmp_path: Path, orchestrator: Orchestrator):
    lake, delivery = lake_with(tmp_path, Orchestrator({**orchestrator.hook, "asset": "elsewhere"}, list))
    with pytest.raises(HookFailed, match="correct 'asset'"):
        delivery.hook.check()
    lake.add(5, 10)
    lake.seal(5)
    (pending,) = delivery.run_round(NOW).pending
    assert "elsewhere" in pending.error
    assert "correct 'asset'" in pending.error
    assert orchestrator.records() == []


class LossyProxy:
    """Passes requests on; of the first that creates something the answer is lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.lost: list[str] = []

    def __call__(self, request: HttpRequest) -> Reply:
        headers = {name: value for name, value in request.headers.items() if name in ("authorization", "content-type")}
        url = f"{self._url}{request.path}"
        answer = ask(url, method=request.method, body=request.body, headers=headers, timeout_s=120)
        creates = request.method == "POST" and request.path.startswith(("/api/v2/assets", "/report_asset"))
        if creates and not self.lost:
            self.lost.append(request.path)
            return Reply(504, b"Gateway Timeout")
        return Reply(answer.status, answer.body, {"Content-Type": answer.headers.get("content-type", "")})


def test_a_lost_answer_is_asked_for_and_nothing_is_made_twice(tmp_path: Path, orchestrator: Orchestrator):
    proxy = LossyProxy(orchestrator.hook["url"])
    with serve_script(proxy) as server:
        lake, delivery = lake_with(tmp_path, replace(orchestrator, hook={**orchestrator.hook, "url": server.url}))
        for hour in (5, 6):
            lake.add(hour, 10)
            lake.seal(hour)
        (pending,) = delivery.run_round(NOW).pending
        assert "504: Gateway Timeout" in pending.error
        content = delivery.run_round(NOW + timedelta(minutes=1))
        assert (content.pending, content.delivered) == ((), 2)
    assert len(proxy.lost) == 1
    assert orchestrator.records() == [("2026-11-20T05", "sealed", 1, 10), ("2026-11-20T06", "sealed", 1, 10)]


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", ["real_airflow", "real_dagster"])
def test_what_is_sealed_while_the_server_is_away_is_there_after_its_restart(
    tmp_path: Path, server: str, request: pytest.FixtureRequest
):
    real: Airflow | Dagster = request.getfixturevalue(server)
    asset = real.unused_asset()
    lake, delivery = lake_with(tmp_path, Orchestrator(real.hook(asset), list))
    lake.add(5, 10)
    lake.seal(5)
    assert delivery.run_round(NOW).pending == ()
    real.stop()
    lake.add(6, 3)
    lake.seal(6)
    (pending,) = delivery.run_round(NOW).pending
    assert f"cannot reach {real.url}" in pending.error
    # Airflow's tokens of before are worth nothing.
    real.start_with(AIRFLOW__API_AUTH__JWT_SECRET="another key of tests, which is long enough for what it signs")
    assert delivery.run_round(NOW + timedelta(minutes=1)).pending == ()
    expected = [("2026-11-20T05", "sealed", 1, 10), ("2026-11-20T06", "sealed", 1, 3)]
    assert [_record(*event) for event in real.events(asset)] == expected


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.timeout(900)
def test_a_user_of_the_fab_auth_manager_logs_in(tmp_path: Path):
    manager = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
    home = tmp_path / "airflow"
    home.mkdir()
    with airflow(home, environment={"AIRFLOW__CORE__AUTH_MANAGER": manager}) as server:
        names = ["--firstname", "Head", "--lastname", "Race", "--email", "headrace@example.com"]
        server.run_command("users", "create", "-u", USER, "-p", PASSWORD, "--role", "Op", *names)
        asset = server.unused_asset()
        lake, delivery = lake_with(tmp_path, Orchestrator(server.hook(asset), list))
        lake.add(5, 10)
        lake.seal(5)
        assert delivery.run_round(NOW).pending == (), delivery.health.error
        assert [_record(*event) for event in server.events(asset)] == [("2026-11-20T05", "sealed", 1, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["hook_taken:1", "hook_submitted:1", "hook_delivered:1", "hook_noted:1"])
def test_a_kill_at_any_step_leaves_each_version_there_once(tmp_path: Path, orchestrator: Orchestrator, point: str):
    hook = {"timeout": "60 s", "start": "earliest", **orchestrator.hook}
    lake = SealedLake(tmp_path, hooks=[hook])
    rounds = HookRounds(lake, tmp_path, hook)
    for hour in (5, 6):
        lake.add(hour, 10)
        lake.seal(hour)
    rounds.kill_at(point)
    rounds.run()
    (delivery,) = deliveries("clicks", lake.config)
    content = delivery.outbox.read()
    assert content is not None
    assert content.pending == ()
    assert sorted(orchestrator.records()) == [
        ("2026-11-20T05", "sealed", 1, 10),
        ("2026-11-20T06", "sealed", 1, 10),
    ]
