"""The registry is down at a start: nothing is taken over, nothing is written, and the next start goes on."""

from collections.abc import Callable

import pytest

from tests import oracle
from tests.writing import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]


@pytest.mark.cell("the registry is down", "at a start")
def test_a_start_without_a_registry_leaves_the_table_and_the_next_goes_on(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name])
    site.fill(name, 500, broken=3)
    site.once()
    before = oracle.replay(lake)
    site.fill(name, 500, seed=8)
    there, site.registry_url = site.registry_url, "http://127.0.0.1:9"
    said = site.once(code=1)
    assert "http://127.0.0.1:9" in said
    assert oracle.replay(lake) == before, "not even the epoch was raised"
    oracle.check_rows(lake, "events")
    site.registry_url = there
    site.once()
    oracle.check(lake, "events", site.ends(name))
