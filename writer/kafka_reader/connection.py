"""A connection to one broker: a request, then its answer, with a time limit for each."""

import itertools
import socket
import ssl
import struct
import time
from dataclasses import dataclass

from headrace.writer.kafka_reader.errors import AccessDenied, BrokerClosed, NoLogin, UnsupportedBroker
from headrace.writer.kafka_reader.protocol import (
    VERSIONS,
    Api,
    ErrorCode,
    FieldReader,
    error_name,
    is_flexible,
    request,
    short_text,
)
from headrace.writer.kafka_reader.security import Security
from headrace.writer.logins.errors import BrokerRefused, LoginRefused, LoginUnavailable
from headrace.writer.logins.exchange import SaslLogin

_BUFFER_BYTES = 2**20
# More than any broker sends for what is asked here.
_ANSWER_BYTES_MAX = 2**30
# An answer that comes more slowly than this has failed.
_BYTES_PER_S_MIN = 64 * 1024
# A socket takes 0 for "do not wait".
_TIMEOUT_MIN_S = 0.001
_PORT_MAX = 65_535
# How a server of TLS begins its answer to what is not TLS: an alert, of a version of SSL 3.
_TLS_ALERT = b"\x15\x03"
_LOGIN_REFUSALS = (ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
# Of a session's life, after which a connection logs in again; a broker closes it when the session is over (KIP-368).
_SESSION_SHARE = 0.85
# A broker refuses a second login within a second.
_BETWEEN_LOGINS_S = 1.0


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "BrokerAddress":
        """Read `host:port`; an IPv6 address stands in brackets. Raises ValueError."""
        host, _, port = text.strip().rpartition(":")
        has_port = port.isdecimal() and 0 < int(port) <= _PORT_MAX
        if not host or not has_port or (":" in host) != host.startswith("["):
            raise ValueError(f"{text!r} is no broker: write host:port, and an IPv6 address as [::1]:9092")
        return cls(host.strip("[]"), int(port))


class Connection:
    """A connection that is open, encrypted and logged in. An answer lies in a buffer that the next one uses again."""

    def __init__(self, address: BrokerAddress, security: Security, timeout_s: float, client_id: str) -> None:
        """Connect, to any of the addresses that the host has. Raises OSError, AccessDenied, UnsupportedBroker."""
        self._address = address
        self._timeout_s = timeout_s
        self._client_id = client_id
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._correlation_ids = itertools.count()
        self._login = security.login
        # When the session of the login is nearly over (time.monotonic); None where it lasts as long as the connection.
        self._login_due_s: float | None = None
        # Before it, the broker would refuse another login.
        self._login_from_s = 0.0
        self._socket = _open_socket(address, security, timeout_s)
        try:
            if self._login is not None:
                self._log_in(self._login)
            self._versions = self._ask_versions()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it. May be called twice."""
        self._socket.close()

    def version(self, api: Api) -> int:
        """Return the highest version of a request that both sides know. Raises UnsupportedBroker."""
        broker_lowest, broker_highest = self._versions.get(api, (0, -1))
        lowest, highest = VERSIONS[api]
        version = min(broker_highest, highest)
        if version < max(broker_lowest, lowest):
            raise UnsupportedBroker(
                f"the broker {self._address} knows {api.name} {_versions_text(broker_lowest, broker_highest)}, and "
                f"headrace needs it {_versions_text(lowest, highest)}. Use Kafka 2.7 or newer."
            )
        return version

    def call(self, api: Api, version: int, body: bytes, timeout_s: float | None = None) -> FieldReader:
        """Send a request, after another login where the session is nearly over.

        Returns its answer, which is valid until the next call. `timeout_s`: of this answer; None: as of the connection.
        Raises OSError, Corrupt, AccessDenied.
        """
        if self._login is not None and self._login_due_s is not None and time.monotonic() > self._login_due_s:
            self._log_in_again(self._login)
        return self._call(api, version, body, timeout_s)

    def _call(self, api: Api, version: int, body: bytes, timeout_s: float | None = None) -> FieldReader:
        correlation_id = next(self._correlation_ids) % 2**31
        timeout_s = self._timeout_s if timeout_s is None else max(timeout_s, _TIMEOUT_MIN_S)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(request(api, version, correlation_id, self._client_id, body))
        deadline_s = time.monotonic() + timeout_s
        self._receive(4, deadline_s)
        size: int = struct.unpack_from(">i", self._buffer)[0]
        if correlation_id == 0 and bytes(self._buffer[:2]) == _TLS_ALERT:
            raise AccessDenied(
                f"{self._address} speaks TLS, and kafka.security.protocol does not. Set it to ssl, or to sasl_ssl with "
                "a login"
            )
        if not 0 < size <= _ANSWER_BYTES_MAX:
            raise BrokerClosed(f"{self._address} begins an answer of {size} bytes: is it a broker's plaintext port?")
        self._fit(size)
        self._receive(size, deadline_s + size / _BYTES_PER_S_MIN)
        answer = FieldReader(self._buffer[:size])
        if answer.number("i") != correlation_id:
            raise BrokerClosed(f"{self._address} answers another request")
        if is_flexible(api, version):
            answer.skip_tags()
        return answer

    def _fit(self, size: int) -> None:
        """Make room for an answer; let go of the room of a much larger one."""
        if size > len(self._buffer) or size < len(self._buffer) // 8 > _BUFFER_BYTES:
            self._buffer = memoryview(bytearray(max(size + size // 8, _BUFFER_BYTES)))

    def _receive(self, size: int, deadline_s: float) -> None:
        """Read so many bytes into the buffer. Raises OSError."""
        received = 0
        while received < size:
            try:
                self._socket.settimeout(max(deadline_s - time.monotonic(), _TIMEOUT_MIN_S))
                count = self._socket.recv_into(self._buffer[received:size])
            except TimeoutError as error:
                raise TimeoutError(f"{self._address} does not answer within {self._timeout_s:g} s") from error
            if not count:
                raise BrokerClosed(f"{self._address} closed the connection")
            received += count

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        """Ask for the versions of requests that the broker knows: lowest and highest."""
        answer = self.call(Api.API_VERSIONS, 0, b"")
        if error := answer.number("h"):
            raise UnsupportedBroker(f"{self._address} does not say which requests it knows ({error_name(error)})")
        versions = {}
        for _ in range(answer.number("i")):
            api, lowest, highest = answer.numbers("hhh")
            versions[api] = (lowest, highest)
        return versions

    def _log_in(self, login: SaslLogin) -> None:
        """Log in, or log in again. Raises OSError, AccessDenied."""
        self._login_due_s = None
        answer = self._call(Api.SASL_HANDSHAKE, 1, short_text(login.mechanism))
        code = answer.number("h")
        if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.short_text() or "" for _ in range(answer.number("i")))
            raise AccessDenied(
                f"{self._address} does not take {login.mechanism}; it offers {offered}: set kafka.security.login to "
                "one of them"
            )
        # A broker says the same of a second login that comes too early.
        if code == ErrorCode.ILLEGAL_SASL_STATE and not self._login_from_s:
            raise AccessDenied(
                f"{self._address} takes no login: it is a listener without SASL. Give kafka.bootstrap_servers the port "
                "of a SASL listener, or take the login out and set kafka.security.protocol to plaintext or ssl"
            )
        if code:
            raise BrokerClosed(f"{self._address} cannot take a login now ({error_name(code)})")
        try:
            login.log_in(self._address.host, self._exchange)
        except BrokerRefused as error:
            raise AccessDenied(f"no login at {self._address}: {error}. {login.advice}") from error
        except LoginRefused as error:
            raise AccessDenied(f"no login at {self._address}: {error}") from error
        except LoginUnavailable as error:
            raise NoLogin(f"no login at {self._address}: {error}") from error

    def _log_in_again(self, login: SaslLogin) -> None:
        """Log in before the session ends, or after it: a broker answers nothing else then. Raises as `_log_in`."""
        time.sleep(max(0.0, self._login_from_s - time.monotonic()))
        try:
            self._log_in(login)
        except BaseException:
            # Whatever is sent now would not be answered.
            self.close()
            raise

    def _exchange(self, token: bytes) -> bytes:
        asked_s = time.monotonic()
        answer = self._call(Api.SASL_AUTHENTICATE, 1, struct.pack(">i", len(token)) + token)
        error = answer.number("h")
        reason = answer.short_text()
        if error in _LOGIN_REFUSALS:
            raise BrokerRefused(reason or error_name(error))
        if error:
            raise BrokerClosed(f"{self._address} cannot take a login now ({error_name(error)})")
        content = answer.raw(answer.number("i")).tobytes()
        if session_ms := answer.number("q"):
            self._login_due_s = asked_s + _SESSION_SHARE * session_ms / 1000
            self._login_from_s = asked_s + _BETWEEN_LOGINS_S
        return content


def _open_socket(address: BrokerAddress, security: Security, timeout_s: float) -> socket.socket:
    """Open a socket, encrypted where that is wanted. Raises OSError, AccessDenied."""
    context = security.context()
    plain = socket.create_connection((address.host, address.port), timeout_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if context is None else context.wrap_socket(plain, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise AccessDenied(
            f"the certificate of {address} is not trusted ({error.verify_message}): check kafka.security.ca_file, and "
            "verify_hostname if the certificate has another name"
        ) from error
    except BaseException:
        plain.close()
        raise


def _versions_text(lowest: int, highest: int) -> str:
    if highest < lowest:
        return "in no version"
    return f"in version {lowest}" if lowest == highest else f"in versions {lowest} to {highest}"


def addresses(bootstrap: str) -> list[BrokerAddress]:
    """Read `host:port`, several separated by commas. Raises ValueError."""
    return [BrokerAddress.parse(text) for text in bootstrap.split(",")]
