"""Measures a pipeline's lag in offsets and in time, with Kafka's own answers.

Spark's own figures are a batch old. Here a thread of the driver asks for the ends of the logs, and the rest is
arithmetic over what it heard. A broker that does not answer makes the facts old, and nothing else.
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from writer.clients.kafka import Cluster, choose_topics
from writer.config.topic_selection import TopicSelection
from writer.core import logging
from writer.core.errors import HeadraceError, TopicMissing
from writer.core.offsets import Source
from writer.core.text import join_first, plural
from writer.offsets.start_decision import log_change
from writer.status.lag_sample import Lag, LagSample
from writer.status.model import Dates, Logs, Sample
from writer.status.progress import Progress
from writer.status.rates import RATE_WINDOW

_HISTORY = (timedelta(minutes=10), timedelta(minutes=2), RATE_WINDOW)  # rates are asked for over these
_DATING_TOLERANCE = 1.05  # an age is found to 5 %: nine questions, whatever the age
_DATING_ROUNDS_MAX = 16  # a bound for a log whose answers contradict each other
_FIRST_DATE_MS = int(datetime(1971, 1, 1, tzinfo=UTC).timestamp() * 1000)
_CLOSE_WITHIN_S = 5.0
_SHOWN = 3  # topics that a sentence names
FirstRecords = Mapping[Source, tuple[int, int]]  # offset and timestamp (ms) of the first record at or after an instant


def lag_sample(logs: Logs, frontier: Mapping[Source, int], now: datetime) -> LagSample:
    """Put together what `/status` carries: what waits now, and how the logs grew up to the newest sample."""
    at = logs.samples[-1].at if logs.samples else None
    return LagSample(at, logs.interval, tuple(lags(logs, frontier, now)), logs.appended)


def lags(logs: Logs, frontier: Mapping[Source, int], now: datetime) -> list[Lag]:
    """Lag of every partition that Kafka named last. One that was never committed waits from the log's first offset."""
    if not logs.samples:
        return []
    starts, retention = logs.starts, logs.retention
    found = []
    for source, end in sorted(logs.samples[-1].ends.items()):
        first = starts.get(source, 0)
        at = frontier.get(source, first)
        waits = max(at, first)  # what retention took does not wait any more
        since = waiting_since(logs, source, waits)
        seconds = 0.0 if end <= waits else None if since is None else max(0.0, (now - since).total_seconds())
        kept = retention.get(source[0])
        headroom = None if kept is None or seconds is None or end <= waits else kept.total_seconds() - seconds
        found.append(Lag(*source, max(0, end - waits), seconds, at - first, headroom, frontier.get(source)))
    return found


def waiting_since(logs: Logs, source: Source, frontier: int) -> datetime | None:
    """Return when the record at the frontier came: when the end of the log passed it, or its own timestamp.

    Between two samples the log is taken to have grown evenly. None: nothing waits, or it came before the samples and
    Kafka was not asked yet. A date for an earlier offset serves until then: it is no later.
    """
    offset, stamp = logs.dated.get(source, (-1, None))
    if stamp is not None and offset == frontier:
        return stamp
    samples = logs.samples
    after = bisect_right(samples, frontier, key=lambda sample: sample.ends.get(source, 0))
    if after == len(samples):
        return None
    if after == 0:
        return stamp if offset <= frontier else None
    before, until = samples[after - 1], samples[after]
    first, last = before.ends.get(source, 0), until.ends.get(source, 0)
    return before.at + (until.at - before.at) * ((frontier + 1 - first) / (last - first))


def undated(logs: Logs, frontier: Mapping[Source, int]) -> dict[Source, int]:
    """Return the frontiers of the partitions whose oldest waiting record came before the samples."""
    if not logs.samples:
        return {}
    starts, dated = logs.starts, logs.dated
    found = {}
    for source, end in logs.samples[0].ends.items():
        at = max(frontier.get(source, 0), starts.get(source, 0))
        if at < end and dated.get(source, (-1, None))[0] != at:
            found[source] = at
    return found


def date(
    ask: Callable[[Mapping[Source, int]], FirstRecords], offsets: Mapping[Source, int], now: datetime
) -> dict[Source, datetime]:
    """Find the newest timestamp among the records up to each offset, by bisection over the age, for all at once.

    Kafka answers with the first record at or after an instant, so the answer is monotonic in it, also where timestamps
    are not. `now` bounds the search from above. A partition is left out whose records say nothing of their age: they
    have no timestamp, or one of 1970, as seconds that are taken for milliseconds; or one of them is dated in the
    future, which hides all that come behind it.
    """
    now_ms = int(now.timestamp() * 1000)
    youngest = dict.fromkeys(offsets, 1_000.0)  # ms of age: no record up to the offset is younger
    oldest = dict.fromkeys(offsets, float(now_ms))  # ms of age: one is as young as this
    open_ = set(offsets)
    for _ in range(_DATING_ROUNDS_MAX):
        open_ = {s for s in open_ if oldest[s] > youngest[s] * _DATING_TOLERANCE}
        if not open_:
            break
        middle = {s: (oldest[s] * youngest[s]) ** 0.5 for s in open_}
        for source, (offset, stamp) in ask({s: now_ms - round(age) for s, age in middle.items()}).items():
            if offset < 0 or offset > offsets[source]:
                youngest[source] = middle[source]
                continue
            is_hidden = stamp > now_ms
            oldest[source] = float(now_ms if is_hidden else now_ms - stamp)
            if is_hidden or offset == offsets[source]:
                open_.discard(source)
    first_date_ms = now_ms - _FIRST_DATE_MS
    return {s: now - timedelta(milliseconds=age) for s, age in oldest.items() if age <= first_date_ms}


def listen(cluster: Cluster, topics: Iterable[str], now: datetime) -> tuple[Sample, Mapping[Source, int]]:
    """Ask for the ends and the starts of the logs. Raises BrokerUnreachable, TopicMissing."""
    sources = cluster.sources(topics)
    starts = cluster.earliest(sources)
    return Sample(now, cluster.latest(sources)), starts


def history(cluster: Cluster, sample: Sample) -> tuple[Sample, ...]:
    """Ask where the logs ended some minutes before a sample, by the records' timestamps. Raises BrokerUnreachable.

    A log with a record of the future behind that instant is taken to have ended where it ends now.
    """
    return tuple(_earlier(cluster, sample, sample.at - ago) for ago in _HISTORY)


def _earlier(cluster: Cluster, sample: Sample, when: datetime) -> Sample:
    answers = cluster.first_records(dict.fromkeys(sample.ends, int(when.timestamp() * 1000)))
    sample_ms = int(sample.at.timestamp() * 1000)
    ends = dict(sample.ends)
    ends |= {source: offset for source, (offset, stamp) in answers.items() if offset >= 0 and stamp <= sample_ms}
    return Sample(when, ends)


def settle(cluster: Cluster, logs: Logs, frontier: Mapping[Source, int], now: datetime) -> Dates:
    """Ask for the dates that the samples do not give. Raises BrokerUnreachable.

    A record whose date the timestamps do not tell was there at the first sample, at the latest.
    """
    wanted = undated(logs, frontier)
    if not wanted:
        return {}
    dates = date(cluster.first_records, wanted, now)
    return {source: (offset, dates.get(source, logs.samples[0].at)) for source, offset in wanted.items()}


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
        self._on_beyond, self._log_break = on_beyond, log_break
        self._cluster, self._topics, self._selection = cluster, dict(topics), selection
        self._progress = progress
        self._interval_s, self._group = interval.total_seconds(), mirror
        self._history_known = False
        self._mirrored: Mapping[Source, int] = {}
        self._trouble: dict[str, bool] = {}  # what fails now, so that each is said once
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lag of {progress.pipeline}", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        if self._group is not None:
            self._progress.on_commit(self._wake.set)
        self._thread.start()

    def close(self) -> None:
        """Mirror what is left, and end. Waits some seconds at most; the thread does not hold the process."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_WITHIN_S)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._closing.is_set():
            if time.monotonic() >= due:
                if self._attempt("lag_measurement", self._listen):
                    self._attempt("retention", self._ask_retention)  # needs a right that the rest does not
                    self._attempt("log_comparison", self._compare_logs)
                due = time.monotonic() + self._interval_s
            self._mirror()
            self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
        self._mirror()

    def _ask_retention(self) -> None:
        self._progress.kept(self._cluster.retention(self._topics))

    def _compare_logs(self) -> None:
        if why := self._log_break():
            self._progress.moved(why)

    def _listen(self) -> None:
        now = datetime.now(UTC)
        before = self._progress.view().frontier  # what is committed from here on may lie beyond the sample
        try:
            sample, starts = listen(self._cluster, self._topics, now)
            ids = {topic.name: topic.id for topic in self._cluster.topics(self._topics).values()}
        except TopicMissing as error:
            self._progress.moved(str(error))
            raise
        self._progress.sampled(sample, starts)
        self._progress.moved(log_change(self._topics, ids, before, sample.ends))
        if not self._history_known:
            self._progress.measured(timedelta(seconds=self._interval_s), history(self._cluster, sample))
            self._history_known = True
        if self._selection is not None:
            names, beyond = choose_topics(self._cluster, self._selection, self._topics)
            self._on_beyond(beyond)
            if new := [name for name in names if name not in self._topics]:
                self._progress.appeared(f"{plural(len(new), 'topic')} to read appeared: {join_first(new, _SHOWN)}")
        view = self._progress.view()
        self._progress.dated(settle(self._cluster, view.logs, view.frontier, now))

    def _mirror(self) -> None:
        frontier = self._progress.view().frontier
        if self._group is None or frontier == self._mirrored:
            return
        group = self._group
        if self._attempt("mirror", lambda: self._cluster.mirror(group, frontier)):
            self._mirrored = frontier
        else:
            self._progress.mirror_failed()

    def _attempt(self, what: str, action: Callable[[], None]) -> bool:
        """Try; log once that it fails, and once that it works again."""
        name = self._progress.pipeline
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the facts grow old and say so; the pipeline must not notice
            if not self._trouble.get(what):
                words = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
                logging.warning(f"{what}_failed", pipeline=name, error=words)
            self._trouble[what] = True
            return False
        if self._trouble.pop(what, False):
            logging.event(f"{what}_recovered", pipeline=name)
        return True
