"""The registry is down, or has forgotten its ids: nothing is written that a later look at it would not have written."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.demo.devstack.events import SCHEMAS, encoder, generate
from headrace.writer.demo.devstack.stack import Registry
from tests.servers import faulty
from tests.support import oracle
from tests.support.fault_cells import FORMATS
from tests.support.writer_process import NOW, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
GRACE_S = 2  # of an id that the registry does not know, in the site's configuration


@pytest.fixture
def registry(site: Site, tmp_path: Path) -> Iterator[Registry]:
    """The site's own, which may be stopped."""
    with Registry(tmp_path / "registry") as started:
        site.registry_url = started.url
        yield started


def dead_letters(lake: Path) -> dict[object, object]:
    found = oracle.rows(lake.with_name(f"{lake.name}_dead_letters"), "error, count(*)", "GROUP BY ALL")
    return dict(found)  # type: ignore[arg-type]


@pytest.mark.cell("the registry is down", "at a start")
@pytest.mark.parametrize("form", FORMATS)
def test_a_start_without_a_registry_leaves_the_table_and_the_next_goes_on(
    site: Site, topic: MakeTopic, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form)
    site.fill(name, 500, broken=3)
    site.once()
    before = oracle.replay(lake)
    site.fill(name, 500, seed=8)
    there, site.registry_url = site.registry_url, "http://127.0.0.1:9"
    output = site.once(code=1)
    assert "http://127.0.0.1:9" in output
    assert oracle.replay(lake) == before, "not even the epoch was raised"
    oracle.check_rows(lake, "events")
    site.registry_url = there
    site.once()
    oracle.check(lake, "events", site.ends(name))


@pytest.mark.cell("the registry is down", "in the middle of a run, and a new schema arrives; it restarts with its ids")
@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_with_a_new_schema_waits_for_a_registry_that_is_down(
    site: Site, registry: Registry, topic: MakeTopic, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form, commit={"max_delay": "2 s"})
    site.fill(name, 500)
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    wider = site.values(name, 300, seed=8, kind="clicks_2")
    registry.stop()
    site.send(name, wider)
    writer.until(lambda: writer.output().count("registry_unreachable") >= 2)
    time.sleep(GRACE_S)
    oracle.check_rows(lake, "events")
    assert sum(oracle.frontier_of(lake, "events").values()) == 500, "the batch is held"
    registry.start()
    writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 800)
    output = writer.stop()
    assert "pipeline_restarting" not in output
    assert dead_letters(lake) == {}
    oracle.check(lake, "events", site.ends(name))
    assert oracle.rows(lake, "count(*)", "WHERE referrer_campaign IS NOT NULL") == [(300,)]


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_with_a_new_schema_waits_while_answers_are_none(
    site: Site, topic: MakeTopic, tmp_path: Path, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form, commit={"max_delay": "2 s"})
    site.fill(name, 500)
    address, found, path = site.registry_url.partition("/apis/")
    with faulty.proxy(address, tmp_path) as proxy:
        site.registry_url = f"{proxy.url}{found}{path}"
        writer = site.start()
        writer.until(lambda: writer.commits() == 1)
        wider = site.values(name, 300, seed=8, kind="clicks_2")
        proxy.always(faulty.EMPTY)
        site.send(name, wider)
        for fault in (faulty.EMPTY, faulty.PAGE, faulty.CUT):
            proxy.always(fault)
            writer.until(lambda fault=fault: proxy.done[fault] > 0)  # type: ignore[misc]
        oracle.check_rows(lake, "events")
        assert sum(oracle.frontier_of(lake, "events").values()) == 500, "the batch is held"
        proxy.calm()
        writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 800)
        output = writer.stop()
    assert "pipeline_restarting" not in output
    assert dead_letters(lake) == {}
    oracle.check(lake, "events", site.ends(name))
    assert oracle.rows(lake, "count(*)", "WHERE referrer_campaign IS NOT NULL") == [(300,)]


@pytest.mark.cell("the registry has forgotten its ids", "in the middle of a run, and at a start")
@pytest.mark.parametrize("form", FORMATS)
def test_ids_that_the_registry_lost_stop_a_start_and_its_dead_letters_become_rows_again(
    site: Site, registry: Registry, topic: MakeTopic, tmp_path: Path, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form, commit={"max_delay": "2 s"})
    messages = site.values(name, 2_900)
    site.send(name, messages[:500])
    writer = site.start()
    writer.until(lambda: writer.commits() == 1)
    registry.stop()
    with Registry(tmp_path / "empty", port=registry.port):
        site.send(name, messages[500:1_000])
        writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_000)
        writer.stop()
        assert dead_letters(lake) == {}, "what a run has read once it knows"
        site.send(name, messages[1_000:1_400])
        site.once()  # fewer than limits.min_failed_records
        oracle.check_rows(lake, "events")
        ((error, count),) = dead_letters(lake).items()
        assert ("is unknown to the registry" in str(error), count) == (True, 400)
        site.send(name, messages[1_400:])
        before = oracle.replay(lake).files
        assert "limits.max_failed_ratio" in site.once(code=5)
        assert oracle.replay(lake).files == before
        oracle.check_rows(lake, "events")
    registry.start()
    site.once()
    replayed = CliRunner().invoke(app, ["dlq", "replay", str(site.config), "--yes"])
    assert replayed.exit_code == 0, replayed.output
    oracle.check(lake, "events", site.ends(name))
    assert dead_letters(lake) == {}
    assert oracle.rows(lake, "count(DISTINCT event_id)") == [(2_900,)]


@pytest.mark.parametrize("form", FORMATS)
def test_ids_that_mean_other_schemas_stop_a_start_until_they_are_accepted(
    site: Site, registry: Registry, topic: MakeTopic, tmp_path: Path, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form)
    site.fill(name, 500)
    site.once()
    registry.stop()
    with Registry(tmp_path / "anew", port=registry.port):
        text = json.dumps(SCHEMAS["clicks"]).replace('"session_id"', '"visit_id"')  # in bytes it is the same
        with SchemaRegistryClient({"url": site.registry_url}) as client:
            assert client.register_schema(f"{name}-value", Schema(text, "AVRO")) == 1
        encode = encoder(SCHEMAS["clicks"], 1)
        site.send(name, [(key, encode(record)) for key, record in generate("clicks", 300, now=NOW, seed=8)])
        before = oracle.replay(lake)
        said = site.once(code=2)
        assert "schema id 1 at 127.0.0.1" in said
        assert "headrace schema accept --pipeline events" in said
        assert oracle.replay(lake) == before, "not even the epoch was raised"
        oracle.check_rows(lake, "events")
        for words in (["dlq", "replay", "--yes"], ["validate", "--sample", "0"]):
            done = CliRunner().invoke(app, [*words, str(site.config)])
            said = " ".join(f"{done.output}{done.exception}".split())  # lines are broken anywhere
            assert "is another schema" in said, done.output
        for words in ([], ["--yes"]):
            done = CliRunner().invoke(app, ["schema", "accept", str(site.config), *words])
            assert done.exit_code == 0, done.output
        site.once()
        oracle.check(lake, "events", site.ends(name))
        assert oracle.rows(lake, "count(visit_id), count(session_id), count(*)") == [(300, 500, 800)]
        assert dead_letters(lake) == {}
        site.once()
