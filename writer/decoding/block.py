"""A block of values: what it is decoded to, who decodes it, and how decoded parts of it are joined."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]


class BlockRefused(Exception):
    """The native decoder could not prove this block. Which record is to blame is not known yet."""


class DecoderUnresponsive(BlockRefused):
    """The native decoder used more processor time than the block's size can explain. Its thread is lost."""


class PartRefused(BlockRefused):
    """The native decoder could prove all values but some, which are to be decoded one by one."""

    def __init__(self, rows: pa.Table, is_suspect: Mask, unfit: Mapping[str, int]) -> None:
        """`rows`: of the values that are no suspects; `unfit`: of these, as DecodedBlock has it."""
        super().__init__("some values are not of their columns' types")
        self.rows = rows
        self.is_suspect = is_suspect
        self.unfit = unfit


@dataclass(frozen=True)
class DecodedBlock:
    """Outcome of one block: rows in table types, which of the block's values they are, and what failed.

    `positions` has the position of each row's value in the block; `failures` maps the other positions to a reason.
    `unfit`: how many members of values fit no column, by what became of them.
    """

    rows: pa.Table
    positions: pa.Int64Array
    failures: dict[int, str]
    unfit: Mapping[str, int] = field(default_factory=dict)


class BlockDecoder(Protocol):
    """Decodes a block of framed values (binary array, header included) all at once."""

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Return n rows in table types, and why a row has a value that the table cannot hold (null: it has none).

        Raises BlockRefused, where no row is proven.
        """

    def take_unfit(self) -> Mapping[str, int]:
        """Return how many members of the block that was decoded last fit no column, by what became of them."""

    def find_suspects(self, values: pa.Array, refusal: BlockRefused) -> Mask | None:
        """Return which values of a refused block are to be decoded one by one; None: it cannot be told."""


class SingleDecoder(Protocol):
    """Decodes each value (header included) by itself: the judge of what the native decoder refuses."""

    def __call__(self, values: pa.Array) -> DecodedBlock:
        """Decode each value; never raises for what a value holds."""


def drop_bad_rows(
    rows: pa.Table, reasons: pa.StringArray | None, unfit: Mapping[str, int] | None = None
) -> DecodedBlock:
    """Return the rows that have no reason, and the reasons of the others as failures."""
    unfit = unfit or {}
    positions = pa.arange(0, rows.num_rows)
    if reasons is None:
        return DecodedBlock(rows, positions, {}, unfit)
    is_good = reasons.is_null()
    # Python sees the bad rows only.
    bad_positions = positions.filter(reasons.is_valid()).to_pylist()
    failures = dict(zip(bad_positions, reasons.drop_null().to_pylist(), strict=True))
    return DecodedBlock(rows.filter(is_good), positions.filter(is_good), failures, unfit)


def concat_blocks(blocks: list[tuple[int, DecodedBlock]]) -> DecodedBlock:
    """Join what was decoded from values that begin at these positions."""
    if len(blocks) == 1:
        return blocks[0][1]
    blocks.sort(key=lambda block: block[0])
    rows = pa.concat_tables([block.rows for _, block in blocks])
    positions = pa.concat_arrays([pc.add(block.positions, start) for start, block in blocks])
    failures: dict[int, str] = {}
    for start, block in blocks:
        failures |= {start + position: reason for position, reason in block.failures.items()}
    return DecodedBlock(rows, positions, failures, _sum_unfit(block for _, block in blocks))


def merge_blocks(blocks: list[tuple[pa.Int64Array, DecodedBlock]]) -> DecodedBlock:
    """Join what was decoded from values at these positions.

    Rows of the positions 0, 2, 3 and of the position 1 become rows of 0, 1, 2, 3.
    """
    rows = pa.concat_tables([block.rows for _, block in blocks])
    positions = pa.concat_arrays([of_values.take(block.positions) for of_values, block in blocks])
    _, last_block = blocks[-1]
    # A suspect that is sound goes back to its position.
    if len(last_block.positions):
        order = pc.sort_indices(positions)
        rows = rows.take(order)
        positions = positions.take(order)
    failures: dict[int, str] = {}
    for of_values, block in blocks:
        failures |= {of_values[position].as_py(): reason for position, reason in block.failures.items()}
    return DecodedBlock(rows, positions, dict(sorted(failures.items())), _sum_unfit(block for _, block in blocks))


def _sum_unfit(blocks: Iterable[DecodedBlock]) -> dict[str, int]:
    total = Counter[str]()
    for block in blocks:
        total.update(block.unfit)
    return dict(total)
