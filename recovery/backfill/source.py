"""The protocol of a backfill source: it returns chunks, each for one commit."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.writer.batch.task import Piece, Read
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.commit.missing_offsets import MissingOffsets
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import OffsetSet, source_name


class SourceFailed(HeadraceError):
    """The source does not hold what it announced, or its records are not those of the gap. Nothing was committed."""


# Returns for each of so many tasks what reads its records; the same several times is shared out, read by read.
Split = Callable[[int], Sequence[Iterable[Read]]]


@dataclass(frozen=True)
class Chunk:
    """Records for one commit. Each read of `split` gives its records from the beginning."""

    # Offsets that it settles.
    spans: OffsetSet
    split: Split
    # Raises SourceFailed when an offset without a record may be a loss.
    confirm: Callable[[Sequence[MissingOffsets]], None]
    # Columns that tell one event from another, where rows have no offset: by event time.
    keys: Sequence[str] = ()
    # The partition of the archive that is complete with it.
    through: str = ""
    # Its records are as Kafka has them, and are to be kept in the raw table.
    raw: bool = False
    # The source has no more for this gap; what is left stays unproven.
    last: bool = False

    def pieces(self, schemas: SchemaPlan) -> Iterator[Piece]:
        """Yield all of its records. Raises what its reads raise."""
        (reads,) = self.split(1)
        for read in reads:
            yield from read(schemas)

    @property
    def unplaced(self) -> bool:
        """Its rows have no offset."""
        return bool(self.keys)

    @property
    def offsets(self) -> int:
        """How many offsets it settles."""
        return self.spans.count


def share_reads(reads: Sequence[Read]) -> Split:
    """Return the split by which tasks take one of these reads after the other."""
    return lambda tasks: [reads] * tasks


class Source(Protocol):
    """A place that records of a gap come from."""

    @property
    def name(self) -> str:
        """How the gap record names it: kafka, mirror HOST/TOPIC, archive LOCATION."""

    def available(self, wanted: OffsetSet) -> OffsetSet:
        """Return which of these offsets it holds, as far as it knows before reading."""

    def chunks(self, left: Callable[[], OffsetSet], rows_max: int) -> Iterator[Chunk]:
        """Yield chunks, oldest first. `left` returns what is open at any moment. Raises SourceFailed, HeadraceError."""


def confirm_every_record(without_records: Sequence[MissingOffsets]) -> None:
    """Raise SourceFailed when an offset gave no record: for sources that know which records they have."""
    if without_records:
        missing = without_records[0]
        raise SourceFailed(
            f"{missing.offsets} offsets of {source_name(missing.source)} gave no record, such as "
            f"{list(missing.spans[:3])}; the source said that it has them. Nothing of the chunk was committed."
        )
