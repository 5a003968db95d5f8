"""The mark of a log: what it is known by where a table ends."""

import hashlib
import struct
from typing import NamedTuple

from headrace.writer.core.offsets import Span

# Parts of a mark's fingerprint.
_SHAPE_BITS = 31
_CONTENT_BITS = 32


class LogMark(NamedTuple):
    """What a log is known by: the batch that holds the last record before an offset.

    The epoch of the leader that appended it does not do alone: a volume that was restored repeats its epochs.
    The upper 31 bits of the fingerprint are of what compaction keeps of a batch, its shape: first and last offset,
    producer, first sequence number. The lower 32 bits are of the newest timestamp and the checksum of its records.
    """

    leader_epoch: int
    fingerprint: int
    # Compaction took records out of it, or wrote it anew: its checksum says nothing.
    is_compacted: bool = False
    # Its checksum does not fit: it may be the batch of an earlier mark, but it is no evidence of another batch.
    is_damaged: bool = False

    def contradicts(self, earlier: "LogMark") -> bool:
        """Return whether this batch shows that the log is not the one of an earlier mark."""
        return not self.is_damaged and not self.continues(earlier)

    def continues(self, earlier: "LogMark") -> bool:
        """Return whether this batch, as the log has it now, is the one of an earlier mark."""
        if self.leader_epoch != earlier.leader_epoch or self.shape != earlier.shape:
            return False
        return self.is_compacted or earlier.is_compacted or self.fingerprint == earlier.fingerprint

    @property
    def shape(self) -> int:
        """The part of the fingerprint that compaction leaves as it is."""
        return self.fingerprint >> _CONTENT_BITS


def mark_of_header(
    *,
    leader_epoch: int,
    offsets: Span,
    producer: tuple[int, int, int],
    newest_ms: int,
    checksum: int,
    is_compacted: bool,
    is_damaged: bool,
) -> LogMark:
    """Make a mark of the header of a record batch.

    `offsets`: the first and the last; `producer`: id, epoch and first sequence number, -1 each where there is none.
    """
    shape = _bits(struct.pack(">qqqqq", *offsets, *producer), _SHAPE_BITS)
    content = _bits(struct.pack(">qq", newest_ms, checksum), _CONTENT_BITS)
    return LogMark(leader_epoch, shape << _CONTENT_BITS | content, is_compacted, is_damaged)


def _bits(data: bytes, count: int) -> int:
    """Return the first bits of the SHA-256 of some bytes."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> (64 - count)
