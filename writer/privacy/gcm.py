"""AES-256-GCM of many short values under one key, with numpy: each result is what `AESGCM.encrypt` returns.

GCM (NIST SP 800-38D) encrypts by AES in counter mode, and authenticates by GHASH, which multiplies by the constant H in
GF(2^128). OpenSSL encrypts the counter blocks of all values in one call. GHASH takes a table of the multiples of H.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK_BYTES = 16
NONCE_BYTES = 12
_BLOCK_BITS = 8 * BLOCK_BYTES
# x^128 = x^7 + x^2 + x + 1, in the order of bits that GCM has.
_REDUCTION = 0xE1 << 120
# Counter blocks have a counter of one byte here.
_VALUE_BLOCKS_MAX = 254

Bytes = npt.NDArray[np.uint8]


class GcmKey:
    """A key with the associated data of all values."""

    def __init__(self, key: bytes, associated_data: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305 - single blocks, as GCM is defined
        self._multiples = _multiples_of(self._encrypt_blocks(bytes(BLOCK_BYTES)))
        self._associated_bits = 8 * len(associated_data)
        padded = associated_data.ljust(-len(associated_data) // BLOCK_BYTES * -BLOCK_BYTES, b"\0")
        state = np.zeros((1, BLOCK_BYTES), np.uint8)
        for block in np.frombuffer(padded, np.uint8).reshape(-1, BLOCK_BYTES):
            state = self._multiply(state ^ block)
        self._first_state = state

    def encrypt(self, plain: Bytes, lengths: npt.NDArray[np.int64], nonces: Bytes) -> tuple[Bytes, Bytes]:
        """Encrypt values of as many blocks: a row of `plain` is a value, and then bytes that do not count.

        Returns the ciphertexts, zero behind their ends, and the tags. `nonces` are of 12 bytes, each for one value.
        """
        rows, width = plain.shape
        blocks = width // BLOCK_BYTES
        assert width == blocks * BLOCK_BYTES, "whole blocks"
        assert blocks <= _VALUE_BLOCKS_MAX, "a counter of one byte"
        counters = np.zeros((rows, 1 + blocks, BLOCK_BYTES), np.uint8)
        counters[:, :, :NONCE_BYTES] = nonces[:, np.newaxis]
        counters[:, :, -1] = np.arange(1, 2 + blocks)
        stream = np.frombuffer(self._encrypt_blocks(counters.data), np.uint8).reshape(counters.shape)
        is_value = np.arange(width) < lengths[:, np.newaxis]
        ciphertexts: Bytes = (plain ^ stream[:, 1:].reshape(rows, width)) * is_value
        tags: Bytes = self._hash(ciphertexts, lengths) ^ stream[:, 0]
        return ciphertexts, tags

    def _hash(self, ciphertexts: Bytes, lengths: npt.NDArray[np.int64]) -> Bytes:
        """Return GHASH of the associated data and each ciphertext."""
        state = np.repeat(self._first_state, len(ciphertexts), axis=0)
        for start in range(0, ciphertexts.shape[1], BLOCK_BYTES):
            state = self._multiply(state ^ ciphertexts[:, start : start + BLOCK_BYTES])
        bits = np.empty((len(ciphertexts), 2), ">u8")
        bits[:, 0] = self._associated_bits
        bits[:, 1] = 8 * lengths
        return self._multiply(state ^ bits.view(np.uint8))

    def _multiply(self, factors: Bytes) -> Bytes:
        """Return each block times H: the sum of what each of its bytes makes of it."""
        products: npt.NDArray[np.uint64] = self._multiples[0].take(factors[:, 0], axis=0)
        for position in range(1, BLOCK_BYTES):
            products ^= self._multiples[position].take(factors[:, position], axis=0)
        return products.view(np.uint8)

    def _encrypt_blocks(self, blocks: Any) -> bytes:
        return self._cipher.encryptor().update(blocks)


def _multiples_of(block: bytes) -> npt.NDArray[np.uint64]:
    """Return of shape (16, 256, 2), by position and value of a byte, that byte's product with a block, as two words."""
    product = int.from_bytes(block, "big")
    # Of each bit of a block, the first one being x^0.
    bits = bytearray()
    for _ in range(_BLOCK_BITS):
        bits += product.to_bytes(BLOCK_BYTES, "big")
        product = product >> 1 ^ (_REDUCTION if product & 1 else 0)
    of_bits = np.frombuffer(bytes(bits), np.uint64).reshape(BLOCK_BYTES, 8, 2)
    multiples = np.zeros((BLOCK_BYTES, 256, 2), np.uint64)
    for bit in range(8):
        size = 1 << bit
        multiples[:, size : 2 * size] = multiples[:, :size] ^ of_bits[:, 7 - bit, np.newaxis]
    return multiples
