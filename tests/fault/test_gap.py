"""Kafka loses offsets before they were read: exactly those are recorded, and everything else is in the table."""

import json
import signal
import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.table.log.operations.gaps import Gap
from tests.support import oracle
from tests.support.sample_records import GAP_FACTS
from tests.support.table_formats import delta_table
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]


def headrace(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.cell("Kafka loses records", "before a start")
def test_what_retention_took_is_one_entry_and_the_rest_is_in_the_table(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name])
    site.fill(name, 1_000, broken=3)
    site.once()
    was = site.ends(name)
    site.fill(name, 1_000, seed=8, broken=3)
    site.forget(name, {0: was[name, 0] + 120, 1: was[name, 1]})
    oracle.check_rows(lake, "events")
    output = site.once()
    oracle.check(lake, "events", site.ends(name))
    assert oracle.gaps(lake) == {(name, 0): list(range(was[name, 0], was[name, 0] + 120))}
    assert f"topic={name} incarnation=1 partition=0 start={was[name, 0]} end={was[name, 0] + 120} offsets=120" in output
    assert "gap_recorded" not in site.once()
    found = json.loads(headrace("status", site.config, "--json"))["pipelines"]["events"]["gaps"]
    assert (found["count"], found["offsets"], found["last"]["cause"]) == (1, 120, "retention")
    assert "1 gap open, 120 offsets, Kafka holds none of them" in headrace("status", site.config)
    version = next(n for n, c in enumerate(oracle.replay(lake).commits) if c["kind"] == "gap") + 1
    assert "120 offsets gave no record because the log began later" in headrace(
        "explain", site.config, "--version", version
    )


@pytest.mark.cell("Kafka loses records", "before a start that is killed around its gap")
def test_a_start_killed_around_its_gap_records_it_once(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 100)
    site.once()
    site.fill(name, 100, seed=8)
    site.forget(name, {0: 150})
    for point in ("before_commit:1", "after_commit:1"):
        site.once(env={"HEADRACE_FAULT": point}, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
    site.once()
    assert oracle.gaps(lake) == {(name, 0): list(range(100, 150))}
    oracle.check(lake, "events", site.ends(name))


def test_on_data_loss_stop_stops_with_the_mend_and_leaves_the_table(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], on_data_loss="stop")
    site.fill(name, 100)
    site.once()
    before = oracle.replay(lake)
    site.fill(name, 100, seed=8)
    site.forget(name, {0: 150})
    assert "Set on_data_loss: record" in site.once(code=2)
    assert oracle.replay(lake) == before


@pytest.mark.cell("Kafka loses records", "while it runs")
def test_offsets_lost_while_it_runs_are_recorded_by_the_same_process(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 h", "min_offsets": 1_500})
    site.fill(name, 200)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    was = site.ends(name)
    site.fill(name, 1_000, seed=8)  # they wait for more
    site.forget(name, {0: was[name, 0] + 250})
    oracle.check_rows(lake, "events")
    site.fill(name, 1_000, seed=9)
    writer.until(lambda: "gap_recorded" in writer.output())
    ends = site.ends(name)
    writer.until(lambda: oracle.frontier_of(lake, "events") == ends)
    output = writer.stop()
    assert "pipeline_restarting" in output
    assert oracle.gaps(lake) == {(name, 0): list(range(was[name, 0], was[name, 0] + 250))}
    oracle.check(lake, "events", site.ends(name))


def test_offsets_lost_under_the_tasks_are_recorded_by_the_same_process(site: Site, topic: MakeTopic) -> None:
    name, flag = topic(1), site.root / "held"
    lake = site.pipeline("events", [name], commit={"max_delay": "2 s"})
    site.fill(name, 200)
    writer = site.start(env={"HEADRACE_FAULT": f"before_stage:2:{flag}"})
    writer.until(lambda: writer.commits() == 1)
    site.fill(name, 1_000, seed=8)
    writer.until(flag.exists)  # the batch is planned, and nothing of it is read
    site.forget(name, {0: 600})
    flag.unlink()
    writer.until(lambda: "gap_recorded" in writer.output())
    writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_200)
    writer.stop()
    assert oracle.gaps(lake) == {(name, 0): list(range(200, 600))}


def _widen(site: Site, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": site.bootstrap})  # its futures fail once it is collected
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)


@pytest.mark.cell("partitions are added", "while it runs")
def test_partitions_added_while_it_runs_are_read_from_their_first_record(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "2 s"})
    site.fill(name, 500)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    for partitions in range(3, 30, 3):
        _widen(site, name, partitions)
        time.sleep(0.3)  # Spark's planning meets some of them half way, fails over it, and is started again
    oracle.check_rows(lake, "events")

    def all_are_read() -> bool:
        site.fill(name, 200, seed=8)
        time.sleep(0.5)
        return len(oracle.frontier_of(lake, "events")) == 27

    writer.until(all_are_read)
    writer.stop()
    log = site.once()
    # A stop right after Spark failed over an added partition leaves a run without a batch.
    assert "run_started" not in log or "planned no batch" in log, "the checkpoint knows them too"
    assert oracle.gaps(lake) == {}
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("partitions are added", "and lose records before they are seen")
def test_what_an_added_partition_lost_before_it_was_seen_is_a_gap(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 100)
    site.once()
    _widen(site, name, 2)
    while site.ends(name).get((name, 1), 0) < 20:
        site.fill(name, 100, seed=8)
    site.forget(name, {1: 7})
    oracle.check_rows(lake, "events")
    site.once()
    assert oracle.gaps(lake) == {(name, 1): list(range(7))}
    oracle.check(lake, "events", site.ends(name))


def test_a_log_shorter_than_the_table_is_refused_and_adopted_by_hand(site: Site, topic: MakeTopic) -> None:
    """A table that is ahead of its log, as after an unclean election: no way to cut a log back from outside."""
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 300)
    site.once()
    table = delta_table(str(lake), "events")
    ahead = Gap(
        uuid4().hex, table.snapshot().epoch, [OffsetRange(TopicPartition(name, 1, 0), 300, 340)], "test", GAP_FACTS
    )
    table.append(ahead, table.snapshot())
    output = site.once(code=2)
    assert f"{name}/0 ends at 300, the table at 340" in output
    assert "headrace topic adopt" in output
    headrace("topic", "adopt", site.config, "--offsets", f"{name}:0=300", "--yes")
    site.fill(name, 50, seed=8)
    site.once()
    assert oracle.rows(lake, "_incarnation, count(*), min(_offset)", "GROUP BY ALL ORDER BY 1") == [
        (1, 300, 0), (2, 50, 300),
    ]  # fmt: skip
