"""Encrypts the values of a column under one key, each with a nonce of its own, to texts.

Short values of as many blocks are encrypted together, where there are enough of them. All others take one call each,
which gives the same texts.
"""

from base64 import urlsafe_b64encode

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.lib.stride_tricks import sliding_window_view

from headrace.writer.privacy.gcm import BLOCK_BYTES, NONCE_BYTES, Bytes, GcmKey

_TAG_BYTES = 16
# Longer values cost less by a call each.
_BLOCKS_MAX = 16
# Fewer values cost less by a call each.
_ROWS_MIN = 512
# Of so many, what is in between stays in the processor's cache.
_ROWS_MAX = 8_192

Rows = npt.NDArray[np.int64]


def encrypt_column(
    values: pa.BinaryArray, key: bytes, header: bytes, first_half: bytes, nonces: Bytes
) -> pa.StringArray:
    """Return for each value: header, and base64url of the first half, its row of `nonces`, ciphertext and tag.

    The header is authenticated. `first_half` has 12 bytes, as has each nonce. Null stays null.
    """
    column = _Column(values, key, header, first_half, nonces)
    texts = _Texts(values, column.beginning[:4])
    blocks = np.where(values.is_valid(), -(column.lengths // -BLOCK_BYTES), -1)
    is_single = blocks >= 0
    counts = np.bincount(np.clip(blocks, 0, _BLOCKS_MAX + 1), minlength=_BLOCKS_MAX + 2)
    # By numbers of blocks.
    for number in np.flatnonzero(counts[: _BLOCKS_MAX + 1] >= _ROWS_MIN):
        rows = np.flatnonzero(blocks == number)
        is_single[rows] = False
        for start in range(0, len(rows), _ROWS_MAX):
            part = rows[start : start + _ROWS_MAX]
            texts.add(part, *column.encrypt_together(part, int(number)))
    singles = np.flatnonzero(is_single)
    texts.add(singles, *column.encrypt_singly(singles))
    return texts.to_array()


class _Column:
    """Values, and what encrypts them. Texts of some rows are one buffer, with their positions and sizes in it."""

    def __init__(self, values: pa.BinaryArray, key: bytes, header: bytes, first_half: bytes, nonces: Bytes) -> None:
        self._values = values
        self._key = key
        self._header = header
        self._nonces = nonces
        # 12 bytes are 16 characters of base64.
        self.beginning = header + urlsafe_b64encode(first_half)
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
        self.lengths = np.diff(bounds)
        self._starts = bounds[:-1] - bounds[0]
        self._data = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
        self._gcm_key: GcmKey | None = None

    def encrypt_together(self, rows: Rows, blocks: int) -> tuple[Bytes, Rows, Rows]:
        """Encrypt values of as many blocks."""
        if self._gcm_key is None:
            self._gcm_key = GcmKey(self._key, self._header)
            # Behind the last value, so that a window of each begins and ends in the data.
            self._data = np.concatenate([self._data, np.zeros(_BLOCKS_MAX * BLOCK_BYTES, np.uint8)])
        lengths = self.lengths[rows]
        width = blocks * BLOCK_BYTES
        plain = np.empty((len(rows), 0), np.uint8)
        if blocks:
            plain = sliding_window_view(self._data, width)[self._starts[rows]]
        nonces = self._nonces[rows]
        ciphertexts, tags = self._gcm_key.encrypt(plain, lengths, nonces)
        # Rows of base64 have no rest where three divide their bytes.
        row_bytes = -(-(NONCE_BYTES + width + _TAG_BYTES) // 3) * 3
        sealed = np.zeros((len(rows), row_bytes), np.uint8)
        sealed[:, :NONCE_BYTES] = nonces
        sealed[:, NONCE_BYTES : NONCE_BYTES + width] = ciphertexts
        row_numbers = np.arange(len(rows))
        windows = sliding_window_view(sealed.reshape(-1), _TAG_BYTES, writeable=True)
        windows[row_numbers * row_bytes + NONCE_BYTES + lengths] = tags
        encoded = np.frombuffer(urlsafe_b64encode(sealed.data), np.uint8).reshape(len(rows), -1)
        beginning = np.frombuffer(self.beginning, np.uint8)
        texts = np.empty((len(rows), len(beginning) + encoded.shape[1]), np.uint8)
        texts[:, : len(beginning)] = beginning
        texts[:, len(beginning) :] = encoded
        sizes = len(beginning) - (NONCE_BYTES + lengths + _TAG_BYTES) * 4 // -3
        return texts.reshape(-1), row_numbers * texts.shape[1], sizes

    def encrypt_singly(self, rows: Rows) -> tuple[Bytes, Rows, Rows]:
        """Encrypt values by one call each."""
        cipher = AESGCM(self._key)
        nonces = self._nonces[rows].tobytes()
        texts = list[bytes]()
        for position, value in enumerate(self._values.take(pa.array(rows)).to_pylist()):
            nonce = nonces[position * NONCE_BYTES : (position + 1) * NONCE_BYTES]
            sealed = nonce + cipher.encrypt(nonce, value, self._header)
            texts.append(self.beginning + urlsafe_b64encode(sealed).rstrip(b"="))
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        return np.frombuffer(b"".join(texts), np.uint8), np.cumsum(sizes) - sizes, sizes


class _Texts:
    """Texts of a column in several buffers, in any order, as Arrow's views: size, first bytes, buffer, position."""

    def __init__(self, values: pa.BinaryArray, first_bytes: bytes) -> None:
        self._views = np.zeros((len(values), 4), np.int32)
        self._first_bytes = np.frombuffer(first_bytes, np.int32)[0]
        self._buffers = list[pa.Buffer]()
        self._validity: pa.Buffer | None = None
        if values.null_count:
            self._validity = pa.py_buffer(np.packbits(values.is_valid(), bitorder="little"))

    def add(self, rows: Rows, texts: Bytes, positions: Rows, sizes: Rows) -> None:
        """Take the texts of some rows."""
        self._views[rows] = np.stack(
            [sizes, np.full(len(rows), self._first_bytes), np.full(len(rows), len(self._buffers)), positions], axis=1
        )
        self._buffers.append(pa.py_buffer(texts))

    def to_array(self) -> pa.StringArray:
        """Return the texts in the order of their rows; null where none was taken."""
        buffers = [self._validity, pa.py_buffer(self._views), *self._buffers]
        return pa.Array.from_buffers(pa.string_view(), len(self._views), buffers).cast(pa.string())
