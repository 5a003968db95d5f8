"""Each format behind each frame in one batch: no frame is taken for another, and no value for one of another format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.demo.devstack.value_encoding import DECLARED
from headrace.writer.schemas.registry import source
from tests.servers.glue_api import GlueApi
from tests.servers.objects import CREDENTIALS
from tests.servers.scripted import serve_script
from tests.support import oracle
from tests.support.format_values import GARBAGE_KEY
from tests.support.framed_events import FRAMES, SCHEMA_KINDS, Registries, encode_stream, streams_of, wire_settings
from tests.support.local_driver import Driver, log, pipeline_config

pytestmark = pytest.mark.slow
EVENTS = 60


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> GlueApi:
    for name, text in CREDENTIALS.items():
        monkeypatch.setenv(name, text)
    return GlueApi()


@pytest.fixture
def endpoint(api: GlueApi) -> Iterator[str]:
    with serve_script(api) as server:
        yield server.url


@pytest.mark.parametrize("owner", FRAMES)
def test_all_formats_behind_all_frames_are_told_apart(
    tmp_path: Path, owner: str, registry_url: str, topic: Any, api: GlueApi, endpoint: str
) -> None:
    name = topic()
    configuration = pipeline_config(
        tmp_path,
        "delta",
        sections={"registry": {"url": registry_url, "glue": {"endpoint": endpoint}}},
        topics=[name],
        formats=[*SCHEMA_KINDS, "json"],
        columns={"declared": dict(DECLARED)},
        wire=wire_settings(FRAMES[owner]),
        event_time={"field": "event_time", "max_age": "36500 d", "max_ahead": "36500 d"},
        limits={"max_failed_ratio": 1},
    )
    schemas: Any = source(configuration.registry)
    driver = Driver(tmp_path, configuration=configuration, schemas=schemas, topic=name)
    driver.start()
    registries = Registries(registry_url, api)
    messages = [
        (f"{stream.description}, {kind}, {turn}", message)
        for number, stream in enumerate(streams_of(FRAMES[owner]))
        for kind in ("clicks", "clicks_2")
        for turn, message in enumerate(encode_stream(stream, registries, name, EVENTS, kind=kind, seed=number))
    ]
    batch = log(
        {offset: message.value for offset, (_, message) in enumerate(messages)},
        topic=name,
        headers={offset: dict(message.headers) for offset, (_, message) in enumerate(messages)},
        keys={offset: message.key for offset, (_, message) in enumerate(messages)},
    )
    driver.carry([batch], {0: len(messages)})
    rows = dict(oracle.rows(Path(driver.lake), "_offset, event_id"))
    errors = dict(oracle.rows(Path(driver.dead_letters), "_offset, error"))
    assert len(rows) + len(errors) == len(messages)
    results = {where: rows.get(offset, errors.get(offset)) for offset, (where, _) in enumerate(messages)}
    taken = {
        where: results[where]
        for where, message in messages
        if message.key == GARBAGE_KEY and results[where] in rows.values()
    }
    assert taken == {}
    expected = {where: message.key.decode() for where, message in messages if message.key != GARBAGE_KEY}
    assert {where: results[where] for where in expected} == expected
