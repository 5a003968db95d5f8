"""Topics by pattern: one that appears is read from its first record, one that goes stops nothing, in one process."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MakeTopic = Callable[..., str]


def test_topics_come_and_go_beside_others_and_each_record_is_read_once(site: Site, topic: MakeTopic) -> None:
    prefix, other = topic(1), topic(1)
    a, b, out = f"{prefix}.a", f"{prefix}.b", f"{prefix}.out"
    admin = AdminClient({"bootstrap.servers": site.bootstrap})

    def create(*names: str) -> None:
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            made.result(30)

    site.overrides["kafka"] = {
        "bootstrap_servers": site.bootstrap, "request_timeout": "10 s", "reader": site.reader, "lag_interval": "500 ms",
    }  # fmt: skip
    chosen = {"pattern": rf"{prefix}\..*", "except": [r".*\.out"]}
    lake = site.pipeline("many", chosen, commit={"max_delay": "1 s"})
    stays = site.pipeline("stays", [other], commit={"max_delay": "1 s"})
    create(a, out)
    for name in (a, out, other):
        site.fill(name, 100)
    writer = site.start()
    writer.until(lambda: oracle.frontier_of(lake, "many") == {(a, 0): 100})

    create(b)
    site.fill(b, 70)
    writer.until(lambda: oracle.frontier_of(lake, "many").get((b, 0)) == 70)
    assert f"1 topic to read appeared: {b}" in writer.output()

    admin.delete_topics([a])[a].result(30)
    writer.until(lambda: f"topic_gone pipeline=many topic={a} unread=0" in writer.output())
    site.fill(b, 30, seed=8)
    writer.until(lambda: oracle.frontier_of(lake, "many").get((b, 0)) == 100)

    create(a)
    site.fill(a, 50, seed=9)
    site.fill(other, 50, seed=9)
    writer.until(lambda: f"topic_recreated pipeline=many topic={a}" in writer.output())
    writer.until(lambda: oracle.frontier_of(stays, "stays").get((other, 0)) == 150)
    writer.stop()
    site.once()
    oracle.check_exactly(lake, {(a, 1, 0): range(100), (a, 2, 0): range(50), (b, 1, 0): range(100)})
    oracle.check_exactly(stays, {(other, 1, 0): range(150)})
    assert "pipeline_restarting pipeline=stays" not in writer.output()
