"""Runs by hand beside each other and beside a supervisor: one runs, who lost waits or ends, and nobody fights."""

import json
import signal
import time
from collections.abc import Callable
from urllib.request import urlopen

import pytest

from tests.support import oracle
from tests.support.process import say
from tests.support.supervisor_process import Supervised, explain
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MakeTopic = Callable[..., str]
Start = Callable[..., Supervised]


def test_a_supervisor_waits_for_a_run_that_took_over_and_goes_on_by_itself(
    site: Site, topic: MakeTopic, start: Start
) -> None:
    names = {"events": topic(2), "other": topic(1)}
    lakes = {name: site.pipeline(name, [topic], commit={"max_delay": "1 s"}) for name, topic in names.items()}
    for name in names.values():
        site.fill(name, 500)
    supervised = start()
    supervised.until(lambda: all(f"batch_committed pipeline={name}" in supervised.output() for name in names))

    refusal = site.once("--pipeline=events", code=6)
    assert f"/{supervised.process.pid} has its lease since 20" in refusal
    assert "--take-over" in refusal

    run = site.start("--pipeline=events", "--take-over")
    run.until(lambda: "pipeline_started" in run.output())
    site.fill(names["events"], 500, seed=8)
    run.until(lambda: run.commits() >= 1)
    supervised.until(lambda: supervised.ask("/status")["pipelines"]["events"]["lease_wait"] is not None)
    # Several lives of a lease: who lost it does not take it back.
    time.sleep(8)
    status = supervised.ask("/status")["pipelines"]
    waits = status["events"]
    assert f"/{run.process.pid} has its lease since 20" in waits["lease_wait"]["reason"]
    assert (waits["up"], waits["halted"], waits["level"], waits["state"]["attempts"]) == (False, None, 0, [])
    assert (status["other"]["up"], status["other"]["lease_wait"]) == (True, None), "the other pipeline goes on"
    assert 'headrace_lease_awaited{pipeline="events"} 1.0' in supervised.ask("/metrics")
    assert run.process.poll() is None, run.output()
    shown = say("status", str(site.config))
    assert "HALTED" not in shown
    assert status_of_driver(supervised)["events"]["state"] == "waiting"

    run.process.send_signal(signal.SIGTERM)
    assert run.wait(120) == 0, run.output()
    site.fill(names["events"], 500, seed=9)
    commits = supervised.times("batch_committed pipeline=events")
    supervised.until(lambda: supervised.times("batch_committed pipeline=events") > commits)
    assert len(supervised.drivers()) == 1, "beside the other pipeline, in the same driver"
    assert supervised.times("recovery_decided") == 0
    assert explain(site)["events"]["budgets"]["L1"]["used"] == 0
    assert supervised.stop() == 0, supervised.output()
    site.once()
    for name, lake in lakes.items():
        oracle.check(lake, name, site.ends(names[name]))
    leases = [entry["lease"] for entry in oracle.replay(lakes["events"]).commits if entry["kind"] in ("start", "batch")]
    assert leases == sorted(leases), "nothing of a loser comes after"


def status_of_driver(supervised: Supervised) -> dict[str, dict[str, object]]:
    """Ask the driver of a supervisor, whatever has taken its pipelines."""
    lines = [line for line in supervised.output().splitlines() if "http_listening" in line]
    url = lines[-1].split("url=")[1].split()[0]
    with urlopen(f"{url}/status", timeout=60) as answer:
        status: dict[str, dict[str, object]] = json.loads(answer.read())["pipelines"]
    return status


def test_of_two_runs_by_hand_the_second_is_refused_until_it_takes_over(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 500)
    first = site.start()
    first.until(lambda: first.commits() == 1)
    for flags in (["--once"], []):
        second = site.start(*flags)
        assert second.wait(60) == 6, second.output()
        assert f"/{first.process.pid} has its lease since 20" in second.output()
        assert "spark" not in second.output(), "nothing was begun"
    third = site.start("--take-over")
    third.until(lambda: "pipeline_started" in third.output())
    assert first.wait(120) == 4, first.output()
    site.fill(name, 500, seed=8)
    third.until(lambda: third.commits() >= 1)
    third.kill()
    killed_s = time.monotonic()
    site.fill(name, 500, seed=9)
    site.once()
    print(f"\na run after a kill ended after {time.monotonic() - killed_s:.1f} s")
    oracle.check(lake, "events", site.ends(name))


def test_an_idle_run_that_is_taken_over_ends_though_no_record_comes(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 100)
    first = site.start()
    first.until(lambda: first.commits() == 1)
    with site.start("--take-over") as second:
        second.until(lambda: "lease_acquired" in second.output())
        assert first.wait(60) == 4, first.output()
        assert f"was taken over by process {second_holder(second)}" in first.output()
        assert second.stop()
    oracle.check(lake, "events", site.ends(name))


def second_holder(writer: Supervised) -> str:
    line = next(line for line in writer.output().splitlines() if "lease_acquired" in line)
    return line.split("holder=")[1].split()[0]


def test_a_pipeline_that_a_reload_adds_waits_for_its_lease_and_begins_when_it_is_free(
    site: Site, topic: MakeTopic
) -> None:
    names = {"clicks": topic(1), "views": topic(1)}
    lakes = {"views": site.pipeline("views", [names["views"]], commit={"max_delay": "1 s"})}
    for name in names.values():
        site.fill(name, 100)
    holder = site.start("--pipeline=views")
    holder.until(lambda: holder.commits() == 1)

    views = site.pipelines.pop("views")
    lakes["clicks"] = site.pipeline("clicks", [names["clicks"]], commit={"max_delay": "1 s"})
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    site.pipelines["views"] = views
    say("reload", str(site.config))
    writer.until(lambda: "lease_awaited pipeline=views" in writer.output())
    time.sleep(4)
    url = next(line for line in writer.output().splitlines() if "http_listening" in line).split("url=")[1].split()[0]
    with urlopen(f"{url}/status", timeout=60) as answer:
        status = json.loads(answer.read())["pipelines"]["views"]
    assert status["state"] == "waiting"
    assert f"/{holder.process.pid} has its lease since 20" in status["lease_wait"]["reason"]
    assert holder.process.poll() is None, holder.output()

    holder.stop()
    site.fill(names["views"], 100, seed=8)
    writer.until(lambda: "batch_committed pipeline=views" in writer.output())
    writer.stop()
    for name, lake in lakes.items():
        oracle.check(lake, name, site.ends(names[name]))
