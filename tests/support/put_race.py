"""Processes that race for names in an object store, by obstore: of each name one must win."""

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from tests.servers.cloud_stores import CloudStore

# Azure's names of metadata are identifiers.
TOKEN = "headrace_put"
_WAIT_S = 60


@dataclass(frozen=True)
class Put:
    """What a process was told of its put. `token`: in the object's metadata, if it won; it is the content, too."""

    name: str
    token: str
    won: bool


def race(store: CloudStore, location: str, names: Sequence[str], processes: int) -> list[Put]:
    """Let processes put each name at the same moment, only where none is. Returns what each was told."""
    # A fork after the first use of obstore hangs.
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(processes)
    answers: Queue[list[Put] | BaseException] = context.Queue()
    racers = [
        context.Process(target=_put_all, args=(number, store, location, list(names), begin, answers))
        for number in range(processes)
    ]
    for racer in racers:
        racer.start()
    try:
        puts: list[Put] = []
        for _ in racers:
            answer = answers.get(timeout=_WAIT_S)
            if isinstance(answer, BaseException):
                raise answer
            puts += answer
        return puts
    finally:
        for racer in racers:
            racer.kill()
            racer.join()


def put_if_absent(bucket: Any, name: str, token: str) -> bool:
    """Put a name with a token, only where none is. Returns whether it was put."""
    import obstore

    try:
        obstore.put(bucket, name, token.encode(), mode="create", attributes={TOKEN: token}, use_multipart=False)
    except obstore.exceptions.AlreadyExistsError:
        return False
    return True


def _put_all(
    number: int,
    store: CloudStore,
    location: str,
    names: list[str],
    begin: Barrier,
    answers: "Queue[list[Put] | BaseException]",
) -> None:
    try:
        bucket = store.obstore(location)
        puts: list[Put] = []
        for name in names:
            begin.wait(_WAIT_S)
            token = f"{name} of {number}"
            puts.append(Put(name, token, put_if_absent(bucket, name, token)))
        answers.put(puts)
    except Exception as error:  # noqa: BLE001 - the test raises it
        answers.put(RuntimeError(f"process {number}: {type(error).__name__} {error}"))
