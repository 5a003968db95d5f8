"""The whole bench: servers up, the topic filled once, then every contender in turn, round after round.

In turn, not one contender's repeats together: a machine that gets slower for a while then slows all of them.
"""

import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException

from bench import race
from bench.contenders import Contender
from bench.data import TIME_FIELD, DataSet
from bench.figures import BenchFailed, Run
from bench.fill import Filled, fill
from bench.job import Job
from writer import artifacts
from writer.demo.ground import Interruption, Stopped
from writer.embedded import Stack
from writer.errors import ConfigError

TOPIC = "events"
BATCH_EVENTS_MAX = 2_500_000
_BATCHES = 4  # at least: one to get warm, three to be measured
_ROUNDING = 16  # Spark shares a batch out to partitions and rounds down; without this a fifth one gets what is over
EVENTS_MIN = 10_000


@dataclass(frozen=True)
class Setting:
    """What is run. Raises ConfigError for what cannot be."""

    data: DataSet
    events: int
    contenders: Sequence[Contender]
    repeats: int
    profile: bool = False

    def __post_init__(self) -> None:
        if self.events < EVENTS_MIN:
            raise ConfigError(f"{self.events:,} events are too few to measure; take {EVENTS_MIN:,} or more, such as 2M")
        if self.repeats < 1:
            raise ConfigError(f"{self.repeats} repeats measure nothing; take 1 or more")

    @property
    def batch_events(self) -> int:
        """Events in one commit: as many as in life, but at least four commits."""
        return min(BATCH_EVENTS_MAX, -(-self.events // _BATCHES)) + _ROUNDING


class Onlooker(Protocol):
    """Who is told how far the bench is."""

    def say(self, sentence: str) -> None:
        """Take note of something slow that begins."""

    def begin(self, doing: str, events: int) -> None:
        """Show that something goes on, with `events` to carry."""

    def at(self, events: int) -> None:
        """Show how far it is."""

    def done(self, what: str) -> None:
        """Show that it is done."""

    def finished(self, run: Run) -> None:
        """Show a finished run."""


class Place:
    """The directory of the bench, made by `make` and cleared at any time, in any state."""

    def __init__(self, keep: Path | None) -> None:
        """Raise ConfigError if `keep` holds something already."""
        name = f"headrace-bench-{secrets.token_hex(4)}"
        self.directory = (keep or Path(tempfile.gettempdir()) / name).absolute()
        self.kept = keep is not None
        self.stack = Stack(self.directory / "servers")
        if keep and (keep.is_file() or (keep.is_dir() and any(keep.iterdir()))):
            raise ConfigError(f"{keep} is not empty. Give --keep a directory that is new.")
        if odd := sorted(set(str(self.directory)) & set("[]{}%?*#")):
            raise ConfigError(f"{self.directory} holds {' '.join(odd)}, which a table's path must not. Choose another.")

    def make(self) -> None:
        """Create the directory."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=self.kept)
        except OSError as error:
            raise ConfigError(f"cannot create {self.directory}: {error.strerror}. Choose another directory.") from error

    def clear(self) -> None:
        """Stop the servers, and remove what is not to be kept; the topic never is."""
        try:
            self.stack.stop()
        finally:
            shutil.rmtree(self.stack_directory if self.kept else self.directory, ignore_errors=True)

    @property
    def stack_directory(self) -> Path:
        """Where the servers live."""
        return self.directory / "servers"


def play(setting: Setting, place: Place, onlooker: Onlooker, interruption: Interruption) -> list[Run] | None:
    """Run everything; None when a signal stopped it. Whatever happens, nothing is left running.

    Call it from the main thread. Raises ConfigError for what cannot be had, ServerFailed, BenchFailed.
    """
    runs: list[Run] | None = None
    try:
        try:
            interruption.listen()
            place.make()
            runs = _rounds(setting, place, onlooker, interruption)
        finally:
            interruption.hold()  # cut short or not, the outer `finally` is entered
    except Stopped:
        pass
    except KafkaException as error:
        raise BenchFailed(f"the broker takes no events: {error.args[0].str()}") from error
    finally:
        place.clear()
        interruption.done()
    return None if interruption.asked is not None else runs


def _rounds(setting: Setting, place: Place, onlooker: Onlooker, interruption: Interruption) -> list[Run]:
    for bundle in _bundles(setting):
        artifacts.fetch(bundle, say=onlooker.say)
    onlooker.begin("starting broker and registry", 0)
    place.stack.start()
    onlooker.done("broker and registry answer")
    filled = _fill(setting, place.stack, onlooker, interruption)
    runs = []
    for repeat in range(1, setting.repeats + 1):
        for contender in setting.contenders:
            job = _job(setting, place, filled, f"{repeat}-{contender.letter}-{contender.name}")
            onlooker.begin(f"{contender.name}, repeat {repeat} of {setting.repeats}", setting.events)
            run = race.run(
                contender, job, repeat=repeat, avro_bytes=filled.bytes, profile=setting.profile,
                look=_checked(onlooker.at, interruption),
            )  # fmt: skip
            runs.append(run)
            onlooker.finished(run)
            if not place.kept:
                shutil.rmtree(job.directory)  # ten million events are a gigabyte
    return runs


def _fill(setting: Setting, stack: Stack, onlooker: Onlooker, interruption: Interruption) -> Filled:
    onlooker.begin("filling the topic", setting.events)
    with interruption.later():
        filled = fill(
            stack.broker.bootstrap, stack.registry.url, TOPIC, setting.data, setting.events,
            progress=_checked(onlooker.at, interruption),
        )  # fmt: skip
    size = filled.bytes / filled.events
    onlooker.done(f"{filled.events:,} events of {size:.0f} bytes are in Kafka")
    return filled


def _checked(look: Callable[[int], None], interruption: Interruption) -> Callable[[int], None]:
    def checked(events: int) -> None:
        interruption.check()
        look(events)

    return checked


def _bundles(setting: Setting) -> list[str]:
    """Return what must be fetched before anything is measured."""
    plain = any(contender.letter in "bc" for contender in setting.contenders)
    return [*artifacts.BUNDLES, *(artifacts.BENCH_BUNDLES if plain else ())]


def _job(setting: Setting, place: Place, filled: Filled, name: str) -> Job:
    return Job(
        bootstrap=place.stack.broker.bootstrap, registry_url=place.stack.registry.url, topic=filled.topic,
        schema_id=filled.schema_id, schema_text=setting.data.schema_text, events=filled.events,
        batch_events=setting.batch_events, time_field=TIME_FIELD, directory=str(place.directory / name),
    )  # fmt: skip
