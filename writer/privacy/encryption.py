"""Encrypts values of Arrow columns by AES-256-GCM, each to a text that names its key.

A text is `hr1.<id of the key>.<base64url without padding>` of the nonce (24 bytes), the ciphertext and the tag (16).
What stands before the last point is authenticated with it. A nonce of 24 bytes that is chosen at random is never the
same twice, which 12 bytes do not promise beyond some billions of values. It is XAES-256-GCM (C2SP,
https://c2sp.org/XAES-256-GCM): the first half of the nonce and the key make the key of AES-GCM, the second half is its
nonce. The first half is that of a whole column of a batch, so the key is derived once for it.
"""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode

import pyarrow as pa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = "hr1"
KEY_BYTES = 32
_HALF = 12  # bytes of each half of a nonce
_NONCE, _TAG = 2 * _HALF, 16
_BLOCK_BITS, _POLYNOMIAL = 128, 0x87  # of CMAC (NIST SP 800-38B)


class CannotDecrypt(ValueError):
    """A text that was not encrypted with this key, or was changed since."""


def encrypted(values: pa.BinaryArray, key_id: str, key: bytes) -> pa.StringArray:
    """Encrypt each value; null stays null. The same value gives another text each time."""
    head = f"{VERSION}.{key_id}."
    first, about = os.urandom(_HALF), head.encode()
    cipher, random = AESGCM(derived_key(key, first)), os.urandom(_HALF * len(values))
    texts = list[str | None]()
    for at, value in enumerate(values.to_pylist()):  # one call a value: no library takes a column
        nonce = random[at * _HALF : (at + 1) * _HALF]
        sealed = None if value is None else first + nonce + cipher.encrypt(nonce, value, about)
        texts.append(None if sealed is None else head + urlsafe_b64encode(sealed).rstrip(b"=").decode())
    return pa.array(texts, pa.string())


def key_id_of(text: str) -> str | None:
    """Return the id of the key that a text was encrypted with; None for any other text."""
    version, *rest = text.split(".")
    return rest[0] if version == VERSION and len(rest) == 2 else None  # noqa: PLR2004 - id and content


def decrypted(text: str, key: bytes) -> bytes:
    """Return what was encrypted. Raises CannotDecrypt."""
    head, _, content = text.rpartition(".")
    try:
        sealed = urlsafe_b64decode(content + "=" * (-len(content) % 4))
        if len(sealed) < _NONCE + _TAG:
            raise CannotDecrypt("it is too short to be an encrypted value")
        cipher = AESGCM(derived_key(key, sealed[:_HALF]))
        return cipher.decrypt(sealed[_HALF:_NONCE], sealed[_NONCE:], f"{head}.".encode())
    except (InvalidTag, ValueError) as error:
        raise CannotDecrypt("the value was encrypted with another key, or changed since") from error


def derived_key(key: bytes, first: bytes) -> bytes:
    """Return the key of AES-GCM for the first half of a nonce: CMAC in counter mode (NIST SP 800-108)."""
    assert len(key) == KEY_BYTES, "AES-256 has keys of 32 bytes"
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - single blocks, as CMAC is defined
    low = int.from_bytes(cipher.update(bytes(16)), "big") << 1
    mask = (low ^ _POLYNOMIAL if low >> _BLOCK_BITS else low) & (1 << _BLOCK_BITS) - 1
    blocks = (int.from_bytes(bytes([0, number, ord("X"), 0]) + first, "big") ^ mask for number in (1, 2))
    return b"".join(cipher.update(block.to_bytes(16, "big")) for block in blocks)
