"""Hooks of a real driver: a server that is away holds nothing up, a driver that is killed forgets nobody."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.writer.config.loader import load
from headrace.writer.hooks.dispatcher import hook_health
from headrace.writer.sealing.bucket_listing import BucketListing
from headrace.writer.sealing.bucket_states import ListedBucket
from tests.servers.scripted import HttpRequest, Reply, serve_script
from tests.support import oracle
from tests.support.lake_stores import new_home
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def say(*words: str) -> Any:
    command = [sys.executable, "-m", "headrace.writer.cli", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def buckets(site: Site) -> list[ListedBucket]:
    return BucketListing("events", load(site.config), datetime.now(UTC)).list_buckets(None)


def waiting(site: Site) -> int:
    (health,) = hook_health("events", load(site.config)).values()
    return health.waiting


def versions(asked: list[HttpRequest]) -> dict[str, list[int]]:
    """Versions that were told of each bucket, each once, in the order they came."""
    found: dict[str, list[int]] = {}
    for one in {one.headers["webhook-id"]: one for one in asked}.values():
        found.setdefault(one.json()["bucket"][0], []).append(one.json()["version"])
    return found


def settings_of(request: pytest.FixtureRequest, kind: str) -> tuple[dict[str, Any], str | None, Any]:
    """Return the sections that say where a store is, a location in it, and its server; nothing of a local disk."""
    if kind == "local":
        return {}, None, None
    home = new_home(request, kind, Path())
    server = request.getfixturevalue({"gs": "on_gcs", "az": "on_azure"}[kind])
    if kind == "az":
        return {"azure": {"account": server.account, "endpoint": server.url}}, f"{home}/lake", server
    return {"gcs": {"endpoint": server.url}}, f"{home}/lake", server


@pytest.mark.parametrize("kind", ["local", "gs", "az"])
def test_each_sealed_version_is_delivered_when_a_server_is_away_or_a_driver_dies(
    site: Site, topic: Callable[..., str], request: pytest.FixtureRequest, kind: str
) -> None:
    """With dead letters, raw values and late rows beside, on a disk and in a cloud."""
    name = topic(2)
    site.overrides, home, store_server = settings_of(request, kind)
    lake = home or str(site.root / "lake")
    with serve_script(lambda _: Reply(503)) as server:
        hook = {"type": "webhook", "url": server.url, "timeout": "5 s"}
        table = {"location": f"{lake}/events", "raw": f"{lake}/events_raw"}
        site.pipeline("events", [name], table=table, seal={"reopen_after": "0 s"}, hooks=[hook])
        site.fill(name, 400, seed=1, broken=5)
        output = site.once()
        assert "bucket_sealed" in output
        assert "hook_failed" in output
        sealed = buckets(site)
        assert {bucket.state.name for bucket in sealed} == {"sealed"}
        assert waiting(site) == len(sealed)
        server.answer = lambda _: Reply(200)
        server.asked.clear()
        writer = site.start(env={"HEADRACE_FAULT": "hook_delivered:1"})
        assert writer.wait(120) == -signal.SIGKILL
        site.fill(name, 60, seed=2)
        running = site.start()
        late = len(sealed) + 1
        running.until(lambda: sum(map(len, versions(server.asked).values())) >= late, 400)
        bucket = next(bucket for bucket, told in versions(server.asked).items() if told[-1] == 2)
        (awaited,) = say("wait", str(site.config), "--sealed", bucket, "--version", "2")["buckets"]
        assert awaited["manifest"]["added"] > 0
        running.until(lambda: waiting(site) == 0 and {bucket.state.name for bucket in buckets(site)} == {"sealed"}, 400)
        status = say("status", str(site.config))["pipelines"]["events"]
        assert (status["source"], status["hooks"]["webhook"]["waiting"]) == ("driver", 0)
        running.stop()
    told = versions(server.asked)
    newest = {one.key[0]: one.manifest.version for one in buckets(site)}
    assert {bucket: list(range(1, version + 1)) for bucket, version in newest.items()} == told
    last = {one.json()["bucket"][0]: one.json()["rows"] for one in server.asked}
    assert sum(last.values()) == sum(one.rows for one in buckets(site))
    if store_server is not None:
        store_server.download(lake, site.root / "lake")
    oracle.check(site.root / "lake" / "events", "events", site.ends(name))
    assert sum(delta_rows(site.root / "lake" / "events_raw")) == sum(site.ends(name).values())


def delta_rows(table: Path) -> list[int]:
    """Return the rows of each file of a Delta table."""
    return [int(rows) for rows in pa.table(DeltaTable(table).get_add_actions())["num_records"].to_pylist()]
