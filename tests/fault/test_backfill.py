"""What was skipped comes back beside the live writer: from Kafka, from a mirror, from an archive; exact, and once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.writer.audit.audit import audit
from headrace.writer.clients.driver_endpoint import DriverAlive, check_no_driver
from headrace.writer.config.loader import load
from headrace.writer.table.factory import main_table
from headrace.writer.table.gap_records import gap_records
from headrace.writer.table.ledger.gap_record import GapRecord
from tests.servers.login_broker import writer_address
from tests.support import oracle
from tests.support.backfill_run import COMMAND, MakeTopic, check_offsets, headrace, start_writer
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def gap_record(site: Site) -> GapRecord:
    (found,) = gap_records(main_table("events", load(site.config)), "events").values()
    return found


def skip_records(site: Site, name: str, count: int, *, partitions: int = 2) -> tuple[Path, int]:
    """Carry some records, then skip many that wait. Returns the lake, and how many were skipped."""
    lake = site.pipeline("events", [name], commit={"max_delay": "2 s"})
    site.fill(name, 600, broken=3)
    site.once()
    waiting = site.fill(name, count, seed=8, broken=5)
    assert len(site.ends(name)) == partitions
    shown = json.loads(headrace(site, "gaps", "open", "--reason", "a test", "--json"))
    assert (shown["offsets"], shown["kafka_holds"], shown["version"]) == (waiting, waiting, None)
    headrace(site, "gaps", "open", "--reason", "a test", "--yes")
    return lake, waiting


@pytest.mark.cell("records are skipped on purpose", "and brought back beside the live writer")
def test_a_skip_beside_a_live_stream_is_filled_from_kafka_and_the_audit_is_clean(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake, waiting = skip_records(site, name, 3_000)
    writer = start_writer(site, name, lake)
    assert f"{waiting:,} of {waiting:,} offsets are there" in headrace(site, "backfill", "--dry-run")
    with pytest.raises(DriverAlive, match="a driver of pipeline 'events' runs"):
        check_no_driver(load(site.config), "events", "Stop it.")
    stop = threading.Event()
    feeding = threading.Thread(target=_feed, args=(site, name, stop))
    feeding.start()
    try:
        out = [
            json.loads(line) for line in headrace(site, "backfill", "--yes", "--chunk-rows", 400, "--json").splitlines()
        ]
    finally:
        stop.set()
        feeding.join()
    assert out[-1]["gaps"][0]["state"] == "done"
    assert len([one for one in out if one["event"] == "chunk"]) >= 7
    assert "no gap is open" in headrace(site, "backfill", "--yes"), "a second time there is nothing to do"
    before = writer.commits()
    site.fill(name, 300, seed=10)
    writer.until(lambda: writer.commits() > before)
    output = writer.stop()
    assert "fenced" not in output
    assert "pipeline_restarting" not in output
    site.once()
    check_offsets(site, lake, name)
    assert gap_record(site).offsets == waiting


def _feed(site: Site, name: str, stop: threading.Event) -> None:
    seed = 100
    while not stop.wait(0.5):
        seed += 1
        site.fill(name, 50, seed=seed)


@pytest.mark.cell("a backfill is killed", "at each step of a chunk")
def test_a_backfill_from_kafka_killed_at_each_step_and_run_again_is_exact(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake, waiting = skip_records(site, name, 2_000)
    writer = start_writer(site, name, lake)
    for point in ("before_chunk", "after_chunk", "before_fill", "after_fill", "before_chunk_redo"):
        env = {"HEADRACE_FAULT": f"{point}:2"}
        headrace(site, "backfill", "--yes", "--chunk-rows", 150, env=env, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
        report = audit(load(site.config), "events", since=None, deep=True)
        assert report.adds_up, (point, report.problems)
    headrace(site, "backfill", "--yes", "--chunk-rows", 300)
    writer.stop()
    site.once()
    check_offsets(site, lake, name)
    assert (gap_record(site).state, gap_record(site).offsets) == ("done", waiting)


@pytest.mark.cell("Kafka loses records", "and a mirror or an archive has them")
def test_what_retention_took_comes_from_an_archive_and_from_a_mirror(site: Site, topic: MakeTopic) -> None:
    name, copy = topic(2), topic(2)
    lake = site.pipeline("events", [name])
    site.fill(name, 400)
    site.once()
    was = site.ends(name)
    site.fill(name, 1_000, seed=8, broken=4)
    ends = site.ends(name)
    _copy_topic(site, name, copy, {0: was[name, 0] - 7, 1: ends[name, 1]})  # its offsets are other offsets
    _archive_partition(site, name, 1)
    site.fill(name, 100, seed=9)
    site.forget(name, {0: ends[name, 0], 1: ends[name, 1]})
    site.once()
    oracle.check_rows(lake, "events")
    assert "0 of" in headrace(site, "backfill", "--dry-run")
    assert "are not in this source" in headrace(site, "backfill", "--yes", code=1)
    assert gap_record(site).state == "open"
    wrong = f"0:{was[name, 0]}=9"
    mirror = f"{writer_address(site.bootstrap)}/{copy}"
    headrace(site, "backfill", "--yes", "--from-mirror", mirror, "--map", wrong, code=1)
    headrace(site, "backfill", "--yes", "--from-mirror", mirror, "--map", f"0:{was[name, 0]}=7", code=1)
    left = gap_record(site).unfilled_offsets.ranges()
    assert [(r.part.partition, r.start, r.end) for r in left] == [(1, was[name, 1], ends[name, 1])]
    oracle.check(lake, "events")
    headrace(site, "backfill", "--yes", "--from-archive", site.root / "archive")
    check_offsets(site, lake, name)
    assert gap_record(site).sources == (f"mirror {mirror}", f"archive {site.root / 'archive'}")


def _read_messages(site: Site, name: str, partition: int) -> list[object]:
    consumer = Consumer({"bootstrap.servers": site.bootstrap, "group.id": "copy"})
    consumer.assign([TopicPartition(name, partition, 0)])
    found: list[object] = []
    end = site.ends(name)[name, partition]
    deadline = time.monotonic() + 60
    while len(found) < end:
        assert time.monotonic() < deadline
        found += [m for m in consumer.consume(end - len(found), timeout=1) if m.error() is None]
    consumer.close()
    return found


def _copy_topic(site: Site, name: str, copy: str, first: dict[int, int]) -> None:
    """Copy a topic from these offsets on, as a mirroring tool does: with its times, not with its offsets."""
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for partition, start in first.items():
        for m in _read_messages(site, name, partition)[start:]:
            producer.produce(copy, m.value(), m.key(), partition, timestamp=m.timestamp()[1])  # type: ignore[attr-defined]
    assert producer.flush(30) == 0


def _archive_partition(site: Site, name: str, partition: int) -> None:
    rows = [
        {"topic": name, "partition": partition, "offset": m.offset(), "timestamp": m.timestamp()[1], "key": m.key(),
         "value": m.value()} for m in _read_messages(site, name, partition)  # type: ignore[attr-defined]
    ]  # fmt: skip
    (site.root / "archive").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), site.root / "archive" / "part.parquet")


@pytest.mark.cell("Kafka loses records", "while a backfill reads them")
def test_retention_that_is_faster_than_a_backfill_leaves_the_rest_open(site: Site, topic: MakeTopic) -> None:
    name, flag = topic(1), site.root / "held"
    lake, _ = skip_records(site, name, 2_000, partitions=1)
    gap = gap_record(site).opened
    assert gap is not None
    (r,) = gap.ranges
    env = {**os.environ, "HEADRACE_FAULT": f"before_chunk:3:{flag}"}
    words = ["backfill", str(site.config), "--yes", "--chunk-rows", "300"]
    doing = subprocess.Popen([sys.executable, "-c", COMMAND, *words], env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not flag.exists():
        assert doing.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    left = gap_record(site).unfilled_offsets.ranges()[0]
    site.forget(name, {0: left.start + 100})
    oracle.check_rows(lake, "events")
    flag.unlink()
    assert doing.wait(120) == 1
    assert "retention was faster" in (doing.stderr.read() if doing.stderr else "")
    assert gap_record(site).unfilled_offsets.ranges()[0] == left, "nothing of that chunk was committed"
    headrace(site, "backfill", "--yes", code=1)
    assert [one.span for one in gap_record(site).unfilled_offsets.ranges()] == [(left.start, left.start + 100)]
    headrace(site, "gaps", "close", gap_record(site).id[:8], "--yes", "--reason", "retention")
    oracle.check(lake, "events")
    report = audit(load(site.config), "events", since=None, deep=True)
    assert report.adds_up, report.problems
    assert r.end == site.ends(name)[name, 0]


def test_history_comes_from_an_archive_and_the_stream_hands_over_at_an_offset(site: Site, topic: MakeTopic) -> None:
    """Bootstrap: the pipeline starts at 0, Kafka holds less; what lies before is a ticket, which the archive fills."""
    name = topic(1)
    site.fill(name, 500)
    _archive_partition(site, name, 0)
    handed_over = site.ends(name)[name, 0]
    site.fill(name, 300, seed=8)
    site.forget(name, {0: handed_over})
    lake = site.pipeline("events", [name], start={"offsets": {name: {0: 0}}})
    site.once()
    assert [(r.start, r.end) for r in gap_record(site).unfilled_offsets.ranges()] == [(0, handed_over)]
    headrace(site, "backfill", "--yes", "--from-archive", site.root / "archive")
    check_offsets(site, lake, name)
    assert gap_record(site).state == "done"
