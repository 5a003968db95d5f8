"""The key of hashes is in no plan, error or log, and a forked process hashes. Columns have the tags of AES-GCM."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import pyarrow as pa
import pytest

from headrace.writer.privacy import hashing
from headrace.writer.privacy.gcm import GcmKey

CANARY = b"Canary-of-the-hash-key-of-32-b.\xfe"
VALUES = pa.array([b"%d" % number for number in range(5_000)])
HASHES_AFTER_A_FORK = """
import os, signal
import pyarrow as pa
from headrace.writer.privacy.hashing import hash_values
values = pa.array([b"%d" % number for number in range(9_000)])
hashes = hash_values(values, b"k" * 32)
process = os.fork()
if not process:
    signal.alarm(60)
    os._exit(0 if hash_values(values, b"k" * 32).equals(hashes) else 1)
assert os.waitpid(process, 0)[1] == 0
"""
HASHES_WITH_ALL_LOGS = """
import logging, sys
import pyarrow as pa
logging.basicConfig(level=1)
from headrace.writer.privacy.hashing import hash_values
assert hash_values(pa.array([b"%d" % number for number in range(9_000)]), bytes.fromhex(sys.argv[1])).null_count == 0
"""
# Test cases 14 and 16 of McGrew and Viega, "The Galois/Counter Mode of Operation", of keys of 256 bits: key, nonce,
# associated data, plain, ciphertext, tag.
GCM = [
    ("00" * 32, "00" * 12, "", "00" * 16, "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"),
    (
        "feffe9928665731c6d6a8f9467308308" * 2,
        "cafebabefacedbaddecaf888",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        (
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
            "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
        ),
        (
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
            "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        ),
        "76fc6ece0f4e1768cddf8853bb2d551b",
    ),
]


def spellings(secret: bytes) -> Iterator[str]:
    """Yield how a text may show bytes."""
    yield secret.decode("latin-1")
    yield secret.hex()
    yield repr(secret)[2:-1]
    yield str(list(secret))[1:-1]


def key_texts() -> list[str]:
    """Return how a text may show the key, and what is made of it."""
    secrets = [CANARY, *hashing._pads(CANARY)]
    return [spelling for secret in secrets for spelling in spellings(secret[: len(CANARY)])]


def shows_key(text: str) -> bool:
    return any(spelling.lower() in text.lower() for spelling in key_texts())


def test_plans_and_errors_of_a_hash_do_not_show_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    frame = hashing._frame(VALUES, CANARY)
    # The search finds the key where it is: the rows have it.
    assert shows_key(str(frame.to_pydict()["inner_pad"][0].hex()))
    hashes = frame.select(frame.parse_sql_expr(hashing._HMAC))
    plans = [hashes.logical_plan(), hashes.optimized_logical_plan(), hashes.execution_plan()]
    texts = [plan.display_indent() for plan in plans]
    screen = StringIO()
    with redirect_stdout(screen), redirect_stderr(screen):
        hashes.explain(verbose=True, analyze=False)
        hashes.explain(verbose=True, analyze=True)
    texts.append(screen.getvalue())
    assert "sha256" in screen.getvalue()
    for expression in ("sha256(no_such_column || inner_pad)", "sha256(inner_pad, outer_pad)", "inner_pad + 1"):
        with pytest.raises(Exception, match=r"\w") as error:
            frame.select(frame.parse_sql_expr(expression)).collect()
        texts.append(f"{error.value!r} {error.value}")
    assert hashing.hash_values(VALUES, CANARY).null_count == 0
    texts.append(caplog.text)
    assert [text for text in texts if shows_key(text)] == []


def test_the_log_of_a_hash_does_not_show_the_key() -> None:
    command = [sys.executable, "-c", HASHES_WITH_ALL_LOGS, CANARY.hex()]
    environment = {"RUST_LOG": "trace", "RUST_BACKTRACE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert "datafusion" in done.stderr
    assert not shows_key(done.stdout + done.stderr)


def test_a_process_keeps_no_values_that_it_hashed() -> None:
    hashing.hash_values(VALUES, CANARY)
    before = pa.total_allocated_bytes()
    for number in range(20):
        hashing.hash_values(pa.array([b"%d-%d" % (number, row) for row in range(5_000)]), CANARY)
    assert pa.total_allocated_bytes() <= before
    assert hashing._context(os.getpid()).catalog().schema("public").names() == set()


def test_a_process_hashes_that_was_forked_from_one_that_did() -> None:
    subprocess.run([sys.executable, "-c", HASHES_AFTER_A_FORK], check=True, timeout=120)


@pytest.mark.parametrize(("key", "nonce", "associated", "plain", "ciphertext", "tag"), GCM)
def test_values_encrypted_together_have_the_tags_of_published_vectors(
    key: str, nonce: str, associated: str, plain: str, ciphertext: str, tag: str
) -> None:
    value = bytes.fromhex(plain)
    padded = value.ljust(-len(value) // 16 * -16, b"\xaa")
    rows = np.frombuffer(padded * 3, np.uint8).reshape(3, -1)
    nonces = np.frombuffer(bytes.fromhex(nonce) * 3, np.uint8).reshape(3, -1)
    gcm_key = GcmKey(bytes.fromhex(key), bytes.fromhex(associated))
    ciphertexts, tags = gcm_key.encrypt(rows, np.full(3, len(value)), nonces)
    assert [row.tobytes()[: len(value)].hex() for row in ciphertexts] == [ciphertext] * 3
    assert [row.tobytes().hex() for row in tags] == [tag] * 3
