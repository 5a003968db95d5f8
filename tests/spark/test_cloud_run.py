"""The real writer with tables in Google Cloud Storage and Azure Blob Storage, and checkpoints on a disk."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from headrace.writer.config.loader import load
from headrace.writer.storage.locations import delta_options
from headrace.writer.table.iceberg.catalog.catalog_client import client_settings
from tests.servers.cloud_stores import KEY, AzureStore, GcsStore
from tests.servers.faulty import proxy
from tests.support import oracle
from tests.support.lake_stores import full_azure_name
from tests.support.store_requests import wait_for_equal_tally
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow

CloudServer = GcsStore | AzureStore


@pytest.fixture
def server(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CloudServer]:
    """A server that plays the cloud, which clients find by the environment alone, and whose requests are counted."""
    found: CloudServer = request.getfixturevalue({"gs": "on_gcs", "az": "on_azure"}[kind])
    if kind != "az" or os.environ.get("HEADRACE_TEST_AZURE") != "azurite":
        yield found
        return
    # Azurite counts none.
    (tmp_path / "counts").mkdir()
    with proxy(f"http://{found.host}", tmp_path / "counts") as counts:
        behind = found.behind(counts.url)
        for name, value in behind.environment.items():
            monkeypatch.setenv(name, value)
        yield behind


def settings_of(server: CloudServer) -> dict[str, Any]:
    """Return the sections that say where the cloud is."""
    if isinstance(server, AzureStore):
        return {"azure": {"account": server.account, "endpoint": server.url}}
    return {"gcs": {"endpoint": server.url}}


def said(site: Site, *words: str) -> str:
    """Return what a verb of the command says, with all that it writes to standard error."""
    command = [sys.executable, "-m", "headrace.writer.cli", words[0], str(site.config), *words[1:]]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def check_copy(server: CloudServer, lake: str, site: Site, topic: str) -> Path:
    """Copy all tables of the lake, and assert that each record is there once. Returns the copy of the main table."""
    copy = site.root / "copy"
    server.download(lake, copy)
    oracle.check(copy / "clicks", "clicks", site.ends(topic))
    return copy / "clicks"


def run_and_count(site: Site, server: CloudServer, kind: str) -> Counter[tuple[str, str]]:
    """Let a driver read to the end. Returns its requests by purpose and kind, which are all that the server saw."""
    site.overrides["kafka"] = {
        "bootstrap_servers": site.writer_address, "request_timeout": "10 s", "reader": site.reader,
        "lag_interval": "1 s",
    }  # fmt: skip
    before = server.asked
    writer = site.start()
    try:
        writer.until(lambda: writer.commits() > 0 and backlog(site) == 0)
        counted = wait_for_equal_tally(kind, server, before, site, writer, "clicks")
        writer.stop()
    finally:
        if writer.process.poll() is None:
            writer.kill()
    return counted


def backlog(site: Site) -> int | None:
    """Return how many offsets of the topic are not committed, as the driver says; None: it does not know."""
    driver = json.loads((site.root / "checkpoints" / "clicks" / "driver.json").read_text())
    with urlopen(f"{driver['url']}/status", timeout=60) as response:
        offsets: int | None = json.load(response)["pipelines"]["clicks"]["lag"]["offsets"]
    return offsets


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_a_delta_table_survives_a_kill_and_a_bad_network_and_is_seen_by_all_verbs(
    site: Site, topic: Callable[..., str], server: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, name = f"{server.bucket()}/lake", topic(2, prefix="clicks")
    location = f"{lake}/clicks"
    site.overrides = settings_of(server)
    site.pipeline("clicks", [name], table={"location": location, "raw": f"{location}_raw", "entropy_bits": 3})
    site.fill(name, 3_000, broken=20)
    checked = json.loads(said(site, "validate", "--json"))["findings"]
    assert {f["status"] for f in checked} <= {"ok", "warning", "not_checked"}, checked
    assert any("commits are exclusive there" in f["message"] for f in checked if f["check"] == "table")

    logs = site.once(env={"HEADRACE_FAULT": "before_redo:1"}, code=-9)
    site.fill(name, 2_000, seed=8)
    with proxy(f"http://{urlsplit(server.url).netloc}", tmp_path) as faults:
        behind = server.behind(faults.url)
        site.overrides |= settings_of(behind)
        with monkeypatch.context() as patch:
            for variable, value in behind.environment.items():
                patch.setenv(variable, value)
            faults.draw(7, 0.05)
            logs += site.once()
        assert sum(faults.done.values()) > 5
    site.overrides |= settings_of(server)
    logs += site.once()
    assert len(json.loads(said(site, "explain", "--json"))["pipelines"]) == 1

    copy = check_copy(server, lake, site, name)
    config = load(site.config)
    theirs = DeltaTable(location, storage_options=delta_options(location, config.stores))
    assert theirs.count() == oracle.rows(copy, "count(*)")[0][0]
    status = json.loads(said(site, "status", "--json"))["pipelines"]["clicks"]
    assert (status["state"], status["source"]) == ("unknown", "lake")
    for text in (logs, json.dumps(checked), json.dumps(status)):
        assert KEY not in text
    assert not [key for key in server.keys(lake) if "probe" in key or key.endswith(("/", ".tmp"))]


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_a_parquet_table_is_exact_after_a_kill_between_two_of_its_files(
    site: Site, topic: Callable[..., str], server: CloudServer, kind: str
) -> None:
    lake, name = f"{server.bucket()}/lake", topic(2, prefix="clicks")
    site.overrides = settings_of(server)
    table = {"location": f"{lake}/clicks", "format": "parquet"}
    site.pipeline("clicks", [name], table=table, commit={"max_delay": "1 s"})
    site.fill(name, 3_000, broken=20)
    site.once(env={"HEADRACE_FAULT": "publish:2"}, code=-9)
    site.fill(name, 2_000, seed=8)
    counted = run_and_count(site, server, kind)
    assert counted["data", "put"] > 0, "its tasks put files"
    assert counted["log", "put"] > 0, "it commits itself"
    assert not [key for key in server.keys(lake) if ".staged" in key]
    check_copy(server, lake, site, name)


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_an_iceberg_table_has_each_record_once_after_a_kill(
    site: Site, topic: Callable[..., str], server: CloudServer, kind: str
) -> None:
    lake, name = f"{server.bucket()}/lake", topic(2, prefix="clicks")
    if isinstance(server, AzureStore):
        lake = full_azure_name(lake, server.account)
    location = f"{lake}/clicks"
    site.overrides = settings_of(server)
    table = {"location": location, "format": "iceberg"}
    site.pipeline("clicks", [name], table=table, commit={"max_delay": "1 s"})
    site.fill(name, 3_000)
    site.once(env={"HEADRACE_FAULT": "after_commit:1"}, code=-9)
    site.fill(name, 2_000, seed=8)
    counted = run_and_count(site, server, kind)
    assert counted["data", "put"] > 0, "its tasks put files"
    assert counted["log", "put"] > 0, "it puts manifests and metadata"

    config = load(site.config)
    catalog_table = config.catalog_place("clicks", location)
    assert catalog_table is not None
    iceberg = load_catalog(catalog_table.catalog, **client_settings(catalog_table, location, config.stores)).load_table(
        catalog_table.identifier
    )
    rows = iceberg.scan(selected_fields=("_kafka_partition", "_offset")).to_arrow()
    places = sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    assert places == sorted((place[1], offset) for place, end in site.ends(name).items() for offset in range(end))
    assert os.environ.get("AZURE_STORAGE_ACCOUNT_KEY", "none") not in json.dumps(
        iceberg.metadata.model_dump(mode="json")
    )
