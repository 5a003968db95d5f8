"""Encrypts values of Arrow columns by AES-256-GCM, each to a text that names its key.

A text is `hr1.<id of the key>.<base64url without padding>` of the nonce (24 bytes), the ciphertext and the tag (16).
What stands before the last point is authenticated with it. A nonce of 24 bytes that is chosen at random is never the
same twice, which 12 bytes do not promise beyond some billions of values. It is XAES-256-GCM (C2SP,
https://c2sp.org/XAES-256-GCM): the first half of the nonce and the key make the key of AES-GCM, the second half is its
nonce. The first half is that of a whole column of a batch, so the key is derived once for it.
"""

import os
from base64 import urlsafe_b64decode

import numpy as np
import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.writer.privacy.column_encryption import encrypt_column
from headrace.writer.privacy.gcm import NONCE_BYTES

VERSION = "hr1"
KEY_BYTES = 32
_BOTH_HALVES_BYTES = 2 * NONCE_BYTES
_TAG_BYTES = 16
# Of CMAC (NIST SP 800-38B).
_BLOCK_BITS = 128
_POLYNOMIAL = 0x87


class CannotDecrypt(ValueError):
    """A text that was not encrypted with this key, or was changed since."""


def encrypt_values(values: pa.BinaryArray, key_id: str, key: bytes) -> pa.StringArray:
    """Encrypt each value; null stays null. The same value gives another text each time."""
    first_half = os.urandom(NONCE_BYTES)
    second_halves = np.frombuffer(os.urandom(NONCE_BYTES * len(values)), np.uint8).reshape(-1, NONCE_BYTES)
    header = f"{VERSION}.{key_id}.".encode()
    return encrypt_column(values.cast(pa.binary()), derive_key(key, first_half), header, first_half, second_halves)


def key_id_of(text: str) -> str | None:
    """Return the id of the key that a text was encrypted with; None for any other text."""
    version, *parts = text.split(".")
    if version != VERSION or len(parts) != 2:  # noqa: PLR2004 - id and content
        return None
    return parts[0]


def decrypt_text(text: str, key: bytes) -> bytes:
    """Return what was encrypted. Raises CannotDecrypt."""
    header, _, content = text.rpartition(".")
    try:
        sealed = urlsafe_b64decode(content + "=" * (-len(content) % 4))
        if len(sealed) < _BOTH_HALVES_BYTES + _TAG_BYTES:
            raise CannotDecrypt("it is too short to be an encrypted value")
        cipher = AESGCM(derive_key(key, sealed[:NONCE_BYTES]))
        nonce = sealed[NONCE_BYTES:_BOTH_HALVES_BYTES]
        return cipher.decrypt(nonce, sealed[_BOTH_HALVES_BYTES:], f"{header}.".encode())
    except (InvalidTag, ValueError) as error:
        raise CannotDecrypt("the value was encrypted with another key, or changed since") from error


def derive_key(key: bytes, first_half: bytes) -> bytes:
    """Return the key of AES-GCM for the first half of a nonce: CMAC in counter mode (NIST SP 800-108)."""
    assert len(key) == KEY_BYTES, "AES-256 has keys of 32 bytes"
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - single blocks, as CMAC is defined
    subkey = int.from_bytes(cipher.update(bytes(16)), "big") << 1
    if subkey >> _BLOCK_BITS:
        subkey ^= _POLYNOMIAL
    subkey &= (1 << _BLOCK_BITS) - 1
    blocks = (int.from_bytes(bytes([0, number, ord("X"), 0]) + first_half, "big") ^ subkey for number in (1, 2))
    return b"".join(cipher.update(block.to_bytes(16, "big")) for block in blocks)
