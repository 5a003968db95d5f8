"""Hostile answers to a login: what they say ends on one line without a secret, and weak proofs are not given."""

import base64
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.httpsession import URLLib3Session
from hypothesis import given, strategies as st

from headrace.writer.config.references import look_up
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import WORDS_MAX
from headrace.writer.logins import msk_iam
from headrace.writer.logins.errors import BrokerRefused, LoginFailed, LoginRefused, LoginUnavailable
from headrace.writer.logins.hidden_secrets import hide_keys, hide_secrets
from headrace.writer.logins.sasl import PlainLogin, ScramLogin
from headrace.writer.logins.secret import Secret
from headrace.writer.schemas.glue import GlueRegistry, GlueSettings
from headrace.writer.schemas.registry_client import RegistryUnreachable

PASSWORD = 'p%ss "w0rd"+ä/of-the-broker'
SESSION_TOKEN = "IQoJb3JpZ2luX2VjEJ3//////////wEaCXVzLWVhc3QtMSJHMEUCIQDx7zSqLrV5sUoPmQf+Z0"
Exchange = Callable[[bytes], bytes]


def shown_by(error: BaseException) -> str:
    return f"{error} {error!r} {''.join(traceback.format_exception(error))} {pickle.dumps(error)!r}"


def scram_broker(
    *, iterations: str = "4096", nonce: str = "more", salt: str = "c2FsdA==", last: bytes = b""
) -> Exchange:
    def exchange(message: bytes) -> bytes:
        if not message.startswith(b"n,,"):
            return last
        sent = message.partition(b"r=")[2].decode()
        return f"r={sent}{nonce},s={salt},i={iterations}".encode()

    return exchange


def failure_of(login: PlainLogin | ScramLogin, exchange: Exchange) -> LoginFailed:
    with pytest.raises(LoginFailed) as failure:
        login.log_in("broker", exchange)
    return failure.value


# --- Passwords -------------------------------------------------------------------------------------------------------


@given(
    begin=st.text(max_size=20),
    end=st.text(max_size=300),
    cut=st.integers(13, len(PASSWORD)),
    has_frame=st.booleans(),
)
def test_a_broker_that_repeats_a_password_or_a_part_of_it_puts_it_in_no_message(
    begin: str, end: str, cut: int, *, has_frame: bool
) -> None:
    def exchange(message: bytes) -> bytes:
        repeated = PASSWORD[:cut]
        if has_frame:
            repeated = base64.b64encode(message).decode()
        raise BrokerRefused(f"{begin}{repeated}{end}")

    error = failure_of(PlainLogin("reader", Secret("password", PASSWORD)), exchange)
    assert isinstance(error, BrokerRefused)
    shown = shown_by(error)
    assert PASSWORD[:13] not in shown
    assert base64.b64encode(f"\0reader\0{PASSWORD}".encode()).decode()[:24] not in shown
    assert "\n" not in str(error)


def test_a_reason_of_a_broker_is_one_line_that_a_terminal_does_not_obey() -> None:
    message = str(BrokerRefused("no\nlogin\x1b[31m" + "x" * 5000))
    assert message.startswith("the broker refuses it (no login?[31mxxx")
    assert len(message) < WORDS_MAX + 50
    error = failure_of(
        ScramLogin("u", Secret("password", "pass"), "SCRAM-SHA-256"), scram_broker(last=b"e=other\x1b" + b"y" * 5000)
    )
    assert str(error).startswith("the broker refuses it (other?yyy")
    assert len(str(error)) < WORDS_MAX + 50


def test_a_password_that_is_no_text_is_refused_by_its_name_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"sesame-\xff-open")
    for secret in (
        Secret("password", "sesame-\udcff-open"), Secret("password", "sesame\0open"),
        Secret("password_file", file=file),
    ):  # fmt: skip
        for login in (PlainLogin("u", secret), ScramLogin("u", secret, "SCRAM-SHA-256")):
            error = failure_of(login, scram_broker())
            assert f"{secret} is no text: it is not UTF-8, or has a zero byte" in str(error)
            assert "sesame" not in shown_by(error)


def test_a_reference_to_what_is_no_text_is_refused_and_not_shown(tmp_path: Path) -> None:
    variables = {"PASSWORD": os.fsdecode(b"sesame-\xff")}
    with pytest.raises(ConfigError, match="environment variable PASSWORD is not UTF-8") as failure:
        look_up("env", "PASSWORD", variables)
    assert "sesame" not in shown_by(failure.value)
    file = tmp_path / "password"
    file.write_bytes(b"sesame-\xff")
    with pytest.raises(ConfigError, match="its text is not UTF-8") as failure:
        look_up("file", str(file))
    assert "sesame" not in shown_by(failure.value)
    file.write_bytes(b"\xef\xbb\xbfsesame\r\n")
    assert look_up("file", str(file)) == "sesame"


def test_a_file_of_a_secret_is_a_text_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "password"
    secret = Secret("password_file", file=file)
    file.write_bytes(b"\xef\xbb\xbf sesame\r\n")
    assert secret.read() == "sesame"
    file.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(LoginRefused, match=r"password is larger than 1 MiB, and no secret. Correct the path"):
        secret.read()
    file.unlink()
    # Nobody writes into the pipe, and nothing waits for it.
    os.mkfifo(file)
    with pytest.raises(LoginRefused, match="password is empty"):
        secret.read()
    with pytest.raises(LoginRefused, match="cannot be read: Is a directory"):
        Secret("password_file", file=tmp_path).read()


def test_a_mounted_secret_is_read_anew_when_kubernetes_swaps_its_folder(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "password").write_text(version)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "password").symlink_to("..data/password")
    secret = Secret("password_file", file=tmp_path / "password")
    assert secret.read() == "one"
    (tmp_path / "..data_tmp").symlink_to("two")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert secret.read() == "two"


# --- SCRAM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        (scram_broker(iterations="1"), "the broker wants 1 iterations, and a login is made with 4096 to 1000000"),
        (scram_broker(iterations="4095"), "wants 4095 iterations"),
        (scram_broker(iterations="1000001"), "wants 1000001 iterations"),
        (scram_broker(iterations="9" * 5000), "no count of iterations"),
        (scram_broker(iterations="-4096"), "no count of iterations"),
        (scram_broker(iterations="²"), "no count of iterations"),
        (scram_broker(nonce=""), "no nonce for this login"),
        (scram_broker(salt=""), "no salt"),
        (scram_broker(salt="?"), "no salt"),
        (lambda _: b"e=unknown-user", r"the broker refuses it \(unknown-user\)"),
        (lambda _: b"m=x,r=y", "an extension of SCRAM"),
        (lambda _: b"\xff" * 5000, "is not UTF-8"),
        (lambda _: b"", "no nonce"),
    ],
)
def test_a_proof_is_given_only_to_what_asks_as_a_broker_does(broker: Exchange, words: str) -> None:
    messages = list[bytes]()

    def exchange(message: bytes) -> bytes:
        messages.append(message)
        return broker(message)

    login = ScramLogin("u=,", Secret("password", "sesame"), "SCRAM-SHA-512")
    with pytest.raises(LoginRefused, match=words) as failure:
        login.log_in("broker", exchange)
    assert len(str(failure.value)) < 300
    (first,) = messages
    assert first.startswith(b"n,,n=u=3D=2C,r=")


# --- AWS -------------------------------------------------------------------------------------------------------------


def test_glue_s_words_of_a_wrong_signature_have_no_session_token() -> None:
    canonical = (
        f"The Canonical String for this request should have been 'POST\n/\n\nx-amz-security-token:{SESSION_TOKEN}"
    )
    answer = {
        "Error": {"Code": "InvalidSignatureException", "Message": f"The signature does not match. {canonical}'"},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }

    def question() -> None:
        raise ClientError(answer, "GetSchemaVersion")

    registry = GlueRegistry(GlueSettings(name="events", region="eu-central-1"))
    with pytest.raises(RegistryUnreachable, match="refuses the credentials: it answers InvalidSignatureExc") as failure:
        registry._ask(question)
    shown = shown_by(failure.value)
    assert not [SESSION_TOKEN[at : at + 20] for at in range(50) if SESSION_TOKEN[at : at + 20] in shown]


@pytest.mark.parametrize(
    "words",
    [
        "User: arn:aws:sts::123456789012:assumed-role/headrace-writer/botocore-session-1700000000 may not do that",
        'Could not connect to the endpoint URL: "https://glue.eu-central-1.amazonaws.com/"',
        "b-1.clicks.abc123.c2.kafka.eu-central-1.amazonaws.com:9098 refuses",
    ],
)
def test_names_of_roles_and_hosts_are_shown(words: str) -> None:
    assert hide_keys(words) == words


@given(st.text(st.sampled_from("abcdefXYZ019-._~+/="), min_size=20, max_size=300), st.data())
def test_no_part_of_a_secret_is_shown(secret: str, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(secret) - 12))
    part = secret[begin : data.draw(st.integers(begin + 12, len(secret)))]
    shown = hide_secrets(f"invalid: {part}; try again", secret)
    assert part not in shown
    assert shown.startswith("invalid: ")


@pytest.mark.parametrize(
    ("variables", "host"),
    [
        ({}, "sts.eu-central-1.amazonaws.com"),
        ({"AWS_REGION": "us-west-2"}, "sts.us-west-2.amazonaws.com"),
        ({"AWS_DEFAULT_REGION": "eu-west-3"}, "sts.eu-west-3.amazonaws.com"),
    ],
)
def test_a_web_identity_is_shown_to_the_sts_of_a_region(
    variables: dict[str, str], host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the whole world would be that of us-east-1, out of reach for many networks."""
    file = tmp_path / "token"
    file.write_text("eyJhbGciOiJSUzI1NiJ9.e30.c2ln")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/x", "AWS_WEB_IDENTITY_TOKEN_FILE": str(file),
        "AWS_CONFIG_FILE": "/none", "AWS_EC2_METADATA_DISABLED": "true", **variables,
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    asked = list[str]()

    def send(_: object, request: AWSPreparedRequest) -> None:
        asked.append(urlsplit(request.url).netloc)
        raise EndpointConnectionError(endpoint_url=request.url)

    monkeypatch.setattr(URLLib3Session, "send", send)
    msk_iam._session.cache_clear()
    with pytest.raises(LoginUnavailable, match="It is asked again"):
        msk_iam.MskIamRequest("eu-central-1").ask()
    msk_iam._session.cache_clear()
    assert set(asked) == {host}
