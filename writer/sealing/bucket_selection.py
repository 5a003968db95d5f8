"""The buckets that a text names: one, those of a day or of an hour, or those from one to another.

Every command that takes buckets reads them with `parse_buckets`, so that they are spelled alike everywhere.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headrace import bucketers
from headrace.bucketers import Bucketer, Composite, EventTime, TimeBucketer
from headrace.writer.batch.staging.bucket_folders import hive_value
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketKey
from headrace.writer.sealing.manifest import bucket_path

Interval = tuple[datetime, datetime]

_CLOCK = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2})(?:[:-](\d{2}))?(?:[:-](\d{2}))?([bc]?))?")
_EXAMPLE = datetime(2026, 11, 20, 5, tzinfo=UTC)
_EXAMPLE_END = _EXAMPLE + timedelta(hours=4)
_RANGE = ".."
# Stretches of a clock that a text may name, the longest first.
_CLOCK_WIDTHS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1))
# Of labels of a time that the clock shows once more.
_REPEAT_SUFFIXES = ("b", "c")
_LAST_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class TimeSlot:
    """A bucket by the columns that a selection and the time give it, whether or not it has rows."""

    columns: tuple[str, ...]
    values: BucketKey
    interval: Interval | None

    @property
    def name(self) -> str:
        """Its folders, of the columns that are given."""
        return bucket_path(self.columns, self.values)


@dataclass(frozen=True)
class BucketSelection:
    """The buckets of a table that a text names."""

    text: str
    bucketer: Bucketer
    # By the index of their columns; every other column may hold anything.
    values: Mapping[int, str | None]
    # Buckets that begin in it are meant; None: `values` say all.
    span: Interval | None = None

    @property
    def key(self) -> BucketKey | None:
        """The one bucket that is named; None where it may be several."""
        if len(self.values) < len(self.bucketer.columns):
            return None
        return tuple(self.values[index] for index in range(len(self.bucketer.columns)))

    @property
    def name(self) -> str:
        """The folders of the bucket, or the text where it may be several."""
        if self.key is None:
            return self.text.strip()
        return bucket_path(self.bucketer.columns, self.key)

    def contains(self, key: BucketKey) -> bool:
        """Return whether a bucket is meant."""
        if any(key[index] != value for index, value in self.values.items()):
            return False
        if self.span is None:
            return True
        interval = bucketers.interval(self.bucketer, key)
        return interval is not None and self.span[0] <= interval[0] < self.span[1]

    def choose(self, keys: Iterable[BucketKey]) -> list[BucketKey]:
        """Return the buckets among these that are meant, the earliest first."""
        return sorted((key for key in keys if self.contains(key)), key=self._order)

    def named_among(self, keys: Iterable[BucketKey]) -> list[BucketKey]:
        """Return the one bucket that is named, whether or not it is among these, or else those that are meant."""
        if self.key is not None:
            return [self.key]
        return self.choose(keys)

    def slots(self, after: datetime | None) -> Iterator[TimeSlot]:
        """Yield the buckets that end after an instant, each once, whether or not they have rows."""
        if self.span is None:
            yield self._slot(self.values, self._interval_of_key())
            return
        part = _time_part(self.bucketer)
        assert part is not None, "only a table that goes by time has a span"
        start = self.span[0]
        if after is not None:
            start = max(start, after)
        for part_values, interval in part.buckets(start, self.span[1]):
            if interval[0] >= self.span[0]:
                yield self._slot({**self.values, **part.by_index(part_values)}, interval)

    def _slot(self, values: Mapping[int, str | None], interval: Interval | None) -> TimeSlot:
        indexes = sorted(values)
        columns = tuple(self.bucketer.columns[index] for index in indexes)
        return TimeSlot(columns, tuple(values[index] for index in indexes), interval)

    def _interval_of_key(self) -> Interval | None:
        part = _time_part(self.bucketer)
        if part is None:
            return None
        return bucketers.interval(part.bucketer, [self.values[index] for index in part.indexes])

    def _order(self, key: BucketKey) -> tuple[datetime, tuple[str, ...]]:
        interval = bucketers.interval(self.bucketer, key)
        start = _LAST_TIME
        if interval is not None:
            start = interval[0]
        return start, tuple(map(str, key))


def parse_buckets(text: str, bucketer: Bucketer) -> BucketSelection:
    """Return the buckets that a text names. Raises ConfigError with how buckets of this table are named.

    A bucket is `hour=2026-11-20T05`, `2026-11-20T05`, `2026-11-20 05:00`, or `2026-11-20T05:00Z`, the instant at which
    it begins. A day (`2026-11-20`), an hour or a minute that is longer than a bucket is all buckets that begin in it.
    `A..B` is all from A to B, both included. Of several columns, all stand with slashes between, or the time alone,
    which is every bucket of that time.
    """
    return _Parser(text, bucketer).parse()


def choose_buckets(keys: Iterable[BucketKey], selections: Sequence[BucketSelection]) -> list[BucketKey]:
    """Return the buckets among these that any selection means; all without a selection."""
    return [key for key in keys if not selections or any(selection.contains(key) for selection in selections)]


@dataclass(frozen=True)
class _TimePart:
    """The part of a bucketer that goes by time, and which columns are its own."""

    bucketer: Bucketer
    first_index: int

    @property
    def indexes(self) -> range:
        return range(self.first_index, self.first_index + len(self.bucketer.columns))

    @property
    def zone(self) -> str:
        return str(getattr(self.bucketer, "zone", "UTC"))

    def by_index(self, values: BucketKey) -> dict[int, str | None]:
        return dict(zip(self.indexes, values, strict=True))

    def interval_of(self, label: str) -> Interval | None:
        """Return the interval of a label; None where it is none, or more columns than one go by time."""
        if len(self.bucketer.columns) > 1:
            return None
        return bucketers.interval(self.bucketer, (label,))

    def bucket_at(self, instant: datetime) -> tuple[BucketKey, Interval] | None:
        """Return the bucket of an instant and its interval."""
        rows = pa.table({"x": [0]})
        buckets = self.bucketer.assign(rows, pa.array([instant], pa.timestamp("us", "UTC")))
        interval = bucketers.interval(self.bucketer, buckets.values[0])
        if interval is None:
            return None
        return buckets.values[0], interval

    def buckets(self, start: datetime, until: datetime) -> Iterator[tuple[BucketKey, Interval]]:
        """Yield the buckets from that of an instant to the last that begins before another."""
        instant = start
        while instant < until:
            bucket = self.bucket_at(instant)
            if bucket is None or bucket[1][0] >= until:
                return
            yield bucket
            if bucket[1][1] <= instant:
                return
            instant = bucket[1][1]


def _time_part(bucketer: Bucketer) -> _TimePart | None:
    """Return the first part that goes by time; None where there is none."""
    index = 0
    for part in _parts(bucketer):
        if isinstance(part, TimeBucketer):
            return _TimePart(part, index)
        index += len(part.columns)
    return None


def _parts(bucketer: Bucketer) -> Iterator[Bucketer]:
    if not isinstance(bucketer, Composite):
        yield bucketer
        return
    for part in bucketer.parts:
        yield from _parts(part)


@dataclass(frozen=True)
class _Period:
    """A stretch of time that a text names. `values`: of the bucket that it is exactly; None: it may be several."""

    interval: Interval
    values: BucketKey | None = None


class _Parser:
    """Reads one text for one table."""

    def __init__(self, text: str, bucketer: Bucketer) -> None:
        self._text = text
        self._bucketer = bucketer
        self._columns = tuple(bucketer.columns)
        self._part = _time_part(bucketer)

    def parse(self) -> BucketSelection:
        """Return the selection. Raises ConfigError."""
        texts = self._texts_by_column()
        part = self._part
        if part is None:
            if len(texts) < len(self._columns):
                raise self._refusal()
            return self._selection(texts)
        time_indexes = [index for index in part.indexes if index in texts]
        others = {index: text for index, text in texts.items() if index not in part.indexes}
        if len(part.indexes) > 1 and len(time_indexes) == len(part.indexes):
            values = tuple(texts[index] for index in part.indexes)
            if bucketers.interval(part.bucketer, values) is None:
                raise self._refusal()
            return self._selection({**others, **part.by_index(values)})
        time_text = texts.get(part.first_index)
        if len(time_indexes) != 1 or time_text is None:
            raise self._refusal()
        period = self._period_of_range(part, time_text)
        if period.values is not None:
            return self._selection({**others, **part.by_index(period.values)})
        selection = BucketSelection(self._text, self._bucketer, others, period.interval)
        if next(selection.slots(None), None) is None:
            raise self._refusal()
        return selection

    def _selection(self, values: Mapping[int, str | None]) -> BucketSelection:
        return BucketSelection(self._text, self._bucketer, values)

    def _texts_by_column(self) -> dict[int, str | None]:
        """Return what is said of columns, by their indexes. Raises ConfigError."""
        texts: dict[int, str | None] = {}
        bare: list[str] = []
        for piece in self._text.strip().strip("/").split("/"):
            name, equals, _ = piece.partition("=")
            if not equals:
                bare.append(piece)
                continue
            index = self._index_of(name)
            if index is None or index in texts:
                raise self._refusal()
            texts[index] = hive_value(piece)
        remaining = [index for index in range(len(self._columns)) if index not in texts]
        if len(bare) == 1 and self._part is not None and self._part.first_index in remaining:
            # The time alone is every bucket of that time.
            remaining = [self._part.first_index]
        if bare and len(bare) != len(remaining):
            raise self._refusal()
        return {**texts, **dict(zip(remaining, bare, strict=False))}

    def _index_of(self, name: str) -> int | None:
        names = [column.lower() for column in self._columns]
        return names.index(name.lower()) if name.lower() in names else None

    def _period_of_range(self, part: _TimePart, text: str) -> _Period:
        """Return the time from A to B of `A..B`, both included, or that of one text. Raises ConfigError."""
        first, dots, last = text.partition(_RANGE)
        start = self._period(part, first)
        if not dots:
            return start
        name, equals, label = last.partition("=")
        if equals and self._index_of(name) == part.first_index:
            last = label
        end = self._period(part, last)
        if start.interval[0] > end.interval[0]:
            raise ConfigError(f"{self._text!r} names the later bucket first; write {last}{_RANGE}{first}")
        return _Period((start.interval[0], end.interval[1]))

    def _period(self, part: _TimePart, text: str) -> _Period:
        """Return the time of a bucket, or of a stretch of the clock. Raises ConfigError."""
        text = text.strip()
        for label in (text, *_labels(text)):
            interval = part.interval_of(label)
            if interval is not None:
                return _Period(interval, (label,))
        instant = _parse_instant(text)
        if instant is not None:
            bucket = part.bucket_at(instant)
            if bucket is None or bucket[1][0] != instant:
                raise self._refusal()
            return _Period(bucket[1], bucket[0])
        for label in _labels(text):
            for width in _CLOCK_WIDTHS:
                interval = _clock_interval(label, EventTime(width, part.zone))
                if interval is not None:
                    return _Period(interval)
        raise self._refusal()

    def _refusal(self) -> ConfigError:
        return ConfigError(f"{self._text!r} names no bucket of this table. {self._examples()}")

    def _examples(self) -> str:
        part = self._part
        bucket = None
        if part is not None:
            bucket = part.bucket_at(_EXAMPLE)
        if part is None or bucket is None:
            shape = "/".join(f"{column}=…" for column in self._columns)
            return f"They go by no time, and are named {shape}"
        shape = self._shape(part.by_index(bucket[0]))
        if len(part.indexes) > 1:
            return f"They are named {shape}; a day is 2026-11-20, a range 2026-11-20..2026-11-22"
        label = bucket[0][0]
        day = ""
        if label is not None and _has_hours(label):
            day = "a day is 2026-11-20, "
        last = part.bucket_at(max(_EXAMPLE_END, bucket[1][1]))
        last_label = last[0][0] if last is not None else label
        return f"They are named {shape} or {label}; {day}a range {label}{_RANGE}{last_label}"

    def _shape(self, values: Mapping[int, str | None]) -> str:
        return "/".join(f"{column}={values.get(index) or '…'}" for index, column in enumerate(self._columns))


def _has_hours(label: str) -> bool:
    match = _CLOCK.fullmatch(label)
    return match is not None and match[2] is not None


def _labels(text: str) -> Iterator[str]:
    """Yield labels that a text of a clock may mean: as fine as it is, and less so where it ends in zeros."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return
    date, *clock, suffix = match.groups()
    fields = [field for field in clock if field is not None]
    for count in range(len(fields), -1, -1):
        if all(field == "00" for field in fields[count:]):
            yield _label(date, fields[:count], suffix or "")


def _label(date: str, fields: Sequence[str], suffix: str) -> str:
    if not fields:
        return date
    return f"{date}T{'-'.join(fields)}{suffix}"


def _parse_instant(text: str) -> datetime | None:
    """Return the instant that a text with a zone names; None for any other."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant if instant.tzinfo is not None else None


def _clock_interval(label: str, clock: EventTime) -> Interval | None:
    """Return the interval of a label of a clock, with the times that autumn repeats; None where it is none."""
    interval = clock.interval((label,))
    if interval is None:
        return None
    repeats = [clock.interval((label + suffix,)) for suffix in _REPEAT_SUFFIXES]
    return interval[0], max(span[1] for span in (interval, *repeats) if span is not None)
