"""The demo with its tables in a bucket: it accounts for every event there, and leaves nothing that it does not name."""

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.cloud_stores import KEY
from tests.servers.objects import SECRET
from tests.support.demo_process import SUM, Demo, numbers, run_demos
from tests.support.lake_stores import full_azure_name

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Each store has another format of tables.
FORMS = {"s3": "delta", "gs": "parquet", "az": "iceberg"}
FIXTURES = {"s3": "on_s3", "gs": "on_gcs", "az": "on_azure"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Start a demo; none of its processes outlives the test."""
    with run_demos(tmp_path) as start_demo:
        yield start_demo


def run_hint(demo: Demo, title: str, *more: str) -> str:
    """Run the command that the demo shows below a title, with `more` behind it. Returns what it says."""
    arguments = shlex.split(demo.output().split(f"\n{title}\n")[1])
    # Another hint may follow: each begins with the interpreter.
    follows = [n for n, argument in enumerate(arguments) if n and argument == arguments[0]]
    command = arguments[: follows[0] - 3] if follows else arguments
    return subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", FORMS)
def test_every_event_is_accounted_for_in_a_bucket(
    request: pytest.FixtureRequest, start: Callable[..., Demo], kind: str, tmp_path: Path
) -> None:
    server: Any = request.getfixturevalue(FIXTURES[kind])
    bucket = server.bucket()
    location = full_azure_name(bucket, server.account) if kind == "az" else bucket
    kept = tmp_path / "kept"
    demo = start(
        "--events", "3000", "--lake", f"{location}/demo", "--keep", str(kept), "--table-format", FORMS[kind]
    )  # fmt: skip
    assert demo.process.wait(400) == 0, demo.output()
    assert demo.alive() == {}
    assert demo.output().startswith("headrace demo: 3,000 events of Avro, everything on this machine but the lake\n")
    match = SUM.search(demo.output())
    assert match
    produced, rows, quarantined, dead_letters, lost, twice = numbers(match.groups())
    assert (produced, rows + quarantined + dead_letters, lost, twice) == (3_000, 3_000, 0, 0)
    assert min(quarantined, dead_letters) > 0
    assert "\n  every row has the values of its event: a digest of 26 columns is equal\n" in demo.output()
    assert "\n✓ topic app, 2 tables: 200 produced = 100 rows of Click + 100 rows of Install\n" in demo.output()
    assert re.search(rf"\nlake +{re.escape(location)}/demo/events\n", demo.output())
    assert not (kept / "lake").exists()
    assert (kept / "checkpoints").is_dir()
    assert list(demo.temporary.iterdir()) == []
    for text in (demo.output(), (kept / "headrace.yaml").read_text(), (kept / "writer.log").read_text()):
        assert KEY not in text
        assert SECRET not in text

    assert "clicks" in run_hint(demo, "ask DuckDB")
    count = len(server.keys(f"{bucket}/demo"))
    assert run_hint(demo, "remove the tables").startswith(f"{count:,} objects of ")
    assert run_hint(demo, "remove the tables", "--yes") == f"{count:,} objects removed from {location}/demo\n"
    assert server.keys(bucket) == []


def test_a_demo_that_is_stopped_leaves_nothing_in_its_s3_bucket(start: Callable[..., Demo], on_s3: Any) -> None:
    bucket = on_s3.bucket()
    demo = start("--events", "3000", "--lake", f"{bucket}/demo")
    demo.until("writer started")
    assert any(key.startswith("demo/events/") for key in on_s3.keys(bucket))
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(60) == 128 + signal.SIGINT, demo.output()
    assert demo.output().splitlines()[-2:] == [f"{bucket}/demo is empty again", "stopped; nothing is left running"]
    assert on_s3.keys(bucket) == []
    assert demo.alive() == {}
    assert list(demo.temporary.iterdir()) == []
