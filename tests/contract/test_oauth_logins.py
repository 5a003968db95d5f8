"""The login by tokens on a real broker: what it takes, what it refuses, and sessions that are renewed."""

import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import Producer

from headrace.writer.clients import java_artifacts, spark_login
from headrace.writer.config.sections.kafka_client import Security as Configured
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.demo.devstack.kafka import create_topics
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.connection import BrokerAddress, Connection, addresses
from headrace.writer.kafka_reader.errors import AccessDenied, BrokerClosed, NoLogin, Unavailable
from headrace.writer.kafka_reader.protocol import Api
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.kafka_reader.requests import metadata
from headrace.writer.kafka_reader.security import Security
from headrace.writer.logins.sasl import BearerLogin
from tests.servers.oauth_broker import OAuthBroker, oauth_broker
from tests.servers.token_server import CLIENT_ID, CLIENT_SECRET, SigningKey, TokenServer

pytestmark = pytest.mark.slow
TOPIC = "clicks"
RECORDS = 200
SESSION_MS = 2_500


@dataclass(frozen=True)
class Ground:
    """A server of tokens, and a broker that takes them."""

    tokens: TokenServer
    broker: OAuthBroker


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("oauth")
    with TokenServer() as tokens, oauth_broker(folder / "broker", tokens, session_ms=SESSION_MS) as broker:
        create_topics(broker.bootstrap, {TOPIC: 1})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(RECORDS):
            producer.produce(TOPIC, str(number).encode())
        assert producer.flush(30) == 0
        yield Ground(tokens, broker)


@pytest.fixture
def tokens(ground: Ground) -> Iterator[TokenServer]:
    """The server of tokens, as it is at its start once the test has ended."""
    server = ground.tokens
    yield server
    server.life_s, server.failures, server.delay_s, server.skew_s = 60, 0, 0, 0
    server.repeats_questions = False
    server.answers.clear()


def security(**settings: Any) -> Security:
    """Return a login for connections of our own."""
    login = {"type": "oauth", **settings}
    return Configured.model_validate({"protocol": "sasl_plaintext", "login": login}).native


def by_secret(tokens: TokenServer, **settings: Any) -> Security:
    """Return a login by client credentials. Settings that no other login has make its tokens its own."""
    return security(
        **{"token_url": tokens.token_url, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, **settings}
    )


def connect(ground: Ground, login: Security) -> Connection:
    return Connection(BrokerAddress.parse(ground.broker.oauth), login, 15, "test")


def ask(connection: Connection) -> metadata.Metadata:
    version = connection.version(Api.METADATA)
    return metadata.answer(connection.call(Api.METADATA, version, metadata.request_body([TOPIC], version)), version)


def ask_forever(connection: Connection) -> None:
    """Ask until a question fails. Raises OSError."""
    while True:
        assert TOPIC in ask(connection).topic_ids
        time.sleep(0.05)


def is_accepted(ground: Ground, login: Security, refusals: list[str]) -> bool:
    """Return whether the broker accepts the login now. A refusal that may pass is added to `refusals`."""
    try:
        ask(connect(ground, login))
    except NoLogin as error:
        refusals.append(str(error))
        return False
    return True


def read_all(ground: Ground, login: Security) -> int:
    """Read the topic as a task does. Returns the count of its records."""
    with ClusterAddress(addresses(ground.broker.oauth), login, timeout_s=15).open() as cluster:
        offset_range = OffsetRange(TopicPartition(TOPIC, 1, 0), 0, RECORDS)
        return sum(batch.num_rows for batch in RangeReader(cluster, [offset_range], ColumnChoice()))


# --- What is taken ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_auth", ["basic", "post"])
def test_records_are_read_with_a_token_of_client_credentials(
    ground: Ground, tokens: TokenServer, client_auth: str
) -> None:
    assert read_all(ground, by_secret(tokens, client_auth=client_auth, scope="kafka")) == RECORDS
    assert tokens.ways[-1] == client_auth


@pytest.mark.parametrize("grant", ["client_credentials", "jwt_bearer"])
def test_a_workload_logs_in_by_its_assertion(ground: Ground, tokens: TokenServer, tmp_path: Path, grant: str) -> None:
    file = tmp_path / "assertion"
    file.write_text(tokens.sign_assertion())
    login = security(token_url=tokens.token_url, client_id=CLIENT_ID, assertion_file=str(file), grant=grant)
    assert read_all(ground, login) == RECORDS
    assert tokens.ways[-1] == ("jwt_bearer" if grant == "jwt_bearer" else "client_assertion")


def test_a_token_in_a_file_is_taken_and_read_anew(ground: Ground, tokens: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    login = security(token_file=str(file))
    with pytest.raises(AccessDenied, match=f"no login at .*: token_file {file} cannot be read"):
        read_all(ground, login)
    time.sleep(1)
    tokens.life_s = 6
    file.write_text(tokens.sign())
    connection = connect(ground, login)
    deadline_s = time.monotonic() + 8
    while time.monotonic() < deadline_s:
        file.write_text(tokens.sign())
        assert TOPIC in ask(connection).topic_ids
        time.sleep(0.2)


def test_extensions_reach_the_broker(ground: Ground, tokens: TokenServer) -> None:
    login = by_secret(tokens, extensions={"logicalCluster": "lkc-1", "identityPoolId": "pool-1"})
    assert read_all(ground, login) == RECORDS
    # The broker reads them: it refuses a name that is none. The configuration refuses it before.
    assert isinstance(login.login, BearerLogin)
    with pytest.raises(NoLogin, match="the broker refuses the token"):
        connect(ground, Security(login=replace(login.login, extensions=(("1", "x"),))))


# --- What is refused -------------------------------------------------------------------------------------------------


def test_a_wrong_secret_a_scope_and_an_audience_are_refused_with_a_sentence(
    ground: Ground, tokens: TokenServer
) -> None:
    with pytest.raises(AccessDenied, match=r"gives no token \(it answers 401, invalid_client\). Check token_url"):
        connect(ground, by_secret(tokens, client_secret="another"))
    with pytest.raises(AccessDenied, match=r"gives no token \(it answers 400, invalid_scope\)"):
        connect(ground, by_secret(tokens, scope="everything"))
    with pytest.raises(AccessDenied, match=r"the broker refuses the token \(.*invalid_token.*Check kafka.security"):
        connect(ground, by_secret(tokens, parameters={"audience": "another"}))


def test_a_forged_token_is_refused(ground: Ground, tokens: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    genuine, forger = tokens.keys[0], SigningKey()
    for key in (forger, SigningKey(forger.key, genuine.id)):
        file.write_text(key.sign(tokens.claims()))
        login = security(token_file=str(file), extensions={"try": key.id})
        with pytest.raises(AccessDenied, match=r"the broker refuses the token \(.*invalid_token"):
            connect(ground, login)
        time.sleep(1)


def test_an_unsigned_token_is_refused(ground: Ground, tokens: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    header = "eyJhbGciOiJub25lIn0"
    file.write_text(f"{header}.{tokens.sign().split('.')[1]}.")
    with pytest.raises(AccessDenied, match=r"the broker refuses the token"):
        connect(ground, security(token_file=str(file)))


def test_an_expired_token_is_not_even_shown(ground: Ground, tokens: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(tokens.sign(exp=int(time.time()) - 300))
    with pytest.raises(NoLogin, match=r"ended 30\d s ago by this machine's clock. What writes it is late"):
        connect(ground, security(token_file=str(file)))


def test_a_clock_five_minutes_off_gives_a_sentence(ground: Ground, tokens: TokenServer) -> None:
    # The token's server is behind: its tokens are over, by the broker's clock as by ours.
    tokens.skew_s = -300
    with pytest.raises(AccessDenied, match=r"refuses the token .*By this machine's clock it ended 2[34]\d s ago"):
        connect(ground, by_secret(tokens, parameters={"audience": "kafka", "try": "behind"}))
    with pytest.raises(
        AccessDenied, match=r"invalid_client.*This machine's clock is (299|30\d) s ahead of that of http"
    ):
        connect(ground, by_secret(tokens, client_secret="another", parameters={"try": "behind"}))
    tokens.skew_s = 300
    with pytest.raises(AccessDenied, match=r"refuses the token .*By this machine's clock it begins in (29|30)\d s"):
        connect(ground, by_secret(tokens, parameters={"try": "ahead"}))


# --- Sessions --------------------------------------------------------------------------------------------------------


def test_a_connection_logs_in_again_for_several_sessions(ground: Ground, tokens: TokenServer) -> None:
    # A token is shown until a fifth of its life is left. That fifth is longer than the second between two logins.
    tokens.life_s = 7
    connection = connect(ground, by_secret(tokens, parameters={"try": "sessions"}))
    given_before = len(tokens.tokens)
    deadline_s = time.monotonic() + 6 * SESSION_MS / 1000
    while time.monotonic() < deadline_s:
        assert TOPIC in ask(connection).topic_ids
        time.sleep(0.05)
    assert len(tokens.tokens) - given_before >= 2


def test_a_connection_that_was_idle_beyond_its_session_logs_in_again(ground: Ground, tokens: TokenServer) -> None:
    connection = connect(ground, by_secret(tokens, parameters={"try": "idle"}))
    time.sleep(1.3 * SESSION_MS / 1000)
    assert TOPIC in ask(connection).topic_ids


def test_without_another_login_the_broker_closes_the_connection(ground: Ground, tokens: TokenServer) -> None:
    connection = connect(ground, by_secret(tokens, parameters={"try": "closed"}))
    connection._login_due_s = None
    time.sleep(1.3 * SESSION_MS / 1000)
    with pytest.raises(OSError, match=r"closed the connection|reset|Broken pipe"):
        ask(connection)


def test_renewals_are_a_second_apart(ground: Ground, tokens: TokenServer) -> None:
    # The session lasts as long as the token, and what is left of one that is shown again may be less than a second.
    tokens.life_s = 3
    connection = connect(ground, by_secret(tokens, parameters={"try": "short"}))
    logins = list[float]()
    deadline_s = time.monotonic() + 12
    due_s = connection._login_due_s
    while time.monotonic() < deadline_s:
        assert TOPIC in ask(connection).topic_ids
        if connection._login_due_s != due_s:
            due_s = connection._login_due_s
            logins.append(time.monotonic())
        time.sleep(0.01)
    assert len(logins) >= 6
    assert min(after - before for before, after in pairwise(logins)) >= 0.95


def test_a_second_renewal_within_a_second_is_refused_by_the_broker(ground: Ground, tokens: TokenServer) -> None:
    connection = connect(ground, by_secret(tokens, parameters={"try": "twice"}))
    assert connection._login is not None
    connection._log_in(connection._login)
    with pytest.raises(BrokerClosed, match="cannot take a login now"):
        connection._log_in(connection._login)


def test_a_revoked_token_leads_to_another(ground: Ground, tokens: TokenServer) -> None:
    login = by_secret(tokens, parameters={"try": "revoked"})
    connect(ground, login).close()
    first = tokens.tokens[-1]
    given_before = len(tokens.tokens)
    tokens.rotate_keys()
    refusals = list[str]()
    deadline_s = time.monotonic() + 30
    while tokens.tokens[-1] == first or not is_accepted(ground, login, refusals):
        assert time.monotonic() < deadline_s
        is_accepted(ground, login, refusals)
        time.sleep(0.1)
    assert refusals
    assert all("Another one is asked for" in refusal for refusal in refusals)
    assert read_all(ground, login) == RECORDS
    assert len(tokens.tokens) - given_before < 8


def test_a_task_reads_on_when_its_token_is_revoked(ground: Ground, tokens: TokenServer) -> None:
    login = by_secret(tokens, parameters={"try": "revoked in a task"})
    assert read_all(ground, login) == RECORDS
    tokens.rotate_keys()
    # So long, keys that were asked for just before are known.
    time.sleep(1.2)
    assert read_all(ground, login) == RECORDS


LARGE_TOPIC = "pictures"
LARGE_RECORDS = 40


def read_slowly(ground: Ground, login: Security, offsets: list[int]) -> Iterator[None]:
    """Read the topic of large records, one at a time. Their offsets are added to `offsets`."""
    limits = ReadLimits(fetch_bytes=1, rows=1, buffer_bytes=1, retry_timeout_s=30)
    offset_range = OffsetRange(TopicPartition(LARGE_TOPIC, 1, 0), 0, LARGE_RECORDS)
    with ClusterAddress(addresses(ground.broker.oauth), login, timeout_s=15).open() as cluster:
        for batch in RangeReader(cluster, [offset_range], ColumnChoice(), limits=limits):
            offsets += batch.column("offset").to_pylist()
            yield


@pytest.fixture(scope="module")
def large_records(ground: Ground) -> None:
    create_topics(ground.broker.bootstrap, {LARGE_TOPIC: 1})
    producer = Producer({"bootstrap.servers": ground.broker.bootstrap})
    for _ in range(LARGE_RECORDS):
        # Each is a batch of its own, and an answer of its own.
        producer.produce(LARGE_TOPIC, bytes(100_000))
        assert producer.flush(30) == 0


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.usefixtures("large_records")
def test_a_task_whose_token_is_revoked_in_mid_batch_waits_or_says_a_sentence(
    ground: Ground, tokens: TokenServer, *, is_refused: bool
) -> None:
    """The broker wants another login, takes the token no more, and the server refuses to renew it."""
    answer = (401, b'{"error": "invalid_client"}') if is_refused else (503, b"{}")
    login = by_secret(tokens, parameters={"try": f"mid-batch {is_refused}"})
    offsets = list[int]()
    steps = read_slowly(ground, login, offsets)
    for _ in range(5):
        next(steps)
    tokens.rotate_keys()
    tokens.answers = [answer] * 1_000
    # The broker forgets the old key, and the session ends.
    time.sleep(1.2 + SESSION_MS / 1_000)
    assert len(offsets) < LARGE_RECORDS
    if is_refused:
        with pytest.raises(AccessDenied, match=r"gives no token \(it answers 401, invalid_client\). Check token_url"):
            list(steps)
        tokens.answers.clear()
        # Another try of the task.
        offsets.clear()
        wait_for_login(ground, login)
        list(read_slowly(ground, login, offsets))
    else:
        threading.Timer(4, tokens.answers.clear).start()
        begin_s = time.monotonic()
        list(steps)
        assert time.monotonic() - begin_s > 3.5
    assert offsets == list(range(LARGE_RECORDS))


def wait_for_login(ground: Ground, login: Security) -> None:
    """Try a login until it succeeds: after a refusal the server is left alone for a moment."""
    deadline_s = time.monotonic() + 30
    while True:
        try:
            connect(ground, login).close()
            break
        except (NoLogin, AccessDenied):
            assert time.monotonic() < deadline_s
            time.sleep(0.2)


# --- A server that does not answer -----------------------------------------------------------------------------------


def test_a_token_is_used_to_its_end_while_the_server_is_down_and_then_waited_for(
    ground: Ground, tokens: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    tokens.life_s = 8
    login = by_secret(tokens, parameters={"try": "down"})
    connection = connect(ground, login)
    tokens.stop()
    try:
        begin_s = time.monotonic()
        with pytest.raises(NoLogin, match=r"no token: cannot reach http://127.0.0.1:\d+: Connection refused"):
            ask_forever(connection)
        assert 6.5 <= time.monotonic() - begin_s <= 9
        assert "token_not_renewed" in caplog.text
        cluster_address = ClusterAddress(addresses(ground.broker.oauth), login, timeout_s=2)
        with cluster_address.open() as cluster, pytest.raises(Unavailable, match="no token: cannot reach"):
            cluster.ask_leaders([TOPIC])
    finally:
        tokens.start()
    deadline_s = time.monotonic() + 30
    while True:
        try:
            assert read_all(ground, login) == RECORDS
            break
        except (NoLogin, Unavailable):
            assert time.monotonic() < deadline_s


def test_a_slow_server_does_not_close_a_connection(ground: Ground, tokens: TokenServer) -> None:
    tokens.life_s = 5
    tokens.delay_s = 1.5
    connection = connect(ground, by_secret(tokens, parameters={"try": "slow"}))
    deadline_s = time.monotonic() + 8
    while time.monotonic() < deadline_s:
        assert TOPIC in ask(connection).topic_ids
        time.sleep(0.05)


# --- Java ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JavaAnswers:
    """What Java's client of Spark got: when it was answered, by this machine's clock, and why it was not."""

    times_s: list[float]
    failures: list[str]


def start_java(ground: Ground, tokens: TokenServer, seconds: int, **login: Any) -> "subprocess.Popen[str]":
    """Let Java's client of Spark ask for an offset twice a second."""
    configured = Configured.model_validate({
        "protocol": "sasl_plaintext",
        "login": {
            "type": "oauth",
            "token_url": tokens.token_url,
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
            **login,
        },
    })  # fmt: skip
    options = {name.removeprefix("kafka."): value for name, value in spark_login.source_options(configured).items()}
    options["bootstrap.servers"] = ground.broker.oauth
    return subprocess.Popen(
        [
            str(java_artifacts.java()),
            *spark_login.jvm_options(configured),
            "-cp",
            f"{java_artifacts.fetch('spark-kafka', progress=lambda _: None)}/*:{Path(pyspark.__file__).parent}/jars/*",
            str(Path(__file__).parents[1] / "servers" / "KafkaOffsets.java"),
            TOPIC,
            str(seconds),
            *(f"{name}={value}" for name, value in options.items()),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_java(process: "subprocess.Popen[str]") -> JavaAnswers:
    """Wait for the end of it."""
    try:
        output, errors = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, output + errors
    assert CLIENT_SECRET not in output + errors
    lines = output.splitlines()
    times_s = [int(line.split()[1]) / 1000 for line in lines if line.startswith("answer ")]
    return JavaAnswers(times_s, [line for line in lines if line.startswith("failure ")])


def test_java_s_client_of_spark_gets_tokens_from_the_driver_for_several_lives(
    ground: Ground, tokens: TokenServer
) -> None:
    tokens.life_s = 6
    given_before = len(tokens.tokens)
    process = start_java(ground, tokens, 15, parameters={"try": "java"}, extensions={"logicalCluster": "lkc-1"})
    answers = read_java(process)
    assert answers.failures == []
    assert len(answers.times_s) >= 15
    assert len(tokens.tokens) - given_before >= 3


def test_java_s_client_goes_on_within_seconds_after_the_server_of_tokens_was_down(
    ground: Ground, tokens: TokenServer
) -> None:
    tokens.life_s = 6
    process = start_java(ground, tokens, 32, parameters={"try": "java in an outage"})
    assert process.stdout is not None
    # Its JVM has started.
    assert process.stdout.readline().startswith("answer ")
    down_s = time.time()
    tokens.stop()
    time.sleep(15)
    tokens.start()
    up_s = time.time()
    answers = read_java(process)
    # The token that it had was used to its end.
    assert not any(down_s + 8 < time_s < up_s for time_s in answers.times_s)
    first_s = min(time_s for time_s in answers.times_s if time_s > up_s)
    assert first_s < up_s + 8, answers.failures
    assert len([time_s for time_s in answers.times_s if time_s > first_s]) > 5
