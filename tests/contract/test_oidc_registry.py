"""A real registry that checks bearer tokens: Apicurio with OpenID Connect, by the keys of the tests' token server."""

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.config.sections.registry import Registry
from headrace.writer.schemas.registry import RegistryUnreachable, SchemaSource, source
from tests.servers.oidc_registry import AUDIENCE, READER, OidcRegistry, claims_of
from tests.servers.token_server import CLIENT_ID, CLIENT_SECRET, SigningKey, TokenServer

pytestmark = pytest.mark.slow
TEXT = '{"type":"record","name":"Click","fields":[{"name":"at","type":"long"}]}'
# Of the question that is refused, and of those that come before another token is asked for.
REFUSED = re.compile(
    r"refuses the login: it answers 401\. Correct registry\.login|"
    r"without a login: registry\.login: the server answered 401 to a token, .*Correct the login"
)
_number = itertools.count()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OidcRegistry, TokenServer]]:
    with TokenServer() as tokens, OidcRegistry(tmp_path_factory.mktemp("registry"), tokens) as running:
        running.register("clicks-value", TEXT)
        yield running, tokens


@pytest.fixture
def tokens(registry: tuple[OidcRegistry, TokenServer]) -> Iterator[TokenServer]:
    """The server of tokens, whose tokens may read; as it is at its start once the test has ended."""
    server = registry[1]
    server.further_claims = claims_of(READER)
    yield server
    server.life_s, server.skew_s, server.further_claims = 60, 0, {}


@pytest.fixture
def url(registry: tuple[OidcRegistry, TokenServer]) -> str:
    return registry[0].url


def asking(url: str, login: dict[str, Any]) -> SchemaSource:
    """Return what asks the registry with a login."""
    return source(Registry.model_validate({"url": url, "login": login}))


def by_secret(tokens: TokenServer, audience: str = AUDIENCE) -> dict[str, Any]:
    """Return a login by client credentials. A further field makes its tokens its own."""
    return {
        "type": "oauth", "token_url": tokens.token_url, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET,
        "parameters": {"audience": audience, "try": str(next(_number))},
    }  # fmt: skip


def refusal(schemas: SchemaSource) -> str:
    """Return the sentence by which a login is refused."""
    with pytest.raises(RegistryUnreachable) as refused:
        schemas.topic_schemas("clicks")
    return str(refused.value)


def wait_for_schemas(schemas: SchemaSource) -> None:
    """Ask until the login is taken."""
    deadline_s = time.monotonic() + 20
    while True:
        try:
            texts = list(schemas.topic_schemas("clicks").values())
        except RegistryUnreachable:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        else:
            assert texts == [TEXT]
            return


def test_a_token_by_client_credentials_reads_schemas(url: str, tokens: TokenServer) -> None:
    assert list(asking(url, by_secret(tokens)).topic_schemas("clicks").values()) == [TEXT]


def test_a_token_in_a_file_is_read_anew(url: str, tokens: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens.life_s = 4
    schemas = asking(url, {"type": "bearer", "token_file": str(file)})
    file.write_text(tokens.sign(aud=AUDIENCE))
    assert list(schemas.topic_schemas("clicks").values()) == [TEXT]
    time.sleep(4.1)
    assert "ended" in refusal(schemas)
    file.write_text(tokens.sign(aud=AUDIENCE))
    wait_for_schemas(schemas)


def test_tokens_are_renewed_while_the_registry_is_asked(url: str, tokens: TokenServer) -> None:
    tokens.life_s = 6
    schemas = asking(url, by_secret(tokens))
    given_before = len(tokens.tokens)
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        assert list(schemas.topic_schemas("clicks").values()) == [TEXT]
        time.sleep(0.1)
    assert len(tokens.tokens) - given_before >= 3


def test_what_the_registry_refuses_is_a_sentence_without_the_token(
    url: str, tokens: TokenServer, tmp_path: Path
) -> None:
    forger = SigningKey()
    genuine = tokens.keys[0]
    refused = (
        # Of a foreign key, under its own name and under that of the genuine one.
        ({}, forger),
        ({}, SigningKey(forger.key, genuine.id)),
        ({"aud": "kafka"}, genuine),
        ({"iss": "http://other.test"}, genuine),
        ({"nbf": int(time.time()) + 300}, genuine),
    )
    for number, (claims, key) in enumerate(refused):
        file = tmp_path / f"token-{number}"
        file.write_text(key.sign(tokens.claims(**{"aud": AUDIENCE, **claims})))
        said = refusal(asking(url, {"type": "bearer", "token_file": str(file)}))
        assert REFUSED.search(said)
        assert file.read_text() not in said
    assert REFUSED.search(refusal(asking(url, by_secret(tokens, "kafka"))))
    assert "it answers 401, and none was sent. Set registry.login" in refusal(
        source(Registry.model_validate({"url": url}))
    )


def test_a_token_without_the_role_is_told_from_a_wrong_one(url: str, tokens: TokenServer) -> None:
    tokens.further_claims = {}
    assert "403, the user may not read there. Grant it the right" in refusal(asking(url, by_secret(tokens)))


def test_tokens_that_have_ended_by_the_registry_s_clock_are_refused(url: str, tokens: TokenServer) -> None:
    # The server of tokens is behind, and says that they live for a minute.
    tokens.skew_s = -300
    assert REFUSED.search(refusal(asking(url, by_secret(tokens))))


def test_a_token_whose_key_was_revoked_gives_way_to_another(url: str, tokens: TokenServer) -> None:
    schemas = asking(url, by_secret(tokens))
    assert list(schemas.topic_schemas("clicks").values()) == [TEXT]
    tokens.rotate_keys()
    # A registry keeps the keys that it knows, until it meets one that it does not.
    wait_for_schemas(asking(url, by_secret(tokens)))
    given_before = len(tokens.tokens)
    wait_for_schemas(schemas)
    assert len(tokens.tokens) > given_before
