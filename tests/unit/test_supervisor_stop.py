"""How a supervisor ends its driver: how often it asks, and after how long it kills."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.recovery.supervisor.settings import drain_timeout
from tests.support.simulated_supervisor import Release, SimulatedDriver, release


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[tuple[Release, SimulatedDriver, list[str]]]:
    """Return a release, its driver that never ends by itself, and what the supervisor does with it."""
    with ExitStack() as cleanup:
        site = cleanup.enter_context(release(tmp_path, {"clicks": 1}))
        site.drain_rounds = 10**9
        site.go(5)
        driver = site.drivers[-1]
        actions: list[str] = []
        drain = driver.drain
        kill = driver.kill
        driver.drain = lambda: (actions.append("drain"), drain())  # type: ignore[assignment, method-assign]
        driver.kill = lambda: (actions.append("kill"), kill())  # type: ignore[assignment, method-assign]
        yield site, driver, actions


def test_a_driver_is_asked_once_and_killed_after_its_grace(driver: tuple[Release, SimulatedDriver, list[str]]) -> None:
    site, _, actions = driver
    site.supervisor._stop.set()
    site.supervisor._step()
    grace_s = drain_timeout(site.file.config).total_seconds()
    site.clock.now_s += grace_s - 1
    assert site.supervisor._step() is None
    assert actions == ["drain"]
    site.clock.now_s += 2
    site.supervisor._step()
    assert actions == ["drain", "kill"]
    assert site.supervisor._step() == 128 + 9


def test_a_second_signal_reaches_the_driver_once(driver: tuple[Release, SimulatedDriver, list[str]]) -> None:
    site, _, actions = driver
    site.supervisor._stop.set()
    site.supervisor._step()
    site.supervisor._hurry.set()
    site.supervisor._step()
    site.supervisor._step()
    assert actions == ["drain", "drain"]
