"""Logins of registries: passwords and tokens that rotate, certificates, headers; a registry for each pipeline."""

import base64
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from pydantic import ValidationError

from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.logins import OAuthSection
from headrace.writer.config.sections.registry import Registry
from headrace.writer.logins.errors import LoginUnavailable
from headrace.writer.schemas.registry import ApicurioRegistry, RegistryUnreachable, SchemaNotFound, SchemaSource, source
from tests.servers.scripted import HttpRequest, Reply, Scripted, serve_script
from tests.servers.secured import Authority

TEXT = json.dumps({"type": "record", "name": "Event", "fields": [{"name": "id", "type": "long"}]})
SECRET = "s3cr:et/+ %"
VIEWS = {"topics": ["views"], "table": {"location": "/lake/views"}, "event_time": {"field": "at"}}


class Guard:
    """A registry that takes one Authorization header, and a server of tokens that gives numbered ones."""

    def __init__(self) -> None:
        self.wanted: str | None = None
        self.tokens = 0
        self.life_s = 3600
        self.fails = False

    def registry(self, asked: HttpRequest) -> Reply:
        if asked.headers.get("authorization") != self.wanted:
            return Reply(401, {"error_code": 40101, "message": asked.headers.get("authorization", "none")})
        if asked.path.startswith("/schemas/ids/1"):
            return Reply(body={"schema": TEXT})
        return Reply(404, {"error_code": 40401, "message": "no subject"})

    def server_of_tokens(self, _: HttpRequest) -> Reply:
        if self.fails:
            return Reply(503, {"error": "temporarily_unavailable"})
        self.tokens += 1
        return Reply(body={"access_token": f"token-{self.tokens}", "expires_in": self.life_s, "token_type": "Bearer"})


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def door(guard: Guard) -> Iterator[Scripted]:
    with serve_script(guard.registry) as server:
        yield server


@pytest.fixture
def identity(guard: Guard) -> Iterator[Scripted]:
    with serve_script(guard.server_of_tokens) as server:
        yield server


def ask(**settings: Any) -> str:
    return source(Registry.model_validate(settings)).schema(1)


def oauth(identity: Scripted, **settings: Any) -> dict[str, Any]:
    return {
        "type": "oauth", "token_url": f"{identity.url}/token", "client_id": "headrace", "client_secret": SECRET,
        **settings,
    }  # fmt: skip


def test_a_password_file_is_read_for_each_request(tmp_path: Path, guard: Guard, door: Scripted) -> None:
    path = tmp_path / "password"
    login = {"type": "basic", "user": "reader", "password_file": str(path)}
    schemas = source(Registry.model_validate({"url": door.url, "login": login}))
    for password in ("first", "second"):
        path.write_text(f"{password}\n")
        guard.wanted = f"Basic {base64.b64encode(f'reader:{password}'.encode()).decode()}"
        assert schemas.schema(1) == TEXT
    path.unlink()
    with pytest.raises(RegistryUnreachable, match=r"password_file .*password cannot be read: No such file"):
        schemas.schema(1)


def test_a_token_is_asked_for_once_and_shown_with_each_request(
    guard: Guard, door: Scripted, identity: Scripted
) -> None:
    guard.wanted = "Bearer token-1"
    schemas = source(Registry.model_validate({"url": door.url, "login": oauth(identity, scope="registry:read")}))
    for _ in range(3):
        assert schemas.schema(1) == TEXT
    assert guard.tokens == 1
    (question,) = identity.asked
    assert parse_qs(question.body.decode()) == {"grant_type": ["client_credentials"], "scope": ["registry:read"]}
    user, _, password = (
        base64.b64decode(question.headers["authorization"].removeprefix("Basic ")).decode().partition(":")
    )
    assert (user, password) == ("headrace", "s3cr%3Aet%2F%2B+%25")


def test_id_and_secret_may_be_sent_in_the_body(guard: Guard, door: Scripted, identity: Scripted) -> None:
    guard.wanted = "Bearer token-1"
    assert ask(url=door.url, login=oauth(identity, client_auth="post", parameters={"audience": "registry"})) == TEXT
    fields = parse_qs(identity.asked[0].body.decode())
    assert (fields["client_id"], fields["client_secret"], fields["audience"]) == (["headrace"], [SECRET], ["registry"])
    assert "authorization" not in identity.asked[0].headers


def test_a_token_that_is_revoked_gives_way_to_another(guard: Guard, door: Scripted, identity: Scripted) -> None:
    guard.wanted = "Bearer token-1"
    schemas = source(Registry.model_validate({"url": door.url, "login": oauth(identity)}))
    assert schemas.schema(1) == TEXT
    guard.wanted = "Bearer token-2"
    with pytest.raises(RegistryUnreachable, match=r"401\. Correct registry\.login"):
        schemas.schema(1)
    # The server of tokens is left alone for a moment.
    with pytest.raises(RegistryUnreachable, match=r"registry\.login: the server answered 401 to a token"):
        schemas.schema(1)
    deadline_s = time.monotonic() + 10
    while not answers(schemas):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert guard.tokens == 2


def test_a_registry_that_refuses_a_token_takes_it_from_nobody_else(
    guard: Guard, door: Scripted, identity: Scripted
) -> None:
    """The same login may be that of the brokers, and of another registry."""
    login = oauth(identity)
    guard.wanted = "Bearer none"
    with pytest.raises(RegistryUnreachable, match=r"401\. Correct registry\.login"):
        ask(url=door.url, login=login)
    assert ask_broker(login) == "token-2"
    other = Guard()
    other.wanted = "Bearer token-3"
    with serve_script(other.registry) as other_door:
        assert ask(url=other_door.url, login=login) == TEXT


def ask_broker(login: dict[str, Any]) -> str:
    """Log in at a broker. Returns the token that it was shown."""
    shown = list[bytes]()

    def exchange(message: bytes) -> bytes:
        shown.append(message)
        return b""

    OAuthSection.model_validate(login).sasl.log_in("broker", exchange)
    return shown[0].decode().split("\x01")[1].removeprefix("auth=Bearer ")


def answers(schemas: SchemaSource) -> bool:
    with suppress(RegistryUnreachable):
        return schemas.schema(1) == TEXT
    return False


def test_a_server_of_tokens_that_fails_is_named_and_no_secret_is(
    guard: Guard, door: Scripted, identity: Scripted
) -> None:
    guard.fails = True
    schemas = source(Registry.model_validate({"url": door.url, "login": oauth(identity)}))
    with pytest.raises(
        RegistryUnreachable, match=r"registry\.login: http://127.* gives no token \(it answers 503"
    ) as error:
        schemas.schema(1)
    assert SECRET not in str(error.value)
    assert not door.asked


def test_a_refusal_repeats_no_token(guard: Guard, door: Scripted, identity: Scripted) -> None:
    guard.wanted = "Bearer another"
    with pytest.raises(RegistryUnreachable, match=r"401\. Correct registry\.login") as error:
        ask(url=door.url, login=oauth(identity))
    assert "token-1" not in str(error.value)


def test_a_static_token_and_one_in_a_file(tmp_path: Path, guard: Guard, door: Scripted) -> None:
    guard.wanted = "Bearer of-the-file"
    (tmp_path / "token").write_text("of-the-file\n")
    assert ask(url=door.url, login={"type": "bearer", "token_file": str(tmp_path / "token")}) == TEXT
    assert ask(url=door.url, login={"type": "bearer", "token": "of-the-file"}) == TEXT


def test_headers_of_confluent_cloud_are_sent_where_they_are_configured_and_only_there(
    guard: Guard, door: Scripted, identity: Scripted
) -> None:
    guard.wanted = "Bearer token-1"
    ask(url=door.url, login=oauth(identity), logical_cluster="lsrc-1", identity_pool="pool-1")
    ask(url=door.url, login=oauth(identity))
    names = ("target-sr-cluster", "confluent-identity-pool-id")
    assert [tuple(asked.headers.get(name) for name in names) for asked in door.asked] == [
        ("lsrc-1", "pool-1"), (None, None),
    ]  # fmt: skip


def test_a_login_goes_to_apicurio_s_own_api_too(guard: Guard, door: Scripted, identity: Scripted) -> None:
    guard.wanted = "Bearer token-1"
    registry = Registry.model_validate({"url": door.url, "login": oauth(identity)})
    own = ApicurioRegistry(door.url, "global", source(registry).login)
    with pytest.raises(Exception, match=r"."):
        own.schema(1)
    assert door.asked[0].headers["authorization"] == "Bearer token-1"


def test_a_client_is_known_by_its_certificate(tmp_path: Path, guard: Guard) -> None:
    authority = Authority(tmp_path / "ca")
    shown = authority.certificate("registry")
    client = authority.certificate("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    with serve_script(guard.registry, context) as server:
        assert ask(url=server.url, ca_file=str(authority.ca), client_cert_file=str(client.both)) == TEXT
        with pytest.raises(RegistryUnreachable):
            ask(url=server.url, ca_file=str(authority.ca))
    with pytest.raises(Exception, match=r"registry\.client_cert_file .*ca\.pem cannot be used"):
        ask(url="https://registry", client_cert_file=str(authority.ca))


def several(**pipelines: Any) -> Config:
    return Config.model_validate({
        "kafka": {"bootstrap_servers": "kafka:9092"}, "checkpoints": "/checkpoints",
        "registry": {"url": "http://shared:8081", "login": {"type": "basic", "user": "a", "password": "b"}},
        "pipelines": {
            name: {**VIEWS, "topics": [name], "table": {"location": f"/lake/{name}"}, **settings}
            for name, settings in pipelines.items()
        },
    })  # fmt: skip


def test_a_pipeline_may_have_a_registry_and_subjects_of_its_own() -> None:
    config = several(
        shared={}, own={"registry": {"url": "http://other:8081"}}, named={"subjects": "topic_record_name"},
        records={"subjects": {"strategy": "record_name", "records": {"records": ["com.A"]}}},
        files={"registry": {"files": {1: "/schemas/a.avsc"}}},
    )  # fmt: skip
    assert config.registry_of("shared") == config.registry
    assert (config.registry_of("own").url, config.registry_of("own").login) == ("http://other:8081", None)
    assert config.registry_of("named").subjects.strategy == "topic_record_name"
    assert config.registry_of("named").login == config.registry.login
    assert config.registry_of("records").subjects.records == {"records": ["com.A"]}
    assert not config.registry_of("files").has_registry


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"subjects": {"strategy": "record_name", "records": {"x": ["A"]}}}, "pipelines.views.subjects.records names"),
        ({"registry": {"files": {1: "/a.avsc"}}, "subjects": "topic_record_name"}, "pipelines.views.subjects goes"),
        ({"registry": {}}, "registry: pipelines.views reads records that name a schema"),
        ({"registry": {"url": "http://a", "subjects": {"strategy": "record_name", "records": {"x": ["A"]}}}},
         "pipelines.views.registry.subjects.records names no record of topic 'views'"),
    ],
)  # fmt: skip
def test_a_registry_of_a_pipeline_that_does_not_fit_it_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=r".") as error:
        several(views=settings)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://first:8081,second:8081",
        "http://me:sesame@first:8081,ftp://me:sesame@second",
        "http://[::1",
        "http://first:99999",
        "http://first:sesame",
        "http://first:8081?token=sesame",
        "http://first second:8081",
        " , ",
    ],
)
@pytest.mark.parametrize("key", ["url", "core_url"])
def test_each_address_of_a_registry_is_checked_and_not_shown(key: str, url: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Registry.model_validate({"url": "http://registry:8081", key: url})
    (error,) = refusal.value.errors(include_input=False, include_url=False)
    assert f"'{key}' is no http:// or https:// URL" in error["msg"]
    assert "sesame" not in error["msg"]


def test_a_login_goes_with_servers_that_name_no_user() -> None:
    login = {"type": "basic", "user": "reader", "password": SECRET}
    with pytest.raises(ValidationError, match="needs a 'url' that names no user itself"):
        Registry.model_validate({"url": "http://first,http://me:sesame@second", "login": login})


def test_a_registry_that_is_shown_shows_no_password_of_its_address() -> None:
    registry = Registry.model_validate({"url": "http://me:sesame@first", "core_url": "http://me:sesame@second"})
    assert "sesame" not in f"{registry!r} {registry}"


def test_a_refused_login_is_that_of_the_server_that_refuses_it(guard: Guard, door: Scripted) -> None:
    guard.wanted = "Basic another"
    address = door.url.removeprefix("http://")
    with pytest.raises(RegistryUnreachable, match=r"401\. Correct the login in registry\.url"):
        ask(url=f"http://127.0.0.1:9,http://me:sesame@{address}")


def test_a_server_of_tokens_says_how_long_it_wants_to_be_left_alone() -> None:
    with serve_script(lambda _: Reply(429, headers={"Retry-After": "60"})) as identity:
        request = OAuthSection.model_validate(oauth(identity)).request
        with pytest.raises(LoginUnavailable, match=r"it answers 429\). It is asked again") as failure:
            request.ask()
    assert failure.value.retry_after_s == 60


@pytest.mark.parametrize("status", [400, 418, 500, 502])
def test_an_answer_that_repeats_the_login_is_shown_without_it(status: int) -> None:
    def repeat(asked: HttpRequest) -> Reply:
        sent = asked.headers["authorization"]
        scheme, _, word = sent.partition(" ")
        pair = base64.b64decode(word).decode() if scheme == "Basic" else ""
        return Reply(status, {"message": "broken here", "sent": sent, "is": pair})

    # Of a bearer token, too short ones would be words.
    token = "a-token-of-the-registry-0123456789"
    with serve_script(repeat) as server:
        for login, secret in (
            ({"type": "basic", "user": "reader", "password": SECRET}, SECRET),
            ({"type": "bearer", "token": token}, token),
        ):
            with pytest.raises(RegistryUnreachable, match="broken here") as failure:
                ask(url=server.url, login=login)
            assert secret not in str(failure.value)
            assert base64.b64encode(f"reader:{secret}".encode()).decode()[:20] not in str(failure.value)


def test_a_context_stands_in_the_path_whatever_its_name_has(guard: Guard) -> None:
    with serve_script(guard.registry) as server:
        with suppress(RegistryUnreachable, SchemaNotFound):
            ask(url=server.url, context=".a?b#c%d")
        assert server.asked[0].path == "/contexts/.a%3Fb%23c%25d/schemas/ids/1"
