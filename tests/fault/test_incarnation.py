"""A topic that is deleted and created again under its name has other records at the same offsets."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests import oracle
from tests.writing import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def _again(site: Site, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    admin.delete_topics([name])[name].result(timeout=30)
    deadline = time.monotonic() + 30
    while True:
        try:
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(timeout=30)
        except KafkaException:  # the deletion is still under way
            assert time.monotonic() < deadline
            time.sleep(0.2)
        else:
            return


def test_a_topic_created_again_is_read_from_its_beginning_under_a_new_incarnation(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 300)
    site.once()
    _again(site, name)
    site.fill(name, 500, seed=8)  # more than before: by offsets alone, nothing would look wrong
    said = site.once()
    assert "was deleted and created again" in said
    counts = oracle.rows(lake, "_incarnation, count(*), count(DISTINCT _offset)", "GROUP BY ALL ORDER BY 1")
    assert counts == [(1, 300, 300), (2, 500, 500)]
    site.fill(name, 50, seed=9)
    assert "run_began" not in site.once()
    assert oracle.rows(lake, "count(*)", "WHERE _incarnation = 2") == [(550,)]


def test_on_new_incarnation_stop_stops_with_the_mend(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.pipeline("events", [name], on_new_incarnation="stop")
    site.fill(name, 10)
    site.once()
    _again(site, name)
    assert "Set on_new_incarnation: start" in site.once(code=2)
