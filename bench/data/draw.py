"""Pseudo-random numbers of an event: a pure function of seed, column and position."""

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Draw:
    """Draws for the events at `positions`. The same seed, column and position give the same number, on any machine."""

    positions: Words
    seed: int

    def __len__(self) -> int:
        return len(self.positions)

    def bits(self, column: str) -> Words:
        """Draw 64 bits an event. No two positions of one column share them: the mix is a permutation."""
        salt = np.uint64((zlib.crc32(column.encode()) << 32) ^ (self.seed * 0x9E3779B1))
        return _mix(self.positions * _GOLDEN + salt)

    def below(self, column: str, limit: int) -> npt.NDArray[np.int64]:
        """Draw integers in [0, limit), limit up to 2^32."""
        high = self.bits(column) >> np.uint64(32)
        return ((high * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)

    def unit(self, column: str) -> npt.NDArray[np.float64]:
        """Draw numbers in [0, 1), each with 53 bits of its own."""
        return (self.bits(column) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def few(self, column: str, limit: int) -> npt.NDArray[np.int64]:
        """Draw integers in [0, limit), the small ones much more often, as popular things are."""
        unit = self.unit(column)
        return (unit * unit * unit * limit).astype(np.int64)

    def happens(self, column: str, share: float) -> npt.NDArray[np.bool_]:
        """Draw yes for this share of the events."""
        return self.unit(column) < share

    def group_draw(self, by: int) -> "Draw":
        """Draw alike for `by` events in a row, as those of one session do."""
        return Draw(self.positions // np.uint64(by), self.seed)

    def items(self, counts: npt.NDArray[np.int64], most: int) -> "Draw":
        """Draw for `counts[i]` items of event i, at most `most` each, one after the other."""
        starts = np.cumsum(counts) - counts
        within = np.arange(int(counts.sum())) - np.repeat(starts, counts)
        return Draw(np.repeat(self.positions * np.uint64(most), counts) + within.astype(np.uint64), self.seed)


def draw(start: int, count: int, seed: int) -> Draw:
    """Draw for the events in [start, start + count)."""
    return Draw(np.arange(start, start + count, dtype=np.uint64), seed)


def _mix(bits: Words) -> Words:
    """Scramble 64 bits without loss: the finaliser of splitmix64 (Steele, Lea, Flood: OOPSLA 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
