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

from bucketers.arrow import contiguous

_BLOCK_BYTES, _DIGEST_BYTES = 64, 32  # of SHA-256
_FEW = 256  # values that Python hashes sooner than a query begins
_SAMPLE, _NEW_MAX = 4_096, 0.94  # of so many values, fewer are different where at most half of 2^16 are
_VALUES_MAX = 1 << 18  # of a query


def hashed(values: pa.BinaryArray, key: bytes) -> pa.StringArray:
    """Return the HMAC of each value; null stays null."""
    if not repeat(values):
        return _hashed(values, key)
    coded = values.dictionary_encode()
    return _hashed(coded.dictionary, key).take(coded.indices)


def repeat(values: pa.Array) -> bool:
    """Return whether values repeat so much that finding the distinct ones pays."""
    if len(values) <= _SAMPLE:
        return False
    sample = values.take(pa.array(np.arange(0, len(values), len(values) // _SAMPLE)))
    return len(pc.unique(sample)) < _NEW_MAX * len(sample)


def _hashed(values: pa.BinaryArray, key: bytes) -> pa.StringArray:
    if len(values) <= _FEW:
        return pa.array([None if v is None else hmac.digest(key, v, "sha256").hex() for v in values.to_pylist()],
                        pa.string())  # fmt: skip
    parts = (values.slice(at, _VALUES_MAX) for at in range(0, len(values), _VALUES_MAX))
    return pa.concat_arrays([_by_query(part, key) for part in parts])


def _by_query(values: pa.BinaryArray, key: bytes) -> pa.StringArray:
    block = (sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
    whole = values.fill_null(b"") if values.null_count else values
    first = _query("sha256(v)", pc.binary_join_element_wise(pa.scalar(inner, pa.binary()), whole, b""))
    second = np.empty((len(values), _BLOCK_BYTES + _DIGEST_BYTES), np.uint8)
    second[:, :_BLOCK_BYTES] = np.frombuffer(outer, np.uint8)
    second[:, _BLOCK_BYTES:] = _digests(first)
    ends = np.arange(len(values) + 1, dtype=np.int32) * second.shape[1]
    blocks = pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(second)])
    found = _query("encode(sha256(v), 'hex')", blocks)
    return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.string())) if values.null_count else found


def _digests(values: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.uint8]]:
    start = values.offset * _DIGEST_BYTES
    data = np.frombuffer(values.buffers()[2], np.uint8)[start : start + len(values) * _DIGEST_BYTES]
    return data.reshape(-1, _DIGEST_BYTES)


@lru_cache(maxsize=1)
def _context(_process: int) -> Any:
    from datafusion import SessionConfig, SessionContext  # imported by tasks anyway, for the decoder

    return SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(_VALUES_MAX))


def _query(expression: str, values: pa.BinaryArray) -> pa.Array:
    """Evaluate an expression of `v` on each value, in order."""
    context = _context(os.getpid())  # DataFusion's threads do not survive a fork
    frame = context.from_arrow(pa.table({"v": values}))
    return contiguous(pa.Table.from_batches(frame.select(frame.parse_sql_expr(expression)).collect()).column(0))
