"""What to do about a refused login: each login says its own, on our connections and for Spark's client of Kafka."""

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.recovery.escalation.error_catalogue import classify
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.clients.java_client import java_reason
from headrace.writer.clients.spark_login import login_failure
from headrace.writer.config.sections.kafka_client import Security
from headrace.writer.driver.pipeline_runner import PipelineRunner
from headrace.writer.driver.restart_policy import causes
from headrace.writer.kafka_reader.connection import BrokerAddress, Connection
from headrace.writer.kafka_reader.errors import AccessDenied
from headrace.writer.kafka_reader.protocol import Api, ErrorCode, FieldReader, short_text
from headrace.writer.logins.errors import BrokerRefused, LoginRefused, LoginUnavailable
from headrace.writer.logins.exchange import Exchange, SaslLogin
from headrace.writer.status.progress import Progress
from tests.servers.token_server import CLIENT_ID, CLIENT_SECRET, TokenServer

OAUTH: dict[str, Any] = {
    "type": "oauth", "token_url": "https://id.test/token", "client_id": "a", "client_secret": "b",
}  # fmt: skip
LOGINS: dict[str, tuple[dict[str, Any], str, str]] = {
    "plain": ({"type": "plain", "user": "a", "password": "b"}, "user and password", "role"),
    "scram": ({"type": "scram", "user": "a", "password": "b"}, "user, password, and mechanism", "role"),
    "oauth": (OAUTH, "scope, audience, the client's rights", "region"),
    "oauth by file": ({"type": "oauth", "token_file": "/run/token"}, "what writes token_file", "scope"),
    "msk_iam": ({"type": "msk_iam", "region": "eu-central-1"}, "region and profile; that the role", "scope"),
    "kerberos": (
        {"type": "kerberos", "principal": "a@TEST", "keytab": "/keys"},
        "principal, keytab, service; krb5.conf",
        "scope",
    ),
}
JAVA_REASON = 'org.apache.kafka.common.errors.SaslAuthenticationException: {"status":"invalid_token"}'
JAVA_ERROR = f"""\
An error occurred while calling o1.start.
: java.util.concurrent.ExecutionException
Caused by: {JAVA_REASON}
"""


def login_of(settings: dict[str, Any]) -> SaslLogin:
    login = Security.model_validate({"protocol": "sasl_ssl", "login": settings}).native.login
    assert login is not None
    return login


class RefusedLogin:
    """A login that a broker refuses at its first message, whatever it proves."""

    def __init__(self, login: SaslLogin) -> None:
        self.mechanism = login.mechanism
        self.advice = login.advice

    def log_in(self, _host: str, exchange: Exchange) -> None:
        exchange(b"proof")


class RefusingConnection(Connection):
    """A connection to a broker that refuses each login. No socket is opened."""

    def __init__(self) -> None:
        self._address = BrokerAddress("broker", 9093)

    def _call(self, api: Api, _version: int, _body: bytes) -> FieldReader:
        if api is Api.SASL_HANDSHAKE:
            return FieldReader(memoryview(struct.pack(">hi", 0, 0)))
        code = struct.pack(">h", ErrorCode.SASL_AUTHENTICATION_FAILED)
        return FieldReader(memoryview(code + short_text("no") + struct.pack(">iq", 0, 0)))


@pytest.mark.parametrize("name", LOGINS)
def test_our_connection_says_what_to_look_at_for_its_login(name: str) -> None:
    settings, advice, others = LOGINS[name]
    with pytest.raises(AccessDenied) as refused:
        RefusingConnection()._log_in(RefusedLogin(login_of(settings)))
    message = str(refused.value)
    assert message.startswith("no login at broker:9093: the broker refuses it (no). Check kafka.security.login: ")
    assert advice in message
    assert others not in message


def failed_pipeline(settings: dict[str, Any], error: Exception) -> PipelineRunner:
    """Return a pipeline with a login that has failed by an error."""
    security = Security.model_validate({"protocol": "sasl_ssl", "login": settings})
    failure = partial(login_failure, security)
    runner = PipelineRunner(Progress("clicks"), lambda *_: None, login_failure=failure)
    runner.error = error
    runner.fail()
    return runner


@pytest.fixture
def proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Keys of the logins by which there is a token for Java, so that it is not the token that Java lacks."""
    for name, value in {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    with TokenServer() as tokens:
        file = tmp_path / "token"
        file.write_text(tokens.sign())
        server = {"token_url": tokens.token_url, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
        yield {"oauth": server, "oauth by file": {"token_file": str(file)}}


@pytest.mark.parametrize("name", LOGINS)
def test_a_pipeline_says_what_to_look_at_where_spark_s_client_is_refused(name: str, proofs: dict[str, Any]) -> None:
    settings, advice, others = LOGINS[name]
    error = failed_pipeline({**settings, **proofs.get(name, {})}, RuntimeError(JAVA_ERROR)).error
    assert isinstance(error, LoginRefused)
    message = str(error)
    assert message.startswith("Spark's own client of Kafka has no login (org.apache.kafka.common.errors.Sasl")
    assert advice in message
    assert others not in message
    assert classify(causes(error)).level is RecoveryLevel.WAIT


@pytest.mark.parametrize(
    ("settings", "reason", "says"),
    [
        (
            {**OAUTH, "token_url": "http://127.0.0.1:1/token"},
            "org.apache.kafka.common.errors.SaslAuthenticationException: x",
            "Spark's own client of Kafka has no login: no token: cannot reach http://127.0.0.1:1",
        ),
        (
            LOGINS["kerberos"][0],
            "javax.security.auth.login.LoginException: Connection refused",
            "Spark's own client of Kafka has no login (javax.security.auth.login.LoginException: Connection refused)",
        ),
    ],
)
def test_a_silent_server_of_tokens_or_tickets_is_waited_for(settings: dict[str, Any], reason: str, says: str) -> None:
    error = failed_pipeline(settings, RuntimeError(JAVA_ERROR.replace(JAVA_REASON, reason))).error
    assert isinstance(error, LoginUnavailable)
    assert str(error).startswith(says)
    assert classify(causes(error)).level is RecoveryLevel.WAIT


def test_an_error_of_kafka_that_is_of_no_login_stays_what_it_is() -> None:
    error = RuntimeError(JAVA_ERROR.replace("SaslAuthentication", "Timeout"))
    assert failed_pipeline(LOGINS["plain"][0], error).error is error


def test_a_refusal_of_a_broker_has_its_words_alone() -> None:
    assert str(BrokerRefused("no")) == "the broker refuses it (no)"


def test_a_file_with_a_password_is_named() -> None:
    login = login_of({"type": "plain", "user": "a", "password_file": str(Path("/run/word"))})
    assert login.advice == "Check kafka.security.login: user and password_file /run/word"


def test_a_reason_of_java_has_no_token_in_it() -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln-natu_re"
    text = JAVA_ERROR.replace(JAVA_REASON, f"{JAVA_REASON}: {token} is not taken")
    assert java_reason(text) == f"{JAVA_REASON}: <token> is not taken"
