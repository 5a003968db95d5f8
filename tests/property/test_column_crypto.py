"""Hashes and ciphertexts of whole columns equal those of one value at a time, by Python's hmac and cryptography."""

import hmac
import os
import random
from base64 import urlsafe_b64encode
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings, strategies as st

from headrace.writer.privacy.column_encryption import encrypt_column
from headrace.writer.privacy.column_protection import protect_scalars, value_text
from headrace.writer.privacy.hashing import hash_values
from headrace.writer.privacy.keyring import KeyId, Keyring, KeyringPlace, KeySource, fingerprint
from headrace.writer.privacy.policy import Action
from tests.support.example_counts import share

KEY = b"k" * 32
# So many different values are hashed by a query.
MANY = 4_500
NUMBERS = pa.array(range(MANY))
COLUMNS: dict[str, pa.Array] = {
    "string": pa.array([f"ñ{number}" for number in range(MANY)]),
    "bytes": pa.array([number.to_bytes(2, "big") + b"\x00\xff" for number in range(MANY)]),
    "int": NUMBERS.cast(pa.int32()),
    "long": pa.array([number * 2**40 for number in range(-MANY // 2, MANY // 2)]),
    "float": pa.array([number / 4 for number in range(MANY)], pa.float32()),
    "double": pa.array([number * 1e300 for number in range(MANY)]),
    "decimal": NUMBERS.cast(pa.decimal128(24, 2)),
    "date": NUMBERS.cast(pa.int32()).cast(pa.date32()),
    "time": NUMBERS.cast(pa.time64("us")),
    "timestamp": NUMBERS.cast(pa.timestamp("us", "UTC")),
    "boolean": pa.array([number % 2 == 0 for number in range(MANY)]),
}


def hmac_of(value: bytes | None, key: bytes) -> str | None:
    if value is None:
        return None
    return hmac.digest(key, value, "sha256").hex()


@given(
    values=st.lists(st.none() | st.binary(max_size=200) | st.integers(0, 5_000).map(bytes), max_size=30),
    key=st.binary(min_size=1, max_size=150),
    others=st.sampled_from([0, 300, MANY, 10_000]),
    repeats=st.booleans(),
    cut=st.integers(0, 3),
)
@settings(max_examples=share(50), deadline=None)
def test_a_hash_is_that_of_pythons_hmac(
    values: list[bytes | None], key: bytes, others: int, *, repeats: bool, cut: int
) -> None:
    """Few values, many, and many that repeat are hashed in three ways."""
    fillers = [b"%d" % (number % 50 if repeats else number) for number in range(others)]
    column = [*fillers, *values, None, b"", *fillers[:5]]
    hashes = hash_values(pa.array(column, pa.binary()).slice(cut), key)
    hashes.validate(full=True)
    assert hashes.type == pa.string()
    assert hashes.to_pylist() == [hmac_of(value, key) for value in column[cut:]]


@pytest.mark.parametrize("kind", COLUMNS)
def test_values_of_each_type_have_the_hash_of_their_text(kind: str) -> None:
    column = pa.concat_arrays([COLUMNS[kind], pa.nulls(1, COLUMNS[kind].type)])
    texts = [None if text is None else text.encode() for text in value_text(column).to_pylist()]
    if kind == "bytes":
        texts = column.to_pylist()
    keys = KeySource(KeyringPlace(), None, KeyId("h1", fingerprint(KEY)), None)
    hashes = protect_scalars(column, Action("hash"), keys, Keyring(hash_keys={"h1": KEY}))
    assert hashes.to_pylist() == [hmac_of(text, KEY) for text in texts]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 300), st.sampled_from([1, 3, 520])), max_size=5),
    key_id=st.text("abc-1", min_size=1, max_size=40),
    cut=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=share(100), deadline=None)
def test_an_encrypted_value_is_that_of_one_call_each(
    sizes: list[tuple[int, int]], key_id: str, cut: int, seed: int
) -> None:
    """Values of as many blocks are encrypted together where there are enough, whatever is among them."""
    chance = random.Random(seed)
    column: list[bytes | None] = [None, b"", b"\xff\x00"]
    for size, count in sizes:
        column += [chance.randbytes(max(0, size - chance.randrange(3))) for _ in range(count)]
    chance.shuffle(column)
    key, header, first_half = chance.randbytes(32), f"hr1.{key_id}.".encode(), chance.randbytes(12)
    values = pa.array(column, pa.binary()).slice(cut)
    nonces = np.frombuffer(chance.randbytes(12 * len(values)), np.uint8).reshape(-1, 12)
    texts = encrypt_column(values, key, header, first_half, nonces)
    texts.validate(full=True)
    assert texts.type == pa.string()
    cipher = AESGCM(key)
    for text, value, nonce in zip(texts.to_pylist(), values.to_pylist(), nonces, strict=True):
        if value is None:
            assert text is None
            continue
        sealed = first_half + nonce.tobytes() + cipher.encrypt(nonce.tobytes(), value, header)
        assert text == (header + urlsafe_b64encode(sealed).rstrip(b"=")).decode()


def test_more_values_than_are_encrypted_together_keep_their_order() -> None:
    column: list[Any] = [b"%d" % number for number in range(20_000)]
    column[5_000:7_000] = [None] * 2_000
    nonces = np.frombuffer(os.urandom(12 * len(column)), np.uint8).reshape(-1, 12)
    texts = encrypt_column(pa.array(column), KEY, b"hr1.k1.", bytes(12), nonces).to_pylist()
    assert [text is None for text in texts] == [value is None for value in column]
    for row in (0, 4_999, 7_000, 8_192, 16_384, 19_999):
        sealed = bytes(12) + nonces[row].tobytes() + AESGCM(KEY).encrypt(nonces[row].tobytes(), column[row], b"hr1.k1.")
        assert texts[row] == "hr1.k1." + urlsafe_b64encode(sealed).rstrip(b"=").decode()
