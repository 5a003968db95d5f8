"""Lineage and traces: what a receiver gets of a commit, and that no batch waits for a receiver."""

import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.preflight.checks import host_checks
from headrace.writer.status.model import Commit
from headrace.writer.status.progress import Progress
from headrace.writer.telemetry.lineage_events import PRODUCER, events
from headrace.writer.telemetry.receivers import BoundedSender, Receivers
from tests.servers.scripted import HttpRequest, Reply, Scripted, serve_script
from tests.support.commits import account, facts
from tests.support.sample_records import config

ROOT = Path(__file__).parents[2]
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
SOON = timedelta(seconds=60)
PHASES = {"wait": 7.0, "look": 0.25, "tasks": 20.0, "commit": 1.5, "redo": 0.25}
FACTS = facts(0, 100, ranges=[account(0, 60), account(0, 40, partition=1, rows=30, dead_letters=10)], rows=90, files=3)
COMMIT = Commit(5, AT, FACTS, PHASES)


@pytest.fixture
def receiver() -> Iterator[Scripted]:
    with serve_script(lambda _: Reply(200)) as server:
        yield server


def configured(root: Path, **sections: Any) -> Config:
    raw = config(root).model_dump(mode="json", exclude_unset=True)
    return Config.model_validate({**raw, **sections})


def commit(progress: Progress, number: int = 0) -> float:
    """Commit a batch as the driver does. Returns how long that took, in seconds."""
    began = time.monotonic()
    progress.begin_batch(number, "look")
    for phase in ("tasks", "commit", "redo"):
        progress.enter_phase(phase)
    progress.record_commit(number, FACTS, {("clicks", 0): 60}, [("x",)])
    return time.monotonic() - began


def until(condition: Any) -> None:
    deadline = time.monotonic() + SOON.total_seconds()
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_facets(holder: dict[str, Any]) -> None:
    for name in ("facets", "inputFacets", "outputFacets"):
        for facet in holder.get(name, {}).values():
            assert facet["_producer"] == PRODUCER
            assert re.fullmatch(
                r"https://openlineage\.io/spec/facets/[\d-]+/\w+\.json#/\$defs/\w+", facet["_schemaURL"]
            )


def check_event(event: dict[str, Any]) -> None:
    """What the standard's schema (openlineage.io/spec/2-0-2/OpenLineage.json) wants of a RunEvent."""
    assert event["schemaURL"] == "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
    assert event["producer"] == PRODUCER
    assert event["eventType"] in ("START", "COMPLETE")
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", event["run"]["runId"])
    for named in (event["job"], *event["inputs"], *event["outputs"]):
        assert named["namespace"]
        assert named["name"]
        check_facets(named)
    check_facets(event["run"])


def followed(config: Config, progress: Progress) -> Receivers:
    receivers = Receivers()
    receivers.follow(config, progress)
    return receivers


def test_each_commit_is_a_run_with_what_it_read_and_wrote(receiver: Scripted, tmp_path: Path) -> None:
    section = {"url": receiver.url, "api_key": "a-key", "namespace": "lake"}
    progress = Progress("clicks", now=lambda: AT)
    receivers = followed(configured(tmp_path, openlineage=section), progress)
    commit(progress, 5)
    receivers.close(SOON)
    assert [(asked.method, asked.path) for asked in receiver.asked] == [("POST", "/api/v1/lineage")] * 2
    assert {asked.headers["authorization"] for asked in receiver.asked} == {"Bearer a-key"}
    start, complete = (asked.json() for asked in receiver.asked)
    for event in (start, complete):
        check_event(event)
        assert (event["job"]["namespace"], event["job"]["name"]) == ("lake", "clicks")
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert start["eventTime"] == FACTS["started"]
    (topic,), (table,) = complete["inputs"], complete["outputs"]
    assert topic["name"] == "clicks"
    assert topic["namespace"].startswith("kafka://")
    assert topic["inputFacets"]["inputStatistics"]["rowCount"] == 100
    assert (table["namespace"], table["name"]) == ("file", configured(tmp_path).pipelines["clicks"].table.location)
    assert table["facets"]["version"]["datasetVersion"] == "5"
    statistics = table["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"], statistics["size"]) == (90, 3, 5_000)
    assert progress.view().telemetry == {"openlineage": (1, 0)}


def test_a_table_in_a_bucket_has_the_bucket_as_its_namespace(tmp_path: Path) -> None:
    raw = configured(tmp_path).model_dump(mode="json", exclude_unset=True)
    raw["pipelines"]["clicks"]["table"]["location"] = "s3://lake/tables/clicks"
    for event in (found := events(COMMIT, "headrace", Config.model_validate(raw), "clicks")):
        assert event.producer == PRODUCER
    (table,) = found[-1].outputs
    assert (table.namespace, table.name) == ("s3://lake", "tables/clicks")


def test_the_producer_is_the_address_of_the_project() -> None:
    assert f'Homepage = "{PRODUCER}"' in (ROOT / "pyproject.toml").read_text()


def test_a_batch_is_a_span_and_its_phases_are_spans_beneath_it(receiver: Scripted, tmp_path: Path) -> None:
    progress = Progress("clicks")
    url = f"{receiver.url}/v1/traces"
    receivers = followed(configured(tmp_path, opentelemetry={"url": url}), progress)
    commit(progress, 7)
    receivers.close(SOON)
    (asked,) = receiver.asked
    assert asked.path == "/v1/traces"
    (group,) = ExportTraceServiceRequest.FromString(asked.body).resource_spans
    assert ("service.name", "headrace") in {(a.key, a.value.string_value) for a in group.resource.attributes}
    *phases, batch = group.scope_spans[0].spans
    assert [span.name for span in (*phases, batch)] == ["look", "tasks", "commit", "redo", "batch"]
    assert {span.parent_span_id for span in phases} == {batch.span_id}
    assert {span.trace_id for span in phases} == {batch.trace_id}
    assert batch.start_time_unix_nano == phases[0].start_time_unix_nano
    assert batch.end_time_unix_nano == phases[-1].end_time_unix_nano
    for before, after in pairwise(phases):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    known = {a.key: a.value.string_value or a.value.int_value for a in batch.attributes}
    assert (known["headrace.pipeline"], known["headrace.version"], known["headrace.reason"]) == ("clicks", 7, "size")
    assert (known["headrace.read"], known["headrace.dead_letters"]) == (100, 10)
    assert progress.view().telemetry == {"opentelemetry": (1, 0)}


def test_a_receiver_that_hangs_costs_a_batch_nothing_and_what_is_dropped_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    def hang(_: HttpRequest) -> Reply:
        released.wait(60)
        return Reply(200)

    with serve_script(hang) as server:
        sections = {"openlineage": {"url": server.url, "timeout": "60 s"},
                    "opentelemetry": {"url": server.url, "timeout": "60 s"}}  # fmt: skip
        progress = Progress("clicks")
        receivers = followed(configured(tmp_path, **sections), progress)
        commit(progress)
        until(lambda: len(server.asked) == 2)  # both threads hang by now
        slowest = max(commit(progress, number) for number in range(1, 401))
        assert slowest < 20, "no batch waits for a receiver"
        dropped = 400 - 256
        assert progress.view().telemetry == {"openlineage": (0, dropped), "opentelemetry": (0, dropped)}
        assert sum("telemetry_dropped" in line for line in caplog.messages) == 2, "once for each, not for each commit"
        began = time.monotonic()
        receivers.close(timedelta(seconds=3))
        assert time.monotonic() - began < 5.8, "three seconds for both"
        assert {sent + lost for sent, lost in progress.view().telemetry.values()} == {400}, "one is under way"
        released.set()


def test_an_absent_receiver_costs_a_batch_nothing_and_each_commit_is_dropped(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"  # nothing listens there
        progress = Progress("clicks")
        sections = {"openlineage": {"url": url}, "opentelemetry": {"url": url, "timeout": "1 s"}}
        receivers = followed(configured(tmp_path, **sections), progress)
        assert commit(progress) < 1
        until(lambda: set(progress.view().telemetry.values()) == {(0, 1)})
        receivers.close(SOON)


def test_a_sender_goes_on_after_a_failure_and_sends_the_rest_at_the_end() -> None:
    got: list[int] = []
    counts: list[tuple[int, int]] = []

    def send(one: Commit) -> None:
        if one.version == 1:
            raise ConnectionError("refused")
        got.append(one.version)

    sender = BoundedSender("openlineage", "clicks", send, lambda _, sent, dropped: counts.append((sent, dropped)))
    for version in range(4):
        sender.put(Commit(version, AT, FACTS))
    sender.close(SOON)
    assert (got, counts[-1]) == ([0, 2, 3], (3, 1))


def test_without_receivers_nothing_is_started_or_imported(tmp_path: Path) -> None:
    before, progress = set(threading.enumerate()), Progress("clicks")
    receivers = followed(configured(tmp_path), progress)
    commit(progress)
    receivers.close(SOON)
    assert set(threading.enumerate()) <= before
    assert progress.view().telemetry == {}


@pytest.mark.parametrize("section", ["openlineage", "opentelemetry"])
def test_a_package_that_is_missing_is_named(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == section or name.startswith(f"{section}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, section, None)
    wanted = configured(tmp_path, **{section: {"url": "http://127.0.0.1:1"}})
    with pytest.raises(ConfigError, match=rf"pip install 'headrace\[{section}\]'"):
        followed(wanted, Progress("clicks"))
    monkeypatch.delitem(sys.modules, section)
    found = {one.check: one for one in host_checks.machine(wanted, [], host_checks.ProbedLocations(None))}
    assert (found[section].status, section == "openlineage") == ("ok", "opentelemetry" not in found), "asked for alone"
    monkeypatch.setattr(host_checks, "find_spec", lambda _: None)
    found = {one.check: one for one in host_checks.machine(wanted, [], host_checks.ProbedLocations(None))}
    assert (found[section].status, found[section].fix) == ("failed", f"pip install 'headrace[{section}]'")
