"""The catalog of an Iceberg table fails under a writer: each commit is there once, and the writer goes on by itself."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.catalog_proxy import BUSY, FAILED, LOST, REFUSED, THROTTLED, TWICE, CatalogProxy, catalog_proxy
from tests.servers.iceberg_rest import iceberg_rest
from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MakeTopic = Callable[..., str]
OUTAGE_S = 60


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with iceberg_rest(tmp_path_factory.mktemp("rest")) as url:
        yield url


@pytest.fixture
def proxy(rest: str, site: Site, tmp_path: Path) -> Iterator[CatalogProxy]:
    with catalog_proxy(rest) as found:
        namespace = tmp_path.name.replace("-", "_")  # the server is that of all tests
        site.overrides["catalog"] = {"type": "rest", "uri": found.url, "namespace": namespace}
        yield found


@pytest.mark.cell("a catalog {fault}", "under a running writer")
@pytest.mark.parametrize("fault", [REFUSED, THROTTLED, BUSY, LOST, FAILED, TWICE])
@pytest.mark.parametrize("form", ["iceberg"])
def test_a_writer_goes_on_whatever_its_catalog_does(
    site: Site, topic: MakeTopic, proxy: CatalogProxy, form: str, fault: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form, commit={"max_delay": "1 s"})
    site.fill(name, 500, broken=5)
    writer = site.start()
    writer.until(lambda: writer.commits() >= 1)
    for seed in range(2):
        proxy.next_commits += [fault] * 3
        site.fill(name, 300, seed=seed, broken=3)
        writer.until(lambda: frontier(lake) == sum(site.ends(name).values()))
        oracle.check_rows(lake, "events")
    output = writer.stop()
    assert proxy.done[fault] >= 4
    assert "pipeline_restarting" not in output
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("a catalog is down", "for a minute, under a running writer")
@pytest.mark.parametrize("form", ["iceberg"])
def test_a_writer_waits_for_a_catalog_that_is_down(
    site: Site, topic: MakeTopic, proxy: CatalogProxy, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form, commit={"max_delay": "1 s"})
    site.fill(name, 500)
    writer = site.start()
    writer.until(lambda: writer.commits() >= 1)
    proxy.go_down(OUTAGE_S)
    back = time.monotonic() + OUTAGE_S
    site.fill(name, 300, seed=8)
    while time.monotonic() < back:
        assert writer.process.poll() is None, writer.output()
        oracle.check_rows(lake, "events")
        time.sleep(5)
    assert proxy.done["is down"] >= 5
    writer.until(lambda: frontier(lake) == sum(site.ends(name).values()))
    writer.stop()
    oracle.check(lake, "events", site.ends(name))


def frontier(lake: Path) -> int:
    return sum(oracle.frontier_of(lake, "events").values())
