"""The native connection logs in by Kerberos, at a KDC and a broker of this test's own."""

import itertools
import multiprocessing
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from headrace.writer.config.sections.kafka_client import Security as Configured
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.demo.devstack.kafka import create_topics
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import BrokerAddress, Connection, addresses
from headrace.writer.kafka_reader.errors import AccessDenied, NoLogin
from headrace.writer.kafka_reader.protocol import Api
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.kafka_reader.requests import metadata
from headrace.writer.kafka_reader.security import Security
from headrace.writer.logins.errors import LoginUnavailable
from headrace.writer.logins.exchange import Exchange
from headrace.writer.logins.kerberos import KerberosIdentity, credential_cache
from headrace.writer.logins.sasl import KerberosLogin
from tests.servers.kdc import HOST, REALM, SERVICE, USER, Kdc, KerberosBroker, kerberos_broker
from tests.support.spark_source import send_for, spark_source
from tests.support.stepping_clock import COMPILER, SteppingClock

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(300)]
PRINCIPAL = f"{USER}@{REALM}"
TOPIC = "events"
RECORDS = 200
_number = itertools.count()


@dataclass(frozen=True)
class Realm:
    """A KDC, and a broker that takes its tickets as long as a connection lasts."""

    kdc: Kdc
    broker: KerberosBroker

    def login(self, folder: Path, principal: str = PRINCIPAL, service: str = SERVICE) -> KerberosLogin:
        """A login with a copy of the keytab, so that it shares no tickets with others."""
        keytab = folder / f"{next(_number)}.keytab"
        shutil.copy(self.kdc.keytab, keytab)
        return KerberosLogin(KerberosIdentity(principal, keytab, self.kdc.config), service)

    def connect(self, login: KerberosLogin, host: str = HOST) -> Connection:
        return Connection(BrokerAddress(host, self.broker.port), Security(login=login), 15, "test")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    folder = tmp_path_factory.mktemp("realm")
    with Kdc(folder / "kdc") as kdc, kerberos_broker(folder / "broker", kdc) as broker:
        yield Realm(kdc, broker)


@pytest.fixture(scope="module")
def records(realm: Realm) -> list[bytes]:
    create_topics(realm.broker.bootstrap, {TOPIC: 1})
    producer = Producer({"bootstrap.servers": realm.broker.bootstrap})
    values = [b"%d" % number for number in range(RECORDS)]
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(30) == 0
    return values


def test_records_are_read_by_a_keytab_and_a_krb5_conf_of_the_configuration(
    realm: Realm, records: list[bytes], tmp_path: Path
) -> None:
    login = realm.login(tmp_path)
    security = Configured.model_validate({
        "protocol": "sasl_plaintext",
        "login": {
            "type": "kerberos", "principal": PRINCIPAL, "keytab": str(login.identity.keytab),
            "config_file": str(realm.kdc.config),
        },
    }).native  # fmt: skip
    before = realm.kdc.questions("AS_REQ"), realm.kdc.questions("TGS_REQ")
    for _ in range(3):
        with ClusterAddress(addresses(realm.broker.kerberos), security).open() as cluster:
            reader = RangeReader(cluster, [OffsetRange(TopicPartition(TOPIC, 1, 0), 0, RECORDS)])
            assert [value for batch in reader for value in batch.column("value").to_pylist()] == records
    after = realm.kdc.questions("AS_REQ"), realm.kdc.questions("TGS_REQ")
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1), "tickets are kept for further logins"


@pytest.mark.parametrize(
    ("principal", "service", "host", "says"),
    [
        ("headrace@WRONG.TEST", SERVICE, HOST, r"Cannot find KDC for realm .WRONG\.TEST..\. Check the realm of"),
        (f"nobody@{REALM}", SERVICE, HOST, r"not found in Kerberos database\)\. Check kafka\.security\.login\.princ"),
        (PRINCIPAL, "other", HOST, r"other/localhost@HEADRACE\.TEST not found.*Check kafka\.security\.login\.service"),
        (PRINCIPAL, SERVICE, "127.0.0.1", r"kafka/127\.0\.0\.1@HEADRACE\.TEST not found.*the host's name"),
        ("a@b@c", SERVICE, HOST, r"Malformed representation of principal"),
    ],
)
def test_a_wrong_principal_service_or_host_is_named(
    realm: Realm, tmp_path: Path, principal: str, service: str, host: str, says: str
) -> None:
    login = realm.login(tmp_path, principal, service)
    if principal not in (PRINCIPAL, "a@b@c"):
        realm.kdc.write_keytab(principal, login.identity.keytab)
    with pytest.raises(AccessDenied, match=says):
        realm.connect(login, host)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"the keytab .* cannot be read: No such file or directory\. Mount it"),
        (b"", r"has no keys of headrace@HEADRACE\.TEST, or is no keytab"),
        (b"nonsense", r"has no keys of headrace@HEADRACE\.TEST, or is no keytab"),
    ],
)
def test_a_keytab_that_is_none_is_named(realm: Realm, tmp_path: Path, content: bytes | None, says: str) -> None:
    login = realm.login(tmp_path)
    login.identity.keytab.unlink()
    if content is not None:
        login.identity.keytab.write_bytes(content)
    with pytest.raises(AccessDenied, match=says):
        realm.connect(login)


def test_a_krb5_conf_that_is_none_is_named(realm: Realm, tmp_path: Path) -> None:
    broken = tmp_path / "broken.conf"
    broken.write_text("[libdefaults\n")
    for config, says in ((broken, "Improper format of Kerberos config"), (tmp_path / "none", "Cannot find KDC for")):
        identity = KerberosIdentity(PRINCIPAL, realm.kdc.keytab, config)
        with pytest.raises(AccessDenied, match=says):
            realm.connect(KerberosLogin(identity))


def test_keys_of_yesterday_are_refused_and_those_of_today_taken_without_a_restart(realm: Realm, tmp_path: Path) -> None:
    yesterday = realm.login(tmp_path)
    realm.kdc.export_keys(USER, realm.kdc.keytab)
    with pytest.raises(AccessDenied, match=r"Preauthentication failed\)\. The keytab is not of the principal's pres"):
        realm.connect(yesterday)
    shutil.copy(realm.kdc.keytab, yesterday.identity.keytab)
    realm.connect(yesterday).close()


def test_tickets_that_the_broker_does_not_take_any_more_are_asked_for_anew(realm: Realm, tmp_path: Path) -> None:
    login = realm.login(tmp_path)
    realm.connect(login).close()
    tickets = credential_cache(login.identity)
    realm.kdc.export_keys(f"{SERVICE}/{HOST}", realm.kdc.broker_keytab)
    with pytest.raises(AccessDenied, match="the broker refuses it"):
        realm.connect(login)
    tickets._now = lambda: time.monotonic() + 60
    with pytest.raises(NoLogin, match="Other tickets are asked for"):
        realm.connect(login)
    realm.connect(login).close()


def test_a_kdc_that_is_down_is_asked_again_and_tickets_outlast_it(realm: Realm, tmp_path: Path) -> None:
    logged_in, new = realm.login(tmp_path), realm.login(tmp_path)
    realm.connect(logged_in).close()
    realm.kdc.stop()
    try:
        for _ in range(3):
            with pytest.raises(NoLogin, match=r"Cannot contact any KDC.*Check that the KDC is up"):
                realm.connect(new)
            realm.connect(logged_in).close()
    finally:
        realm.kdc.start()
    deadline_s = time.monotonic() + 10
    while True:
        try:
            realm.connect(new).close()
            break
        except NoLogin:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def test_while_a_kdc_does_not_answer_one_thread_waits_and_the_next_fail_at_once(realm: Realm, tmp_path: Path) -> None:
    """A firewall that swallows packets: the library gives up after 25 s (measured), and is not asked by each thread."""
    login = realm.login(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = realm.kdc.write_config(tmp_path / "silent.conf", port=silent.getsockname()[1])
        tickets = credential_cache(KerberosIdentity(PRINCIPAL, login.identity.keytab, config))
        failures = list[float]()

        def fail() -> None:
            with pytest.raises(LoginUnavailable, match="Cannot contact any KDC"), tickets.open_login(SERVICE, HOST):
                pass
            failures.append(time.monotonic())

        threads = [threading.Thread(target=fail) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(failures) == 8
    assert max(failures) - min(failures) < 0.4


@dataclass(frozen=True)
class CountedLogin:
    """A login that counts."""

    login: KerberosLogin
    times_s: list[float] = field(default_factory=list)

    @property
    def mechanism(self) -> str:
        return self.login.mechanism

    @property
    def advice(self) -> str:
        return self.login.advice

    def log_in(self, host: str, exchange: Exchange) -> None:
        self.login.log_in(host, exchange)
        self.times_s.append(time.monotonic())


@pytest.fixture(scope="module")
def short_realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """Tickets of 20 s, and sessions of 5 s."""
    folder = tmp_path_factory.mktemp("short")
    with (
        Kdc(folder / "kdc", life="20s") as kdc,
        kerberos_broker(folder / "broker", kdc, session_ms=5_000) as broker,
    ):
        yield Realm(kdc, broker)


def test_one_connection_outlives_sessions_tickets_and_keys(short_realm: Realm, tmp_path: Path) -> None:
    login = CountedLogin(short_realm.login(tmp_path))
    kdc = short_realm.kdc
    connection = Connection(BrokerAddress(HOST, short_realm.broker.port), Security(login=login), 15, "test")
    before = kdc.questions("AS_REQ")
    # New keys of the principal in between, as a rotation has it.
    for seconds in (20, 25):
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            version = connection.version(Api.METADATA)
            connection.call(Api.METADATA, version, metadata.request_body([], version))
            time.sleep(0.1)
        shutil.copy(kdc.export_keys(USER, kdc.keytab), login.login.identity.keytab)
    connection.close()
    assert len(login.times_s) >= 10
    assert kdc.questions("AS_REQ") - before >= 3


def test_spark_reads_by_the_keytab_over_sessions_and_tickets(short_realm: Realm, tmp_path: Path) -> None:
    kdc, broker = short_realm.kdc, short_realm.broker
    create_topics(broker.bootstrap, {TOPIC: 1})
    login = {
        "type": "kerberos", "principal": PRINCIPAL, "keytab": str(kdc.keytab), "config_file": str(kdc.config),
    }  # fmt: skip
    kafka = {
        "bootstrap_servers": broker.kerberos,
        "security": {"protocol": "sasl_plaintext", "login": login},
    }
    first = send_for(0.5, broker.bootstrap, TOPIC)
    with spark_source(kafka, TOPIC, tmp_path) as source:
        source.wait_for_start()
        before = kdc.questions("AS_REQ")
        sent = first + send_for(45, broker.bootstrap, TOPIC)
        assert source.finish() == sent
    assert kdc.questions("AS_REQ") - before >= 2


LARGE_TOPIC = "pictures"
LARGE_RECORDS = 40


def read_slowly(realm: Realm, login: KerberosLogin, offsets: list[int]) -> Iterator[None]:
    """Read the topic of large records, one at a time. Their offsets are added to `offsets`."""
    limits = ReadLimits(fetch_bytes=1, rows=1, buffer_bytes=1)
    offset_range = OffsetRange(TopicPartition(LARGE_TOPIC, 1, 0), 0, LARGE_RECORDS)
    address = ClusterAddress(addresses(realm.broker.kerberos), Security(login=login), timeout_s=15)
    with address.open() as cluster:
        for batch in RangeReader(cluster, [offset_range], limits=limits):
            offsets += batch.column("offset").to_pylist()
            yield


def finish_slowly(steps: Iterator[None]) -> None:
    """Read on, a record a second."""
    for _ in steps:
        time.sleep(1)


@pytest.fixture(scope="module")
def large_records(short_realm: Realm) -> None:
    create_topics(short_realm.broker.bootstrap, {LARGE_TOPIC: 1})
    producer = Producer({"bootstrap.servers": short_realm.broker.bootstrap})
    for _ in range(LARGE_RECORDS):
        # Each is a batch of its own, and an answer of its own.
        producer.produce(LARGE_TOPIC, bytes(100_000), partition=0)
        assert producer.flush(30) == 0


@pytest.mark.usefixtures("large_records")
def test_a_task_waits_for_a_kdc_that_is_down_for_longer_than_tickets_live(short_realm: Realm, tmp_path: Path) -> None:
    kdc, login = short_realm.kdc, short_realm.login(tmp_path)
    offsets = list[int]()
    steps = read_slowly(short_realm, login, offsets)
    for _ in range(3):
        next(steps)
    kdc.stop()
    try:
        time.sleep(22)
        with pytest.raises(NoLogin, match=r"Cannot contact any KDC.*Check that the KDC is up"):
            short_realm.connect(login)
        task = threading.Thread(target=list, args=[steps])
        task.start()
        time.sleep(8)
        assert task.is_alive()
    finally:
        # It lives as long as the thread that starts it.
        kdc.start()
    task.join(60)
    assert offsets == list(range(LARGE_RECORDS))


@pytest.mark.usefixtures("large_records")
def test_a_principal_that_is_locked_in_mid_batch_ends_the_task_with_its_sentence(
    short_realm: Realm, tmp_path: Path
) -> None:
    kdc, login = short_realm.kdc, short_realm.login(tmp_path)
    offsets = list[int]()
    steps = read_slowly(short_realm, login, offsets)
    for _ in range(3):
        next(steps)
    kdc.lock(USER, is_locked=True)
    try:
        # The session ends, and the tickets are asked for anew.
        with pytest.raises(AccessDenied, match=r"Let the KDC's administrator unlock the principal"):
            finish_slowly(steps)
    finally:
        kdc.lock(USER, is_locked=False)
    assert offsets == list(range(len(offsets)))
    # Another try of the task.
    offsets.clear()
    list(read_slowly(short_realm, login, offsets))
    assert offsets == list(range(LARGE_RECORDS))


def test_a_ticket_of_another_kdc_is_refused(realm: Realm, tmp_path: Path) -> None:
    """It is forged: of the same names, under keys that the broker does not have."""
    with Kdc(tmp_path / "forger") as forger:
        login = KerberosLogin(KerberosIdentity(PRINCIPAL, forger.keytab, forger.config))
        with pytest.raises(AccessDenied, match="the broker refuses it"):
            realm.connect(login)
    realm.connect(realm.login(tmp_path)).close()


def test_threads_log_in_side_by_side_while_tickets_are_renewed(realm: Realm, tmp_path: Path) -> None:
    login = realm.login(tmp_path)
    tickets = credential_cache(login.identity)
    failures = list[BaseException]()

    def log_in(number: int) -> None:
        try:
            for _ in range(25):
                if number == 0:
                    tickets._first_s = 0.0  # they look old, so that they may go
                    with tickets.open_login(SERVICE, HOST) as opened:
                        assert tickets.forget(opened)
                realm.connect(login).close()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            failures.append(error)

    threads = [threading.Thread(target=log_in, args=[number]) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []


def test_a_thousand_logins_keep_no_memory(realm: Realm, tmp_path: Path) -> None:
    login, refused = realm.login(tmp_path), realm.login(tmp_path, service="other")
    process = psutil.Process()

    def log_in(count: int) -> int:
        for _ in range(count):
            realm.connect(login).close()
            with pytest.raises(AccessDenied):
                realm.connect(refused)
        return int(process.memory_info().rss)

    before = log_in(100)
    assert log_in(1_000) - before < 2 * 2**20


def _log_in_after_fork(connect: Callable[[], Connection]) -> None:
    connect().close()


def test_a_child_that_is_forked_after_a_login_has_tickets_of_its_own(realm: Realm, tmp_path: Path) -> None:
    login = realm.login(tmp_path)
    realm.connect(login).close()
    tickets = credential_cache(login.identity)
    before = realm.kdc.questions("AS_REQ")
    # As if another thread had logged in at that moment.
    with tickets._lock:
        child = multiprocessing.get_context("fork").Process(
            target=_log_in_after_fork, args=[lambda: realm.connect(login)]
        )
        child.start()
        child.join(30)
    if child.exitcode is None:
        child.kill()
    assert child.exitcode == 0
    assert realm.kdc.questions("AS_REQ") == before + 1


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler to build a stepping clock with")
def test_a_clock_that_is_wrong_is_named(tmp_path: Path) -> None:
    """The library follows the KDC's clock, unless krb5.conf forbids it; the broker does not."""
    (tmp_path / "clock").mkdir()
    clock = SteppingClock(tmp_path / "clock")
    with (
        Kdc(tmp_path / "kdc", environment=clock.environment) as kdc,
        kerberos_broker(tmp_path / "broker", kdc) as broker,
    ):
        strict = kdc.write_config(tmp_path / "strict.conf", defaults="kdc_timesync = 0")
        # Both allow five minutes.
        clock.step(-330)
        address = BrokerAddress(HOST, broker.port)
        for config, says in (
            (strict, r"Clock skew too great.*Set this machine's clock"),
            (kdc.config, "the broker refuses it"),
        ):
            login = KerberosLogin(KerberosIdentity(PRINCIPAL, kdc.keytab, config))
            with pytest.raises(AccessDenied, match=says):
                Connection(address, Security(login=login), 15, "test")


@dataclass(frozen=True)
class ChangedLogin:
    """A login in whose way one bit of the broker's n-th message is changed."""

    login: KerberosLogin
    number: int
    messages: list[bytes] = field(default_factory=list)

    @property
    def mechanism(self) -> str:
        return self.login.mechanism

    @property
    def advice(self) -> str:
        return self.login.advice

    def log_in(self, host: str, exchange: Exchange) -> None:
        def change(token: bytes) -> bytes:
            self.messages.append(exchange(token))
            message = self.messages[-1]
            if len(self.messages) != self.number:
                return message
            return message[:-1] + bytes([message[-1] ^ 1])

        self.login.log_in(host, change)


@pytest.mark.parametrize("number", [1, 2])
def test_a_message_that_was_changed_on_its_way_is_not_believed(realm: Realm, tmp_path: Path, number: int) -> None:
    """The first proves the broker, the second is its offer of layers."""
    login = ChangedLogin(realm.login(tmp_path), number)
    with pytest.raises(AccessDenied, match="the login kerberos fails"):
        Connection(BrokerAddress(HOST, realm.broker.port), Security(login=login), 15, "test")
    assert len(login.messages) == number
