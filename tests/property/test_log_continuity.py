"""A log that is cut, restored, retained and compacted at random: what a table's marks tell of it is never wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from hypothesis import given, strategies as st

from headrace.writer.core.log_mark import LogMark, mark_of_header
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.kafka_reader.requests.epoch_ends import EpochEnd
from headrace.writer.offsets.log_check import CommittedPart, LogCheck
from headrace.writer.offsets.log_continuity import Continues, Diverges
from headrace.writer.offsets.start_decision import LogRange
from headrace.writer.table.log.snapshot import app_id, mark_names

PART = TopicPartition("clicks", 1, 0)
SOURCE = ("clicks", 0)
IDS = {"clicks": "AAAAAAAAAAAAAAAAAAAAAQ"}


@dataclass(frozen=True)
class Batch:
    base: int
    after: int
    epoch: int
    ident: int  # of what its producer sent
    is_compacted: bool = False

    @property
    def mark(self) -> LogMark:
        return mark_of_header(
            leader_epoch=self.epoch, offsets=(self.base, self.after - 1), producer=(self.ident, 0, 0),
            newest_ms=self.ident, checksum=self.ident + 10**6 * self.is_compacted, is_compacted=self.is_compacted,
            is_damaged=False,
        )  # fmt: skip


@dataclass
class Volume:
    """What a broker has of a log, with Kafka's cache of epochs. `lineage`: before retention and compaction."""

    epoch: int = 0
    lineage: list[Batch] = field(default_factory=list)
    held: dict[int, Batch] = field(default_factory=dict)  # by base; compaction and retention take from it
    start: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # epoch, first offset

    @property
    def end(self) -> int:
        return self.lineage[-1].after if self.lineage else 0

    def copy(self) -> "Volume":
        return Volume(self.epoch, list(self.lineage), dict(self.held), self.start, list(self.epochs))

    def append(self, count: int, ident: int) -> None:
        batch = Batch(self.end, self.end + count, self.epoch, ident)
        self.lineage.append(batch)
        self.held[batch.base] = batch

    def elect(self) -> None:
        self.epoch += 1
        self.epochs = [*(epoch for epoch in self.epochs if epoch[1] < self.end), (self.epoch, self.end)]

    def cut(self, batches: int) -> None:
        """Lose the last batches, as an unclean election does."""
        self.lineage = self.lineage[: max(0, len(self.lineage) - batches)]
        self.held = {base: batch for base, batch in self.held.items() if base < self.end}
        self.start = min(self.start, self.end)
        self.elect()

    def retain(self, batches: int) -> None:
        """Lose the oldest batches."""
        gone = [one for one in self.lineage if one.base >= self.start][:batches]
        self.start = gone[-1].after if gone else self.start
        self.held = {base: batch for base, batch in self.held.items() if base >= self.start}
        older = [epoch for epoch in self.epochs if epoch[1] < self.start]
        kept = [epoch for epoch in self.epochs if epoch[1] >= self.start]
        self.epochs = ([(older[-1][0], self.start)] if older and (not kept or kept[0][1] > self.start) else []) + kept

    def compact(self, chosen: int) -> None:
        """Take records out of a batch, or all of it; never of the last one, which is in the active segment."""
        bases = sorted(self.held)[:-1]
        if bases:
            base = bases[chosen % len(bases)]
            if chosen % 2:
                del self.held[base]
            else:
                self.held[base] = replace(self.held[base], is_compacted=True)

    def move(self) -> None:
        """Copy it to another broker, whose cache of epochs is made of the batches that are left."""
        starts = dict[int, int]()
        for base in sorted(self.held):
            starts.setdefault(self.held[base].epoch, base)
        self.epochs = list(starts.items())
        self.elect()

    def at(self, offset: int) -> Batch | None:
        return next((value for value in self.held.values() if value.base <= offset < value.after), None)

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Answer as Kafka's LeaderEpochFileCache.endOffsetFor does."""
        if self.epochs and self.epochs[-1][0] == epoch:
            return EpochEnd(0, epoch, self.end)
        later = [start for known, start in self.epochs if known > epoch]
        if not later:
            return EpochEnd(0, -1, -1)
        return EpochEnd(0, max((known for known, _ in self.epochs if known <= epoch), default=epoch), min(later))


@dataclass
class Questions:
    """Asks the volume."""

    volume: Volume

    def leader_epochs(self, _: Mapping[str, UUID]) -> dict[Source, int]:
        return {SOURCE: self.volume.epoch}

    def marks_before(self, offsets: Mapping[Source, int], _: Mapping[str, UUID]) -> dict[Source, LogMark]:
        there = {source: self.volume.at(offset - 1) for source, offset in offsets.items()}
        return {source: batch.mark for source, batch in there.items() if batch is not None}

    def epoch_ends(self, epochs: Mapping[Source, int]) -> dict[Source, EpochEnd]:
        return {source: self.volume.epoch_end(epoch) for source, epoch in epochs.items()}


def entry(kind: str, frontier: int, mark: LogMark | None) -> list[Any]:
    values = {app_id("events", PART): frontier}
    if mark is not None:
        values |= dict(zip(mark_names("events", PART), mark[:2], strict=True))
    txns = [{"txn": {"appId": name, "version": value}} for name, value in values.items()]
    return [{"commitInfo": {"headrace": f'{{"kind": "{kind}"}}'}}, *txns]


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4)), st.tuples(st.just("append"), st.integers(1, 4)),
    st.tuples(st.just("elect"), st.just(0)), st.tuples(st.just("cut"), st.integers(1, 6)),
    st.tuples(st.just("retain"), st.integers(1, 3)), st.tuples(st.just("compact"), st.integers(0, 9)),
    st.tuples(st.just("move"), st.just(0)), st.tuples(st.just("copy"), st.just(0)),
    st.tuples(st.just("restore"), st.booleans().map(int)),
)  # fmt: skip
QUIET = ("append", "elect", "retain", "compact", "move", "copy")


APPENDS = st.lists(st.tuples(st.just("append"), st.integers(1, 4)), min_size=1, max_size=6)


@given(
    st.lists(st.tuples(STEPS, st.booleans()), max_size=25), st.lists(STEPS, max_size=12), st.integers(0, 3),
    st.booleans(),
)  # fmt: skip
def test_a_divergence_is_never_missed_where_a_batch_tells_never_alleged_and_never_placed_too_late(
    before: list[tuple[tuple[str, int], bool]], after: list[tuple[str, int]], short: int, keeps_history: bool
) -> None:
    check_steps(before, after, short, keeps_history=keeps_history)


@given(
    st.tuples(APPENDS, APPENDS, APPENDS, APPENDS), st.lists(st.booleans(), min_size=12, max_size=12),
    st.integers(0, 1), st.integers(0, 8),
)  # fmt: skip
def test_a_restored_volume_is_never_read_on_too_late_whether_it_repeats_its_epoch_and_whatever_retention_took(
    appends: tuple[list[tuple[str, int]], ...], commits: list[bool], repeats: int, retained: int
) -> None:
    kept, lost, repeated, newer = appends
    steps = [*kept, ("copy", 0), *lost]
    before = [(step, commits[n % len(commits)] or n == len(steps) - 1) for n, step in enumerate(steps)]
    after = [("restore", repeats), *repeated, ("elect", 0), *newer, ("retain", retained)]
    check_steps(before, after, 0, keeps_history=True)


def check_steps(
    before: list[tuple[tuple[str, int], bool]], after: list[tuple[str, int]], short: int, *, keeps_history: bool
) -> None:
    """Fill a table from a log, do something to the log, and compare what is found with what was done.

    `before`: steps, and whether the table commits after each. `short`: offsets that a commit leaves unread.
    """
    volume, copy, ident = Volume(), Volume(), 0
    entries = [entry("start", 0, None)]
    frontier, mark = 0, None
    read = list[Batch]()
    repeats_epoch = False
    commits_behind = list[int]()

    def step(kind: str, number: int) -> None:
        nonlocal volume, copy, ident, repeats_epoch
        match kind:
            case "append":
                ident += 1
                volume.append(number, ident)
            case "copy":
                copy = volume.copy()
            case "restore":
                volume = copy.copy()
                # A volume that takes records under the epoch of before: no controller knows that it was restored.
                repeats_epoch = repeats_epoch or bool(number)
                if not number:
                    volume.elect()
            case "elect" | "move":
                getattr(volume, kind)()
            case _:
                getattr(volume, kind)(number)

    for (kind, number), commits in before:
        if kind in QUIET:
            step(kind, number)
        ends = max(frontier, volume.end - short)
        if commits and ends > frontier:
            frontier, batch = ends, volume.at(ends - 1)
            mark = None if batch is None else batch.mark
            mark = None if mark is None else LogMark(*mark[:2])
            entries.append(entry("batch", frontier, mark))
            if mark is not None:
                commits_behind.append(frontier)
            read = list(volume.lineage)
    for kind, number in after:
        step(kind, number)
    if mark is None:
        return
    common = next(
        (one.base for one, other in zip(read, volume.lineage, strict=False) if one != other),
        min(volume.end, read[-1].after),
    )
    truth = min(common, frontier)
    log = list(enumerate(entries if keeps_history else entries[-2:]))
    check = LogCheck("events", Questions(volume), lambda: log)
    part = CommittedPart(PART, frontier, mark, LogRange(volume.start, volume.end))
    judgement = check.judge([part], IDS)[PART]
    if isinstance(judgement, Diverges):
        assert truth < frontier, "a false alarm"
        point = check.divergence_points({PART: (part, judgement)}, IDS)[PART]
        assert point is not None or not keeps_history, "the whole history says where"
        # Of an epoch that was repeated a commit between tells that its end is none to go by.
        tells = any(
            truth < offset <= judgement.below and volume.start < offset and volume.at(offset - 1) is not None
            for offset in commits_behind[:-1]
        )
        if point is not None and (not repeats_epoch or (tells and keeps_history)):
            assert point.offset <= truth, "too late"
            assert not point.is_proven or point.offset == truth
    elif isinstance(judgement, Continues):
        assert truth == frontier, "a divergence is missed"
    elif part.holds_frontier:
        assert volume.at(frontier - 1) is None, "a batch that is there tells"
