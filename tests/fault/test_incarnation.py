"""A topic that is deleted and created again under its name has other records at the same offsets."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import oracle
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
BY_INCARNATION = ("_incarnation, count(*), count(DISTINCT _offset)", "GROUP BY ALL ORDER BY 1")


@pytest.fixture
def watchful(site: Site) -> Site:
    """A site whose drivers ask Kafka every half second, and commit every two."""
    site.overrides["kafka"] = {
        "bootstrap_servers": site.bootstrap, "request_timeout": "10 s", "lag_interval": "500 ms",
    }  # fmt: skip
    return site


def lake_of(site: Site, name: str, **settings: object) -> Path:
    return site.pipeline("events", [name], commit={"max_delay": "2 s"}, **settings)


@pytest.mark.cell("the topic is deleted and created again", "between two runs")
def test_a_topic_created_again_is_read_from_its_beginning_under_a_new_incarnation(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    site.fill(name, 300)
    site.once()
    site.again(name)
    oracle.check_rows(lake, "events")
    site.fill(name, 500, seed=8)  # more than before: by offsets alone, nothing would look wrong
    output = site.once()
    assert "was deleted and created again" in output
    counts = oracle.rows(lake, *BY_INCARNATION)
    assert counts == [(1, 300, 300), (2, 500, 500)]
    site.fill(name, 50, seed=9)
    assert "run_started" not in site.once()
    oracle.check_exactly(lake, {(name, 1, 0): range(300), (name, 2, 0): range(550)})


@pytest.mark.parametrize("by_pattern", [False, True])
def test_on_new_incarnation_stop_stops_with_the_mend(site: Site, topic: MakeTopic, by_pattern: bool) -> None:
    name = topic(1)
    site.pipeline("events", {"pattern": f"{name}.*"} if by_pattern else [name], on_topic_recreated="stop")
    site.fill(name, 10)
    site.once()
    site.again(name)
    assert "Set on_topic_recreated: start" in site.once(code=2)


@pytest.mark.cell("the topic is deleted and created again", "while it is read, {again} records after 300")
@pytest.mark.parametrize("again", [100, 700])  # fewer records than before, and more
def test_a_topic_created_again_while_it_is_read_goes_on_in_the_same_process(
    watchful: Site, topic: MakeTopic, again: int
) -> None:
    name = topic(1)
    lake = lake_of(watchful, name)
    watchful.fill(name, 300)
    writer = watchful.start()
    writer.until(lambda: writer.commits() == 1)
    watchful.again(name)
    oracle.check_rows(lake, "events")
    watchful.fill(name, again, seed=8)
    writer.until(lambda: oracle.rows(lake, *BY_INCARNATION)[1:] == [(2, again, again)])
    output = writer.stop()
    assert "pipeline_restarting" in output
    oracle.check_exactly(lake, {(name, 1, 0): range(300), (name, 2, 0): range(again)})
    assert output.count("pipeline_started") <= 4


@pytest.mark.cell("the topic is deleted and created again", "between planning and reading")
def test_a_topic_created_again_between_planning_and_reading_gives_no_wrong_row(
    watchful: Site, topic: MakeTopic
) -> None:
    name, flag = topic(1), watchful.root / "held"
    lake = lake_of(watchful, name)
    watchful.fill(name, 300)
    writer = watchful.start(env={"HEADRACE_FAULT": f"before_stage:2:{flag}"})
    writer.until(lambda: writer.commits() == 1)
    watchful.fill(name, 300, seed=8)
    writer.until(flag.exists)  # planned [300, 600), looked at the ids, and read nothing yet
    watchful.again(name)
    oracle.check_rows(lake, "events")
    watchful.fill(name, 900, seed=9)
    flag.unlink()
    writer.until(lambda: oracle.rows(lake, *BY_INCARNATION)[1:] == [(2, 900, 900)])
    output = writer.stop()
    assert "pipeline_restarting" in output
    oracle.check_exactly(lake, {(name, 1, 0): range(300), (name, 2, 0): range(900)})
    assert oracle.replay(lake).frontier[f"events/{name}@1/0"] == 300


def test_one_created_again_while_it_is_read_stops_where_it_shall(watchful: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = lake_of(watchful, name, on_topic_recreated="stop")
    watchful.fill(name, 300)
    writer = watchful.start()
    writer.until(lambda: writer.commits() == 1)
    watchful.again(name)
    watchful.fill(name, 100, seed=8)
    assert writer.wait(200) == 2
    assert "Set on_topic_recreated: start" in writer.output()
    assert oracle.rows(lake, *BY_INCARNATION) == [(1, 300, 300)]


def test_a_topic_that_stays_away_ends_the_process_with_a_sentence(watchful: Site, topic: MakeTopic) -> None:
    from confluent_kafka.admin import AdminClient

    name = topic(1)
    lake_of(watchful, name)
    watchful.fill(name, 300)
    writer = watchful.start()
    writer.until(lambda: writer.commits() == 1)
    admin = AdminClient({"bootstrap.servers": watchful.bootstrap})
    began = time.monotonic()
    admin.delete_topics([name])[name].result(timeout=60)
    assert writer.wait(200) == 2
    output = writer.output()
    assert f"topic '{name}' does not exist" in output
    assert "restarts_exhausted" in output
    assert time.monotonic() - began > 30, "a topic that is created again within half a minute is waited for"
