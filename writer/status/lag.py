"""Measures a pipeline's lag in offsets and in time, with Kafka's own answers.

Spark's own figures are a batch old. Here a thread of the driver asks for the ends of the logs, and the rest is
arithmetic over what it heard. A broker that does not answer makes the facts old, and nothing else.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import inf

from headrace.writer.clients.kafka import Cluster, choose_topics
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core import logging
from headrace.writer.core.errors import HeadraceError, TopicMissing, panics_as_errors
from headrace.writer.core.offsets import Source
from headrace.writer.core.periodic_thread import PeriodicThread
from headrace.writer.core.text import join_first, plural
from headrace.writer.offsets.start_decision import log_change
from headrace.writer.status.lag_sample import Lag, LagSample
from headrace.writer.status.model import Dates, Logs, Sample
from headrace.writer.status.progress import Progress
from headrace.writer.status.rates import RATE_WINDOW

# Rates are asked for over these windows.
_HISTORY = (timedelta(minutes=10), timedelta(minutes=2), RATE_WINDOW)
# An age is exact to 5 %. This takes nine questions, whatever the age.
_DATING_TOLERANCE = 1.05
# A bound for a log whose answers contradict each other.
_DATING_ROUNDS_MAX = 16
_FIRST_DATE_MS = int(datetime(1971, 1, 1, tzinfo=UTC).timestamp() * 1000)
_CLOSE_WITHIN_S = 5.0
# Topics that a sentence names.
_SHOWN = 3
# Offset and timestamp (ms) of the first record at or after an instant.
FirstRecords = Mapping[Source, tuple[int, int]]


def lag_sample(logs: Logs, frontier: Mapping[Source, int], now: datetime) -> LagSample:
    """Return what `/status` carries: what waits now, and how the logs grew up to the newest sample."""
    time = logs.samples[-1].at if logs.samples else None
    return LagSample(time, logs.interval, tuple(partition_lags(logs, frontier, now)), logs.appended)


def partition_lags(logs: Logs, frontier: Mapping[Source, int], now: datetime) -> list[Lag]:
    """Return the lag of every partition that Kafka named last.

    A partition that was never committed waits from the log's first offset.
    """
    if not logs.samples:
        return []
    ends = logs.samples[-1].ends
    return [_partition_lag(logs, source, ends[source], frontier.get(source), now) for source in sorted(ends)]


def _partition_lag(logs: Logs, source: Source, end: int, committed_offset: int | None, now: datetime) -> Lag:
    topic, partition = source
    log_start = logs.starts.get(source, 0)
    next_offset = log_start if committed_offset is None else committed_offset
    # What retention took does not wait any more.
    waiting_from = max(next_offset, log_start)
    seconds: float | None = 0.0
    headroom_seconds = None
    if waiting_from < end:
        since = waiting_since(logs, source, waiting_from)
        seconds = None if since is None else max(0.0, (now - since).total_seconds())
        retention = logs.retention.get(topic)
        if retention is not None and seconds is not None:
            headroom_seconds = retention.total_seconds() - seconds
    return Lag(
        topic=topic,
        partition=partition,
        offsets=max(0, end - waiting_from),
        seconds=seconds,
        headroom_offsets=next_offset - log_start,
        headroom_seconds=headroom_seconds,
        frontier=committed_offset,
    )


def waiting_since(logs: Logs, source: Source, frontier: int) -> datetime | None:
    """Return when the record at the frontier came: when the end of the log passed it, or its own timestamp.

    Between two samples the log is taken to have grown evenly. None: nothing waits, or it came before the samples and
    Kafka was not asked yet. A date for an earlier offset serves until then: it is no later.
    """
    dated_offset, timestamp = logs.dated.get(source, (-1, None))
    if timestamp is not None and dated_offset == frontier:
        return timestamp
    samples = logs.samples
    # Index of the first sample whose end of the log is beyond the frontier.
    index = bisect_right(samples, frontier, key=lambda sample: sample.ends.get(source, 0))
    if index == len(samples):
        return None
    if index == 0:
        if dated_offset > frontier:
            return None
        return timestamp
    before = samples[index - 1]
    after = samples[index]
    end_before = before.ends.get(source, 0)
    end_after = after.ends.get(source, 0)
    growth_share = (frontier + 1 - end_before) / (end_after - end_before)
    return before.at + (after.at - before.at) * growth_share


def undated_offsets(logs: Logs, frontier: Mapping[Source, int]) -> dict[Source, int]:
    """Return the frontiers of the partitions whose oldest waiting record came before the samples."""
    if not logs.samples:
        return {}
    offsets = {}
    for source, end in logs.samples[0].ends.items():
        offset = max(frontier.get(source, 0), logs.starts.get(source, 0))
        dated_offset, _ = logs.dated.get(source, (-1, None))
        if offset < end and dated_offset != offset:
            offsets[source] = offset
    return offsets


def date_offsets(
    ask: Callable[[Mapping[Source, int]], FirstRecords], offsets: Mapping[Source, int], now: datetime
) -> dict[Source, datetime]:
    """Find the newest timestamp among the records up to each offset, by bisection over the age, for all at once.

    Kafka answers with the first record at or after an instant, so the answer is monotonic in it, also where timestamps
    are not. `now` bounds the search from above. A partition is left out if its records say nothing of their age. They
    may have no timestamp, or one of 1970, as seconds that are taken for milliseconds. Or one of them is dated in the
    future, which hides all that come after it.
    """
    now_ms = int(now.timestamp() * 1000)
    # Milliseconds of age: no record up to the offset is younger.
    age_min = dict.fromkeys(offsets, 1_000.0)
    # Milliseconds of age: one record up to the offset is at most as old.
    age_max = dict.fromkeys(offsets, float(now_ms))
    undated = set(offsets)
    for _ in range(_DATING_ROUNDS_MAX):
        undated = {source for source in undated if age_max[source] > age_min[source] * _DATING_TOLERANCE}
        if not undated:
            break
        ages = {source: (age_max[source] * age_min[source]) ** 0.5 for source in undated}
        answers = ask({source: now_ms - round(age) for source, age in ages.items()})
        for source, (offset, timestamp_ms) in answers.items():
            if offset < 0 or offset > offsets[source]:
                age_min[source] = ages[source]
                continue
            is_hidden = timestamp_ms > now_ms
            age_max[source] = float(now_ms if is_hidden else now_ms - timestamp_ms)
            if is_hidden or offset == offsets[source]:
                undated.discard(source)
    first_date_age = now_ms - _FIRST_DATE_MS
    return {source: now - timedelta(milliseconds=age) for source, age in age_max.items() if age <= first_date_age}


def read_log_bounds(cluster: Cluster, topics: Iterable[str], now: datetime) -> tuple[Sample, Mapping[Source, int]]:
    """Ask for the ends and the starts of the logs. Raises BrokerUnreachable, TopicMissing."""
    sources = cluster.sources(topics)
    # The starts first: a log that moves on meanwhile does not end before it starts.
    starts = cluster.earliest(sources)
    return Sample(now, cluster.latest(sources)), starts


def read_history(cluster: Cluster, sample: Sample) -> tuple[Sample, ...]:
    """Ask where the logs ended some minutes before a sample, by the records' timestamps. Raises BrokerUnreachable.

    A log with a record of the future behind that instant is taken to have ended where it ends now.
    """
    return tuple(_read_earlier_sample(cluster, sample, sample.at - age) for age in _HISTORY)


def _read_earlier_sample(cluster: Cluster, sample: Sample, time: datetime) -> Sample:
    answers = cluster.first_records(dict.fromkeys(sample.ends, int(time.timestamp() * 1000)))
    sample_ms = int(sample.at.timestamp() * 1000)
    ends = dict(sample.ends)
    ends |= {
        source: offset
        for source, (offset, timestamp_ms) in answers.items()
        if offset >= 0 and timestamp_ms <= sample_ms
    }
    return Sample(time, ends)


def date_frontier(cluster: Cluster, logs: Logs, frontier: Mapping[Source, int], now: datetime) -> Dates:
    """Ask for the dates that the samples do not give. Raises BrokerUnreachable.

    A record whose date the timestamps do not tell was there at the first sample, at the latest.
    """
    offsets = undated_offsets(logs, frontier)
    if not offsets:
        return {}
    dates = date_offsets(cluster.first_records, offsets, now)
    first_sample = logs.samples[0]
    return {source: (offset, dates.get(source, first_sample.at)) for source, offset in offsets.items()}


class LagListener:
    """A thread that listens at an interval, and mirrors the frontier to a consumer group after each commit."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Mapping[str, str],
        progress: Progress,
        *,
        interval: timedelta,
        mirror: str | None = None,
        selection: TopicSelection | None = None,
        on_beyond: Callable[[Sequence[str]], None] = lambda _: None,
        log_break: Callable[[], str] = lambda: "",
    ) -> None:
        """`topics`: name → the id that the pipeline reads under. `selection`: what it would read at its next start.

        `on_beyond` is called with the topics that it would leave out, for `topics.max`. `log_break` says why a log is
        not the one that the table was filled from; empty while they are.
        """
        self._on_beyond = on_beyond
        self._log_break = log_break
        self._cluster = cluster
        self._topics = dict(topics)
        self._selection = selection
        self._progress = progress
        self._interval_s = interval.total_seconds()
        self._group = mirror
        self._has_history = False
        self._mirrored: Mapping[Source, int] = {}
        # Steps that fail now. A failure is logged once.
        self._failing: set[str] = set()
        # When it listens next, by the monotonic clock.
        self._due_s = -inf
        self._thread = PeriodicThread(f"lag of {progress.pipeline}", self._run_round, finish=self._mirror)

    def start(self) -> None:
        """Begin to listen."""
        if self._group is not None:
            self._progress.on_commit(self._thread.wake)
        self._thread.start()

    def close(self) -> None:
        """Mirror what is left, and end. Only the mirror is waited for, five seconds at most."""
        self._thread.close(0 if self._group is None else _CLOSE_WITHIN_S)

    def _run_round(self) -> float:
        if time.monotonic() >= self._due_s:
            failure = self._attempt("lag_measurement", self._listen)
            self._progress.set(kafka_error=failure)
            if not failure:
                # It needs a right that the other questions do not need.
                self._attempt("retention", self._ask_retention)
                self._attempt("log_comparison", self._compare_logs)
            self._due_s = time.monotonic() + self._interval_s
        self._mirror()
        return max(0.0, self._due_s - time.monotonic())

    def _ask_retention(self) -> None:
        self._progress.set_retention(self._cluster.retention(self._topics))

    def _compare_logs(self) -> None:
        reason = self._log_break()
        if reason:
            self._show_log_change(reason)

    def _show_log_change(self, reason: str) -> None:
        """Report why the logs are not those of this start. A later start is not judged by what this one reads."""
        if not self._thread.is_closing:
            self._progress.set(log_moved=reason)

    def _listen(self) -> None:
        now = datetime.now(UTC)
        # What is committed from here on may lie beyond the sample.
        frontier = self._progress.view().frontier
        try:
            sample, starts = read_log_bounds(self._cluster, self._topics, now)
            ids = {topic.name: topic.id for topic in self._cluster.topics(self._topics).values()}
        except TopicMissing as error:
            self._show_log_change(str(error))
            raise
        self._progress.add_sample(sample, starts)
        self._show_log_change(log_change(self._topics, ids, frontier, sample.ends))
        if not self._has_history:
            history = read_history(self._cluster, sample)
            self._progress.set_lag_history(timedelta(seconds=self._interval_s), history)
            self._has_history = True
        self._find_new_topics()
        view = self._progress.view()
        self._progress.add_dates(date_frontier(self._cluster, view.logs, view.frontier, now))

    def _find_new_topics(self) -> None:
        if self._selection is None:
            return
        names, beyond = choose_topics(self._cluster, self._selection, self._topics)
        self._on_beyond(beyond)
        new_topics = [name for name in names if name not in self._topics]
        if new_topics and not self._thread.is_closing:
            count = plural(len(new_topics), "topic")
            self._progress.set(topics_appeared=f"{count} to read appeared: {join_first(new_topics, _SHOWN)}")

    def _mirror(self) -> None:
        frontier = self._progress.view().frontier
        if self._group is None or frontier == self._mirrored:
            return
        group = self._group
        failure = self._attempt("mirror", lambda: self._cluster.mirror(group, frontier))
        if not failure:
            self._mirrored = frontier
        else:
            self._progress.count_mirror_failure()

    def _attempt(self, step: str, action: Callable[[], None]) -> str:
        """Try a step. Returns why it fails; empty: it works. Logs once that it fails, and once that it works again."""
        name = self._progress.pipeline
        try:
            with panics_as_errors():
                action()
        except Exception as error:  # noqa: BLE001 - the facts grow old and say so; the pipeline must not notice
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, HeadraceError):
                text = str(error)
            if step not in self._failing:
                logging.warning(f"{step}_failed", pipeline=name, error=text)
            self._failing.add(step)
            return text
        if step in self._failing:
            self._failing.discard(step)
            logging.event(f"{step}_recovered", pipeline=name)
        return ""
