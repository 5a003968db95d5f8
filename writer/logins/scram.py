"""SASL's SCRAM without channel binding, as Kafka has it. Sources: RFC 5802, KIP-84."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping

from headrace.writer.logins.errors import BrokerRefused, LoginRefused
from headrace.writer.logins.exchange import Exchange

# Each costs the client's processor. With fewer than RFC 7677 has, the password is cheap to guess from a proof, for one
# that pretends to be the broker. Kafka's brokers take no fewer.
_ITERATIONS_MIN = 4096
_ITERATIONS_MAX = 1_000_000
_COUNT = re.compile(r"[0-9]{1,9}")
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def prove_password(mechanism: str, user: str, password: str, exchange: Exchange) -> None:
    """Log in, and let the broker prove that it knows the password, too. Raises LoginRefused."""
    digest = DIGESTS[mechanism]
    nonce = secrets.token_urlsafe(24)
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    first = _text(exchange(f"n,,{bare}".encode()))
    salt, iterations, both_nonces = _read_challenge(_attributes(first), nonce)
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    final = f"c=biws,r={both_nonces}"
    message = f"{bare},{first},{final}".encode()
    key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, key).digest(), message, digest)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    answer = _attributes(_text(exchange(f"{final},p={base64.b64encode(proof).decode()}".encode())))
    if "e" in answer:
        raise BrokerRefused(answer["e"])
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), message, digest)
    if not hmac.compare_digest(_binary(answer.get("v", "")), expected):
        raise LoginRefused(
            "the broker does not prove that it knows the password: it may not be the one it claims to be"
        )


def _read_challenge(fields: Mapping[str, str], nonce: str) -> tuple[bytes, int, str]:
    """Return salt, count of iterations and the nonce of both sides. Raises LoginRefused, BrokerRefused."""
    if "e" in fields:
        raise BrokerRefused(fields["e"])
    if "m" in fields:
        raise LoginRefused("the broker wants an extension of SCRAM, which Kafka does not have")
    both_nonces = fields.get("r", "")
    if not both_nonces.startswith(nonce) or both_nonces == nonce:
        raise LoginRefused("the broker's part of the login makes no sense: it has no nonce for this login")
    count = fields.get("i", "")
    if not _COUNT.fullmatch(count):
        raise LoginRefused("the broker's part of the login makes no sense: it has no count of iterations")
    if not _ITERATIONS_MIN <= int(count) <= _ITERATIONS_MAX:
        raise LoginRefused(
            f"the broker wants {count} iterations, and a login is made with {_ITERATIONS_MIN} to {_ITERATIONS_MAX}. "
            "Give the user such a count on the broker; if it has one, this may not be the broker"
        )
    salt = _binary(fields.get("s", ""))
    if not salt:
        raise LoginRefused("the broker's part of the login makes no sense: it has no salt")
    return salt, int(count), both_nonces


def _text(answer: bytes) -> str:
    """Return a message of the broker as text. Raises LoginRefused."""
    text = answer.decode(errors="replace")
    if text.encode(errors="replace") != answer:
        raise LoginRefused("the broker's part of the login makes no sense: it is not UTF-8")
    return text


def _binary(text: str) -> bytes:
    """Return what base64 stands for; nothing where it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _attributes(message: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.split(",") if "=" in part)
