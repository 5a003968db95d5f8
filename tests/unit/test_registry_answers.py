"""What a registry may answer: a schema, that there is none, or neither. Over HTTP, to a server that answers as told."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from headrace.writer.avro.fingerprint import schema_fingerprint
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import ColumnRules, RejectedSchema, WriterSchema
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.errors import SchemaChanged
from headrace.writer.framing.wire_format import CONFLUENT, Ids
from headrace.writer.logins.http_login import BasicLogin
from headrace.writer.logins.secret import Secret
from headrace.writer.protobuf.registered_schema import wrap_schema
from headrace.writer.schemas.registry import (
    ConfluentRegistry,
    Login,
    RegistryUnreachable,
    SchemaNotFound,
    SchemaSource,
    with_ids,
)
from headrace.writer.schemas.schema_id_check import IdMeanings
from headrace.writer.schemas.tracker import ASK_AGAIN, Schemas
from tests.servers.scripted import HttpRequest, Reply, Scripted, serve_script
from tests.support.sample_records import EVENT

TEXT = json.dumps(EVENT)
PROTOBUF = 'syntax = "proto3"; message Event { int64 id = 1; }'
IDS: tuple[Ids, ...] = ("confluent", "global", "content")
NOT_FOUND = Reply(404, {"error_code": 40403, "message": "Schema not found"})
NO_VERSION = Reply(404, {"name": "VersionNotFoundException", "title": "No version with global ID '2' found."})
NO_ARTIFACT = Reply(404, {"name": "ArtifactNotFoundException", "title": "No artifact with ID 'x' was found."})
NO_PATH = {"name": "NotFoundException", "title": "RESTEASY003210: Could not find resource for full path", "status": 404}
Answer = Callable[[HttpRequest], Reply]


def well(asked: HttpRequest, text: str = TEXT, kind: str = "AVRO") -> Reply:
    """Answer as Confluent's and Apicurio's registries do: one schema, id 1, of topic `clicks`."""
    path = asked.path.partition("?")[0]
    named = {"schema": text, "schemaType": kind}
    version = {"globalId": 1, "contentId": 1}
    match path.split("/")[1:]:
        case ["apis", "ccompat", "v7", "schemas", "ids", "1"]:
            return Reply(body=named)
        case ["apis", "ccompat", "v7", "subjects", "clicks-value", "versions"]:
            return Reply(body=[1])
        case ["apis", "ccompat", "v7", "subjects", "clicks-value", "versions", "1"]:
            return Reply(body={"subject": "clicks-value", "version": 1, "id": 1, **named})
        case ["apis", "registry", "v3", "ids", "globalIds", "1"]:
            return Reply(body=text.encode(), headers={"X-Registry-ArtifactType": kind})
        case ["apis", "registry", "v3", "ids", "contentIds", "1", "references"]:
            return Reply(body=[])
        case ["apis", "registry", "v3", "search", "versions"]:
            return Reply(body={"versions": [version] if "Id=1&" in asked.path else []})
        case ["apis", "registry", "v3", "groups", "default", "artifacts", "clicks-value", "versions"]:
            return Reply(body={"count": 1, "versions": [version] if "offset=0" in asked.path else []})
        case ["apis", "registry", _, "ids", *_]:
            return NO_VERSION
        case ["apis", "registry", *_]:
            return NO_ARTIFACT
    return NOT_FOUND


def no_schema(asked: HttpRequest) -> Reply:
    """Answer in the envelope, with nothing in it."""
    found = well(asked)
    if isinstance(found.body, bytes):
        return Reply(body=b"", headers=found.headers)
    return Reply(body={**found.body, "schema": None} if "schema" in found.body else found.body)


def connection_cut_off(asked: HttpRequest) -> Reply:
    found = well(asked)
    body = found.body if isinstance(found.body, bytes) else json.dumps(found.body).encode()
    return Reply(body=body[:-5], headers={**found.headers, "Content-Length": str(len(body))})


ILL: Mapping[str, Answer] = {
    "{}": lambda _: Reply(body={}),
    "nothing": lambda _: Reply(),
    "null": lambda _: Reply(body=None),
    "a proxy's page": lambda _: Reply(body=b"<html><body>Be right back.</body></html>"),
    "the 404 of a path that is none": lambda _: Reply(404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
    "Apicurio's 404 of a path that is none": lambda _: Reply(404, NO_PATH),
    "a proxy's page, 404": lambda _: Reply(404, b"<html><body>default backend - 404</body></html>"),
    "bytes": lambda _: Reply(body=b"\xff\xfe\x00"),
    "an answer that is cut off": lambda asked: Reply(body=json.dumps(well(asked).body).encode()[:-5])
    if not isinstance(well(asked).body, bytes) else Reply(body=well(asked).body[:-5]),
    "a connection that is cut off": connection_cut_off,
    "no schema in the envelope": no_schema,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    with serve_script(well) as found:
        yield found


@pytest.fixture
def registry(server: Scripted) -> ConfluentRegistry:
    server.answer = well
    return ConfluentRegistry(f"{server.url}/apis/ccompat/v7")


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("what", ILL)
def test_an_answer_without_a_schema_is_none_and_the_next_one_counts(
    server: Scripted, registry: ConfluentRegistry, ids: Ids, what: str
) -> None:
    schemas, answer = with_ids(registry, ids), ILL[what]
    server.answer = answer
    sentence = "no schema registry at .*Check the path" if "404" in what and ids == "confluent" else "does not answer"
    with pytest.raises(RegistryUnreachable, match=sentence):
        schemas.schema(1)
    with pytest.raises(RegistryUnreachable, match=sentence):
        schemas.topic_schemas("clicks")
    server.answer = well
    assert json.loads(schemas.schema(1)) == EVENT
    assert [json.loads(text) for text in schemas.topic_schemas("clicks").values()] == [EVENT]


LOGINS: Mapping[str, tuple[str, Login]] = {
    "none": ("", Login()),
    "of the configuration": ("", Login(BasicLogin("reader", Secret("password", "s3cret")))),
    "in the URL": ("reader:s3cret@", Login()),
}
SETTINGS = {
    "none": "none was sent. Set registry.login",
    "of the configuration": "orrect registry.login",
    "in the URL": "orrect the login in registry.url",
}


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_login_names_its_setting_and_no_secret(server: Scripted, ids: Ids, login: str, status: int) -> None:
    user_part, credentials = LOGINS[login]
    url = server.url.replace("://", f"://{user_part}")
    schemas = with_ids(ConfluentRegistry(f"{url}/apis/ccompat/v7", login=credentials), ids)
    # Some servers repeat what was sent.
    server.answer = lambda _: Reply(status, {"message": "no user reader:s3cret, Basic cmVhZGVyOnMzY3JldA=="})
    for ask in (lambda: schemas.schema(1), lambda: schemas.topic_schemas("clicks")):
        with pytest.raises(RegistryUnreachable, match=f"refuses the login: it answers {status}") as refusal:
            ask()
        text = str(refusal.value)
        assert SETTINGS[login] in text
        assert "does not answer" not in text
        for secret in ("s3cret", "cmVhZGVyOnMzY3JldA"):
            assert secret not in text


def test_a_proxy_that_wants_a_login_is_no_silent_registry(server: Scripted, registry: ConfluentRegistry) -> None:
    server.answer = lambda _: Reply(407, b"")
    with pytest.raises(RegistryUnreachable, match="407, the proxy before it wants a login"):
        registry.schema(1)


def test_a_login_that_is_refused_for_data_keys_is_told_from_silence(
    server: Scripted, registry: ConfluentRegistry
) -> None:
    path = "dek-registry/v1/keks/payroll"
    server.answer = lambda _: Reply(401, {"error_code": 40101, "message": "User reader:s3cret is unknown"})
    with pytest.raises(RegistryUnreachable, match="refuses the login: it answers 401") as refusal:
        registry.read_object(path)
    assert "s3cret" not in str(refusal.value)
    server.answer = lambda _: Reply(500, {"error_code": 50001, "message": "broken"})
    with pytest.raises(RegistryUnreachable, match="does not answer"):
        registry.read_object(path)
    server.answer = lambda _: Reply(404, {"error_code": 40470, "message": "no key"})
    assert registry.read_object(path) is None
    server.answer = lambda _: Reply(200, ["no object"])
    with pytest.raises(RegistryUnreachable, match="no object"):
        registry.read_object(path)


@pytest.mark.parametrize("ids", IDS)
def test_a_registry_s_word_that_there_is_no_such_schema_is_an_answer(registry: ConfluentRegistry, ids: Ids) -> None:
    schemas = with_ids(registry, ids)
    with pytest.raises(SchemaNotFound):
        schemas.schema(2)
    assert schemas.topic_schemas("installs") == {}


@pytest.mark.parametrize("ids", IDS)
def test_a_schema_of_another_kind_is_an_answer(server: Scripted, registry: ConfluentRegistry, ids: Ids) -> None:
    server.answer = lambda asked: well(asked, PROTOBUF, "PROTOBUF")
    assert with_ids(registry, ids).schema(1) == wrap_schema(PROTOBUF, {})
    assert with_ids(registry, ids).topic_schemas("clicks") == {1: wrap_schema(PROTOBUF, {})}


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("text", [TEXT[:-9], "{}", "string", "a page", "/* */", "\ufeff", "[", '""'])
def test_a_text_that_is_no_schema_is_an_answer_where_all_around_it_is_whole(
    server: Scripted, registry: ConfluentRegistry, ids: Ids, text: str
) -> None:
    server.answer = lambda asked: well(asked, text)
    assert with_ids(registry, ids).schema(1) == text
    assert with_ids(registry, ids).topic_schemas("clicks") == {1: text}
    schemas = learning(with_ids(registry, ids))
    schemas.learn([1])
    assert isinstance(schemas.plan.schemas[1], RejectedSchema)


def learning(
    source: SchemaSource, recorded: dict[str, int] | None = None, unknown_id_timeout: timedelta | None = timedelta(0)
) -> Schemas:
    return Schemas(
        "clicks", source, IdMeanings("clicks", Registry(url="http://r"), lambda: recorded or {}),
        bucket_columns=["hour"], record_columns=RecordColumns(), rules=ColumnRules(),
        unknown_id_timeout=unknown_id_timeout, stopping=threading.Event(),
    )  # fmt: skip


class Source:
    """A registry that changes its mind; what is not in it is not known."""

    def __init__(self, **texts: str) -> None:
        self.texts: dict[str, str] = texts
        self.asked = 0
        self.trouble: Exception | None = None

    def schema(self, schema_id: int) -> str:
        self.asked += 1
        if self.trouble:
            raise self.trouble
        if str(schema_id) not in self.texts:
            raise SchemaNotFound(f"schema id {schema_id} is not here")
        return self.texts[str(schema_id)]

    def topic_schemas(self, topic: str) -> dict[int, str]:  # noqa: ARG002 - none is registered for it
        return {}


@pytest.mark.parametrize("before", [{}, {"1": PROTOBUF}, {"1": '{"type": "object"}'}, {"1": '"string"'}])
def test_a_schema_that_the_registry_refused_is_asked_for_again_after_a_while(before: dict[str, Any]) -> None:
    source = Source(**before)
    schemas, later_s = learning(source), ASK_AGAIN.total_seconds()
    schemas.learn([1])
    schemas.forget_rejections(100.0)
    assert isinstance(schemas.plan.schemas[1], RejectedSchema)
    source.texts["1"] = TEXT
    schemas.forget_rejections(99.9 + later_s)
    assert isinstance(schemas.plan.schemas[1], RejectedSchema), "not yet"
    schemas.forget_rejections(100.0 + later_s)
    assert 1 not in schemas.plan.schemas
    assert source.asked == 1, "only when a batch meets it"
    schemas.learn([1])
    assert isinstance(schemas.plan.schemas[1], WriterSchema)
    schemas.forget_rejections(100.0 + 9 * later_s)
    assert isinstance(schemas.plan.schemas[1], WriterSchema), "what is admitted stays"


def test_an_id_that_is_still_unknown_is_dead_again_at_once_and_asked_for_after_the_next_while() -> None:
    source, later_s = Source(), ASK_AGAIN.total_seconds()
    schemas = learning(source)
    for at in (1, 2, 3):
        schemas.learn([1])
        assert isinstance(schemas.plan.schemas[1], RejectedSchema)
        assert source.asked == at
        schemas.forget_rejections((2 * at) * later_s)
        schemas.forget_rejections((2 * at + 1) * later_s)
        assert 1 not in schemas.plan.schemas


def test_ids_are_asked_for_anew_after_a_while_and_another_schema_stops_the_batch() -> None:
    source, later_s, recorded = Source(**{"1": TEXT}), ASK_AGAIN.total_seconds(), dict[str, int]()
    schemas = learning(source, recorded)
    schemas.learn([1])
    recorded |= schemas.confirm(Report(schemas={1}), 100.0)
    assert recorded == {"clicks/schema/r/confluent/1": schema_fingerprint(TEXT)}
    source.texts["1"] = TEXT.replace("note", "remark")
    schemas.confirm(Report(schemas={1}), 99.9 + later_s)
    assert source.asked == 1, "not yet"
    with pytest.raises(SchemaChanged, match=r"^schema id 1 at r is another schema"):
        schemas.confirm(Report(schemas={1}), 100.0 + later_s)
    assert source.asked == 2


@pytest.mark.parametrize("trouble", [RegistryUnreachable("down"), SchemaNotFound("gone")])
def test_a_registry_that_does_not_confirm_holds_no_batch(trouble: Exception) -> None:
    source, later_s = Source(**{"1": TEXT, "2": TEXT}), ASK_AGAIN.total_seconds()
    schemas = learning(source)
    schemas.learn([1, 2])
    before = schemas.confirm(Report(schemas={1, 2}), 100.0)
    source.trouble = trouble
    assert schemas.confirm(Report(schemas={1, 2}), 100.0 + later_s) == before
    asked = 2 + (1 if isinstance(trouble, RegistryUnreachable) else 2)  # one that is down is asked once
    assert source.asked == asked
    schemas.confirm(Report(schemas={1, 2}), 101.0 + later_s)
    assert source.asked == asked, "and not by the next batch"


def test_a_schema_that_is_met_is_held_against_the_log_before_it_is_learned() -> None:
    source = Source(**{"1": TEXT})
    schemas = learning(source, {"clicks/schema/r/confluent/1": 7})
    with pytest.raises(SchemaChanged):
        schemas.learn([1])
    assert schemas.plan.schemas == {}
    assert not schemas.plan.columns.names


def test_a_command_asks_once_and_waits_for_no_registry(capsys: pytest.CaptureFixture[str]) -> None:
    source = Source(**{"1": TEXT})
    schemas = learning(source, unknown_id_timeout=None)
    schemas.learn([1, 2])
    assert [type(schemas.plan.schemas[at]) for at in (1, 2)] == [WriterSchema, RejectedSchema]
    source.trouble = RegistryUnreachable("down")
    with pytest.raises(RegistryUnreachable):
        schemas.learn([3])
    with pytest.raises(RegistryUnreachable):
        schemas.knows(CONFLUENT, 3)
    assert source.asked == 4
    assert capsys.readouterr() == ("", ""), "what a driver logs of its schemas, a command does not"


def test_a_list_whose_pages_come_again_is_refused(server: Scripted, registry: ConfluentRegistry) -> None:
    """A proxy that drops the query, for one, gives the first page for ever."""
    server.answer = lambda asked: well(
        HttpRequest(asked.method, re.sub("offset=[0-9]+", "offset=0", asked.path), asked.headers, asked.body)
    )
    with pytest.raises(
        RegistryUnreachable, match="clicks-value/versions has no end: the page at offset 500 came before"
    ):
        with_ids(registry, "global").topic_schemas("clicks")
