"""Computes figures from measurements: events in a CPU-second, for start and steady work, and ratios of contenders.

Pure: from samples to figures.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from headrace.bench.job import PARTITIONS, SLOTS
from headrace.writer.core.errors import HeadraceError

# The share of the events that pay for starting, compiling and first calls.
WARM_FROM = 0.2
# A window with fewer marks, its first one included, gives no figure: a contender works ahead of its marks, and the
# events of one batch can then stand for the work of another.
MARKS_MIN = 3
MEGABYTE = 10**6


class BenchFailed(HeadraceError):
    """A contender did not do its work, so its figures mean nothing."""


@dataclass(frozen=True)
class Usage:
    """What a process tree has used since its start: seconds of the clock, and of processors."""

    wall_s: float
    jvm_s: float
    # All processes that are no JVM.
    python_s: float

    @property
    def cpu_s(self) -> float:
        """Processor seconds of the whole tree, user and system."""
        return self.jvm_s + self.python_s

    def since(self, earlier: "Usage") -> "Usage":
        """Return what was used after `earlier`."""
        return Usage(self.wall_s - earlier.wall_s, self.jvm_s - earlier.jvm_s, self.python_s - earlier.python_s)


NOTHING = Usage(0, 0, 0)


@dataclass(frozen=True)
class BatchMark:
    """A finished batch: events carried up to here, and what all of them took; steps are those of the batch alone."""

    events: int
    usage: Usage
    # The processor seconds of the JVM's threads, by what they do.
    threads: Mapping[str, float] = field(default_factory=dict)
    # The processor seconds of each step.
    steps: Mapping[str, float] = field(default_factory=dict)
    # The duration from the plan to the commit; None where the contender does not tell it.
    batch_s: float | None = None


@dataclass(frozen=True)
class WrittenTable:
    """What lies in the table afterwards, counted from its files."""

    files: int
    bytes: int
    rows: int


@dataclass(frozen=True)
class Run:
    """One run of one contender, as measured."""

    contender: str
    repeat: int
    events: int
    value_bytes: int
    marks: tuple[BatchMark, ...]
    end: Usage
    rss_peak_bytes: int
    written: WrittenTable
    partitions: int = PARTITIONS
    # The share of the events that come before the warm part.
    warm_from: float = WARM_FROM
    # Tasks that run at once.
    slots: int = SLOTS

    def __post_init__(self) -> None:
        carried = self.marks[-1].events if self.marks else 0
        if carried != self.events or self.written.rows != self.events:
            raise BenchFailed(
                f"{self.contender} read {carried:,} of {self.events:,} events and its table holds "
                f"{self.written.rows:,} rows: a run that loses or doubles is not counted"
            )


@dataclass(frozen=True)
class RunSection:
    """Some events of a run, and what they took."""

    events: int
    bytes: float
    usage: Usage
    slots: int

    @property
    def busy_share(self) -> float:
        """Share of the slots that worked: processor seconds of the process tree by seconds of the clock times slots."""
        return self.usage.cpu_s / (self.usage.wall_s * self.slots)

    @property
    def events_per_cpu_s(self) -> float:
        """Events carried by one processor second."""
        return self.events / self.usage.cpu_s

    @property
    def megabytes_per_cpu_s(self) -> float:
        """Megabytes of values carried by one processor second."""
        return self.bytes / MEGABYTE / self.usage.cpu_s

    @property
    def events_per_s(self) -> float:
        """Events carried in one second of the clock."""
        return self.events / self.usage.wall_s

    @property
    def jvm_share(self) -> float:
        """Share of the JVM in the processor seconds."""
        return self.usage.jvm_s / self.usage.cpu_s


def warm_marks(run: Run) -> tuple[BatchMark, ...]:
    """Return the marks of the steady work: the first one at `warm_from` of the events or more, and all later ones."""
    return tuple(mark for mark in run.marks if mark.events >= run.warm_from * run.events)


def has_warm_window(run: Run) -> bool:
    """Return whether the steady work has enough marks for a figure."""
    return len(warm_marks(run)) >= MARKS_MIN


def warm(run: Run) -> RunSection:
    """Return the steady work: from the first mark at `warm_from` of the events or more, to the last mark.

    Raises BenchFailed when it has too few marks.
    """
    marks = warm_marks(run)
    if len(marks) < MARKS_MIN:
        raise BenchFailed(
            f"the warm window of {run.contender} is too short: from {run.warm_from:.0%} of {run.events:,} events on it "
            f"has {len(marks)} marks, and {MARKS_MIN} are needed. Take more events, or measure from a smaller share"
        )
    first = marks[0]
    last = marks[-1]
    return _section(run, last.events - first.events, last.usage.since(first.usage))


def cold(run: Run) -> RunSection:
    """Return the beginning: from the start of the process to its first finished batch."""
    first = run.marks[0]
    return _section(run, first.events, first.usage)


def whole(run: Run) -> RunSection:
    """Return everything: from the start of the process to the end of the last one of its tree."""
    return _section(run, run.events, run.end)


def parts(run: Run) -> dict[str, float]:
    """Return the microseconds of processor per warm event: of the JVM by what its threads do, of Python by step.

    Raises BenchFailed when the warm window is too short.
    """
    steady = warm(run)
    first, *later = warm_marks(run)
    jvm = {f"JVM, {duty}": used - first.threads.get(duty, 0) for duty, used in later[-1].threads.items()}
    steps: Counter[str] = Counter()
    for mark in later:
        steps.update(mark.steps)
    python = {f"Python, {step}": used for step, used in steps.items()}
    remainder = {
        "JVM, ended threads": steady.usage.jvm_s - sum(jvm.values()),
        "Python, outside the steps": steady.usage.python_s - sum(python.values()),
    }
    return {part: used / steady.events * 1e6 for part, used in (jvm | python | remainder).items()}


def _section(run: Run, events: int, usage: Usage) -> RunSection:
    return RunSection(events, run.value_bytes * events / run.events, usage, run.slots)


@dataclass(frozen=True)
class Spread:
    """The median of some repeats, and the least and the most of them."""

    median: float
    least: float
    most: float

    @property
    def share(self) -> float:
        """Half the distance from least to most, as a share of the median."""
        return (self.most - self.least) / 2 / self.median


def spread(values: Sequence[float]) -> Spread:
    """Summarise repeats; there must be one."""
    return Spread(median(values), min(values), max(values))


def ratio(runs: Sequence[Run], contender: str, other: str, section: Callable[[Run], RunSection] = warm) -> Spread:
    """Return how many times the events per processor second of `other` `contender` carries, in a section of the runs.

    Runs of the same repeat are compared, as they ran one after the other on the same machine in the same mood.
    Raises BenchFailed when a warm window is too short.
    """
    compared = [run for run in runs if run.contender in (contender, other)]
    carried = {(run.contender, run.repeat): section(run).events_per_cpu_s for run in compared}
    repeats = sorted({run.repeat for run in compared})
    return spread([carried[contender, repeat] / carried[other, repeat] for repeat in repeats])


@dataclass(frozen=True)
class Summary:
    """All repeats of one contender."""

    contender: str
    slots: int
    # The marks of the warm window, in the repeat that has the fewest.
    warm_marks: int
    # There are too few of them, so there is no warm figure.
    warm_window_is_too_short: bool
    warm_busy_share: Spread | None
    warm_events_per_cpu_s: Spread | None
    warm_megabytes_per_cpu_s: Spread | None
    warm_events_per_s: Spread | None
    warm_jvm_share: Spread | None
    cold_events_per_cpu_s: Spread
    whole_events_per_cpu_s: Spread
    whole_events_per_s: Spread
    whole_s: Spread
    rss_peak_bytes: Spread
    files: Spread
    bytes: Spread


def summary(runs: Sequence[Run], contender: str) -> Summary:
    """Summarise the repeats of a contender; there must be one."""
    mine = [run for run in runs if run.contender == contender]
    is_short = not all(map(has_warm_window, mine))
    steady = [] if is_short else [warm(run) for run in mine]
    return Summary(
        contender,
        slots=mine[0].slots,
        warm_marks=min(len(warm_marks(run)) for run in mine),
        warm_window_is_too_short=is_short,
        warm_busy_share=_spread_of([stretch.busy_share for stretch in steady]),
        warm_events_per_cpu_s=_spread_of([stretch.events_per_cpu_s for stretch in steady]),
        warm_megabytes_per_cpu_s=_spread_of([stretch.megabytes_per_cpu_s for stretch in steady]),
        warm_events_per_s=_spread_of([stretch.events_per_s for stretch in steady]),
        warm_jvm_share=_spread_of([stretch.jvm_share for stretch in steady]),
        cold_events_per_cpu_s=spread([cold(run).events_per_cpu_s for run in mine]),
        whole_events_per_cpu_s=spread([whole(run).events_per_cpu_s for run in mine]),
        whole_events_per_s=spread([whole(run).events_per_s for run in mine]),
        whole_s=spread([run.end.wall_s for run in mine]),
        rss_peak_bytes=spread([run.rss_peak_bytes for run in mine]),
        files=spread([run.written.files for run in mine]),
        bytes=spread([run.written.bytes for run in mine]),
    )


def _spread_of(values: Sequence[float]) -> Spread | None:
    return spread(values) if values else None


def short_windows(runs: Sequence[Run]) -> dict[str, int]:
    """Return the contenders whose warm window has too few marks, with the fewest marks of their repeats."""
    summaries = [summary(runs, name) for name in contenders_of(runs)]
    return {each.contender: each.warm_marks for each in summaries if each.warm_window_is_too_short}


@dataclass(frozen=True)
class Cost:
    """What a topic took a contender from the start of its process to the end, over all repeats."""

    contender: str
    partitions: int
    events: int
    whole_s: Spread
    # All batches without start and end of the process; None where the contender does not tell it.
    batches_s: Spread | None
    cpu_s: Spread
    files: Spread

    @property
    def events_per_partition(self) -> int:
        """Events of one partition, on the mean."""
        return round(self.events / self.partitions)


def costs(runs: Sequence[Run]) -> list[Cost]:
    """Return what each topic took each contender, in the order in which they ran."""
    runs_by_topic: dict[tuple[int, int, str], list[Run]] = {}
    for run in runs:
        runs_by_topic.setdefault((run.partitions, run.events, run.contender), []).append(run)
    return [
        Cost(
            contender,
            partitions,
            events,
            whole_s=spread([run.end.wall_s for run in mine]),
            batches_s=_batches_s(mine),
            cpu_s=spread([run.end.cpu_s for run in mine]),
            files=spread([run.written.files for run in mine]),
        )
        for (partitions, events, contender), mine in runs_by_topic.items()
    ]


def _batches_s(runs: Sequence[Run]) -> Spread | None:
    batch_seconds = [[mark.batch_s for mark in run.marks if mark.batch_s is not None] for run in runs]
    if all(batch_seconds):
        return spread([sum(seconds) for seconds in batch_seconds])
    return None


def contenders_of(runs: Sequence[Run]) -> list[str]:
    """Return the names of the contenders, in the order in which they ran."""
    return list(dict.fromkeys(run.contender for run in runs))


def ratios(runs: Sequence[Run], section: Callable[[Run], RunSection] = warm) -> dict[str, Spread | None]:
    """Return how the first contender compares with each of the others, by their names, in a section of the runs.

    None where the warm window of one of the two is too short.
    """
    first, *others = contenders_of(runs)
    short = short_windows(runs) if section is warm else {}
    return {other: None if {first, other} & set(short) else ratio(runs, first, other, section) for other in others}
