"""Asks a registry for a batch, and holds it while the registry is down, or does not know an id yet.

An unknown id has one grace, from when it was first met. All ids of a pipeline share an allowance: it holds one grace, a
batch that waits for ids in vain takes from it, and it fills again by REFILL of the time that passes.

`<checkpoints>/<pipeline>/unknown_ids.json` remembers them. Nothing depends on it: where it is missing, ids get their
grace anew.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, zip_longest
from typing import Any, TypeVar

from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import Draining
from headrace.writer.core.text import instant, join_first
from headrace.writer.schemas.registry_client import REQUESTS_AT_ONCE, RegistryUnreachable, SchemaNotFound
from headrace.writer.storage.base import Store

# Between two questions to a registry that does not answer.
_BACKOFF = Backoff(1, 30)
# Ids of one batch that the registry is asked for and does not know.
STRAYS_MAX = 500
# Of the time: a stream of strays holds a pipeline for no larger part of it.
REFILL = 0.1
# In one log line.
_IDS_SHOWN = 10
_NAME = "unknown_ids.json"
_FORMAT = 1
# The newest are remembered.
_IDS_MAX = 10_000
_AGE_MAX = timedelta(days=30)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")


@dataclass
class _StoredIds:
    """The unknown ids in the storage, by the wall clock."""

    first_met: dict[str, datetime] = field(default_factory=dict)
    # When the allowance holds a whole grace again.
    full_at: datetime = _LONG_AGO

    @classmethod
    def parse(cls, content: bytes) -> "_StoredIds":
        """Read a stored document. Raises ValueError, LookupError, TypeError, AttributeError for any other."""
        document = json.loads(content)
        if document["format"] != _FORMAT:
            return cls()
        first_met = {name: _parse_time(time) for name, time in document["first_met"].items()}
        return cls(first_met, _parse_time(document["full_at"]))

    def document(self) -> dict[str, Any]:
        """Return what is stored."""
        first_met = {name: met.isoformat() for name, met in self.first_met.items()}
        return {"format": _FORMAT, "first_met": first_met, "full_at": self.full_at.isoformat()}

    def forget_old(self, now: datetime) -> None:
        """Keep the newest ids."""
        young = [(name, met) for name, met in self.first_met.items() if now - met < _AGE_MAX]
        self.first_met = dict(sorted(young, key=lambda entry: entry[1])[-_IDS_MAX:])


class UnknownIds:
    """The ids of one pipeline that the registry does not know."""

    def __init__(self, pipeline: str, grace: timedelta, store: Store | None = None) -> None:
        """`store`: of the pipeline's checkpoints; None: they are remembered as long as this process lives."""
        self._pipeline = pipeline
        self._grace = grace
        self._store = store
        self._stored_ids: _StoredIds | None = None
        # When the grace of each of the newest ends, monotonic.
        self._deadlines_s: dict[str, float] = {}
        # When the allowance holds a whole grace again, monotonic.
        self._full_s: float | None = None

    def remaining_s(self, names: Iterable[str]) -> Mapping[str, float]:
        """Return how long each id may still hold a batch, and remember those that are new."""
        names = list(names)
        unmet = [name for name in names if name not in self._deadlines_s]
        if unmet:
            self._deadlines_s |= self._new_deadlines_s(unmet, datetime.now(UTC), time.monotonic())
        now_s = time.monotonic()
        remaining_s = {name: max(self._deadlines_s[name] - now_s, 0.0) for name in names}
        for name in list(self._deadlines_s)[:-_IDS_MAX]:
            del self._deadlines_s[name]
        return remaining_s

    def has_met(self, name: str) -> bool:
        """Return whether an id was unknown before, and is not known since."""
        return name in self._deadlines_s or name in self._read().first_met

    def _new_deadlines_s(self, names: Iterable[str], now: datetime, now_s: float) -> dict[str, float]:
        first_met = self._read().first_met
        unmet = [name for name in names if name not in first_met]
        first_met |= dict.fromkeys(unmet, now)
        graces = {name: remaining_grace(first_met[name], self._grace, now) for name in names}
        if unmet:
            self._write(now)
        return {name: now_s + grace.total_seconds() for name, grace in graces.items()}

    def allowance_s(self) -> float:
        """Return how long a batch may wait for unknown ids now."""
        grace_s = self._grace.total_seconds()
        return max(grace_s - max(self._full_at_s() - time.monotonic(), 0.0) * REFILL, 0.0)

    def spend(self, seconds: float) -> None:
        """Take from the allowance what a batch has waited for ids that are unknown all the same."""
        now_s = time.monotonic()
        self._full_s = max(self._full_at_s(), now_s) + seconds / REFILL
        now = datetime.now(UTC)
        self._read().full_at = now + timedelta(seconds=self._full_s - now_s)
        self._write(now)

    def _full_at_s(self) -> float:
        """Return when the allowance is full, monotonic. However the clock was set: not later than a spent one is."""
        if self._full_s is None:
            refill_time = min(max(self._read().full_at - datetime.now(UTC), timedelta(0)), self._grace / REFILL)
            self._full_s = time.monotonic() + refill_time.total_seconds()
        return self._full_s

    def extend(self, seconds: float) -> None:
        """Leave a time out of all graces, in which the registry did not answer."""
        self._deadlines_s = {name: deadline_s + seconds for name, deadline_s in self._deadlines_s.items()}

    def forget(self, names: Iterable[str]) -> None:
        """Forget ids, which the registry knows by now."""
        remembered_names = [name for name in names if name in self._deadlines_s]
        for name in remembered_names:
            del self._deadlines_s[name]
            self._read().first_met.pop(name, None)
        if remembered_names:
            self._write(datetime.now(UTC))

    def _read(self) -> _StoredIds:
        if self._stored_ids is None:
            self._stored_ids = _StoredIds()
            try:
                stored = None if self._store is None else self._store.read(_NAME)
                if stored is not None:
                    self._stored_ids = _StoredIds.parse(stored.content)
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                logging.warning("unknown_ids_failed", pipeline=self._pipeline, error=str(error))
        return self._stored_ids

    def _write(self, now: datetime) -> None:
        """Write what is remembered. A failure of the storage is logged."""
        stored_ids = self._read()
        stored_ids.forget_old(now)
        if self._store is None:
            return
        try:
            self._store.put(_NAME, (json.dumps(stored_ids.document()) + "\n").encode())
        except OSError as error:
            logging.warning("unknown_ids_failed", pipeline=self._pipeline, error=str(error))


@dataclass(frozen=True)
class RegistryWait:
    """What a batch waits for. `names`: of schemas; `error`: of a registry that does not answer."""

    names: tuple[str, ...]
    # When the batch goes on without them; None: when the registry answers.
    until: datetime | None = None
    error: str = ""

    @property
    def text(self) -> str:
        """Say what the batch waits for, and until when."""
        schemas = join_first(self.names, _IDS_SHOWN)
        if self.until is None:
            return f"waits for {schemas}: {self.error}"
        return f"waits for {schemas} until {instant(self.until)}"


def ignore_wait(_: RegistryWait | None) -> None:
    """Show a wait to nobody."""


class NotAsked(SchemaNotFound):
    """The registry was not asked for this id: it does not know too many others of the batch."""


@dataclass(frozen=True)
class IdQuestion:
    """A schema that is asked for by its id. `name`: of the id, for people and in storage."""

    schema_id: int
    name: str
    read: Callable[[], str]


class RegistryHold:
    """Asks for one pipeline. A driver's waits; a command's, without `unknown_ids`, asks once."""

    def __init__(
        self,
        pipeline: str,
        stopping: threading.Event,
        unknown_ids: UnknownIds | None,
        on_wait: Callable[[RegistryWait | None], None] = ignore_wait,
    ) -> None:
        """Wait no longer once `stopping` is set. `on_wait` gets what a batch waits for, and None when it goes on."""
        self._pipeline = pipeline
        self._stopping = stopping
        self._unknown_ids = unknown_ids
        self._on_wait = on_wait

    def ask(self, ask: Callable[[], _T], name: str) -> _T:
        """Return an answer, once the registry is up. `name`: of what is asked for.

        Raises SchemaNotFound, Draining; without a wait also RegistryUnreachable.
        """
        began_s = time.monotonic()
        attempt = 0
        try:
            while not self._stopping.is_set():
                try:
                    answer = ask()
                except RegistryUnreachable as error:
                    if self._unknown_ids is None:
                        raise
                    self._wait_for_registry(name, error, attempt)
                    attempt += 1
                else:
                    self._extend_graces(began_s, attempt)
                    return answer
        finally:
            if attempt:
                self._on_wait(None)
        raise Draining(f"pipeline {self._pipeline!r} was asked to stop while it waited for {name}")

    def _wait_for_registry(self, name: str, error: RegistryUnreachable, attempt: int) -> None:
        logging.warning("registry_unreachable", pipeline=self._pipeline, holding="batch", error=str(error))
        self._on_wait(RegistryWait((name,), error=str(error)))
        self._stopping.wait(max(_BACKOFF.delay_s(attempt), error.retry_after_s))

    def _extend_graces(self, began_s: float, attempts: int) -> None:
        """Extend graces by a time in which the registry said nothing: it did not say that an id is unknown."""
        if attempts and self._unknown_ids is not None:
            self._unknown_ids.extend(time.monotonic() - began_s)

    def ask_all(self, questions: Iterable[IdQuestion]) -> dict[str, str | SchemaNotFound]:
        """Return what each id is, by its name, once it is known, its grace is over, or the pipeline may wait no longer.

        Raises as `ask` does. Where STRAYS_MAX are unknown, the others are not asked for: NotAsked.
        """
        ordered_questions = self._order(questions)
        answers = self._ask_some(ordered_questions)
        if self._unknown_ids is not None:
            try:
                self._wait_for_unknown(ordered_questions, answers, self._unknown_ids)
            finally:
                self._on_wait(None)
            self._unknown_ids.forget(name for name, answer in answers.items() if isinstance(answer, str))
        return answers

    def _order(self, questions: Iterable[IdQuestion]) -> list[IdQuestion]:
        """Take in turn an id that is new and one that was unknown before, so that no kind keeps the other waiting.

        Of each kind small ids come first: registries count up, and ids of garbage are large for the most part.
        """
        by_id = sorted(questions, key=lambda question: question.schema_id)
        names = {question.name for question in by_id}
        assert len(names) == len(by_id), "answers are by name, so no two questions have one"
        if self._unknown_ids is None:
            return by_id
        new = [question for question in by_id if not self._unknown_ids.has_met(question.name)]
        met = [question for question in by_id if self._unknown_ids.has_met(question.name)]
        pairs = zip_longest(new, met)
        return [question for question in chain.from_iterable(pairs) if question is not None]

    def _wait_for_unknown(
        self, questions: Sequence[IdQuestion], answers: dict[str, str | SchemaNotFound], unknown_ids: UnknownIds
    ) -> None:
        """Ask again for what the registry does not know, as long as the batch may wait for it."""
        allowance_s = unknown_ids.allowance_s()
        waited_s = 0.0
        attempt = 0
        absent = _absent(questions, answers)
        while True:
            remaining_s = unknown_ids.remaining_s([question.name for question in absent])
            waiting = [question for question in absent if remaining_s[question.name] > 0]
            if not waiting or waited_s >= allowance_s:
                break
            graces_s = [remaining_s[question.name] for question in waiting]
            pause_s = min(_BACKOFF.delay_s(attempt), allowance_s - waited_s, *graces_s)
            self._wait(waiting, pause_s, min(allowance_s - waited_s, max(graces_s)))
            waited_s += pause_s
            attempt += 1
            answers |= self._ask_some(waiting)
            absent = _absent(waiting, answers)
        if absent and waited_s > 0:
            unknown_ids.spend(waited_s)

    def _ask_some(self, questions: Sequence[IdQuestion]) -> dict[str, str | SchemaNotFound]:
        """Ask for some ids, a few side by side, until too many of them are unknown. Raises as `ask` does."""
        answers: dict[str, str | SchemaNotFound] = {}
        strays = 0
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="registry") as pool:
            for begin in range(0, len(questions), REQUESTS_AT_ONCE):
                if strays >= STRAYS_MAX:
                    break
                group = questions[begin : begin + REQUESTS_AT_ONCE]
                results = self.ask(partial(_read_side_by_side, pool, group), group[0].name)
                answers |= {question.name: answer for question, answer in zip(group, results, strict=True)}
                strays += sum(isinstance(answer, SchemaNotFound) for answer in results)
        for question in questions[len(answers) :]:
            answers[question.name] = NotAsked(
                f"{question.name} was not asked for: {strays} other ids of its batch are unknown to the registry"
            )
        return answers

    def _wait(self, questions: Sequence[IdQuestion], seconds: float, longest_s: float) -> None:
        """Wait before the registry is asked again. `longest_s`: until the batch goes on without an answer."""
        names = [question.name for question in questions]
        self._on_wait(RegistryWait(tuple(names), datetime.now(UTC) + timedelta(seconds=longest_s)))
        logging.warning(
            "schema_unknown", pipeline=self._pipeline, schemas=names[:_IDS_SHOWN], count=len(names), holding="batch"
        )
        self._stopping.wait(seconds)


def _absent(questions: Sequence[IdQuestion], answers: Mapping[str, str | SchemaNotFound]) -> list[IdQuestion]:
    """Return the questions that the registry has answered: it does not know these ids."""
    return [
        question
        for question in questions
        if isinstance(answers[question.name], SchemaNotFound) and not isinstance(answers[question.name], NotAsked)
    ]


def _read_side_by_side(pool: ThreadPoolExecutor, questions: Sequence[IdQuestion]) -> list[str | SchemaNotFound]:
    return list(pool.map(_read_or_miss, questions))


def _read_or_miss(question: IdQuestion) -> str | SchemaNotFound:
    try:
        return question.read()
    except SchemaNotFound as error:
        return error


def remaining_grace(first_met: datetime, grace: timedelta, now: datetime) -> timedelta:
    """Return how long an id may still hold a batch; never longer than the grace, however the clock was set."""
    return min(max(first_met + grace - now, timedelta(0)), grace)


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
