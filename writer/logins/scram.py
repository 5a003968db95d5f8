"""SASL's SCRAM without channel binding, as Kafka has it. Sources: RFC 5802, KIP-84."""

import base64
import binascii
import hashlib
import hmac
import secrets

from headrace.writer.logins.errors import BrokerRefused, LoginRefused
from headrace.writer.logins.exchange import Exchange

# Each costs the client's processor. Brokers use 4,096 and upwards.
_ITERATIONS_MAX = 1_000_000
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def prove_password(mechanism: str, user: str, password: str, exchange: Exchange) -> None:
    """Log in, and let the broker prove that it knows the password, too. Raises LoginRefused."""
    try:
        _prove(DIGESTS[mechanism], user, password, exchange)
    except (KeyError, ValueError, binascii.Error) as error:
        raise LoginRefused(f"the broker's part of the login {mechanism} makes no sense: {error!r}") from error


def _prove(digest: str, user: str, password: str, exchange: Exchange) -> None:
    """Raises LoginRefused, KeyError, ValueError."""
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
        raise BrokerRefused(answer["e"])
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
    if not hmac.compare_digest(base64.b64decode(answer["v"]), expected):
        raise LoginRefused(
            "the broker does not prove that it knows the password: it may not be the one it claims to be"
        )


def _attributes(message: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.split(",") if "=" in part)
