"""HMAC-SHA-256 of Arrow columns, as 64 lower-case hexadecimal digits.

HMAC(K, v) = H((K ⊕ opad) ‖ H((K ⊕ ipad) ‖ v)) (RFC 2104; test vectors: RFC 4231). DataFusion computes both digests of a
column in one query. What is made of the key stands in columns, never in the text of a query, which an error would show.
"""

import os
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous

# Of SHA-256.
_BLOCK_BYTES = 64
# Values that Python hashes sooner than a query begins.
_PYTHON_VALUES_MAX = 1_024
# Of so many values, a smaller share is different where at most half of 2^16 are.
_SAMPLE_SIZE = 4_096
_DISTINCT_SHARE_MAX = 0.94
# Rows of a batch of a query: what is in between stays in the processor's cache.
_BATCH_ROWS = 4_096
_KEYS_CACHED = 8
_HMAC = "encode(sha256(outer_pad || sha256(inner_pad || value)), 'hex')"


def hash_values(values: pa.BinaryArray, key: bytes) -> pa.StringArray:
    """Return the HMAC of each value; null stays null."""
    if not has_repeats(values):
        return _hash_each(values, key)
    encoded = values.dictionary_encode()
    return _hash_each(encoded.dictionary, key).take(encoded.indices)


def has_repeats(values: pa.Array) -> bool:
    """Return whether values repeat so much that finding the distinct ones pays."""
    if len(values) <= _SAMPLE_SIZE:
        return False
    sample = values.take(pa.array(np.arange(0, len(values), len(values) // _SAMPLE_SIZE)))
    return len(pc.unique(sample)) < _DISTINCT_SHARE_MAX * len(sample)


def _hash_each(values: pa.BinaryArray, key: bytes) -> pa.StringArray:
    if len(values) <= _PYTHON_VALUES_MAX:
        return _hash_singly(values, key)
    return _hash_by_query(values, key)


def _hash_singly(values: pa.BinaryArray, key: bytes) -> pa.StringArray:
    """Hash values from copies of the states behind the pads, which takes a third of the time of `hmac.digest`."""
    inner_state, outer_state = map(sha256, _pads(key))
    hashes = list[str | None]()
    for value in values.to_pylist():
        if value is None:
            hashes.append(None)
            continue
        inner = inner_state.copy()
        inner.update(value)
        outer = outer_state.copy()
        outer.update(inner.digest())
        hashes.append(outer.hexdigest())
    return pa.array(hashes, pa.string())


def _hash_by_query(values: pa.BinaryArray, key: bytes) -> pa.StringArray:
    frame = _frame(values, key)
    results = frame.select(frame.parse_sql_expr(_HMAC)).collect()
    return contiguous(pa.Table.from_batches(results).column(0))


def _frame(values: pa.BinaryArray, key: bytes) -> Any:
    """Return a DataFrame of values and pads. Its batches have the same bytes of the pads."""
    inner_pads, outer_pads = _pad_columns(key)
    batches = list[pa.RecordBatch]()
    for start in range(0, len(values), _BATCH_ROWS):
        part = values.slice(start, _BATCH_ROWS)
        pads = (inner_pads.slice(0, len(part)), outer_pads.slice(0, len(part)))
        batches.append(pa.record_batch([*pads, part], names=["inner_pad", "outer_pad", "value"]))
    # DataFusion's threads do not survive a fork. Its `from_arrow` would keep the rows for good, as a table with a name.
    return _context(os.getpid()).read_batches(batches)


def _pads(key: bytes) -> tuple[bytes, bytes]:
    """Return the inner and the outer block of a key."""
    short_key = key
    if len(key) > _BLOCK_BYTES:
        short_key = sha256(key).digest()
    block = short_key.ljust(_BLOCK_BYTES, b"\0")
    return bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)


@lru_cache(maxsize=_KEYS_CACHED)
def _pad_columns(key: bytes) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Return the inner and the outer block, each in all rows of a batch."""
    inner_pad, outer_pad = _pads(key)
    return pa.repeat(pa.scalar(inner_pad), _BATCH_ROWS), pa.repeat(pa.scalar(outer_pad), _BATCH_ROWS)


@lru_cache(maxsize=1)
def _context(_process: int) -> Any:
    # Tasks import it anyway, for the decoder.
    from datafusion import SessionConfig, SessionContext

    return SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(_BATCH_ROWS))
