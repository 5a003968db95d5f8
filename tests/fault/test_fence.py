"""Others at the same table: a second writer is fenced, maintenance is welcome, a rollback stops the pipeline."""

import signal
from collections.abc import Callable

import deltalake
import pytest
from deltalake import DeltaTable, Field

from tests.support import oracle
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]


@pytest.mark.cell("two writers at once", "each with its own checkpoint")
def test_of_two_writers_the_older_exits_4_and_the_table_stays_exact(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 1_000)
    first = site.start()
    first.until(lambda: first.commits() == 1)
    second = site.start("--new-run", "--yes", "--take-over")
    second.until(lambda: "pipeline_started" in second.output())
    site.fill(name, 1_000, seed=8)
    assert first.wait(120) == 4, first.output()
    assert "another writer runs" in first.output() or "was taken over by process" in first.output()
    oracle.check_rows(lake, "events")
    ends = site.ends(name)
    second.until(lambda: oracle.frontier_of(lake, "events") == ends)
    second.process.send_signal(signal.SIGTERM)
    assert second.wait(120) == 0
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("two writers at once", "on one checkpoint")
def test_two_writers_on_one_checkpoint_leave_the_table_exact(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 1_000)
    writers = [site.start("--take-over"), site.start("--take-over")]
    writers[0].until(lambda: all("lease_acquired" in writer.output() for writer in writers))
    older, newer = sorted(writers, key=lambda writer: "lease_acquired pipeline=events epoch=2 " in writer.output())
    while older.process.poll() is None:
        site.fill(name, 200)
    assert older.wait(120) == 4, older.output()
    # Under an older lease it either began before the newer one, or was refused.
    # The newer one may have met the older one's entries in Spark's log: a crash, or a checkpoint that is in doubt.
    if newer.process.poll() is None:
        newer.process.send_signal(signal.SIGTERM)
    assert newer.wait(120) in (0, 1, 3), newer.output()
    oracle.check_rows(lake, "events")
    site.once("--new-run", "--yes")
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("another client writes to the table", "OPTIMIZE and new columns")
def test_optimize_and_new_columns_by_another_client_do_not_stop_the_writer(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 1_000)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    for round_ in range(3):
        site.fill(name, 500, seed=round_)
        table = DeltaTable(str(lake))
        try:
            table.optimize.compact()
            DeltaTable(str(lake)).alter.add_columns([Field(f"added_{round_}", "string")])
        except deltalake.exceptions.CommitFailedError:
            continue  # the other client lost a race; it would try again
        done = writer.commits()
        site.fill(name, 300, seed=round_ + 10)
        writer.until(lambda done=done: writer.commits() > done)
        oracle.check_rows(lake, "events")
    writer.process.send_signal(signal.SIGTERM)
    assert writer.wait(120) == 0, writer.output()
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert len(oracle.rows(lake, "count(*)")) == 1


def test_a_restore_by_another_client_is_refused_until_it_is_undone(site: Site, topic: MakeTopic) -> None:
    """Undone by `headrace rewind`; the next one, an UPDATE, is accepted. Killed in between, both are done again."""
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_offsets": 300})
    site.fill(name, 900)
    site.once()
    table, config = DeltaTable(str(lake)), str(site.config)
    own = table.version()
    table.restore(own - 1)
    site.fill(name, 100, seed=8)
    assert f"`headrace rewind --to {own}` takes it back" in site.once(code=2)
    say("rewind", config, "--to", str(own), "--yes", code=-signal.SIGKILL, HEADRACE_FAULT="after_rewind:1")
    site.once()
    oracle.check(lake, "events", site.ends(name))

    DeltaTable(str(lake)).update(updates={"_kafka_time": "_kafka_time"}, predicate="_offset < 10")
    assert "another client ran UPDATE" in site.once(code=2)
    say("table", "accept", config, "--yes", code=-signal.SIGKILL, HEADRACE_FAULT="before_accept:1")
    assert "another client ran UPDATE" in site.once(code=2)
    say("table", "accept", config, "--yes", code=-signal.SIGKILL, HEADRACE_FAULT="after_accept:1")
    site.fill(name, 100, seed=9)
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert "which was accepted as version" in say("audit", config)
