"""Topics with the frames of AWS Glue: kills, and Glue away. Each row is compared with the record at its offset."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from headrace.writer.demo.devstack.events import SCHEMAS, encoder
from headrace.writer.demo.devstack.protobuf_encoding import message_encoder, schema_text
from headrace.writer.demo.devstack.value_encoding import AvroEncoding, encode_json
from headrace.writer.framing.message_marks import write_place
from tests.servers.glue_api import GlueApi
from tests.support import oracle
from tests.support.fault_cells import FORMATS
from tests.support.format_values import GARBAGE_KEY, Message, encode_events, interleave, json_schema
from tests.support.framed_events import SCHEMA_KINDS, check_records, glue_garbage
from tests.support.glue_values import compressed, plain
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
POINTS = ("before_stage", "after_stage", "before_commit", "after_commit", "before_redo", "after_batch")
GRACE_S = 2  # of an id that the registry does not know, in the site's configuration
_CONFLUENT_HEADER = 5


@dataclass(frozen=True)
class GlueEncoding:
    """Values behind Glue's header, every other one compressed."""

    api: GlueApi
    value_format: str

    def open_encoder(self, topic: str, kind: str) -> Callable[[Any], bytes]:
        version_id = self._register(topic, kind)
        encode_avro = encoder(SCHEMAS[kind], 1)
        turn = count()

        def encode(record: Any) -> bytes:
            match self.value_format:
                case "avro":
                    body = encode_avro(record)[_CONFLUENT_HEADER:]
                case "protobuf":
                    body = write_place(0) + message_encoder(schema_text(kind))(record)
                case _:
                    body = encode_json(record)
            return (compressed if next(turn) % 2 else plain)(version_id, body)

        return encode

    def _register(self, topic: str, kind: str) -> UUID:
        """Return the id of a version, which is registered once."""
        name = topic if self.value_format == "avro" else f"{topic}-{self.value_format}"
        texts = {
            "avro": json.dumps(SCHEMAS[kind]),
            "json_schema": json.dumps(json_schema(kind)),
            "protobuf": schema_text(kind),
        }
        text = texts[self.value_format]
        for version in self.api.schemas.get(name, ()):
            if version.text == text:
                return UUID(version.id)
        return self.api.add(name, text, SCHEMA_KINDS[self.value_format])


def mixed_messages(site: Site, api: GlueApi, topic: str, number: int, kind: str, seed: int) -> Iterator[Message]:
    """Yield an event in each format by Glue, one in Avro by Confluent, garbage, and so on."""
    encodings = [*(GlueEncoding(api, value_format) for value_format in SCHEMA_KINDS), AvroEncoding(site.registry_url)]
    groups = [
        encode_events(encoding, topic, number, kind=kind, seed=10 * seed + place)
        for place, encoding in enumerate(encodings)
    ]
    broken = [
        (GARBAGE_KEY, glue_garbage(turn, value or b""))
        for turn, (_, value) in enumerate(groups[seed % 3][: number // 4])
    ]
    return interleave(*groups, broken)


@pytest.mark.cell(
    "kill -9 of the driver", "at six points, while frames of Confluent and AWS Glue alternate in one topic"
)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.usefixtures("glue")
def test_a_topic_of_two_registries_and_garbage_loses_and_doubles_nothing(
    site: Site, api: GlueApi, topic: MakeTopic, form: str
) -> None:
    name = topic(2)
    settings = {
        "formats": list(SCHEMA_KINDS),
        "wire": ["confluent", "glue"],
        "limits": {"max_failed_ratio": 1},
        "commit": {"max_offsets": 1_000},
    }
    lake = site.pipeline("events", [name], form=form, raw=True, **settings)
    for round_, point in enumerate(POINTS):
        kind = "clicks_2" if round_ >= len(POINTS) // 2 else "clicks"
        site.send(name, mixed_messages(site, api, name, 600, kind, round_))
        site.once(env={"HEADRACE_FAULT": f"{point}:{1 + round_ % 2}"}, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
    site.once()
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name)


@pytest.mark.cell("the registry is down", "at a start, and in the middle of a run: AWS Glue")
@pytest.mark.usefixtures("glue")
def test_a_batch_with_a_new_version_waits_for_glue(site: Site, api: GlueApi, topic: MakeTopic) -> None:
    name = topic(2)
    site.overrides["registry"].pop("url")
    lake = site.pipeline("events", [name], commit={"max_delay": "2 s"})
    encoding = GlueEncoding(api, "avro")
    site.send(name, encode_events(encoding, name, 500))
    api.trouble = ("InternalServiceException", 500)
    output = site.once(code=1)
    assert "refuses requests: it answers InternalServiceException" in output
    assert not lake.exists()
    api.trouble = None
    with site.start() as writer:
        writer.until(lambda: writer.commits() == 1)
        assert "wire_format_found pipeline=events wire=glue " in writer.output()
        wider = encode_events(encoding, name, 300, kind="clicks_2", seed=8)
        api.trouble = ("ThrottlingException", 400)
        site.send(name, wider)
        writer.until(lambda: "registry_unreachable" in writer.output())
        time.sleep(GRACE_S)
        oracle.check_rows(lake, "events")
        assert sum(oracle.frontier_of(lake, "events").values()) == 500, "the batch is held"
        api.trouble = None
        writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 800)
        output = writer.stop()
    assert "pipeline_restarting" not in output
    oracle.check(lake, "events", site.ends(name))
    check_records(site, lake, name)
