"""Runs the whole bench: servers, the topic, then every contender in turn, round after round.

In turn, not one contender's repeats together: a machine that gets slower for a while then slows all of them.
"""

import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit
from typing import Protocol

from confluent_kafka import KafkaException

from headrace.bench.contenders import race
from headrace.bench.contenders.contenders import CONTENDERS, READERS_OF_ALL, READERS_OF_VERSIONS, Contender
from headrace.bench.contenders.flink import FLINK
from headrace.bench.data.dataset import TIME_FIELD, DataSet
from headrace.bench.data.fill import FilledTopic, fill
from headrace.bench.figures import MARKS_MIN, WARM_FROM, BenchFailed, Run
from headrace.bench.job import PARTITIONS, SLOTS, Job, plain_bundles
from headrace.writer.clients import java_artifacts
from headrace.writer.clients.java_artifacts import Bundle
from headrace.writer.core.errors import ConfigError
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.workspace import Interruption, Stopped

TOPIC = "events"
BATCH_EVENTS_MAX = 2_500_000
# At least four batches: one to get warm, three to be measured.
_BATCHES_MIN = 4
# More batches than these are too small to measure.
_BATCHES_MAX = 100
# Spark divides a batch among partitions and rounds down. Without these events a fifth batch gets the remainder.
_ROUNDING = 16
EVENTS_MIN = 10_000
# Events of each partition of a sparse topic.
SPARSE = 200
# The most partitions of one topic.
_PARTITIONS_MAX = 10_000
# Files that a broker has open besides one for each partition; the indexes are only mapped.
_OTHER_FILES = 1_000


@dataclass(frozen=True)
class Topic:
    """A topic of the bench, and how many of its events one commit takes at most."""

    data: DataSet
    name: str
    partitions: int
    events: int
    batch_events: int


@dataclass(frozen=True)
class Setting:
    """What is run: every contender on every set of data that it can read. Raises ConfigError for what cannot be."""

    data_sets: Sequence[DataSet]
    events: int
    contenders: Sequence[Contender]
    repeats: int
    profile: bool = False
    # Each number of partitions gets a sparse and a dense topic. Without numbers there is one topic.
    partitions: Sequence[int] = ()
    # The share of the events that come before the warm part.
    warm_from: float = WARM_FROM
    # Tasks that run at once.
    slots: int = SLOTS

    def __post_init__(self) -> None:
        self._check_data_sets()
        if self.events < EVENTS_MIN:
            raise ConfigError(f"{self.events:,} events are too few to measure; take {EVENTS_MIN:,} or more, such as 2M")
        if self.repeats < 1:
            raise ConfigError(f"{self.repeats} repeats measure nothing; take 1 or more")
        if not 0 < self.warm_from < 1:
            raise ConfigError(f"warm from {self.warm_from:g} of the events cannot be; take a share such as 0.67")
        invalid = [count for count in self.partitions if not 0 < count <= _PARTITIONS_MAX]
        if invalid or len(set(self.partitions)) < len(self.partitions):
            raise ConfigError(
                f"partitions {', '.join(map(str, self.partitions))} cannot be: name each number once, of 1 to "
                f"{_PARTITIONS_MAX:,}"
            )
        files = sum(topic.partitions for topic in self.topics) + _OTHER_FILES
        max_open_files = getrlimit(RLIMIT_NOFILE)[1]
        if max_open_files != RLIM_INFINITY and files > max_open_files:
            raise ConfigError(
                f"the broker needs {files:,} open files, and {max_open_files:,} are allowed: see `ulimit -Hn`"
            )

    def _check_data_sets(self) -> None:
        names = [data.name for data in self.data_sets]
        if len(set(names)) < len(names):
            raise ConfigError(f"data sets {', '.join(names)} cannot be: name each set once")
        for data in self.data_sets:
            if not self.contenders_on(data):
                others = ", ".join(contender.name for contender in self.contenders)
                raise ConfigError(f"no contender of {others} reads what {data.name} is; take a (headrace) too")

    def contenders_on(self, data: DataSet) -> list[Contender]:
        """Return the contenders that read a set of data."""
        readers = "".join(CONTENDERS)
        if data.form != "avro":
            readers = READERS_OF_ALL
        elif data.missing_fields:
            readers = READERS_OF_VERSIONS
        return [contender for contender in self.contenders if contender.letter in readers]

    def label(self, contender: Contender, data: DataSet) -> str:
        """Return the name of a contender in the figures: with that of the data, unless it is the first set."""
        if data == self.data_sets[0]:
            return contender.name
        return f"{contender.name} {data.name}"

    @property
    def batch_events(self) -> int:
        """Events in one commit: as many as in life, but at least four commits, and enough marks in the warm part.

        Raises ConfigError if the warm part is too short for the marks.
        """
        for batches in range(_BATCHES_MIN, _BATCHES_MAX):
            batch_events = min(BATCH_EVENTS_MAX, ceil(self.events / batches))
            first_warm = ceil(self.warm_from * self.events / batch_events)
            if ceil(self.events / batch_events) - first_warm + 1 >= MARKS_MIN:
                return batch_events + _ROUNDING
        raise ConfigError(f"warm from {self.warm_from:g} of the events leaves too few to measure; take a smaller share")

    @property
    def topics(self) -> list[Topic]:
        """The topics that every contender reads; where partitions are compared, in one commit where that is allowed."""
        return [topic for data in self.data_sets for topic in self._topics_of(data)]

    def _topics_of(self, data: DataSet) -> list[Topic]:
        ending = "" if data == self.data_sets[0] else f"-{data.name}"
        if not self.partitions:
            return [Topic(data, f"{TOPIC}{ending}", PARTITIONS, self.events, self.batch_events)]
        return [
            Topic(data, f"{kind}-{count}{ending}", count, events, min(BATCH_EVENTS_MAX, events) + _ROUNDING)
            for count in self.partitions
            for kind, events in (("sparse", SPARSE * count), ("dense", self.events))
            if kind == "sparse" or events > SPARSE * count
        ]


class ProgressObserver(Protocol):
    """Who is told how far the bench is."""

    def show_progress(self, sentence: str) -> None:
        """Take note of something slow that begins."""

    def begin(self, doing: str, events: int) -> None:
        """Show that something goes on, with `events` to carry."""

    def show_events(self, events: int) -> None:
        """Show how far it is."""

    def finish_step(self, step: str) -> None:
        """Show that it is done."""

    def show_run(self, run: Run) -> None:
        """Show a finished run."""


class BenchDirectory:
    """The directory of the bench, made by `make` and cleared at any time, in any state."""

    def __init__(self, keep: Path | None) -> None:
        """Raise ConfigError if `keep` holds something already."""
        name = f"headrace-bench-{secrets.token_hex(4)}"
        self.directory = (keep or Path(tempfile.gettempdir()) / name).absolute()
        self.is_kept = keep is not None
        self.stack = Stack(self.directory / "servers")
        if keep and (keep.is_file() or (keep.is_dir() and any(keep.iterdir()))):
            raise ConfigError(f"{keep} is not empty. Give --keep a directory that is new.")
        if forbidden := sorted(set(str(self.directory)) & set("[]{}%?*#")):
            raise ConfigError(
                f"{self.directory} holds {' '.join(forbidden)}, which a table's path must not. Choose another."
            )

    def make(self) -> None:
        """Create the directory."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=self.is_kept)
        except OSError as error:
            raise ConfigError(f"cannot create {self.directory}: {error.strerror}. Choose another directory.") from error

    def clear(self) -> None:
        """Stop the servers, and remove what is not to be kept; the topic never is."""
        try:
            self.stack.stop()
        finally:
            shutil.rmtree(self.stack_directory if self.is_kept else self.directory, ignore_errors=True)

    @property
    def stack_directory(self) -> Path:
        """Where the servers live."""
        return self.directory / "servers"


def play(
    setting: Setting, directory: BenchDirectory, observer: ProgressObserver, interruption: Interruption
) -> list[Run] | None:
    """Run everything; None when a signal stopped it. Whatever happens, nothing is left running.

    Call it from the main thread. Raises ConfigError for what cannot be had, ServerFailed, BenchFailed.
    """
    runs: list[Run] | None = None
    try:
        try:
            interruption.listen()
            directory.make()
            runs = _rounds(setting, directory, observer, interruption)
        finally:
            # Signals wait from here on, so the outer `finally` runs to its end.
            interruption.hold()
    except Stopped:
        pass
    except KafkaException as error:
        raise BenchFailed(f"the broker takes no events: {error.args[0].str()}") from error
    finally:
        directory.clear()
        interruption.restore_handlers()
    return None if interruption.asked is not None else runs


def _rounds(
    setting: Setting, directory: BenchDirectory, observer: ProgressObserver, interruption: Interruption
) -> list[Run]:
    for bundle in _bundles(setting):
        java_artifacts.fetch(bundle, progress=observer.show_progress)
    max_open_files = getrlimit(RLIMIT_NOFILE)[1]
    # The broker inherits this limit.
    setrlimit(RLIMIT_NOFILE, (max_open_files, max_open_files))
    observer.begin("starting broker and registry", 0)
    directory.stack.start()
    observer.finish_step("broker and registry answer")
    filled_topics = [(topic, _fill(topic, directory.stack, observer, interruption)) for topic in setting.topics]
    contests = [
        (topic, filled, contender) for topic, filled in filled_topics for contender in setting.contenders_on(topic.data)
    ]
    runs = []
    for repeat, (topic, filled, contender) in product(range(1, setting.repeats + 1), contests):
        name = f"{repeat}-{contender.letter}-{contender.name}"
        label = setting.label(contender, topic.data)
        if topic.name != TOPIC:
            name = f"{topic.name}-{name}"
        job = replace(_job(directory, topic, filled, name), slots=setting.slots)
        observer.begin(f"{label}, repeat {repeat} of {setting.repeats}", topic.events)
        run = race.run(
            replace(contender, name=label),
            job,
            repeat=repeat,
            value_bytes=filled.bytes,
            profile=setting.profile,
            look=_interruptible(observer.show_events, interruption),
            warm_from=setting.warm_from,
        )
        runs.append(run)
        observer.show_run(run)
        if not directory.is_kept:
            # A table of ten million events takes a gigabyte of disk.
            shutil.rmtree(job.directory)
    return runs


def _fill(topic: Topic, stack: Stack, observer: ProgressObserver, interruption: Interruption) -> FilledTopic:
    observer.begin(f"filling the topic of {topic.partitions:,} partitions", topic.events)
    with interruption.later():
        filled = fill(
            stack.broker.bootstrap,
            stack.registry.url,
            topic.name,
            topic.data,
            topic.events,
            partitions=topic.partitions,
            progress=_interruptible(observer.show_events, interruption),
        )
    size = filled.bytes / filled.events
    observer.finish_step(
        f"{filled.events:,} events of {topic.data.name}, {size:.0f} bytes each, on {topic.partitions:,} partitions"
    )
    return filled


def _interruptible(look: Callable[[int], None], interruption: Interruption) -> Callable[[int], None]:
    def report_progress(events: int) -> None:
        interruption.check()
        look(events)

    return report_progress


def _bundles(setting: Setting) -> list[Bundle]:
    """Return what must be fetched before anything is measured."""
    letters = {contender.letter for contender in setting.contenders}
    return [
        *map(java_artifacts.find_bundle, java_artifacts.DEMO_BUNDLES),
        *(plain_bundles() if letters & {"b", "c"} else ()),
        *((FLINK,) if letters & {"g", "h"} else ()),
    ]


def _job(directory: BenchDirectory, topic: Topic, filled: FilledTopic, name: str) -> Job:
    return Job(
        bootstrap=directory.stack.broker.bootstrap,
        registry_url=directory.stack.registry.url,
        topic=filled.topic,
        schema_id=filled.schema_id,
        schema_text=topic.data.schema_text,
        events=filled.events,
        batch_events=topic.batch_events,
        time_field=TIME_FIELD,
        directory=str(directory.directory / name),
        partitions=topic.partitions,
        form=topic.data.form,
        declared=topic.data.declared if topic.data.form == "json" else None,
        older_schemas=tuple(zip(filled.older_ids, topic.data.older_schema_texts, strict=True)),
    )
