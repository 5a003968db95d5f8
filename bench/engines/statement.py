"""Asking Trino and Presto over their statement protocol, which is one but for the names of its headers."""

import time
from dataclasses import dataclass
from typing import Any

from headrace.writer.core import http
from headrace.writer.core.errors import HeadraceError

_BUSY = 503
_ANSWER_WITHIN_S = 400


class QueryFailed(HeadraceError):
    """The engine refused a statement, or failed in it."""


@dataclass(frozen=True)
class Answer:
    """Rows as JSON values, and what the engine measured."""

    rows: list[tuple[Any, ...]]
    stats: dict[str, Any]


@dataclass(frozen=True)
class Coordinator:
    """A coordinator of Trino or Presto. `flavour` names the headers: `Trino` or `Presto`."""

    url: str
    flavour: str

    def ask(self, sql: str, *, seconds_max: float = 300) -> Answer:
        """Run a statement to its end. Raises QueryFailed with the engine's own sentence."""
        deadline = time.monotonic() + seconds_max
        answer = self._call(f"{self.url}/v1/statement", sql.encode())
        rows: list[tuple[Any, ...]] = []
        while True:
            if "error" in answer:
                if answer["error"].get("errorName") == "NO_NODES_AVAILABLE" and time.monotonic() < deadline:
                    # The worker is not active yet, or did not answer the coordinator for a moment.
                    time.sleep(0.5)
                    return self.ask(sql, seconds_max=deadline - time.monotonic())
                raise QueryFailed(f"{self.flavour}: {answer['error']['message']}\n  {sql}")
            rows.extend(tuple(row) for row in answer.get("data", []))
            if "nextUri" not in answer:
                return Answer(rows, answer["stats"])
            if time.monotonic() > deadline:
                raise QueryFailed(f"{self.flavour}: no end after {seconds_max:g} s\n  {sql}")
            answer = self._call(answer["nextUri"])

    def answers(self, sql: str) -> bool:
        """Return whether a statement succeeds now: right after its start a coordinator has no worker yet."""
        try:
            self.ask(sql, seconds_max=20)
        except QueryFailed:
            return False
        return True

    def _call(self, url: str, body: bytes | None = None) -> dict[str, Any]:
        headers = {f"X-{self.flavour}-User": "headrace", "X-Requested-With": "headrace"}
        method = "GET" if body is None else "POST"
        while True:
            try:
                response = http.ask(url, method=method, body=body, headers=headers, timeout_s=_ANSWER_WITHIN_S)
                if response.ok:
                    answer: dict[str, Any] = response.json()
                    return answer
            except http.RequestFailed as error:
                raise QueryFailed(f"{self.flavour}: {error}") from error
            if response.status != _BUSY:
                raise QueryFailed(f"{self.flavour} answers {response.summary()}")
            time.sleep(0.05)
