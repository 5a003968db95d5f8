"""The protocol of a backfill source: it returns chunks, each for one commit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from writer.avro.schema_plan import SchemaPlan
from writer.commit.missing_offsets import MissingOffsets
from writer.core.errors import HeadraceError
from writer.core.offsets import OffsetRange, Span, TopicPartition
from writer.maintenance.local_pipeline import Piece


class SourceFailed(HeadraceError):
    """The source does not hold what it announced, or its records are not those of the gap. Nothing was committed."""


@dataclass(frozen=True)
class Chunk:
    """Records for one commit. Each `read` returns them from the beginning."""

    spans: Mapping[TopicPartition, Sequence[Span]]  # offsets that it settles
    read: Callable[[SchemaPlan], Iterator[Piece]]
    confirm: Callable[
        [Sequence[MissingOffsets]], None
    ]  # raises SourceFailed when an offset without a record may be a loss
    keys: Sequence[str] = ()  # columns that tell one event from another, where rows have no offset: by event time
    through: str = ""  # partition of the archive that is whole with it
    raw: bool = False  # its records are as Kafka has them, and are to be kept in the raw table
    last: bool = False  # the source has no more for this gap; the rest stays unproven

    @property
    def unplaced(self) -> bool:
        """Its rows have no offset."""
        return bool(self.keys)

    @property
    def offsets(self) -> int:
        """How many offsets it settles."""
        return sum(end - start for spans in self.spans.values() for start, end in spans)


class Source(Protocol):
    """A place that records of a gap come from."""

    @property
    def name(self) -> str:
        """How the gap record names it: kafka, mirror HOST/TOPIC, archive LOCATION."""

    def available(self, wanted: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return which of these offsets it holds, as far as it knows before reading."""

    def chunks(self, left: Callable[[], Sequence[OffsetRange]], rows_max: int) -> Iterator[Chunk]:
        """Yield chunks, oldest first. `left` says at any moment what is open. Raises SourceFailed, HeadraceError."""


def in_full(without_records: Sequence[MissingOffsets]) -> None:
    """Raise SourceFailed when an offset gave no record: for sources that know which records they have."""
    if without_records:
        one = without_records[0]
        raise SourceFailed(
            f"{one.offsets} offsets of {one.source[0]}/{one.source[1]} gave no record, such as {list(one.spans[:3])}; "
            "the source said that it has them. Nothing of the chunk was committed."
        )
