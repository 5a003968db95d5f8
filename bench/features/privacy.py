"""What privacy costs: CPU time per event of a task, from values in memory to Parquet files, without and with policies.

And what a value costs that producers encrypted, and one that is hashed or encrypted here.
By itself: python -m headrace.bench.features.privacy [EVENTS]
"""

import os
import sys
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

from headrace.bench.features.specs import batches, enter_worker_environment, run_task
from headrace.writer.commit.privacy import primary_keys
from headrace.writer.privacy.encryption import encrypt_values
from headrace.writer.privacy.field_decryption import ALGORITHMS, DataKey, Decryption, EncryptedFields, Kek
from headrace.writer.privacy.hashing import hash_values
from headrace.writer.privacy.keyring import Keyring, KeyringPlace, KeySource, WrapSource, write_keyring
from headrace.writer.privacy.policy import Action, Policies
from headrace.writer.privacy.protected_schema import Privacy

_ROUNDS = 5
# Of a column that is protected by itself.
_COLUMN_VALUES = 10_000
_COLUMN_ROUNDS = 21
_HASH = Action("hash")
_ENCRYPT = Action("encrypt")
POLICIES: Mapping[str, Mapping[str, Action]] = {
    "none": {},
    "drop 3 columns": dict.fromkeys(("user_id", "session_id", "city"), Action("drop")),
    "mask 1 column": {"user_id": Action("mask", 4)},
    "hash 1 column, 50 M values": {"user_id": _HASH},
    "hash 1 column, few values": {"city": _HASH},
    "hash 3 columns": dict.fromkeys(("user_id", "session_id", "city"), _HASH),
    "encrypt 1 column": {"user_id": _ENCRYPT},
}


def rounds(events: int) -> Iterator[tuple[str, float, float]]:
    """Yield for each set of policies the medians of some rounds, which take turns."""
    records = batches(events)
    times = dict[str, list[tuple[float, float]]]()
    with tempfile.TemporaryDirectory() as folder:
        source = KeySource(KeyringPlace(str(Path(folder) / "keys.json")))
        write_keyring(source, Keyring().with_new("hash").with_new("encrypt"))
        keys = primary_keys(source)
        for _ in range(_ROUNDS):
            for name, fields in POLICIES.items():
                privacy = None
                if fields:
                    privacy = Privacy(Policies(fields=tuple(fields.items())), keys)
                times.setdefault(name, []).append(run_task(records, ("decode",), privacy=privacy))
    for name, samples in times.items():
        yield name, median(task for task, _ in samples), median(step for _, step in samples)


def columns() -> Iterator[tuple[str, float, float]]:
    """Yield what a value of a column costs, in ns of CPU time: median and best of some rounds."""
    key = os.urandom(32)
    differ = pa.array([b"user-%010d" % number for number in range(_COLUMN_VALUES)])
    repeat = pa.array([b"user-%010d" % (number % 100) for number in range(_COLUMN_VALUES)])
    steps: Mapping[str, Callable[[], object]] = {
        "hash, values differ": partial(hash_values, differ, key),
        "hash, 100 values": partial(hash_values, repeat, key),
        "encrypt": partial(encrypt_values, differ, "k1", key),
    }
    for name, step in steps.items():
        times_ns = list[float]()
        for _ in range(_COLUMN_ROUNDS):
            began_s = time.process_time()
            step()
            times_ns.append((time.process_time() - began_s) / _COLUMN_VALUES * 1e9)
        yield name, median(times_ns), min(times_ns)


class PlainKeyWrap:
    """A KMS that encrypts nothing."""

    def unwrap(self, text: str, _: str) -> bytes:
        """Return the key."""
        return b64decode(text)


def decryptions(values: int) -> Iterator[tuple[str, float]]:
    """Yield for each algorithm the CPU time, in ns, of a text of 16 characters that producers encrypted."""
    kek = Kek("bench", "bench", "bench", WrapSource(type="headrace.bench.features.privacy:PlainKeyWrap"))
    for algorithm, (size, tag) in ALGORITHMS.items():
        key = os.urandom(size)
        plain = [f"{number:016d}".encode() for number in range(values)]
        wrapped = DataKey("bench", 1, b64encode(bytes([tag, size]) + key).decode())
        rule = EncryptedFields((("x",),), kek, algorithm, False, ("bench",), (wrapped,))
        nonces = [b"" if size == ALGORITHMS["AES256_SIV"][0] else os.urandom(12) for _ in plain]
        encrypted = [
            n + (AESGCM(key).encrypt(n, value, None) if n else AESSIV(key).encrypt(value, [b""]))
            for n, value in zip(nonces, plain, strict=True)
        ]
        rows = pa.table({"x": pa.array([b64encode(value).decode() for value in encrypted])})
        times_ns = list[float]()
        for _ in range(_ROUNDS):
            began_s = time.process_time()
            assert not Decryption((rule,)).decrypt(rows).failures
            times_ns.append((time.process_time() - began_s) / values * 1e9)
        yield algorithm, min(times_ns)


if __name__ == "__main__":
    enter_worker_environment(__spec__.name)
    print("| a value that differs from the others | ns |\n| --- | ---: |")
    for name, ns in decryptions(100_000):
        print(f"| {name} | {ns:,.0f} |")
    print(f"| a value of a column of {_COLUMN_VALUES:,} | ns, median | ns, best |\n| --- | ---: | ---: |")
    for name, median_ns, best_ns in columns():
        print(f"| {name} | {median_ns:,.0f} | {best_ns:,.0f} |")
    print("| policies over 200B | ns per event of decode and protect | ns per event of the task | to none |")
    print("| --- | ---: | ---: | ---: |")
    none_ns: float | None = None
    for name, task_ns, step_ns in rounds(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000):
        none_ns = none_ns or task_ns
        print(f"| {name} | {step_ns:,.0f} | {task_ns:,.0f} | {task_ns / none_ns:.2f} |")
