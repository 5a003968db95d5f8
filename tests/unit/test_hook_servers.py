"""What each kind of hook says to its server, and what it makes of the answers. Shapes as the real servers give them."""

import base64
import hashlib
import hmac
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

from headrace.writer.config.sections.hooks import Druid, Presto, Trino, Webhook
from headrace.writer.core.files import BucketFile
from headrace.writer.core.http import RequestFailed, ask
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.hooks.base import HookFailed, Receipt, SealedVersion, StillRunning
from headrace.writer.hooks.druid import DruidHook
from headrace.writer.hooks.sql import SqlHook
from headrace.writer.hooks.webhook import WebhookHook, signature
from headrace.writer.sealing.manifest import Manifest
from tests.servers.scripted import HttpRequest, Reply, Scripted, serve_script
from tests.support.overlord import Overlord

START = datetime(2026, 11, 20, 5, tzinfo=UTC)
COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("hour", pa.string())])
TASK = "headrace_clicks_2026-11-20T05_v1_"


def sealed(*, form: str = "delta", rows: int = 30, entry: int = 9) -> SealedVersion:
    manifest = Manifest(
        "clicks", "/lake/clicks", ("hour",), ("2026-11-20T05",), START, START + timedelta(hours=1), 1, rows, 2, 500,
        START, START, 0, 0, rows, "watermark", False, START + timedelta(hours=2), entry - 1, entry,
    )  # fmt: skip
    table = TableDescription("clicks", "/lake/clicks", form, COLUMNS, ("hour",), "at", id="t1")
    files = (
        [
            BucketFile("hour=2026-11-20T05/a.parquet", (), rows - 10, 0),
            BucketFile("hour=2026-11-20T05/b.parquet", (), 10, 0),
        ]
        if rows
        else []
    )
    return SealedVersion(manifest, entry, table, lambda: files, f"/lake/clicks/{manifest.path}")


def webhook(url: str, **settings: Any) -> WebhookHook:
    return WebhookHook(Webhook(type="webhook", url=url, timeout="2 s", **settings), lambda: 1614265330.9)


def druid(url: str, **settings: Any) -> DruidHook:
    return DruidHook(Druid(type="druid", url=url, timeout="2 s", **settings), "clicks")


def test_a_signature_is_that_of_standard_webhooks():
    """The example of the scheme's own libraries."""
    secret, told = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek"
    found = signature(secret, told, 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    with pytest.raises(HookFailed, match="no base64"):
        signature("whsec_?", told, 1, b"")


def test_a_webhook_gets_the_manifest_signed_under_an_id_that_stays():
    with serve_script(lambda _: Reply(204)) as server:
        hook = webhook(f"{server.url}/in?key=1", secret="a plain secret", headers={"X-Team": "lake"})
        assert hook.deliver(sealed(), {}) == Receipt("answered 204")
        hook.deliver(sealed(), {})
        hook.deliver(sealed(entry=10), {})
    first, again, other = server.asked
    assert (first.method, first.path, first.headers["x-team"]) == ("POST", "/in?key=1", "lake")
    assert Manifest.from_json(first.json()) == sealed().manifest
    told = first.headers["webhook-id"]
    assert told == first.headers["idempotency-key"] == again.headers["webhook-id"] != other.headers["webhook-id"]
    signed = hmac.new(b"a plain secret", f"{told}.1614265330.".encode() + first.body, hashlib.sha256).digest()
    assert first.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"


def test_a_webhook_that_refuses_says_so_and_shows_no_secret():
    with serve_script(lambda _: Reply(503, b"later\nplease", {"Retry-After": "120"})) as server:
        hook = webhook(f"{server.url}/secret-path", secret="a plain secret")
        with pytest.raises(HookFailed, match="answered 503: later please") as failure:
            hook.deliver(sealed(), {})
        assert failure.value.after == timedelta(minutes=2)
        shown = str(failure.value) + hook.target + repr(hook._settings)
        assert "secret-path" not in shown
        assert "a plain secret" not in shown
        server.answer = lambda _: Reply(302, b"", {"Location": f"{server.url}/elsewhere"})
        with pytest.raises(HookFailed, match="answered 302"):
            hook.deliver(sealed(), {})
    assert [asked.path for asked in server.asked] == ["/secret-path"] * 2
    with pytest.raises(RequestFailed, match="cannot reach http://127"):
        hook.deliver(sealed(), {})


def test_an_answer_that_does_not_come_or_breaks_off_is_a_failure():
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(RequestFailed, match=r"within 0\.2 s"):
        ask(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
    short = Reply(200, b"x", {"Content-Length": "9"})
    with serve_script(lambda _: short) as server, pytest.raises(RequestFailed, match="broke off"):
        ask(server.url, timeout_s=2)


@contextmanager
def overlord() -> Iterator[tuple[Overlord, Scripted]]:
    druid = Overlord()
    with serve_script(druid) as server:
        yield druid, server


def test_druid_ingests_exactly_the_interval_from_exactly_the_files():
    with overlord() as (there, server):
        hook = druid(server.url, token="t0ken", spec={"tuningConfig": {"maxRowsInMemory": 9}})
        going = hook.deliver(sealed(), {})
        (task,) = there.tasks
        assert isinstance(going, StillRunning)
        assert going.state == {"try": 1, "accepted": task}
        assert isinstance(hook.deliver(sealed(), going.state), StillRunning)
        there.tasks[task] = "SUCCESS"
        assert hook.deliver(sealed(), going.state) == Receipt(f"rows: 30, by task {task}")
    assert task.startswith(TASK)
    (spec,) = (spec["spec"] for spec in there.specs)
    assert spec["dataSchema"]["granularitySpec"]["intervals"] == ["2026-11-20T05:00:00.000Z/2026-11-20T06:00:00.000Z"]
    source = {"type": "local", "files": [f"/lake/clicks/hour=2026-11-20T05/{name}.parquet" for name in "ab"]}
    assert spec["ioConfig"]["inputSource"] == source
    assert spec["tuningConfig"]["maxRowsInMemory"] == 9
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer t0ken"}


def test_a_dispatcher_after_a_crash_finds_the_task_and_starts_no_second_one():
    with overlord() as (there, server):
        druid(server.url).deliver(sealed(), {})  # and nothing of it was written down
        going = druid(server.url).deliver(sealed(), {})
        (task,) = there.tasks
        there.tasks[task] = "SUCCESS"
        assert isinstance(going, StillRunning)
        assert isinstance(druid(server.url).deliver(sealed(), going.state), Receipt)
        druid(server.url).deliver(sealed(entry=12), {})
        assert len(there.tasks) == 2


def test_a_task_that_failed_is_told_with_druids_reason_and_tried_under_the_next_number():
    with overlord() as (there, server):
        hook = druid(server.url)
        going = hook.deliver(sealed(), {})
        there.tasks[next(iter(there.tasks))] = "FAILED"
        with pytest.raises(HookFailed, match="_1 failed: no disk") as failure:
            hook.deliver(sealed(), going.state)
        again = hook.deliver(sealed(), failure.value.state)
        assert again.state["accepted"].endswith("_2")
        there.refusal = Reply(400, {"error": "druidException", "errorMessage": "Unknown column 'x'"})
        with pytest.raises(HookFailed, match="refused the task: 400: Unknown column 'x'"):
            hook.deliver(sealed(entry=11), {})


def test_rows_that_druid_threw_away_are_a_failure():
    with overlord() as (there, server):
        hook = druid(server.url)
        going = hook.deliver(sealed(), {})
        there.tasks[next(iter(there.tasks))] = "SUCCESS"
        counts = {"processed": 27, "processedWithError": 1, "thrownAway": 2, "unparseable": 0}
        there.report = {"ingestionStatsAndErrors": {"payload": {"rowStats": {"totals": {"buildSegments": counts}}}}}
        with pytest.raises(HookFailed, match="took 28 of 30 rows: 2 lie outside"):
            hook.deliver(sealed(), going.state)


def test_a_bucket_without_rows_is_dropped_from_druid():
    with overlord() as (there, server):
        assert isinstance(druid(server.url).deliver(sealed(rows=0), {}), Receipt)
        assert not there.tasks
    (asked,) = server.asked
    assert asked.path == "/druid/coordinator/v1/datasources/clicks/markUnused"
    assert asked.json() == {"interval": "2026-11-20T05:00:00.000Z/2026-11-20T06:00:00.000Z"}


def test_a_leader_elsewhere_is_followed_with_the_same_request():
    with overlord() as (there, leader):
        with serve_script(lambda asked: Reply(307, b"", {"Location": f"{leader.url}{asked.path}"})) as follower:
            assert isinstance(druid(follower.url).deliver(sealed(), {}), StillRunning)
        assert len(there.tasks) == 1


class Statements:
    """A coordinator that answers a statement on its second page; `columns` is what it knows of the table."""

    def __init__(self) -> None:
        self.columns: list[list[str]] = []
        self.ran: list[str] = []
        self.errors: dict[str, dict[str, str]] = {}  # beginning of a statement → its error
        self.busy = 0

    def __call__(self, asked: HttpRequest) -> Reply:
        if self.busy:
            self.busy -= 1
            return Reply(503)
        if asked.method == "POST":
            self.ran.append(asked.body.decode())
            return Reply(200, {"id": "q", "nextUri": "https://inside.example:9/v1/statement/queued/q/1?slug=x"})
        last = self.ran[-1]
        error = next((error for start, error in self.errors.items() if last.startswith(start)), None)
        if error is not None:
            return Reply(200, {"id": "q", "error": error})
        return Reply(200, {"id": "q", "data": self.columns if "information_schema" in last else []})


@contextmanager
def coordinator() -> Iterator[tuple[Statements, Scripted]]:
    statements = Statements()
    with serve_script(statements) as server:
        yield statements, server


def test_trino_registers_a_delta_table_once_and_then_leaves_it():
    with coordinator() as (there, server):
        settings = Trino(
            type="trino", url=server.url, table="delta.lake.clicks", user="me", password="p", timeout="5 s"
        )
        there.busy = 2
        assert SqlHook(settings).deliver(sealed(), {}) == Receipt("registered")
        made, called = there.ran[1:]
        assert made == "CREATE SCHEMA IF NOT EXISTS delta.lake"
        named = "schema_name => 'lake', table_name => 'clicks', table_location => 'local:///lake/clicks'"
        assert called == f"CALL delta.system.register_table({named})"
        there.columns, there.ran = [["id", "bigint"], ["at", "timestamp(6)"]], []
        assert isinstance(SqlHook(settings).deliver(sealed(), {}), Receipt)
        assert len(there.ran) == 1
    assert {asked.headers["x-trino-user"] for asked in server.asked} == {"me"}
    assert all(asked.headers["authorization"].startswith("Basic ") for asked in server.asked)


def test_presto_synchronises_partitions_and_adds_columns_of_a_parquet_table():
    with coordinator() as (there, server):
        settings = Presto(
            type="presto", url=server.url, table="hive.lake.clicks", location="s3://lake/clicks", analyze=True
        )
        SqlHook(settings).deliver(sealed(form="parquet"), {})
        assert there.ran[2].startswith('CREATE TABLE hive.lake.clicks (\n  "id" bigint,\n  "at" timestamp,')
        assert "external_location = 's3://lake/clicks'" in there.ran[2]
        assert there.ran[3:] == [
            "CALL hive.system.sync_partition_metadata('lake', 'clicks', 'FULL')",
            "ANALYZE hive.lake.clicks",
        ]
        there.columns, there.ran = [["id", "integer"], ["hour", "varchar"]], []
        with pytest.raises(HookFailed, match=r"id is bigint by now and integer in hive\.lake\.clicks\. DROP TABLE"):
            SqlHook(settings).deliver(sealed(form="parquet"), {})
        assert there.ran[1:] == [
            'ALTER TABLE hive.lake.clicks ADD COLUMN "at" timestamp',
            "CALL hive.system.sync_partition_metadata('lake', 'clicks', 'FULL')",
        ]  # first what helps, then what does not go
    assert {asked.headers["x-presto-user"] for asked in server.asked} == {"headrace"}


def test_a_table_that_another_registered_is_no_failure_and_a_refusal_is_one():
    with coordinator() as (there, server):
        hook = SqlHook(Trino(type="trino", url=server.url, table="delta.lake.clicks"))
        there.errors = {"CALL": {"message": "Table already exists: 'lake.clicks'", "errorName": "TABLE_ALREADY_EXISTS"}}
        assert isinstance(hook.deliver(sealed(), {}), Receipt)
        there.errors = {"CALL": {"message": "register_table procedure is disabled", "errorName": "PERMISSION_DENIED"}}
        with pytest.raises(HookFailed, match="register_table procedure is disabled"):
            hook.deliver(sealed(), {})
        server.answer = lambda _: Reply(401, b"Unauthorized")
        with pytest.raises(HookFailed, match=r"401: Unauthorized \(user, password or token\)"):
            hook.deliver(sealed(), {})


def test_a_table_that_goes_by_no_time_is_refused_by_druid_with_a_sentence():
    one = sealed()
    timeless = replace(one, manifest=replace(one.manifest, start=None, end=None))
    with pytest.raises(HookFailed, match="has no interval of time"):
        druid("http://127.0.0.1:1").deliver(timeless, {})


def test_secrets_are_not_in_what_is_shown_of_the_settings():
    settings = Druid(type="druid", url="http://druid:8888", token="t0ken")
    assert "t0ken" not in repr(settings) + str(settings.model_dump())
    assert settings.token == SecretStr("t0ken")
