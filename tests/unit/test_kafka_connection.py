"""Below the native reader: fields of the protocol, addresses, logins, what is known of leaders."""

import pickle
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import google_crc32c
import pytest

from headrace.writer.clients.kafka_sample import silent_partition
from headrace.writer.kafka_reader.connection import BrokerAddress, Connection, addresses
from headrace.writer.kafka_reader.errors import AccessDenied, Corrupt, LostRecords, Unavailable
from headrace.writer.kafka_reader.protocol import FieldReader, length
from headrace.writer.kafka_reader.requests import fetch, metadata
from headrace.writer.kafka_reader.requests.metadata import Leader, Metadata
from headrace.writer.kafka_reader.security import Security, Tls
from headrace.writer.logins.errors import LoginRefused
from headrace.writer.logins.sasl import PlainLogin, ScramLogin
from headrace.writer.logins.secret import Secret


def test_a_length_that_is_none_is_corrupt() -> None:
    for data in (b"\xff" * 8, b"\xff\xff\xff\xff\x0f", b""):
        with pytest.raises(Corrupt, match="an answer of a broker"):
            FieldReader(memoryview(data)).text()
    for count in (0, 1, 126, 127, 128, 300_000):
        assert FieldReader(memoryview(length(count))).length() == count


def test_newer_metadata_stays_when_a_broker_lags() -> None:
    brokers = {1: BrokerAddress("a", 1), 2: BrokerAddress("b", 1)}
    new, old = Metadata(brokers, {("a", 0): Leader(2, 7)}), Metadata(brokers, {("a", 0): Leader(1, 6)})
    assert metadata.merge_metadata(new, old).leaders == {("a", 0): Leader(2, 7)}
    assert metadata.merge_metadata(old, new).leaders == {("a", 0): Leader(2, 7)}
    created_again = Metadata(brokers, {("a", 0): Leader(1, 0)}, {"a": UUID(int=9)})
    assert metadata.merge_metadata(new, created_again).leaders == {("a", 0): Leader(1, 0)}


def test_addresses_are_read_with_brackets_around_ipv6() -> None:
    found = addresses("kafka:9092, [::1]:9093,10.0.0.1:1")
    assert found == [BrokerAddress("kafka", 9092), BrokerAddress("::1", 9093), BrokerAddress("10.0.0.1", 1)]
    assert [str(one) for one in found] == ["kafka:9092", "[::1]:9093", "10.0.0.1:1"]
    for wrong in ("kafka", "kafka:", ":9092", "::1:9092", "kafka:99999", "kafka:x"):
        with pytest.raises(ValueError, match="is no broker: write host:port"):
            addresses(wrong)


def test_certificates_that_cannot_be_read_are_named() -> None:
    with pytest.raises(AccessDenied, match=r"kafka.security cannot be used with /no/ca.pem"):
        Tls(ca_file=Path("/no/ca.pem")).context()


def test_errors_survive_pickling() -> None:
    found = pickle.loads(pickle.dumps(LostRecords("a/0 at offset 5 is gone", "a", 0, 5)))
    assert (str(found), found.topic, found.partition, found.offset) == ("a/0 at offset 5 is gone", "a", 0, 5)


def test_the_checksum_is_computed_natively() -> None:
    assert google_crc32c.implementation == "c"


def test_a_login_over_plain_sasl_sends_user_and_password() -> None:
    sent = list[bytes]()
    PlainLogin("u", Secret("password", "p")).log_in("broker", lambda token: sent.append(token) or b"")
    assert sent == [b"\0u\0p"]


def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    login = ScramLogin("u", Secret("password", "p"), "SCRAM-SHA-256")

    def answers(last: bytes, iterations: int = 4096, nonce: bytes = b"") -> Callable[[bytes], bytes]:
        def exchange(token: bytes) -> bytes:
            if token.startswith(b"n,,"):
                return (
                    (nonce or token.partition(b"r=")[2]) + b"x"
                    if False
                    else (b"r=" + (nonce or token.partition(b"r=")[2] + b"x") + b",s=c2FsdA==,i=%d" % iterations)
                )
            return last

        return exchange

    for exchange, words in (
        (answers(b"v=AAAA"), "does not prove that it knows the password"),
        (answers(b"e=invalid-proof"), "the broker refuses it"),
        (answers(b"v=AAAA", iterations=10**9), "makes no sense"),
        (answers(b"v=AAAA", nonce=b"another"), "makes no sense"),
        (lambda _: b"nonsense", "makes no sense"),
    ):
        with pytest.raises(LoginRefused, match=words):
            login.log_in("broker", exchange)


@pytest.mark.parametrize(
    ("answer", "login", "words"),
    [
        # An alert of TLS, as a server of it answers to what is none.
        (b"\x15\x03\x03\x00\x02\x02\x50", None, r"speaks TLS, and kafka\.security\.protocol does not\. Set it to ssl"),
        # A listener without SASL: correlation id 0, error code 34, no mechanisms.
        (
            struct.pack(">iihi", 10, 0, 34, 0),
            PlainLogin("u", Secret("password", "p")),
            "takes no login: it is a listener without SASL",
        ),
    ],
)
def test_a_port_of_another_protocol_is_named(answer: bytes, login: PlainLogin | None, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = BrokerAddress("127.0.0.1", server.getsockname()[1])
        with pytest.raises(AccessDenied, match=words):
            Connection(address, Security(login=login), timeout_s=10, client_id="test")
        thread.join(10)


def test_the_request_puts_the_first_question_s_topic_first() -> None:
    ask = [fetch.PartitionQuestion("b", 0, -1, 5, 10), fetch.PartitionQuestion("a", 0, -1, 5, 10)]
    body = fetch.request_body(ask, 12, {}, wait_ms=1, bytes_max=1, rack="")
    assert body.index(b"\x02b") < body.index(b"\x02a")


def test_a_sample_names_the_partition_whose_records_do_not_come() -> None:
    spans = [("clicks", 0), ("clicks", 3)]
    assert silent_partition(Unavailable("clicks/3: it has no leader", "clicks", 3, 7), spans) == ("clicks", 3)
    assert silent_partition(Unavailable("no Kafka broker answers"), spans) == ("clicks", 0)
