"""What tests with real drivers share."""

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.support.supervisor_process import Supervised, supervise
from tests.support.writer_process import Site


@pytest.fixture
def start(site: Site) -> Iterator[Callable[..., Supervised]]:
    """Start supervisors of the site; none of them outlives the test."""
    started: list[Supervised] = []

    def one(*flags: str, **env: str) -> Supervised:
        started.append(supervise(site, *flags, env=env))
        return started[-1]

    yield one
    for supervised in started:
        if supervised.process.poll() is None:
            supervised.signal_all(signal.SIGCONT)
            supervised.kill()
