"""Stops of a real writer: signals to all of its processes, to its group, and to each process alone."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.support import oracle
from tests.support.process import Process, signal_processes
from tests.support.supervisor_process import Supervised
from tests.support.systemd_unit import Service, read_unit
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
Start = Callable[..., Supervised]
# Shorter: the same request of several senders.
NEXT_REQUEST_S = 4.0


def all_processes(writer: Process) -> list[psutil.Process]:
    """Return a process and all that it started, as systemd's default KillMode signals them."""
    return [psutil.Process(writer.process.pid), *writer.family()]


def group(writer: Process) -> list[psutil.Process]:
    """Return the process group, as `kill -TERM -PGID` and Ctrl-C in a terminal signal it."""
    found = []
    for process in all_processes(writer):
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == writer.process.pid:
                found.append(process)
    return found


def jvm(writer: Process) -> list[psutil.Process]:
    return [process for process in writer.family() if process.name() == "java"]


def python_workers(writer: Process) -> list[psutil.Process]:
    """Return PySpark's daemon and the workers of the tasks that run."""
    (java,) = jvm(writer)
    return java.children(recursive=True)


def check_silence(log: str) -> None:
    assert "Traceback" not in log, log
    assert "ERROR" not in log, log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_of_all_processes_in_the_middle_of_a_batch_commits_it(
    site: Site, topic: MakeTopic, number: signal.Signals
) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 500)
    flag = site.root / "held"
    with site.start(env={"HEADRACE_FAULT": f"in_decode:1:{flag}"}) as writer:
        writer.until(flag.exists)
        signal_processes(all_processes(writer), number)
        flag.unlink()
        code = writer.wait(120)
    assert code == 0, writer.output()
    check_silence(writer.output())
    assert writer.commits() == 1
    oracle.check(lake, "events", site.ends(name))


def test_a_signal_that_does_not_reach_the_driver_ends_nothing(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 500)
    flag = site.root / "held"
    with site.start(env={"HEADRACE_FAULT": f"in_decode:1:{flag}"}) as writer:
        writer.until(flag.exists)
        signal_processes(jvm(writer), signal.SIGTERM)
        signal_processes(python_workers(writer), signal.SIGTERM)
        # A terminal that closes: the driver reads its configuration again.
        signal_processes(group(writer), signal.SIGHUP)
        flag.unlink()
        writer.until(lambda: writer.commits() == 1)
        site.fill(name, 500, seed=8)
        writer.until(lambda: writer.committed_records() == 1_000)
        writer.process.send_signal(signal.SIGTERM)
        code = writer.wait(120)
    assert code == 0, writer.output()
    check_silence(writer.output())
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.parametrize("line", ["http_listening", "spark_starting"])
def test_a_stop_while_it_starts_ends_it_well(site: Site, topic: MakeTopic, line: str) -> None:
    site.pipeline("events", [topic(1)])
    with site.start() as writer:
        writer.until(lambda: line in writer.output())
        signal_processes(all_processes(writer), signal.SIGTERM)
        code = writer.wait(120)
    assert code == 0, writer.output()
    check_silence(writer.output())
    assert "pipeline_started" not in writer.output(), "it takes over nothing that it leaves at once"


def test_a_second_signal_cancels_the_batch_and_says_so(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 500)
    flag = site.root / "held"
    with site.start(env={"HEADRACE_FAULT": f"in_decode:1:{flag}"}) as writer:
        writer.until(flag.exists)
        writer.process.send_signal(signal.SIGTERM)
        # A shell and a service manager may both pass it on.
        writer.process.send_signal(signal.SIGTERM)
        time.sleep(NEXT_REQUEST_S)
        assert "stop_hurried" not in writer.output()
        writer.process.send_signal(signal.SIGTERM)
        code = writer.wait(60)
    assert code == 0, writer.output()
    assert "stop_hurried signal=SIGTERM" in writer.output()
    assert "batch_cancelled pipeline=events reason='a second signal asks for a stop'" in writer.output()
    assert writer.commits() == 0
    flag.unlink(missing_ok=True)
    site.once()
    oracle.check(lake, "events", site.ends(name))


def test_a_commit_that_has_begun_is_finished_whatever_asks_for_a_stop(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.overrides["stop_timeout"] = "1 s"
    site.fill(name, 500)
    flag = site.root / "held"
    with site.start(env={"HEADRACE_FAULT": f"before_commit:1:{flag}"}) as writer:
        writer.until(flag.exists)
        signal_processes(all_processes(writer), signal.SIGTERM)
        time.sleep(NEXT_REQUEST_S)
        writer.process.send_signal(signal.SIGTERM)
        writer.until(lambda: "stop_hurried" in writer.output())
        assert "commit_awaited pipeline=events" in writer.output()
        flag.unlink()
        code = writer.wait(120)
    assert code == 0, writer.output()
    check_silence(writer.output())
    assert writer.commits() == 1
    oracle.check(lake, "events", site.ends(name))


def test_a_supervisor_and_its_driver_end_well_together(site: Site, topic: MakeTopic, start: Start) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 500)
    flag = site.root / "held"
    supervised = start(HEADRACE_FAULT=f"in_decode:1:{flag}")
    supervised.until(flag.exists)
    signal_processes(all_processes(supervised), signal.SIGTERM)
    time.sleep(1)
    flag.unlink()
    assert supervised.wait(120) == 0, supervised.output()
    check_silence(supervised.output())
    assert supervised.times("batch_committed") == 1
    assert supervised.times("driver_started") == 1
    oracle.check(lake, "events", site.ends(name))


@pytest.fixture
def start_unit(site: Site) -> Iterator[Callable[[], Service]]:
    """Start the unit of the documentation, with the site's configuration."""
    services: list[Service] = []

    def start() -> Service:
        site.overrides["supervisor"] = {"port": 0, "lease_expiry": "3 s"}
        documented = read_unit(Path(__file__).parents[2] / "docs" / "DEPLOY.md")
        command = [sys.executable, "-m", "headrace.writer.cli", *documented.command[1:]]
        command[command.index("/etc/headrace/pipelines.yaml")] = str(site.config)
        unit = replace(documented, command=tuple(command), restart_after_s=1.0)
        services.append(Service(unit, site.root / "service.log", {}))
        return services[-1]

    yield start
    for service in services:
        service.kill()


def test_a_unit_that_was_killed_begins_again_and_stops_well(
    site: Site, topic: MakeTopic, start_unit: Callable[[], Service]
) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    site.fill(name, 500)
    service = start_unit()
    wait_until(lambda: count_commits(service) == 1)
    killed = service.processes()
    service.main.kill()
    assert service.attend(60)
    assert not [process for process in killed if is_alive(process)], "systemd leaves nothing of it"
    site.fill(name, 500, seed=8)
    wait_until(lambda: count_commits(service) == 2)
    assert service.stop() == "success"
    assert not service.processes()
    oracle.check(lake, "events", site.ends(name))


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs: one that nobody has waited for yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def count_commits(service: Service) -> int:
    return service.log.read_text(errors="replace").count("batch_committed")


def wait_until(condition: Callable[[], bool], seconds: float = 240) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
