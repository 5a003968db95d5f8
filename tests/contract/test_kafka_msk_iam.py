"""The native connection logs in as at Amazon MSK, before a login that checks AWS's signatures itself."""

import base64
import functools
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka import Producer

from headrace.writer.config.sections.kafka_client import Security as Configured
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.demo.devstack.kafka import create_topics
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import BrokerAddress, Connection, addresses
from headrace.writer.kafka_reader.errors import AccessDenied, BrokerClosed, NoLogin, Unavailable
from headrace.writer.kafka_reader.protocol import Api
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.kafka_reader.requests import metadata
from headrace.writer.kafka_reader.security import Security
from headrace.writer.logins import msk_iam, sasl
from headrace.writer.logins.errors import LoginRefused, LoginUnavailable
from headrace.writer.logins.msk_iam import MskIamRequest
from headrace.writer.logins.sasl import BearerLogin
from headrace.writer.logins.token_source import TokenSource
from tests.servers.aws_credentials import AGENT_TOKEN, IDENTITY_TOKEN, ROLE, CredentialServer, credential_server
from tests.servers.msk_proxy import REGION, AccessKey, MskCluster, msk_cluster

pytestmark = pytest.mark.slow
KEY_ID, SECRET, SESSION_TOKEN = "AKIDEXAMPLE", "the/secret+key=", "the/session+token=="
STATIC = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
TOPIC, RECORDS = "events", 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MskCluster]:
    with msk_cluster(tmp_path_factory.mktemp("msk")) as running:
        yield running


@pytest.fixture(scope="module")
def records(cluster: MskCluster) -> list[bytes]:
    create_topics(cluster.bootstrap, {TOPIC: 1})
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    values = [b"%d" % number for number in range(RECORDS)]
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(30) == 0
    return values


@pytest.fixture
def credentials() -> Iterator[CredentialServer]:
    with credential_server() as server:
        yield server


class Chain:
    """The places where AWS's chain looks, of this test's own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch

    def set(self, variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sasl, "token_source", functools.cache(lambda request, _: TokenSource(request)))
    msk_iam._session.cache_clear()
    chain = Chain(tmp_path, monkeypatch)
    chain.set({
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    })  # fmt: skip
    return chain


@pytest.fixture(autouse=True)
def forget(cluster: MskCluster) -> None:
    proxy = cluster.proxy
    proxy.keys = {KEY_ID: AccessKey(SECRET)}
    proxy.session_s = 900
    proxy.expirations = 0
    proxy.skew_s = 0
    proxy.logins.clear()
    proxy.refusals.clear()


def connect(cluster: MskCluster, request: MskIamRequest | None = None) -> Connection:
    login = BearerLogin(request or MskIamRequest(REGION))
    return Connection(BrokerAddress.parse(cluster.iam), Security(login=login), 15, "test")


def ask(connection: Connection) -> None:
    version = connection.version(Api.METADATA)
    connection.call(Api.METADATA, version, metadata.request_body([], version))


def test_records_are_read_with_the_keys_of_the_chain(cluster: MskCluster, records: list[bytes], chain: Chain) -> None:
    chain.set(STATIC)
    security = Configured.model_validate(
        {"protocol": "sasl_plaintext", "login": {"type": "msk_iam", "region": REGION}}
    ).native
    with ClusterAddress(addresses(cluster.iam), security).open() as opened:
        reader = RangeReader(opened, [OffsetRange(TopicPartition(TOPIC, 1, 0), 0, RECORDS)])
        assert [value for batch in reader for value in batch.column("value").to_pylist()] == records
    (login, *_) = cluster.proxy.logins
    assert (login.key_id, login.agent) == (KEY_ID, "headrace")
    assert 895 < login.left_s <= 900


def test_the_token_has_the_fields_of_aws_s_own_signer(chain: Chain) -> None:
    """Those of aws-msk-iam-sasl-signer-python 1.0.2, in the URL of base64 without padding."""
    chain.set({**STATIC, "AWS_SESSION_TOKEN": SESSION_TOKEN})
    token = MskIamRequest(REGION).ask()
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token.text)
    url = urlsplit(base64.urlsafe_b64decode(token.text + "=" * (-len(token.text) % 4)).decode())
    assert (url.scheme, url.netloc, url.path) == ("https", f"kafka.{REGION}.amazonaws.com", "/")
    fields = {name: value for name, (value,) in parse_qs(url.query, strict_parsing=True).items()}
    date = fields["X-Amz-Date"][:8]
    assert re.fullmatch(r"[0-9a-f]{64}", fields.pop("X-Amz-Signature"))
    assert re.fullmatch(r"\d{8}T\d{6}Z", fields.pop("X-Amz-Date"))
    assert fields == {
        "Action": "kafka-cluster:Connect", "User-Agent": "headrace", "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEY_ID}/{date}/{REGION}/kafka-cluster/aws4_request", "X-Amz-Expires": "900",
        "X-Amz-Security-Token": SESSION_TOKEN, "X-Amz-SignedHeaders": "host",
    }  # fmt: skip
    assert token.end_s - token.asked_s == 900
    assert token.text not in repr(token)


@pytest.mark.parametrize(
    ("variables", "request_", "reason"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "another"}, MskIamRequest(REGION), "the signature"),
        ({"AWS_ACCESS_KEY_ID": "ANOTHER"}, MskIamRequest(REGION), "the key or its session token is not known"),
        ({"AWS_SESSION_TOKEN": "of-yesterday"}, MskIamRequest(REGION), "the key or its session token is not known"),
        ({}, MskIamRequest("us-east-1"), "it is for kafka.us-east-1.amazonaws.com"),
        ({}, MskIamRequest(REGION, life_s=3_600), "it is not valid now"),
    ],
)
def test_what_msk_refuses_is_a_sentence_without_key_and_token(
    cluster: MskCluster, chain: Chain, variables: Mapping[str, str], request_: MskIamRequest, reason: str
) -> None:
    chain.set({**STATIC, **variables})
    with pytest.raises(AccessDenied, match=r"the broker refuses the token \(.*invalid_token.*Check kafka\.sec") as said:
        connect(cluster, request_)
    assert cluster.proxy.refusals == [reason]
    token = request_.ask().text
    for secret in (SECRET, "another", "of-yesterday", token, token[-40:]):
        assert secret not in str(said.value)
        assert secret not in repr(said.value.__cause__)


def test_a_token_that_has_ended_is_refused(cluster: MskCluster, chain: Chain) -> None:
    chain.set(STATIC)
    token = MskIamRequest(REGION, life_s=1).ask()
    cluster.proxy.check(token.text)
    time.sleep(1.1)
    with pytest.raises(ValueError, match="not valid now"):
        cluster.proxy.check(token.text)


def test_the_session_token_of_an_assumed_role_is_signed(cluster: MskCluster, chain: Chain) -> None:
    cluster.proxy.keys[KEY_ID] = AccessKey(SECRET, SESSION_TOKEN)
    chain.set({**STATIC, "AWS_SESSION_TOKEN": SESSION_TOKEN})
    connect(cluster).close()
    assert "X-Amz-Security-Token" in cluster.proxy.logins[0].fields


def test_a_profile_is_taken_whose_keys_may_rotate_and_another_one_named(cluster: MskCluster, chain: Chain) -> None:
    chain.set(STATIC)
    file = chain.folder / "credentials"
    for number in (1, 2):
        cluster.proxy.keys = {f"OFPROFILE{number}": AccessKey(f"secret{number}")}
        file.write_text(f"[msk]\naws_access_key_id = OFPROFILE{number}\naws_secret_access_key = secret{number}\n")
        # Another life is another source of tokens, as if the first token were over.
        connect(cluster, MskIamRequest(REGION, "msk", life_s=900 - number)).close()
    assert [login.key_id for login in cluster.proxy.logins] == ["OFPROFILE1", "OFPROFILE2"]
    with pytest.raises(AccessDenied, match=r"profile \(other\) could not be found.*kafka\.security\.login\.profile"):
        connect(cluster, MskIamRequest(REGION, "other"))


def test_no_credentials_half_of_them_and_a_broken_file_are_sentences(cluster: MskCluster, chain: Chain) -> None:
    with pytest.raises(AccessDenied, match=r"finds no credentials of AWS\. Give the driver and the executors a role"):
        connect(cluster)
    chain.set({"AWS_ACCESS_KEY_ID": KEY_ID})
    with pytest.raises(LoginRefused, match=r"Partial credentials found in env, missing: AWS_SECRET_ACCESS_KEY"):
        MskIamRequest(REGION).ask()
    chain.set(STATIC)
    MskIamRequest(REGION).ask()
    (chain.folder / "config").write_text("[nonsense\n")
    with pytest.raises(LoginRefused, match="Unable to parse config file"):
        MskIamRequest(REGION).ask()


@pytest.mark.parametrize(
    ("session_s", "life_s", "logins", "tokens"),
    [pytest.param(10, 900, 3, 1, id="one-token"), pytest.param(900, 20, 2, 2, id="a-token-for-each")],
)
def test_one_connection_outlives_sessions_and_tokens(
    cluster: MskCluster, chain: Chain, session_s: int, life_s: int, logins: int, tokens: int
) -> None:
    chain.set(STATIC)
    cluster.proxy.session_s = session_s
    connection = connect(cluster, MskIamRequest(REGION, life_s=life_s))
    end_s = time.monotonic() + 25
    while len(cluster.proxy.logins) < logins and time.monotonic() < end_s:
        ask(connection)
        time.sleep(0.05)
    ask(connection)
    connection.close()
    assert len(cluster.proxy.logins) == logins
    assert len({login.end_s for login in cluster.proxy.logins}) == tokens
    assert cluster.proxy.expirations == 0


def test_a_connection_that_does_not_log_in_again_is_closed(cluster: MskCluster, chain: Chain) -> None:
    chain.set(STATIC)
    cluster.proxy.session_s = 1
    connection = connect(cluster)
    connection._login_due_s = None
    time.sleep(1.1)
    with pytest.raises((BrokerClosed, ConnectionError)):
        ask(connection)
    assert cluster.proxy.expirations == 1
    connection.close()


def of_container(server: CredentialServer, _: Path) -> dict[str, str]:
    return {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/agent",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": AGENT_TOKEN,
    }


def of_web_identity(server: CredentialServer, folder: Path) -> dict[str, str]:
    (folder / "identity").write_text(IDENTITY_TOKEN)
    return {
        "AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "identity"),
        "AWS_ENDPOINT_URL_STS": server.url, "AWS_REGION": REGION, "AWS_MAX_ATTEMPTS": "1",
    }  # fmt: skip


def test_credentials_of_an_instance_are_found(cluster: MskCluster, chain: Chain, credentials: CredentialServer) -> None:
    """botocore goes on with old ones, where the instance gives no others in time."""
    chain.set({"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": credentials.url})
    cluster.proxy.keys = credentials.keys
    connect(cluster).close()
    assert [login.key_id for login in cluster.proxy.logins] == list(credentials.keys)


@pytest.mark.parametrize("source", [of_container, of_web_identity])
def test_credentials_of_a_role_are_found_and_renewed(
    cluster: MskCluster,
    chain: Chain,
    credentials: CredentialServer,
    source: Callable[[CredentialServer, Path], Mapping[str, str]],
) -> None:
    chain.set(source(credentials, chain.folder))
    cluster.proxy.keys = credentials.keys
    # botocore renews what ends within ten minutes.
    credentials.life = timedelta(minutes=5)
    for number in (1, 2, 3):
        connect(cluster, MskIamRequest(REGION, life_s=900 - number)).close()
    ids = [login.key_id for login in cluster.proxy.logins]
    assert len(set(ids)) == 3
    credentials.life = timedelta(hours=1)
    for number in (4, 5, 6):
        connect(cluster, MskIamRequest(REGION, life_s=900 - number)).close()
    assert len({login.key_id for login in cluster.proxy.logins[3:]}) == 1, "good ones are kept"


def test_a_role_that_sts_refuses_is_refused_and_an_sts_that_fails_asked_again(
    cluster: MskCluster, chain: Chain, credentials: CredentialServer, caplog: pytest.LogCaptureFixture
) -> None:
    chain.set(of_web_identity(credentials, chain.folder))
    cluster.proxy.keys = credentials.keys
    for failure, kind in (
        ((403, "AccessDenied"), LoginRefused),
        ((400, "ExpiredTokenException"), LoginUnavailable),
        ((503, "ServiceUnavailable"), LoginUnavailable),
    ):
        credentials.failure = failure
        with pytest.raises(kind, match=failure[1]) as said:
            MskIamRequest(REGION).ask()
        assert IDENTITY_TOKEN[:40] not in f"{said.value} {said.value.__context__} {caplog.text}"
    credentials.failure = None
    # Keys that have ended are none.
    credentials.life = timedelta(seconds=-1)
    with pytest.raises(LoginUnavailable, match=r"refreshed credentials are still expired.*asked again"):
        MskIamRequest(REGION).ask()
    credentials.life = timedelta(hours=1)
    connect(cluster).close()


def test_an_sts_that_is_silent_is_not_waited_for_long(chain: Chain, credentials: CredentialServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        chain.set({**of_web_identity(credentials, chain.folder), "AWS_ENDPOINT_URL_STS": url})
        begin_s = time.monotonic()
        with pytest.raises(LoginUnavailable, match=r"Read timeout on endpoint URL.*asked again"):
            MskIamRequest(REGION).ask()
        assert 4 < time.monotonic() - begin_s < 20


def test_an_identity_that_is_not_mounted_is_named(chain: Chain, credentials: CredentialServer) -> None:
    chain.set(of_web_identity(credentials, chain.folder))
    (chain.folder / "identity").unlink()
    with pytest.raises(
        LoginRefused, match=r"No such file or directory: .*identity.*and the role, on the driver and on"
    ):
        MskIamRequest(REGION).ask()


def test_an_agent_that_does_not_answer_is_asked_again(
    cluster: MskCluster, chain: Chain, credentials: CredentialServer, caplog: pytest.LogCaptureFixture
) -> None:
    chain.set(of_container(credentials, chain.folder))
    cluster.proxy.keys = credentials.keys
    credentials.failure = (500, "")
    with pytest.raises(NoLogin, match=r"AWS's chain of credentials gives none.*asked again") as said:
        connect(cluster)
    assert AGENT_TOKEN[:40] not in f"{said.value} {said.value.__cause__!r} {caplog.text}"
    credentials.failure = None
    deadline_s = time.monotonic() + 10
    while True:
        try:
            connect(cluster).close()
            break
        except NoLogin:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("skew_s", "is_refused"),
    [
        pytest.param(290, False, id="behind-by-less-than-five-minutes"),
        pytest.param(-290, False, id="ahead-by-less-than-five-minutes"),
        pytest.param(-310, True, id="ahead-by-more"),
        pytest.param(910, True, id="behind-by-more-than-a-token-lives"),
    ],
)
def test_a_clock_is_named_where_it_may_be_the_reason(
    cluster: MskCluster, chain: Chain, skew_s: float, *, is_refused: bool
) -> None:
    """AWS takes signatures of a clock that is ahead by five minutes at most, and MSK gives no reason."""
    chain.set(STATIC)
    cluster.proxy.skew_s = skew_s
    if is_refused:
        with pytest.raises(AccessDenied, match=r"the broker refuses the token .*and this machine's clock"):
            connect(cluster)
        assert cluster.proxy.refusals == ["it is not valid now"]
    else:
        connect(cluster).close()


LARGE_TOPIC = "pictures"
LARGE_RECORDS = 40


@pytest.fixture(scope="module")
def large_records(cluster: MskCluster) -> None:
    create_topics(cluster.bootstrap, {LARGE_TOPIC: 1})
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(LARGE_RECORDS):
        # Each is a batch of its own, and an answer of its own.
        producer.produce(LARGE_TOPIC, bytes(100_000))
        assert producer.flush(30) == 0


def read_slowly(cluster: MskCluster, offsets: list[int], retry_timeout_s: float) -> Iterator[None]:
    """Read the topic of large records, one at a time. Their offsets are added to `offsets`."""
    limits = ReadLimits(fetch_bytes=1, rows=1, buffer_bytes=1, retry_timeout_s=retry_timeout_s)
    offset_range = OffsetRange(TopicPartition(LARGE_TOPIC, 1, 0), 0, LARGE_RECORDS)
    security = Security(login=BearerLogin(MskIamRequest(REGION)))
    with ClusterAddress(addresses(cluster.iam), security, timeout_s=15).open() as opened:
        for batch in RangeReader(opened, [offset_range], limits=limits):
            offsets += batch.column("offset").to_pylist()
            yield


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.usefixtures("large_records")
def test_a_task_whose_key_is_revoked_in_mid_batch_waits_for_another_or_says_a_sentence(
    cluster: MskCluster, chain: Chain, *, returns: bool
) -> None:
    chain.set(STATIC)
    cluster.proxy.session_s = 2
    offsets = list[int]()
    steps = read_slowly(cluster, offsets, 30 if returns else 3)
    for _ in range(5):
        next(steps)
    cluster.proxy.keys = {}
    # The session ends.
    time.sleep(2.2)

    def give_another_key() -> None:
        cluster.proxy.keys = {"AKIDOTHER": AccessKey("another/secret")}
        chain.set({"AWS_ACCESS_KEY_ID": "AKIDOTHER", "AWS_SECRET_ACCESS_KEY": "another/secret"})

    if returns:
        threading.Timer(2, give_another_key).start()
        list(steps)
        assert {login.key_id for login in cluster.proxy.logins} == {KEY_ID, "AKIDOTHER"}
    else:
        with pytest.raises(Unavailable, match=r"the broker refuses the token \(.*invalid_token") as said:
            list(steps)
        assert SECRET not in str(said.value)
        give_another_key()
        # Another try of the task.
        offsets.clear()
        list(read_slowly(cluster, offsets, 30))
    assert offsets == list(range(LARGE_RECORDS))
    assert "the key or its session token is not known" in cluster.proxy.refusals


@pytest.mark.usefixtures("large_records")
def test_a_task_waits_while_sts_is_down_for_longer_than_its_credentials_and_tokens_live(
    cluster: MskCluster, chain: Chain, credentials: CredentialServer
) -> None:
    chain.set(of_web_identity(credentials, chain.folder))
    cluster.proxy.keys = credentials.keys
    cluster.proxy.session_s = 2
    # botocore takes what ends within ten minutes for old, and what has ended for none.
    credentials.life = timedelta(seconds=3)
    offsets = list[int]()
    steps = read_slowly(cluster, offsets, 30)
    for _ in range(5):
        next(steps)
    credentials.failure = (503, "ServiceUnavailable")
    # The keys of an STS that gave them for three seconds are good no more.
    cluster.proxy.keys = {}
    time.sleep(3.2)

    def bring_sts_back() -> None:
        cluster.proxy.keys = credentials.keys
        credentials.failure = None

    threading.Timer(4, bring_sts_back).start()
    begin_s = time.monotonic()
    list(steps)
    assert time.monotonic() - begin_s > 3.5
    assert offsets == list(range(LARGE_RECORDS))
