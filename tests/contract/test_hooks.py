"""Every sealed version of a bucket reaches a hook, at least once, whatever fails or dies in between."""

import io
import shutil
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.writer.hooks.delivery import HookDelivery
from headrace.writer.hooks.dispatcher import HookDispatcher, deliveries, hook_health
from headrace.writer.hooks.outbox import Health, OutboxContent
from headrace.writer.maintenance.retention import Retention
from headrace.writer.output.status_screen import screen
from headrace.writer.output.tables import show
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress
from headrace.writer.table.parquet import LOG
from headrace.writer.web.metrics_export import exposition
from tests.servers.scripted import HttpRequest, Reply, serve_script
from tests.support.hook_rounds import HookRounds
from tests.support.overlord import Overlord
from tests.support.sealed_lake import SealedLake

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OK: Callable[[HttpRequest], Reply] = lambda _: Reply(200)  # noqa: E731


def lake_with(tmp_path: Path, form: str = "delta", **hook: Any) -> tuple[SealedLake, HookDelivery]:
    lake = SealedLake(tmp_path, form, hooks=[{"timeout": "2 s", **hook}])
    (delivery,) = deliveries("clicks", lake.config)
    return lake, delivery


def told(asked: list[HttpRequest]) -> list[tuple[str, int, int]]:
    return [(request.json()["bucket"][0][-2:], request.json()["version"], request.json()["rows"]) for request in asked]


def test_each_version_of_each_bucket_is_told_once_and_in_order(tmp_path: Path, form: str):
    with serve_script(OK) as server:
        lake, delivery = lake_with(tmp_path, form, type="webhook", url=server.url)
        delivery.run_round(NOW)
        lake.add(5, 10)
        lake.add(6, 3)
        lake.seal(5)
        lake.add(5, 2, minute=30)
        lake.seal(6)
        lake.seal(5)
        box = delivery.run_round(NOW)
        assert (box.delivered, len(box.pending), told(server.asked)) == (2, 1, [("05", 1, 10), ("06", 1, 3)])
        assert delivery.run_round(NOW).delivered == 3
        (again,) = deliveries("clicks", lake.config)
        again.run_round(NOW)
        lake.add(6, 1, minute=30)
        lake.seal(6)
        again.run_round(NOW)
    assert told(server.asked) == [("05", 1, 10), ("06", 1, 3), ("05", 2, 12), ("06", 2, 4)]


def test_a_hook_that_is_new_to_the_table_begins_where_its_configuration_says(tmp_path: Path):
    with serve_script(OK) as server:
        both = [
            {"type": "webhook", "url": server.url, "name": name, "start": name} for name in ("latest", "earliest")
        ]  # fmt: skip
        lake = SealedLake(tmp_path, hooks=both)
        for rows in (10, 2):
            lake.add(5, rows)
            lake.seal(5)
        latest, earliest = deliveries("clicks", lake.config)
        assert (latest.run_round(NOW).delivered, earliest.run_round(NOW).delivered) == (0, 1)
        assert told(server.asked) == [("05", 2, 12)]
        lake.add(6, 1)
        lake.seal(6)
        assert (latest.run_round(NOW).delivered, earliest.run_round(NOW).delivered) == (1, 2)


def test_an_outbox_that_is_lost_is_told_and_takes_no_later_seal_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_script(OK) as server, caplog.at_level("INFO"):
        lake, delivery = lake_with(tmp_path, type="webhook", url=server.url)
        delivery.run_round(NOW)
        assert "hook_began" in caplog.text
        lake.add(5, 10)
        lake.seal(5)
        delivery.run_round(NOW)
        shutil.rmtree(delivery.outbox.location)
        lake.add(6, 3)
        lake.seal(6)
        assert "outbox_lost" not in caplog.text
        delivery.run_round(NOW)
    assert "outbox_lost" in caplog.text
    assert told(server.asked) == [("05", 1, 10), ("06", 1, 3)]


def test_a_failure_is_tried_again_after_a_pause_and_keeps_no_other_bucket_waiting(tmp_path: Path):
    broken = True
    with serve_script(lambda asked: Reply(500, b"no") if broken and b"T05" in asked.body else Reply(200)) as server:
        lake, delivery = lake_with(tmp_path, type="webhook", url=server.url)
        delivery.run_round(NOW)
        for hour in (5, 6):
            lake.add(hour, 1)
            lake.seal(hour)
        box = delivery.run_round(NOW)
        (pending,) = box.pending
        assert (box.delivered, pending.bucket, pending.attempts) == (1, ("2026-11-20T05",), 1)
        assert (delivery.health.failures, delivery.health.waiting) == (1, 1)
        assert "answered 500: no" in delivery.health.error
        delivery.run_round(NOW + timedelta(seconds=1))
        assert len(server.asked) == 2
        delivery.run_round(NOW + timedelta(seconds=6))
        broken = False
        assert delivery.run_round(NOW + timedelta(minutes=1)).pending == ()
        assert (delivery.health.error, delivery.health.waiting, delivery.health.oldest) == ("", 0, None)


def test_where_the_log_was_cleaned_up_the_manifests_tell(tmp_path: Path):
    with serve_script(OK) as server:
        lake, delivery = lake_with(tmp_path, "parquet", type="webhook", url=server.url)
        position = delivery.run_round(NOW).position
        for hour in (5, 6):
            lake.add(hour, 1)
            lake.seal(hour)
        newest = lake.table.snapshot()
        lake.table._format.log.checkpoint(newest.state)
        for version in range(position + 1, newest.version):
            (Path(lake.table.location) / LOG / f"{version:020}.json").unlink()
        (fresh,) = deliveries("clicks", lake.config)
        assert fresh.run_round(NOW).delivered == 2
        assert (fresh.health.delivered, fresh.health.delivered_since_start) == (2, 2)
        (restarted,) = deliveries("clicks", lake.config)
        restarted.run_round(NOW)
        assert (restarted.health.delivered, restarted.health.delivered_since_start) == (2, 0)
    assert sorted(told(server.asked)) == [("05", 1, 1), ("06", 1, 1)]


def test_a_seal_whose_manifest_is_still_to_be_put_waits_for_it(tmp_path: Path):
    with serve_script(OK) as server:
        lake, delivery = lake_with(tmp_path, type="webhook", url=server.url)
        delivery.run_round(NOW)
        lake.add(5, 1)
        manifest = lake.seal(5, put=False)
        (pending,) = delivery.run_round(NOW).pending
        assert (pending.attempts, pending.error) == (0, "its manifest is not there yet")
        lake.sealer.manifests.put(manifest)
        assert delivery.run_round(NOW + timedelta(seconds=2)).delivered == 1


def test_of_versions_that_wait_druid_gets_the_newest_and_so_many_at_once_as_it_may(tmp_path: Path):
    druid = Overlord()
    with serve_script(druid) as server:
        lake, delivery = lake_with(tmp_path, type="druid", url=server.url, at_once=1)
        delivery.run_round(NOW)
        for hour in (5, 6):
            lake.add(hour, 10)
            lake.seal(hour)
        lake.add(5, 20, minute=30)
        lake.seal(5)
        lake.add(5, 3, minute=40)  # after the seal: not part of it
        box = delivery.run_round(NOW)
        assert (len(druid.tasks), len(box.pending), box.superseded) == (1, 2, 1)
        assert delivery.next_due(box) > NOW
        druid.report = _took(10)
        druid.tasks = dict.fromkeys(druid.tasks, "SUCCESS")
        box = delivery.run_round(NOW + timedelta(seconds=3))
        assert (box.delivered, len(druid.tasks)) == (1, 2)
        druid.report, druid.tasks = _took(30), dict.fromkeys(druid.tasks, "SUCCESS")
        assert delivery.run_round(NOW + timedelta(seconds=6)).delivered == 2
    sources = [spec["spec"]["ioConfig"]["inputSource"]["files"] for spec in druid.specs]
    assert [len(files) for files in sources] == [1, 2]


def test_a_bucket_that_retention_took_is_told_of_as_retired_and_druid_forgets_it(tmp_path: Path):
    druid = Overlord()
    druid.report = _took(10)
    with serve_script(OK) as posted, serve_script(druid) as server:
        hooks = [{"type": "webhook", "url": posted.url}, {"type": "druid", "url": server.url}]
        lake = SealedLake(tmp_path, hooks=hooks)
        both = deliveries("clicks", lake.config)
        for delivery in both:
            delivery.run_round(NOW)
        lake.add(5, 10)
        lake.add(6, 1)
        lake.seal(5)
        (dropped,) = Retention(lake.table, lake.bucketer, timedelta(days=1)).run(NOW.replace(day=21, hour=6))
        assert dropped.buckets == (("2026-11-20T05",),)
        for delivery in both:
            delivery.run_round(NOW)
            assert delivery.run_round(NOW).pending == ()
        assert [request.json()["retired"] for request in posted.asked] == [False, True]
        assert len({request.headers["webhook-id"] for request in posted.asked}) == 2
        assert server.asked[-1].path.endswith("/markUnused")
        assert not druid.tasks  # the newest is enough: there is nothing to ingest


def _took(rows: int) -> Any:
    return {"ingestionStatsAndErrors": {"payload": {"rowStats": {"buildSegments": {"processed": rows}}}}}


_POINTS = {
    "webhook": ("hook_take:1", "hook_take:2", "hook_taken:2", "hook_delivered:1", "hook_noted:1"),
    "druid": ("hook_taken:2", "hook_submitted:1", "hook_delivered:1", "hook_noted:1"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "point"), [(kind, point) for kind, points in _POINTS.items() for point in points])
def test_whatever_moment_it_is_killed_at_each_seal_is_delivered(tmp_path: Path, point: str, kind: str):
    druid, posted = Overlord(), list[str]()

    def answer(asked: HttpRequest) -> Reply:
        if kind == "webhook":
            posted.append(asked.headers["idempotency-key"])
            return Reply(200)
        druid.report = _took(10)
        reply = druid(asked)
        druid.tasks = dict.fromkeys(druid.tasks, "SUCCESS")
        return reply

    with serve_script(answer) as server:
        lake, delivery = lake_with(tmp_path, type=kind, url=server.url, start="earliest")
        rounds = HookRounds(lake, tmp_path, {"type": kind, "url": server.url, "timeout": "2 s", "start": "earliest"})
        if not point.startswith("hook_take:1"):
            delivery.take_up()
        for hour in (5, 6):
            lake.add(hour, 10)
            lake.seal(hour)
        fault = point.replace(":2", ":1") if not point.startswith("hook_take:1") else point
        rounds.kill_at(fault)
        rounds.run()
    box = delivery.outbox.read()
    assert (box.pending, box.position) == ((), lake.table.snapshot().version)
    if kind == "webhook":
        assert len(set(posted)) == 2
        assert len(posted) <= 3  # one may come twice, under one id
    else:
        assert len(druid.tasks) == len(druid.specs) == 2


def test_a_driver_delivers_in_threads_of_their_own_and_ends_while_a_server_hangs(tmp_path: Path):
    heard: dict[str, Health] = {}
    with serve_script(OK) as server:
        hooks = [
            {"type": "webhook", "url": server.url, "name": "good", "start": "earliest"},
            {"type": "webhook", "url": "http://127.0.0.1:9", "name": "bad", "start": "earliest", "timeout": "1 s"},
        ]
        lake = SealedLake(tmp_path, hooks=hooks)
        lake.add(5, 10)
        lake.seal(5)
        delivery = HookDispatcher("clicks", deliveries("clicks", lake.config), heard.update)
        delivery.start()
        try:
            _until(lambda: heard["good"].delivered == 1 and heard["bad"].failures == 1)
            lake.add(6, 10)
            lake.seal(6)
            delivery.wake()
            _until(lambda: heard["good"].delivered == 2 and heard["bad"].waiting == 2)
        finally:
            delivery.close()
    assert "cannot reach http://127.0.0.1:9" in heard["bad"].error


def test_a_stop_waits_for_all_hooks_together_and_not_for_each(tmp_path: Path):
    hooks = [{"type": "webhook", "url": "http://127.0.0.1:9", "name": name, "start": "earliest"} for name in "abcd"]
    lake = SealedLake(tmp_path, hooks=hooks)
    may_end = threading.Event()
    busy = threading.Semaphore(0)
    dispatcher = HookDispatcher("clicks", deliveries("clicks", lake.config), lambda _: None)
    for delivery in dispatcher._deliveries:

        def hang(_: datetime) -> OutboxContent:
            busy.release()
            assert may_end.wait(60)
            return OutboxContent(-1)

        delivery.run_round = hang
    dispatcher.start()
    try:
        assert all(busy.acquire(timeout=60) for _ in hooks)
        began_s = time.monotonic()
        dispatcher.close(last=True)
        assert time.monotonic() - began_s < 2 * len(hooks) - 1, "two seconds, as it says, and not for each"
    finally:
        may_end.set()


def test_how_the_hooks_are_is_in_status_and_metrics(tmp_path: Path):
    progress = Progress("clicks", now=lambda: NOW)
    sealed = NOW - timedelta(minutes=5)
    progress.set(hooks={"druid": Health("http://druid", 40, 2, 1, sealed, "no disk", 3)})
    pipeline_document = document([progress.view()], NOW)["pipelines"]["clicks"]
    assert pipeline_document["hooks"]["druid"] == {
        "target": "http://druid", "delivered": 40, "delivered_since_start": 3, "failures": 2, "waiting": 1,
        "oldest_waiting_seconds": 300.0, "error": "no disk",
    }  # fmt: skip
    out = Console(file=io.StringIO(), width=200)
    show(screen({"pipelines": {"clicks": pipeline_document}}), out)
    assert "hook druid" in out.file.getvalue()
    assert "40 delivered, 3 of them since the start, 1 waiting, the oldest for 5 min; no disk" in out.file.getvalue()
    page = exposition({"clicks": progress}, "")[0].decode()
    assert 'headrace_hook_deliveries_total{hook="druid",pipeline="clicks"} 3.0' in page
    assert 'headrace_hook_pending{hook="druid",pipeline="clicks"} 1.0' in page
    lake = SealedLake(tmp_path, hooks=[{"type": "webhook", "url": "http://127.0.0.1:9/s", "start": "earliest"}])
    lake.add(5, 1)
    lake.seal(5)
    assert hook_health("clicks", lake.config)["webhook"].waiting == 0  # it never looked
    deliveries("clicks", lake.config)[0].take_up()
    assert hook_health("clicks", lake.config)["webhook"] == Health(
        "http://127.0.0.1:9", 0, 0, 1, lake.sealer.sealed[0].sealed_at
    )


def _until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
