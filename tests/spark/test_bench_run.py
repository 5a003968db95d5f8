"""The bench as a user runs it, with real servers and little to carry."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from headrace.bench.contenders.contenders import PIPELINE
from tests.support import oracle
from tests.support.table_formats import delta_table

pytestmark = pytest.mark.slow


def test_the_contenders_carry_every_event(tmp_path):
    found, kept = tmp_path / "found.json", tmp_path / "kept"
    options = ["--events", "40K", "--contenders", "a,b,d", "--profile", "--json", str(found), "--keep", str(kept)]
    done = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "bench", *options],
        check=False, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {run["contender"]: run for run in json.loads(found.read_text())["runs"]}
    assert set(runs) == {"headrace", "plain", "limit"}
    for run in runs.values():
        assert run["written"]["rows"] == run["marks"][-1]["events"] == 40_000
        assert len(run["marks"]) == 4
    assert runs["limit"]["end"]["jvm_s"] == 0 < runs["headrace"]["end"]["jvm_s"]
    assert runs["headrace"]["marks"][1]["steps"]["decode"] > 0
    assert "headrace against plain" in done.stdout
    assert "JVM, tasks" in done.stdout
    assert {path.name for path in kept.iterdir()} == {"1-a-headrace", "1-b-plain", "1-d-limit"}


def test_json_and_protobuf_are_carried_beside_avro_by_those_that_read_them(tmp_path):
    found, kept = tmp_path / "found.json", tmp_path / "kept"
    sets = ["--data", "200B,200B-json-rest,200B-protobuf"]
    options = [*sets, "--events", "20K", "--contenders", "a,d", "--json", str(found), "--keep", str(kept)]
    done = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "bench", *options],
        check=False, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {run["contender"]: run for run in json.loads(found.read_text())["runs"]}
    assert list(runs) == ["headrace", "limit", "headrace 200B-json-rest", "headrace 200B-protobuf"]
    assert {run["written"]["rows"] for run in runs.values()} == {20_000}
    assert runs["headrace 200B-json-rest"]["value_bytes"] > 2 * runs["headrace"]["value_bytes"]
    assert "200B-json-rest against 200B" in done.stdout
    place = kept / "events-200B-json-rest-1-a-headrace"
    (values,) = oracle.rows(place / "table", "count(COLUMNS(*))")
    assert min(values) > 0, "each declared column has values"
    assert oracle.rows(place / "table", "DISTINCT json_keys(rest)") == [(["battery", "build", "consent"],)]


def test_topics_of_many_partitions_are_filled_evenly_and_carried(tmp_path):
    found, kept = tmp_path / "found.json", tmp_path / "kept"
    options = ["--partitions", "30", "--events", "12K", "--json", str(found), "--keep", str(kept)]
    done = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "bench", *options],
        check=False, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    topics = json.loads(found.read_text())["topics"]
    assert [(one["partitions"], one["events"]) for one in topics] == [(30, 6_000), (30, 12_000)]
    for topic, each in (("sparse-30", 200), ("dense-30", 400)):
        (committed,) = delta_table(f"{kept}/{topic}-1-a-headrace/table", PIPELINE).commits_since(-1)
        assert {account["read"] for account in committed.facts["ranges"]} == {each}
    assert "12,000 events at once, rows checked" in done.stdout


def test_a_killed_bench_leaves_nothing_running(tmp_path):
    kept = tmp_path / "kept"
    bench = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "headrace.writer.cli",
            "bench",
            "--events",
            "40K",
            "--contenders",
            "a",
            "--keep",
            str(kept),
        ],
        stdout=subprocess.DEVNULL,
    )
    log = kept / "1-a-headrace" / "output.log"
    deadline = time.monotonic() + 120
    while not (log.exists() and "pipeline_started" in log.read_text()):
        assert bench.poll() is None, "the bench ended early"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    family = psutil.Process(bench.pid).children(recursive=True)
    bench.kill()
    bench.wait()
    _, left = psutil.wait_procs(family, timeout=30)
    for process in left:
        process.kill()
    assert len(family) >= 4  # broker, registry, the writer and its JVM
    assert left == []
