"""A real driver with its JVM, whose wall clock steps under it while records come: commits go on."""

import re
import time
from collections.abc import Callable

import pytest

from tests.support import oracle
from tests.support.stepping_clock import COMPILER, SteppingClock
from tests.support.writer_process import Site, Writer

WITHIN_S = 90  # for two commits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler to build a stepping clock with"),
]


def feed_until(site: Site, topic: str, writer: Writer, commits: int) -> float:
    """Send records until the driver has made so many commits. Returns the seconds that took."""
    began_s = time.monotonic()

    def is_committed() -> bool:
        site.fill(topic, 10)
        time.sleep(0.5)
        return writer.commits() >= commits

    writer.until(is_committed, WITHIN_S)
    return time.monotonic() - began_s


@pytest.mark.parametrize("step_s", [-3_600, 3_600])
@pytest.mark.parametrize("reader", ["native", "spark"])
def test_commits_go_on_after_a_step_of_the_clock_of_driver_and_jvm(
    site: Site, topic: Callable[..., str], reader: str, step_s: int
) -> None:
    name = topic(2)
    clock = SteppingClock(site.root)
    site.reader = reader
    lake = site.pipeline("events", [name], commit={"max_delay": "3 s"})
    site.fill(name, 100)
    writer = site.start(env=clock.environment)
    try:
        writer.until(lambda: writer.commits() >= 1)
        feed_until(site, name, writer, 3)
        clock.step(step_s)
        stepped = writer.commits()
        passed_s = feed_until(site, name, writer, stepped + 2)
        assert passed_s < WITHIN_S
        writer.until(lambda: "clock_stepped" in writer.output(), WITHIN_S)
        said = writer.stop()
        steps_s = [float(seconds) for seconds in re.findall(r"clock_stepped.* seconds=(-?[\d.]+)", said)]
        assert step_s == pytest.approx(sum(steps_s), abs=2), said
    finally:
        writer.kill()
    site.once()
    oracle.check(lake, "events", site.ends(name))
