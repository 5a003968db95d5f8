"""HMAC-SHA-256 of Arrow columns, as 64 lower-case hexadecimal digits.

HMAC(K, v) = H((K ⊕ opad) ‖ H((K ⊕ ipad) ‖ v)) (RFC 2104; test vectors: RFC 4231). DataFusion computes both digests of a
column at once; the key stands in columns, never in the text of a query, which an error would show.
"""

import hmac
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
_DIGEST_BYTES = 32
# Values that Python hashes sooner than a query begins.
_PYTHON_VALUES_MAX = 256
# Of so many values, a smaller share is different where at most half of 2^16 are.
_SAMPLE_SIZE = 4_096
_DISTINCT_SHARE_MAX = 0.94
# Of a query.
_QUERY_VALUES_MAX = 1 << 18


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
        digests = [None if value is None else hmac.digest(key, value, "sha256").hex() for value in values.to_pylist()]
        return pa.array(digests, pa.string())
    parts = (values.slice(start, _QUERY_VALUES_MAX) for start in range(0, len(values), _QUERY_VALUES_MAX))
    return pa.concat_arrays([_hash_by_query(part, key) for part in parts])


def _hash_by_query(values: pa.BinaryArray, key: bytes) -> pa.StringArray:
    """Hash a column by two queries, of the inner and of the outer block.

    Values "a", null, "b" → HMAC(K, "a"), null, HMAC(K, "b"): the inner digests are of ipad‖a, ipad‖(empty), ipad‖b, the
    outer ones of opad‖digest, and the null is put back at last.
    """
    short_key = key
    if len(key) > _BLOCK_BYTES:
        short_key = sha256(key).digest()
    block = short_key.ljust(_BLOCK_BYTES, b"\0")
    inner_pad = bytes(byte ^ 0x36 for byte in block)
    outer_pad = bytes(byte ^ 0x5C for byte in block)
    filled = values
    if values.null_count:
        filled = values.fill_null(b"")
    inner_blocks = pc.binary_join_element_wise(pa.scalar(inner_pad, pa.binary()), filled, b"")
    inner_digests = _query("sha256(v)", inner_blocks)
    outer_bytes = np.empty((len(values), _BLOCK_BYTES + _DIGEST_BYTES), np.uint8)
    outer_bytes[:, :_BLOCK_BYTES] = np.frombuffer(outer_pad, np.uint8)
    outer_bytes[:, _BLOCK_BYTES:] = _digests(inner_digests)
    offsets = np.arange(len(values) + 1, dtype=np.int32) * outer_bytes.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(outer_bytes)]
    outer_blocks = pa.Array.from_buffers(pa.binary(), len(values), buffers)
    hashes = _query("encode(sha256(v), 'hex')", outer_blocks)
    if not values.null_count:
        return hashes
    return pc.if_else(values.is_valid(), hashes, pa.scalar(None, pa.string()))


def _digests(values: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.uint8]]:
    start = values.offset * _DIGEST_BYTES
    data = np.frombuffer(values.buffers()[2], np.uint8)[start : start + len(values) * _DIGEST_BYTES]
    return data.reshape(-1, _DIGEST_BYTES)


@lru_cache(maxsize=1)
def _context(_process: int) -> Any:
    # Tasks import it anyway, for the decoder.
    from datafusion import SessionConfig, SessionContext

    return SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(_QUERY_VALUES_MAX))


def _query(expression: str, values: pa.BinaryArray) -> pa.Array:
    """Evaluate an expression of `v` on each value, in order."""
    # DataFusion's threads do not survive a fork.
    context = _context(os.getpid())
    frame = context.from_arrow(pa.table({"v": values}))
    results = frame.select(frame.parse_sql_expr(expression)).collect()
    return contiguous(pa.Table.from_batches(results).column(0))
