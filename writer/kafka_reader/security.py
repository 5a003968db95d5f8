"""How a connection is encrypted and logged in: TLS, and SASL's PLAIN and SCRAM (RFC 5802, KIP-84)."""

import base64
import binascii
import hashlib
import hmac
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.writer.kafka_reader.errors import AccessDenied

# Each costs the client's processor. Brokers use 4,096 and upwards.
_ITERATIONS_MAX = 1_000_000
_DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SETTINGS = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.endpoint.identification.algorithm",
    }
)
# Sends a token of the login, returns the broker's.
Exchange = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Security:
    """TLS and SASL by the settings of librdkafka, as `config.sections.kafka_client` gives them; none is plaintext."""

    # A password may be in them.
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.settings) - _SETTINGS)
        if unknown:
            raise ValueError(f"the native reader does not know the settings {', '.join(unknown)}")
        if self.logs_in and self.mechanism not in {"PLAIN", *_DIGESTS}:
            raise ValueError(f"the native reader does not know the login {self.mechanism!r}")

    @property
    def _protocol(self) -> str:
        return self.settings.get("security.protocol", "plaintext")

    @property
    def logs_in(self) -> bool:
        """Whether a connection begins with a login."""
        return self._protocol.startswith("sasl_")

    @property
    def mechanism(self) -> str:
        """The SASL mechanism in Kafka's spelling."""
        return self.settings.get("sasl.mechanism", "")

    def tls(self) -> ssl.SSLContext | None:
        """Return the context of encrypted connections; None for plaintext. Raises AccessDenied for unusable files."""
        if not self._protocol.endswith("ssl"):
            return None
        files = [self.settings[key] for key in sorted(self.settings) if key.endswith(".location")]
        try:
            context = ssl.create_default_context(cafile=self.settings.get("ssl.ca.location"))
            context.check_hostname = self.settings.get("ssl.endpoint.identification.algorithm", "https") != "none"
            if "ssl.certificate.location" in self.settings:
                context.load_cert_chain(
                    self.settings["ssl.certificate.location"], self.settings["ssl.key.location"], password=_no_password
                )
        # ssl.SSLError is an OSError.
        except (OSError, ValueError) as error:
            raise AccessDenied(
                f"kafka.security cannot be used with {' and '.join(dict.fromkeys(files))} ({error}). Give files that "
                "this machine can read: PEM certificates, and a key without a password."
            ) from error
        return context

    def log_in(self, exchange: Exchange) -> None:
        """Log in with the user and password of the settings. Raises AccessDenied."""
        user = self.settings["sasl.username"]
        password = self.settings["sasl.password"]
        if self.mechanism == "PLAIN":
            exchange(f"\0{user}\0{password}".encode())
            return
        try:
            _scram(_DIGESTS[self.mechanism], user, password, exchange)
        except (KeyError, ValueError, binascii.Error) as error:
            raise AccessDenied(f"the broker's part of the login {self.mechanism} makes no sense: {error!r}") from error


def _scram(digest: str, user: str, password: str, exchange: Exchange) -> None:
    """Log in without channel binding, as Kafka has it. Raises AccessDenied, KeyError, ValueError."""
    nonce = secrets.token_urlsafe(24)
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    first = exchange(f"n,,{bare}".encode()).decode()
    fields = _attributes(first)
    iterations = int(fields["i"])
    if not fields["r"].startswith(nonce) or not 0 < iterations <= _ITERATIONS_MAX:
        raise ValueError("another login's nonce, or a count of iterations out of bounds")
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(fields["s"]), iterations)
    final = f"c=biws,r={fields['r']}"
    message = f"{bare},{first},{final}".encode()
    key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, key).digest(), message, digest)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    answer = _attributes(exchange(f"{final},p={base64.b64encode(proof).decode()}".encode()).decode())
    if "e" in answer:
        raise AccessDenied(f"the broker refuses the login ({answer['e']}): check kafka.security")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
    if not hmac.compare_digest(base64.b64decode(answer["v"]), expected):
        raise AccessDenied(
            "the broker does not prove that it knows the password: it may not be the one it claims to be"
        )


def _attributes(message: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.split(",") if "=" in part)


def _no_password() -> str:
    raise ValueError("the key wants a password")
