"""kill -9 at every moment between two durable effects: nothing lost, nothing twice, before and after the restart."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.writer.driver.child_processes import DAEMON_MODULE
from tests.fault.outcomes import WANTED as WHOLE
from tests.support import oracle
from tests.support.fault_cells import FORMATS
from tests.support.writer_process import Site, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
POINTS = ("before_stage", "after_stage", "before_commit", "after_commit", "before_redo", "after_batch")


@pytest.mark.cell("kill -9 of the driver", "at six points, one after the other")
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], raw=True, commit={"max_offsets": 1_000})
    for round_, point in enumerate(POINTS):
        site.fill(name, 2_000, seed=round_, broken=3)
        site.once(env={"HEADRACE_FAULT": f"{point}:{1 + round_ % 2}"}, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
    site.once()
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("kill -9 of the driver", "while Spark writes its checkpoint")
def test_a_driver_killed_while_spark_writes_its_checkpoint_loses_nothing(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_offsets": 400})
    chance = random.Random(11)
    for round_ in range(4 if WHOLE else 2):
        site.fill(name, 1_600, seed=round_)
        writer = site.start("--once")
        wanted = chance.randrange(1, 4)
        writer.until(lambda writer=writer, wanted=wanted: writer.commits() >= wanted)
        time.sleep(chance.uniform(0, 0.15))
        writer.kill()
        oracle.check_rows(lake, "events")
    site.once()
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("kill -9 of a worker", "while it decodes")
@pytest.mark.parametrize("form", FORMATS)
def test_a_killed_worker_is_replaced_and_its_task_tried_again(site: Site, topic: MakeTopic, form: str) -> None:
    name = topic(2)
    site.fill(name, 60_000, broken=20)
    lake = site.pipeline("events", [name], form=form, memory={"batch_records": 2_000})
    writer = site.start("--once")
    for _ in range(3):
        writer.until(lambda: bool(_busy_workers(writer)))
        for worker in _busy_workers(writer)[:1]:
            worker.kill()
        oracle.check_rows(lake, "events")
        time.sleep(0.3)
        if writer.process.poll() is not None:
            break
    assert writer.wait(120) == 0, writer.output()
    oracle.check(lake, "events", site.ends(name))


def _busy_workers(writer: Writer) -> list[psutil.Process]:
    """Python workers of Spark that hold an Avro scratch file: they are decoding."""
    found = []
    for process in writer.family():
        try:
            if DAEMON_MODULE in " ".join(process.cmdline()) and process.ppid() != writer.process.pid:
                links = list(Path(f"/proc/{process.pid}/fd").iterdir())
                if any("headrace-avro" in str(link.readlink()) for link in links):
                    found.append(process)
        except (psutil.NoSuchProcess, OSError):
            continue
    return found
