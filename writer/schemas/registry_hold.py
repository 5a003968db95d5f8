"""Asks a registry for a batch, and holds it while the registry is down, or does not know an id yet."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TypeVar

from writer.core import logging
from writer.core.backoff import Backoff
from writer.core.errors import Draining
from writer.schemas.registry_client import RegistryUnreachable, SchemaNotFound
from writer.schemas.unknown_ids import UnknownIds

_BACKOFF = Backoff(1, 30)  # between two questions to a registry that does not answer
STRAYS_MAX = 500  # ids of one batch that the registry is asked for and does not know
_SIDE_BY_SIDE = 8  # requests at once: a registry is a shared service
_IDS_SHOWN = 10  # in one log line
_T = TypeVar("_T")


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

    def __init__(self, pipeline: str, stopping: threading.Event, unknown_ids: UnknownIds | None) -> None:
        """Wait no longer once `stopping` is set."""
        self._pipeline = pipeline
        self._stopping = stopping
        self._unknown_ids = unknown_ids

    def ask(self, ask: Callable[[], _T], name: str) -> _T:
        """Return an answer, once the registry is up. `name`: of what is asked for.

        Raises SchemaNotFound, Draining; without a wait also RegistryUnreachable.
        """
        began_s = time.monotonic()
        attempt = 0
        while not self._stopping.is_set():
            try:
                answer = ask()
            except RegistryUnreachable as error:
                if self._unknown_ids is None:
                    raise
                logging.warning("registry_unreachable", pipeline=self._pipeline, holding="batch", error=str(error))
                self._stopping.wait(max(_BACKOFF.delay_s(attempt), error.retry_after_s))
                attempt += 1
            else:
                self._leave_out(began_s, attempt)
                return answer
        raise Draining(f"pipeline {self._pipeline!r} was asked to stop while it waited for {name}")

    def _leave_out(self, began_s: float, attempts: int) -> None:
        """An id is unknown by what the registry says: a time in which it says nothing is no part of a grace."""
        if attempts and self._unknown_ids is not None:
            self._unknown_ids.extend(time.monotonic() - began_s)

    def ask_all(self, questions: Iterable[IdQuestion]) -> dict[str, str | SchemaNotFound]:
        """Return what each id is, by its name, once it is known, its grace is over, or the pipeline may wait no longer.

        Raises as `ask` does. Where STRAYS_MAX are unknown, the others are not asked for: NotAsked.
        """
        in_order = self._in_turn(questions)
        answers = self._answers(in_order)
        if self._unknown_ids is not None:
            self._wait_for_unknown(in_order, answers, self._unknown_ids)
            self._unknown_ids.forget(name for name, answer in answers.items() if isinstance(answer, str))
        return answers

    def _in_turn(self, questions: Iterable[IdQuestion]) -> list[IdQuestion]:
        """Take in turn an id that is new and one that was unknown before, so that no kind keeps the other waiting.

        Of each kind small ids come first: registries count up, and ids of garbage are large for the most part.
        """
        by_id = sorted(questions, key=lambda question: question.schema_id)
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
            left_s = unknown_ids.remaining_s([question.name for question in absent])
            waiting = [question for question in absent if left_s[question.name] > 0]
            if not waiting or waited_s >= allowance_s:
                break
            ends_s = (left_s[question.name] for question in waiting)
            pause_s = min(_BACKOFF.delay_s(attempt), allowance_s - waited_s, *ends_s)
            self._wait(waiting, pause_s)
            waited_s += pause_s
            attempt += 1
            answers |= self._answers(waiting)
            absent = _absent(waiting, answers)
        if absent and waited_s > 0:
            unknown_ids.spend(waited_s)

    def _answers(self, questions: Sequence[IdQuestion]) -> dict[str, str | SchemaNotFound]:
        """Ask for some ids, a few side by side, until too many of them are unknown. Raises as `ask` does."""
        answers: dict[str, str | SchemaNotFound] = {}
        strays = 0
        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="registry") as pool:
            for begin in range(0, len(questions), _SIDE_BY_SIDE):
                if strays >= STRAYS_MAX:
                    break
                together = questions[begin : begin + _SIDE_BY_SIDE]
                results = self.ask(lambda asked=together: list(pool.map(_answer_of, asked)), together[0].name)  # type: ignore[misc]
                answers |= {question.name: answer for question, answer in zip(together, results, strict=True)}
                strays += sum(isinstance(answer, SchemaNotFound) for answer in results)
        for question in questions[len(answers) :]:
            answers[question.name] = NotAsked(
                f"{question.name} was not asked for: {strays} other ids of its batch are unknown to the registry"
            )
        return answers

    def _wait(self, questions: Sequence[IdQuestion], seconds: float) -> None:
        names = [question.name for question in questions]
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


def _answer_of(question: IdQuestion) -> str | SchemaNotFound:
    try:
        return question.read()
    except SchemaNotFound as error:
        return error
