"""The protocol of a backfill source: it returns chunks, each for one commit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.writer.commit.missing_offsets import MissingOffsets
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import OffsetSet, source_name
from headrace.writer.maintenance.local_pipeline import Read


class SourceFailed(HeadraceError):
    """The source does not hold what it announced, or its records are not those of the gap. Nothing was committed."""


@dataclass(frozen=True)
class Chunk:
    """Records for one commit. Each call of `read`, and of what `split` returns, gives them from the beginning."""

    # Offsets that it settles.
    spans: OffsetSet
    read: Read
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
    # Returns what each of so many tasks reads, about as many records each; None: it is read once, and shared out.
    split: Callable[[int], Sequence[Read]] | None = None

    def reads(self, tasks: int) -> Sequence[Read]:
        """Return what each of so many tasks reads, as `RecordCommit.run_tasks` takes it."""
        if tasks == 1 or self.split is None:
            return [self.read] * tasks
        return self.split(tasks)

    @property
    def unplaced(self) -> bool:
        """Its rows have no offset."""
        return bool(self.keys)

    @property
    def offsets(self) -> int:
        """How many offsets it settles."""
        return self.spans.count


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
