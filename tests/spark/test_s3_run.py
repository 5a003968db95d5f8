"""The real writer with tables and checkpoints in a bucket."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from headrace.writer.clients.java_artifacts import spark_release
from headrace.writer.storage.locations import delta_options
from headrace.writer.storage.settings import S3Settings, StoreSettings
from tests.servers.faulty import STRIP, proxy
from tests.servers.objects import SECRET, ObjectServer, moto
from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow


def said(site: Site, *words: str) -> str:
    """What a verb of the command says, with all that it writes to standard error."""
    found = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", words[0], str(site.config), *words[1:]],
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_a_table_in_a_bucket_survives_a_kill_and_a_bad_network_and_is_seen_by_all_verbs(
    site: Site, topic: Callable[..., str], s3: ObjectServer, tmp_path: Path
) -> None:
    bucket, name = s3.bucket(), topic(2, prefix="clicks")
    site.overrides = {"checkpoints": f"{bucket}/checkpoints", "s3": {"endpoint": s3.url}}
    site.pipeline("clicks", [name], table={"location": f"{bucket}/lake/clicks", "entropy_bits": 3})
    site.fill(name, 3_000, broken=20)
    checked = json.loads(said(site, "validate", "--json"))["findings"]
    assert {f["status"] for f in checked} <= {"ok", "warning", "not_checked"}, checked
    assert any("commits are exclusive there" in f["message"] for f in checked if f["check"] == "table")

    logs = site.once(env={"HEADRACE_FAULT": "before_redo:1"}, code=-9)
    site.fill(name, 2_000, seed=8)
    with proxy(s3.url, tmp_path) as faults:
        site.overrides["s3"] = {"endpoint": faults.url}
        faults.draw(7, 0.05)
        logs += site.once()
        assert sum(faults.done.values()) > 5
    site.overrides["s3"] = {"endpoint": s3.url}
    logs += site.once()
    # The kill left a planned batch in the bucket. The starts go on from there, if Spark can read it again.
    runs = 1 if spark_release().replays_planned_batches else 2
    assert logs.count("run_started") == runs

    lake = tmp_path / "copy" / "clicks"
    s3.download(f"{bucket}/lake/clicks", lake)
    s3.download(f"{bucket}/lake/clicks_dead_letters", lake.with_name("clicks_dead_letters"))
    oracle.check(lake, "clicks", site.ends(name))
    paths = list(oracle.replay(lake).files)
    assert {len(path.split("/")[0]) for path in paths} == {3}
    assert all(set(path.split("/")[0]) <= {"0", "1"} and path.split("/")[1].startswith("hour=") for path in paths)

    location = f"{bucket}/lake/clicks"
    theirs = DeltaTable(location, storage_options=delta_options(location, StoreSettings(S3Settings(s3.url))))
    assert theirs.count() == oracle.rows(lake, "count(*)")[0][0]
    hours = duckdb.execute(
        "SELECT count(DISTINCT hour) FROM read_parquet($1, hive_partitioning = true)",
        [[str(lake / path) for path in paths]],
    ).fetchone()
    assert hours == (len({bucket["hour"] for bucket in theirs.partitions()}),)

    status = json.loads(said(site, "status", "--json"))["pipelines"]["clicks"]
    assert (status["state"], status["source"]) == ("unknown", "lake")
    (examined,) = json.loads(said(site, "doctor", "--json"))["checkpoints"]
    checks = {check["name"]: check["ok"] for check in examined["checks"]}
    assert (examined["leads_to"], checks["witness"], checks["frontier"]) == (None, True, True), examined
    assert [key for key in s3.keys(f"{bucket}/checkpoints") if "/copies/" in key]
    explained = said(site, "explain", "--json")
    assert json.loads(explained)["pipelines"]["clicks"]["version"] == status["last_commit"]["version"]
    previewed = said(site, "preview", "--at", "staged", "--json")
    assert "hour=" in previewed
    for text in (logs, json.dumps(checked), json.dumps(status), explained, previewed):
        assert SECRET not in text
    assert not [key for key in s3.keys(f"{bucket}/lake") if "probe" in key or key.endswith(("/", ".tmp"))]


def test_a_parquet_table_in_a_bucket_is_exact_after_a_kill_between_two_of_its_files(
    site: Site, topic: Callable[..., str], s3: ObjectServer, tmp_path: Path
) -> None:
    bucket, name = s3.bucket(), topic(2, prefix="clicks")
    site.overrides = {"s3": {"endpoint": s3.url}}
    site.pipeline("clicks", [name], table={"location": f"{bucket}/lake/clicks", "format": "parquet"})
    site.fill(name, 3_000, broken=20)
    site.once(env={"HEADRACE_FAULT": "publish:2"}, code=-9)
    begun = s3.keys(f"{bucket}/lake/clicks")
    assert len([key for key in begun if key.endswith(".parquet")]) < len([key for key in begun if ".staged" in key])
    site.fill(name, 2_000, seed=8)
    site.once()
    after = s3.keys(f"{bucket}/lake")
    assert not [key for key in after if ".staged" in key]
    lake = tmp_path / "copy" / "clicks"
    s3.download(f"{bucket}/lake/clicks", lake)
    s3.download(f"{bucket}/lake/clicks_dead_letters", lake.with_name("clicks_dead_letters"))
    oracle.check(lake, "clicks", site.ends(name))
    checked = json.loads(said(site, "validate", "--json"))["findings"]
    assert {f["status"] for f in checked} <= {"ok", "warning", "not_checked"}, checked
    status = json.loads(said(site, "status", "--json"))["pipelines"]["clicks"]
    assert (status["state"], status["error"]) == ("unknown", "")
    assert status["buckets"] == len({key.split("/")[1] for key in after if key.startswith("clicks/hour=")})
    assert (
        json.loads(said(site, "explain", "--json"))["pipelines"]["clicks"]["version"]
        == status["last_commit"]["version"]
    )


@pytest.mark.usefixtures("s3")  # for its credentials
def test_a_start_on_a_store_that_ignores_put_if_absent_ends_before_there_is_a_table(
    site: Site, topic: Callable[..., str], tmp_path: Path
) -> None:
    with moto(tmp_path) as server, proxy(server.url, tmp_path) as careless:  # who checks signatures misses the header
        bucket = server.bucket()
        careless.always(STRIP)
        site.overrides = {"s3": {"endpoint": careless.url}}
        site.pipeline("clicks", [topic()], table={"location": f"{bucket}/clicks"})
        text = site.once(code=2)
        assert "so two writers could both commit, and one of the commits would be lost" in text
        assert server.keys(bucket) == []
