"""Encrypts fields as Confluent's clients do, apart from the code that decrypts them (csfle.json is their own work)."""

import hmac
import os
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from tests.servers.csfle import CsfleRegistry

SECRET = "the producers' secret"
SIZES = {"AES128_GCM": (16, b"\x1a\x10"), "AES256_GCM": (32, b"\x1a\x20"), "AES256_SIV": (64, b"\x12\x40")}


def rule(*tags: str, algorithm: str = "AES256_GCM", kek: str = "shop-kek", **more: Any) -> dict[str, Any]:
    """A rule as a producer registers it; `days`: for how long a key is used."""
    params = {"encrypt.kek.name": kek, "encrypt.kms.type": "local-kms", "encrypt.kms.key.id": "shop"}
    days = {"encrypt.dek.expiry.days": more.pop("days")} if "days" in more else {}
    return {
        "name": "-".join(tags),
        "kind": "TRANSFORM",
        "mode": "WRITEREAD",
        "type": "ENCRYPT",
        "tags": list(tags),
        "params": {**params, "encrypt.dek.algorithm": algorithm, **days},
        **more,
    }


def _gcm(key: bytes, plain: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, plain, b"")


def local_kek(secret: str) -> bytes:
    """HKDF-SHA-256 (RFC 5869) without salt and info, one block of it."""
    extracted = hmac.digest(bytes(32), secret.encode(), sha256)
    return hmac.digest(extracted, b"\1", sha256)[:16]


@dataclass
class Producer:
    """Makes the keys that it needs, at the registry."""

    registry: CsfleRegistry
    subject: str = "clicks-value"
    secret: str = SECRET
    kek: str = "shop-kek"

    def key(self, algorithm: str, version: int = 1) -> bytes:
        registry = self.registry
        size, key_header = SIZES[algorithm]
        identity = {"kekName": self.kek, "subject": self.subject, "algorithm": algorithm, "version": version}
        existing = next((dek for dek in registry.deks if identity.items() <= dek.items()), None)
        if existing is not None:
            wrapped = b64decode(existing["encryptedKeyMaterial"])
            return AESGCM(local_kek(self.secret)).decrypt(wrapped[:12], wrapped[12:], b"")[-size:]
        registry.keks.setdefault(
            self.kek, {"name": self.kek, "kmsType": "local-kms", "kmsKeyId": "shop", "kmsProps": {}}
        )
        key = os.urandom(size)
        wrapped = b64encode(_gcm(local_kek(self.secret), key_header + key)).decode()
        registry.deks.append({**identity, "encryptedKeyMaterial": wrapped, "ts": 0})
        return key

    def encrypt(self, plain: str | bytes, algorithm: str = "AES256_GCM", version: int | None = None) -> Any:
        """Encrypt a text or bytes; with a version, as a rule whose keys are renewed."""
        key = self.key(algorithm, version or 1)
        content = plain.encode() if isinstance(plain, str) else plain
        encrypted = AESSIV(key).encrypt(content, [b""]) if algorithm == "AES256_SIV" else _gcm(key, content)
        encrypted = (b"" if version is None else b"\0" + version.to_bytes(4, "big")) + encrypted
        return b64encode(encrypted).decode() if isinstance(plain, str) else encrypted
