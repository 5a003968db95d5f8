"""A driver that runs: each of its commits becomes lineage and a trace, and a receiver that hangs delays none."""

import threading
from collections.abc import Callable, Iterator
from urllib.request import urlopen

import pytest

from tests.servers.scripted import HttpRequest, Reply, serve_script
from tests.support import oracle
from tests.support.cluster_driver import Driver
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def hanging() -> Iterator[str]:
    released = threading.Event()

    def answer(_: HttpRequest) -> Reply:
        released.wait(240)
        return Reply(200)

    with serve_script(answer) as server:
        yield server.url
        released.set()


def test_each_commit_is_lineage_and_a_receiver_that_hangs_delays_none(
    site: Site, topic: Callable[..., str], hanging: str
) -> None:
    name = topic(1)
    lake = site.pipeline("clicks", [name], commit={"max_delay": "1 s"})
    with serve_script(lambda _: Reply(200)) as receiver:
        site.overrides["openlineage"] = {"url": receiver.url}
        site.overrides["opentelemetry"] = {"url": f"{hanging}/v1/traces", "timeout": "4 min"}
        writer = site.start()
        try:
            for n in range(1, 4):
                site.fill(name, 100, seed=n)
                writer.until(lambda n=n: writer.commits() >= n)
            writer.until(lambda: len(receiver.asked) >= 2 * writer.commits())
            with urlopen(f"{Driver(writer).url}/metrics", timeout=60) as answer:
                metrics = answer.read().decode()
            assert 'headrace_telemetry_sent_total{pipeline="clicks",receiver="opentelemetry"} 0.0' in metrics
            assert writer.stop()
        finally:
            if writer.process.poll() is None:
                writer.kill()
    done = [event for asked in receiver.asked if (event := asked.json())["eventType"] == "COMPLETE"]
    batches = [said["batch"] for said in oracle.replay(lake).commits if said["kind"] == "batch"]
    (tables,) = {tuple((output["namespace"], output["name"]) for output in event["outputs"]) for event in done}
    assert len(done) == len(batches) >= 3
    assert tables == (("file", str(lake)),)
    read = sum(one["inputFacets"]["inputStatistics"]["rowCount"] for event in done for one in event["inputs"])
    assert read == 300
    assert {one["name"] for event in done for one in event["inputs"]} == {name}
