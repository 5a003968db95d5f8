"""What tests of Iceberg tables do to a catalog: race for versions, and lose answers."""

import json
from contextlib import suppress
from typing import Any

import pytest

from writer.table.table import PipelineTable


def race(table: PipelineTable, versions: int, number: str) -> int:
    """Commit whenever there is a version to follow, until there are so many. Returns how many entries were its own."""
    log, won = table._log, 0
    while (state := log.state()).version <= versions:
        mine = json.dumps({"kind": "start", "id": f"{number}-{state.version}"})
        with suppress(OSError):  # no answer: the log decides
            log.append(state, [{"commitInfo": {"timestamp": 0, "operation": "WRITE", "headrace": mine}}])
        log.state()
        won += mine == (log.entry(state.version + 1) or [{}])[0].get("commitInfo", {}).get("headrace")
    return won


def lose_answers(monkeypatch: pytest.MonkeyPatch, client: Any, times: int, *, applied: bool) -> None:
    """Let so many commits of a catalog's client end without an answer; `applied`: they took effect all the same."""
    commit, failures = client.commit_table, iter(range(times))

    def unanswered(*args: Any) -> Any:
        if next(failures, None) is None:
            return commit(*args)
        if applied:
            commit(*args)
        raise RuntimeError("the connection was reset")

    monkeypatch.setattr(client, "commit_table", unanswered)
