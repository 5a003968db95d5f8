"""Asks a registry for a batch, and holds it while the registry is down, or does not know an id yet."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from writer.core import logging
from writer.core.backoff import Backoff
from writer.core.errors import Draining
from writer.schemas.registry_client import RegistryUnreachable, SchemaNotFound
from writer.schemas.unknown_ids import UnknownIds

_BACKOFF = Backoff(1, 30)  # between two questions to a registry that does not answer
_IDS_SHOWN = 10  # in one log line
_T = TypeVar("_T")


@dataclass(frozen=True)
class IdQuestion:
    """A schema that is asked for by its id. `name`: of the id, for people and in storage."""

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

    def ask_all(self, questions: Sequence[IdQuestion]) -> dict[str, str | SchemaNotFound]:
        """Return what each id is, by its name, once it is known or its grace is over. Raises as `ask` does."""
        answers: dict[str, str | SchemaNotFound] = {}
        waiting = list(questions)
        attempt = 0
        while waiting:
            for question in waiting:
                answers[question.name] = self.ask(lambda read=question.read: _answer_of(read), question.name)  # type: ignore[misc]
            absent = [each.name for each in waiting if isinstance(answers[each.name], SchemaNotFound)]
            left_s = self._unknown_ids.remaining_s(absent) if self._unknown_ids is not None else {}
            waiting = [each for each in waiting if left_s.get(each.name, 0) > 0]
            if waiting:
                self._wait(waiting, min(_BACKOFF.delay_s(attempt), *left_s.values()))
                attempt += 1
        if self._unknown_ids is not None:
            self._unknown_ids.forget(name for name, answer in answers.items() if isinstance(answer, str))
        return answers

    def _wait(self, questions: Sequence[IdQuestion], seconds: float) -> None:
        names = [question.name for question in questions]
        logging.warning(
            "schema_unknown", pipeline=self._pipeline, schemas=names[:_IDS_SHOWN], count=len(names), holding="batch"
        )
        self._stopping.wait(seconds)


def _answer_of(read: Callable[[], str]) -> str | SchemaNotFound:
    try:
        return read()
    except SchemaNotFound as error:
        return error
