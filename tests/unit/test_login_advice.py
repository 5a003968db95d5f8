"""What to do about a refused login: each login says its own, on our connections and for Spark's client of Kafka."""

import struct
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.config.sections.kafka_client import Security
from headrace.writer.driver.pipeline_runner import PipelineRunner
from headrace.writer.kafka_reader.connection import BrokerAddress, Connection
from headrace.writer.kafka_reader.errors import AccessDenied
from headrace.writer.kafka_reader.protocol import Api, ErrorCode, FieldReader, short_text
from headrace.writer.logins.errors import BrokerRefused, LoginRefused
from headrace.writer.logins.exchange import Exchange, SaslLogin
from headrace.writer.status.progress import Progress

OAUTH = {"type": "oauth", "token_url": "https://id.test/token", "client_id": "a", "client_secret": "b"}
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
JAVA_ERROR = """\
An error occurred while calling o1.start.
: java.util.concurrent.ExecutionException
Caused by: org.apache.kafka.common.errors.SaslAuthenticationException: {"status":"invalid_token"}
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


@pytest.mark.parametrize("name", LOGINS)
def test_a_pipeline_says_what_to_look_at_where_spark_s_client_is_refused(name: str) -> None:
    settings, advice, others = LOGINS[name]
    runner = PipelineRunner(Progress("clicks"), lambda *_: None, login_advice=login_of(settings).advice)
    runner.error = RuntimeError(JAVA_ERROR)
    runner.fail()
    assert isinstance(runner.error, LoginRefused)
    message = str(runner.error)
    assert message.startswith("Spark's own client of Kafka has no login (org.apache.kafka.common.errors.Sasl")
    assert advice in message
    assert others not in message


def test_an_error_of_kafka_that_is_of_no_login_stays_what_it_is() -> None:
    runner = PipelineRunner(Progress("clicks"), lambda *_: None, login_advice="Check it")
    error = RuntimeError(JAVA_ERROR.replace("SaslAuthentication", "Timeout"))
    runner.error = error
    runner.fail()
    assert runner.error is error


def test_a_refusal_of_a_broker_has_its_words_alone() -> None:
    assert str(BrokerRefused("no")) == "the broker refuses it (no)"


def test_a_file_with_a_password_is_named() -> None:
    login = login_of({"type": "plain", "user": "a", "password_file": str(Path("/run/word"))})
    assert login.advice == "Check kafka.security.login: user and password_file /run/word"
