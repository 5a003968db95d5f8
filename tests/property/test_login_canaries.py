"""No message, repr, pickle or log line of a login has a secret or a token in it, whatever servers answer."""

import base64
import io
import itertools
import json
import logging
import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, strategies as st

from headrace.writer.config.sections.logins import OAuthSection
from headrace.writer.logins.errors import BrokerRefused, LoginFailed
from headrace.writer.logins.token_source import SOURCES, TokenSource
from tests.servers.token_server import TokenServer

# Long enough to stand in no message by chance.
CANARIES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=40)
TOKENS = st.text(st.sampled_from("abcXYZ019-._~+/"), min_size=16, max_size=40)
# What servers answer: {secret} and {token} stand for what was sent, or is to be kept.
BODIES = st.sampled_from([
    b'{"access_token": "{token}", "expires_in": 5}',
    b'{"access_token": "{token}", "expires_in": "{token}"}',
    b'{"access_token": "{token} "}',
    b'{"access_token": ["{token}"]}',
    b'{"error": "{secret}", "error_description": "{secret} {token}"}',
    b'{"error": "invalid_client", "error_description": "{secret}"}',
    b"<html>{secret} {token}",
    b"{token}",
])  # fmt: skip
STATUSES = st.sampled_from([200, 201, 302, 400, 401, 403, 429, 500, 503])
REASONS = st.sampled_from(
    [b"", b"{token}", b'{"status":"invalid_token","said":"n,,auth=Bearer {token}"}', b"\xff{token}"]
)


def forms(secret: str, client_id: str) -> set[str]:
    """Return a secret as it is, and as headers, forms and JSON have it."""
    pair = base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()).decode()
    return {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1], pair}


def shown_by(error: BaseException) -> str:
    """Return all that an error may show: its words, its repr, its trace, and what a pickle of it has."""
    trace = "".join(traceback.format_exception(error))
    return f"{error} {error!r} {trace} {pickle.dumps(error).decode(errors='replace')}"


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with TokenServer() as running:
        yield running


@contextmanager
def captured_log() -> Iterator[io.StringIO]:
    """Take what is logged."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    try:
        yield text
    finally:
        logging.getLogger().removeHandler(handler)


def section(server: TokenServer, secret: str, file: Path, proof: str) -> OAuthSection:
    """Return a login whose client is proven by a secret, in the configuration or a file, or by an assertion."""
    settings = {"type": "oauth", "token_url": server.token_url, "client_id": "c"}
    file.write_text(secret)
    keys: dict[str, dict[str, str]] = {
        "secret in the header": {"client_secret": secret},
        "secret in the body": {"client_secret": secret, "client_auth": "post"},
        "secret of a file": {"client_secret_file": str(file)},
        "assertion": {"assertion_file": str(file)},
        "assertion as grant": {"assertion_file": str(file), "grant": "jwt_bearer"},
    }
    return OAuthSection.model_validate({**settings, **keys[proof]})


def errors_of(steps: Iterable[Callable[[], object]]) -> list[str]:
    """Take the steps. Returns what their failures show."""
    shown = list[str]()
    for step in steps:
        try:
            step()
        except LoginFailed as error:
            shown.append(shown_by(error))
    return shown


@given(
    secret=CANARIES,
    token=TOKENS,
    answers=st.lists(st.tuples(STATUSES, BODIES), min_size=5, max_size=5),
    reason=REASONS,
    has_code=st.booleans(),
    proof=st.sampled_from(
        ["secret in the header", "secret in the body", "secret of a file", "assertion", "assertion as grant"]
    ),
)
def test_no_login_shows_a_secret_or_a_token(
    server: TokenServer,
    tmp_path_factory: pytest.TempPathFactory,
    secret: str,
    token: str,
    answers: list[tuple[int, bytes]],
    reason: bytes,
    *,
    has_code: bool,
    proof: str,
) -> None:
    file = tmp_path_factory.mktemp("login") / "secret"
    # Examples share the address of their server: without its sources, none has a token of another.
    SOURCES.clear()
    oauth = section(server, secret, file, proof)
    age_s = itertools.count()
    source = TokenSource(oauth.request, now=lambda: time.time() + 2 * next(age_s))

    def filled(template: bytes) -> bytes:
        return template.replace(b"{secret}", json.dumps(secret)[1:-1].encode()).replace(b"{token}", token.encode())

    def exchange(message: bytes) -> bytes:
        if has_code:
            raise BrokerRefused(filled(reason).decode(errors="replace"))
        return b"" if message == b"\x01" else filled(reason)

    server.answers = [(status, filled(body)) for status, body in answers]
    login = oauth.sasl
    with captured_log() as log:
        steps = [source.token] * 3 + [lambda: login.log_in("broker", exchange)] * 2
        shown = errors_of(steps)
        shown.append(log.getvalue())
    shown += [repr(login), repr(oauth), repr(source), str(oauth.model_dump()), oauth.model_dump_json()]
    # A secret of the configuration travels to executors with each task; that of a file is read there.
    if not proof.startswith("secret in"):
        shown.append(pickle.dumps(login).decode(errors="replace"))
    for text in shown:
        assert token not in text
        assert not [form for form in forms(secret, "c") if form in text]
