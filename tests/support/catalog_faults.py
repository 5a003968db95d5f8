"""What tests of Iceberg tables do to a catalog: race for versions, and let its client fail."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, TooManyRequestsError
from requests.exceptions import ConnectionError as Broken

from headrace.writer.table.table import PipelineTable

TWICE = "it answers twice"  # the request comes twice, and the second answer, a refusal, arrives
FAULTS = {  # what a catalog does → what its client raises
    "it refuses": CommitFailedException("it was told to"),
    "it throttles": TooManyRequestsError("it was told to"),
    "it is down": Broken("no connection"),
    "it forgets the answer": Broken("the connection was reset"),
    "it fails after the commit": CommitStateUnknownException("no idea"),
    TWICE: None,
}
APPLIED = ("it forgets the answer", "it fails after the commit", TWICE)


def race(table: PipelineTable, versions: int, number: str) -> int:
    """Commit whenever there is a version to follow, until there are so many. Returns how many entries were its own."""
    log = table._log
    won = 0
    while (state := log.state()).version <= versions:
        mine = json.dumps({"kind": "start", "id": f"{number}-{state.version}"})
        with suppress(OSError):  # no answer: the log decides
            log.append(state, [{"commitInfo": {"timestamp": 0, "operation": "WRITE", "headrace": mine}}])
        log.state()
        won += mine == (log.entry(state.version + 1) or [{}])[0].get("commitInfo", {}).get("headrace")
    return won


@contextmanager
def fail(
    monkeypatch: pytest.MonkeyPatch, client: Any, fault: str, asked: str = "commit_table"
) -> Iterator[Callable[[], int]]:
    """Let a catalog's client fail at the first request for each commit. Yields how often it did."""
    real = getattr(client, asked)
    failures = 0
    again = False

    def failing(*args: Any, **more: Any) -> Any:
        nonlocal failures, again
        if again:
            again = False
            return real(*args, **more)
        failures += 1
        again = fault not in APPLIED
        if fault in APPLIED:
            real(*args, **more)
        if fault == TWICE:
            return real(*args, **more)
        error = FAULTS[fault]
        assert error is not None
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(client, asked, failing)
        yield lambda: failures
