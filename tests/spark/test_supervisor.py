"""The supervisor with a real driver: what fails is started again by itself, at the right rung, and nothing is lost."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.faulty import SLOW_DOWN, proxy
from tests.servers.objects import ObjectServer
from tests.support import oracle
from tests.support.supervisor_process import Supervised, explain, record_recovery
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MakeTopic = Callable[..., str]
Start = Callable[..., Supervised]


def damage(site: Site, pipeline: str) -> None:
    """Cut the newest file of offsets short."""
    run = max((site.root / "checkpoints" / pipeline).glob("0*"))
    newest = max((run / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.write_bytes(b"")
    (newest.parent / f".{newest.name}.crc").unlink()


def test_a_driver_that_is_killed_is_restarted_and_nothing_is_lost(site: Site, topic: MakeTopic, start: Start) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 1_000)
    supervised = start()
    supervised.wait_for_commits()
    for kills in (1, 2):
        site.fill(name, 500, seed=kills)
        os.kill(supervised.drivers()[-1], signal.SIGKILL)
        supervised.until(lambda kills=kills: len(supervised.recoveries()) == kills)
        oracle.check_rows(lake, "events")
    assert [level for level, _ in supervised.recoveries()] == ["L1", "L1"]
    supervised.check_recovery("L1", "the driver is killed", 60)
    status = supervised.ask("/status")["pipelines"]["events"]
    assert (status["up"], status["level"], status["starts"], status["lease_epoch"]) == (True, 1, 3, 1)
    metrics = supervised.ask("/metrics")
    assert 'headrace_recovery_total{class="killed",level="L1",pipeline="events",result="worked"} 2.0' in metrics
    known = explain(site)["events"]
    assert known["memory"]["failure"]["row"] == "killed"
    assert known["budgets"]["L1"]["used"] == 2
    assert known["next"].startswith("L1")
    assert supervised.stop() == 0, supervised.output()
    oracle.check(lake, "events", site.ends(name))
    again = start()
    again.until(lambda: "driver_started" in again.output())
    status = again.ask("/status")["pipelines"]["events"]
    assert (status["level"], len(status["state"]["attempts"])) == (1, 2), "it goes on where the last one was"
    assert again.stop() == 0, again.output()
    audit(lake)


def audit(lake: Path) -> None:
    """Each start and each commit says under which lease it was made."""
    leases = [said["lease"] for said in oracle.replay(lake).commits if said["kind"] in ("start", "batch")]
    assert leases
    assert leases == sorted(leases)


def test_a_corrupt_checkpoint_becomes_a_new_run_by_itself_while_another_pipeline_goes_on(
    site: Site, topic: MakeTopic, start: Start
) -> None:
    names = [topic(1), topic(2)]
    lakes = [site.pipeline(p, [n], commit={"max_delay": "1 s"}) for p, n in zip(("sick", "well"), names, strict=True)]
    for name in names:
        site.fill(name, 800)
    site.once()
    damage(site, "sick")
    for name in names:
        site.fill(name, 400, seed=8)
    supervised = start()
    supervised.until(supervised.recoveries)
    assert supervised.recoveries()[0][0] == "L3", supervised.output()
    supervised.check_recovery("L3", "the newest offsets of a checkpoint are torn", 120)
    assert len(supervised.drivers()) == 1, "the driver that carries a healthy pipeline stays"
    supervised.until(lambda: all(p["up"] for p in supervised.ask("/status")["pipelines"].values()))
    assert supervised.ask("/status")["pipelines"]["well"]["level"] == 0
    assert supervised.stop() == 0, supervised.output()
    site.once()
    for pipeline, lake, name in zip(("sick", "well"), lakes, names, strict=True):
        oracle.check(lake, pipeline, site.ends(name))


def test_a_plan_that_is_corrupt_before_anything_of_it_was_committed_is_left_for_a_new_run(
    site: Site, topic: MakeTopic, start: Start
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_offsets": 500})
    site.fill(name, 1_500)
    site.once(env={"HEADRACE_FAULT": "before_commit:2"}, code=-9)
    damage(site, "events")
    supervised = start()
    supervised.until(supervised.recoveries)
    assert supervised.recoveries()[0][0] == "L3", supervised.output()
    supervised.check_recovery("L3", "a plan is torn of which nothing was committed", 120)
    assert supervised.stop() == 0, supervised.output()
    runs = [path.name for path in (site.root / "checkpoints" / "events").glob("0*")]
    assert len(runs) == 2, "the corrupt run stays as it is"
    site.once()
    oracle.check(lake, "events", site.ends(name))


def test_of_two_supervisors_one_waits_and_a_paused_one_is_fenced(site: Site, topic: MakeTopic, start: Start) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 1_000)
    first = start()
    first.wait_for_commits()
    second = start()
    second.until(lambda: "lease_awaited" in second.output())
    assert f"/{first.process.pid}" in second.output(), "it says for whom"
    time.sleep(8)
    assert second.drivers() == []
    first.signal_all(signal.SIGSTOP)
    site.fill(name, 1_000, seed=8)  # what both will want to write
    second.wait_for_commits()
    assert "lease_acquired pipeline=events epoch=2" in second.output()
    before = set(oracle.replay(lake).files)
    site.fill(name, 1_000, seed=9)
    first.signal_all(signal.SIGCONT)
    woken = time.monotonic()
    first.until(lambda: "driver_ended" in first.output(), 120)
    ended_after_s = time.monotonic() - woken
    print(f"\nthe loser's driver ended after {ended_after_s:.1f} s")
    assert ended_after_s < 30
    assert "lease_lost pipeline=events epoch=1" in first.output()
    assert "exit_code=4" in first.output().split("driver_ended")[-1], "the driver found out that it was replaced"
    commits = [said for said in oracle.replay(lake).commits if said["kind"] == "batch"]
    assert [c["lease"] for c in commits] == sorted(c["lease"] for c in commits), "nothing of the loser comes after"
    second.until(lambda: second.ask("/status")["pipelines"]["events"]["up"])
    oracle.check_rows(lake, "events")
    first.until(lambda: first.ask("/status")["pipelines"]["events"]["lease_wait"] is not None)
    waits = first.ask("/status")["pipelines"]["events"]
    assert f"/{second.process.pid} has its lease since 20" in waits["lease_wait"]["reason"]
    assert (waits["up"], waits["halted"], waits["level"], waits["state"]["attempts"]) == (False, None, 0, [])
    assert second.stop() == 0, second.output()
    commits_before = first.times("batch_committed")
    site.fill(name, 500, seed=10)
    first.until(lambda: first.times("batch_committed") > commits_before)
    assert "lease_acquired pipeline=events epoch=3" in first.output()
    assert first.stop() == 0, first.output()
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert before <= set(oracle.replay(lake).files)


def test_while_the_storage_of_one_pipeline_is_down_it_waits_climbs_nowhere_and_the_other_goes_on(
    site: Site, topic: MakeTopic, start: Start, s3: ObjectServer, tmp_path: Path
) -> None:
    bucket, name, other = s3.bucket(), topic(2), topic(1)
    with proxy(s3.url, tmp_path) as faults:
        site.overrides = {"s3": {"endpoint": faults.url, "retry_timeout": "3 s"}}
        site.pipeline("events", [name], commit={"max_delay": "1 s"}, table={"location": f"{bucket}/lake/events"})
        local = site.pipeline("other", [other], commit={"max_delay": "1 s"})
        site.fill(name, 1_000)
        site.fill(other, 500)
        supervised = start()
        supervised.until(lambda: all(f"batch_committed pipeline={p}" in supervised.output() for p in site.pipelines))
        faults.always(SLOW_DOWN)
        site.fill(name, 1_000, seed=8)
        supervised.until(lambda: supervised.times("recovery_decided") >= 4)
        status = supervised.ask("/status")["pipelines"]["events"]
        assert (status["level"], status["state"]["attempts"], status["halted"]) == (0, [], None)
        site.fill(other, 500, seed=8)
        going = supervised.times("batch_committed pipeline=other")
        supervised.until(lambda: supervised.times("batch_committed pipeline=other") > going)
        done = supervised.times("batch_committed pipeline=events")
        faults.calm()
        calm = time.monotonic()
        supervised.until(lambda: supervised.times("batch_committed pipeline=events") > done)
        supervised.until(supervised.recoveries)
        assert len(supervised.drivers()) == 1, "it was asked to start the pipeline again, beside the other"
        record_recovery("L0", "storage was down, and is back", time.monotonic() - calm, 60)
        assert supervised.recoveries()[-1][0] == "L0"
        assert supervised.stop() == 0, supervised.output()
        assert [path.name for path in (site.root / "checkpoints" / "events").glob("0*")] == ["000001"]
        site.once()
    lake = tmp_path / "copy" / "events"
    s3.download(f"{bucket}/lake/events", lake)
    oracle.check(lake, "events", site.ends(name))
    oracle.check(local, "other", site.ends(other))


def test_a_driver_that_hangs_writes_its_stacks_and_is_replaced(site: Site, topic: MakeTopic, start: Start) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.overrides["supervisor"] = {"port": 0, "lease_expiry": "6 s", "stalled_after": "45 s"}
    site.fill(name, 500)
    supervised = start(HEADRACE_FAULT=f"before_stage:2:{site.root}/held")
    supervised.wait_for_commits()
    site.fill(name, 500, seed=8)
    supervised.until((site.root / "held").exists)
    supervised.until(lambda: "driver_unresponsive" in supervised.output())
    assert "offsets waiting and committed nothing for" in supervised.output()
    assert "writer/core/fault_points.py" in supervised.output(), "the stacks show where it stands"
    supervised.until(supervised.recoveries)
    assert supervised.recoveries()[0][0] == "L1"
    supervised.check_recovery("L1", "the driver hung, and is ended", 60)
    assert supervised.ask("/status")["pipelines"]["events"]["failure"]["row"] == "hung"
    assert supervised.stop() == 0, supervised.output()
    site.once()
    oracle.check(lake, "events", site.ends(name))
