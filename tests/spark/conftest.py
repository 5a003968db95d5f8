"""What tests with real drivers share."""

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.support.supervisor_process import Supervised, supervise
from tests.support.writer_process import Site


@pytest.fixture
def start(site: Site) -> Iterator[Callable[..., Supervised]]:
    """Start supervisors of the site; none of them outlives the test."""
    supervisors: list[Supervised] = []

    def start_supervisor(*flags: str, **env: str) -> Supervised:
        supervisor = supervise(site, *flags, env=env)
        supervisors.append(supervisor)
        return supervisor

    yield start_supervisor
    for supervisor in supervisors:
        if supervisor.process.poll() is None:
            supervisor.signal_all(signal.SIGCONT)
            supervisor.kill()
