"""Servers that want to know who asks: our own certificates, a broker with TLS and SCRAM, a registry with a login."""

import base64
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.writer.demo.devstack.kafka import Broker
from headrace.writer.demo.devstack.process import free_ports

_PEM = serialization.Encoding.PEM
PLAIN_USER = "alice"
PLAIN_PASSWORD = "plain,=word"


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, as files."""

    certificate: Path
    key: Path
    both: Path  # key and certificate in one


class Authority:
    """An authority whose certificates are good for this machine's loopback, and for a day."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "headrace test authority")])
        builder = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), True
        )
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM))

    def certificate(self, name: str, *, host: str = "127.0.0.1") -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(IPv4Address(host)), x509.DNSName("localhost")]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key).add_extension(x509.SubjectAlternativeName(names), False)
        private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        public = builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)
        files = [self._folder / f"{name}{ending}" for ending in (".pem", ".key", ".both.pem")]
        for path, content in zip(files, (public, private, private + public), strict=True):
            path.write_bytes(content)
        return Certificate(*files)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )


@dataclass(frozen=True)
class SecuredBroker:
    """A broker with three doors: one open, for the test; one with TLS, both ways, and SCRAM; one with PLAIN alone."""

    bootstrap: str  # of the open one
    secured: str
    plain: str  # for PLAIN_USER with PLAIN_PASSWORD


@contextmanager
def broker(
    folder: Path, authority: Authority, user: str, password: str, overrides: Mapping[str, str] | None = None
) -> Iterator[SecuredBroker]:
    """Run a real broker with one SCRAM user. `overrides`: lines of server.properties."""
    port, plain = free_ports(2)
    shown = authority.certificate("broker")
    server = Broker(folder, overrides=overrides)
    server._settings |= {
        "listeners": f"PLAINTEXT://127.0.0.1:{server.port},SASL_SSL://127.0.0.1:{port},"
        f"PLAIN://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{server.controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{server.port},SASL_SSL://127.0.0.1:{port},"
        f"PLAIN://127.0.0.1:{plain}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,"
        "PLAIN:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": f'{_PLAIN} required user_{PLAIN_USER}="{PLAIN_PASSWORD}";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(shown.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.ca),
        "ssl.client.auth": "required",
    }
    with server:
        _add_user(server.bootstrap, user, password)
        yield SecuredBroker(server.bootstrap, f"127.0.0.1:{port}", f"127.0.0.1:{plain}")


def _add_user(bootstrap: str, user: str, password: str) -> None:
    """Let a user log in by both mechanisms of SCRAM."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256):
        credential = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
        for future in admin.alter_user_scram_credentials([credential]).values():
            future.result(timeout=30)


_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@contextmanager
def behind_login(url: str, authority: Authority, user: str, password: str) -> Iterator[str]:
    """Serve a registry over HTTPS to one user; gives the address."""
    shown = authority.certificate("registry")
    wanted = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    address = urlsplit(url)

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != wanted:
                self._send(401, "application/json", b'{"error_code":401,"message":"a login is needed"}')
                return
            length = int(self.headers.get("Content-Length") or 0)
            connection = HTTPConnection(address.netloc, timeout=20)
            try:
                kind = self.headers.get("Content-Type", "application/json")
                connection.request(self.command, self.path, self.rfile.read(length), {"Content-Type": kind})
                answer = connection.getresponse()
                self._send(answer.status, answer.headers.get("Content-Type", "application/json"), answer.read())
            except OSError:
                self._send(502, "text/plain", b"the registry does not answer")
            finally:
                connection.close()

        do_POST = do_PUT = do_GET  # noqa: N815 - the names that http.server looks for

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=[0.1], daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}{address.path}"
    finally:
        server.shutdown()
        server.server_close()
