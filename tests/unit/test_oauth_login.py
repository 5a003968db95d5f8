"""Tokens from a server or a file, and how a broker is shown one; the server runs in this process."""

import base64
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.writer.config.sections.logins import OAuthSection
from headrace.writer.core import http
from headrace.writer.logins.errors import BrokerRefused, LoginRefused, LoginUnavailable
from headrace.writer.logins.jwt_claims import read_claims, read_time
from headrace.writer.logins.oauth import OAuthRequest, StaticToken
from headrace.writer.logins.sasl import BearerLogin
from headrace.writer.logins.secret import Secret
from headrace.writer.logins.token_endpoint import TokenEndpoint
from headrace.writer.logins.token_source import SOURCES, Token, TokenSource, token_source
from tests.servers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer

SECRET = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as running:
        yield running


def section(server: TokenServer, **settings: object) -> OAuthSection:
    return OAuthSection.model_validate({"type": "oauth", "token_url": server.token_url, **settings})


def ask(server: TokenServer, **settings: object) -> Token:
    return section(server, **settings).request.ask()


# --- Questions -------------------------------------------------------------------------------------------------------


def test_a_client_proves_itself_by_header_or_body(server: TokenServer) -> None:
    for way in ("basic", "post"):
        before_s = time.time()
        token = ask(server, **SECRET, client_auth=way, scope="kafka", parameters={"audience": "events"})
        assert token.text == server.tokens[-1]
        assert before_s + 60 <= token.end_s <= time.time() + 60
        assert server.ways.pop() == way
        assert read_claims(token.text)["aud"] == "events"
    assert "client_secret" not in server.questions[0]


def test_a_workload_proves_itself_by_a_file_that_is_read_each_time(server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "assertion"
    file.write_text(f"{server.sign_assertion()}\n")
    request = section(server, client_id=CLIENT_ID, assertion_file=str(file)).request
    request.ask()
    file.write_text("another")
    with pytest.raises(LoginRefused, match=r"gives no token \(it answers 401, invalid_client\)"):
        request.ask()
    file.write_text(server.sign_assertion())
    request.ask()
    ask(server, assertion_file=str(file), grant="jwt_bearer")
    assert server.ways == ["client_assertion", "client_assertion", "jwt_bearer"]
    assert server.questions[0]["client_id"] == CLIENT_ID


def test_a_secret_beside_an_assertion_that_is_the_grant_is_sent(server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "assertion"
    file.write_text(server.sign_assertion())
    ask(server, **SECRET, client_auth="post", assertion_file=str(file), grant="jwt_bearer")
    assert server.questions[-1]["client_secret"] == CLIENT_SECRET


def test_a_secret_in_a_file_may_rotate(server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    request = section(server, client_id=CLIENT_ID, client_secret_file=str(file)).request
    with pytest.raises(LoginRefused, match=f"client_secret_file {file} cannot be read: No such file"):
        request.ask()
    file.write_text("wrong")
    with pytest.raises(LoginRefused, match="invalid_client"):
        request.ask()
    file.write_text(f"{CLIENT_SECRET}\n")
    request.ask()
    file.write_text("\n")
    with pytest.raises(LoginRefused, match=f"client_secret_file {file} is empty"):
        request.ask()


# --- Answers ---------------------------------------------------------------------------------------------------------


def test_a_server_that_fails_or_is_gone_is_asked_again(server: TokenServer) -> None:
    server.failures = 1
    with pytest.raises(LoginUnavailable, match=r"it answers 503, temporarily_unavailable\). It is asked again"):
        ask(server, **SECRET)
    server.answers = [(429, b"slow down"), (400, b'{"error": "temporarily_unavailable"}')]
    for _ in range(2):
        with pytest.raises(LoginUnavailable, match="It is asked again"):
            ask(server, **SECRET)
    server.stop()
    with pytest.raises(LoginUnavailable, match=r"cannot reach http://127.0.0.1:\d+: Connection refused. Check token_u"):
        ask(server, **SECRET)


def test_a_refusal_says_what_to_look_at(server: TokenServer) -> None:
    with pytest.raises(LoginRefused, match=r"401, invalid_client\). Check token_url, client_id, its secret"):
        ask(server, client_id=CLIENT_ID, client_secret="wrong")
    with pytest.raises(LoginRefused, match=r"400, invalid_scope\)"):
        ask(server, **SECRET, scope="everything")
    server.answers = [(302, b"")]
    with pytest.raises(LoginRefused, match=r"it answers 302\)"):
        ask(server, **SECRET)


def test_a_refusal_names_a_clock_that_is_wrong(server: TokenServer) -> None:
    for skew_s, words in ((300, r"This machine's clock is (299|300|301) s behind that of http"), (-300, "s ahead of")):
        server.skew_s = skew_s
        with pytest.raises(LoginRefused, match=words):
            ask(server, client_id=CLIENT_ID, client_secret="wrong")
    server.skew_s = 10
    with pytest.raises(LoginRefused, match=r"and scope\.$"):
        ask(server, client_id=CLIENT_ID, client_secret="wrong")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"access_token": 5}', b'"text"', b""])
def test_an_answer_without_a_token_is_a_failure(server: TokenServer, body: bytes) -> None:
    server.answers = [(200, body)]
    with pytest.raises(LoginUnavailable, match="answers 200 without an access_token"):
        ask(server, **SECRET)


@pytest.mark.parametrize("text", ["a\x01b", "a b", "a\nb", "ä", "", "=a"])
def test_a_token_cannot_carry_other_words_to_a_broker(server: TokenServer, tmp_path: Path, text: str) -> None:
    server.answers = [(200, json.dumps({"access_token": text}).encode())]
    with pytest.raises(LoginUnavailable, match="with characters that no token has"):
        ask(server, **SECRET)
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(LoginRefused, match=r"holds characters that no token has|is empty"):
        StaticToken(Secret("token_file", file=file)).ask()


@pytest.mark.parametrize(
    ("document", "life_s"),
    [
        ({"expires_in": 20}, 20),
        ({"expires_in": "20"}, 20),
        ({}, 300),
        ({"expires_in": None}, 300),
        ({"expires_in": -1}, 300),
        ({"expires_in": "soon"}, 300),
        ({"expires_in": 1e999}, 300),
        ({"expires_in": []}, 300),
        ({"expires_in": True}, 300),
        ({"expires_in": 0}, 300),
        ({"expires_in": "nan"}, 300),
        ({"expires_in": 2.5}, 2.5),
        ({"expires_in": 1e300}, 86_400),
        ({"expires_in": 10**400}, 300),
    ],
)
def test_a_life_that_the_answer_does_not_say_is_short(
    server: TokenServer, document: dict[str, object], life_s: float
) -> None:
    server.answers = [(200, json.dumps({"access_token": "opaque", **document}).encode())]
    token = ask(server, **SECRET)
    assert token.end_s - token.asked_s == life_s


def test_a_token_does_not_outlive_its_own_claims(server: TokenServer) -> None:
    iat_s = int(time.time()) - 3600
    text = server.sign(iat=iat_s, exp=iat_s + 60)
    server.answers = [(200, json.dumps({"access_token": text, "expires_in": 60_000}).encode())]
    token = ask(server, **SECRET)
    assert token.end_s - token.asked_s == 60


def test_a_refusal_that_comes_with_a_status_of_success_is_a_refusal(server: TokenServer) -> None:
    server.answers = [(200, b'{"error": "invalid_client"}'), (200, b'{"error": "temporarily_unavailable"}')]
    with pytest.raises(LoginRefused, match=r"gives no token \(it answers 200, invalid_client\)"):
        ask(server, **SECRET)
    with pytest.raises(LoginUnavailable, match="It is asked again"):
        ask(server, **SECRET)


def test_a_token_that_no_broker_takes_is_refused_by_its_length(server: TokenServer, tmp_path: Path) -> None:
    server.answers = [(200, json.dumps({"access_token": "a" * length}).encode()) for length in (100_000, 300_000)]
    assert len(ask(server, **SECRET).text) == 100_000
    with pytest.raises(LoginUnavailable, match="an access_token of 300,000 characters, and brokers take fewer"):
        ask(server, **SECRET)
    file = tmp_path / "token"
    file.write_text("a" * 300_000)
    with pytest.raises(LoginRefused, match="holds 300,000 characters, more than a token has"):
        StaticToken(Secret("token_file", file=file)).ask()


def test_without_expires_in_the_token_s_own_claim_counts(server: TokenServer) -> None:
    end_s = int(time.time()) + 45
    server.answers = [(200, json.dumps({"access_token": server.sign(exp=end_s)}).encode())]
    assert ask(server, **SECRET).end_s == end_s


@pytest.mark.parametrize("text", ["opaque", "a.b.c", "a.W10.c", "a.e30.c", "..", "a." + "W" * 60_000 + ".c"])
def test_what_is_no_token_of_claims_has_none(text: str) -> None:
    assert read_time(read_claims(text), "exp") is None


def test_a_time_that_is_none_is_none() -> None:
    for value in ("1", None, True, 10**400, float("inf"), []):
        assert read_time({"exp": value}, "exp") is None
    assert read_time({"exp": 5}, "exp") == 5


# --- Files -----------------------------------------------------------------------------------------------------------


def test_a_token_file_is_read_when_its_token_is_old(server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    request = OAuthSection.model_validate({"type": "oauth", "token_file": str(file)}).request
    with pytest.raises(LoginRefused, match=f"token_file {file} cannot be read"):
        request.ask()
    file.write_text("opaque\n")
    token = request.ask()
    assert (token.text, round(token.end_s - token.asked_s)) == ("opaque", 300)
    now_s = int(time.time())
    file.write_text(server.sign(iat=now_s - 50, exp=now_s + 50))
    token = request.ask()
    assert (token.asked_s, token.end_s) == (now_s - 50, now_s + 50)
    file.write_text(server.sign(exp=now_s - 300))
    with pytest.raises(LoginUnavailable, match=r"ended (300|301) s ago by this machine's clock"):
        request.ask()


def test_a_token_file_is_read_at_each_login(tmp_path: Path) -> None:
    file = tmp_path / "token"
    login = OAuthSection.model_validate({"type": "oauth", "token_file": str(file)}).sasl
    broker = Broker(b"", b"")
    for text in ("first", "second"):
        file.write_text(text)
        login.log_in("broker", broker.exchange)
    assert [text in message for text, message in zip((b"first", b"second"), broker.messages, strict=True)] == [True] * 2
    file.unlink()
    broker.answers = [b""]
    # The last one is shown as long as it lasts.
    login.log_in("broker", broker.exchange)
    assert b"second" in broker.messages[-1]


# --- Java ------------------------------------------------------------------------------------------------------------


def ask_endpoint(endpoint: TokenEndpoint, client: str = "", secret: str = "", path: str = "") -> http.Answer:
    pair = f"{client or endpoint.client_id}:{secret or endpoint.client_secret}".encode()
    return http.ask(
        endpoint.url + path,
        method="POST",
        body=b"grant_type=client_credentials",
        headers={"Authorization": f"Basic {base64.b64encode(pair).decode()}"},
        timeout_s=20,
        proxies=False,
    )


@pytest.fixture
def endpoint(server: TokenServer) -> Iterator[TokenEndpoint]:
    running = TokenEndpoint(section(server, **SECRET).request, hold_s=3)
    yield running
    running.close()


def test_java_gets_another_token_after_half_of_a_life(server: TokenServer, endpoint: TokenEndpoint) -> None:
    server.life_s = 2
    first = ask_endpoint(endpoint).json()
    assert (first["access_token"], first["token_type"], first["expires_in"]) == (server.tokens[-1], "Bearer", 2)
    assert ask_endpoint(endpoint).json() == first
    time.sleep(1.1)
    assert ask_endpoint(endpoint).json()["access_token"] == server.tokens[-1] != first["access_token"]


def test_the_endpoint_gives_a_token_to_its_own_client_alone(server: TokenServer, endpoint: TokenEndpoint) -> None:
    for answer in (
        ask_endpoint(endpoint, secret="another"),
        ask_endpoint(endpoint, client="another"),
        ask_endpoint(endpoint, path="/else"),
        http.ask(endpoint.url, method="POST", body=b"", timeout_s=20, proxies=False),
    ):
        assert (answer.status, answer.json()) == (401, {"error": "invalid_client"})
    assert server.tokens == []
    assert http.ask(endpoint.url, timeout_s=20, proxies=False).status == 501
    assert endpoint.url.startswith("http://127.0.0.1:")


def test_java_waits_while_the_server_fails(
    server: TokenServer, endpoint: TokenEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    server.failures = 1
    # The question is left open until there is a token.
    assert ask_endpoint(endpoint).status == 200
    assert "token_not_given_to_spark" not in caplog.text


def test_java_is_told_after_a_while_that_the_server_fails(
    server: TokenServer, endpoint: TokenEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace")
    server.failures = 100
    begin_s = time.monotonic()
    assert ask_endpoint(endpoint).status == 503
    assert time.monotonic() - begin_s >= 3
    assert ask_endpoint(endpoint).status == 503
    assert caplog.text.count("token_not_given_to_spark") == 1
    server.failures = 0
    # A pause may last longer than a question is held.
    assert 200 in (ask_endpoint(endpoint).status, ask_endpoint(endpoint).status)
    assert caplog.text.count("token_given_to_spark") == 1


def test_java_does_not_wait_where_the_server_refuses(server: TokenServer, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = TokenEndpoint(section(server, **{**SECRET, "client_secret": "another"}).request)
    try:
        answer = ask_endpoint(endpoint)
    finally:
        endpoint.close()
    assert (answer.status, answer.json()) == (400, {"error": "invalid_request"})
    assert "invalid_client" in caplog.text


def test_a_token_that_java_does_not_take_is_refused_before_spark_starts(server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "given"
    for text, claim in (("opaque", "exp"), (server.sign(sub=None), "sub")):
        file.write_text(text)
        endpoint = TokenEndpoint(StaticToken(Secret("token_file", file=file)))
        with pytest.raises(LoginRefused, match=f"JWTs with the claims exp and sub, and this one has no {claim}"):
            endpoint.check()
        endpoint.close()
    file.write_text(server.sign())
    endpoint = TokenEndpoint(StaticToken(Secret("token_file", file=file)))
    endpoint.check()
    endpoint.close()


# --- Brokers ---------------------------------------------------------------------------------------------------------


class Broker:
    """Answers exchanges of a login with what stands in `answers`."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.messages = list[bytes]()

    def exchange(self, message: bytes) -> bytes:
        self.messages.append(message)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def bearer(server: TokenServer, **settings: object) -> BearerLogin:
    login = section(server, **SECRET, **settings).sasl
    assert isinstance(login, BearerLogin)
    return login


def test_a_token_is_shown_with_extensions(server: TokenServer) -> None:
    broker = Broker(b"")
    extensions = {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
    bearer(server, extensions=extensions).log_in("broker", broker.exchange)
    token = server.tokens[-1]
    assert broker.messages == [
        f"n,,\x01auth=Bearer {token}\x01identityPoolId=pool-2\x01logicalCluster=lkc-1\x01\x01".encode()
    ]


def test_a_refusal_without_an_error_code_is_a_refusal(server: TokenServer) -> None:
    broker = Broker(b'{"status":"invalid_token"}', BrokerRefused("Authentication failed"))
    with pytest.raises(LoginRefused, match=r'refuses the token \(\{"status":"invalid_token"\}\). Check kafka.security'):
        bearer(server).log_in("broker", broker.exchange)
    assert broker.messages[1] == b"\x01"


def test_a_token_that_is_refused_after_one_was_accepted_leads_to_another(server: TokenServer) -> None:
    login = bearer(server, scope="kafka", parameters={"audience": "again"})
    broker = Broker(b"", BrokerRefused("revoked"), b"")
    login.log_in("broker", broker.exchange)
    with pytest.raises(LoginUnavailable, match=r"refuses the token \(revoked\). Another one is asked for"):
        login.log_in("broker", broker.exchange)
    deadline_s = time.monotonic() + 30
    while True:
        try:
            login.log_in("broker", broker.exchange)
            break
        except LoginUnavailable:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
    assert len(server.tokens) == 2
    assert broker.messages[0] == broker.messages[1] != broker.messages[2]


@pytest.mark.parametrize(
    ("skew_s", "words"),
    [
        (300, r"By this machine's clock it begins in (299|300|301) s"),
        (-300, r"By this machine's clock it ended 2\d\d s ago"),
    ],
)
def test_a_refused_token_names_clocks_that_differ(server: TokenServer, skew_s: float, words: str) -> None:
    server.skew_s = skew_s
    with pytest.raises(LoginRefused, match=words):
        bearer(server, scope="kafka").log_in("broker", Broker(BrokerRefused("the token is bad")).exchange)


def test_a_broker_that_repeats_the_token_does_not_show_it(server: TokenServer) -> None:
    login = bearer(server)

    def exchange(message: bytes) -> bytes:
        raise BrokerRefused(f"no: {message.decode()}")

    with pytest.raises(LoginRefused, match=r"auth=Bearer <token>") as refused:
        login.log_in("broker", exchange)
    assert server.tokens[-1] not in str(refused.value)


def test_logins_survive_pickling_without_their_tokens(server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(CLIENT_SECRET)
    login = section(server, client_id=CLIENT_ID, client_secret_file=str(file)).sasl
    login.log_in("broker", Broker(b"").exchange)
    data = pickle.dumps(login)
    assert server.tokens[-1].encode() not in data
    assert CLIENT_SECRET.encode() not in data
    assert pickle.loads(data) == login
    refusal = pickle.loads(pickle.dumps(BrokerRefused("revoked")))
    assert (refusal.reason, str(refusal)) == ("revoked", "the broker refuses it (revoked)")


def test_a_request_shows_no_secret() -> None:
    secret = Secret("client_secret", "the-secret")
    request = OAuthRequest("https://id/token", "c", secret, parameters=(("audience", "the-secret"),))
    assert "the-secret" not in repr(request)


# --- Clocks and forks ------------------------------------------------------------------------------------------------


class Server:
    """Gives no token at first, then tokens of an hour."""

    advice = ""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.questions = 0

    def ask(self) -> Token:
        self.questions += 1
        if self.questions == 1:
            raise LoginUnavailable("the server is down")
        return Token("token", self._clock(), self._clock() + 3600)


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    now_s = 1_000_000.0
    server = Server(lambda: now_s)
    tokens = TokenSource(server, now=lambda: now_s)
    for _ in range(2):
        with pytest.raises(LoginUnavailable):
            tokens.token()
    assert server.questions == 1
    now_s -= 7200
    assert tokens.token().text == "token"


def test_a_forked_process_asks_for_tokens_of_its_own(server: TokenServer) -> None:
    request = section(server, **SECRET).request
    token_source(request, "kafka").token()
    assert token_source(request, "kafka")._asking.acquire()
    child = os.fork()
    if child == 0:
        os._exit(0 if not SOURCES and token_source(request, "kafka")._asking.acquire(timeout=1) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
